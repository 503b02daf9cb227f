"""Fits the tone classifiers that ship with the scripts, and writes them to their place in the package.

python tools/fit_tones.py [--cache runs/cache]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from paras2s.data_gen.scripted.tones import AGENT_FILE, USER_FILE, VERSION_FILE, fit_tones, tones_version
from paras2s.utils.io import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    user, agent = fit_tones(parser.parse_args().cache, lambda done, total: print(f"{done} of {total} texts", flush=True))
    user.save(USER_FILE)
    agent.save(AGENT_FILE)
    write_json(VERSION_FILE, {"version": tones_version()})
    print(f"accuracy on voices held out: users {user.report['accuracy']:.3f}, agent {agent.report['accuracy']:.3f}")


if __name__ == "__main__":
    main()
