"""Scripts to clips, measured and filtered: words, style, whole contrasts; and answers, of which the clearest take is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paras2s.audio.asr import normalise_words, word_error_rate
from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.configs.schema.run import CurationConfig, ExtractorConfig
from paras2s.data_gen.curation.categories import QueryCategory
from paras2s.data_gen.curation.llm_calls import stop_if_too_many
from paras2s.data_gen.curation.voices import Engines, engine_of, pick_voices, query_line, query_name, seed_of
from paras2s.data_gen.tts.base import Line, Spoken, Unspoken, speak_all
from paras2s.errors import AudioError
from paras2s.reward.blueprint.extract import build_blueprints, fields_from_json, fields_to_json, make_extractors
from paras2s.reward.blueprint.schema import EMOTION, RESPONSE
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Absent, Blueprint, Candidate, Measured, PlannedAnswer, Role, Script
from paras2s.utils.cache import Kept

HELD_OUT = ("validation", "test")
# What `people` say of an item that too few have heard.
WAITING = "waiting: "
# What emotion2vec calls our styles.
EMOTION2VEC = {name: name for name in ("happy", "sad", "angry", "surprised")} | {"fear": "fearful", "disgust": "disgusted"}
Bar = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ClipMade:
    """A query's clip, or why there is none, and its line of the ledger."""

    script: Script
    role: Role
    style: str
    candidate: Candidate
    clip: Clip | None

    @property
    def heard_out(self) -> bool:
        """Whether the filters kept it; people may still be waited for."""
        said = self.candidate.rejected or ""
        return self.candidate.rejected_by is None or (self.candidate.rejected_by == "people" and said.startswith(WAITING))


@dataclass(frozen=True)
class AnswerMade:
    """The takes of one answer: clips with what was heard and its word errors (None: not spoken), and the clearest one."""

    query_id: str
    planned: PlannedAnswer
    takes: tuple[tuple[Clip | None, str, float | None], ...]
    picked: int | None


@dataclass(frozen=True)
class Unmeasured:
    """A filter that applies, and could not measure."""

    reason: str


class Ears:
    """Words and style of clips, each kept by its samples. `ray_address` "" measures here, None or an address over Ray Data."""

    def __init__(self, config: CurationConfig, ray_address: str | None = "") -> None:
        self.config = config
        self.ray_address = ray_address
        self._kept = config.cache_dir / "curation_ears.sqlite"
        self._extractors: list[ExtractorConfig] = [config.words]
        if config.style_check != "none":
            self._extractors.append(ExtractorConfig(name=config.style_check))

    def measure(self, clips: Sequence[Clip]) -> list[Blueprint]:
        """Blueprints in order."""
        if self.ray_address == "" or not clips:
            return measure_clips(clips, self._extractors, self.config.tone, self._kept)
        return self._over_ray(clips)

    def _over_ray(self, clips: Sequence[Clip]) -> list[Blueprint]:
        import json

        import ray.data

        from paras2s.rollout.workers import start_ray

        start_ray(self.ray_address)
        wanted, tone, kept = self._extractors, self.config.tone, self._kept.resolve()

        def measure(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
            read = [read_clip(bytes(wav)) for wav in batch["wav"]]
            made = measure_clips(read, wanted, tone, kept)
            return {"place": list(batch["place"]), "fields": [json.dumps(fields_to_json(one.fields)) for one in made]}

        rows = [{"place": place, "wav": encode_clip(clip)} for place, clip in enumerate(clips)]
        found = ray.data.from_items(rows).map_batches(measure, batch_size=64).take_all()
        made = {int(row["place"]): Blueprint(fields_from_json(json.loads(row["fields"]))) for row in found}
        return [made[place] for place in range(len(clips))]


def measure_clips(clips: Sequence[Clip], wanted: Sequence[ExtractorConfig], tone: Path | None, kept: Path) -> list[Blueprint]:
    """Blueprints of clips, by extractors that this process makes."""
    classifier = ToneClassifier.load(tone) if tone is not None else None
    return build_blueprints(clips, make_extractors(wanted, classifier), Kept(kept))


def style_probability(found: Blueprint, config: CurationConfig, script: Script, style: str) -> float | Unmeasured | None:
    """Share of the right one among a contrast's two styles. None where the filter does not know both, Unmeasured where it does
    and could not tell.
    """
    names = EMOTION2VEC if config.style_check == "emotion" else {one: one for one in script.styles}
    pair = [found.fields.get(f"{EMOTION}.{names.get(one)}") for one in script.styles]
    if None in pair:
        return None
    absent = [one.reason for one in pair if isinstance(one, Absent)]
    if absent:
        return Unmeasured(absent[0])
    values = [float(one.value) for one in pair if isinstance(one, Measured)]
    return values[script.styles.index(style)] / max(sum(values), 1e-12)


def judge_clip(
    script: Script, role: Role, style: str, speaker: str, found: Blueprint | Unspoken, config: CurationConfig
) -> Candidate:
    """The speech filters on one clip. Real speech is known to say what it says: its words are noted, and not filtered."""
    heard, error_rate, probability = None, None, None
    by: str | None = None
    reason: str | None = None
    if isinstance(found, Unspoken):
        by, reason = "speech", found.reason
    else:
        heard = found.value(RESPONSE)
        told = style_probability(found, config, script, style)
        probability = told if isinstance(told, float) else None
        if heard is None:
            by, reason = "words", f"not heard: {found.why_absent(RESPONSE)}"
        elif not normalise_words(script.text):
            by, reason = "words", "the sentence holds no word that could be heard"
        elif isinstance(told, Unmeasured) and script.clip is None:
            error_rate = word_error_rate(script.text, heard)
            by, reason = "style", f"not measured: {told.reason}"
        else:
            error_rate = word_error_rate(script.text, heard)
            if script.clip is None and error_rate > config.max_word_error_rate:
                by = "words"
                reason = f"word error rate {error_rate:.2f} above {config.max_word_error_rate:.2f} (heard: {heard!r})"
            elif script.clip is None and probability is not None and probability < config.min_style_probability:
                by, reason = "style", f"{style} has only {probability:.2f} against the other style"
    return Candidate(
        id=f"{script.id}-{style}",
        contrast_id=script.id,
        category=script.category,
        topic=script.topic,
        role=role,
        style=style,
        speaker=speaker,
        text=script.text,
        transcript=heard,
        word_error_rate=error_rate,
        style_probability=probability,
        rejected_by=by,
        rejected=reason,
    )


def keep_whole_contrasts(made: Sequence[ClipMade]) -> list[ClipMade]:
    """Of held-out contrasts with two styles both are kept, or neither: one alone compares with nothing."""
    broken = {one.script.id for one in made if one.role in HELD_OUT and one.candidate.rejected_by is not None}
    reason = "the contrast's other style was rejected"
    return [
        replace(one, candidate=replace(one.candidate, rejected_by="contrast", rejected=reason))
        if one.script.id in broken and one.candidate.rejected_by is None
        else one
        for one in made
    ]


def speak_queries(
    dealt: Sequence[tuple[Script, Role]],
    categories: Mapping[str, QueryCategory],
    engines: Engines,
    manners: Mapping[str, Any],
    ears: Ears,
    bar: Bar,
) -> list[ClipMade]:
    """Every style of every script as a clip, filtered."""
    config = engines.config
    asked: list[tuple[Script, Role, str, str, Line | Path]] = []
    for script, role in dealt:
        if script.clip is not None:
            asked.append((script, role, script.styles[0], script.speaker, Path(script.clip)))
            continue
        engine = engine_of(config, categories, script.category)
        for style, voice in pick_voices(config, engine, script).items():
            asked.append((script, role, style, voice.name, query_line(config, script, style, voice, manners)))
    spoken = _speak_or_read([one[-1] for one in asked], engines, lambda done, total: bar("queries spoken", done, total))
    clips = [one for one in spoken if isinstance(one, Clip)]
    heard = iter(ears.measure(clips))
    bar("queries heard", len(clips), len(clips))
    made = []
    for (script, role, style, speaker, _), one in zip(asked, spoken, strict=True):
        found = next(heard) if isinstance(one, Clip) else one
        candidate = judge_clip(script, role, style, speaker, found, config)
        made.append(ClipMade(script, role, style, candidate, one if isinstance(one, Clip) else None))
    return keep_whole_contrasts(made)


def _speak_or_read(sources: Sequence[Line | Path], engines: Engines, on_progress: Callable[[int, int], None]) -> list[Spoken]:
    """Lines by their engines, together; files read."""
    found: dict[int, Spoken] = {}
    by_engine: dict[str, list[int]] = defaultdict(list)
    for place, source in enumerate(sources):
        if isinstance(source, Line):
            by_engine[source.voice.engine].append(place)
            continue
        try:
            found[place] = read_clip(source)
        except AudioError as error:
            found[place] = Unspoken(str(error))
    for places in by_engine.values():
        lines = [source for place in places if isinstance(source := sources[place], Line)]
        before = len(found)
        said = speak_all(
            engines.of(lines[0].voice), lines, engines.config.cache_dir,
            lambda done, total, before=before: on_progress(before + done, len(sources)),  # type: ignore[misc]
            engines.spend,
        )  # fmt: skip
        failed = [one for one in said if isinstance(one, Unspoken)]
        name = f"speech by {lines[0].voice.engine}"
        stop_if_too_many(name, engines.spend, [one.reason for one in failed], engines.config.max_failed_share)
        found.update(zip(places, said, strict=True))
    return [found[place] for place in range(len(sources))]


def speak_answers(made: Sequence[ClipMade], engines: Engines, ears: Ears, bar: Bar) -> list[AnswerMade]:
    """Takes of the answer to every kept demonstration query; the one with the fewest word errors is picked (section 4.1)."""
    config = engines.config
    shown = [one for one in made if one.role == "demonstration" and one.heard_out and one.script.answers]
    planned = [one.script.answers[one.script.styles.index(one.style)] for one in shown]
    count = config.answer_takes
    lines = [
        Line(answer.text, config.agent, answer.tone, answer.tone if config.agent.engine == "openai" else "", take)
        for answer in planned
        for take in range(count)
    ]
    spoken = _speak_or_read(lines, engines, lambda done, total: bar("answers spoken", done, total))
    heard = iter(ears.measure([one for one in spoken if isinstance(one, Clip)]))
    found = []
    for number, (one, answer) in enumerate(zip(shown, planned, strict=True)):
        takes = [
            _take(said, next(heard) if isinstance(said, Clip) else None, answer)
            for said in spoken[number * count : (number + 1) * count]
        ]
        rates = {place: rate for place, (_, _, rate) in enumerate(takes) if rate is not None}
        best = min(rates, key=lambda place: (rates[place], place)) if rates else None
        picked = best if best is not None and rates[best] <= config.max_word_error_rate else None
        query_id = query_name(one.role, one.script.id, one.style)
        found.append(AnswerMade(query_id, answer, tuple(takes), picked))
    return found


def _take(said: Spoken, found: Blueprint | None, answer: PlannedAnswer) -> tuple[Clip | None, str, float | None]:
    if not isinstance(said, Clip):
        return None, said.reason, None
    words = found.value(RESPONSE) if found is not None else None
    if words is None or not normalise_words(answer.text):
        return said, "not heard", None
    return said, words, word_error_rate(answer.text, words)


def take_name(made: AnswerMade, take: int) -> str:
    """A file name that changes with the words and the tone, so that what people said of a take binds that take alone."""
    return f"{made.query_id}-{seed_of(made.planned.text, made.planned.tone):08x}-{take}"
