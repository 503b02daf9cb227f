"""Log-probs of labelled tokens alone, also without Triton, where TRL scores the prompts' tokens too and throws them away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def labels_alone() -> Iterator[None]:
    """Let TRL's LM head leave tokens without a label out on a CPU as well; the values are the same.

    TRL scores them without Triton, since compiled code would be compiled again for each number of labels: a CPU's is not. The
    name is private to trl==1.16.0, the one version that is allowed.
    """
    import trl.trainer.utils

    utils: Any = trl.trainer.utils
    before = utils._use_triton
    utils._use_triton = lambda device: device.type == "cpu" or before(device)
    try:
        yield
    finally:
        utils._use_triton = before
