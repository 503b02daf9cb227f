"""A reward server may be slow, wrong, down or lying: each of its answers is a score within its range, a reason, or a stop.

The server is real HTTP on this machine; what it says is scripted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.endpoint import Behaviour, Cut, Drip, Drop, Fail, Hang, Raw, ScriptedEndpoint

from paras2s.audio.clip import Clip, encode_exactly, read_clip, write_clip
from paras2s.clients.rewards import ScoreReply, ScoreRequest, protocol_schema
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import BudgetError, ConfigError, EndpointError
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import CompositeReward, RewardSetup, make_source
from paras2s.types import Unscored

HEAD = {"protocol": 1, "judge": "fake/1", "low": 1, "high": 5}
SCHEMA = Path(__file__).parents[2] / "docs/reward-protocol.schema.json"


def clip(length: int = 1600) -> Clip:
    return Clip(np.linspace(-0.9, 0.9, length, dtype=np.float32), 16_000)


def groups(*sizes: int, question: Clip | Path | None = None) -> list[Group]:
    question_sent = RewardQuestion("q", None, "hello there", "sad", question)
    return [Group(question_sent, tuple(GivenAnswer(1, f"answer {n}", clip(1600 + n)) for n in range(size))) for size in sizes]


def ids_of(request: dict[str, Any]) -> list[str]:
    return [answer["id"] for group in request["groups"] for answer in group["answers"]]


def says(scores: Callable[[list[str]], Any], **head: Any) -> Callable[[dict[str, Any], int], Behaviour]:
    return lambda request, _: Raw(json.dumps({**HEAD, **head, "scores": scores(ids_of(request))}).encode())


def good(ids: list[str]) -> list[dict[str, Any]]:
    return [{"id": id_, "score": 1 + int(id_[-1]) % 5} for id_ in ids]


def ask(answer: Any, sent: list[Group] | None = None, **options: Any) -> tuple[list[Any], ScriptedEndpoint]:
    with ScriptedEndpoint(answer) as server:
        source = source_of(server.base_url, **options)
        return source.score(sent or groups(3)), server


def source_of(url: str, **options: Any) -> Any:
    settings = {"url": url, "backoff_s": 0.0, "max_attempts": 2, "timeout_s": 20, **options}
    return make_source(RewardSourceConfig(kind="http", options=settings), RewardSetup(RewardConfig(), Path(), Path()))


def test_questions_and_answers_reach_the_server_to_the_bit_and_its_scores_come_back_by_id(tmp_path: Path) -> None:
    write_clip(tmp_path / "q.wav", clip(3200))
    scores, server = ask(says(lambda ids: good(ids)[::-1]), groups(3, 2, question=tmp_path / "q.wav"))
    assert scores == [[1.0, 2.0, 3.0], [1.0, 2.0]]
    (request,) = server.requests
    assert request["route"] == "/v1/score"
    group = ScoreRequest.model_validate({"protocol": 1, "groups": request["groups"]}).groups[1]
    assert (group.id, group.question.text, group.question.style) == ("q", "hello there", "sad")
    assert [answer.text for answer in group.answers] == ["answer 0", "answer 1"]
    assert group.question.audio
    assert group.question.audio.wav
    assert group.answers[1].audio
    assert group.answers[1].audio.wav
    received = [read_clip(base64.b64decode(audio.wav or "")) for audio in (group.question.audio, group.answers[1].audio)]
    assert [one.digest for one in received] == [read_clip(tmp_path / "q.wav").digest, clip(1601).digest]


def test_clips_keep_their_channels() -> None:
    channels = np.random.default_rng(0).uniform(-1, 1, (800, 2)).astype(np.float32)
    read = read_clip(encode_exactly(Clip(channels.mean(1), 16_000, channels)))
    assert read.channels is not None
    np.testing.assert_array_equal(read.channels, channels)


def test_what_is_sent_is_chosen(tmp_path: Path) -> None:
    write_clip(tmp_path / "q.wav", clip())
    for audio, sent in (("path", {"path": str(tmp_path / "q.wav")}), ("none", None)):
        scores, server = ask(says(good), groups(1, question=tmp_path / "q.wav"), audio=audio)
        assert scores == [[1.0]]
        (group,) = server.requests[0]["groups"]
        assert group["question"].get("audio") == sent
        assert ("audio" in group["answers"][0]) is (audio == "path")


def test_groups_are_packed_into_calls_and_never_divided() -> None:
    _, server = ask(says(good), groups(3, 3, 9, 1), batch_size=6)
    assert sorted(len(ids_of(request)) for request in server.requests) == [1, 6, 9]


def test_a_range_of_the_servers_own_becomes_1_to_5() -> None:
    scores, _ = ask(says(lambda ids: [{"id": id_, "score": n / 2} for n, id_ in enumerate(ids)], low=0, high=1))
    assert scores == [[1.0, 3.0, 5.0]]


WRONG: list[tuple[str, Callable[[list[str]], Any], str]] = [
    ("a reason", lambda ids: [{"id": id_, "unscored": "too quiet"} for id_ in ids], "the server: too quiet"),
    ("fewer", lambda ids: good(ids)[1:], "the server returned 0 scores for it"),
    ("twice", lambda ids: [*good(ids), good(ids)[0]], "the server returned 2 scores for it"),
    ("out of range", lambda ids: [{"id": id_, "score": 7} for id_ in ids], "the score is 7, and the server's range is 1 to 5"),
    ("NaN", lambda ids: [{"id": id_, "score": float("nan")} for id_ in ids], "score: Input should be a finite number"),
    ("infinite", lambda ids: [{"id": id_, "score": float("inf")} for id_ in ids], "score: Input should be a finite number"),
    ("huge", lambda ids: [{"id": id_, "score": 10**400} for id_ in ids], "the server's score"),
    ("text", lambda ids: [{"id": id_, "score": "4"} for id_ in ids], "score: Input should be a valid number"),
    ("a boolean", lambda ids: [{"id": id_, "score": True} for id_ in ids], "score: Input should be a valid number"),
    ("both", lambda ids: [{"id": id_, "score": 4, "unscored": "x"} for id_ in ids], "give score or unscored, and not both"),
    ("neither", lambda ids: [{"id": id_} for id_ in ids], "give score or unscored, and not both"),
    ("unknown key", lambda ids: [{"id": id_, "score": 4, "sore": 1} for id_ in ids], "sore: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("scores", "reason"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_score_is_unscored_with_a_reason(scores: Callable[[list[str]], Any], reason: str) -> None:
    found = ask(says(scores))[0][0]
    assert isinstance(found[0], Unscored)
    assert reason in found[0].reason
    # Where one entry alone is wrong, the others count.
    assert [one for one in found[1:] if not isinstance(one, Unscored)] in ([], [2.0, 3.0])


REFUSED: list[tuple[str, Any, str]] = [
    ("no JSON", lambda *_: Raw(b"<html>"), "Expecting value"),
    ("no object", lambda *_: Raw(b"[1, 2]"), "no JSON object with a list of scores"),
    ("no scores", lambda *_: Raw(json.dumps(HEAD).encode()), "no JSON object with a list of scores"),
    ("unknown id", says(lambda ids: [*good(ids), {"id": "9/9", "score": 4}]), "scores '9/9', which was not sent"),
    ("no range", says(good, low=None), "low: Input should be a valid number"),
    ("range upside down", says(good, low=5, high=1), "low must be below high"),
    ("range of NaN", says(good, low=float("nan")), "low: Input should be a finite number"),
    ("another protocol", says(good, protocol=2), "protocol: Input should be 1"),
    ("cut", lambda *_: Cut(), "the connection broke off"),
    ("dropped", lambda *_: Drop(), "the connection broke off"),
    ("refused", lambda *_: Fail(422, "question.style is missing"), "HTTP 422: "),
    ("broken", lambda *_: Fail(500, "judge died"), "judge died"),
]


@pytest.mark.parametrize(("answer", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_wrong_reply_leaves_its_answers_unscored(answer: Any, reason: str) -> None:
    found = ask(answer)[0][0]
    assert all(isinstance(one, Unscored) and reason in one.reason for one in found), found


@pytest.mark.parametrize("behaviour", [Hang(), Drip()])
def test_a_slow_server_is_given_up(behaviour: Behaviour) -> None:
    with ScriptedEndpoint(lambda *_: behaviour) as server:
        source = source_of(server.base_url, timeout_s=0.05, concurrency=1, max_attempts=1)
        found = source.score(groups(1))[0][0]
        assert isinstance(found, Unscored)
        assert "no reply within 0.05 s" in found.reason
        with pytest.raises(EndpointError, match="2 calls in a row failed alike"):
            source.score(groups(17, 17))


def test_a_server_that_is_down_is_a_reason_and_soon_a_stop() -> None:
    with ScriptedEndpoint(says(good)) as server:
        url = server.base_url
    source = source_of(url)
    found = source.score(groups(2))[0]
    assert all(isinstance(one, Unscored) and "nothing listens at 127.0.0.1" in one.reason for one in found)
    with pytest.raises(EndpointError, match="5 calls in a row failed alike"):
        source.score(groups(*[17] * 6))


def test_a_server_that_was_down_for_a_moment_is_asked_again() -> None:
    scores, server = ask(lambda request, number: Fail(503) if not number else says(good)(request, number))
    assert (scores, len(server.requests)) == ([[1.0, 2.0, 3.0]], 2)


def test_scores_of_another_judge_or_range_do_not_mix_with_earlier_ones() -> None:
    for head in ({"high": 10}, {"judge": "fake/2"}):
        replies: list[dict[str, Any]] = [{}, head]
        with ScriptedEndpoint(lambda request, n, said=replies: says(good, **said[min(n, 1)])(request, n)) as server:
            source = source_of(server.base_url)
            assert source.score(groups(1)) == [[1.0]]
            (found,) = source.score(groups(1))[0]
        assert isinstance(found, Unscored)
        assert "they do not compare" in found.reason


def test_a_budget_is_never_passed_and_the_servers_own_stops_at_once() -> None:
    paid = says(lambda ids: [{"id": id_, "score": 4, "cost_usd": 0.25} for id_ in ids])
    with ScriptedEndpoint(paid) as server:
        source = source_of(server.base_url, budget_usd=2.0, usd_per_answer=0.5, concurrency=1, batch_size=1)
        assert source.score(groups(3)) == [[4.0, 4.0, 4.0]]
        assert source.client.endpoint.budget.spent_usd == 0.75
        with pytest.raises(BudgetError, match=r"the budget of 2.00 USD is spent \(0.7500 paid"):
            source.score(groups(3))
        assert len(server.requests) == 1
    beyond = says(lambda ids: [{"id": id_, "score": 4, "cost_usd": 1e30} for id_ in ids])
    with ScriptedEndpoint(beyond) as server:
        source = source_of(server.base_url, budget_usd=2.0, usd_per_answer=0.5, concurrency=1, batch_size=1)
        assert source.score(groups(3)) == [[4.0, 4.0, 4.0]]
        assert (source.client.endpoint.budget.spent_usd, source.client.endpoint.budget.unreported_usd) == (0.0, 1.5)
    with pytest.raises(BudgetError, match="the judge's budget is spent"):
        ask(lambda *_: Fail(402, "the judge's budget is spent"))
    with pytest.raises(ConfigError, match="budget_usd needs usd_per_answer"):
        source_of("http://127.0.0.1:1", budget_usd=1.0)


def test_the_token_is_sent_and_needed_beyond_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARAS2S_REWARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="set PARAS2S_REWARD_TOKEN in the environment"):
        source_of("https://rewards.example.org")
    for options, problem in (({}, "url: Field required|Field required"), ({"url": "http://127.0.0.1", "urls": 1}, "urls")):
        with pytest.raises(ConfigError, match=problem):
            make_source(RewardSourceConfig(kind="http", options=options), RewardSetup(RewardConfig(), Path(), Path()))
    monkeypatch.setenv("PARAS2S_REWARD_TOKEN", "secret-1")
    _, server = ask(says(good))
    assert server.requests[0]["authorization"] == "Bearer secret-1"


def test_it_is_a_source_among_others() -> None:
    with ScriptedEndpoint(says(good)) as server:
        sources = (RewardSourceConfig(kind="http", options={"url": server.base_url}), RewardSourceConfig(kind="length"))
        reward = CompositeReward(RewardSetup(RewardConfig(sources=sources), Path(), Path()))
        assert (reward.needs_sound, reward.needs_codes, reward.setup.needs_style) == (True, False, True)
        assert reward.score(groups(1))[0][0].parts == {"http": 1.0, "length": 1.125}  # type: ignore[union-attr]


def test_the_published_schema_is_that_of_the_protocol() -> None:
    import jsonschema

    schema = json.loads(SCHEMA.read_text())
    assert schema == protocol_schema(), f"write protocol_schema() to {SCHEMA}"
    reply = {**HEAD, "scores": [{"id": "a", "score": 4.5}, {"id": "b", "unscored": "silence"}]}
    jsonschema.validate(reply, schema["reply"])
    ScoreReply.model_validate(reply)
