"""The builder of a corpus' part of UniSRM-Data: pairs are planned, written, spoken, judged, and kept where everything agrees.

Nothing is paid for twice: texts, clips and judgements are cached, so that a stopped build, run again, continues and ends
like an uninterrupted one. Pairs that make no item are counted with their reason (appendix G.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from paras2s.audio.clip import Clip, write_clip
from paras2s.clients.chat import Bill, LLMClient
from paras2s.configs.schema.unisrm_data import SplitName, UniSRMDataConfig
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.llm_calls import stop_if_too_many_failed
from paras2s.data_gen.tts.base import FailedSpeech
from paras2s.errors import BudgetError, DataError
from paras2s.types import Unscored
from paras2s.unisrm.data_gen.builders.dialogue import DialogueBuilder
from paras2s.unisrm.data_gen.builders.plans import ORDER, Builder, PairPlan, Synthetic
from paras2s.unisrm.data_gen.builders.preference import PreferenceBuilder, contradicting
from paras2s.unisrm.data_gen.builders.scenario import ScenarioBuilder
from paras2s.unisrm.data_gen.builders.speech import Speech, SpeechBill, estimate_speech, length_s
from paras2s.unisrm.data_gen.builders.writer import Writer
from paras2s.unisrm.data_gen.import_layout import clash_of, keys_of
from paras2s.unisrm.data_gen.layouts.entries import Dropped
from paras2s.unisrm.reward.dimensions import DimensionJudge, DimensionScores
from paras2s.unisrm.reward.items import ITEMS, read_items, write_items
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.tasks import Item, PairRecord
from paras2s.utils.cache import JsonCache
from paras2s.utils.io import write_jsonl

BUILDERS: Mapping[str, Callable[[UniSRMDataConfig, Path], Builder]] = {
    "libritts-r": PreferenceBuilder,
    "esd-en": lambda config, root: ScenarioBuilder(config, root, "en"),
    "esd-zh": lambda config, root: ScenarioBuilder(config, root, "zh"),
    "dailytalk": DialogueBuilder,
}
# One rate for all clips, so that none tells a recording from synthetic speech.
RATE_HZ = 16_000
# Pairs that are spoken and judged together: their clips are in memory.
ROUND = 64
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BuildReport:
    """Items, pairs tried and items missing by split, and dropped pairs by split ("": before the splits) and reason."""

    items: Mapping[str, int]
    tried: Mapping[str, int]
    missing: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]
    spent_usd: float


@dataclass(frozen=True)
class BuildEstimate:
    """The work and the greatest cost of a build: pairs by split and kind, calls by model, lines by voice."""

    pairs: Mapping[tuple[str, str], int]
    missing: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]
    models: Mapping[str, Bill]
    voices: Mapping[str, SpeechBill]


def open_builder(name: str, config: UniSRMDataConfig, source: Path, taken: Mapping[str, str]) -> PlannedPairs:
    """Open a corpus's builder; `taken` maps other data's keys to splits. Raises ConfigError: nothing requested. DataError."""
    return PlannedPairs(BUILDERS[name](config, source), dict(taken))


@dataclass
class PlannedPairs:
    """The pairs of a builder that share nothing with another split."""

    builder: Builder
    taken: dict[str, str] = field(default_factory=dict)

    def groups(self, split: SplitName) -> Iterator[list[PairPlan]]:
        """Yield groups of pairs, without those whose text or speaker another split has."""
        for group in self.builder.groups(split):
            able = []
            for plan in group:
                keys = [key for key in keys_of(plan) if key.partition(":")[2] not in self.builder.shared_speakers]
                clash = clash_of(keys, split, self.taken)
                if clash:
                    self.builder.dropped[split, clash] += 1
                    continue
                self.taken.update(dict.fromkeys(keys, split))
                able.append(plan)
            if able:
                yield able

    def most(self, split: SplitName) -> int:
        """Return the most pairs that may be tried."""
        return round(self.builder.sizes[split] * self.builder.config.max_tries)


def build_corpus(
    name: str, config: UniSRMDataConfig, source: Path, out: Path, progress: Progress = lambda *_: None
) -> BuildReport:
    """Build a corpus into the data folder `out`, beside the items of other data sets there; its own items are replaced.

    Raises:
        ConfigError: a voice or an endpoint is missing. DataError: the corpus is not laid out as published, or gives no item.
        BudgetError: a budget ended, or an endpoint fails; the same command continues. JudgeError: most texts, lines or
            judgements fail.
    """
    others = [] if not (out / ITEMS).is_file() else [item for item in read_items(out) if item.factors.get("corpus") != name]
    planned = open_builder(name, config, source, {key: item.split for item in others for key in keys_of(item)})
    maker = _Maker(name, config, planned.builder, out)
    items: list[Item] = []
    tried: Counter[str] = Counter()
    requested = sum(planned.builder.sizes.values())
    lost: list[dict[str, str]] = []
    for split in ORDER:
        size, n_items = planned.builder.sizes[split], 0
        groups = planned.groups(split)
        while n_items < size and tried[split] < planned.most(split):
            batch = _take(groups, min(size - n_items, ROUND, planned.most(split) - tried[split]))
            if not batch:
                break
            tried[split] += len(batch)
            made = maker.make(batch)
            able = [row for row in made if isinstance(row, Item)]
            for row in made:
                if isinstance(row, Dropped):
                    planned.builder.dropped[split, row.reason] += 1
                    lost.append({"id": row.id, "split": split, "reason": row.reason})
            more = max(0, len(able) - (size - n_items))
            if more:
                planned.builder.dropped[split, "beyond the requested size"] += more
            items += able[: size - n_items]
            n_items += len(able) - more
            progress(len(items), requested)
    if not items:
        reasons = ", ".join(f"{why} ({count})" for (_, why), count in planned.builder.dropped.items())
        raise DataError(f"{source}: no pair makes an item: {reasons or 'the corpus has no pair'}")
    write_jsonl(out / f"dropped-{name}.jsonl", lost)
    write_items(out, [*others, *items])
    count: Counter[str] = Counter(item.split for item in items)
    missing: dict[str, int] = {
        split: size - count[split] for split, size in planned.builder.sizes.items() if size > count[split]
    }
    return BuildReport(count, tried, missing, planned.builder.dropped, maker.spent_usd)


def estimate_corpus(name: str, config: UniSRMDataConfig, source: Path, taken: Mapping[str, str]) -> BuildEstimate:
    """Return what a build would call at most, without a call. Raises ConfigError: no voice. DataError: another layout."""
    planned = open_builder(name, config, source, taken)
    builder, judge_config = planned.builder, config.judges.of(planned.builder.task)
    writer = Writer(LLMClient(config.writer, calls=False), config.prompts, estimate=True)
    judge = DimensionJudge(judge_config, builder.task, LLMClient(judge_config.llm, calls=False))
    pairs: Counter[tuple[str, str]] = Counter()
    missing: dict[str, int] = {}
    plans: list[PairPlan] = []
    for split in ORDER:
        own = _take(planned.groups(split), planned.most(split))
        pairs.update((split, plan.factors.get("fault", "pair")) for plan in own)
        if len(own) < builder.sizes[split]:
            missing[split] = builder.sizes[split] - len(own)
        plans += own
    complete = [plan for plan in builder.complete(plans, writer) if isinstance(plan, PairPlan)]
    lengths = [(plan.texts, {key: length_s(source) for key, source in plan.sources.items()}) for plan in complete]
    spoken = [candidate for plan in complete for candidate in plan.candidates if isinstance(candidate, Synthetic)]
    models = {f"judge, {judge_config.llm.model}": judge.estimate(lengths)}
    if writer.bill.calls:
        models[f"writer, {config.writer.model}"] = writer.bill
    return BuildEstimate(pairs, missing, builder.dropped, models, estimate_speech(spoken))


def _take(groups: Iterator[list[PairPlan]], count: int) -> list[PairPlan]:
    """Take the next groups with at least n pairs together, or all that are left."""
    plans_taken: list[PairPlan] = []
    while len(plans_taken) < count:
        group = next(groups, None)
        if group is None:
            break
        plans_taken += group
    return plans_taken


class _Maker:
    """Maker of items from planned pairs."""

    def __init__(self, corpus: str, config: UniSRMDataConfig, builder: Builder, out: Path) -> None:
        self.corpus, self.builder, self.out = corpus, builder, out
        cache = JsonCache(config.cache_dir / "unisrm.sqlite")
        judge_config = config.judges.of(builder.task)
        self._clients = [
            LLMClient(config.writer, cache, "writer"),
            LLMClient(judge_config.llm, cache, f"judges.{builder.task}.llm"),
        ]
        self.writer = Writer(self._clients[0], config.prompts)
        self.judge = DimensionJudge(judge_config, builder.task, self._clients[1])
        self.speech = Speech(config)
        self.max_failed_share = config.max_failed_share
        self.spends = {"writer": Spend(), "judge": Spend()}

    @property
    def spent_usd(self) -> float:
        """Cost of all calls so far, as replies reported it, and of speech with a price."""
        return sum(client.spent_usd for client in self._clients) + sum(
            spend.usd or 0.0 for spend in self.speech.spends.values()
        )

    def make(self, plans: Sequence[PairPlan]) -> list[Item | Dropped]:
        """Return each pair's item or why there is none. Raises BudgetError: a budget ended. JudgeError: most fail."""
        complete = self.builder.complete(plans, self.writer)
        self._stop_if_failing("writer", len(complete), [plan.reason for plan in complete if isinstance(plan, Dropped)])
        able = [plan for plan in complete if isinstance(plan, PairPlan)]
        spoken = iter(self.speech.clips(list(chain.from_iterable(plan.sources.values() for plan in able))))
        sounds = {plan.id: dict(zip(plan.sources, islice(spoken, len(plan.sources)), strict=True)) for plan in able}
        audible = [plan for plan in able if not any(isinstance(sound, FailedSpeech) for sound in sounds[plan.id].values())]
        clips = {plan.id: {name: clip for name, clip in sounds[plan.id].items() if isinstance(clip, Clip)} for plan in audible}
        judged = dict(
            zip(
                (plan.id for plan in audible),
                self.judge.score_pairs([(plan.texts, clips[plan.id]) for plan in audible]),
                strict=True,
            )
        )
        unscored = [verdict.reason for verdict in judged.values() if isinstance(verdict, Unscored)]
        self._stop_if_failing("judge", len(judged), unscored)
        records: dict[str, PairRecord | Dropped] = {}
        for plan in able:
            failed = [sound.reason for sound in sounds[plan.id].values() if isinstance(sound, FailedSpeech)]
            record = Dropped(plan.id, f"no speech: {failed[0]}") if failed else _record(plan, judged[plan.id])
            if isinstance(record, BudgetError):
                raise record
            records[plan.id] = record
        _drop_cycles(able, records)
        return [plan if isinstance(plan, Dropped) else self._item(plan, records[plan.id], clips) for plan in complete]

    def _stop_if_failing(self, stage: str, count: int, reasons: Sequence[str]) -> None:
        """Stop a stage that mostly fails (JudgeError): continuing would pay for unusable results."""
        spend = self.spends[stage]
        spend.requests += count
        spend.failed += len(reasons)
        stop_if_too_many_failed(stage, spend, reasons[-1:], self.max_failed_share)

    def _item(self, plan: PairPlan, record: PairRecord | Dropped, clips: Mapping[str, Mapping[str, Clip]]) -> Item | Dropped:
        if isinstance(record, Dropped):
            return record
        paths = {}
        for name, clip in clips[plan.id].items():
            # Named by the sound alone: a name must not tell what made it.
            at = clip.at(RATE_HZ)
            paths[name] = f"clips/{self.corpus}/{plan.split}/{at.digest[:20]}.wav"
            if not (self.out / paths[name]).is_file():
                write_clip(self.out / paths[name], at)
        spoken = {f"spoken_{name[-1]}": source.text for name, source in plan.sources.items() if name.startswith("speech")}
        factors = {**plan.factors, **spoken, "corpus": self.corpus}
        return Item(plan.id, plan.task, plan.split, plan.text_id, plan.speakers, plan.texts, paths, record, factors)


def _record(plan: PairPlan, judged: DimensionScores | Unscored | BudgetError) -> PairRecord | Dropped | BudgetError:
    """Return the record of a judged pair, or why it gives none."""
    if isinstance(judged, BudgetError):
        return judged
    if isinstance(judged, Unscored):
        return Dropped(plan.id, f"no scores: {judged.reason}")
    if judged.better is None:
        return Dropped(plan.id, "equal totals")
    if judged.better != judged.stated:
        return Dropped(plan.id, "the judge's answer is against its totals")
    if plan.better is not None and judged.better != plan.better:
        return Dropped(plan.id, "the judge's totals are against the construction")
    record = PairRecord(judged.better, judged.sides, judged.summary)
    try:
        write_reply(plan.task, record)
    except ValueError:
        return Dropped(plan.id, "the judge's words make no reply")
    return record


def _drop_cycles(plans: Sequence[PairPlan], records: dict[str, PairRecord | Dropped]) -> None:
    """Put a reason in place of every record whose preference contradicts others of its group."""
    groups: dict[str, list[PairPlan]] = {}
    for plan in plans:
        if plan.group is not None and isinstance(records[plan.id], PairRecord):
            groups.setdefault(plan.group, []).append(plan)
    for group in groups.values():
        edges = []
        for plan in group:
            record = records[plan.id]
            first, second = (candidate.engine for candidate in plan.candidates)
            edges.append((first, second) if isinstance(record, PairRecord) and record.better == "A" else (second, first))
        for plan, on_cycle in zip(group, contradicting(edges), strict=True):
            if on_cycle:
                records[plan.id] = Dropped(plan.id, "a cycle of preferences")
