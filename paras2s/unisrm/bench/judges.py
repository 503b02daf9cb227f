"""The judges of UniSRM-Bench: any judge of the registry, and objective measures, behind one interface.

A judge that cannot do a task is in the tables with its reason; it never counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paras2s.audio import asr
from paras2s.audio.clip import Clip
from paras2s.bench.detection.baselines import DnsmosBaseline, MeasuringOptions, SpeakerOptions, embed_speaker
from paras2s.clients.chat import Bill
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.judges import NamedJudge, find_judge
from paras2s.configs.schema.unisrm_data import PairTask
from paras2s.data_gen.tts.signal_voice import signal_voice
from paras2s.errors import AudioError, BudgetError, ConfigError
from paras2s.reward.blueprint.schema import is_silent
from paras2s.reward.judges.audio_judge.tasks import find_task
from paras2s.reward.judges.base import Exchange, Judge, Pair, Utterance
from paras2s.reward.judges.registry import open_audio_judges, open_dimension_judges, open_judge, open_unisrm_judge
from paras2s.reward.judges.votes import prefer
from paras2s.types import Preference, Unscored, Verdict
from paras2s.unisrm.bench.data import Sample
from paras2s.unisrm.bench.results import Judgement, NoJudgement, judgement_of, judgement_of_label
from paras2s.unisrm.reward.dimensions import DimensionJudge, Judged
from paras2s.unisrm.reward.judge import UniSRMJudge
from paras2s.unisrm.reward.messages import HISTORY
from paras2s.unisrm.reward.reply import Malformed
from paras2s.unisrm.reward.tasks import TASKS, PairRecord, TaskId
from paras2s.utils.cache import key_of

Found = Judgement | NoJudgement | BudgetError
JudgeSamples = Callable[[TaskId, Sequence[Sample], Sequence[Mapping[str, Clip]]], list[Found]]
Estimate = Callable[[TaskId, Sequence[Sample], Sequence[Mapping[str, Clip]]], Bill]


def no_calls(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> Bill:
    """Return the bill of a judge on this machine."""
    return Bill()


@dataclass(frozen=True)
class BenchJudge:
    """A judge of samples: `judge` returns a judgement of each sample of a task, in order.

    `version` changes whenever a judgement may change. `inputs` names its inputs for each task that it does (Table 12); `unfit`
    says why it cannot do the others. `estimate` returns the most that judging samples of a task costs.
    """

    name: str
    version: str
    judge: JudgeSamples
    inputs: Mapping[TaskId, str]
    unfit: Mapping[TaskId, str] = field(default_factory=dict)
    estimate: Estimate = no_calls


ALL_INPUTS = "all texts and clips of the task"


def _by_unisrm(name: str, model: UniSRMJudge) -> BenchJudge:
    """Return a trained UniSRM as a judge: one reply to each sample, in the one order of the condition."""

    def judge(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> list[Found]:
        pairs = [(sample.item.texts, sounds) for sample, sounds in zip(samples, clips, strict=True)]
        judgements: list[Found] = []
        for reply in model.read(task_id, pairs):
            if isinstance(reply, BudgetError):
                judgements.append(reply)
            elif isinstance(reply, Unscored):
                judgements.append(NoJudgement(reply.reason, "", reply.reply))
            elif isinstance(reply.record, Malformed):
                judgements.append(NoJudgement(reply.record.detail, reply.record.reason, reply.reply))
            else:
                judgements.append(judgement_of(reply.record, task_id, reply.reply))
        return judgements

    def estimate(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> Bill:
        pairs = [(sample.item.texts, sounds) for sample, sounds in zip(samples, clips, strict=True)]
        return Bill() if model.client is None else model.client.estimate(model.reader.requests(task_id, pairs))

    return BenchJudge(name, model.fingerprint, judge, dict.fromkeys(TASKS, ALL_INPUTS), estimate=estimate)


def _by_dimensions(name: str, judges: Mapping[PairTask, DimensionJudge]) -> BenchJudge:
    """Return an audio model that scores both candidates by dimension: the higher total wins, equal totals tie."""

    def judge(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> list[Found]:
        assert task_id != "T2"
        pairs = [(sample.item.texts, sounds) for sample, sounds in zip(samples, clips, strict=True)]
        return [_of_dimensions(task_id, verdict) for verdict in judges[task_id].score_pairs(pairs)]

    def estimate(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> Bill:
        assert task_id != "T2"
        lengths = [{clip_name: clip.duration_s for clip_name, clip in sounds.items()} for sounds in clips]
        return judges[task_id].estimate(list(zip([sample.item.texts for sample in samples], lengths, strict=True)))

    version = key_of([judge.version for judge in judges.values()])[:8]
    return BenchJudge(name, version, judge, dict.fromkeys(judges, ALL_INPUTS), {"T2": NO_RATING}, estimate)


def _of_dimensions(task_id: TaskId, verdict: Judged) -> Found:
    if isinstance(verdict, BudgetError):
        return verdict
    if isinstance(verdict, Unscored):
        return NoJudgement(verdict.reason, "", verdict.reply)
    judgement = judgement_of(PairRecord(verdict.better or verdict.stated, verdict.sides), task_id, verdict.reply)
    return judgement if verdict.better else replace(judgement, better="tie")


def _instruction(task_id: TaskId, sample: Sample, clips: Mapping[str, Clip]) -> Utterance:
    """Return a sample's context as one turn, for judges that compare two answers to an instruction."""
    texts = sample.item.texts
    if task_id == "T1":
        return Utterance(text=f"Read this sentence aloud, exactly as it stands: {texts['reference_text']}")
    if task_id == "T3":
        request = f"Read this sentence aloud, exactly as it stands, so that it sounds {texts['target_emotion']}"
        scene = f"{texts['scenario_description']} {texts['paragraph_context']}"
        return Utterance(text=f"{scene} {request}: {texts['target_text']}")
    turns = sorted((name for name in clips if HISTORY.fullmatch(name)), key=lambda name: int(name.partition("_")[2]))
    return Utterance(clip=clips[turns[-1]])


def _by_registry(
    name: str, version: str, comparing: Judge | None, rating: Judge | None, inputs: Mapping[TaskId, str],
    unfit: Mapping[TaskId, str],
) -> BenchJudge:  # fmt: skip
    """Return judges of the registry: `comparing` prefers one of two answers, `rating` scores a clip; None: it cannot."""

    def pairs_of(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> list[Pair]:
        return [
            Pair(_instruction(task_id, sample, sounds), sounds["speech_a"], sounds["speech_b"])
            for sample, sounds in zip(samples, clips, strict=True)
        ]

    def exchanges_of(clips: Sequence[Mapping[str, Clip]]) -> list[Exchange]:
        return [Exchange(Utterance(), sounds["speech"]) for sounds in clips]

    def judge(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> list[Found]:
        if TASKS[task_id].pairwise:
            assert comparing is not None
            return [_found(verdict) for verdict in comparing.compare_batch(pairs_of(task_id, samples, clips))]
        assert rating is not None
        return [_found(verdict) for verdict in rating.score_batch(exchanges_of(clips))]

    def estimate(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> Bill:
        pairwise = TASKS[task_id].pairwise
        chosen = comparing if pairwise else rating
        if chosen is None or chosen.client is None:
            return Bill()
        items = pairs_of(task_id, samples, clips) if pairwise else exchanges_of(clips)
        return chosen.client.estimate(chosen.requests(items))

    return BenchJudge(name, version, judge, inputs, unfit, estimate)


def _found(verdict: Preference | Verdict | Unscored | BudgetError) -> Found:
    if isinstance(verdict, BudgetError):
        return verdict
    if isinstance(verdict, Unscored):
        return NoJudgement(verdict.reason, "", verdict.reply)
    if isinstance(verdict, Verdict):
        return Judgement(None, verdict.score, {}, verdict.reply)
    if verdict.label not in ("1", "2", "tie"):
        return NoJudgement(f"a match prefers neither: {verdict.label}", "", verdict.reply)
    return judgement_of_label(verdict.label, verdict.reply)


NEEDS_STYLE = "is to be given the question's speaking style, which no item names"
NEEDS_QUESTION = "scores answers to a spoken question, which this task does not have"
NO_RATING = "compares two answers, and scores no clip alone"
LAST_TURN = "candidates, and the last turn of the history"
WORDS = "candidates, and the texts as an instruction"
NO_PROMPT = "candidates, and the sentence as an instruction; no prompt speech"


def open_bench_judge(
    name: str, overrides: Mapping[str, Any] | None = None, tone: Any = None, encoder: Any = None, calls: bool = True
) -> BenchJudge:
    """Open a judge by name, YAML or folder; without `calls` for an estimate, which needs no key.

    Raises ConfigError: it does not exist, or a wrong setting. JudgeError: no model.
    """
    named, changed = find_judge(name), dict(overrides or {})
    kind = named.kind
    if kind == "unisrm":
        return _by_unisrm(name, open_unisrm_judge(named, changed, both_orders=False, calls=calls))
    if kind == "dimensions":
        return _by_dimensions(name, open_dimension_judges(named, changed, calls))
    if kind in ("rubric", "independent"):
        return _by_registry(name, "1", None, None, {}, dict.fromkeys(TASKS, NEEDS_STYLE))
    if kind == "reward_model":
        judge = open_judge(named, None, encoder=encoder)
        unfit: dict[TaskId, str] = dict.fromkeys(("T1", "T2", "T3"), NEEDS_QUESTION)
        return _by_registry(name, judge.fingerprint, judge, None, {"T4": LAST_TURN}, unfit)
    inputs: dict[TaskId, str] = {"T1": NO_PROMPT, "T3": WORDS, "T4": LAST_TURN}
    if kind == "llm" or named.is_own:
        judge = open_judge(named, changed, both_orders=False, tone=tone, calls=calls)
        return _by_registry(name, judge.fingerprint, judge, None, inputs, {"T2": NO_RATING})
    return _open_audio(named, changed, inputs, calls)


def _open_audio(named: NamedJudge, changed: dict[str, Any], inputs: dict[TaskId, str], calls: bool) -> BenchJudge:
    """Open an audio judge: its own tasks for pairs, and AudioJudge's scores of quality for T2."""
    name, config = named.name, named.config(AudioJudgeConfig, changed)
    rater = open_audio_judges(named, changed, tasks=["mos"], voice=signal_voice(), calls=calls)[0]
    wrong = [task for task in config.tasks if find_task(task).kind not in ("winner", "winner_or_tie")]
    inputs = {**inputs, "T2": "the clip"}
    if wrong:
        unfit: dict[TaskId, str] = dict.fromkeys(("T1", "T3", "T4"), f"its task {wrong[0]} prefers neither of two clips")
        return _by_registry(name, rater.fingerprint, None, rater, {"T2": "the clip"}, unfit)
    pairs = open_judge(named, changed, both_orders=False, voice=signal_voice(), calls=calls)
    return _by_registry(name, f"{pairs.fingerprint}+{rater.fingerprint}", pairs, rater, inputs, {})


# Objective measures (Table 1), which get the candidates alone, and the text or the prompt that they compare with.


def measure(
    name: str, version: str, value: Callable[[Sample, Mapping[str, Clip], str], float | NoJudgement],
    inputs: Mapping[TaskId, str], unfit: Mapping[TaskId, str],
) -> BenchJudge:  # fmt: skip
    """Return an objective measure: the candidate with the higher number wins; for T2 the number is the score."""

    def of_sample(task_id: TaskId, sample: Sample, clips: Mapping[str, Clip]) -> Found:
        values = []
        for candidate in TASKS[task_id].candidates:
            number = value(sample, clips, candidate)
            if isinstance(number, NoJudgement):
                return number
            values.append(number)
        if task_id == "T2":
            return Judgement(None, values[0])
        return judgement_of_label(prefer(*values), f"{values[0]:.3f} and {values[1]:.3f}")

    def judge(task_id: TaskId, samples: Sequence[Sample], clips: Sequence[Mapping[str, Clip]]) -> list[Found]:
        return [of_sample(task_id, sample, sounds) for sample, sounds in zip(samples, clips, strict=True)]

    return BenchJudge(name, version, judge, inputs, unfit)


NO_TEXT = "no text is given to compare with"


def word_errors() -> BenchJudge:
    """Prefer the candidate with fewer word errors against the requested text, by the embedded recogniser."""
    transcripts: dict[str, str] = {}

    def value(sample: Sample, clips: Mapping[str, Clip], name: str) -> float | NoJudgement:
        clip = clips[name]
        if clip.digest not in transcripts:
            transcripts[clip.digest] = asr.transcribe([clip])[0].text
        key = "reference_text" if sample.item.task == "T1" else "target_text"
        try:
            return -asr.word_error_rate(sample.item.texts[key], transcripts[clip.digest])
        except ValueError as error:
            return NoJudgement(str(error))

    inputs: dict[TaskId, str] = dict.fromkeys(("T1", "T3"), "candidates, and the text")
    return measure("WER", asr.version(), value, inputs, {"T2": NO_TEXT, "T4": NO_TEXT})


def speaker_similarity() -> BenchJudge:
    """Prefer the candidate whose x-vector is nearer to the prompt speech's."""
    chosen = SpeakerOptions()
    unfit: dict[TaskId, str] = dict.fromkeys(("T2", "T3", "T4"), "there is no prompt speech to resemble")
    try:
        embed_speaker(chosen.model, Clip(np.random.default_rng(0).standard_normal(16_000).astype(np.float32), 16_000))
    except ConfigError as error:
        return measure("SIM", "", lambda *_: NoJudgement("no model"), {}, {**unfit, "T1": str(error)})

    def value(sample: Sample, clips: Mapping[str, Clip], name: str) -> float | NoJudgement:
        pair = (clips["prompt_speech"], clips[name])
        if any(map(is_silent, pair)):
            return NoJudgement("a clip is silent: it has no speaker")
        try:
            first, second = (embed_speaker(chosen.model, clip) for clip in pair)
        except AudioError as error:
            return NoJudgement(str(error))
        return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))

    return measure("SIM", chosen.model, value, {"T1": "candidates, and the prompt speech"}, unfit)


def dnsmos(options: MeasuringOptions) -> BenchJudge:
    """Prefer the candidate with the higher overall MOS of personalised DNSMOS; for T2 return that MOS."""
    baseline = DnsmosBaseline(options)

    def value(sample: Sample, clips: Mapping[str, Clip], name: str) -> float | NoJudgement:
        score = baseline.score_batch([Exchange(Utterance(), clips[name])])[0]
        assert not isinstance(score, BudgetError), "it makes no call"
        return NoJudgement(score.reason) if isinstance(score, Unscored) else score.score

    return measure("DNSMOS", baseline.version, value, dict.fromkeys(TASKS, "candidates"), {})


def utmos() -> BenchJudge:
    """Refuse UTMOS, which is not available."""
    why = "its weights come from a hub, and no package holds them"
    return measure("UTMOS", "", lambda *_: NoJudgement(why), {}, dict.fromkeys(TASKS, why))


def objective_measures(options: MeasuringOptions) -> list[BenchJudge]:
    """Return every objective measure of Table 1."""
    return [word_errors(), speaker_similarity(), utmos(), dnsmos(options)]
