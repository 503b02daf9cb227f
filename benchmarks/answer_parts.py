"""What the answers of a benched run get right: the topic, the kind, both, and the tone, as the rubric finds them.

python benchmarks/answer_parts.py runs/spoken_lm
"""

from __future__ import annotations

import argparse
from pathlib import Path

from figures import Figure, add_json_option, write_figures

from paras2s.bench.results import load_rows
from paras2s.reward.judges.rubric_rules import FITTING

SYSTEMS = ("sft", "aligned")


def main() -> None:
    """Print a row for each policy of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    add_json_option(parser)
    options = parser.parse_args()
    shares: dict[str, list[float]] = {}
    for system in SYSTEMS:
        rows = load_rows(options.run / "bench" / f"{system}.jsonl")
        parts = [row.parts or {} for row in rows]
        topic, kind, tone = (
            [part.get(name, 0.0) >= least for part in parts] for name, least in (("topic", 5), ("kind", FITTING), ("tone", 5))
        )
        right = {
            "topic": topic,
            "kind": kind,
            "topic and kind": [a and b for a, b in zip(topic, kind, strict=True)],
            "tone": tone,
        }
        for name, values in right.items():
            shares.setdefault(name, []).append(sum(values) / len(rows))
        texts = len({row.text_stream for row in rows})
        named = ", ".join(f"{name} {100 * values[-1]:.0f} %" for name, values in shares.items())
        print(f"{system}: {named} of {len(rows)} answers, {texts} different ones")
    before_after = [(name, *values) for name, values in shares.items()]
    write_figures(
        options.json,
        [
            Figure(f"right {name}", "share", (after,), (before,), "SFT", more_is_better=True)
            for name, before, after in before_after
        ],
    )


if __name__ == "__main__":
    main()
