"""Fits the tone classifiers that ship with the package, and writes them to their places.

python tools/fit_tones.py [--cache runs/cache]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from paras2s.data_gen.scripted.tones import (
    AGENT_FILE,
    USER_FILE,
    VERSION_FILE,
    fit_independent_tone,
    fit_tones,
    tones_version,
)  # fmt: skip
from paras2s.reward.judges.independent.tone import SHIPPED
from paras2s.utils.io import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    cache = parser.parse_args().cache

    def at(done: int, total: int) -> None:
        print(f"{done} of {total} texts", flush=True)

    user, agent = fit_tones(cache, at)
    user.save(USER_FILE)
    agent.save(AGENT_FILE)
    write_json(VERSION_FILE, {"version": tones_version()})
    independent = fit_independent_tone(cache, at)
    independent.save(SHIPPED)
    print(f"accuracy on the agent's voice: the independent judge's {independent.accuracy:.3f} of {independent.clips} clips")
    print(f"accuracy on voices held out: users {user.report['accuracy']:.3f}, agent {agent.report['accuracy']:.3f}")


if __name__ == "__main__":
    main()
