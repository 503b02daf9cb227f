"""The funnel of a curation (counts of sentences and clips by filter), and the cost estimate of a run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.clients.endpoint import Price
from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.corpora import CORPORA
from paras2s.data_gen.curation.scheduler import LEAST_YIELD, SPLIT_OF_ROLE
from paras2s.data_gen.curation.text_filters import NO_REPLY
from paras2s.data_gen.dataset import load_manifest
from paras2s.data_gen.tts.base import Line
from paras2s.data_gen.tts.remote import speech_usd
from paras2s.errors import DataError
from paras2s.utils.io import read_jsonl

# The filters in the order in which they are applied; "NAME failed" counts tests without a reply.
TEXT_FILTERS = ("list", "rules", "duplicate", "neutrality", "reasonability", "answers", "relevance", "surplus")
CLIP_FILTERS = ("speech", "words", "style", "contrast", "people")
# Calls for a script that reaches the stage; an answer is written for each of its two styles.
CALLS = {"neutrality": 1, "reasonability": 1, "answers": 2, "relevance": 1}
# Tokens in and out of a call, before any were measured.
USUAL_TOKENS = {
    "lists": (230, 20), "neutrality": (190, 45), "reasonability": (190, 55), "answers": (260, 70), "relevance": (230, 45),
}  # fmt: skip
USUAL_SPOKEN = 0.8
# A query lasts 4.6 to 6.2 s (ParaS2S, Table 4), answers as long.
USUAL_QUERY_S, USUAL_CHARACTERS = 5.0, 80
USUAL_PASS = {"rules": 0.95, "duplicate": 0.95, "neutrality": 0.8, "reasonability": 0.9, "answers": 0.99, "relevance": 0.9}


@dataclass(frozen=True)
class Funnel:
    """Counts by category of sentences and clips: in, rejected by each filter, kept; and the commonest reasons by filter."""

    texts: dict[str, Counter[str]]
    clips: dict[str, Counter[str]]
    reasons: dict[str, list[tuple[str, int]]]


def read_funnel(folder: Path) -> Funnel:
    """Read a dataset's ledgers; a run's has none of sentences, as scripts are hand-written. Raises DataError: none."""
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    clips: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    path = folder / "texts.jsonl"
    for row in read_jsonl(path) if path.is_file() else ():
        tested = row["rejected"] is None or not row["rejected"].startswith(NO_REPLY)
        by = row["rejected_by"] if tested else f"{row['rejected_by']} failed"
        _count(texts[row["category"]], reasons, by, row["rejected"])
    for candidate in load_manifest(folder).candidates:
        _count(clips[candidate.category], reasons, candidate.rejected_by, candidate.rejected)
    shown = {by: [(_short(reason), n) for reason, n in counts.most_common(3)] for by, counts in reasons.items()}
    return Funnel(dict(texts), dict(clips), shown)


def _count(counter: Counter[str], reasons: Mapping[str, Counter[str]], by: str | None, reason: str | None) -> None:
    counter["in"] += 1
    counter[by or "kept"] += 1
    if by is not None:
        reasons[by][reason or ""] += 1


def _short(reason: str) -> str:
    return reason if len(reason) <= 100 else f"{reason[:97]}..."


def filters_seen(counts: Mapping[str, Counter[str]], order: tuple[str, ...]) -> list[str]:
    """Return the filters that rejected anything, in order, each followed by its failures."""
    seen = {name for counter in counts.values() for name in counter} - {"in", "kept"}
    ordered = [name for by in order for name in (by, f"{by} failed") if name in seen]
    return [*ordered, *sorted(seen - set(ordered))]


@dataclass(frozen=True)
class StageEstimate:
    """The estimated calls, tokens and cost of a stage. `usd` is None if a price is unknown."""

    requests: int
    text_in_tokens: int
    text_out_tokens: int
    usd: float | None


@dataclass(frozen=True)
class FilterRates:
    """Rates measured in an earlier run: shares of sentences that passed each text filter, and of contrasts that passed speech.

    `tokens`: in and out of each stage's call; for "lists" the tokens out are per sentence.
    """

    passed: dict[str, float]
    tokens: dict[str, tuple[float, float]]
    spoken: float
    measured_on: int


def measured_rates(folder: Path) -> FilterRates:
    """Measure rates on the ledgers of an earlier run in this folder, else return usual ones. Corpora do not count."""
    path = folder / "texts.jsonl"
    usual = {stage: (float(a), float(b)) for stage, (a, b) in USUAL_TOKENS.items()}
    written, rejected = 0, Counter[str]()
    for row in read_jsonl(path) if path.is_file() else ():
        if row["category"] not in CORPORA and row["rejected_by"] != "list":
            written += 1
            rejected[row["rejected_by"] or ""] += 1
    if not written:
        return FilterRates(dict(USUAL_PASS), usual, USUAL_SPOKEN, 0)
    passed, left = {}, written
    for name, share in USUAL_PASS.items():
        passed[name] = (left - rejected[name]) / left if left else share
        left -= rejected[name]
    return FilterRates(passed, _measured_tokens(folder, usual, written), _share_spoken(folder), written)


def _measured_tokens(folder: Path, usual: dict[str, tuple[float, float]], sentences: int) -> dict[str, tuple[float, float]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in read_jsonl(folder / "spend.jsonl"):
        total = sums[row["stage"]]
        total[0] += row["requests"] - row["cached"] - row["failed"]
        total[1] += row["text_in_tokens"]
        total[2] += row["text_out_tokens"]
    tokens = dict(usual)
    for stage in usual:
        calls, tokens_in, tokens_out = sums[stage]
        if calls > 0:
            tokens[stage] = (tokens_in / calls, tokens_out / (sentences if stage == "lists" else calls))
    return tokens


def _share_spoken(folder: Path) -> float:
    """Return the share of contrasts with an accepted clip; a held-out one has both or none."""
    try:
        candidates = load_manifest(folder).candidates
    except DataError:
        return USUAL_SPOKEN
    written = [candidate for candidate in candidates if candidate.category not in CORPORA]
    accepted = {candidate.contrast_id for candidate in written if candidate.rejected_by in (None, "people")}
    return len(accepted) / len({candidate.contrast_id for candidate in written}) if written else USUAL_SPOKEN


def estimate(
    config: CurationConfig, rates: FilterRates, prices: Mapping[str, Price], limit: int | None = None
) -> dict[str, StageEstimate]:
    """Estimate the cost of a run by stage: for all requested contrasts, or for `limit` sentences. Corpora come on top."""
    passing = rates.spoken
    for share in rates.passed.values():
        passing *= share
    requested: Counter[str] = Counter()
    for role, count in config.contrasts.items():
        requested[SPLIT_OF_ROLE[role]] += count
    # Lists are paid for in full, for each category and split.
    lists = sum(math.ceil(count / max(LEAST_YIELD, passing) / config.list_size) for count in requested.values() if count)
    lists *= len(config.categories)
    sentences = float(lists * config.list_size)
    if limit is not None and limit < sentences:
        sentences, lists = float(limit), math.ceil(limit / config.list_size)
    stages = {"lists": _calls(config.writer.model, lists, rates.tokens["lists"], prices, sentences)}
    left = sentences
    for name, share in rates.passed.items():
        if name in CALLS:
            stages[name] = _calls(config.tester.model, left * CALLS[name], rates.tokens[name], prices)
        left *= share
    stages["speech"] = _speech(config, left, prices)
    return stages


def _calls(
    model: str, count: float, tokens: tuple[float, float], prices: Mapping[str, Price], replies: float | None = None
) -> StageEstimate:
    tokens_in, tokens_out = round(tokens[0] * count), round(tokens[1] * (count if replies is None else replies))
    price = prices.get(model)
    usd = None if price is None else (tokens_in * price.text_in + tokens_out * price.text_out) / 1e6
    return StageEstimate(round(count), tokens_in, tokens_out, usd)


def _speech(config: CurationConfig, contrasts: float, prices: Mapping[str, Price]) -> StageEstimate:
    """Estimate two queries a contrast and the takes of demonstrated answers; local engines cost nothing.

    Where some voices are remote and others local, all lines are priced as remote.
    """
    total = sum(config.contrasts.values())
    takes = 2 * config.contrasts.get("demonstration", 0) / total * contrasts * config.answer_takes if total else 0.0
    engines = {voice.engine for voice in (*config.voices, config.agent)} if config.speak_with is None else {config.speak_with}
    lines = 2 * contrasts + takes
    price = prices.get(config.openai.model)
    line = Line("x" * USUAL_CHARACTERS, config.agent, "", "x" * USUAL_CHARACTERS)
    line_usd = speech_usd(price, line, USUAL_QUERY_S) if "openai" in engines else 0.0
    return StageEstimate(round(lines), 0, 0, None if line_usd is None else line_usd * lines)


def totals(stages: Mapping[str, Any]) -> tuple[int, int, int, float | None]:
    """Return requests, tokens in, tokens out and USD of all stages; USD is None as soon as one is."""
    rows = list(stages.values())
    usd = None if any(row.usd is None for row in rows) else sum(row.usd for row in rows)
    return (
        sum(row.requests for row in rows),
        sum(row.text_in_tokens for row in rows),
        sum(row.text_out_tokens for row in rows),
        usd,
    )
