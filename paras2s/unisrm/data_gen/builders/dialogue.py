"""T4 from DailyTalk: the next turn of a spoken dialogue against one with wrong words, a wrong voice or tone, or both.

The history is all turns before the target, which is the third or later, so that its speaker has been heard. A share of the
positives is synthesised by the system that speaks the negative, against the shortcut of real against synthetic speech. The
corpus has two speakers: splits share no dialogue, no target sentence and no voice of their own, but both speakers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paras2s.configs.schema.unisrm_data import SplitName, UniSRMDataConfig, UniSRMVoice
from paras2s.data_gen.corpora import dailytalk_dialogues
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen.builders.plans import (
    ORDER,
    Builder,
    PairPlan,
    Recording,
    Shares,
    Source,
    Synthetic,
    shuffled_pair,
    text_key,
)
from paras2s.unisrm.data_gen.builders.scenario import with_words
from paras2s.unisrm.data_gen.builders.writer import Writer
from paras2s.unisrm.data_gen.layouts.entries import Dropped
from paras2s.unisrm.data_gen.shortcuts import RECORDING

CORPUS = "dailytalk"
# Negatives by text, by sound, and by both, in equal shares; those by sound have another voice or another tone.
Kind = Literal["words", "sound", "words and voice"]
KINDS: tuple[Kind, ...] = ("words", "sound", "words and voice")
# Turns before a target, so that its speaker is known.
FIRST_TARGET = 2


@dataclass(frozen=True)
class Dialogue:
    """A dialogue with all its turns in order."""

    name: str
    turns: tuple[Recording, ...]

    @property
    def targets(self) -> list[int]:
        """The turns that may be judged: their speaker has been heard before."""
        spoken = [turn.speaker for turn in self.turns]
        return [position for position in range(FIRST_TARGET, len(spoken)) if spoken[position] in spoken[:position]]


def read_dailytalk(root: Path) -> tuple[list[Dialogue], list[Dropped]]:
    """Return the dialogues by number, and the unusable ones. Raises DataError: metadata.json or all clips are missing."""
    dialogues: list[Dialogue] = []
    dropped: list[Dropped] = []
    for name, turns in dailytalk_dialogues(root).items():
        if isinstance(turns, str):
            dropped.append(Dropped(name, turns))
        else:
            recordings = (Recording(turn.path, turn.text, turn.speaker, turn.emotion) for turn in turns)
            dialogues.append(Dialogue(name, tuple(recordings)))
    return dialogues, dropped


class DialogueBuilder(Builder):
    """Planner of T4."""

    corpus, task, data_set = CORPUS, "T4", "T4"

    def __init__(self, config: UniSRMDataConfig, root: Path) -> None:
        """Read the corpus. Raises DataError: it is not laid out as published. ConfigError: no voice copies a prompt's."""
        super().__init__(config)
        if not any(voice.copies and "en" in voice.languages for voice in config.voices):
            raise ConfigError(
                "voices: none copies a prompt's (cosyvoice without a clip); T4's negatives keep the speaker's voice"
            )
        dialogues, dropped = read_dailytalk(root)
        for row in dropped:
            self.dropped["", row.reason] += 1
        self.shared_speakers = frozenset(turn.speaker for dialogue in dialogues for turn in dialogue.turns)
        shares = Shares(self.sizes)
        self.dialogues: dict[SplitName, list[Dialogue]] = {split: [] for split in ORDER}
        for dialogue in self.shuffled(dialogues, "dialogues"):
            self.dialogues[shares.allot(1)].append(dialogue)

    def groups(self, split: SplitName) -> Iterator[list[PairPlan]]:
        """Yield a random target of each dialogue, then another one of each, as long as there are targets."""
        targets = {
            dialogue.name: self.shuffled(dialogue.targets, "targets", dialogue.name) for dialogue in self.dialogues[split]
        }
        number = 0
        for turn in range(max(map(len, targets.values()), default=0)):
            for dialogue in self.dialogues[split]:
                if turn >= len(targets[dialogue.name]):
                    continue
                position = targets[dialogue.name][turn]
                plan = self._plan(split, dialogue, position, KINDS[number % len(KINDS)])
                number += 1
                if plan is None:
                    self.dropped[split, "no other voice and no other tone"] += 1
                else:
                    yield [plan]

    def _plan(self, split: SplitName, dialogue: Dialogue, position: int, kind: Kind) -> PairPlan | None:
        """Plan a pair of one kind; None if the split has no such negative."""
        target, history = dialogue.turns[position], dialogue.turns[:position]
        dice = self.dice(dialogue.name, position)
        voice = dice.choice([option for option in self.voices(split, "en") if option.copies])
        own = [turn for turn in reversed(history) if turn.speaker == target.speaker]
        # A copy brings the tone of its prompt along.
        same_tone = [turn for turn in own if turn.emotion == target.emotion]
        right = Synthetic(target.text, voice, (same_tone or own)[0])
        copied = dice.random() < self.config.synthetic_positives
        negative, fault = right, "words"
        if kind != "words":
            others = self._other_voices(split, target, history, voice)
            if kind == "sound":
                others += self._other_tones(split, target, voice)
            if not others:
                return None
            # A kind of fault first: there are many more takes of another tone than other voices.
            fault = dice.choice(sorted({fault for _, fault in others}))
            negative = dice.choice([source for source, its in others if its == fault])
        # Of two wrong tones none is the better one.
        positive: Source = right if copied and (same_tone or fault != "tone") else target
        candidates, better = shuffled_pair(positive, negative, dice)
        factors = {
            "fault": f"words and {fault}" if kind == "words and voice" else fault, "dialogue": dialogue.name, "language": "en",
            "positive": RECORDING if isinstance(positive, Recording) else "synthetic",
            "engine_a": candidates[0].engine, "engine_b": candidates[1].engine,
        }  # fmt: skip
        clips = {f"history_{number}": turn for number, turn in enumerate(history, 1)}
        return PairPlan(
            f"{CORPUS}-{dialogue.name}-{position}", "T4", split, text_key(target.text), None, {}, clips,
            candidates, better, factors, None if kind == "sound" else "turn",
        )  # fmt: skip

    def _other_voices(
        self, split: SplitName, target: Recording, history: Sequence[Recording], voice: UniSRMVoice
    ) -> list[tuple[Synthetic, str]]:
        """Plan the target's words in the other speaker's voice, and in every voice of its own that the split has."""
        swapped = [turn for turn in history if turn.speaker != target.speaker][-1:]
        strangers = [source for source in self.voices(split, "en") if not source.copies]
        sources = [
            *(Synthetic(target.text, voice, turn) for turn in swapped),
            *(Synthetic(target.text, source) for source in strangers),
        ]
        return [(source, "voice") for source in sources]

    def _other_tones(self, split: SplitName, target: Recording, voice: UniSRMVoice) -> list[tuple[Synthetic, str]]:
        """Plan the target's words in its speaker's voice, copied from turns with another emotion."""
        return [
            (Synthetic(target.text, voice, turn), "tone") for other in self.dialogues[split] for turn in other.turns
            if turn.speaker == target.speaker and turn.emotion != target.emotion
        ]  # fmt: skip

    def complete(self, plans: Sequence[PairPlan], writer: Writer) -> list[PairPlan | Dropped]:
        """Write wrong turns for pairs whose negative has wrong words."""
        lacking = [plan for plan in plans if plan.writes]
        values = []
        for plan in lacking:
            right = plan.candidates["AB".index(plan.better or "A")]
            turns = [{"speaker": turn.speaker.rpartition(":")[2], "words": turn.text} for turn in plan.clips.values()]
            values.append({"history": turns, "turn": right.text})
        written = dict(zip((plan.id for plan in lacking), writer.turns(values), strict=True))
        return [with_words(plan, written[plan.id]) if plan.writes else plan for plan in plans]
