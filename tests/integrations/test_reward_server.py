"""`paras2s serve`: a judge behind the protocol scores as it does in the process, and refuses what it must not answer.

Not covered: other machines; the token is checked on this one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tiny.endpoint import Say, ScriptedEndpoint, said
from tiny.reward_model import random_reward_model
from tiny.served import Words, serving
from tiny.world import invoke

from paras2s.audio.clip import Clip, encode_exactly, read_clip, write_clip
from paras2s.clients.chat import LLMClient
from paras2s.clients.rewards import protocol_schema
from paras2s.configs.schema.judges import JudgeConfig, JudgingConfig
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError, StorageError
from paras2s.integrations.scorer import JudgeScorer, open_scorer
from paras2s.integrations.server import HOSTS, JudgeThread, _Job, make_app
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Progress, Scored, Utterance, preference_of
from paras2s.reward.judges.contrast import ContrastJudge
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.reward_model_judge import RewardModelJudge
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModelConfig
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import RewardSetup, make_source
from paras2s.types import Unscored, Verdict
from paras2s.unisrm.reward.judge import UniSRMJudge
from paras2s.utils.cache import JsonCache
from paras2s.utils.loopback import LoopbackServer

BASE = "http://127.0.0.1:8018"
TUTORIAL = Path(__file__).parents[2] / "docs/tutorials/judges-in-other-trainers.md"
CODEC = Codec2Pairs()


def spoken(seed: int, duration_s: float = 0.6, rate_hz: int = 16_000) -> Clip:
    rng = np.random.default_rng(seed)
    time = np.arange(int(duration_s * rate_hz)) / rate_hz
    voice = np.sin(2 * np.pi * (110 + 15 * seed) * time) * (0.3 + 0.2 * np.sin(2 * np.pi * 3 * time))
    return Clip((voice + 0.02 * rng.standard_normal(len(time))).astype(np.float32), rate_hz)


def wav(clip: Clip) -> dict[str, str]:
    return {"wav": base64.b64encode(encode_exactly(clip)).decode()}


def body(*texts: str, audio: Any = None, **question: Any) -> dict[str, Any]:
    answers = [{"id": str(n), "text": text, **({} if audio is None else {"audio": audio})} for n, text in enumerate(texts)]
    return {"protocol": 1, "groups": [{"question": {"text": "How are you?", **question}, "answers": answers}]}


def client_of(judge: Any, cache: JsonCache | None = None, **options: Any) -> TestClient:
    scorer = JudgeScorer(judge) if isinstance(judge, Judge) else judge
    return TestClient(make_app(JudgeThread(scorer, cache, 64), **options), base_url=BASE)


def http_source(url: str) -> Any:
    setup = RewardSetup(RewardConfig(), Path(), Path())
    return make_source(RewardSourceConfig(kind="http", options={"url": url, "api_key_env": None, "backoff_s": 0.0}), setup)


# -- round trips ------------------------------------------------------------------------------------------------------


class Encoder:
    """Answers by the true codec; a question's features are its samples' own."""

    def encode_question(self, clip: Clip) -> EncodedQuestion | str:
        return EncodedQuestion(CODEC.encode(clip), clip.samples[:64].reshape(16, 4).copy())

    def encode_answer(self, clip: Clip) -> np.ndarray:
        return CODEC.encode(clip)


def test_a_served_reward_model_scores_exactly_as_in_the_process(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((sum(CODEC.cardinality), 5)).astype(np.float32)
    sizes = RewardModelConfig(
        codebook_sizes=CODEC.cardinality, code_dim=5, feature_dim=4, styles=("a", "b"), hidden_size=16, layers=1
    )
    random_reward_model(sizes, vectors).save(tmp_path)
    judge = RewardModelJudge(tmp_path, Encoder())
    write_clip(tmp_path / "q.wav", spoken(7))
    # Beside a file of 16 bits, answers of a policy: floats at another rate, and a pair of channels.
    channels = np.stack([spoken(3).samples, 0.5 * spoken(4).samples], 1)
    answers = [spoken(1), spoken(2, 0.9, 24_000), Clip(channels.mean(1), 16_000, channels)]
    question = read_clip(tmp_path / "q.wav")
    here = judge.score_batch([Exchange(Utterance(question), answer) for answer in answers])
    with serving(judge) as url:
        group = Group(
            RewardQuestion("q", None, "", None, tmp_path / "q.wav"), tuple(GivenAnswer(0, "", answer) for answer in answers)
        )
        served = http_source(url).score([group])[0]
    assert all(isinstance(verdict, Verdict) for verdict in here)
    assert served == [verdict.score for verdict in here if isinstance(verdict, Verdict)]
    assert len(set(served)) == 3


def test_a_judge_of_transcripts_scores_answers_in_writing(tmp_path: Path) -> None:
    def reply(request: dict[str, Any], _: int) -> Say:
        return Say(json.dumps({"reasoning": "short", "score": 5 if "marmalade" in said(request) else 2}))

    with ScriptedEndpoint(reply) as endpoint:
        llm = {"base_url": endpoint.base_url, "model": "m", "backoff_s": 0.0, "timeout_s": 20.0}
        config = JudgingConfig.model_validate({"extractors": [{"name": "words"}], "judge": {"reads": "transcript"}, "llm": llm})
        judge = LLMJudge(config, LLMClient(config.llm), JsonCache(tmp_path / "measured.sqlite"))
        client = client_of(judge)
        scores = client.post("/score", json=body("Have marmalade.", "Cheer up!", style="sad")).json()["scores"]
        assert [(one["score"], one["reason"]) for one in scores] == [(5.0, "short"), (2.0, "short")]
        assert '"spoken": "sad"' in said(endpoint.requests[0])


# -- what it answers --------------------------------------------------------------------------------------------------


def test_scores_reasons_and_missing_scores() -> None:
    client = client_of(Words())
    reply = client.post("/score", json=body("one two", "mumble", "too much", "")).json()
    assert {key: reply[key] for key in ("protocol", "low", "high")} == {"protocol": 1, "low": 1.0, "high": 5.0}
    assert reply["judge"].startswith("words/1//")
    assert reply["scores"] == [
        {"id": "0", "score": 2.0, "reason": "2 words", "cost_usd": 0.25},
        {"id": "1", "unscored": "no word can be made out", "reason": ""},
        {"id": "2", "unscored": "the judge's score is 9.0, and its range is 1 to 5", "reason": ""},
        {"id": "3", "unscored": "words needs answer.text; send answer.text as well", "reason": ""},
    ]
    health = client.get("/health").json()
    assert (health["status"], health["needs"], health["judge"]) == ("ok", ["answer.text"], reply["judge"])
    assert client.get("/schema").json() == protocol_schema()
    shown = client.get("/metrics").text
    for line in ('answers_total{from="judge"} 1', 'answers_total{from="unscored"} 3', 'requests_total{status="200"} 1'):
        assert f"paras2s_{line}\n" in shown


def test_a_score_is_cached_and_a_missing_one_is_not(tmp_path: Path) -> None:
    for n, batches in enumerate([[2], [1], [2]]):
        judge = Words(5.0 if n < 2 else 1.0)
        judge.version = "1" if n < 2 else "2"
        scores = client_of(judge, JsonCache(tmp_path / "served.sqlite")).post("/score", json=body("one two", "mumble")).json()
        assert judge.batches == batches
        assert scores["scores"][0]["cost_usd"] == (0.25 if n != 1 else 0.0)
        assert scores["scores"][0]["score"] == (2.0 if n < 2 else 1.0)


def test_requests_that_wait_are_judged_together() -> None:
    judge, entered, go_on = Words(), threading.Event(), threading.Event()
    score_batch = judge.score_batch

    def slow(exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        entered.set()
        go_on.wait(30)
        return score_batch(exchanges)

    judge.score_batch = slow  # type: ignore[method-assign]
    judging = JudgeThread(JudgeScorer(judge), None, 64)
    groups = [Group(RewardQuestion("q", None, "hello"), (GivenAnswer(0, word * n),)) for n, word in enumerate(["a "] * 4, 1)]
    first = judging.submit(groups[:1])
    entered.wait(30)
    rest = [judging.submit([group]) for group in groups[1:]]
    assert judging.waiting == 4
    go_on.set()
    assert [one.result(30)[0].score for one in (first, *rest)] == [1.0, 2.0, 3.0, 4.0]
    assert judge.batches == [1, 3]


def test_a_request_that_is_given_up_does_not_end_those_of_its_batch() -> None:
    judge, entered, go_on = Words(), threading.Event(), threading.Event()
    score_batch = judge.score_batch

    def slow(exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        entered.set()
        go_on.wait(30)
        return score_batch(exchanges)

    judge.score_batch = slow  # type: ignore[method-assign]
    judging = JudgeThread(JudgeScorer(judge), None, 64)
    group = Group(RewardQuestion("q", None, "hello"), (GivenAnswer(0, "a"),))
    first = judging.submit([group])
    entered.wait(30)
    given_up, patient = judging.submit([group]), judging.submit([group])
    assert given_up.cancel()
    assert not first.cancel()
    go_on.set()
    assert [one.result(30)[0].score for one in (first, patient)] == [1.0, 1.0]
    assert judge.batches == [1, 1]


@pytest.mark.parametrize(
    "error",
    [KeyError("odd"), RecursionError("deep"), SystemExit(3), asyncio.CancelledError()],
    ids=lambda one: type(one).__name__,
)
def test_an_odd_request_that_breaks_the_judge_costs_that_request_alone(error: BaseException) -> None:
    class Breaks(Words):
        def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
            if any(exchange.words == "odd" for exchange in exchanges):
                raise error
            return super().score_batch(exchanges)

    judging = JudgeThread(JudgeScorer(Breaks()), None, 64)
    jobs = [
        _Job([Group(RewardQuestion("q", None, "hello"), (GivenAnswer(0, text),))], Future())
        for text in ("a", "odd", "b c", "d")
    ]
    judging._answer(jobs)
    failed = jobs[1].done.exception(0)
    assert type(failed) is (type(error) if isinstance(error, Exception) else RuntimeError)
    assert [job.done.result(0)[0].score for job in jobs if job is not jobs[1]] == [1.0, 2.0, 1.0]
    served = TestClient(make_app(judging), base_url=BASE)
    replies = [served.post("/score", json=body(text)) for text in ("odd", "one two")]
    assert [reply.status_code for reply in replies] == [500, 200]


def test_a_full_disk_fails_a_batch_without_judging_its_halves_again() -> None:
    class Full(Words):
        def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
            self.batches.append(len(exchanges))
            raise StorageError("no space left")

    judge = Full()
    jobs = [_Job([Group(RewardQuestion("q", None, "hello"), (GivenAnswer(0, text),))], Future()) for text in ("a", "b", "c")]
    JudgeThread(JudgeScorer(judge), None, 64)._answer(jobs)
    assert [type(job.done.exception(0)) for job in jobs] == [StorageError] * 3
    assert judge.batches == [3]


def test_what_one_request_holds_does_not_spoil_another() -> None:
    client = client_of(Words())
    scores = client.post("/score", json=body("one", "refuse", "one two")).json()["scores"]
    assert [one.get("score") for one in scores] == [1.0, None, 2.0]
    assert scores[1]["unscored"] == "a word that this judge refuses"


def test_a_spent_budget_is_402_and_what_was_paid_is_kept(tmp_path: Path) -> None:
    judge = Words()
    client = client_of(judge, JsonCache(tmp_path / "served.sqlite"))
    reply = client.post("/score", json=body("one two", "broke"))
    assert (reply.status_code, reply.json()) == (402, {"error": {"message": "the budget of 1.00 USD is spent"}})
    assert client.post("/score", json=body("one two")).json()["scores"][0]["cost_usd"] == 0.0


def test_a_judge_that_breaks_is_500_with_its_word_and_goes_on() -> None:
    judge = Words()
    client = client_of(judge)
    score_batch, judge.score_batch = judge.score_batch, None  # type: ignore[assignment, method-assign]
    reply = client.post("/score", json=body("one"))
    assert (reply.status_code, "not callable" in reply.text) == (500, True)
    judge.score_batch = score_batch  # type: ignore[method-assign]
    assert client.post("/score", json=body("one")).status_code == 200


# -- what it refuses --------------------------------------------------------------------------------------------------

GOOD = json.dumps(body("one")).encode()
REFUSED: list[tuple[str, bytes, dict[str, str], int, str]] = [
    ("a page of another site", GOOD, {"Origin": "https://example.org"}, 403, "pages of a browser"),
    ("a page of this address", GOOD, {"Origin": BASE}, 403, "pages of a browser"),
    ("another host's name", GOOD, {"Host": "example.org"}, 400, "Invalid host"),
    ("a form", GOOD, {"Content-Type": "text/plain"}, 415, "application/json"),
    ("no JSON", b"{", {}, 422, "Invalid JSON"),
    ("NaN", GOOD.replace(b'"protocol": 1', b'"protocol": NaN'), {}, 422, "protocol"),
    ("no answer", json.dumps(body()).encode(), {}, 422, "groups.0.answers"),
    ("two ids", GOOD.replace(b'[{"id": "0"', b'[{"id": "0"}, {"id": "0"'), {}, 422, "two answers have the id '0'"),
    ("unknown key", json.dumps(body("one", stile="sad")).encode(), {}, 422, "groups.0.question.stile"),
    ("path and wav", json.dumps(body("one", audio={"path": "a", "wav": "b"})).encode(), {}, 422, "path or wav"),
]


@pytest.mark.parametrize(("sent", "headers", "status", "why"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_it_refuses(sent: bytes, headers: dict[str, str], status: int, why: str) -> None:
    reply = client_of(Words()).post("/score", content=sent, headers={"Content-Type": "application/json", **headers})
    assert (reply.status_code, why in reply.text) == (status, True), reply.text


def test_a_token_is_needed_for_every_page() -> None:
    client = client_of(Words(), token="secret")
    for page in ("/health", "/metrics", "/schema", "/score"):
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}):
            assert client.request("POST" if page == "/score" else "GET", page, headers=given).status_code == 401
    bearer = {"Authorization": "Bearer secret"}
    assert (
        client.post("/score", json=body("one"), headers=bearer).status_code == client.get("/health", headers=bearer).status_code
    )


def test_a_large_body_and_a_long_queue_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(Words())
    monkeypatch.setattr("paras2s.integrations.server.LARGEST_BODY_BYTES", 50)
    assert client.post("/score", json=body("one")).status_code == 413
    monkeypatch.undo()
    monkeypatch.setattr("paras2s.integrations.server.MOST_WAITING", 2)
    judging = JudgeThread(JudgeScorer(Words()), None, 64)
    judging.waiting = 2
    reply = TestClient(make_app(judging), base_url=BASE).post("/score", json=body("one"))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")


class Seconds(Judge):
    """Scores the length of the question and of the answer."""

    name, version = "seconds", "1"

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        lengths = [one.answer.duration_s + (one.question.clip.duration_s if one.question.clip else 0.0) for one in exchanges]
        return [Verdict("seconds", "1", "", 1 + length, "", "", 0.0, 0.0) for length in lengths]


def test_a_path_is_read_below_the_folders_that_are_given_and_nowhere_else(tmp_path: Path) -> None:
    inside, outside = tmp_path / "clips", tmp_path / "private"
    for folder in (inside, outside):
        write_clip(folder / "a.wav", spoken(1, 0.5))
    (inside / "link.wav").symlink_to(outside / "a.wav")
    client = client_of(Seconds(), folders=[inside])
    found = {
        path: client.post("/score", json=body("", audio={"path": path})).json()["scores"][0]
        for path in (
            str(inside / "a.wav"),
            "a.wav",
            str(outside / "a.wav"),
            "../private/a.wav",
            str(inside / "link.wav"),
            "no.wav",
        )
    }
    assert [one.get("score") for one in found.values()] == [1.5, 1.5, None, None, None, None]
    refused = [one["unscored"] for one in list(found.values())[2:5]]
    assert all("below no folder that this server reads" in why for why in refused), refused
    assert "no such file" in found["no.wav"]["unscored"]
    without = client_of(Seconds()).post("/score", json=body("", audio={"path": str(inside / "a.wav")})).json()
    assert "--audio FOLDER" in without["scores"][0]["unscored"]


def test_a_clip_that_cannot_be_read_is_its_answers_reason_alone() -> None:
    sent = body("", "", "")
    clips = [wav(spoken(1, 0.5)), {"wav": "###"}, {"wav": base64.b64encode(b"no sound").decode()}]
    for answer, audio in zip(sent["groups"][0]["answers"], clips, strict=True):
        answer["audio"] = audio
    client = client_of(Seconds())
    scores = client.post("/score", json=sent).json()["scores"]
    assert scores[0]["score"] == 1.5
    assert [one["unscored"].partition(":")[0] for one in scores[1:]] == ["answer.audio"] * 2
    sent["groups"][0]["question"]["audio"] = {"wav": "###"}
    assert all("question.audio" in one["unscored"] for one in client.post("/score", json=sent).json()["scores"])


# -- what can be served -----------------------------------------------------------------------------------------------


class Longest(Judge):
    """Prefers the longer answer, and scores none alone."""

    name, version = "longest", "1"

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        longer = ["1" if len(pair.first.samples) > len(pair.second.samples) else "2" for pair in pairs]
        return [preference_of("longest", "1", "", "length", label, "") for label in longer]  # type: ignore[arg-type]


class Loud:
    """A source of reward."""

    kind, extractors, needs_sound, needs_codes = "loud", (), True, False

    def __init__(self, most: float = 5.0) -> None:
        self.most = most

    def score(self, groups: Sequence[Group]) -> list[list[float | Unscored]]:
        return [[self.most if one.clip else Unscored("loud", "no sound") for one in group.answers] for group in groups]


def test_a_judge_that_only_compares_scores_a_group_by_its_wins(tmp_path: Path) -> None:
    scorer = open_scorer(f"{__name__}:Longest")
    assert (scorer.relative, scorer.label.endswith("/pairwise")) == (True, True)
    sent = body("", "", "")
    for n, answer in enumerate(sent["groups"][0]["answers"]):
        answer["audio"] = wav(spoken(n, 0.5 + 0.1 * n))
    client = client_of(scorer, JsonCache(tmp_path / "served.sqlite"))
    assert [one["score"] for one in client.post("/score", json=sent).json()["scores"]] == [1.0, 3.0, 5.0]
    # In another group the same answer has another score.
    sent["groups"][0]["answers"].pop()
    assert [one["score"] for one in client.post("/score", json=sent).json()["scores"]] == [1.0, 5.0]


def test_sources_of_reward_are_served_with_their_options() -> None:
    client = client_of(open_scorer(f"{__name__}:Loud", {"most": 4.0}))
    scores = client.post("/score", json=body("a", audio=wav(spoken(1)))).json()["scores"]
    assert scores[0]["score"] == 4.0
    client = client_of(open_scorer("length", {"target_steps": 8}))
    assert client.post("/score", json=body("a", audio=wav(spoken(1, 0.64)))).json()["scores"][0]["score"] == 5.0


WRONG = [
    ("independent", "the independent judge examines what is trained"),
    ("dimensions", "it scores no answer"),
    ("styleset", "prefers neither of two answers"),
    ("nonsense", "no judge 'nonsense'"),
    ("rubric", "--tone: the rubric needs a fitted tone classifier"),
    (f"{__name__}:Nothing", "cannot import"),
    ("builtins:dict", "is no reward source"),
]


@pytest.mark.parametrize(("name", "why"), WRONG)
def test_what_cannot_be_served_is_refused_with_the_reason(name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with pytest.raises(ConfigError, match=re.escape(why)):
        open_scorer(name)
    with pytest.raises(ConfigError, match=r"task style_following needs .*, which is not sent"):
        open_scorer("styleset", {"tasks": ["style_following"]})


def test_the_verb_says_what_to_send_and_needs_a_token_beyond_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARAS2S_REWARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0: other machines reach it; set PARAS2S_REWARD_TOKEN"):
        invoke("serve", "trace", "--host", "0.0.0.0")
    with pytest.raises(ConfigError, match="no such folder"):
        invoke("serve", "trace", "--audio", tmp_path / "no")
    apps: list[Any] = []
    monkeypatch.setattr(LoopbackServer, "run", lambda self, app, ready: (apps.append(app), ready()))
    monkeypatch.setenv("PARAS2S_REWARD_TOKEN", "secret")
    for host in ("127.0.0.1", "0.0.0.0"):
        words = ("serve", f"{__name__}:Longest", "--port", 0, "--host", host, "--cache-dir", tmp_path)
        line = invoke(*words).output
        assert re.match(rf"serve: http://{host}:\d+ scores from 1 to 5 by longest/1//\w+/pairwise; send answer.audio", line)
    calls = {"Host": "reward.example"}, {"Host": "reward.example", "Authorization": "Bearer secret"}
    codes = [[TestClient(app, base_url=BASE).get("/health", headers=given).status_code for given in calls] for app in apps]
    assert codes == [[400, 400], [401, 200]]


def test_the_tutorials_table_says_what_each_judge_needs() -> None:
    """Each row of the page, by the judge's class."""
    rows = dict(re.findall(r"^\| `([\w_]+)`[^|]*\| ([^|]+) \|", TUTORIAL.read_text().partition("## TRL")[0], re.MULTILINE))
    llm = JudgingConfig()

    def needs(reads: str) -> tuple[str, ...]:
        config = llm.model_copy(update={"judge": JudgeConfig.model_validate({"reads": reads})})
        return LLMJudge(config, LLMClient(config.llm, calls=False)).needs

    expected = {
        "trace": needs("blueprint"), "transcript": needs("transcript"), "audio": needs("audio"),
        "contrast": ContrastJudge.needs, "rubric": RubricJudge.needs, "unisrm": UniSRMJudge.needs,
        "audiojudge": ("question.text or question.audio", "answer.audio"), "RUN": RewardModelJudge.needs,
    }  # fmt: skip
    assert {name: tuple(re.findall(r"`([^`]+)`", rows[name])) for name in expected} == {
        name: tuple(field for need in needed for field in need.split(" or ")) for name, needed in expected.items()
    }
    assert AudioJudge.needs == ("answer.audio",)
    assert HOSTS == ["127.0.0.1", "localhost"]
