"""The card of a pushed folder that has none of its own: what it is, how to open it, and its counts.

A policy has the longer card that `paras2s export` writes. The licence is left to the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq

from paras2s import __version__
from paras2s.utils.io import read_json, read_rows, reading
from paras2s.utils.tables import Table

Facts = list[tuple[str, str]]


def make_card(kind: str, folder: Path, repo: str) -> str:
    """Write the card of a folder of this kind.

    Raises:
        DataError: a file of it cannot be read.
    """
    sentence, opening, facts = CARDS[kind]
    rows = [*facts(folder), ("pushed by", f"paras2s {__version__}")]
    tags = f"tags: [paras2s, speech-to-speech, {kind.replace(' ', '-')}]"
    head = ["---", "# license: choose one; those of the speech and of the models behind it bind it", tags, "---"]
    pulled = ["```bash", f"paras2s pull {repo} {kind.split()[0]}", opening, "```"]
    title = f"# {repo.split('/')[-1]}"
    return "\n".join([*head, "", title, "", sentence, "", *pulled, "", Table(("", ""), rows).markdown(), ""])


def _dataset_facts(folder: Path) -> Facts:
    path = folder / "queries.parquet"
    with reading(path):
        rows = pq.read_table(path, columns=["role", "category", "style", "duration_s"]).to_pylist()
    hours = sum(row["duration_s"] for row in rows) / 3600
    return [
        ("queries by role", _counts(row["role"] for row in rows)),
        ("queries by category", _counts(row["category"] for row in rows if row["category"])),
        ("queries by style", _counts(row["style"] for row in rows if row["style"])),
        ("speech", f"{hours:.2f} hours"),
    ]


def _reward_model_facts(folder: Path) -> Facts:
    path = folder / "agreement.json"
    if not path.is_file():
        return [("agreement with its teacher", "not measured")]
    report = read_json(path)
    held = dict(report.get("held_out") or {})
    measured = ", ".join(f"{name} {value:.3g}" for name, value in sorted(held.items()) if isinstance(value, int | float))
    return [("teacher", str(report.get("teacher", "unknown"))), ("agreement on held-out queries", measured or "not measured")]


def _rollouts_facts(folder: Path) -> Facts:
    paths = sorted(folder.glob("step_*.parquet"))
    answers = 0
    for path in paths:
        with reading(path):
            answers += pq.read_metadata(path).num_rows
    return [("steps", str(len(paths))), ("answers", str(answers))]


def _preferences_facts(folder: Path) -> Facts:
    return [("rows", str(sum(1 for _ in read_rows(folder / "preferences.jsonl"))))]


def _counts(values: Iterable[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(values).items())) or "none"


# Kind -> what it is, the command that opens it, its facts.
CARDS: dict[str, tuple[str, str, Callable[[Path], Facts]]] = {
    "dataset": (
        "Spoken queries that ask for an answer to *how* they are said, with demonstrated answers.",
        'paras2s bench template dataset questions    # or, in Python: paras2s.load_dataset("dataset")',
        _dataset_facts,
    ),
    "reward model": (
        "A reward model of spoken answers, distilled from a judge. It reads a run's codes: put it into RUN/reward, and the "
        "dataset of its run into RUN/data.",
        "paras2s judge answer question.wav answer.wav --judge RUN",
        _reward_model_facts,
    ),
    "rollouts": (
        "Answers that a policy sampled while it was trained, with tokens, log-probs, rewards and advantages.",
        "paras2s rollouts rollouts --out answers.parquet",
        _rollouts_facts,
    ),
    "preferences": (
        "Spoken questions with two answers, one chosen and one rejected, or with one labelled answer.",
        "paras2s align CONFIG --preferences preferences/preferences.jsonl",
        _preferences_facts,
    ),
}
