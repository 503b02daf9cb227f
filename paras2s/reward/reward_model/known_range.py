"""`KnownRange`: the answers that a reward model learned from, as it sees them; of one unlike them all it knows nothing.

Asked about good sentences that it never learned from, the model says 1. Their distance to the nearest answer that it learned
from tells them apart (nearest neighbours in the last layer, after Sun et al., 2022, "Out-of-distribution detection with deep
nearest neighbors").
Alphabet: M answers learned from, N answers, W numbers of a state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paras2s.errors import JudgeError
from paras2s.utils.io import reading, write_bytes

FILE = "known_range.safetensors"
# Share of the policy's own answers to held-out questions, before any reinforcement, that count as known.
KNOWN_SHARE = 0.95
# The number of answers whose distances are computed together.
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class KnownRange:
    """States [M, W] of the answers learned from, and the distance up to which another answer is known."""

    states: Tensor
    limit: float

    @classmethod
    def fit(cls, learned: Tensor, held_out: Tensor) -> KnownRange:
        """Fit the range of a model that learned from answers of these states, and not from the `held_out` states [N, W].

        The limit lets `KNOWN_SHARE` of the held-out answers in; without held-out answers everything counts as known.
        """
        known = cls(learned, math.inf)
        if not len(held_out):
            return known
        return cls(learned, float(torch.quantile(known.distances(held_out), KNOWN_SHARE)))

    def distances(self, states: Tensor) -> Tensor:
        """Return [N]: the Euclidean distance of each state [N, W] to the nearest one learned from."""
        # Not by the products of matrices: they lose the small distances to rounding.
        parts = [
            torch.cdist(part, self.states, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
            for part in torch.split(states, ROWS_AT_ONCE)
        ]
        return torch.cat(parts) if parts else states.new_zeros(0)

    def save(self, folder: Path) -> None:
        """Beside the model's weights."""
        from safetensors.torch import save

        write_bytes(folder / FILE, save({"states": self.states, "limit": torch.tensor(self.limit)}))

    @classmethod
    def load(cls, folder: Path) -> KnownRange:
        """Read what `save` wrote. Raises JudgeError: missing, or cut off."""
        from safetensors.torch import load_file

        path = folder / FILE
        with reading(path, "cannot be read", "; run `paras2s distill` again", kind=JudgeError):
            stored = load_file(path)
            return cls(stored["states"], float(stored["limit"]))
