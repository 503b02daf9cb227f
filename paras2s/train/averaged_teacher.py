"""The averaged teacher of self-distillation: the student's weights, as a mean over updates that favours the newest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.weights import check_state, shapes_of
from paras2s.utils.io import reading, write_bytes

FILE = "teacher.safetensors"


class AveragedTeacher:
    """The averages of what the student trains, by name; all else is the student's own."""

    def __init__(self, student: Mapping[str, Tensor], keep: float) -> None:
        self.student, self.keep = student, keep
        self.weights = {name: value.detach().clone() for name, value in student.items()}

    @property
    def bytes(self) -> int:
        """Size of its file."""
        return sum(value.numel() * value.element_size() for value in self.weights.values())

    def follow(self) -> None:
        """Move towards the student, after its update: keep the share `keep`."""
        with torch.no_grad():
            for name, value in self.student.items():
                self.weights[name].lerp_(value, 1 - self.keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the student's model has the teacher's weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, value in self.student.items():
            value.data, self.weights[name] = self.weights[name], value.data

    def save(self, folder: Path) -> None:
        """Write the averages into a checkpoint."""
        from safetensors.torch import save

        write_bytes(folder / FILE, save({name: value.cpu().contiguous() for name, value in self.weights.items()}))

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint. Raises PolicyError: the file is missing, broken, or of another policy."""
        from safetensors.torch import load_file

        path = folder / FILE
        if not path.is_file():
            raise PolicyError(f"{path}: no averaged teacher; set align.self_distill.average to null, or start again")
        with reading(path, "cannot be read", f"; delete {folder} and resume from an older one", PolicyError):
            held = load_file(path)
        check_state(shapes_of(self.weights), shapes_of(held), str(path))
        for name, value in held.items():
            self.weights[name].copy_(value)
