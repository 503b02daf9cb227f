"""`bench styleset` end to end: a true tiny checkpoint, an audio chat endpoint, folders of clips, the true judge over HTTP.

Not covered: real models and real judges. The endpoint is scripted; so are its scores.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from tiny.endpoint import Fail, Raw, Say, ScriptedEndpoint, said
from typer.testing import CliRunner

from paras2s.audio.clip import Clip, encode_clip, read_clip, write_clip
from paras2s.bench.styleset.data import FollowingItem, RoleContext
from paras2s.bench.styleset.dialogue import Output
from paras2s.bench.styleset.metrics import load_rows
from paras2s.bench.styleset.outputs import speak_prompts
from paras2s.cli.bench_styleset import bench_styleset
from paras2s.errors import BudgetError, ConfigError, ParaS2SError

ITEMS = [
    {"id": "f1", "text": "The tea is cold.", "style": "Whisper.", "elements": ["whisper"], "changes_within": False},
    {"id": "f2", "text": "We won.", "style": "Laugh at the end.", "elements": ["laughter"], "changes_within": True},
]
CONTEXTS = [
    {"id": f"p{n}", "situation": "It rains.", "role_1": "the cat", "role_2": "the dog", "relationship": "friends",
     "first_line": f"Line {n}."}
    for n in (1, 2)
]  # fmt: skip


def noise(seed: int, duration_s: float) -> Clip:
    samples = 0.1 * np.random.default_rng(seed).standard_normal(round(16_000 * duration_s))
    return Clip(samples.astype(np.float32), 16_000)


def run(*words: object, fails: type[ParaS2SError] | None = None, says: str = "", status: int = 0) -> str:
    app = typer.Typer()
    app.command()(bench_styleset)
    result = CliRunner().invoke(app, list(map(str, words)))
    if fails is None:
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result.stdout
    assert isinstance(result.exception, fails), result.output
    assert says in str(result.exception)
    return ""


def full(text: str) -> Any:
    """JSON in which no number is none."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's turns, which take Piper seconds, said once for all."""
    folder = tmp_path_factory.mktemp("prompts")
    texts = [text for one in ITEMS for text in FollowingItem.model_validate(one).requests()]
    texts += [text for one in CONTEXTS for text in RoleContext.model_validate(one).prompts()]
    speak_prompts(texts, folder, lambda *_: None)
    return folder / "spoken"


@pytest.fixture
def world(tmp_path: Path, spoken: Path) -> Path:
    shutil.copytree(spoken, tmp_path / "cache/spoken")
    (tmp_path / "items.yaml").write_text(yaml.safe_dump(ITEMS))
    (tmp_path / "contexts.yaml").write_text(yaml.safe_dump(CONTEXTS))
    return tmp_path


def requested_of(world: Path, server: ScriptedEndpoint | None, *more: object, out: str = "out") -> list[object]:
    words: list[object] = ["--items", world / "items.yaml", "--out", world / out]
    # Of verdicts, nothing is left to be made.
    words += [] if "--verdicts" in more and "--system" not in more else ["--contexts", world / "contexts.yaml"]
    words += ["--cache-dir", world / "cache"]
    if server:
        words += ["--set", f"llm.base_url={server.base_url}", "--set", "llm.model=gpt-4o-audio-preview"]
        words += ["--set", "llm.backoff_s=0.001", "--set", "llm.max_attempts=2"]
    return [*words, *more]


def judge(score: str) -> Any:
    return lambda sent, number: Say(f"It was heard.\nFinal score: [[{score}]]")


def sent_audio(sent: dict[str, Any]) -> list[Clip]:
    parts = [part for message in sent["messages"] if isinstance(message["content"], list) for part in message["content"]]
    found = [part["input_audio"]["data"] for part in parts if part["type"] == "input_audio"]
    return [read_clip(base64.b64decode(data), max_duration_s=600) for data in found]


def spoken_reply(clip: Clip, text: str) -> Raw:
    audio = {"id": "a", "data": base64.b64encode(encode_clip(clip)).decode(), "transcript": text, "expires_at": 0}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "audio": audio}, "finish_reason": "stop"}
    return Raw(json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}).encode())


def test_a_true_checkpoint_plays_four_turns_and_resumed_is_as_in_one_go(tiny_run: Path, world: Path) -> None:
    with ScriptedEndpoint(judge("1")) as server:
        words = ["--system", f"tiny={tiny_run / 'run/sft'}", "--turns", 4, "--longest-answer-s", 1.0, "--json"]
        # First a part, then the rest; beside it, all at once.
        run(*requested_of(world, server, *words, "--limit", 1))
        kept = world / "out/outputs/tiny/role_play/p1.wav"
        before = kept.stat().st_mtime_ns
        resumed = full(run(*requested_of(world, server, *words)))
        assert kept.stat().st_mtime_ns == before
        calls = len(server.requests)
        assert full(run(*requested_of(world, server, *words))) == resumed
        assert len(server.requests) == calls
        at_once = full(run(*requested_of(world, server, *words, out="fresh")))
    assert at_once == resumed
    for path in sorted((world / "fresh/outputs").rglob("*.*")):
        assert path.read_bytes() == (world / "out" / path.relative_to(world / "fresh")).read_bytes()
    output = Output.model_validate_json((world / "out/outputs/tiny/role_play/p1.json").read_text())
    assert [turn.speaker for turn in output.turns] == [1, 2, 1, 2]
    # It reads single questions: of three turns it is shown one.
    assert [turn.left_out for turn in output.turns] == [0, 0, 2, 2]
    clip = read_clip(kept)
    assert clip.duration_s == pytest.approx(sum(turn.duration_s for turn in output.turns) + 3 * 2.0, abs=1e-3)
    for turn in output.turns:
        part = clip.samples[round(turn.start_s * clip.sample_rate_hz) : round(turn.stop_s * clip.sample_rate_hz)]
        assert np.abs(part).max() > 1e-3
    made = resumed["outputs"]["tiny"]["role_play"]
    assert (made["outputs"], made["to_judge"], made["turns"], made["shown_in_part"]) == (2, 2, 4.0, 4)


def test_the_true_judge_gets_one_clip_of_a_minute_at_most_and_what_it_must_be_given(world: Path) -> None:
    (world / "tape").mkdir()
    for name, duration_s in (("f1", 2.0), ("f2", 3.0), ("p1", 75.0), ("p2", 10.0)):
        write_clip(world / "tape" / f"{name}.wav", noise(1, duration_s))
    with ScriptedEndpoint(judge("1")) as server:
        found = full(run(*requested_of(world, server, "--system", f"tape={world / 'tape'}", "--json")))
        sent = list(server.requests)
    # Two sentences and two scenes of two verdicts each, five samples.
    assert len(sent) == 5 * (2 + 2 + 2)
    for one in sent:
        assert (one["temperature"], one["top_p"], one["max_tokens"]) == (1.0, 0.9, 256)
    lengths = [[clip.duration_s for clip in sent_audio(one)] for one in sent]
    assert all(len(one) == 1 for one in lengths)
    assert sorted(one[0] for one in lengths) == pytest.approx([2.0] * 5 + [3.0] * 5 + [10.0] * 10 + [60.0] * 10)
    following = [said(one) for one in sent if "Whisper." in said(one)]
    assert len(following) == 5
    assert all("The tea is cold." in text for text in following)
    assert sum("Line 1." in said(one) and "the cat" in said(one) for one in sent) == 10
    assert found["table_1"]["role_play_realism"]["tape"]["listens:gpt-4o-audio-preview"] == {
        "mean": 1, "sd": 0, "n_scored": 2, "n_asked": 2,
    }  # fmt: skip
    rows = load_rows([world / "out/verdicts.jsonl"])
    assert {row.votes for row in rows} == {(1.0,) * 5}
    assert {row.spread for row in rows} == {0.0}
    # The page plays each clip once, role-plays beside their style.
    page = (world / "out/styleset.html").read_text()
    assert page.count("<audio") == 4
    assert page.count("<summary>Reply of") == 6
    assert "To be heard in" in page
    assert "2 of 2" in page


def test_an_endpoint_receives_sound_reads_its_own_words_and_is_never_paid_twice(world: Path) -> None:
    def answer(sent: dict[str, Any], number: int) -> Any:
        if "modalities" not in sent:
            return Say("Final score: [[1]]")
        transcript = sum(len(clip.samples) for clip in sent_audio(sent))
        return spoken_reply(noise(transcript % 97, 0.5), f"heard {transcript}")

    with ScriptedEndpoint(answer) as server:
        chat = {"base_url": server.base_url, "model": "gpt-audio", "system": "Be brief.", "concurrency": 2}
        (world / "chat.yaml").write_text(yaml.safe_dump(chat))
        words = requested_of(world, server, "--system", f"chat={world / 'chat.yaml'}", "--turns", 5, "--json")
        estimate = full(run(*words, "--estimate"))
        assert server.requests == []
        found = full(run(*words))
        made, calls = len(server.requests), [one for one in server.requests if "modalities" in one]
        # As if killed before the dialogues were kept: their replies are.
        for path in (world / "out/outputs").rglob("*.*"):
            path.unlink()
        assert full(run(*words)) == found
        assert len([one for one in server.requests if "modalities" in one]) == len(calls)
    assert estimate["systems"]["chat"] == {
        "following": {"items": 2, "kept": 0, "replies_at_most": 4},
        "role_play": {"items": 2, "kept": 0, "replies_at_most": 10},
    }
    assert (estimate["judging"]["calls"], len(calls)) == (30, 4 + 10)
    assert estimate["calls"] == made
    assert (estimate["replies"]["calls"], estimate["at_most_usd"]) == (
        14,
        pytest.approx(estimate["replies"]["at_most_usd"] + estimate["judging"]["at_most_usd"]),
    )
    assert estimate["replies"]["at_most_usd"] > 14 * 0.2
    assert {(one["top_p"], one["temperature"], one["max_completion_tokens"]) for one in calls} == {(0.9, 1.0, 4096)}
    assert len({one["seed"] for one in calls}) == 14
    longest = max(calls, key=lambda one: len(one["messages"]))
    assert [message["role"] for message in longest["messages"]] == ["system", "user", "assistant", "user", "assistant", "user"]
    own = [message["content"] for message in longest["messages"] if message["role"] == "assistant"]
    assert all(text.startswith("heard ") for text in own)
    # What instance 1 hears second is what instance 2 said: half a second.
    assert sent_audio(longest)[1].duration_s == pytest.approx(0.5)
    output = Output.model_validate_json((world / "out/outputs/chat/role_play/p1.json").read_text())
    assert output.duration_s == pytest.approx(5 * 0.5 + 4 * 2.0)


def test_a_budget_stops_a_dialogue_and_a_larger_one_goes_on_with_it(world: Path) -> None:
    def answer(sent: dict[str, Any], number: int) -> Any:
        return spoken_reply(noise(number, 5.0), "yes") if "modalities" in sent else Say("Final score: [[1]]")

    with ScriptedEndpoint(answer) as server:
        words = requested_of(
            world, server, "--system", f"chat={world / 'chat.yaml'}", "--turns", 4, "--task", "role_play", "--json"
        )
        chat = {"base_url": server.base_url, "model": "gpt-audio", "concurrency": 1}
        # One reply of 4096 tokens may cost a quarter of a dollar; these cost a cent each.
        (world / "chat.yaml").write_text(yaml.safe_dump(chat | {"budget_usd": 0.30}))
        run(*words, fails=BudgetError, says="the budget of 0.30 USD is spent")
        paid = len(server.requests)
        assert 0 < paid < 8
        (world / "chat.yaml").write_text(yaml.safe_dump(chat | {"budget_usd": 3.0}))
        found = full(run(*words))
        assert len([one for one in server.requests if "modalities" in one]) == 8
    assert found["outputs"]["chat"]["role_play"]["to_judge"] == 2


def test_a_dialogue_that_breaks_off_too_early_is_unscored_with_its_reason_and_tried_again(world: Path) -> None:
    broken = [True]

    def answer(sent: dict[str, Any], number: int) -> Any:
        if "modalities" not in sent:
            return Say("Final score: [[4]]")
        # The third turn of a scene, and the second of a sentence, are the first with three messages.
        return Fail(400, "no more") if broken[0] and len(sent["messages"]) == 3 else spoken_reply(noise(1, 0.5), "yes")

    with ScriptedEndpoint(answer) as server:
        (world / "chat.yaml").write_text(yaml.safe_dump({"base_url": server.base_url, "model": "gpt-audio"}))
        words = requested_of(
            world, server, "--system", f"chat={world / 'chat.yaml'}", "--turns", 3, "--task", "role_play", "--json"
        )
        found = full(run(*words, status=1))
        assert [one for one in server.requests if "modalities" not in one] == []
        cell = found["table_1"]["role_play_style"]["chat"]["listens:gpt-4o-audio-preview"]
        assert cell == {"mean": None, "sd": None, "n_scored": 0, "n_asked": 2}
        assert {one["count"] for one in found["unscored"]} == {2}
        assert found["unscored"][0]["reason"].startswith("2 turns are no dialogue, at least 3 are (turn 3: gpt-audio at")
        assert (found["outputs"]["chat"]["role_play"]["ended_early"], list(found["table_1"])) == (
            2,
            ["role_play_style", "role_play_realism"],
        )
        broken[0] = False
        # Realism is 0 or 1, so that this 4 is no score of it.
        again = full(run(*words, "--turns", 3, status=1))
    assert again["table_1"]["role_play_style"]["chat"]["listens:gpt-4o-audio-preview"]["mean"] == 4


def test_a_judge_at_several_temperatures_and_people_beside_it(world: Path) -> None:
    for name, level in (("good", 0.1), ("poor", 0.01)):
        (world / name).mkdir()
        for item in ("f1", "f2"):
            clip = noise(ord(item[1]), 1.0)
            write_clip(world / name / f"{item}.wav", Clip(clip.samples * level * 10, clip.sample_rate_hz))

    def answer(sent: dict[str, Any], number: int) -> Any:
        loud = np.abs(sent_audio(sent)[0].samples).max() > 0.1
        better = loud if sent["temperature"] < 1 else not loud
        return Say(f"Final score: [[{5 if better else 2}]]")

    lines = ["item,system,task,rater,score"]
    lines += [f"f{n},{name},style_following,ann,{score}" for name, score in (("good", 4), ("poor", 1)) for n in (1, 2)]
    (world / "h.csv").write_text("\n".join(lines) + "\n")
    with ScriptedEndpoint(answer) as server:
        systems = ["--system", f"good={world / 'good'}", "--system", f"poor={world / 'poor'}", "--task", "following"]
        words = requested_of(world, server, *systems, "--temperatures", "0.5,1.5", "--human", world / "h.csv")
        found = full(run(*words, "--json"))
        assert sorted({one["temperature"] for one in server.requests}) == [0.5, 1.5]
        assert len(server.requests) == 2 * 2 * 2 * 5
    swept = found["sweep"]["listens:gpt-4o-audio-preview"]
    assert swept["0.5"]["style_following"]["r_with_people"]["r"] == pytest.approx(1)
    assert swept["1.5"]["style_following"]["r_with_people"]["r"] == pytest.approx(-1)
    assert "## Temperatures" in (world / "out/styleset.md").read_text()
    # The recorded verdicts give the same tables without a call.
    recorded = ["--verdicts", world / "out/verdicts.jsonl", "--human", world / "h.csv", "--json"]
    again = full(run(*requested_of(world, None, *recorded, out="again")))
    assert again | {"outputs": found["outputs"]} == found


def test_recorded_verdicts_are_filtered_by_task_and_leave_nothing_to_be_made(world: Path) -> None:
    kinds = ("style_following", "role_play_style", "role_play_realism")
    rows = [{"item": "f1", "system": "a", "task": kind, "judge": "j", "score": 1} for kind in kinds]
    path = world / "v.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (world / "h.csv").write_text("item,system,task,rater,score\nf1,a,role_play_style,ann,3\n")
    words = requested_of(world, None, "--verdicts", path, "--json")
    assert list(full(run(*words))["table_1"]) == list(kinds)
    found = full(run(*words, "--task", "following", "--human", world / "h.csv"))
    assert (list(found["table_1"]), found["only_rated"]) == (["style_following"], 0)
    assert list(full(run(*words, "--task", "role_play"))["table_1"]) == list(kinds[1:])
    for option in ("--limit 3", "--turns 20", "--seed 42", f"--contexts {world / 'contexts.yaml'}", "--longest-answer-s 18"):
        run(*words, *option.split(), fails=ConfigError, says=f"leave {option.split()[0]} out")


def test_what_a_judges_budget_does_not_reach_is_in_the_report(world: Path) -> None:
    for name in ("one", "two"):
        (world / name).mkdir()
        for number, item in enumerate(("f1", "f2", "p1")):
            write_clip(world / name / f"{item}.wav", noise(number + 10 * (name == "two"), 20.0))
    # A cent each, and a little more by estimate: the fourth may cost more than is left.
    reply = Say("Final score: [[1]]", usage={"prompt_tokens": 4000, "completion_tokens": 20})
    with ScriptedEndpoint(lambda sent, number: reply) as server:
        systems = ["--system", f"one={world / 'one'}", "--system", f"two={world / 'two'}"]
        words = requested_of(world, server, *systems, "--judge", "styleset", "--json", "--set", "samples=1")
        run(*words, "--set", "llm.budget_usd=0.04", "--set", "llm.concurrency=1", fails=BudgetError, says="is spent")
        calls = len(server.requests)
        report = full((world / "out/styleset.json").read_text())
        assert "0.04 USD is spent" in report["stopped"]
        assert "**Stopped before its end**: the budget of 0.04 USD" in (world / "out/styleset.md").read_text()
        assert "Stopped before its end: the budget of 0.04 USD" in (world / "out/styleset.html").read_text()
        cells = [cell["listens:gpt-4o-audio-preview"] for table in report["table_1"].values() for cell in table.values()]
        assert [cell["n_asked"] for cell in cells] == [2] * 6
        assert sum(cell["n_scored"] for cell in cells) == calls
        assert 0 < calls < 8
        reasons = {one["reason"]: 0 for one in report["unscored"]}
        for one in report["unscored"]:
            reasons[one["reason"]] += one["count"]
        # What is missing keeps its own reason: p2 of both systems, for both verdicts.
        assert reasons.pop("not asked: the budget ended before it") == 8 - calls
        assert (len(reasons), sum(reasons.values())) == (2, 4)
        assert len(load_rows([world / "out/verdicts.jsonl"])) == 12
        found = full(run(*words, status=1))
        assert (found["stopped"], len(server.requests)) == (None, 8)


def test_two_judges_of_one_model_have_names_apart(world: Path) -> None:
    (world / "a").mkdir()
    write_clip(world / "a/f1.wav", noise(1, 1.0))
    write_clip(world / "a/f2.wav", noise(2, 1.0))
    shipped = Path(__file__).parents[2] / "paras2s/configs/judges/styleset.yaml"
    (world / "other.yaml").write_text(yaml.safe_dump(yaml.safe_load(shipped.read_text()) | {"samples": 1}))
    with ScriptedEndpoint(judge("3")) as server:
        words = requested_of(world, server, "--system", f"a={world / 'a'}", "--task", "following", "--json")
        found = full(run(*words, "--judge", "styleset", "--judge", world / "other.yaml"))
        run(*words, "--judge", "styleset", "--judge", "styleset", fails=ConfigError, says="could not be told apart")
    model = "listens:gpt-4o-audio-preview"
    assert list(found["table_1"]["style_following"]["a"]) == [f"{model} (styleset)", f"{model} (other)"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--system: give NAME=SYSTEM at least once"),
        (["--system", "a=nowhere"], "'nowhere' is no folder"),
        (["--system", "a=empty"], "holds no clip that can be judged; expected files such as f1.wav"),
        (["--system", "a=b", "--task", "sing"], "--task sing: there are following and role_play"),
        (["--system", "a=b", "--temperatures", "0.5,x"], "expected numbers with commas between"),
        (["--system", "a=b", "--temperatures", "1,1"], "expected different numbers from 0 to 2"),
        (["--system", "a=b", "--recorded", "tape"], "--recorded tape: no system is called that"),
        (["--system", "a=b", "--verdicts", "v.jsonl"], "--verdicts are judged already"),
    ],
)
def test_what_cannot_be_done_is_said(world: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str) -> None:
    (world / "empty").mkdir()
    monkeypatch.chdir(world)
    with ScriptedEndpoint(judge("1")) as server:
        run(*requested_of(world, server, *words), fails=ConfigError, says=says)
        assert server.requests == []


def test_a_broken_clip_is_made_again_and_a_path_is_the_folder_however_it_is_typed(
    tiny_run: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_run / "run/sft"
    monkeypatch.chdir(checkpoint.parent)
    with ScriptedEndpoint(judge("1")) as server:
        words = ["--task", "following", "--longest-answer-s", 1.0]
        run(*requested_of(world, server, "--system", f"tiny={checkpoint}", *words))
        sounds = [world / f"out/outputs/tiny/following/{name}.wav" for name in ("f1", "f2")]
        before, kept = [path.read_bytes() for path in sounds], sounds[1].stat().st_mtime_ns
        sounds[0].write_bytes(before[0][:20])
        said = run(*requested_of(world, server, "--system", "tiny=./sft", *words))
    assert "warning" in said
    assert "f1.wav" in said.split("warning")[1].split("made again")[0].replace("\n", "")
    assert [path.read_bytes() for path in sounds] == before
    assert sounds[1].stat().st_mtime_ns == kept


def test_outputs_made_otherwise_are_not_taken_for_ones_own(tiny_run: Path, world: Path) -> None:
    with ScriptedEndpoint(judge("1")) as server:
        words = ["--system", f"tiny={tiny_run / 'run/sft'}", "--task", "following", "--limit", 1, "--longest-answer-s", 1.0]
        run(*requested_of(world, server, *words))
        run(*requested_of(world, server, *words, "--seed", 7), fails=ConfigError, says="give another --out, or delete it")
        (world / "out/outputs/tiny/following/f1.json").write_text('{"item": 1}')
        run(*requested_of(world, server, *words), fails=ParaS2SError, says="following/f1.json: ")
