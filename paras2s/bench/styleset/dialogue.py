"""Dialogues with a model that speaks: style instructions in two turns, and a role-play of a model with itself (StyleSet, A).

Several dialogues are led side by side, a turn of all of them at once. A turn that fails or is silent ends its dialogue, with
the reason; it is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from paras2s.audio.clip import Clip
from paras2s.bench.styleset.data import FollowingItem, RoleContext, Task
from paras2s.bench.systems import Response
from paras2s.data_gen.tts.base import SILENT_PEAK
from paras2s.policy.types import Turn
from paras2s.utils.cache import key_of

# Of a joined dialogue (StyleSet, A.2.2). Models of one voice would otherwise sound like a monologue.
SILENCE_S, LONGEST_S = 2.0, 60.0
# What a minute holds at least in the paper; less is no dialogue.
FEWEST_TURNS = 3
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Reply(Response):
    """A turn that a model said. `left_out` turns of the dialogue it was not shown; `cut`: it was at its longest length."""

    left_out: int = 0
    cut: bool = False


class DialogueModel(Protocol):
    """Says the next turn of dialogues. `at_once` is how many are led side by side."""

    @property
    def at_once(self) -> int:
        """As many as share a batch, or an endpoint's slots."""

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[Reply]:
        """One turn each, from its own dialogue and seed alone. A user's turn is sound without words.

        Raises:
            BudgetError: the budget ended; a later run goes on from there.
        """


@dataclass(frozen=True)
class Said:
    """A turn of a dialogue as it was said, by instance 1 or 2."""

    speaker: int
    text: str
    clip: Clip
    left_out: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Dialogue:
    """What the model said, in order, and why it ended before it was over (None: it did not)."""

    said: tuple[Said, ...]
    ended: str | None


class _Course:
    """A dialogue under way: each instance's own history, in which it is the assistant and what it hears the user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.histories: tuple[list[Turn], list[Turn]] = ([], [])
        self.said: list[Said] = []
        self.ended: str | None = None

    def hear(self, side: int, clip: Clip) -> None:
        self.histories[side].append(Turn("user", "", clip))

    def say(self, side: int, reply: Reply) -> None:
        number = len(self.said) + 1
        if reply.clip is None:
            self.ended = f"turn {number}: {reply.failed or 'no answer'}"
        elif float(np.abs(reply.clip.samples).max(initial=0.0)) <= SILENT_PEAK:
            self.ended = f"turn {number}: {reply.clip.duration_s:.1f} s of silence"
        else:
            self.said.append(Said(side + 1, reply.text, reply.clip, reply.left_out, reply.cut))
            self.histories[side].append(Turn("assistant", reply.text, reply.clip))


def follow(
    model: DialogueModel, items: Sequence[FollowingItem], spoken: Mapping[str, Clip], seed: int, on_progress: Progress
) -> list[Dialogue]:
    """Each sentence asked for alone, then in its style; `spoken` has a clip of every request."""
    courses = [_Course(item.id) for item in items]
    for number in range(2):
        for course, item in zip(courses, items, strict=True):
            course.hear(0, spoken[item.requests()[number]])
        _take_turn(model, courses, 0, number, seed)
        on_progress(number + 1, 2)
    return [Dialogue(tuple(course.said), course.ended) for course in courses]


def role_play(
    model: DialogueModel,
    contexts: Sequence[RoleContext],
    spoken: Mapping[str, Clip],
    turns: int,
    seed: int,
    on_progress: Progress,
) -> list[Dialogue]:
    """One model as both roles: each instance is told its own, and then hears what the other one says.

    Instance 2 hears the first line at the end of its prompt, in the prompt's voice, as in the paper.
    """
    courses = [_Course(context.id) for context in contexts]
    for number in range(turns):
        side = number % 2
        for course, context in zip(courses, contexts, strict=True):
            if course.ended is None:
                course.hear(side, spoken[context.prompts()[side]] if number < 2 else course.said[-1].clip)
        _take_turn(model, courses, side, number, seed)
        on_progress(number + 1, turns)
    return [Dialogue(tuple(course.said), course.ended) for course in courses]


def _take_turn(model: DialogueModel, courses: Sequence[_Course], side: int, number: int, seed: int) -> None:
    live = [course for course in courses if course.ended is None]
    if not live:
        return
    seeds = [turn_seed(seed, course.name, number) for course in live]
    replies = model.reply([tuple(course.histories[side]) for course in live], seeds)
    for course, reply in zip(live, replies, strict=True):
        course.say(side, reply)


def turn_seed(seed: int, name: str, number: int) -> int:
    """Of one turn: it depends on the run's seed, the item and the turn, and not on what else is asked."""
    return int(key_of([seed, name, number])[:8], 16)


# What is judged.


@dataclass(frozen=True)
class Joined:
    """Turns as one clip, and where each is in it: (start_s, stop_s), or None where it was cropped away."""

    clip: Clip
    places: tuple[tuple[float, float] | None, ...]


def join(clips: Sequence[Clip], silence_s: float = SILENCE_S, longest_s: float = LONGEST_S) -> Joined:
    """Clips one after the other, silence between, cropped; at the highest rate that any of them has."""
    rate_hz = max(clip.sample_rate_hz for clip in clips)
    quiet = np.zeros(round(silence_s * rate_hz), dtype=np.float32)
    pieces: list[np.ndarray] = []
    places: list[tuple[float, float] | None] = []
    at, last = 0, round(longest_s * rate_hz)
    for clip in clips:
        if pieces:
            pieces.append(quiet)
            at += len(quiet)
        pieces.append(clip.at(rate_hz).samples)
        stop = at + len(pieces[-1])
        places.append((at / rate_hz, min(stop, last) / rate_hz) if at < last else None)
        at = stop
    return Joined(Clip(np.concatenate(pieces)[:last], rate_hz), tuple(places))


def crop(clip: Clip, longest_s: float = LONGEST_S) -> Clip:
    """The first `longest_s` of a clip."""
    return Clip(clip.samples[: round(longest_s * clip.sample_rate_hz)], clip.sample_rate_hz)


class SaidRow(BaseModel):
    """A turn as it is kept beside the audio; `start_s` and `stop_s` are None where the crop left nothing of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    speaker: int
    text: str
    duration_s: float
    start_s: float | None
    stop_s: float | None
    left_out: int
    cut: bool


class Output(BaseModel):
    """What is to be judged of one item, or why there is nothing. `key` is of all that it was made from.

    `ended` says why a dialogue was over early, which may still leave enough to judge. `said` is empty for others' clips.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    item: str
    system: str
    task: Task
    key: str
    unscored: str | None
    ended: str | None
    duration_s: float | None
    said: tuple[SaidRow, ...]

    @model_validator(mode="after")
    def _check(self) -> Output:
        if (self.unscored is None) == (self.duration_s is None):
            raise ValueError("give either the duration of what is judged, or the reason in 'unscored', and not both")
        return self

    @property
    def heard(self) -> int:
        """How many turns the judged clip holds."""
        return sum(one.start_s is not None for one in self.said)


def output_of(item: FollowingItem | RoleContext, system: str, key: str, dialogue: Dialogue) -> tuple[Output, Clip | None]:
    """What a judge hears of a dialogue: the last answer to a style instruction, a minute of a role-play."""
    said = dialogue.said
    clip: Clip | None = None
    places: tuple[tuple[float, float] | None, ...] = (None,) * len(said)
    if isinstance(item, RoleContext):
        enough = len(said) >= FEWEST_TURNS
        why = f"{len(said)} turns are no dialogue, at least {FEWEST_TURNS} are"
        if enough:
            joined = join([one.clip for one in said])
            clip, places = joined.clip, joined.places
    else:
        enough = len(said) == 2
        why = f"{len(said)} answers of 2"
        if enough:
            clip = said[-1].clip
            places = (None, (0.0, clip.duration_s))
    rows = tuple(
        SaidRow(
            speaker=one.speaker,
            text=one.text,
            duration_s=one.clip.duration_s,
            start_s=place[0] if place else None,
            stop_s=place[1] if place else None,
            left_out=one.left_out,
            cut=one.cut,
        )
        for one, place in zip(said, places, strict=True)
    )
    reason = None if enough else f"{why} ({dialogue.ended})" if dialogue.ended else why
    output = Output(
        item=item.id,
        system=system,
        task="role_play" if isinstance(item, RoleContext) else "following",
        key=key,
        unscored=reason,
        ended=dialogue.ended,
        duration_s=clip.duration_s if clip else None,
        said=rows,
    )
    return output, clip
