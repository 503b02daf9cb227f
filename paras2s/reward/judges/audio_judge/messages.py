"""The messages of an audio judge: examples, test clips and question, by one of five strategies (AudioJudge, Figs. 7-16).

The segments of every recording are recorded, so that a person can hear and read exactly what the judge was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paras2s.audio.clip import Clip, encode_clip
from paras2s.clients.chat import Audio, Message, Request
from paras2s.configs.schema.audio_judge import AudioInputConfig, AudioJudgeConfig, Strategy
from paras2s.errors import JudgeError
from paras2s.reward.judges.audio_judge.concatenation import Boundary, Joined, Mark, Segment, Signals, join
from paras2s.reward.judges.audio_judge.tasks import AudioTask
from paras2s.reward.judges.prompts import Prompt, as_data

BYTES_PER_MB = 1_000_000
# base64 writes 3 bytes as 4 characters, and it is these that an endpoint counts.
BASE64 = 4 / 3

INTRODUCED: dict[Boundary, str] = {
    "instruction": "This is the instruction:",
    "first": "This is the first recording:",
    "second": "This is the second recording:",
    "clip": "This is the recording:",
}
JOINED = "These are the recordings, one after the other in one file:"
SHOWN = "These are examples to learn from, one after the other in one file:"
VERDICTS = "What is right for each of them:"
UNDERSTOOD = "I have heard the examples and how each was decided. I shall judge the next recordings in the same way."
LAYOUT_VERSION = "3"


@dataclass(frozen=True)
class Case:
    """The clips of one item, named and in order, and the text beside them.

    `words` are transcripts of clips; `task_inputs` fill the prompt; `written` is an instruction that has no sound; `history` is
    what was said before the instruction.
    """

    clips: tuple[tuple[Boundary, Clip], ...]
    words: Mapping[Boundary, str]
    task_inputs: Mapping[str, str]
    written: Mapping[str, str] | None = None
    history: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class ShownExample:
    """An example with the assistant's reply that gives its right verdict."""

    case: Case
    reply: str


@dataclass(frozen=True)
class JudgeRequest:
    """The messages of one call, and the segments of every recording in them, in order."""

    messages: tuple[Message, ...]
    marks: tuple[tuple[Mark, ...], ...]


def unjoined(request: Request) -> JudgeRequest:
    """Return a call whose recordings are one clip each."""
    recordings = [part for message in request.messages for part in message.parts if isinstance(part, Audio)]
    return JudgeRequest(request.messages, tuple((Mark("clip", 0.0, recording.duration_s),) for recording in recordings))


class MessageBuilder:
    """Builds messages by one strategy. The opening before the test clips is the same in every call and is built once.

    Raises:
        JudgeError: the examples alone are larger or longer than the config lets be sent.
    """

    def __init__(
        self, config: AudioJudgeConfig, task: AudioTask, prompt: Prompt, signals: Signals, examples: Sequence[ShownExample]
    ) -> None:
        self.config, self.task, self.prompt, self.signals = config, task, prompt, signals
        self.strategy = config.strategy if examples else _without_examples(config.strategy)
        sent = SentAudio(config.audio)
        opening = [Message("system", (prompt.system,))]
        if self.strategy in ("examples", "examples_and_test"):
            opening += self._shown_together(examples, sent)
        else:
            opening += [message for example in examples for message in self._shown_in_turn(example, sent)]
        self._opening, self._opening_sent = tuple(opening), sent

    def build(self, case: Case) -> JudgeRequest:
        """Return the messages about one case. Raises JudgeError: a recording is too large, or all are too long."""
        sent = SentAudio(self.config.audio, self._opening_sent)
        joined = self.strategy in ("test", "examples_and_test")
        announced: Boundary | None = "test" if self.strategy == "examples_and_test" else None
        test = Message("user", tuple(self._user(case, joined, sent, announced)))
        return JudgeRequest((*self._opening, test), tuple(sent.marks))

    def _shown_in_turn(self, example: ShownExample, sent: SentAudio) -> list[Message]:
        question = self._user(example.case, self.strategy == "pair_example", sent, None)
        return [Message("user", tuple(question)), Message("assistant", (example.reply,))]

    def _shown_together(self, examples: Sequence[ShownExample], sent: SentAudio) -> list[Message]:
        segments: list[Segment] = []
        for number, example in enumerate(examples, 1):
            segments += [Segment("example", number=number), *_segments(example.case)]
        verdicts = "\n".join(f"Example {number}: {example.reply}" for number, example in enumerate(examples, 1))
        parts: list[str | Audio] = [SHOWN, sent.joined(self._join(segments)), f"{VERDICTS}\n{verdicts}"]
        for number, example in enumerate(examples, 1):
            parts += _written(example.case, f"example_{number}_")
            if example.case.task_inputs:
                parts.append(
                    f"What example {number} was to be:\n{as_data(f'example_{number}', dict(example.case.task_inputs))}"
                )
        return [Message("user", tuple(parts)), Message("assistant", (UNDERSTOOD,))]

    def _user(self, case: Case, joined: bool, sent: SentAudio, announced: Boundary | None) -> list[str | Audio]:
        parts: list[str | Audio] = []
        if joined:
            opening = [Segment(announced)] if announced else []
            recording = sent.joined(self._join([*opening, *_segments(case)]))
            parts += [JOINED if self.task.clips == 2 else INTRODUCED["clip"], recording]
        else:
            for name, clip in case.clips:
                parts += [INTRODUCED[name], sent.alone(name, clip)]
        parts += _written(case, "")
        values: dict[str, Any] = dict(case.task_inputs)
        return [*parts, *self.prompt.messages(values, {})[1].parts]

    def _join(self, segments: Sequence[Segment]) -> Joined:
        return join(segments, self.signals, self.config.silence_s, self.config.audio.sample_rate_hz)


class SentAudio:
    """Encodes the recordings of one call within the config's limits; `before` are those of the opening."""

    def __init__(self, limits: AudioInputConfig, before: SentAudio | None = None) -> None:
        self.limits = limits
        self.marks: list[tuple[Mark, ...]] = list(before.marks) if before else []
        self.audio_s: float = before.audio_s if before else 0.0
        self.sent_mb: float = before.sent_mb if before else 0.0

    def alone(self, name: str, clip: Clip) -> Audio:
        """Encode one clip. Raises JudgeError: it is larger, or all together are longer, than the config lets be sent."""
        at = clip.at(self.limits.sample_rate_hz)
        return self.joined(Joined(at, (Mark(name, 0.0, at.duration_s),)))

    def joined(self, recording: Joined) -> Audio:
        """Encode a recording of joined clips, by the rules of `alone`."""
        limits = self.limits
        data = encode_clip(recording.clip, limits.format.upper())
        self.audio_s += recording.clip.duration_s
        sent_mb = len(data) * BASE64 / BYTES_PER_MB
        self.sent_mb += sent_mb
        if limits.max_file_mb is not None and sent_mb > limits.max_file_mb:
            raise JudgeError(
                f"a recording of {recording.clip.duration_s:.0f} s is {sent_mb:.1f} MB as sent, above audio.max_file_mb "
                f"({limits.max_file_mb:g}); join fewer clips, or choose another audio.format"
            )
        if limits.max_request_mb is not None and self.sent_mb > limits.max_request_mb:
            raise JudgeError(
                f"the call's recordings are {self.sent_mb:.1f} MB as sent, above audio.max_request_mb "
                f"({limits.max_request_mb:g}); show fewer examples, or choose another audio.format"
            )
        if limits.max_audio_s is not None and self.audio_s > limits.max_audio_s:
            raise JudgeError(
                f"the call's recordings are longer than audio.max_audio_s ({limits.max_audio_s:g} s); show fewer examples"
            )
        self.marks.append(recording.marks)
        return Audio(data, recording.clip.duration_s, limits.format)


def _without_examples(strategy: Strategy) -> Strategy:
    """Return the strategy without examples: it joins the test's clips or nothing (Table 1's footnote)."""
    return "test" if strategy in ("test", "examples_and_test") else "none"


def _segments(case: Case) -> list[Segment]:
    return [Segment(name, clip) for name, clip in case.clips]


def _written(case: Case, prefix: str) -> list[str | Audio]:
    """Return the text beside the sound, as data."""
    parts: list[str | Audio] = []
    if case.history:
        parts.append(f"The turns before the instruction:\n{as_data(f'{prefix}history', [*map(dict, case.history)])}")
    if case.written is not None:
        parts.append(f"The instruction, in writing:\n{as_data(f'{prefix}instruction', dict(case.written))}")
    if case.words:
        transcripts = {str(name): text for name, text in case.words.items()}
        parts.append(f"What is said in the recordings:\n{as_data(f'{prefix}transcripts', transcripts)}")
    return parts
