"""Every verb that asks a judge about many items takes a judge, a limit and --estimate; estimates are by hand.

Not covered: the judges' own requests (tests/reward).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from paras2s.audio.asr import Transcript
from paras2s.audio.clip import make_clip, write_clip
from paras2s.bench.paras2s import run as paras2s_run
from paras2s.bench.paras2s.judges import AnswerJudge
from paras2s.bench.paras2s.run import BenchOptions, estimate_paras2s
from paras2s.bench.voicebench import run as voicebench_run
from paras2s.bench.voicebench.run import VoiceBenchOptions, estimate_voicebench
from paras2s.cli.app import app
from paras2s.clients.chat import Bill, LLMClient, Message, Request
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.data_gen.dataset import Manifest
from paras2s.errors import ConfigError
from paras2s.reward.judges.base import Judge
from paras2s.types import Query
from paras2s.utils.progress import open_console

# The name of the judge's option, and that of the limit, where a paper has its own word for it.
VERBS = {
    "judge audit": ("judge", "limit"),
    "probe": ("judge", "count"),
    "bench contrasts": ("judge", "limit"),
    "bench paras2s": ("judge", "limit"),
    "bench voicebench": ("judge", "limit"),
    "bench speakbench": ("judge", "limit"),
    "bench s2sarena": ("judge", "limit"),
    "bench detect": ("judge", "limit"),
    "bench styleset": ("judge", "limit"),
    "bench systems": ("judge", "limit"),
    "bench suite": ("judge", "limit"),
    "bench unisrm": ("judge", "limit"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_asks_a_judge_takes_the_same_options(verb: str) -> None:
    command: Any = typer.main.get_command(app)
    for word in verb.split():
        command = command.commands[word]
    assert {*VERBS[verb], "estimate", "set_"} <= {option.name for option in command.params}


class Asking(Judge):
    """A judge that asks a model of this machine once for each answer, and is never asked itself."""

    name, version, needs_question_audio = "asking", "1", False
    client = LLMClient(LLMConfig(base_url="http://127.0.0.1:9/v1", model="local"), calls=False)

    def requests(self, items: Any) -> Any:
        return [[Request((Message("user", ("How was it?",)),))] for _ in items]


def answers(folder: Path, *names: str) -> Path:
    for name in names:
        write_clip(folder / f"{name}.wav", make_clip(0.1 * np.ones(1600, dtype=np.float32), 16_000))
    return folder


def test_what_judging_a_folder_of_answers_costs_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = [
        Query(f"c{n}-{style}", f"c{n}", "sarcasm", "t", "test", "m1", "q.wav", 1.0, "Lovely.", "Lovely.", style)
        for n in range(3)
        for style in ("sincere", "sarcastic")
    ]
    monkeypatch.setattr(paras2s_run, "load_manifest", lambda folder: Manifest(tmp_path, tuple(queries), (), ()))
    # Of the first contrast and half of the second, an answer is missing.
    folder = answers(tmp_path / "mine", "c0-sincere", "c1-sincere", "c2-sincere")

    def bill(system: str) -> Bill:
        options = BenchOptions(tmp_path, "test", {"mine": system}, 1, tmp_path / "out", None, tmp_path, limit=3)
        return estimate_paras2s(options, AnswerJudge(Asking()))

    assert (bill(str(folder)).calls, bill(str(folder)).at_most_usd) == (2, 0.0)
    with pytest.raises(ConfigError, match="--estimate: cascade is still to answer"):
        bill("cascade")


def test_what_scoring_voicebench_costs_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voicebench_run, "transcribe", lambda clips: [Transcript("Jane Austen.", (), 0.9) for _ in clips])
    file = tmp_path / "sd-qa.jsonl"
    file.write_text("".join(json.dumps({"id": f"q{n}", "prompt": "Who?", "reference": "Austen"}) + "\n" for n in range(4)))
    folder = answers(tmp_path / "mine", *(f"q{n}" for n in range(4)))

    def bill(system: Path | str, judge: str | None = "trace_local") -> Bill:
        options = VoiceBenchOptions([file], str(system), tmp_path / "rows.jsonl", tmp_path, judge=judge, limit=3)
        return estimate_voicebench(options, open_console(), quiet=True)

    assert (bill(folder).calls, bill(folder, None).calls) == (3, 0)
    with pytest.raises(ConfigError, match="--estimate: cascade is still to answer"):
        bill("cascade")
