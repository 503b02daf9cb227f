"""A large audio model as judge: it hears the clips themselves, and says which is better, whether they match, or a score.

AudioJudge's prompts, joining of clips, in-context examples, transcripts, orders and aspects; StyleSet's several samples.
A reply that cannot be read gives no vote, and a question with too few votes no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from paras2s.audio import asr
from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip
from paras2s.clients.chat import LLMClient, Reply, Request, Tokens
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.errors import BudgetError, ConfigError, DataError, JudgeError
from paras2s.reward.judges.audio_judge.concatenation import SIGNALS_VERSION, Boundary, Signals
from paras2s.reward.judges.audio_judge.few_shot import Example
from paras2s.reward.judges.audio_judge.messages import LAYOUT_VERSION, Case, JudgeRequest, Listening, ShownExample
from paras2s.reward.judges.audio_judge.tasks import find_task, points_of
from paras2s.reward.judges.llm_judge import Exchange, Pair, Progress, Utterance, total_usd
from paras2s.reward.judges.parsing import require_whole
from paras2s.reward.judges.prompts import PLACEHOLDER, Prompt, load_prompt
from paras2s.reward.judges.votes import label_of, match_of, spread_of, turned
from paras2s.types import MatchLabel, PairLabel, Preference, Unscored, Verdict
from paras2s.utils.cache import key_of

VERSION = "1"
# What clips are called, by how many there are.
NAMES: dict[int, tuple[Boundary, ...]] = {1: ("clip",), 2: ("first", "second")}
Label = PairLabel | MatchLabel
Vote = Label | float
Transcribe = Callable[[Sequence[Clip]], list[str]]
Answered = Reply | JudgeError | BudgetError


class HeardWords:
    """What a recogniser hears, each clip in a window of its own and once, in however many orders and tasks it stands."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, clips: Sequence[Clip]) -> list[str]:
        """The words of each clip, "" where none are heard."""
        names = [clip.digest for clip in clips]
        for name, clip in zip(names, clips, strict=True):
            if name not in self._known:
                self._known[name] = transcribe([clip])[0].text
        return [self._known[name] for name in names]


@dataclass(frozen=True)
class _Votes:
    """What was said of one question in one order: votes in the order of the samples, and why some are missing."""

    votes: tuple[Vote, ...]
    failed: tuple[str, ...]
    reasons: tuple[str, ...]


class AudioJudge:
    """One task of one model. `examples` are shown first, as many as the config says."""

    scores_alone = False

    def __init__(
        self,
        config: AudioJudgeConfig,
        task: str,
        client: LLMClient,
        signals: Signals,
        examples: Sequence[Example] = (),
        hear: Transcribe | None = None,
    ) -> None:
        self.config, self.client, self.task = config, client, find_task(task)
        self.name = f"listens:{config.llm.model}"
        self.prompt: Prompt = load_prompt(f"listen_{task}", self.task.ask, config.prompts)
        if strange := sorted(set(PLACEHOLDER.findall(self.prompt.user)) - set(self.task.told)):
            raise ConfigError(
                f"prompts: {self.task.ask} asks for {strange[0]!r}; there are {', '.join(self.task.told) or 'none'}"
            )
        self._hear = hear or HeardWords()
        if config.shots is not None and config.shots > len(examples):
            raise ConfigError(f"shots: {config.shots} are to be shown, and there are {len(examples)} examples")
        shown = examples[: config.shots]
        try:
            self._listening = Listening(config, self.task, self.prompt, signals, [self._shown(one) for one in shown])
        except JudgeError as error:
            raise ConfigError(f"examples: {error}") from error
        self.version = self._version(shown)

    def _version(self, examples: Sequence[Example]) -> str:
        """Ours, and a hash of everything beside the prompt that may change a verdict."""
        config, llm = self.config, self.config.llm
        shown = [config.strategy, config.signals, config.silence_s, config.transcripts, config.both_orders, config.samples]
        asked = [llm.base_url, llm.temperature, llm.top_p, llm.max_output_tokens, llm.seed, llm.structured]
        sent = [config.audio.format, config.audio.sample_rate_hz, SIGNALS_VERSION]
        heard = asr.VERSION if config.transcripts == "asr" else ""
        every = [self.task.name, LAYOUT_VERSION, shown, asked, sent, heard, [one.digest for one in examples]]
        return f"{VERSION}-{key_of(every)[:8]}"

    # Two clips.

    def compare(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preference | Unscored | BudgetError]:
        """A preference each, in order: of both orders where the config says so.

        Raises:
            JudgeError: this task is about single clips.
        """
        asked = self.requests(pairs)
        replies = self._complete(asked, on_progress)
        return [one if isinstance(one, Unscored) else self._preference(one, replies) for one in asked]

    def _preference(self, requests: Sequence[Request], replies: Iterator[Answered]) -> Preference | Unscored | BudgetError:
        got = [next(replies) for _ in requests]
        if out_of_money := [one for one in got if isinstance(one, BudgetError)]:
            return out_of_money[0]
        size = self.config.samples
        orders = [self._votes(got[start : start + size]) for start in range(0, len(got), size)]
        whole = [one for one in got if isinstance(one, Reply)]
        said_in_full = "\n---\n".join(reply.text for reply in whole)
        for order in orders:
            if _too_few(order, size):
                return Unscored(self.name, order.failed[0], said_in_full)
        votes = [
            [points_of(vote if place == 0 else turned(vote)) for vote in order.votes if not isinstance(vote, float)]
            for place, order in enumerate(orders)
        ]
        try:
            points = fmean([fmean(one) for one in votes])
            label = self._label(points)
            meant = [label_of(fmean(one)) if label_of(fmean(one)) == "tie" else self._label(fmean(one)) for one in votes]
        except DataError as error:
            return Unscored(self.name, str(error), said_in_full)
        flat = tuple(vote for one in votes for vote in one)
        tokens = sum((one.tokens for one in whole), Tokens())
        return Preference(
            judge=self.name,
            version=self.version,
            prompt_hash=self.prompt.hash,
            task=self.task.name,
            label=label,
            points=points,
            order_labels=tuple(one if place == 0 else turned(one) for place, one in enumerate(meant)),
            votes=flat,
            spread=spread_of(flat),
            consistent=meant[0] == meant[1] if len(meant) == 2 else None,
            reason="\n---\n".join(order.reasons[0] for order in orders),
            reply=said_in_full,
            text_in_tokens=tokens.text_in,
            audio_in_tokens=tokens.audio_in,
            text_out_tokens=tokens.text_out,
            cost_usd=total_usd(whole),
            latency_s=sum(reply.latency_s for reply in whole),
            failed=tuple(why for order in orders for why in order.failed),
        )

    def _label(self, points: float) -> Label:
        return match_of(points) if self.task.kind == "match" else label_of(points)

    # One clip.

    def rate(
        self, exchanges: Sequence[Exchange], on_progress: Progress | None = None
    ) -> list[Verdict | Unscored | BudgetError]:
        """A score each, in order, the mean over the samples.

        Raises:
            JudgeError: this task is about pairs.
        """
        asked = self.requests(exchanges)
        replies = self._complete(asked, on_progress)
        return [one if isinstance(one, Unscored) else self._verdict(one, replies) for one in asked]

    def _verdict(self, requests: Sequence[Request], replies: Iterator[Answered]) -> Verdict | Unscored | BudgetError:
        got = [next(replies) for _ in requests]
        if out_of_money := [one for one in got if isinstance(one, BudgetError)]:
            return out_of_money[0]
        found = self._votes(got)
        whole = [one for one in got if isinstance(one, Reply)]
        said_in_full = "\n---\n".join(reply.text for reply in whole)
        if _too_few(found, self.config.samples):
            return Unscored(self.name, found.failed[0], said_in_full)
        votes = tuple(points_of(vote) for vote in found.votes)
        return Verdict(
            judge=self.name,
            version=self.version,
            prompt_hash=self.prompt.hash,
            score=fmean(votes),
            reason=found.reasons[0],
            reply=said_in_full,
            cost_usd=total_usd(whole),
            latency_s=sum(reply.latency_s for reply in whole),
            votes=votes,
            spread=spread_of(votes),
            failed=found.failed,
        )

    # What both share.

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """What would be asked about each: one order after the other, and of each order its samples."""
        return [one if isinstance(one, Unscored) else self.requests_of(one) for one in self.asked(items)]

    def requests_of(self, orders: Sequence[JudgeRequest]) -> list[Request]:
        """The calls that these messages are sent by."""
        samples = range(self.config.samples)
        return [Request(asked.messages, self.task.schema, sample=sample) for asked in orders for sample in samples]

    def asked(self, items: Sequence[Pair | Exchange]) -> list[list[JudgeRequest] | Unscored]:
        """The messages about each, an order each, and what their recordings were joined from.

        Raises:
            JudgeError: pairs for a task about single clips, or the other way round.
        """
        for item in items:
            if (2 if isinstance(item, Pair) else 1) != self.task.clips:
                raise JudgeError(f"{self.task.name} is about {'two clips' if self.task.clips == 2 else 'one clip'} at a time")
        items = [at_rate(item, self.config.audio.sample_rate_hz) for item in items]
        words = self._words([_clips(item) for item in items], [_given_words(item) for item in items])
        heard = self._instruction_words([_instruction(item) for item in items])
        return [self._orders(*one) for one in zip(items, words, heard, strict=True)]

    def _orders(
        self, item: Pair | Exchange, words: tuple[str, ...] | str | None, heard: str | None
    ) -> list[JudgeRequest] | Unscored:
        if isinstance(words, str):
            return Unscored(self.name, words)
        orders = [(_clips(item), words)]
        if self.task.clips == 2 and self.config.both_orders:
            orders.append((_clips(item)[::-1], None if words is None else words[::-1]))
        told: Mapping[str, str] = {} if isinstance(item, Pair) else item.told
        try:
            return [self._listening.ask(self._case(_instruction(item), clips, said, heard, told)) for clips, said in orders]
        except JudgeError as error:
            return Unscored(self.name, str(error))

    def _complete(self, asked: Sequence[list[Request] | Unscored], on_progress: Progress | None) -> Iterator[Answered]:
        requests = [request for one in asked if isinstance(one, list) for request in one]
        return iter(self.client.complete_all(requests, on_progress))

    def _votes(self, replies: Sequence[Answered]) -> _Votes:
        votes, failed, reasons = [], [], []
        for reply in replies:
            try:
                if not isinstance(reply, Reply):
                    raise reply
                vote, reason = self.task.read(require_whole(reply))
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
        heard: str | None,
        told: Mapping[str, str],
    ) -> Case:
        """Raises JudgeError: something that the task needs is missing."""
        if missing := [key for key in self.task.told if not told.get(key)]:
            raise JudgeError(f"{self.task.name} must be told the {missing[0]}")
        named: list[tuple[Boundary, Clip]] = list(zip(NAMES[self.task.clips], clips, strict=True))
        said: dict[Boundary, str] = {} if words is None else dict(zip(NAMES[self.task.clips], words, strict=True))
        if not self.task.instructed:
            return Case(tuple(named), said, told)
        if instruction.clip is not None:
            if self.config.transcripts == "given" and not heard:
                raise JudgeError("transcripts: given, and the instruction has none")
            if heard is not None:
                said = {"instruction": heard, **said}
            return Case((("instruction", instruction.clip), *named), said, told)
        if not instruction.text:
            raise JudgeError(f"{self.task.name} needs the instruction that the clips answer")
        spoken = {"spoken": instruction.style} if instruction.style else {}
        return Case(tuple(named), said, told, {"words": instruction.text, **spoken})

    def _words(
        self, clips: Sequence[Sequence[Clip]], given: Sequence[tuple[str, ...] | None]
    ) -> list[tuple[str, ...] | str | None]:
        """Transcripts of each item's clips; a reason where they are wanted and not given; None where none are wanted."""
        if self.config.transcripts == "none":
            return [None] * len(clips)
        if self.config.transcripts == "given":
            return ["transcripts: given, and this one has none" if one is None else one for one in given]
        heard = iter(self._hear([clip for item in clips for clip in item]))
        return [tuple(next(heard) for _ in item) for item in clips]

    def _instruction_words(self, instructions: Sequence[Utterance]) -> list[str | None]:
        if self.config.transcripts == "none" or not self.task.instructed:
            return [None] * len(instructions)
        if self.config.transcripts == "given":
            return [one.text for one in instructions]
        clips = [one.clip for one in instructions if one.clip is not None]
        heard = iter(self._hear(clips))
        return [None if one.clip is None else next(heard) for one in instructions]

    def _shown(self, example: Example) -> ShownExample:
        """An example as this task shows it.

        Raises:
            DataError: it has no label for this task, one that the task does not know, or another number of clips.
        """
        label = example.label_for(self.task.name)
        try:
            if len(example.clips) != self.task.clips:
                raise JudgeError(f"has {len(example.clips)} clips, and {self.task.name} is about {self.task.clips}")
            reply = self.task.example_reply(label, example.reason)
            words = self._words([example.clips], [example.words])[0]
            if isinstance(words, str):
                raise JudgeError(words)
            heard = self._instruction_words([example.instruction])[0]
            case = self._case(example.instruction, example.clips, words, heard, example.told)
        except JudgeError as error:
            raise DataError(f"{example.name}: {error}") from error
        return ShownExample(case, reply)


def at_rate(item: Pair | Exchange, sample_rate_hz: int) -> Pair | Exchange:
    """The item with its clips at this rate, so that several orders and judges need not convert them again."""
    if isinstance(item, Exchange):
        return replace(item, answer=item.answer.at(sample_rate_hz))
    asked = item.instruction
    heard = asked if asked.clip is None else replace(asked, clip=asked.clip.at(sample_rate_hz))
    return replace(item, instruction=heard, first=item.first.at(sample_rate_hz), second=item.second.at(sample_rate_hz))


def _clips(item: Pair | Exchange) -> tuple[Clip, ...]:
    return (item.first, item.second) if isinstance(item, Pair) else (item.answer,)


def _given_words(item: Pair | Exchange) -> tuple[str, ...] | None:
    if isinstance(item, Pair):
        return item.words
    return None if item.words is None else (item.words,)


def _instruction(item: Pair | Exchange) -> Utterance:
    return item.instruction if isinstance(item, Pair) else item.question


def _too_few(found: _Votes, asked: int) -> bool:
    """Whether fewer than half of the samples can be read: a vote of the lucky ones would be another judge's."""
    return 2 * len(found.votes) < asked or not found.votes
