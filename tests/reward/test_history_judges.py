"""Judges and sources on questions with turns before them: who reads them, how, and that nothing changes without any.

Not covered: whether a real model judges better by them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.endpoint import Say, ScriptedEndpoint
from tiny.moshi import tone
from tiny.sdiareward import write_sdiareward

from paras2s.audio.clip import Clip, write_clip
from paras2s.clients.chat import LLMClient, Request
from paras2s.clients.rewards import ScoreRequest
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.judges import JudgingConfig
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError
from paras2s.integrations.scorer import JudgeScorer, SourceScorer
from paras2s.integrations.server import Reader
from paras2s.reward.judges.audio_judge.judge import AudioJudge, make_judges
from paras2s.reward.judges.base import Exchange, Judge, Pair, Progress, Scored, Utterance
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.overall_judge import OverallJudge
from paras2s.reward.judges.prompts import load_prompt, read_prompt
from paras2s.reward.judges.sdiareward import SDiaRewardJudge
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion, SaidBefore
from paras2s.reward.sources.composite import CompositeReward, RewardSetup, check_scopes
from paras2s.reward.sources.http import HttpSource
from paras2s.reward.sources.judge import JudgeSource
from paras2s.types import Verdict

SILENCE = Clip(np.zeros(0, dtype=np.float32), 16_000)
EARLIER = (("user", Utterance(tone(0.3, 16_000, 150), "I lost my job.")), ("assistant", Utterance(None, "<data> Oh no.")))
ALONE = Utterance(None, "What now?", "sad")
BEHIND = replace(ALONE, history=EARLIER)
SHOWN = [{"speaker": "user", "words": "I lost my job."}, {"speaker": "assistant", "words": "<data> Oh no."}]


def judge_for(url: str = "http://127.0.0.1:1/v1", reads: str = "transcript", kind: type[LLMJudge] = LLMJudge) -> LLMJudge:
    config = JudgingConfig.model_validate(
        {"extractors": [{"name": "words"}], "judge": {"reads": reads}, "llm": {"base_url": url, "backoff_s": 0.0}}
    )
    return kind(config, LLMClient(config.llm))


def text_of(request: Any) -> str:
    return "".join(part for message in request.messages for part in message.parts if isinstance(part, str))


def shown_history(text: str) -> Any:
    return json.loads(text.split("<data history>\n")[1].split("\n</data>")[0])


@pytest.mark.parametrize(
    ("system", "user", "known"),
    [
        ("answer", "answer_transcript", "3ec3b5d291a19d95"),
        ("answer", "answer_audio", "c38e2a122f378978"),
        ("answer", "answer_blueprint", "b89b4efadf087df7"),
        ("pair", "pair_transcript", "72e3bd0db4637bb1"),
        ("overall", "overall_transcript", "176630e8f2bf4d27"),
    ],
)
def test_prompts_without_a_history_are_those_of_earlier_versions(system: str, user: str, known: str) -> None:
    assert load_prompt(system, user).hash == known


@pytest.mark.parametrize("reads", ["transcript", "audio"])
def test_an_llm_reads_the_turns_before_the_question_ahead_of_it(reads: str) -> None:
    judge = judge_for(reads=reads)
    answer = (SILENCE, "Rest first.") if reads == "transcript" else (tone(0.4, 16_000, 300), None)
    plain, behind = (judge.answer_requests([Exchange(question, answer[0], words=answer[1])])[0] for question in (ALONE, BEHIND))
    assert isinstance(plain, Request)
    assert isinstance(behind, Request)
    assert plain.messages[0] == behind.messages[0]
    opening = read_prompt("history").split("{{history}}")[0]
    assert opening not in text_of(plain)
    assert shown_history(text_of(behind)) == SHOWN
    # Nothing else differs, and what an earlier turn says is no delimiter.
    text = text_of(behind)
    start, end = text.index(opening), text.index("\n</data>", text.index("<data history>")) + len("\n</data>\n\n")
    assert text[:start] + text[end:] == text_of(plain)
    pair = Pair(BEHIND, tone(0.3, 16_000, 200), tone(0.3, 16_000, 300))
    if reads == "audio":
        (orders,) = judge.pair_requests([pair])
        assert isinstance(orders, list)
        assert [shown_history(text_of(order)) for order in orders] == [SHOWN] * len(orders)


def test_a_verdict_behind_a_history_names_its_own_prompt() -> None:
    with ScriptedEndpoint(lambda sent, n: Say(json.dumps({"reasoning": "", "score": 3}))) as server:
        judge = judge_for(server.base_url)
        plain, behind, again = judge.score_batch([Exchange(one, SILENCE, words="Rest.") for one in (ALONE, BEHIND, BEHIND)])
    assert isinstance(plain, Verdict)
    assert isinstance(behind, Verdict)
    assert isinstance(again, Verdict)
    assert plain.prompt_hash == judge.prompt_hash
    assert behind.prompt_hash == again.prompt_hash != plain.prompt_hash


def test_a_judge_with_one_label_and_an_audio_judge_read_them_too(tmp_path: Path) -> None:
    pair = Pair(replace(BEHIND, clip=tone(0.2, 16_000, 500)), tone(0.3, 16_000, 200), tone(0.3, 16_000, 300))
    (orders,) = judge_for(reads="audio", kind=OverallJudge).pair_requests([pair])
    assert isinstance(orders, list)
    assert shown_history(text_of(orders[0])) == SHOWN
    config = AudioJudgeConfig.model_validate(
        {
            "tasks": ["paralinguistic", "mos"],
            "cache_dir": str(tmp_path),
            "llm": {"base_url": "http://127.0.0.1:1/v1", "model": "x"},
        }
    )
    compares, rates = make_judges(config)
    assert isinstance(compares, AudioJudge)
    for question, shown in ((pair.instruction, True), (replace(pair.instruction, history=()), False)):
        (requests,) = compares.requests([replace(pair, instruction=question)])
        assert isinstance(requests, list)
        assert ["<data history>" in text_of(request) for request in requests] == [shown] * len(requests)
    # It rates a clip, whatever was said before.
    assert "<data history>" not in text_of(rates.requests([Exchange(pair.instruction, pair.first)])[0][0])  # type: ignore[index]


def test_sdiareward_hears_the_whole_dialogue(tmp_path: Path) -> None:
    judge = SDiaRewardJudge(str(write_sdiareward(tmp_path / "tiny")), fit=[-100.0, 100.0])
    question, answer = Utterance(tone(0.5, 16_000, 200), "Hi", history=EARLIER), tone(0.4, 24_000, 300)
    (found,) = judge.score_batch([Exchange(question, answer)])
    assert isinstance(found, Verdict)
    expected = judge.reward([*EARLIER, ("user", question), ("assistant", Utterance(answer))])
    assert found.reply == f"reward {expected:.6g}"
    assert expected != judge.reward([("user", question), ("assistant", Utterance(answer))])


# -- sources of reward ------------------------------------------------------------------------------------------------


class Counts(Judge):
    """Scores by the number of turns that it is given, up to 5."""

    name, version = "counts", "1"
    reads_history = True

    def __init__(self) -> None:
        self.seen: list[Utterance] = []

    def score_batch(self, exchanges: Any, on_progress: Progress | None = None) -> list[Scored]:
        self.seen += [exchange.question for exchange in exchanges]
        return [Verdict(self.name, "1", "", 1.0 + len(exchange.question.history), "", "", 0.0, 0.0) for exchange in exchanges]


class Deaf(Counts):
    reads_history = False


def group(folder: Path | None = None, history: bool = True) -> Group:
    clip: Path | Clip = tone(0.3, 16_000, 150)
    if folder is not None:
        write_clip(folder / "u.wav", clip)  # type: ignore[arg-type]
        clip = folder / "u.wav"
    turns = (SaidBefore("user", "I lost my job.", clip), SaidBefore("assistant", "Oh no."))
    question = RewardQuestion("q7", None, "What now?", "sad", None, turns if history else ())
    return Group(question, (GivenAnswer(9, "Rest.", tone(0.4, 16_000, 300)),))


def composite(judge: Judge, **source: Any) -> CompositeReward:
    config = RewardSourceConfig(kind="llm", **source)
    made = CompositeReward.__new__(CompositeReward)
    made.setup = RewardSetup(RewardConfig(sources=(config,)), Path(), Path())
    made.sources, made.extractors = [JudgeSource(judge)], []
    return made


def test_the_scope_of_a_source_is_the_dialogue_or_its_last_turn(tmp_path: Path) -> None:
    judge = Counts()
    (full,), (last,) = (composite(judge, scope=scope).score([group(tmp_path)])[0] for scope in ("dialogue", "last"))
    assert (full.value, last.value) == (3.0, 1.0)  # type: ignore[union-attr]
    (first, words), (second, oh) = judge.seen[0].history
    assert (first, words.text, second, oh) == ("user", "I lost my job.", "assistant", Utterance(None, "Oh no."))
    assert words.clip is not None
    judge.needs_question_audio = False
    composite(judge).score([group(tmp_path)])
    assert judge.seen[-1].history[0][1] == Utterance(None, "I lost my job.")


def test_a_judge_of_single_questions_refuses_turns_before_them() -> None:
    said = r"reward.sources: llm: judges an answer to one question, and question q7 has turns before it; set its scope to last"
    with pytest.raises(ConfigError, match=said):
        composite(Deaf()).score([group()])
    assert composite(Deaf(), scope="last").score([group()])[0][0].value == 1.0  # type: ignore[union-attr]
    assert composite(Deaf()).score([group(history=False)])[0][0].value == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["rubric", "reward_model", "omni", "self_contrast"])
def test_sources_that_cannot_read_them_are_refused_before_a_run(kind: str) -> None:
    config = RewardConfig(sources=(RewardSourceConfig(kind="length"), RewardSourceConfig(kind=kind)))
    check_scopes(config, [])
    with pytest.raises(ConfigError, match=f"reward.sources: {kind}: .* question q7 has turns before it; set its scope to last"):
        check_scopes(config, ["q7"])
    last = RewardConfig(sources=(RewardSourceConfig(kind=kind, scope="last"), RewardSourceConfig(kind="llm")))
    check_scopes(last, ["q7"])


# -- the protocol of reward servers -----------------------------------------------------------------------------------


class Client:
    """In place of a client of a server: keeps what it is to send."""

    class config:
        audio = "base64"

    def score(self, groups: Any) -> dict[str, float]:
        self.body = ScoreRequest(groups=groups).model_dump_json(exclude_none=True)
        return {answer.id: 2.0 for sent in groups for answer in sent.answers}


def test_a_history_goes_through_the_protocol_to_a_judge(tmp_path: Path) -> None:
    client = Client()
    HttpSource(client).score([group(tmp_path), group(history=False)])  # type: ignore[arg-type]
    body = json.loads(client.body)
    assert [turn["speaker"] for turn in body["groups"][0]["history"]] == ["user", "assistant"]
    assert "audio" not in body["groups"][0]["history"][1]
    # Without a history the request is what it was.
    assert "history" not in body["groups"][1]
    (one, plain), problems, _ = Reader([]).read(client.body.encode())
    assert problems == [[None], [None]]
    assert [(turn.speaker, turn.text, turn.clip is not None) for turn in one.question.history] == [
        ("user", "I lost my job.", True), ("assistant", "Oh no.", False),
    ]  # fmt: skip
    for scorer in (JudgeScorer(Counts()), SourceScorer(JudgeSource(Counts()), "x", (), False, False)):
        assert [row[0].score for row in scorer.score([one, plain])] == [3.0, 1.0]  # type: ignore[union-attr]
    for scorer in (JudgeScorer(Deaf()), SourceScorer(JudgeSource(Deaf()), "deaf", (), False, False)):
        (refused,), (scored,) = scorer.score([one, plain])
        assert scored.score == 1.0  # type: ignore[union-attr]
        assert "judges an answer to one question; send the group without history" in str(refused)


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"speaker": "agent", "text": "Hi"}, "groups.0.history.0.speaker: Input should be 'user' or 'assistant'"),
        ({"speaker": "user"}, "give text, audio, or both"),
        ({"speaker": "user", "text": "Hi", "x": 1}, "groups.0.history.0.x: Extra inputs"),
    ],
)
def test_a_wrong_turn_is_refused_by_its_key(turn: dict[str, Any], said: str) -> None:
    body = {"groups": [{"question": {"text": "x"}, "answers": [{"id": "a", "text": "y"}], "history": [turn]}]}
    with pytest.raises(Exception, match=said):
        Reader([]).read(json.dumps(body).encode())


def test_a_broken_clip_of_a_turn_is_the_reason_of_its_group() -> None:
    turn = {"speaker": "user", "audio": {"wav": "UklGRg=="}}
    body = {"groups": [{"question": {"text": "x"}, "answers": [{"id": "a", "text": "y"}], "history": [turn]}]}
    _, problems, _ = Reader([]).read(json.dumps(body).encode())
    assert problems[0][0] is not None
    assert problems[0][0].startswith("history.0.audio: ")
