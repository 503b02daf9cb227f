"""A real vLLM server of a folder, on the loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paras2s.configs.schema.align import SamplingConfig
from paras2s.errors import ConfigError
from paras2s.rollout.vllm_engine import engine_python


def vllm_python() -> Path | None:
    """vLLM's interpreter, or None where there is none."""
    try:
        return engine_python(SamplingConfig(engine="vllm"))
    except ConfigError:
        return None


@contextmanager
def vllm_server(folder: Path, name: str, more: Sequence[object]) -> Iterator[str]:
    """Serves while the `with` block lasts; gives the base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", name, "--host",
        "127.0.0.1", "--port", port, "--enforce-eager", "--dtype", "float32", "--max-num-seqs", 4, *more,
    ]  # fmt: skip
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    # A session of its own, so that the workers it starts end with it, and nothing else does.
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | quiet,
        start_new_session=True,
    ) as server:
        said: list[str] = []
        known = threading.Event()

        def read() -> None:
            # To the end: a server whose output nobody takes stands still.
            assert server.stdout is not None
            for line in server.stdout:
                said.append(line)
                if "Application startup complete" in line:
                    known.set()
            known.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            known.wait(300)
            assert server.poll() is None, "vLLM did not start:\n" + "".join(said[-30:])
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            # A server that does not end by itself would be waited for without end.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, number)
                reader.join(60)
            print("".join(said[-80:]))
