"""Two tiny policies that answer and are voted on: the page and its data, what is refused, votes, the recorded page.

Not covered: the browser's microphone (test_browser.py), and Piper's speech.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from starlette.testclient import TestClient
from studio.talking import JUDGE, make_talking_run, speech
from studio.world import HOSTILE, rollout, tone
from tiny.world import invoke

from paras2s.audio.clip import Clip, encode_clip
from paras2s.configs.schema.run import RunConfig
from paras2s.data_gen.preference_file import read_preferences
from paras2s.errors import AudioError, ConfigError, DataError
from paras2s.pipeline.train_preferences import count_preferences
from paras2s.rollout.demonstrations import RecordedClips
from paras2s.studio.talk import conversation as conversation_module
from paras2s.studio.talk import page as page_module
from paras2s.studio.talk.conversation import HELD, Answered, Conversation, SideAnswer, TalkQuestion, speak
from paras2s.studio.talk.page import make_talking_app, read_question
from paras2s.studio.talk.setup import _checkpoints, open_conversation
from paras2s.utils.io import read_jsonl, write_json, write_text

BASE = "http://127.0.0.1:8017"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talking_run(tmp_path_factory.mktemp("runs") / "my run", "sft", "aligned")


@pytest.fixture(scope="module")
def opened(run: Path) -> Any:
    return open_conversation(run, None, [JUDGE], None, None)


@pytest.fixture(scope="module")
def client(opened: Any) -> TestClient:
    conversation, world, folder = opened
    return TestClient(make_talking_app(folder, conversation, world), base_url=BASE, headers={"Origin": BASE})


def ask(client: TestClient, data: bytes, status: int = 200, style: str = "child", name: str = "my question.wav") -> Any:
    found = client.post("/api/talk/spoken", content=data, params={"style": style, "name": name})
    assert found.status_code == status, found.text
    return found.text if status == 200 else found.json()["error"]


def names_in(shown: str) -> list[str]:
    """What the page calls the two answers."""
    return re.findall("<h3>([^<]*)</h3>", shown)


def test_two_checkpoints_answer_and_a_blind_vote_is_a_preference(
    client: TestClient, opened: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation: Conversation = opened[0]
    monkeypatch.setattr(conversation_module.secrets, "randbelow", lambda sides: 1)
    shown = ask(client, encode_clip(speech()))
    answered = conversation.history[0]
    assert [answer.side for answer in answered.answers] == ["aligned", "sft"]
    assert names_in(shown) == ["Answer A", "Answer B"]
    assert not re.search(r"\b(sft|aligned)\b", shown)
    for answer in answered.answers:
        assert answer.text in shown
    assert shown.count("This answer is better") == 2
    assert "4.00" in shown
    assert "loudness integrated lufs" in shown
    assert HOSTILE not in shown
    assert client.get("/talk/clip/0/question").content == encode_clip(speech())
    assert client.get("/talk/clip/0/1").content == encode_clip(answered.answers[1].clip)
    voted = client.post("/api/talk/vote", json={"number": 0, "better": 1})
    assert "preferred" in voted.text
    assert names_in(voted.text) == ["aligned", "sft"]
    assert "Show names" not in voted.text
    assert "This answer is better" not in voted.text
    again = client.post("/api/talk/vote", json={"number": 0, "better": 0})
    assert (again.status_code, again.json()["error"]) == (422, "this question has your vote already")
    file = run / "talk/preferences.jsonl"
    (row,) = read_preferences(file)
    chosen, rejected = row.answers
    assert (row.words, chosen.text, rejected.text) == (answered.transcript, answered.answers[1].text, answered.answers[0].text)
    (raw,) = read_jsonl(file)
    assert (raw["chosen_system"], raw["rejected_system"], raw["style"]) == ("sft", "aligned", "child")
    assert raw["blind"] is True
    # It learns from the very tokens that it sampled.
    blocks = RecordedClips(file.parent).sampled_by(conversation.sides[0].policy, chosen.clip, chosen.text or "")
    assert blocks is not None
    np.testing.assert_array_equal(blocks[0].tokens, answered.answers[1].rollout.blocks[0].tokens)
    align = RunConfig.model_validate({"align": {"preferences": {"file": str(file)}}}).align
    assert count_preferences(align).rows == 1
    page = client.get("/talk").text
    assert page.index("What it understands") < page.index("Styles: adult, child.") < page.index("preferred")
    assert str(file) in page
    assert '<a href="/talk" aria-current="page">Talk</a>' in page
    assert '<a href="/talk">Talk</a>' in client.get("/").text


def test_a_question_without_a_style_has_no_score_but_an_answer(client: TestClient) -> None:
    answered = ask(client, encode_clip(tone()), style="")
    assert "no style was said" in answered
    assert "unscored" in answered


def test_a_vote_after_the_names_is_not_blind(client: TestClient, opened: Any, run: Path) -> None:
    shown = ask(client, encode_clip(tone(hz=250)))
    number = max(opened[0].history)
    assert "Show names" in shown
    named = client.post("/api/talk/names", json={"number": number}).text
    assert sorted(names_in(named)) == ["aligned", "sft"]
    assert named.count("This answer is better") == 2
    client.post("/api/talk/vote", json={"number": number, "better": 0})
    assert list(read_jsonl(run / "talk/preferences.jsonl"))[-1]["blind"] is False
    assert "held no longer" in client.post("/api/talk/names", json={"number": 99}).json()["error"]


def wav(samples: np.ndarray, rate_hz: int = 16_000) -> bytes:
    return encode_clip(Clip(samples.astype(np.float32), rate_hz))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wav(np.zeros(16_000)), "the recording is silent; check the microphone"),
        (wav(0.1 * np.ones(31 * 16_000)), "my question.wav: 31 s is too long; cut it to at most 30 s"),
        (b"\0\0\0\x20ftypisom" + bytes(200), r"my question.wav: cannot be decoded as audio .*give WAV, FLAC, OGG or MP3"),
        (wav(np.ones(16_000))[:-16_000], "my question.wav: cut off"),
        (b"", "my question.wav: "),
    ],
    ids=["silent", "long", "video", "cut", "empty"],
)
def test_what_is_no_question_is_said_in_words(client: TestClient, data: bytes, message: str) -> None:
    assert re.match(message, ask(client, data, 422))


@pytest.mark.parametrize("rate_hz", [8_000, 44_100, 96_000])
def test_any_rate_and_channels_are_read(rate_hz: int) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.ones((rate_hz, 2)) * [0.1, 0.2], rate_hz, format="FLAC")
    question = read_question(file.getvalue(), "a b.flac", None)
    assert (question.clip.sample_rate_hz, question.clip.duration_s) == (rate_hz, 1.0)


def test_a_video_is_named_with_the_way_to_its_sound() -> None:
    with pytest.raises(AudioError, match=r"ffmpeg -i party\.mp4 party\.wav"):
        read_question(b"\0\0\0\x20ftypisom" + bytes(200), "party.mp4", None)


def test_only_its_own_page_on_this_machine_may_ask(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/talk", headers={"Host": "studio.example"}).status_code == 400
    assert client.post("/api/talk/vote", json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/api/talk/vote", json={"number": 0, "better": 2}).status_code == 400
    monkeypatch.setattr(page_module, "MAX_UPLOAD_BYTES", 10)
    assert ask(client, bytes(11), 413) == "a request may have 10 bytes"


@pytest.mark.parametrize(
    ("text", "style", "message"),
    [
        ("  ", "", "type a question in English words"),
        ("你好吗", "", "type a question in English words"),
        ("why " * 60, "", "239 characters are too many; ask in at most 200"),
        ("why", "bored", "style 'bored': this world's voices speak happy, sad"),
    ],
)
def test_words_that_cannot_be_spoken_are_refused(client: TestClient, text: str, style: str, message: str) -> None:
    found = client.post("/api/talk/typed", json={"text": text, "style": style})
    assert found.status_code == 422
    assert found.json()["error"].startswith(message)


def test_typed_words_are_spoken_in_a_style(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def speak_plain(texts: list[str]) -> list[Clip]:
        said.extend(texts)
        return [speech().at(16_000)]

    monkeypatch.setattr(conversation_module, "speak_plain", speak_plain)
    sad, plain = speak(" How  was\nit? ", "sad"), speak("How was it?", None)
    assert said == ["How was it?"] * 2
    assert (sad.words, sad.style, plain.style) == ("How was it?", "sad", None)
    # A sad voice is slower and softer.
    assert sad.clip.duration_s > 1.1 * plain.clip.duration_s
    assert np.std(sad.clip.samples) < 0.7 * np.std(plain.clip.samples)


def answers(*waves: np.ndarray) -> Answered:
    made = replace(rollout("q0", 0), texts=("a", "b"))
    pair = tuple(SideAnswer("x", replace(made, waves=(wave.astype(np.float32),)), None, ()) for wave in waves)
    return Answered(0, TalkQuestion(tone()), "", (pair[0], pair[1]))


def test_no_vote_on_the_same_sound_or_on_none() -> None:
    sound, other = np.full(800, 0.1), np.full(800, 0.2)
    assert answers(sound, other).no_vote == ""
    assert answers(sound, sound).no_vote == "Both answers sound the same."
    assert answers(sound, np.zeros(0)).no_vote == "An answer without sound is no preference."


def test_the_last_questions_alone_are_held(opened: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = opened[0].sides
    monkeypatch.setattr(conversation_module, "transcribe", lambda clips: [type("Heard", (), {"text": ""})])
    monkeypatch.setattr(conversation_module, "_answer", lambda *_: replace(rollout("q0", 0), waves=(np.zeros(0, np.float32),)))
    talk = Conversation(sides, [], None, Path("never"))
    for _ in range(HELD + 1):
        talk.ask(TalkQuestion(tone()))
    assert list(talk.history) == list(range(1, HELD + 1))
    with pytest.raises(DataError, match="held no longer"):
        talk.vote(0, 1)


def test_which_checkpoints_answer(tmp_path: Path) -> None:
    for name in ("one/sft", "one/aligned", "two/sft", "other/aligned"):
        write_json(tmp_path / name / "policy.json", {})
    for name in ("one", "two", "three"):
        write_text(tmp_path / name / "config.resolved.yaml", "")

    def named(first: str, other: str | None = None) -> list[str]:
        return [name for name, _ in _checkpoints(tmp_path / first, tmp_path / other if other else None)]

    assert named("one") == ["sft", "aligned"]
    assert named("two") == ["sft, take 1", "sft, take 2"]
    assert named("one/aligned") == ["aligned, take 1", "aligned, take 2"]
    assert named("two", "one") == ["sft", "aligned"]
    assert named("one", "other/aligned") == ["one/aligned", "other/aligned"]
    for wrong, message in {
        "three": "this run has no policy yet; `paras2s warmup",
        "other": "neither a run nor a checkpoint; give",
        "onne": "no such folder; did you mean .*one",
    }.items():
        with pytest.raises(ConfigError, match=message):
            named(wrong)


def test_the_page_with_recorded_answers_is_one_file(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "demo.html"
    said = invoke("talk", run, "--judge", JUDGE, "--export", out).output
    assert f"{out}: 2 questions, " in said
    page = out.read_text()
    # Two questions and four answers to play; nothing to ask, no folder of this machine, no file beside it.
    assert page.count('class="play"') == 6
    assert page.count("data:audio/") == 6
    assert page.index("recorded answers") < page.index("child</span>") < page.index("adult</span>")
    for words in ("<form id", "This answer is better", str(run.parent), HOSTILE, 'src="'):
        assert words not in page, words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--question", "why"], "--question and --style: belong to --export"),
        (["--export", "a.html", "--style", "sad"], "--style: belongs to --question"),
        (["--export", "folder"], "--export folder: is one page; give a name that ends in .html"),
    ],
)
def test_options_that_do_not_fit_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        invoke("talk", "runs/none", *words)


def test_a_judge_that_only_compares_is_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"--judge .*: compares answers, and cannot score a single one"):
        open_conversation(run, None, ["paras2s.reward.judges.base:Judge"], None, None)
