"""Answers to a suite's items: read from a folder in the makers' layout or ours, or requested once from a system and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from paras2s.audio.clip import read_clip
from paras2s.bench.ranking.answers import AnswerSource, SystemAnswer
from paras2s.bench.styleset.dialogue import DialogueModel
from paras2s.bench.styleset.systems import LONGEST_ANSWER_S, open_speaker
from paras2s.bench.suites.base import Item, Listed, Suite
from paras2s.bench.systems import SUFFIXES, Response
from paras2s.errors import AudioError, ConfigError, DataError, one_line
from paras2s.policy.types import Turn
from paras2s.reward.judges.base import MAX_CLIP_S
from paras2s.utils.io import path_inside

NO_QUESTION = "the download lacks the item's sound"
EARLIER = "an earlier turn has no answer"


@dataclass(frozen=True)
class SuiteAnswers:
    """The answers of one system. `estimates`: nothing is requested, and a missing answer is silence of the greatest length."""

    suite: Suite
    source: AnswerSource
    console: Console
    estimates: bool = False

    @cached_property
    def _listed(self) -> Mapping[str, Listed]:
        try:
            return self.suite.listed(Path(self.source.spec))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{self.source.spec}: a list of answers is not of the makers' form ({one_line(error)})") from error

    def require_any(self, items: Sequence[Item]) -> None:
        """Refuse a folder without an answer, and a system that answers too late. Raises ConfigError: names a file."""
        if self.suite.timed and not self.source.finished:
            raise ConfigError(
                f"{self.source.spec}: {self.suite.title} times answers against the question while it runs; give a folder of "
                "recordings, --answers FOLDER"
            )
        if self.source.finished and items and not any(self._files(item, 0) or self._text(item, 0) for item in items):
            name = self.suite.answer_names(items[0], 0)[0]
            raise ConfigError(f"{self.source.spec}: holds no answer to any item; expected files such as {name}.wav")

    def of(self, items: Sequence[Item], first: int) -> dict[str, list[SystemAnswer]]:
        """Return an answer to every turn of every item; `first` is the place of the first item among all.

        Raises:
            ConfigError: it is no system, or existing answers are of another one. BudgetError: the system's budget ended.
        """
        if self.source.finished:
            return {item.id: [self._read(item, turn) for turn in range(len(item.turns))] for item in items}
        single = {item.id: clip for item in items if len(item.turns) == 1 and (clip := item.turns[0].clip)}
        answers = self._at_most(single) if self.estimates else self.source.answer(single, self.console, True, first)
        several = [item for item in items if len(item.turns) > 1]
        if self.estimates:
            answers |= self._at_most(_clips(several))
        elif several:
            answers |= self._lead(several)
        missing = SystemAnswer(Response(failed=NO_QUESTION))
        return {item.id: [answers.get(item.turn_name(turn), missing) for turn in range(len(item.turns))] for item in items}

    def _at_most(self, clips: Mapping[str, Path]) -> dict[str, SystemAnswer]:
        return self.source.at_most(clips)[0]

    # Folders.

    def _files(self, item: Item, turn: int) -> list[Path]:
        folder, names = Path(self.source.spec), dict.fromkeys(self.suite.answer_names(item, turn))
        paths = [path_inside(folder, listed.path) for name in names if (listed := self._listed.get(name)) and listed.path]
        if existing := [path for path in paths if path is not None and path.is_file()]:
            return existing[:1]
        return [path for name in names for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]

    def _text(self, item: Item, turn: int) -> str:
        folder, names = Path(self.source.spec), self.suite.answer_names(item, turn)
        written = next((path.read_text(encoding="utf-8") for name in names if (path := folder / f"{name}.txt").is_file()), "")
        return written.strip() or next((self._listed[name].text for name in names if name in self._listed), "")

    def _read(self, item: Item, turn: int) -> SystemAnswer:
        files, text = self._files(item, turn), self._text(item, turn)
        if not files:
            name = f"{self.suite.answer_names(item, turn)[0]}.wav"
            why = f"a transcript without audio: {name} is missing" if text else f"no answer: {name} is missing"
            return SystemAnswer(Response(text, failed=why))
        if len(files) > 1:
            return SystemAnswer(Response(failed=f"{len(files)} answers, {' and '.join(path.name for path in files)}: keep one"))
        try:
            return SystemAnswer(Response(text, read_clip(files[0], max_duration_s=MAX_CLIP_S)), files[0])
        except AudioError as error:
            return SystemAnswer(Response(text, failed=str(error)))

    # Dialogues.

    def _lead(self, items: Sequence[Item]) -> dict[str, SystemAnswer]:
        """Lead dialogues turn by turn; answers that are kept are read, as long as all earlier ones are."""
        clips = _clips(items)
        answers, kept = dict[str, SystemAnswer](), self.source.kept(clips)
        for turn in range(max(len(item.turns) for item in items)):
            part = [item for item in items if len(item.turns) > turn]
            before = {item.id: [answers[item.turn_name(number)] for number in range(turn)] for item in part}
            names = {item.id: item.turn_name(turn) for item in part}
            lost = {item.id for item in part if any(answer.response.missing for answer in before[item.id])}
            answers |= {names[name]: SystemAnswer(Response(failed=EARLIER)) for name in lost}
            answers |= {
                names[item.id]: SystemAnswer(Response(failed=NO_QUESTION)) for item in part if names[item.id] not in clips
            }
            known = {name: kept[name] for name in names.values() if name in kept and name not in answers}
            answers |= known
            missing = [item for item in part if names[item.id] not in answers]
            while missing:
                some, missing = missing[: self._speaker.at_once], missing[self._speaker.at_once :]
                turns = [[*_history(item, before[item.id]), _said(item, turn)] for item in some]
                replies = self._speaker.reply(turns, [turn] * len(some))
                for item, reply in zip(some, replies, strict=True):
                    response = Response(reply.text, reply.clip, reply.failed)
                    answers[names[item.id]] = self.source.keep(names[item.id], clips[names[item.id]], response)
        return answers

    @cached_property
    def _speaker(self) -> DialogueModel:
        return open_speaker(self.source.spec, self.source.cache_dir, LONGEST_ANSWER_S)


def _clips(items: Sequence[Item]) -> dict[str, Path]:
    return {item.turn_name(n): turn.clip for item in items for n, turn in enumerate(item.turns) if turn.clip is not None}


def _said(item: Item, turn: int) -> Turn:
    clip = item.turns[turn].clip
    return Turn("user", clip=None if clip is None else read_clip(clip, max_duration_s=MAX_CLIP_S))


def _history(item: Item, answers: Sequence[SystemAnswer]) -> list[Turn]:
    spoken = [
        (_said(item, n), Turn("assistant", answer.response.text, answer.response.clip)) for n, answer in enumerate(answers)
    ]
    return [turn for pair in spoken for turn in pair]
