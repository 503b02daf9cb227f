"""Judges one pair or one answer from files, with any judge: the work behind `paras2s judge`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from paras2s.audio.clip import Clip
from paras2s.bench.differences import compare_clips
from paras2s.bench.display import ClipNames, show_blueprints, show_estimate, show_preference, show_verdict
from paras2s.bench.made_from import Fusion, MadeFrom, ensemble_of, fusion_of, keep_verdict, sent
from paras2s.bench.pair_judges import (
    NEEDS_QUESTION,
    Decision,
    better_judges,
    decide_by_label,
    decide_by_scores,
    mean_error,
    missing_for_answer,
    missing_for_pair,
    refuse_missing,
    show_better,
    show_scored,
)
from paras2s.clients.chat import LLMClient, Request
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.judges import INDEPENDENT, REWARD_MODEL, RUBRIC, NamedJudge, find_judge
from paras2s.configs.schema.unisrm import UniSRMJudgeConfig
from paras2s.data_gen.clip_encoder import RunClipEncoder
from paras2s.data_gen.tts.signal_voice import signal_voice
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError
from paras2s.reward.blueprint.extract import build_blueprints
from paras2s.reward.blueprint.schema import is_silent
from paras2s.reward.judges.audio_judge.dump import write_dump
from paras2s.reward.judges.audio_judge.ensemble import EnsembleJudge, combine_tasks
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.audio_judge.messages import JudgeRequest, unjoined
from paras2s.reward.judges.audio_judge.tasks import find_task
from paras2s.reward.judges.base import Exchange, Judge, Pair, Progress, Utterance, as_clip, as_utterance, names_file, sides_of
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.overall_judge import OverallJudge
from paras2s.reward.judges.registry import open_audio_judges, open_judge, open_unisrm_judge
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint, Label, PairLabel, PairVerdict, Preference, Unscored, Verdict, to_json
from paras2s.unisrm.reward.judge import TaskInputs, UniSRMJudge, read_task_inputs


@dataclass(frozen=True)
class JudgeOptions:
    """The options of `judge`: the judge by name or path, what is laid over its config, and what is done instead of a call."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tone: Path | None = None
    task: str | None = None
    both_orders: bool = False
    estimate: bool = False
    dump: Path | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def named(self) -> NamedJudge:
        """The judge of the name, with its kind and the values of its YAML."""
        return find_judge(self.name)

    @property
    def calls(self) -> bool:
        """Whether the judge is to be called at all."""
        return not self.estimate and self.dump is None

    def open(self) -> Judge:
        """Open the judge."""
        return open_judge(
            self.named,
            self.overrides,
            both_orders=True if self.both_orders else None,
            tone=self.tone,
            voice=signal_voice(),
            encoder=RunClipEncoder,
            calls=self.calls,
        )

    def open_tasks(self) -> list[AudioJudge]:
        """Open the judge of each task of an audio judge."""
        tasks = None if self.task is None else [self.task]
        orders = True if self.both_orders else None
        return open_audio_judges(
            self.named, self.overrides, tasks=tasks, both_orders=orders, voice=signal_voice(), calls=self.calls
        )


@dataclass(frozen=True)
class Outcome:
    """The result of one command: its JSON, a function that shows it, whether everything was scored, and what it is made from.

    `made_from` is None if nothing was judged, and is called only for a verdict that is to be kept. `judged` is the verdict on
    a pair and its overall label.
    """

    as_json: dict[str, Any]
    show: Callable[[Console], None]
    scored: bool = True
    made_from: Callable[[], MadeFrom] | None = None
    judged: tuple[PairVerdict | Preference, str] | None = None


def keep_outcome(folder: Path, kind: str, outcome: Outcome, clips: Mapping[str, Path | str | None]) -> Path | None:
    """Add a verdict with copies of its `clips` (or the question in writing) to the folder's file; None without a verdict."""
    if outcome.made_from is None:
        return None
    files = {name: Path(clip) for name, clip in clips.items() if clip is not None and names_file(clip)}
    return keep_verdict(folder, kind, outcome.as_json, outcome.made_from(), files)


def judge_pair(
    options: JudgeOptions,
    first: Path,
    second: Path,
    question: str | None,
    style: str | None = None,
    on_progress: Progress | None = None,
) -> Outcome:
    """Compare two clips: the judge's own outcome, headed by a sentence. Raises ConfigError: a wrong option. BudgetError.

    A silent question raises AudioError, as does a file that cannot be read.
    """
    started = time.perf_counter()
    kind, names = options.named.kind, _names(first, second)
    clips = [as_clip(path) for path in (first, second)]
    spoken = Utterance() if question is None else as_utterance(question, style)
    pair = Pair(spoken, clips[0], clips[1])
    if spoken.clip is not None and is_silent(spoken.clip):
        raise AudioError(f"--question {question}: the recording is silent; give another, or what was asked as text")
    if kind in ("unisrm", "audio") and style is not None:
        raise ConfigError(f"--style: {options.name} hears how the question was spoken; leave it out")
    if kind == "unisrm":
        return _headed(_compare_by_unisrm(options, pair, on_progress, names), names, started)
    if options.inputs:
        raise ConfigError(f"--input: only a UniSRM compares clips by inputs of a task, and {options.name} is none")
    if kind == "audio":
        return _headed(_judge_by_audio(options, pair, on_progress, names), names, started)
    if options.task is not None or (options.dump is not None and kind != "llm"):
        raise ConfigError(f"--task and --dump are for judges that are called, --task for audio judges; {options.name} is none")
    if not options.named.is_own:
        refuse_missing(missing_for_pair(options.named, question, style, options.tone, options.overrides, options.calls))
    elif question is None:
        raise ConfigError(NEEDS_QUESTION)
    judge = options.open()
    if not options.calls and (bill := _llm_without_calls(options, judge, pair)) is not None:
        return bill
    if judge.scores_alone:
        return _by_scores(options, judge, pair, names, started)
    if not isinstance(judge, LLMJudge) or isinstance(judge, OverallJudge):
        preference = judge.compare_batch([pair], on_progress)[0]
        outcome = _preferences({options.name: _within_budget(preference)}, names, partial(_made_from, judge, pair))
        return _headed(outcome, names, started)
    verdict = _within_budget(judge.label_pairs([pair], on_progress)[0])
    return _headed(_verdict(judge, pair, {"answer 1": clips[0], "answer 2": clips[1]}, verdict, names), names, started)


def measure_pair(first: Path, second: Path, question: str | None, style: str | None, tone: Path | None = None) -> Outcome:
    """Measure the differences of two clips and say what each judge still needs. Raises AudioError: a file cannot be read."""
    comparison = compare_clips(
        as_clip(first), as_clip(second), _names(first, second), None if tone is None else ToneClassifier.load(tone)
    )
    better = better_judges(None, question, style)

    def show(console: Console) -> None:
        comparison.show(console)
        show_better(console, "No judge decided. To have one decide:", better)

    return Outcome({**comparison.as_json(), "judges": better}, show)


def _by_scores(options: JudgeOptions, judge: Judge, pair: Pair, names: ClipNames, started: float) -> Outcome:
    """Compare by the scores of both answers, each judged alone."""
    first, second = (_within_budget(scored) for scored in judge.score_batch(sides_of(pair)))
    preference = judge.prefer(first, second)
    decision: Decision | None = None
    if isinstance(first, Verdict) and isinstance(second, Verdict):
        is_model = options.named.kind == REWARD_MODEL
        error = mean_error(options.named.source or Path(options.name)) if is_model else None
        cost = None if None in (first.cost_usd, second.cost_usd) else (first.cost_usd or 0.0) + (second.cost_usd or 0.0)
        winner, margin, sentence = decide_by_scores(first, second, names, error)
        if is_model:
            sentence += f" This reward model knows the questions and answers of its own run alone ({options.name})."
        elif options.named.kind in (RUBRIC, INDEPENDENT):
            sentence += " The rubric knows short answers in English like the demo's, and gives 1 to any other."
        if pair.first.digest == pair.second.digest:
            sentence += " Both files hold the same sound."
        question, style = pair.instruction.text or ("" if pair.instruction.clip else None), pair.instruction.style
        better = better_judges(options.named, question, style)
        decision = Decision(winner, margin, sentence, time.perf_counter() - started, cost, tuple(better))

    def show(console: Console) -> None:
        if decision is not None:
            console.print(decision.sentence, style="bold")
        show_scored(console, (first, second), names)
        if decision is not None:
            price = "unknown" if decision.cost_usd is None else f"{decision.cost_usd:.4f} USD"
            console.print(f"{judge.label}, {decision.elapsed_s:.1f} s, cost {price}", style="dim")
            show_better(console, "Judges that would do better:", decision.better_judges)

    outcome = {"verdicts": {options.name: to_json(preference)}, "scores": {"1": to_json(first), "2": to_json(second)}}
    if decision is not None:
        outcome["decision"] = decision.as_json()
    return Outcome(outcome, show, decision is not None, partial(_made_from, judge, pair))


def _headed(outcome: Outcome, names: ClipNames, started: float) -> Outcome:
    """Return the outcome of a judge of pairs, headed by its decision where there is one."""
    if outcome.judged is None or (made := decide_by_label(*outcome.judged, names)) is None:
        return outcome
    verdict = outcome.judged[0]
    decision = Decision(*made, time.perf_counter() - started, verdict.cost_usd)

    def show(console: Console) -> None:
        console.print(decision.sentence, style="bold")
        outcome.show(console)

    return replace(outcome, as_json={"decision": decision.as_json(), **outcome.as_json}, show=show)


def _llm_without_calls(options: JudgeOptions, judge: Judge, item: Pair | Exchange) -> Outcome | None:
    """Return the cost at most and write the messages; None if the item cannot be judged, as judging it says without a call."""
    if not isinstance(judge, LLMJudge):
        raise ConfigError(f"--estimate: {judge.name} makes no call; leave it out")
    requests = judge.requests([item])[0]
    if isinstance(requests, Unscored):
        return None
    return _without_calls(options, judge.client, {"pair": list(map(unjoined, requests))}, requests)


def _names(first: Path, second: Path) -> ClipNames:
    """Return the names of two clips: those of their files, or where these are alike their paths from the last common folder."""
    if first.name != second.name or first == second:
        return first.name, second.name
    common = os.path.commonpath((first.absolute(), second.absolute()))
    return os.path.relpath(first.absolute(), common), os.path.relpath(second.absolute(), common)


def judge_answer(
    options: JudgeOptions, question: str, answer: Path, style: str | None, on_progress: Progress | None = None
) -> Outcome:
    """Score one answer to a question. Raises ConfigError: an option is unknown or missing. BudgetError: the budget ended."""
    clip = as_clip(answer)
    kind = options.named.kind
    if kind in ("rubric", "independent", "reward_model") and (options.estimate or options.overrides):
        raise ConfigError(f"--judge {options.name} makes no call and has no config: leave --estimate and --set out")
    if kind in ("audio", "unisrm"):
        what = "an audio judge" if kind == "audio" else "a UniSRM"
        raise ConfigError(f"{options.name}: this is {what}; `judge clip` scores a clip by it")
    refuse_missing(missing_for_answer(options.named, style, options.tone))
    judge = options.open()
    exchange = Exchange(as_utterance(question, style), clip)
    if isinstance(judge, RubricJudge):
        return _judge_by_rubric(judge, exchange)
    if options.estimate and (bill := _llm_without_calls(options, judge, exchange)) is not None:
        return bill
    return _verdict(judge, exchange, {"answer": clip}, _within_budget(judge.score_batch([exchange], on_progress)[0]))


def _compare_by_unisrm(options: JudgeOptions, pair: Pair, on_progress: Progress | None, names: ClipNames) -> Outcome:
    """Compare by T4 with the instruction as its history, or by another task with the inputs that it takes."""
    if options.tone is not None:
        raise ConfigError(f"--tone: {options.name} is a UniSRM and needs no tone classifier; leave it out")
    if pair.instruction.text is not None or (options.inputs and pair.instruction != Utterance()):
        raise ConfigError("--instruction: of a UniSRM the recording before the answers (T4); give all else by --input")
    inputs = read_task_inputs(options.task or "T4", options.inputs)
    judge = _open_unisrm(options, inputs)
    if not options.calls:
        return _unisrm_without_calls(options, judge, pair)
    verdict = _within_budget(judge.compare_batch([pair], on_progress)[0])
    return _preferences({inputs.task: verdict}, names, partial(_made_from, judge, pair))


def _open_unisrm(options: JudgeOptions, inputs: TaskInputs) -> UniSRMJudge:
    orders, named = True if options.both_orders else None, options.named
    # Before a model of many gigabytes is read.
    if not options.calls and named.config(UniSRMJudgeConfig, options.overrides).served is None:
        raise ConfigError(f"--estimate, --dump: {options.name} is in this process and makes no call; leave them out")
    return open_unisrm_judge(named, options.overrides, both_orders=orders, inputs=inputs, calls=options.calls)


def _unisrm_without_calls(options: JudgeOptions, judge: UniSRMJudge, item: Pair | Exchange) -> Outcome:
    requests = judge.requests([item])[0]
    if isinstance(requests, Unscored):
        raise JudgeError(requests.reason)
    assert judge.client is not None
    return _without_calls(options, judge.client, {judge.task_of(item): list(map(unjoined, requests))}, requests)


def judge_clip(options: JudgeOptions, clip: Path, on_progress: Progress | None = None) -> Outcome:
    """Score one clip by a task of an audio judge, or by a UniSRM's T2. Raises ConfigError: a wrong input. BudgetError."""
    inputs = options.inputs
    if options.named.kind == "unisrm":
        if inputs or options.task not in (None, "T2"):
            raise ConfigError("--task, --input: a UniSRM scores a single clip by T2, which takes nothing else")
        exchange, judge = Exchange(Utterance(), as_clip(clip)), _open_unisrm(options, TaskInputs())
        if not options.calls:
            return _unisrm_without_calls(options, judge, exchange)
        return _scored(judge, exchange, _within_budget(judge.score_batch([exchange], on_progress)[0]))
    task = find_task(options.task or "mos")
    if set(inputs) != set(task.inputs):
        raise ConfigError(
            f"--input: {task.name} takes {' and '.join(task.inputs) or 'nothing'}; got {', '.join(inputs) or 'nothing'}"
        )
    named = replace(options, task=task.name)
    return _judge_by_audio(named, Exchange(Utterance(), as_clip(clip), task_inputs=dict(inputs)), on_progress)


def _judge_by_rubric(judge: RubricJudge, exchange: Exchange) -> Outcome:
    blueprint = judge.measure([exchange.answer])[0]
    verdict = _within_budget(judge.score_batch([replace(exchange, blueprint=blueprint)])[0])
    outcome = {"verdict": to_json(verdict)}
    scored = not isinstance(verdict, Unscored)
    made_from = partial(_made_from, judge, exchange)
    return _with_blueprints(outcome, {"answer": blueprint}, lambda out: show_verdict(out, verdict), scored, made_from)


def _judge_by_audio(
    options: JudgeOptions, item: Pair | Exchange, on_progress: Progress | None, names: ClipNames = ("1", "2")
) -> Outcome:
    if isinstance(item, Pair):
        if options.tone is not None:
            raise ConfigError(f"--tone: {options.name} is an audio judge and needs no tone classifier; leave it out")
        tasks = [options.task] if options.task else options.named.config(AudioJudgeConfig).tasks
        if item.instruction != Utterance() and not any(find_task(name).instructed for name in tasks):
            raise ConfigError(f"--instruction: {', '.join(tasks)} compares clips alone; leave it out")
    judges = options.open_tasks()
    if not options.calls:
        orders = _audio_calls(judges, item)
        requests = [request for judge in judges for request in judge.calls_of(orders[judge.task.name])]
        return _without_calls(options, judges[0].client, orders, requests)
    if isinstance(item, Exchange):
        return _scored(judges[0], item, _within_budget(judges[0].score_batch([item], on_progress)[0]))
    judge = combine_tasks(judges)
    if isinstance(judge, EnsembleJudge):
        verdicts = _within_budget(judge.judge_aspects([item], on_progress)[0])
        made_from = partial(_made_from, judge, item, _ensemble(judge, verdicts.aspects))
        return _preferences({**verdicts.aspects, ENSEMBLE: verdicts.overall}, names, made_from)
    verdict = _within_budget(judge.compare_batch([item], on_progress)[0])
    return _preferences({judges[0].task.name: verdict}, names, partial(_made_from, judge, item))


def _ensemble(judge: EnsembleJudge, aspects: Mapping[str, Preference | Unscored]) -> tuple[Fusion, ...]:
    """Return the fusion of the aspects' labels in each order of the pair; the second order's labels are as replied."""
    votes = {name: aspects[name] for name in judge.rule.aspects}
    known = {name: verdict.order_labels for name, verdict in votes.items() if isinstance(verdict, Preference)}
    orders = max(map(len, known.values()), default=0)
    name = judge.judges[0].config.ensemble
    return tuple(
        ensemble_of(
            f"{name}, order {index + 1}" if orders > 1 else name,
            judge.rule,
            {aspect: cast(PairLabel, labels[index]) for aspect, labels in known.items()},
        )
        for index in range(orders)
    )


def _made_from(judge: Judge, item: Pair | Exchange, fusion: tuple[Fusion, ...] = ()) -> MadeFrom:
    """Return the item and its prompts, which are made again from cached measurements; no call is made."""
    question = item.instruction if isinstance(item, Pair) else item.question
    # Of a UniSRM in this process the prompt is no request.
    unknown = isinstance(judge, UniSRMJudge) and judge.client is None
    prompts = None if unknown else sent(judge.requests([item])[0])
    return MadeFrom(words=question.text or "", style=question.style or "", prompts=prompts, fusion=fusion)


def _scored(judge: Judge, item: Exchange | Pair, verdict: Verdict | Unscored) -> Outcome:
    scored = not isinstance(verdict, Unscored)
    return Outcome(
        {"verdict": to_json(verdict)}, lambda out: show_verdict(out, verdict), scored, partial(_made_from, judge, item)
    )


def _audio_calls(judges: Sequence[AudioJudge], item: Pair | Exchange) -> dict[str, list[JudgeRequest]]:
    """Return the orders of each judge's task."""
    calls: dict[str, list[JudgeRequest]] = {}
    for judge in judges:
        orders = judge.judge_requests([item])[0]
        if isinstance(orders, Unscored):
            raise JudgeError(f"{judge.task.name}: {orders.reason}")
        calls[judge.task.name] = orders
    return calls


def _without_calls(
    options: JudgeOptions, client: LLMClient, orders: Mapping[str, Sequence[JudgeRequest]], requests: Sequence[Request]
) -> Outcome:
    """Write the orders of each task and estimate the cost of the requests, as the options say."""
    if options.dump is not None:
        for task, messages in orders.items():
            write_dump(options.dump, task, messages)
    bill = client.estimate(requests)

    def show(console: Console) -> None:
        if options.estimate:
            show_estimate(console, client.config.model, bill)
        if options.dump is not None:
            console.print(f"{options.dump}: the messages and recordings of the judge; no call was made")

    written = {} if options.dump is None else {"dump": str(options.dump)}
    return Outcome({**written, **asdict(bill)}, show)


def _verdict(
    judge: Judge,
    item: Pair | Exchange,
    clips: Mapping[str, Clip],
    verdict: PairVerdict | Verdict | Unscored,
    names: ClipNames | None = None,
) -> Outcome:
    blueprints: dict[str, Blueprint] = {}
    overall: Label | None = None
    fusion: tuple[Fusion, ...] = ()
    if isinstance(judge, LLMJudge):
        if judge.extractors:
            measured = build_blueprints(list(clips.values()), judge.extractors, judge.cache)
            blueprints = dict(zip(clips, measured, strict=True))
        if isinstance(verdict, PairVerdict):
            overall = judge.rule.fuse(verdict.labels)
            fusion = (fusion_of(judge.config.judge.fusion, judge.rule, verdict.labels),)
    outcome = {"verdict": to_json(verdict), **({"overall": overall} if overall else {})}
    scored = not isinstance(verdict, Unscored)
    show = partial(show_verdict, verdict=verdict, overall=overall, names=names)
    shown = _with_blueprints(outcome, blueprints, show, scored, partial(_made_from, judge, item, fusion))
    return replace(shown, judged=(verdict, overall)) if isinstance(verdict, PairVerdict) and overall else shown


def _with_blueprints(
    outcome: dict[str, Any],
    blueprints: dict[str, Blueprint],
    show: Callable[[Console], None],
    scored: bool,
    made_from: Callable[[], MadeFrom],
) -> Outcome:
    def show_all(console: Console) -> None:
        if blueprints:
            show_blueprints(console, blueprints)
        show(console)

    described = {name: to_json(blueprint) for name, blueprint in blueprints.items()}
    return Outcome({**outcome, "blueprints": described}, show_all, scored, made_from)


def _preferences(
    preferences: Mapping[str, Preference | Unscored], names: ClipNames, made_from: Callable[[], MadeFrom]
) -> Outcome:
    def show(console: Console) -> None:
        for task, preference in preferences.items():
            show_preference(console, task, preference, names)

    scored = not any(isinstance(preference, Unscored) for preference in preferences.values())
    # Of several tasks the last is their ensemble.
    last = list(preferences.values())[-1]
    judged = (last, last.label) if isinstance(last, Preference) else None
    as_json = {"verdicts": {task: to_json(verdict) for task, verdict in preferences.items()}}
    return Outcome(as_json, show, scored, made_from, judged)


def _within_budget(verdict: Any) -> Any:
    if isinstance(verdict, BudgetError):
        raise verdict
    return verdict
