"""Weights & Biases beside a run's own log: asked for by WANDB_API_KEY or WANDB_MODE=offline, and never a reason to stop.

Its own variables (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY ...) hold. What it cannot do is said once.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from paras2s.errors import one_line

# Without a network its own wait is a minute and a half.
START_TIMEOUT_S = 20
Say = Callable[[str], None]
_problems: list[str] = []


def is_requested() -> bool:
    """Return whether the environment asks for Weights & Biases."""
    mode = os.environ.get("WANDB_MODE", "")
    off = mode in ("disabled", "dryrun") or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1")
    return not off and (bool(os.environ.get("WANDB_API_KEY")) or mode == "offline")


def check(say: Say) -> None:
    """Say before the first stage that what is asked for is not installed."""
    if not _problems and is_requested() and importlib.util.find_spec("wandb") is None:
        _end("it is not installed: pip install 'paras2s[wandb]'", say)


def log(row: Mapping[str, Any], name: str, folder: str, say: Say) -> None:
    """Log a step's values, if asked for; after a failure nothing more is logged there."""
    if _problems or not is_requested():
        return
    try:
        _start(name, folder).log({key: value for key, value in row.items() if value is not None}, step=row["step"])
    except Exception as error:
        _end(f"{type(error).__name__}: {one_line(error)[:200]}", say)
    except SystemExit:
        _end("it ended the process", say)


def _end(why: str, say: Say) -> None:
    _problems.append(why)
    say(f"  Weights & Biases is left out ({why}); the run's own log has every step")


@functools.lru_cache(maxsize=1)
def _start(name: str, folder: str) -> Any:
    """Return a run there."""
    import wandb

    settings = wandb.Settings(init_timeout=START_TIMEOUT_S, silent=True)
    project = os.environ.get("WANDB_PROJECT", "paras2s")
    return wandb.init(project=project, name=name, dir=folder, resume="allow", settings=settings)
