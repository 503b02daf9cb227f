"""What became of every sentence and every clip: counts by filter, and what a run of the pipeline costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.config import CurationConfig
from paras2s.data_gen.curation.dealing import LEAST_YIELD, SPLIT_OF_ROLE
from paras2s.data_gen.curation.text_tests import NOT_ASKED
from paras2s.data_gen.manifest import load_manifest
from paras2s.endpoint import Price
from paras2s.errors import DataError
from paras2s.storage import read_jsonl

# The filters in the order in which they are applied; "failed" in a name: that test gave no answer.
TEXT_FILTERS = ("rules", "duplicate", "neutrality", "reasonability", "answers", "relevance", "surplus")
CLIP_FILTERS = ("speech", "words", "style", "contrast", "people")
# Calls for one script that comes so far; an answer is written for each of its two styles.
CALLS = {"neutrality": 1, "reasonability": 1, "answers": 2, "relevance": 1}
# What a call takes and gives where nothing was measured yet: tokens in and out.
USUAL_TOKENS = {
    "lists": (230, 2000), "neutrality": (190, 45), "reasonability": (190, 55), "answers": (260, 70), "relevance": (230, 45),
}  # fmt: skip
USUAL_SPOKEN = 0.8
USUAL_PASS = {"rules": 0.95, "duplicate": 0.95, "neutrality": 0.8, "reasonability": 0.9, "answers": 0.99, "relevance": 0.9}


@dataclass(frozen=True)
class Funnel:
    """Counts by category: sentences and clips that came in, were rejected by each filter, and were kept."""

    texts: dict[str, Counter[str]]
    clips: dict[str, Counter[str]]
    reasons: dict[str, list[tuple[str, int]]]


def read_funnel(folder: Path, most_reasons: int = 3) -> Funnel:
    """From the ledgers in a dataset's folder; a run's dataset has no ledger of sentences, whose scripts were written by hand.

    Raises:
        DataError: there is no ledger.
    """
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    clips: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    path = folder / "texts.jsonl"
    for row in read_jsonl(path) if path.is_file() else ():
        asked = row["rejected"] is None or not row["rejected"].startswith(NOT_ASKED)
        by = row["rejected_by"] if asked else f"{row['rejected_by']} failed"
        _count(texts[row["category"]], reasons, by, row["rejected"])
    for candidate in load_manifest(folder).candidates:
        _count(clips[candidate.category], reasons, candidate.rejected_by, candidate.rejected)
    shown = {by: [(_short(reason), n) for reason, n in found.most_common(most_reasons)] for by, found in reasons.items()}
    return Funnel(dict(texts), dict(clips), shown)


def _count(counter: Counter[str], reasons: Mapping[str, Counter[str]], by: str | None, reason: str | None) -> None:
    counter["in"] += 1
    counter[by or "kept"] += 1
    if by is not None:
        reasons[by][reason or ""] += 1


def _short(reason: str) -> str:
    return reason if len(reason) <= 100 else f"{reason[:97]}..."


def filters_seen(counts: Mapping[str, Counter[str]], order: tuple[str, ...]) -> list[str]:
    """The filters that rejected anything, in their order, each followed by its failures."""
    found = {name for counter in counts.values() for name in counter} - {"in", "kept"}
    ordered = [name for by in order for name in (by, f"{by} failed") if name in found]
    return [*ordered, *sorted(found - set(ordered))]


@dataclass(frozen=True)
class StageEstimate:
    """What one stage of a run is expected to take. `usd` is None where a price is not known."""

    requests: int
    text_in_tokens: int
    text_out_tokens: int
    usd: float | None


@dataclass(frozen=True)
class Rates:
    """Shares of sentences that come through each text filter, tokens of each stage's call, and of speech a contrast's share."""

    passed: dict[str, float]
    tokens: dict[str, tuple[float, float]]
    spoken: float
    measured_on: int


def measured_rates(folder: Path) -> Rates:
    """From the ledgers of an earlier run in this folder, such as a pilot with --limit; else what is usual."""
    path = folder / "texts.jsonl"
    if not path.is_file():
        return Rates(dict(USUAL_PASS), {k: (float(a), float(b)) for k, (a, b) in USUAL_TOKENS.items()}, USUAL_SPOKEN, 0)
    came, rejected = 0, Counter[str]()
    for row in read_jsonl(path):
        came += 1
        rejected[row["rejected_by"] or ""] += 1
    passed, left = {}, came
    for name in USUAL_PASS:
        passed[name] = (left - rejected[name]) / left if left else USUAL_PASS[name]
        left -= rejected[name]
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in read_jsonl(folder / "spend.jsonl"):
        total = sums[row["stage"]]
        total[0] += row["requests"] - row["cached"] - row["failed"]
        total[1] += row["text_in_tokens"]
        total[2] += row["text_out_tokens"]
    tokens = {
        stage: (sums[stage][1] / sums[stage][0], sums[stage][2] / sums[stage][0]) if sums[stage][0] else usual
        for stage, usual in USUAL_TOKENS.items()
    }
    return Rates(passed, tokens, _share_spoken(folder), came)


def _share_spoken(folder: Path) -> float:
    try:
        candidates = load_manifest(folder).candidates
    except DataError:
        return USUAL_SPOKEN
    return sum(one.rejected_by is None for one in candidates) / len(candidates) if candidates else USUAL_SPOKEN


def estimate(
    config: CurationConfig,
    rates: Rates,
    prices: Mapping[str, Price],
    limit: int | None = None,
) -> dict[str, StageEstimate]:
    """What a run of the text stages takes, by stage: for all that the roles want, or for `limit` sentences."""
    through = 1.0
    for share in rates.passed.values():
        through *= share
    need = sum(count for role, count in config.contrasts.items() if role in SPLIT_OF_ROLE) * len(config.categories)
    sentences = need / max(LEAST_YIELD, through * rates.spoken)
    sentences = sentences if limit is None else min(limit, sentences)
    lists = -(-sentences // config.list_size)
    counts: dict[str, float] = {"lists": lists}
    left = sentences
    for name, share in rates.passed.items():
        if name in CALLS:
            counts[name] = left * CALLS[name]
        left *= share
    found = {}
    for stage, count in counts.items():
        llm = config.writer if stage == "lists" else config.tester
        tokens_in, tokens_out = (round(each * count) for each in rates.tokens[stage])
        price = prices.get(llm.model)
        usd = None if price is None else (tokens_in * price.text_in + tokens_out * price.text_out) / 1e6
        found[stage] = StageEstimate(round(count), tokens_in, tokens_out, usd)
    return found


def totals(stages: Mapping[str, Any]) -> tuple[int, int, int, float | None]:
    """Requests, tokens in, tokens out and USD of all stages; USD is None as soon as one is."""
    rows = list(stages.values())
    usd = None if any(row.usd is None for row in rows) else sum(row.usd for row in rows)
    return (
        sum(row.requests for row in rows),
        sum(row.text_in_tokens for row in rows),
        sum(row.text_out_tokens for row in rows),
        usd,
    )
