"""What became of every sentence and every clip: counts by filter, and what a run of the pipeline costs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.clients.endpoint import Price
from paras2s.configs.schema.run import CurationConfig
from paras2s.data_gen.corpora import CORPORA
from paras2s.data_gen.curation.scheduler import LEAST_YIELD, SPLIT_OF_ROLE
from paras2s.data_gen.curation.text_filters import NOT_ASKED
from paras2s.data_gen.dataset import load_manifest
from paras2s.data_gen.tts.base import Line
from paras2s.data_gen.tts.remote import speech_usd
from paras2s.errors import DataError
from paras2s.utils.io import read_jsonl

# The filters in the order in which they are applied; "failed" in a name: that test gave no answer.
TEXT_FILTERS = ("list", "rules", "duplicate", "neutrality", "reasonability", "answers", "relevance", "surplus")
CLIP_FILTERS = ("speech", "words", "style", "contrast", "people")
# Calls for one script that comes so far; an answer is written for each of its two styles.
CALLS = {"neutrality": 1, "reasonability": 1, "answers": 2, "relevance": 1}
# What a call takes and gives where nothing was measured yet: tokens in and out.
USUAL_TOKENS = {
    "lists": (230, 20), "neutrality": (190, 45), "reasonability": (190, 55), "answers": (260, 70), "relevance": (230, 45),
}  # fmt: skip
USUAL_SPOKEN = 0.8
# A query lasts 4.6 to 6.2 s (ParaS2S, Table 4), answers as long.
USUAL_QUERY_S, USUAL_CHARACTERS = 5.0, 80
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
    """What was seen of an earlier run: shares of sentences that came through each text filter, and of contrasts through speech.

    `tokens`: in and out of each stage's call; of "lists" those out are for one sentence.
    """

    passed: dict[str, float]
    tokens: dict[str, tuple[float, float]]
    spoken: float
    measured_on: int


def measured_rates(folder: Path) -> Rates:
    """From the ledgers of an earlier run in this folder, such as a pilot with --limit; else what is usual. Corpora aside."""
    path = folder / "texts.jsonl"
    usual = {stage: (float(a), float(b)) for stage, (a, b) in USUAL_TOKENS.items()}
    came, rejected = 0, Counter[str]()
    for row in read_jsonl(path) if path.is_file() else ():
        if row["category"] not in CORPORA and row["rejected_by"] != "list":
            came += 1
            rejected[row["rejected_by"] or ""] += 1
    if not came:
        return Rates(dict(USUAL_PASS), usual, USUAL_SPOKEN, 0)
    passed, left = {}, came
    for name, share in USUAL_PASS.items():
        passed[name] = (left - rejected[name]) / left if left else share
        left -= rejected[name]
    return Rates(passed, _tokens_seen(folder, usual, came), _share_spoken(folder), came)


def _tokens_seen(folder: Path, usual: dict[str, tuple[float, float]], sentences: int) -> dict[str, tuple[float, float]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in read_jsonl(folder / "spend.jsonl"):
        total = sums[row["stage"]]
        total[0] += row["requests"] - row["cached"] - row["failed"]
        total[1] += row["text_in_tokens"]
        total[2] += row["text_out_tokens"]
    found = dict(usual)
    for stage in usual:
        calls, tokens_in, tokens_out = sums[stage]
        if calls > 0:
            found[stage] = (tokens_in / calls, tokens_out / (sentences if stage == "lists" else calls))
    return found


def _share_spoken(folder: Path) -> float:
    """Share of contrasts of which something was kept; of a held-out one, that is both styles."""
    try:
        candidates = load_manifest(folder).candidates
    except DataError:
        return USUAL_SPOKEN
    asked = {one.contrast_id for one in candidates if one.category not in CORPORA}
    kept = {one.contrast_id for one in candidates if one.category not in CORPORA and one.rejected_by in (None, "people")}
    return len(kept) / len(asked) if asked else USUAL_SPOKEN


def estimate(
    config: CurationConfig, rates: Rates, prices: Mapping[str, Price], limit: int | None = None
) -> dict[str, StageEstimate]:
    """What a run takes, by stage: for all that the roles want, or for `limit` sentences. Corpora come on top."""
    through = rates.spoken
    for share in rates.passed.values():
        through *= share
    wanted: Counter[str] = Counter()
    for role, count in config.contrasts.items():
        wanted[SPLIT_OF_ROLE[role]] += count
    # Lists are bought whole, for each category and split.
    lists = sum(math.ceil(count / max(LEAST_YIELD, through) / config.list_size) for count in wanted.values() if count)
    lists *= len(config.categories)
    sentences = float(lists * config.list_size)
    if limit is not None and limit < sentences:
        sentences, lists = float(limit), math.ceil(limit / config.list_size)
    found = {"lists": _calls(config.writer.model, lists, rates.tokens["lists"], prices, sentences)}
    left = sentences
    for name, share in rates.passed.items():
        if name in CALLS:
            found[name] = _calls(config.tester.model, left * CALLS[name], rates.tokens[name], prices)
        left *= share
    found["speech"] = _speech(config, left, prices)
    return found


def _calls(
    model: str, count: float, tokens: tuple[float, float], prices: Mapping[str, Price], replies: float | None = None
) -> StageEstimate:
    tokens_in, tokens_out = round(tokens[0] * count), round(tokens[1] * (count if replies is None else replies))
    price = prices.get(model)
    usd = None if price is None else (tokens_in * price.text_in + tokens_out * price.text_out) / 1e6
    return StageEstimate(round(count), tokens_in, tokens_out, usd)


def _speech(config: CurationConfig, contrasts: float, prices: Mapping[str, Price]) -> StageEstimate:
    """Two queries a contrast, and the takes of the demonstrated ones' answers; engines of one's own cost nothing.

    Where some voices are bought and others one's own, all lines are priced as bought.
    """
    total = sum(config.contrasts.values())
    shown = 2 * config.contrasts.get("demonstration", 0) / total * contrasts * config.answer_takes if total else 0.0
    engines = {one.engine for one in (*config.voices, config.agent)} if config.speak_with is None else {config.speak_with}
    lines = 2 * contrasts + shown
    price = prices.get(config.openai.model)
    line = Line("x" * USUAL_CHARACTERS, config.agent, "", "x" * USUAL_CHARACTERS)
    each = speech_usd(price, line, USUAL_QUERY_S) if "openai" in engines else 0.0
    return StageEstimate(round(lines), 0, 0, None if each is None else each * lines)


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
