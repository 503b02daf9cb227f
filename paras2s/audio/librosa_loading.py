"""Load librosa one process at a time: it compiles functions and caches them on disk as it is loaded.

Two processes that fill numba's cache at once can leave one from which every later process crashes (a call of address 0), and
worker processes start together. The cache is a folder of our own, so that one spoilt in the environment is not read.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


@functools.cache
def load_librosa() -> Any:
    """Return librosa with the functions that this process calls compiled."""
    import numba
    from filelock import FileLock

    folder = cache_folder()
    with FileLock(folder / "lock"):
        # Read as functions are decorated; the environment's variable of this name is read when numba is imported.
        config: Any = numba.config
        config.CACHE_DIR = str(folder)
        import librosa

        # Loaded when they are first used, and parts compiled when they are first called.
        noise = np.random.default_rng(0).standard_normal(8_000).astype(np.float32)
        librosa.yin(noise, fmin=60, fmax=500, sr=8_000, frame_length=512, hop_length=128)
        librosa.feature.delta(librosa.feature.mfcc(y=noise, sr=8_000, n_fft=512, hop_length=128, n_mels=32))
        librosa.feature.rms(y=noise)
        librosa.onset.onset_strength(y=noise, sr=8_000)
    return librosa


def cache_folder() -> Path:
    """Return the user's folder for compiled functions, or a temporary one if it cannot be written."""
    import platformdirs

    try:
        folder = platformdirs.user_cache_path("paras2s") / "numba"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="paras2s-numba-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
