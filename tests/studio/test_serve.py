"""The verb `studio`: its address, its end by Ctrl-C, and what it says where it cannot start.

Not covered: opening the user's own browser.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from tiny.processes import started
from tiny.world import invoke

from paras2s.errors import ConfigError

MAIN = "import sys; from paras2s.cli.app import main; sys.argv[0] = 'paras2s'; main()"


def test_it_prints_its_address_serves_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    words = [sys.executable, "-c", MAIN, "studio", str(tmp_path), "--port", "0", "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with started(words, env=environment) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=120) as response:
            assert b"No runs here yet" in response.read()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=120)
    assert (server.returncode, errors) == (0, "")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port: {port} on 127.0.0.1 cannot be used"):
            invoke("studio", tmp_path, "--port", port, "--no-open")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("paras2s.studio.serve", "paras2s.utils.loopback", "uvicorn"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"the studio needs uvicorn: pip install 'paras2s\[studio\]'"):
        invoke("studio", tmp_path, "--no-open")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        invoke("studio", tmp_path / "nowhere", "--no-open")
