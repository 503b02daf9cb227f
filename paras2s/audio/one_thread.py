"""Run a module as a program, as `python -m MODULE ...` does, with onnxruntime in one thread.

python -m paras2s.audio.one_thread MODULE ...

By itself a session starts a thread for every core, and they spin while they wait for each other. As many programs as there
are cores run at once, and Piper has no option for it.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import onnxruntime


def main() -> None:
    """Run the engine in this process."""
    defaults = onnxruntime.SessionOptions

    def one_thread() -> Any:
        options = defaults()
        options.intra_op_num_threads = 1
        return options

    onnxruntime.SessionOptions = one_thread
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
