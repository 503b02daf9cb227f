"""The answers that systems meet in a ranking: finished clips, or clips that a system is asked for once and that stay on disk.

What a checkpoint, an endpoint or a baseline answers is written beside the verdicts, to be heard and to be judged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.bench.systems import (
    BASELINES,
    PolicySystem,
    Response,
    SpokenQuestion,
    System,
    find_clip,
    fingerprint,
    is_finished,
    open_system,
)
from paras2s.clients.audio_chat import LONG_ANSWER_S, RATE_HZ, chat_usd
from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.endpoints import load_audio_chat
from paras2s.errors import AudioError, ConfigError, DataError
from paras2s.policy.answers import read_answer_settings
from paras2s.policy.registry import kind_of
from paras2s.reward.judges.base import MAX_CLIP_S
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json
from paras2s.utils.progress import progress_bar

# No policy makes fewer steps a second.
FEWEST_STEPS_PER_S = 12.5
CHUNK_QUESTIONS = PolicySystem.BATCH


@dataclass(frozen=True)
class SystemAnswer:
    """A system's answer to one instruction, and its file; `None` where there is none."""

    response: Response
    path: Path | None = None


@dataclass(frozen=True)
class AnswerSource:
    """One system of a ranking by its name and spec, and the folder where its answers are kept."""

    name: str
    spec: str
    folder: Path
    curation: Path | None
    cache_dir: Path

    @property
    def finished(self) -> bool:
        """Whether it is a folder of clips that another program made."""
        return is_finished(self.spec)

    @cached_property
    def _fingerprint(self) -> list[Any]:
        return fingerprint(self.spec, self.curation)

    @cached_property
    def _system(self) -> System:
        return open_system(self.spec, self.curation, self.cache_dir)

    def answer(
        self, instructions: Mapping[str, Path], console: Console, quiet: bool, first: int = 0
    ) -> dict[str, SystemAnswer]:
        """Return the answers by the instructions' names; an earlier run's are read, the others requested and kept.

        Instructions are asked in parts of one size from the first on, so that an answer does not depend on which of them are
        there already; `first` is the place of the first one among all. A failure is not kept: a later run asks again.

        Raises:
            ConfigError: it is no system, it holds no answer, or existing answers are of another system or clip.
            BudgetError: the budget ended; a later run goes on from there.
        """
        if self.finished:
            return self._read_finished(instructions, console, quiet)
        answers = self.kept(instructions)
        with progress_bar(console, f"{self.name} answers", len(instructions), quiet) as bar:
            for start in range(0, len(instructions), CHUNK_QUESTIONS):
                part = dict(list(instructions.items())[start : start + CHUNK_QUESTIONS])
                if any(name not in answers for name in part):
                    answers |= self._ask(part, first + start, answers)
                bar.at(start + len(part), len(instructions))
        return answers

    def kept(self, instructions: Mapping[str, Path]) -> dict[str, SystemAnswer]:
        """Return the answers that an earlier run kept. Raises ConfigError: they are another system's. DataError: broken."""
        answers = {}
        # A slip in a spec is found before anything is asked.
        self._fingerprint  # noqa: B018
        for name, path in instructions.items():
            sound, described = self._files(name)
            if not described.is_file():
                continue
            says = read_json(described)
            if not isinstance(says, dict) or not isinstance(says.get("text"), str):
                raise DataError(f"{described}: is no answer's description; delete it, and the answer is asked for again")
            if says.get("key") != self._key(path):
                raise ConfigError(
                    f"{described}: is of another system or of another instruction; give another --out, or delete {self.folder}"
                )
            try:
                answers[name] = SystemAnswer(Response(says["text"], read_clip(sound, max_duration_s=MAX_CLIP_S)), sound)
            except AudioError:
                continue
        return answers

    def at_most(self, instructions: Mapping[str, Path]) -> tuple[dict[str, SystemAnswer], dict[str, Any]]:
        """Return what is known without asking: answers, silence of the greatest length where an answer is missing, and counts.

        `answer_usd` is the most that asking an endpoint costs: 0 for a checkpoint, None if no price is known.
        """
        if self.finished:
            answers = self._read_finished(instructions, Console(quiet=True), True)
            return answers, {"kept": len(instructions), "to_answer": 0, "answer_usd": 0.0}
        answers = self.kept(instructions)
        new = {name: path for name, path in instructions.items() if name not in answers}
        silence = Clip(np.zeros(round(RATE_HZ * self._longest_s()), dtype=np.float32), RATE_HZ)
        known = {"kept": len(answers), "to_answer": len(new), "answer_usd": self._most_usd(list(new.values()))}
        return answers | {name: SystemAnswer(Response(clip=silence)) for name in new}, known

    def _is_endpoint(self) -> bool:
        return Path(self.spec).suffix in (".yaml", ".yml")

    def _longest_s(self) -> float:
        spoken = self._is_endpoint() or self.spec in BASELINES
        if spoken:
            return LONG_ANSWER_S
        settings = read_answer_settings(Path(self.spec), kind_of(Path(self.spec)))
        return LONG_ANSWER_S if settings is None else settings.sampling.max_steps / FEWEST_STEPS_PER_S

    def _most_usd(self, instructions: Sequence[Path]) -> float | None:
        if not instructions or not (self._is_endpoint() or self.spec in BASELINES):
            return 0.0
        if not self._is_endpoint():
            return None
        config = load_audio_chat(Path(self.spec))
        price = load_prices(config.prices).models.get(config.model)
        if price is None:
            return None
        lengths_s = [read_clip(path, max_duration_s=MAX_CLIP_S).duration_s for path in instructions]
        each = [chat_usd(price, length_s, LONG_ANSWER_S) for length_s in lengths_s]
        known = [cost for cost in each if cost is not None]
        return sum(known) if len(known) == len(each) else None

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.wav", self.folder / f"{name}.json"

    def _key(self, instruction: Path) -> str:
        return key_of([self._fingerprint, read_clip(instruction, max_duration_s=MAX_CLIP_S).digest])

    def _read_finished(self, instructions: Mapping[str, Path], console: Console, quiet: bool) -> dict[str, SystemAnswer]:
        # A folder of finished answers reads no transcript.
        questions = [SpokenQuestion(name, path, "") for name, path in instructions.items()]
        with progress_bar(console, f"{self.name} answers", len(questions), quiet) as bar:
            rows = self._system.answer(questions, 1, bar.at)
        return {
            name: SystemAnswer(row[0], find_clip(Path(self.spec), name)) for name, row in zip(instructions, rows, strict=True)
        }

    def _ask(self, part: Mapping[str, Path], start: int, existing: Mapping[str, SystemAnswer]) -> dict[str, SystemAnswer]:
        words = transcribe([read_clip(path, max_duration_s=MAX_CLIP_S) for path in part.values()])
        questions = [SpokenQuestion(name, part[name], spoken.text) for name, spoken in zip(part, words, strict=True)]
        placed = replace(self._system, first=start) if isinstance(self._system, PolicySystem) else self._system
        rows = placed.answer(questions, 1, lambda *_: None)
        return {name: self.keep(name, part[name], row[0]) for name, row in zip(part, rows, strict=True) if name not in existing}

    def keep(self, name: str, instruction: Path, response: Response) -> SystemAnswer:
        """Write an answer beside the others and return it as a later run reads it; a failure is not kept."""
        if response.clip is None or response.missing:
            return SystemAnswer(response)
        sound, described = self._files(name)
        write_clip(sound, response.clip)
        # Last, as the sign that both are there.
        write_json(described, {"key": self._key(instruction), "text": response.text})
        # As a later run reads it: a judge hears the same samples then.
        return SystemAnswer(replace(response, clip=read_clip(sound, max_duration_s=MAX_CLIP_S)), sound)
