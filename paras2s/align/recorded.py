"""Recorded preferences as an alignment learns from them: the rows of each step, as the policy reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paras2s.errors import DataError
from paras2s.rollout.demonstrations import DemonstrationFiles
from paras2s.rollout.orchestrator import Orchestrator
from paras2s.train.preference import PreferenceBatch
from paras2s.train.sft import Example
from paras2s.utils.epochs import rows_of_step
from paras2s.utils.seeds import Stream


@dataclass(frozen=True)
class RecordedPreferences:
    """The rows of a file of preferences; `answers` are their answers in order, encoded when they are needed.

    `groups` are the answers of each row that is learned from: the chosen and the rejected one of a pair, or one with a label.
    Of each answer, `good` says whether it is, `lines` its line in the file, and `rates_hz` its sample rate.
    """

    path: Path
    answers: DemonstrationFiles
    groups: tuple[tuple[int, ...], ...]
    good: tuple[bool, ...]
    lines: tuple[int, ...]
    rates_hz: tuple[int, ...]

    @property
    def pairs(self) -> bool:
        """Whether DPO learns from them; else KTO does."""
        return len(self.groups[0]) == 2

    @property
    def method(self) -> str:
        """Its name, for people."""
        return "DPO" if self.pairs else "KTO"

    def __len__(self) -> int:
        return len(self.answers)

    def encode(self, workers: Orchestrator, done: Callable[[int, int], None]) -> None:
        """Have the workers encode what the folder lacks. Raises DataError: an answer's sample rate is too low; names line."""
        lowest_hz = workers.answer_rate_hz()
        for line, rate_hz in zip(self.lines, self.rates_hz, strict=True):
            if rate_hz < lowest_hz:
                raise DataError(
                    f"{self.path}:{line}: an answer is at {rate_hz} Hz, below the {lowest_hz} Hz of this policy's speech, "
                    "as another policy's: it would learn to sound muffled; give answers recorded at that rate or above"
                )
        self.answers.encode(workers, done)

    def batch(self, step: int, per_step: int, seed: int) -> PreferenceBatch:
        """Return a step's answers: each row once an epoch, in an order of seed and step; a pair shares its augmentation."""
        rows = rows_of_step(step, per_step, len(self.groups), [seed, Stream.ALIGN_ORDER])
        chosen = [self.groups[row] for row in rows]
        rng = np.random.default_rng([seed, Stream.ALIGN_AUGMENT, step])
        examples = [example for group in chosen for example in self._examples(group, rng)]
        return PreferenceBatch(tuple(examples), tuple(self.good[row] for group in chosen for row in group), self.pairs)

    def _examples(self, group: Sequence[int], rng: np.random.Generator) -> list[Example]:
        examples = [self.answers[row] for row in group]
        prompt = self.answers.augment(examples[0].prompt, rng)
        return [replace(example, prompt=prompt) for example in examples]
