"""Dialogues with a speaking model: style instructions in two turns, and a role-play of a model with itself (StyleSet, A).

Several dialogues are led side by side, a turn of all of them at once. A turn that fails or is silent ends its dialogue, with
the reason; it is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.audio.clip import Clip
from paras2s.bench.styleset.data import FollowingItem, RoleContext, Task
from paras2s.bench.systems import Response
from paras2s.data_gen.tts.base import SILENT_PEAK
from paras2s.policy.types import Turn
from paras2s.utils.cache import key_of

# Of a joined dialogue (StyleSet, A.2.2): without silence, models of one voice would sound like a monologue.
SILENCE_S, LONGEST_S = 2.0, 60.0
# A minute in the paper holds at least this many turns; fewer are no dialogue.
FEWEST_TURNS = 3
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ModelTurn(Response):
    """A model's turn. `left_out` turns of the dialogue were not shown to it; `cut`: the turn is at its longest length."""

    left_out: int = 0
    cut: bool = False


class DialogueModel(Protocol):
    """Gives the next turn of dialogues. `at_once` is how many are led side by side."""

    @property
    def at_once(self) -> int:
        """The size of a batch, or the number of an endpoint's slots."""

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[ModelTurn]:
        """Return one turn each, from its own dialogue and seed alone; a user's turn is sound. Raises BudgetError."""


@dataclass(frozen=True)
class DialogueTurn:
    """A turn of a dialogue, spoken by instance 1 or 2."""

    speaker: int
    text: str
    clip: Clip
    left_out: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Dialogue:
    """The model's turns, in order, and why the dialogue ended early (None: it did not)."""

    turns: tuple[DialogueTurn, ...]
    ended: str | None


class _OpenDialogue:
    """A dialogue in progress: each instance's own history, in which it is the assistant and the other one the user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.histories: tuple[list[Turn], list[Turn]] = ([], [])
        self.turns: list[DialogueTurn] = []
        self.ended: str | None = None

    def add_user_turn(self, side: int, clip: Clip) -> None:
        self.histories[side].append(Turn("user", "", clip))

    def add_reply(self, side: int, reply: ModelTurn) -> None:
        number = len(self.turns) + 1
        if reply.clip is None:
            self.ended = f"turn {number}: {reply.failed or 'no answer'}"
        elif float(np.abs(reply.clip.samples).max(initial=0.0)) <= SILENT_PEAK:
            self.ended = f"turn {number}: {reply.clip.duration_s:.1f} s of silence"
        else:
            self.turns.append(DialogueTurn(side + 1, reply.text, reply.clip, reply.left_out, reply.cut))
            self.histories[side].append(Turn("assistant", reply.text, reply.clip))


def follow(
    model: DialogueModel, items: Sequence[FollowingItem], spoken: Mapping[str, Clip], seed: int, on_progress: Progress
) -> list[Dialogue]:
    """Request each sentence alone, then in its style; `spoken` has a clip of every request."""
    dialogues = [_OpenDialogue(item.id) for item in items]
    for number in range(2):
        for dialogue, item in zip(dialogues, items, strict=True):
            dialogue.add_user_turn(0, spoken[item.requests()[number]])
        _take_turn(model, dialogues, 0, number, seed)
        on_progress(number + 1, 2)
    return [Dialogue(tuple(dialogue.turns), dialogue.ended) for dialogue in dialogues]


def role_play(
    model: DialogueModel,
    contexts: Sequence[RoleContext],
    spoken: Mapping[str, Clip],
    turns: int,
    seed: int,
    on_progress: Progress,
) -> list[Dialogue]:
    """Play one model in both roles, each instance with its own prompt; instance 2's ends with the first line (as published)."""
    dialogues = [_OpenDialogue(context.id) for context in contexts]
    for number in range(turns):
        side = number % 2
        for dialogue, context in zip(dialogues, contexts, strict=True):
            if dialogue.ended is None:
                dialogue.add_user_turn(side, spoken[context.prompts()[side]] if number < 2 else dialogue.turns[-1].clip)
        _take_turn(model, dialogues, side, number, seed)
        on_progress(number + 1, turns)
    return [Dialogue(tuple(dialogue.turns), dialogue.ended) for dialogue in dialogues]


def _take_turn(model: DialogueModel, dialogues: Sequence[_OpenDialogue], side: int, number: int, seed: int) -> None:
    live = [dialogue for dialogue in dialogues if dialogue.ended is None]
    if not live:
        return
    seeds = [turn_seed(seed, dialogue.name, number) for dialogue in live]
    replies = model.reply([tuple(dialogue.histories[side]) for dialogue in live], seeds)
    for dialogue, reply in zip(live, replies, strict=True):
        dialogue.add_reply(side, reply)


def turn_seed(seed: int, name: str, number: int) -> int:
    """Return the seed of one turn: it depends on the run's seed, the item and the turn, and on nothing else."""
    return int(key_of([seed, name, number])[:8], 16)


@dataclass(frozen=True)
class Joined:
    """Turns as one clip, and where each is in it: (start_s, stop_s), or None if it was cropped away."""

    clip: Clip
    places: tuple[tuple[float, float] | None, ...]


def join(clips: Sequence[Clip], silence_s: float = SILENCE_S, longest_s: float = LONGEST_S) -> Joined:
    """Return the clips one after the other, silence between, cropped; at the highest rate of any."""
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


def crop(clip: Clip) -> Clip:
    """Return the first minute of a clip."""
    return Clip(clip.samples[: round(LONGEST_S * clip.sample_rate_hz)], clip.sample_rate_hz)


class TurnRow(BaseModel):
    """A turn as it is written beside the audio; `start_s` and `stop_s` are None if the crop left nothing of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    speaker: int
    text: str
    duration_s: float
    start_s: float | None
    stop_s: float | None
    left_out: int
    cut: bool


class Output(BaseModel):
    """The output of one item, or why there is nothing to judge. `key` identifies all that it was made from.

    `ended` says why a dialogue was over early, which may still leave enough to judge. `turns` is empty for others' clips; the
    file calls it `said`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    item: str
    system: str
    task: Task
    key: str
    unscored: str | None
    ended: str | None
    duration_s: float | None
    turns: tuple[TurnRow, ...] = Field(alias="said")

    @model_validator(mode="after")
    def _check(self) -> Output:
        if (self.unscored is None) == (self.duration_s is None):
            raise ValueError("give either the duration of what is judged, or the reason in 'unscored', and not both")
        return self

    @property
    def turns_in_clip(self) -> int:
        """The number of turns that the judged clip holds."""
        return sum(turn.start_s is not None for turn in self.turns)


def output_of(item: FollowingItem | RoleContext, system: str, key: str, dialogue: Dialogue) -> tuple[Output, Clip | None]:
    """Return the output of a dialogue and its clip: the last answer to a style instruction, a minute of a role-play."""
    turns = dialogue.turns
    clip: Clip | None = None
    places: tuple[tuple[float, float] | None, ...] = (None,) * len(turns)
    if isinstance(item, RoleContext):
        enough = len(turns) >= FEWEST_TURNS
        why = f"{len(turns)} turns are no dialogue, at least {FEWEST_TURNS} are"
        if enough:
            joined = join([turn.clip for turn in turns])
            clip, places = joined.clip, joined.places
    else:
        enough = len(turns) == 2
        why = f"{len(turns)} answers of 2"
        if enough:
            clip = turns[-1].clip
            places = (None, (0.0, clip.duration_s))
    rows = tuple(
        TurnRow(
            speaker=turn.speaker,
            text=turn.text,
            duration_s=turn.clip.duration_s,
            start_s=span[0] if span else None,
            stop_s=span[1] if span else None,
            left_out=turn.left_out,
            cut=turn.cut,
        )
        for turn, span in zip(turns, places, strict=True)
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
        turns=rows,
    )
    return output, clip
