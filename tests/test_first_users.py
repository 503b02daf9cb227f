"""The pages for a first hour are run as they are written, command by command.

Not covered: installing, which the wheel's test does, and judges that are called.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import soundfile
from outside import LIBRISPEECH
from test_docs import BLOCKS
from typer.testing import CliRunner

from paras2s.cli.app import app

PAGES = "docs/tutorials/"


def commands(page: str) -> list[list[str]]:
    lines = [line for block in BLOCKS if block.page == PAGES + page and block.language == "bash" and not block.not_run
             for line in block.code.replace("\\\n", " ").splitlines()]  # fmt: skip
    return [shlex.split(line, comments=True) for line in lines if line.startswith("paras2s ")]


def run(page: str) -> list[str]:
    shown = []
    for words in commands(page):
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{shlex.join(words)}: {done.output}"
        shown.append(done.stdout)
    return shown


def test_two_recordings_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("A", "B", "question")):
        samples, rate_hz = soundfile.read(sorted(LIBRISPEECH.glob("*.flac"))[number])
        soundfile.write(tmp_path / f"{name}.wav", samples[: int(1.5 * rate_hz)], rate_hz)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    measured, judged, estimate, dump = run("compare-two-recordings.md")
    assert "noticeable" in measured
    assert "--judge independent" in measured
    assert judged.startswith(("Too close to call: ", "A.wav answers better", "B.wav answers better"))
    assert " s, cost 0.0000 USD\nJudges that would do better:\n  --judge trace" in judged
    assert estimate.startswith("1 calls of")
    assert "look: the messages and recordings" in dump
    assert (tmp_path / "look/pair/order-1/messages.json").is_file()
