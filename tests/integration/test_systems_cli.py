"""`bench systems` with systems that are asked: answers stay on disk, verdicts in the file, and an estimate asks nobody.

Not covered: what a real audio model says, and transcripts of the instructions, which are scripted.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import typer
from tiny.endpoint import Fail, Raw, Say, ScriptedEndpoint
from typer.testing import CliRunner

from paras2s.audio.clip import encode_clip, make_clip, read_clip, write_clip
from paras2s.cli.bench_systems import bench_systems
from paras2s.policy.types import SampleRequest, Sampling
from paras2s.types import Rollout


def tone(seconds: float) -> Any:
    return make_clip(0.3 * np.sin(np.arange(round(16_000 * seconds)) / 20), 16_000)


def spoken_reply(seconds: float) -> Raw:
    audio = {"id": "a", "data": base64.b64encode(encode_clip(tone(seconds))).decode(), "transcript": "yes", "expires_at": 0}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "audio": audio}, "finish_reason": "stop"}
    return Raw(json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}).encode())


def lengths_s(sent: dict[str, Any]) -> list[float]:
    sounds = [part["input_audio"] for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"]
    return [soundfile.info(io.BytesIO(base64.b64decode(one["data"]))).duration for one in sounds]


def run(*words: object, status: int = 0) -> Any:
    app = typer.Typer()
    app.command()(bench_systems)
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == status, (done.output, done.exception)
    return json.loads(done.stdout) if done.stdout else done.exception


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, ScriptedEndpoint, list[Any]]]:
    """Two instructions of 1 and 2 s, a folder of answers of 3 s, an endpoint that speaks and judges, and a checkpoint.

    The endpoint answers with 2 s more than it hears. The judge prefers the longer clip, and nothing of more than 3.5 s.
    """
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    for name, seconds in (("a", 1), ("b", 2)):
        write_clip(tmp_path / f"asked/{name}.wav", tone(seconds))
        write_clip(tmp_path / f"three/{name}.wav", tone(3))

    class Engine:
        def __init__(self, policy: object) -> None:
            pass

        def generate(self, ids: list[str], request: SampleRequest) -> list:
            seen.append((ids, request.seeds))
            return [Rollout(one, 0, (), (), (), ("hi",), (), (tone(0.5).samples,), 16_000, "") for one in ids]

    def answer(sent: dict[str, Any], number: int) -> Any:
        lengths = lengths_s(sent)
        if "modalities" in sent:
            return spoken_reply(lengths[0] + 2)
        if max(lengths) > limit[0]:
            return Fail(400, "too long")
        return Say(json.dumps({"reasoning": "longer", "label": "1" if lengths[-2] > lengths[-1] else "2"}))

    limit = [3.5]
    seen.append(limit)
    policy = SimpleNamespace(encode_prompt=lambda turns: turns, sampling=Sampling())
    monkeypatch.setattr("paras2s.bench.ranking.answers.transcribe", lambda clips: [SimpleNamespace(text="w") for _ in clips])
    monkeypatch.setattr("paras2s.rollout.engine.NativeEngine", Engine)
    monkeypatch.setattr("paras2s.audio.text_embedding.embed_sentences", lambda texts: None)
    monkeypatch.setattr("paras2s.policy.registry.load_policy", lambda path: policy)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/policy.json").write_text('{"architecture": "DualStreamLM"}')
    with ScriptedEndpoint(answer) as server:
        chat = {"base_url": server.base_url, "model": "gpt-audio", "max_attempts": 1}
        (tmp_path / "chat.yaml").write_text(json.dumps(chat))
        yield tmp_path, server, seen


def words(server: ScriptedEndpoint, *more: object, systems: tuple[str, ...] = ("chat=chat.yaml", "mine=mine")) -> list[object]:
    given: list[object] = [
        "asked",
        "--system",
        "three=three",
        "--reference",
        "three",
        "--out",
        "out/v.csv",
        "--cache-dir",
        "cache",
    ]
    given += [word for one in systems for word in ("--system", one)]
    return [*given, "-s", f"llm.base_url={server.base_url}", "-s", "llm.max_attempts=1", "-s", "tasks=[standard]", *more]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_stay_as_clips_and_are_asked_for_once(world: tuple[Path, ScriptedEndpoint, list[Any]]) -> None:
    folder, server, seen = world
    seen[0][0] = 9.0
    found = run(*words(server))
    assert (found["judged"], found["unscored"], found["asked"]) == (4, 0, 4)
    rows = rows_of(folder / "out/v.jsonl")
    assert [(row["system_answer"], row["reference_answer"]) for row in rows] == [
        (f"out/v-answers/{system}/{name}.wav", f"three/{name}.wav") for system in ("chat", "mine") for name in "ab"
    ]
    assert [read_clip(Path(row["system_answer"])).duration_s for row in rows] == [3.0, 4.0, 0.5, 0.5]
    n_calls = len(server.requests)
    before = (folder / "out/v.csv").read_bytes()
    # Without any cache: what is kept beside the verdicts is enough.
    (folder / "cache/answers").rename(folder / "gone")
    assert run(*words(server))["unscored"] == 0
    assert (len(server.requests), len(seen)) == (n_calls, 2)
    assert (folder / "out/v.csv").read_bytes() == before
    # One that is lost is made again, from the same seed.
    (folder / "out/v-answers/mine/b.wav").unlink()
    run(*words(server))
    assert (len(seen), seen[1] == seen[2]) == (3, True)
    assert (folder / "out/v-answers/mine/b.wav").is_file()


def test_answers_of_another_system_or_instruction_are_refused(world: tuple[Path, ScriptedEndpoint, list[Any]]) -> None:
    folder, server, _ = world
    run(*words(server), status=1)
    write_clip(folder / "asked/b.wav", tone(1.5))
    assert "is of another system or of another instruction" in str(run(*words(server), status=1))
    write_clip(folder / "asked/b.wav", tone(2))
    (folder / "mine/weights").write_text("new")
    assert "mine/a.json: is of another system" in str(run(*words(server), status=1))


def test_verdicts_stay_and_only_what_is_unscored_is_judged_again(world: tuple[Path, ScriptedEndpoint, list[Any]]) -> None:
    folder, server, seen = world
    assert run(*words(server), status=1)["unscored"] == 1
    n_calls = len(server.requests)
    before = rows_of(folder / "out/v.jsonl")
    # A shorter run leaves the other verdicts alone.
    assert run(*words(server, "--limit", 1))["asked"] == 2
    assert rows_of(folder / "out/v.jsonl") == before
    # Only the pair without a verdict, whose answer lasts 4 s, is judged again: both orders of it.
    seen[0][0] = 9.0
    assert run(*words(server, "--retry-unscored"))["unscored"] == 0
    assert len(server.requests) == n_calls + 2
    after = rows_of(folder / "out/v.jsonl")
    assert [row == old for row, old in zip(after, before, strict=True)] == [True, False, True, True]
    labels = [(row["system"], row["system_first"]) for row in csv.DictReader((folder / "out/v.csv").open())]
    assert labels == [("chat", "2"), ("chat", "1"), ("mine", "2"), ("mine", "2")]
    # A verdict is not replaced by a later failure.
    seen[0][0] = 0.0
    (folder / "cache").rename(folder / "gone")
    run(*words(server))
    assert rows_of(folder / "out/v.jsonl") == after
    other = words(server, systems=("chat=chat.yaml",))
    other[other.index("--reference") + 1] = "chat"
    assert "holds verdicts against three" in str(run(*other, status=1))


def test_an_estimate_asks_nobody(world: tuple[Path, ScriptedEndpoint, list[Any]]) -> None:
    folder, server, seen = world
    found = run(*words(server, "--estimate"))
    assert (server.requests, len(seen), (folder / "out").exists()) == ([], 1, False)
    # 1 and 2 s heard, and answers of 40 s at most: at 10 tokens a second in, 20 out, and 32 and 64 USD a million.
    usd = (3 * 10 * 32 + 2 * 40 * 20 * 64) / 1e6
    assert found["systems"] == {
        "three": {"kept": 2, "to_answer": 0, "answer_usd": 0.0},
        "chat": {"kept": 0, "to_answer": 2, "answer_usd": pytest.approx(usd)},
        "mine": {"kept": 0, "to_answer": 2, "answer_usd": 0.0},
    }
    # Each of 4 pairs in both orders: instruction (1 or 2 s), reference (3 s), and 40 or 4.16 s.
    seconds = 2 * sum(length_s + 3 + answer for length_s in (1, 2) for answer in (40, 4.16))
    assert (found["calls"], found["tokens"]["audio_in"]) == (8, pytest.approx(seconds * 10, rel=0.02))
    run(*words(server), status=1)
    known = run(*words(server, "--estimate"))
    assert {name: one["to_answer"] for name, one in known["systems"].items()} == {"three": 0, "chat": 0, "mine": 0}
