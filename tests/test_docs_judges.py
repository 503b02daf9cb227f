"""The judges' page shows what `paras2s judge` prints: its examples are run, on clips of LibriSpeech, and compared.

Not covered: a judge that judges; the endpoint is scripted. How long its replies took is not compared, nor the judge's version,
which changes with the server's address. The examples of a local model and of the rubric need weights and a run.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny.endpoint import Say, ScriptedEndpoint
from typer.testing import CliRunner

from paras2s.audio.clip import read_clip
from paras2s.cli.app import app

ROOT = Path(__file__).parent.parent
CLIPS = sorted((ROOT / "tests/fixtures/librispeech").glob("*.flac"))
EXAMPLE = re.compile(r"<!-- printed by tests/test_docs_judges.py -->\n\n```\n(paras2s .*?)```\n\n```\n(.*?)```\n", re.DOTALL)
EXAMPLES = [(found[1], found[2]) for found in EXAMPLE.finditer((ROOT / "docs/judges.md").read_text())]
SERVER = "http://127.0.0.1:8000/v1"


def lengths_s(sent: dict[str, Any]) -> list[float]:
    parts = [part for message in sent["messages"] if isinstance(message["content"], list) for part in message["content"]]
    sounds = [part["input_audio"]["data"] for part in parts if part["type"] == "input_audio"]
    return [round(read_clip(base64.b64decode(sound)).duration_s, 1) for sound in sounds]


def reply(sent: dict[str, Any], _: int) -> Say:
    """The longer clip is the better one, and a single one is worth 4."""
    lengths = lengths_s(sent)
    if len(lengths) == 1:
        return Say("The voice is calm, but it is not a whisper.\nFinal score: [[4]]")
    better = "1" if lengths[0] > lengths[1] else "2"
    which = {"1": "first", "2": "second"}[better]
    verdict = {"content": "both_good", "voice_quality": "both_good", "paralinguistics": better}
    return Say(json.dumps({"reasoning": f"Both say what was requested; only the {which} one is slow.", **verdict}))


def comparable(text: str) -> list[str]:
    text = re.sub(r"(?<=/)\d+-[0-9a-f]{8}(?=, prompt )", "VERSION", text)
    return [re.sub(r"\d+\.\d s,", "SECONDS,", line).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_page_shows_what_is_printed(command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, clip in zip(("A", "B"), CLIPS, strict=False):
        shutil.copy(clip, tmp_path / f"{name}.flac")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    assert SERVER in command
    with ScriptedEndpoint(reply) as server:
        words = shlex.split(command.replace("\\\n", " ").replace(SERVER, server.base_url))
        done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, (done.output, done.exception)
    assert comparable(done.stdout) == comparable(shown)


def test_the_page_has_an_example_of_a_pair_and_of_a_clip() -> None:
    assert [command.split()[1:3] for command, _ in EXAMPLES] == [["judge", "pair"], ["judge", "clip"]]
