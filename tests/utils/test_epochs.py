"""The order of rows in training, against the plain formula. Not covered: what is trained in that order."""

from __future__ import annotations

import numpy as np
import pytest

from paras2s.utils.epochs import rows_of_step


@pytest.mark.parametrize(("per_step", "available"), [(3, 7), (7, 7), (10, 4), (1, 5)])
def test_rows_are_those_of_the_epochs_permutations_one_after_the_other(per_step: int, available: int) -> None:
    order = np.concatenate([np.random.default_rng([5, 3, epoch]).permutation(available) for epoch in range(30)])
    for step in (4, 0, 1, 2, 9, 6):
        assert rows_of_step(step, per_step, available, [5, 3]) == order[step * per_step :][:per_step].tolist()
