"""The records that policies take and give, in one form for dual-stream, interleaved and framed models."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.types import Block, Query

Result = TypeVar("Result")


@dataclass(frozen=True)
class Turn:
    """One message of a dialogue.

    A user's clip may come with its transcript in `text`; an assistant's turn may hold its words, its audio, or both.
    """

    role: Literal["system", "user", "assistant"]
    text: str = ""
    clip: Clip | None = None


class ClipStore(Protocol):
    """Recorded clips by name, as a dataset holds them."""

    def clip(self, name: str) -> Clip:
        """Return one clip, decoded."""

    def cached_features(self, name: str) -> bytes | None:
        """Return the features of the embedded front-end stored beside a clip (`ClipFeatures.to_bytes`), or None."""


def turns_of(clips: ClipStore, query: Query) -> list[Turn]:
    """Return the dialogue of a query: its history, and its own clip and transcript as the last turn."""
    past = [Turn(turn.speaker, turn.text, None if turn.clip is None else clips.clip(turn.clip)) for turn in query.history]
    return [*past, Turn("user", query.transcript, clips.clip(query.clip))]


class Speaker(Protocol):
    """Makes the sound of answers, without the network that sampled them."""

    def speak(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        """Decode answers from their codes [T, K], in order; empty where T is 0. What is drawn is drawn from the seeds."""


@dataclass(frozen=True)
class Answer:
    """One spoken answer: its text and its sound, which is empty (0 samples) where the policy said nothing."""

    text: str
    clip: Clip

    def _repr_html_(self) -> str:
        """Return its words and a player, which a notebook shows."""
        sound = self.clip._repr_html_() if len(self.clip.samples) else "(no sound)"
        return f"<p>{html.escape(self.text)}</p>{sound}"


@dataclass(frozen=True)
class SlotSpec:
    """One token slot: ids [start, stop) can be sampled in it."""

    name: str
    kind: Literal["text", "audio", "both"]
    start: int
    stop: int


def slot_names(codebooks: int) -> tuple[str, ...]:
    """S = 1 + K names."""
    return ("text", *(f"audio{number}" for number in range(codebooks)))


# A pattern that matches no name: a policy without an adaptor that could learn.
NO_PARAMETERS = r"(?!)"


@dataclass(frozen=True)
class PolicySpec:
    """The fixed properties of a policy (docs/policies.md, "The spec").

    `lora_targets` and `adaptor_parameters` are patterns of
    names: modules that LoRA goes on, and parameters of the audio input. `sharded` is a pattern of
    the modules that are sharded over devices one by one. `context_steps`: prompt and answer together, None: no limit.
    `code_format` says whose codes a rollout holds, so that a reward may read them without their sound.
    """

    slots: tuple[SlotSpec, ...]
    step_rate_hz: float
    input_rate_hz: int
    output_rate_hz: int
    lora_targets: str
    adaptor_parameters: str
    sharded: str
    context_steps: int | None
    code_format: str


@dataclass(frozen=True)
class Sampling:
    """Sampling options.

    `top_k` of a stream (0: all) is for trying a released model as its makers do; training samples without it, since
    the truncated policy is not the policy that is trained. `speak` False answers in text alone, where a policy can.
    """

    text_temperature: float = 1.0
    audio_temperature: float = 1.0
    max_steps: int = 52
    text_top_k: int = 0
    audio_top_k: int = 0
    speak: bool = True

    @property
    def truncated(self) -> bool:
        """Whether tokens with a probability above 0 may be cut off."""
        return bool(self.text_top_k or self.audio_top_k)


@dataclass(frozen=True)
class Prompt:
    """A question as a policy reads it. Opaque to everyone else; arrays only, so it travels between processes.

    audio_ids [L, K], text_ids [L], features [L, F] or None, which count where continuous [L] is true and are 0 elsewhere;
    `words_dim` is how many of the last features describe the words (so that warm-up can hide them); `code_offsets` [K] turn
    audio ids into codec codes; `hidden_ids` stand for a word and a code that are hidden, () where a policy hides none.
    """

    audio_ids: np.ndarray
    text_ids: np.ndarray
    features: np.ndarray | None
    continuous: np.ndarray
    words_dim: int = 0
    code_offsets: tuple[int, ...] = ()
    hidden_ids: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """L."""
        return len(self.text_ids)


def with_words(prompt: Prompt, at: int, words: Sequence[int], beside: Sequence[int] = ()) -> Prompt:
    """Return a prompt with text ids put in before position `at`, with the audio ids `beside` [K] beside each."""
    features = prompt.features
    return replace(
        prompt,
        text_ids=np.insert(prompt.text_ids, at, list(words)),
        audio_ids=np.insert(prompt.audio_ids, at, [list(beside)] * len(words), axis=0) if words else prompt.audio_ids,
        features=None if features is None else np.insert(features, at, np.zeros((len(words), features.shape[1])), axis=0),
        continuous=np.insert(prompt.continuous, at, [False] * len(words)),
    )


def style_sentence(words: str) -> str:
    """Return the sentence that tells a model how the question behind it was said; `words`: "in a sad voice"."""
    return f"The question is said {words}.\n"


def _unchanged(prompt: Prompt) -> Prompt:
    return prompt


@dataclass(frozen=True)
class Alteration:
    """One setting of a policy, read otherwise than its checkpoint says: trained weights fit their own settings best.

    Inside `applied()` the policy has the other setting; `prompt` is what becomes of prompts that were encoded before, and
    `lays_out_answers` says that demonstrations are to be encoded again.
    """

    name: str
    applied: Callable[[], AbstractContextManager[None]] = nullcontext
    prompt: Callable[[Prompt], Prompt] = _unchanged
    lays_out_answers: bool = False


@dataclass(frozen=True)
class PromptsRead:
    """While answers are sampled: prompts have just been read (prefill), which took `seconds`."""

    seconds: float


@dataclass(frozen=True)
class AnswersSoFar:
    """While answers are sampled: all N of them as far as they have come, one a row of `blocks`, and which have ended [N]."""

    blocks: tuple[Block, ...]
    ended: np.ndarray


SamplingEvent = PromptsRead | AnswersSoFar


@dataclass(frozen=True)
class SampleRequest:
    """A request for G answers to each of B prompts: each answer is drawn from its own seed of `seeds` [B, G].

    Raises:
        PolicyError: no prompt, seeds that are not [B, G], or a temperature that is not positive.
    """

    prompts: Sequence[Prompt]
    seeds: Sequence[Sequence[int]]
    sampling: Sampling

    def __post_init__(self) -> None:
        if not self.prompts or len(self.seeds) != len(self.prompts) or {len(row) for row in self.seeds} != {self.group_size}:
            rows = [len(row) for row in self.seeds]
            raise PolicyError(f"there must be a prompt, and as many seeds for each: {len(self.prompts)} prompts have {rows}")
        if min(self.sampling.text_temperature, self.sampling.audio_temperature) <= 0:
            raise PolicyError("temperatures must be above 0; for a nearly greedy answer use 0.01")

    @property
    def group_size(self) -> int:
        """G, at least 1."""
        return max(1, len(self.seeds[0]))

    def parts(self, rows: int) -> Iterator[SampleRequest]:
        """Yield the request in parts of whole groups, of at most `rows` answers or of one group."""
        count = max(1, rows // self.group_size)
        for start in range(0, len(self.prompts), count):
            part = slice(start, start + count)
            yield replace(self, prompts=self.prompts[part], seeds=self.seeds[part])


@dataclass(frozen=True)
class Generation:
    """The result of `Policy.generate` for one prompt: G answers in blocks of token slots."""

    blocks: tuple[Block, ...]
    finish_reason: tuple[str, ...]
    seeds: tuple[int, ...]


def result_of(events: Generator[SamplingEvent, None, Result]) -> Result:
    """Return the result of sampling, and pass over what it reports on the way."""
    while True:
        try:
            next(events)
        except StopIteration as done:
            result: Result = done.value
            return result


def until_last_of(answers: Sequence[Block], streams: Collection[int]) -> tuple[Block, ...]:
    """Return the blocks of answers up to the last token of these streams; what comes after it changes none of them.

    Blocks behind it keep their first step, so that a pass still reads every layer (see `Policy`).
    """
    own = [np.any(block.sampled & np.isin(block.streams, list(streams)), axis=(0, 2)) for block in answers]
    last = max((number for number, steps in enumerate(own) if steps.any()), default=0)
    # One step at least: the first.
    ends = [1 + int(np.flatnonzero(steps).max(initial=0)) for steps in own[last:]]
    return (*answers[:last], *(block.part(steps=slice(end)) for block, end in zip(answers[last:], ends, strict=True)))
