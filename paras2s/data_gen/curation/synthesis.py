"""Synthesis of scripts, filters of the clips by words, style and complete contrasts, and the clearest take of answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paras2s.audio.asr import countable_words, word_error_rate
from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.configs.schema.curation import CurationConfig
from paras2s.configs.schema.endpoints import ExtractorConfig
from paras2s.data_gen.candidates import reject_broken_contrasts
from paras2s.data_gen.curation.categories import QueryCategory
from paras2s.data_gen.curation.llm_calls import stop_if_too_many_failed
from paras2s.data_gen.curation.voices import Engines, engine_of, pick_voices, query_line, query_name
from paras2s.data_gen.tts.base import FailedSpeech, Line, SpeechResult, synthesise_all
from paras2s.errors import AudioError
from paras2s.reward.blueprint.extract import build_blueprints, fields_from_json, fields_to_json, make_extractors
from paras2s.reward.blueprint.schema import EMOTION, RESPONSE
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Absent, Blueprint, Candidate, Measured, PlannedAnswer, Role, Script
from paras2s.utils.cache import JsonCache
from paras2s.utils.seeds import seed_of

# Begins the reason of an item that too few annotators have decided.
WAITING = "waiting: "
# Our styles by emotion2vec's names.
EMOTION2VEC = {name: name for name in ("happy", "sad", "angry", "surprised")} | {"fear": "fearful", "disgust": "disgusted"}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class QueryClip:
    """A query's clip (None: the synthesis failed) and its line of the ledger."""

    script: Script
    role: Role
    style: str
    candidate: Candidate
    clip: Clip | None

    @property
    def passed_filters(self) -> bool:
        """Whether the clip passed every filter; annotators may still have to decide."""
        reason = self.candidate.rejected or ""
        return self.candidate.rejected_by is None or (self.candidate.rejected_by == "people" and reason.startswith(WAITING))


@dataclass(frozen=True)
class AnswerTakes:
    """The takes of an answer (clip, transcript, word error rate; None if the synthesis failed) and the clearest take."""

    query_id: str
    planned: PlannedAnswer
    takes: tuple[tuple[Clip | None, str, float | None], ...]
    picked: int | None


@dataclass(frozen=True)
class Unmeasured:
    """The reason why a filter that applies could not measure."""

    reason: str


class ClipMeasurer:
    """Cached measurements of words and style of clips. `ray_address`: "" without Ray, None or an address with Ray Data."""

    def __init__(self, config: CurationConfig, ray_address: str | None = "") -> None:
        self.config = config
        self.ray_address = ray_address
        # The file keeps its first name, so that caches of earlier versions stay valid.
        self._cache = config.cache_dir / "curation_ears.sqlite"
        self._extractors: list[ExtractorConfig] = [config.words]
        if config.style_check != "none":
            self._extractors.append(ExtractorConfig(name=config.style_check))

    def measure(self, clips: Sequence[Clip]) -> list[Blueprint]:
        """Return blueprints in order."""
        if self.ray_address == "" or not clips:
            return measure_clips(clips, self._extractors, self.config.tone, self._cache)
        return self._over_ray(clips)

    def _over_ray(self, clips: Sequence[Clip]) -> list[Blueprint]:
        import json

        import ray.data

        from paras2s.rollout.local_ray import start_ray

        start_ray(self.ray_address)
        extractors, tone, cache = self._extractors, self.config.tone, self._cache.resolve()

        def measure(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
            blueprints = measure_clips([read_clip(bytes(wav)) for wav in batch["wav"]], extractors, tone, cache)
            return {"index": list(batch["index"]), "fields": [json.dumps(fields_to_json(b.fields)) for b in blueprints]}

        items = [{"index": index, "wav": encode_clip(clip)} for index, clip in enumerate(clips)]
        rows = ray.data.from_items(items).map_batches(measure, batch_size=64).take_all()
        measured = {int(row["index"]): Blueprint(fields_from_json(json.loads(row["fields"]))) for row in rows}
        return [measured[index] for index in range(len(clips))]


def measure_clips(
    clips: Sequence[Clip], extractors: Sequence[ExtractorConfig], tone: Path | None, cache: Path
) -> list[Blueprint]:
    """Return blueprints of clips, by extractors loaded in this process."""
    classifier = ToneClassifier.load(tone) if tone is not None else None
    return build_blueprints(clips, make_extractors(extractors, classifier), JsonCache(cache))


def style_probability(blueprint: Blueprint, config: CurationConfig, script: Script, style: str) -> float | Unmeasured | None:
    """Return the probability of the right one of a contrast's two styles; None if the filter does not know both."""
    names = EMOTION2VEC if config.style_check == "emotion" else {name: name for name in script.styles}
    pair = [blueprint.fields.get(f"{EMOTION}.{names.get(name)}") for name in script.styles]
    if None in pair:
        return None
    absent = [field.reason for field in pair if isinstance(field, Absent)]
    if absent:
        return Unmeasured(absent[0])
    values = [float(field.value) for field in pair if isinstance(field, Measured)]
    return values[script.styles.index(style)] / max(sum(values), 1e-12)


def filter_clip(
    script: Script, role: Role, style: str, speaker: str, measured: Blueprint | FailedSpeech, config: CurationConfig
) -> Candidate:
    """Apply the speech filters to a clip. The words of real speech are measured and not filtered."""
    transcript, error_rate, probability = None, None, None
    by: str | None = None
    reason: str | None = None
    if isinstance(measured, FailedSpeech):
        by, reason = "speech", measured.reason
    else:
        transcript = measured.value(RESPONSE)
        share = style_probability(measured, config, script, style)
        probability = share if isinstance(share, float) else None
        if transcript is None:
            by, reason = "words", f"no transcript: {measured.why_absent(RESPONSE)}"
        elif not countable_words(script.text):
            by, reason = "words", "the sentence holds no word"
        elif isinstance(share, Unmeasured) and script.clip is None:
            error_rate = word_error_rate(script.text, transcript)
            by, reason = "style", f"not measured: {share.reason}"
        else:
            error_rate = word_error_rate(script.text, transcript)
            if script.clip is None and error_rate > config.max_word_error_rate:
                by = "words"
                reason = f"word error rate {error_rate:.2f} above {config.max_word_error_rate:.2f} (transcript: {transcript!r})"
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
        transcript=transcript,
        word_error_rate=error_rate,
        style_probability=probability,
        rejected_by=by,
        rejected=reason,
    )


def reject_broken_clips(clips: Sequence[QueryClip]) -> list[QueryClip]:
    """Reject the other clip of every held-out contrast that lost one."""
    candidates = reject_broken_contrasts([clip.candidate for clip in clips])
    return [replace(clip, candidate=candidate) for clip, candidate in zip(clips, candidates, strict=True)]


def synthesise_queries(
    assigned: Sequence[tuple[Script, Role]],
    categories: Mapping[str, QueryCategory],
    engines: Engines,
    manners: Mapping[str, Any],
    measurer: ClipMeasurer,
    progress: Progress,
) -> list[QueryClip]:
    """Synthesise every style of every script, and filter the clips."""
    config = engines.config
    planned: list[tuple[Script, Role, str, str, Line | Path]] = []
    for script, role in assigned:
        if script.clip is not None:
            planned.append((script, role, script.styles[0], script.speaker, Path(script.clip)))
            continue
        engine = engine_of(config, categories, script.category)
        for style, voice in pick_voices(config, engine, script).items():
            planned.append((script, role, style, voice.name, query_line(config, script, style, voice, manners)))
    results = _synthesise_or_read(
        [plan[-1] for plan in planned], engines, lambda done, total: progress("queries spoken", done, total)
    )
    clips = [result for result in results if isinstance(result, Clip)]
    blueprints = iter(measurer.measure(clips))
    progress("queries transcribed", len(clips), len(clips))
    query_clips = []
    for (script, role, style, speaker, _), result in zip(planned, results, strict=True):
        measured = next(blueprints) if isinstance(result, Clip) else result
        candidate = filter_clip(script, role, style, speaker, measured, config)
        query_clips.append(QueryClip(script, role, style, candidate, result if isinstance(result, Clip) else None))
    return reject_broken_clips(query_clips)


def _synthesise_or_read(
    sources: Sequence[Line | Path], engines: Engines, on_progress: Callable[[int, int], None]
) -> list[SpeechResult]:
    results: dict[int, SpeechResult] = {}
    by_engine: dict[str, list[int]] = defaultdict(list)
    for index, source in enumerate(sources):
        if isinstance(source, Line):
            by_engine[source.voice.engine].append(index)
            continue
        try:
            results[index] = read_clip(source)
        except AudioError as error:
            results[index] = FailedSpeech(str(error))
    for indices in by_engine.values():
        lines = [source for index in indices if isinstance(source := sources[index], Line)]
        before = len(results)
        spoken = synthesise_all(
            engines.of(lines[0].voice), lines, engines.config.cache_dir,
            lambda done, total, before=before: on_progress(before + done, len(sources)),  # type: ignore[misc]
            engines.spend,
        )  # fmt: skip
        failed = [result for result in spoken if isinstance(result, FailedSpeech)]
        name = f"speech by {lines[0].voice.engine}"
        stop_if_too_many_failed(name, engines.spend, [failure.reason for failure in failed], engines.config.max_failed_share)
        results.update(zip(indices, spoken, strict=True))
    return [results[index] for index in range(len(sources))]


def synthesise_answers(
    queries: Sequence[QueryClip], engines: Engines, measurer: ClipMeasurer, progress: Progress
) -> list[AnswerTakes]:
    """Synthesise takes of every demonstrated answer; pick the take with the fewest word errors (ParaS2S, 4.1)."""
    config = engines.config
    demonstrated = [q for q in queries if q.role == "demonstration" and q.passed_filters and q.script.answers]
    planned = [query.script.answers[query.script.styles.index(query.style)] for query in demonstrated]
    count = config.answer_takes
    lines = [
        Line(answer.text, config.agent, answer.tone, answer.tone if config.agent.engine == "openai" else "", take)
        for answer in planned
        for take in range(count)
    ]
    results = _synthesise_or_read(lines, engines, lambda done, total: progress("answers spoken", done, total))
    blueprints = iter(measurer.measure([result for result in results if isinstance(result, Clip)]))
    answers = []
    for number, (query, answer) in enumerate(zip(demonstrated, planned, strict=True)):
        takes = [
            _take(result, next(blueprints) if isinstance(result, Clip) else None, answer)
            for result in results[number * count : (number + 1) * count]
        ]
        rates = {take: rate for take, (_, _, rate) in enumerate(takes) if rate is not None}
        best = min(rates, key=lambda take: (rates[take], take)) if rates else None
        picked = best if best is not None and rates[best] <= config.max_word_error_rate else None
        query_id = query_name(query.role, query.script.id, query.style)
        answers.append(AnswerTakes(query_id, answer, tuple(takes), picked))
    return answers


def _take(result: SpeechResult, blueprint: Blueprint | None, answer: PlannedAnswer) -> tuple[Clip | None, str, float | None]:
    if not isinstance(result, Clip):
        return None, result.reason, None
    transcript = blueprint.value(RESPONSE) if blueprint is not None else None
    if transcript is None or not countable_words(answer.text):
        return result, "no transcript", None
    return result, transcript, word_error_rate(answer.text, transcript)


def take_name(answer: AnswerTakes, take: int) -> str:
    """Return a file name that changes with words and tone, so that a decision on a take binds that take alone."""
    return f"{answer.query_id}-{seed_of(answer.planned.text, answer.planned.tone):08x}-{take}"
