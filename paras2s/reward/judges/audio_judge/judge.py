"""A large audio model as judge: it hears the clips themselves and compares them, matches them, or scores one of them.

It uses AudioJudge's prompts, concatenation, in-context examples, transcripts, orders and aspects, and StyleSet's repeated
samples. A reply that cannot be read gives no vote, and an item with too few votes gets no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from paras2s.audio import asr
from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip
from paras2s.clients.chat import LLMClient, Reply, Request, Tokens
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.errors import BudgetError, ConfigError, DataError, JudgeError
from paras2s.reward.judges.audio_judge.concatenation import SIGNALS_VERSION, Boundary, Signals, Speak, make_signals
from paras2s.reward.judges.audio_judge.few_shot import Example, load_examples
from paras2s.reward.judges.audio_judge.messages import LAYOUT_VERSION, Case, JudgeRequest, MessageBuilder, ShownExample
from paras2s.reward.judges.audio_judge.tasks import find_task, points_of
from paras2s.reward.judges.base import QUESTION_WORDS, Exchange, Judge, Pair, Preferred, Progress, Scored, Utterance
from paras2s.reward.judges.llm_judge import total_usd
from paras2s.reward.judges.parsing import is_readable, require_complete
from paras2s.reward.judges.prompts import PLACEHOLDER, Prompt, load_prompt
from paras2s.reward.judges.votes import label_of, match_of, spread_of, swapped
from paras2s.types import MatchLabel, PairLabel, Preference, Unscored, Verdict
from paras2s.utils.cache import JsonCache, key_of

VERSION = "3"
# Names of the clips, by their number.
NAMES: dict[int, tuple[Boundary, ...]] = {1: ("clip",), 2: ("first", "second")}
Label = PairLabel | MatchLabel
Vote = Label | float
Transcribe = Callable[[Sequence[Clip]], list[str]]
Outcome = Reply | JudgeError | BudgetError


class TranscriptCache:
    """ASR transcripts. Each clip is transcribed once, in a window of its own, for all orders and tasks."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, clips: Sequence[Clip]) -> list[str]:
        """Return the words of each clip, "" where there are none."""
        names = [clip.digest for clip in clips]
        for name, clip in zip(names, clips, strict=True):
            if name not in self._known:
                self._known[name] = transcribe([clip])[0].text
        return [self._known[name] for name in names]


@dataclass(frozen=True)
class _Votes:
    """The votes of one order, in the order of the samples, their reasons, and why some are missing."""

    votes: tuple[Vote, ...]
    failed: tuple[str, ...]
    reasons: tuple[str, ...]


class AudioJudge(Judge):
    """An audio model that judges one task. `examples` are shown first, as many as the config says."""

    client: LLMClient
    reads_history = True

    def __init__(
        self,
        config: AudioJudgeConfig,
        task: str,
        client: LLMClient,
        signals: Signals,
        examples: Sequence[Example] = (),
        transcripts: Transcribe | None = None,
    ) -> None:
        self.config, self.client, self.task = config, client, find_task(task)
        # Recorded verdicts carry this name.
        self.name = f"listens:{config.llm.model}"
        self.prompt: Prompt = load_prompt(f"listen_{task}", self.task.prompt, config.prompts)
        if unknown := sorted(set(PLACEHOLDER.findall(self.prompt.user)) - set(self.task.inputs)):
            raise ConfigError(
                f"prompts: {self.task.prompt} asks for {unknown[0]!r}; there are {', '.join(self.task.inputs) or 'none'}"
            )
        if self.task.instructed:
            self.needs = (QUESTION_WORDS, "answer.audio")
        self._transcripts = transcripts or TranscriptCache()
        if config.shots is not None and config.shots > len(examples):
            raise ConfigError(f"shots: {config.shots} are to be shown, and there are {len(examples)} examples")
        chosen = examples[: config.shots]
        try:
            self._builder = MessageBuilder(config, self.task, self.prompt, signals, [self._shown(shot) for shot in chosen])
        except JudgeError as error:
            raise ConfigError(f"examples: {error}") from error
        self.version = self._version(chosen)

    def _version(self, examples: Sequence[Example]) -> str:
        """Return our version and a hash of all settings, besides the prompt, that may change a verdict."""
        config, llm = self.config, self.config.llm
        layout = [config.strategy, config.signals, config.silence_s, config.transcripts, config.both_orders, config.samples]
        endpoint: list[Any] = [llm.base_url, llm.temperature, llm.top_p, llm.max_output_tokens, llm.seed, llm.structured]
        endpoint += [llm.reasoning_effort, llm.extra_body] if llm.reasoning_effort or llm.extra_body else []
        audio = [config.audio.format, config.audio.sample_rate_hz, SIGNALS_VERSION]
        recogniser = asr.VERSION if config.transcripts == "asr" else ""
        digests = [example.digest for example in examples]
        settings = [self.task.name, LAYOUT_VERSION, layout, endpoint, audio, recogniser, digests]
        return f"{VERSION}-{key_of(settings)[:8]}"

    @property
    def fingerprint(self) -> str:
        """The version and the hash of the prompt."""
        return f"{self.version}/{self.prompt.hash}"

    # Two clips.

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs, in order, in both orders if the config says so. Raises JudgeError: this task is about single clips."""
        requests = self.requests(pairs)
        outcomes = self._complete(requests, on_progress)
        return [request if isinstance(request, Unscored) else self._preference(request, outcomes) for request in requests]

    def _preference(self, requests: Sequence[Request], outcomes: Iterator[Outcome]) -> Preferred:
        own = [next(outcomes) for _ in requests]
        if out_of_budget := [outcome for outcome in own if isinstance(outcome, BudgetError)]:
            return out_of_budget[0]
        size = self.config.samples
        orders = [self._votes(own[start : start + size]) for start in range(0, len(own), size)]
        replies = [outcome for outcome in own if isinstance(outcome, Reply)]
        text = "\n---\n".join(reply.text for reply in replies)
        for order in orders:
            if _too_few(order, size):
                return Unscored(self.name, order.failed[0], text)
        votes = [
            [points_of(vote if number == 0 else swapped(vote)) for vote in order.votes if not isinstance(vote, float)]
            for number, order in enumerate(orders)
        ]
        try:
            means = [fmean(order) for order in votes]
            points = fmean(means)
            label = self._label(points)
            labels = ["tie" if label_of(mean) == "tie" else self._label(mean) for mean in means]
        except DataError as error:
            return Unscored(self.name, str(error), text)
        flat = tuple(vote for order in votes for vote in order)
        tokens = sum((reply.tokens for reply in replies), Tokens())
        return Preference(
            judge=self.name,
            version=self.version,
            prompt_hash=self.prompt.hash,
            task=self.task.name,
            label=label,
            points=points,
            order_labels=tuple(label if number == 0 else swapped(label) for number, label in enumerate(labels)),
            votes=flat,
            spread=spread_of(flat),
            consistent=labels[0] == labels[1] if len(labels) == 2 else None,
            reason="\n---\n".join(order.reasons[0] for order in orders),
            reply=text,
            text_in_tokens=tokens.text_in,
            audio_in_tokens=tokens.audio_in,
            text_out_tokens=tokens.text_out,
            cost_usd=total_usd(replies),
            latency_s=sum(reply.latency_s for reply in replies),
            failed=tuple(why for order in orders for why in order.failed),
            cost_estimated=tokens.audio_estimated,
        )

    def _label(self, points: float) -> Label:
        return match_of(points) if self.task.kind == "match" else label_of(points)

    # One clip.

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score single clips, in order; a score is the mean over the samples. Raises JudgeError: this task is about pairs."""
        requests = self.requests(exchanges)
        outcomes = self._complete(requests, on_progress)
        return [request if isinstance(request, Unscored) else self._verdict(request, outcomes) for request in requests]

    def _verdict(self, requests: Sequence[Request], outcomes: Iterator[Outcome]) -> Scored:
        own = [next(outcomes) for _ in requests]
        if out_of_budget := [outcome for outcome in own if isinstance(outcome, BudgetError)]:
            return out_of_budget[0]
        counted = self._votes(own)
        replies = [outcome for outcome in own if isinstance(outcome, Reply)]
        text = "\n---\n".join(reply.text for reply in replies)
        if _too_few(counted, self.config.samples):
            return Unscored(self.name, counted.failed[0], text)
        votes = tuple(points_of(vote) for vote in counted.votes)
        return Verdict(
            judge=self.name,
            version=self.version,
            prompt_hash=self.prompt.hash,
            score=fmean(votes),
            reason=counted.reasons[0],
            reply=text,
            cost_usd=total_usd(replies),
            latency_s=sum(reply.latency_s for reply in replies),
            votes=votes,
            spread=spread_of(votes),
            failed=counted.failed,
            cost_estimated=any(reply.tokens.audio_estimated for reply in replies),
        )

    # Requests, for one clip and for two.

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """Return the calls for each item: all samples of its first order, then of its second."""
        return [request if isinstance(request, Unscored) else self.calls_of(request) for request in self.judge_requests(items)]

    def calls_of(self, orders: Sequence[JudgeRequest]) -> list[Request]:
        """Return the calls that send these messages."""
        calls = [(order, sample) for order in orders for sample in range(self.config.samples)]
        return [
            Request(order.messages, self.task.schema, sample=sample, follows=number > 0)
            for number, (order, sample) in enumerate(calls)
        ]

    def judge_requests(self, items: Sequence[Pair | Exchange]) -> list[list[JudgeRequest] | Unscored]:
        """Return the messages for each item, one request for each order, with the segments of their recordings.

        Raises:
            JudgeError: pairs for a task about single clips, or the other way round.
        """
        for item in items:
            if (2 if isinstance(item, Pair) else 1) != self.task.clips:
                raise JudgeError(f"{self.task.name} is about {'two clips' if self.task.clips == 2 else 'one clip'} at a time")
        items = [at_rate(item, self.config.audio.sample_rate_hz) for item in items]
        words = self._words([_clips(item) for item in items], [_given_words(item) for item in items])
        transcripts = self._instruction_words([_instruction(item) for item in items])
        return [self._orders(*inputs) for inputs in zip(items, words, transcripts, strict=True)]

    def _orders(
        self, item: Pair | Exchange, words: tuple[str, ...] | str | None, instruction_words: str | None
    ) -> list[JudgeRequest] | Unscored:
        if isinstance(words, str):
            return Unscored(self.name, words)
        orders = [(_clips(item), words)]
        if self.task.clips == 2 and self.config.both_orders:
            orders.append((_clips(item)[::-1], None if words is None else words[::-1]))
        inputs: Mapping[str, str] = {} if isinstance(item, Pair) else item.task_inputs
        instruction = _instruction(item)
        try:
            return [
                self._builder.build(self._case(instruction, clips, texts, instruction_words, inputs)) for clips, texts in orders
            ]
        except JudgeError as error:
            return Unscored(self.name, str(error))

    def _complete(self, requests: Sequence[list[Request] | Unscored], on_progress: Progress | None) -> Iterator[Outcome]:
        calls = [call for request in requests if isinstance(request, list) for call in request]
        return iter(self.client.complete_all(calls, on_progress, lambda reply: is_readable(reply, self.task.read)))

    def _votes(self, outcomes: Sequence[Outcome]) -> _Votes:
        votes, failed, reasons = [], [], []
        for outcome in outcomes:
            try:
                if not isinstance(outcome, Reply):
                    raise outcome
                vote, reason = self.task.read(require_complete(outcome))
            except JudgeError as error:
                failed.append(str(error))
                continue
            votes.append(vote)
            reasons.append(reason)
        return _Votes(tuple(votes), tuple(failed), tuple(reasons))

    def _case(
        self,
        instruction: Utterance,
        clips: Sequence[Clip],
        words: Sequence[str] | None,
        instruction_words: str | None,
        inputs: Mapping[str, str],
    ) -> Case:
        """Collect the task's inputs; a missing one raises a JudgeError."""
        if missing := [key for key in self.task.inputs if not inputs.get(key)]:
            raise JudgeError(f"{self.task.name} needs the input {missing[0]}")
        named: list[tuple[Boundary, Clip]] = list(zip(NAMES[self.task.clips], clips, strict=True))
        texts: dict[Boundary, str] = {} if words is None else dict(zip(NAMES[self.task.clips], words, strict=True))
        if not self.task.instructed:
            return Case(tuple(named), texts, inputs)
        history = instruction.said_before
        if instruction.clip is not None:
            if self.config.transcripts == "given" and not instruction_words:
                raise JudgeError("transcripts: given, and the instruction has none")
            if instruction_words is not None:
                texts = {"instruction": instruction_words, **texts}
            return Case((("instruction", instruction.clip), *named), texts, inputs, history=history)
        if not instruction.text:
            raise JudgeError(f"{self.task.name} needs the instruction that the clips answer")
        spoken = {"spoken": instruction.style} if instruction.style else {}
        return Case(tuple(named), texts, inputs, {"words": instruction.text, **spoken}, history)

    def _words(
        self, clips: Sequence[Sequence[Clip]], given: Sequence[tuple[str, ...] | None]
    ) -> list[tuple[str, ...] | str | None]:
        """Return the transcripts of each item's clips; the reason if a given one is missing; None if the config has none."""
        if self.config.transcripts == "none":
            return [None] * len(clips)
        if self.config.transcripts == "given":
            return ["transcripts: given, and this one has none" if words is None else words for words in given]
        transcripts = iter(self._transcripts([clip for item in clips for clip in item]))
        return [tuple(next(transcripts) for _ in item) for item in clips]

    def _instruction_words(self, instructions: Sequence[Utterance]) -> list[str | None]:
        if self.config.transcripts == "none" or not self.task.instructed:
            return [None] * len(instructions)
        if self.config.transcripts == "given":
            return [instruction.text for instruction in instructions]
        clips = [instruction.clip for instruction in instructions if instruction.clip is not None]
        transcripts = iter(self._transcripts(clips))
        return [None if instruction.clip is None else next(transcripts) for instruction in instructions]

    def _shown(self, example: Example) -> ShownExample:
        """Return an example in the form of this task. Raises DataError: a wrong label, or number of clips."""
        label = example.label_for(self.task.name)
        try:
            if len(example.clips) != self.task.clips:
                raise JudgeError(f"has {len(example.clips)} clips, and {self.task.name} is about {self.task.clips}")
            reply = self.task.example_reply(label, example.reason)
            words = self._words([example.clips], [example.words])[0]
            if isinstance(words, str):
                raise JudgeError(words)
            instruction_words = self._instruction_words([example.instruction])[0]
            case = self._case(example.instruction, example.clips, words, instruction_words, example.task_inputs)
        except JudgeError as error:
            raise DataError(f"{example.name}: {error}") from error
        return ShownExample(case, reply)


def make_judges(config: AudioJudgeConfig, voice: Speak | None = None, calls: bool = True) -> list[AudioJudge]:
    """Make a judge for each task, sharing endpoint, budget and cache. Raises ConfigError: no voice. DataError: examples."""
    client = LLMClient(config.llm, JsonCache(config.cache_dir / "judging.sqlite"), calls=calls)
    examples = load_examples(config.examples) if config.examples else []
    kind = "none" if config.strategy == "none" else config.signals
    signals = make_signals(kind, config.audio.sample_rate_hz, config.cache_dir, voice)
    transcripts = TranscriptCache()
    return [AudioJudge(config, task, client, signals, examples, transcripts) for task in config.tasks]


def at_rate(item: Pair | Exchange, sample_rate_hz: int) -> Pair | Exchange:
    """Return the item with its clips at this rate, so that several orders and judges need not convert them again."""
    if isinstance(item, Exchange):
        return replace(item, answer=item.answer.at(sample_rate_hz))
    instruction = item.instruction
    if instruction.clip is not None:
        instruction = replace(instruction, clip=instruction.clip.at(sample_rate_hz))
    return replace(item, instruction=instruction, first=item.first.at(sample_rate_hz), second=item.second.at(sample_rate_hz))


def _clips(item: Pair | Exchange) -> tuple[Clip, ...]:
    return (item.first, item.second) if isinstance(item, Pair) else (item.answer,)


def _given_words(item: Pair | Exchange) -> tuple[str, ...] | None:
    if isinstance(item, Pair):
        return item.words
    return None if item.words is None else (item.words,)


def _instruction(item: Pair | Exchange) -> Utterance:
    return item.instruction if isinstance(item, Pair) else item.question


def _too_few(counted: _Votes, samples: int) -> bool:
    """Return whether fewer than half of the samples can be read: those few would be a biased selection."""
    return 2 * len(counted.votes) < samples or not counted.votes
