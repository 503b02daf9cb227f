"""The `paras2s` program within this process: its exit code, its two streams, a folder of its own and no API key.

A process of its own takes five seconds to import what a verb needs.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def program(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `paras2s WORDS` in a folder, as far as `main`, whose errors are one line."""
    from paras2s.cli.app import main

    argv = ["paras2s", *map(str, words)]
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", argv)
        for name in [name for name in os.environ if name.endswith("_API_KEY")]:
            patch.delenv(name)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())
