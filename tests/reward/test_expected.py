"""LLM judges that read verdicts from tokens' probabilities, and the bound of reasoning, against a scripted endpoint."""

# ruff: noqa: F811

import json
import math

import pytest
from test_llm_judge import judge_for, spoken  # noqa: F401
from tiny.endpoint import Fail, Raw, Say, ScriptedEndpoint, said

from paras2s.clients.chat import LLMClient
from paras2s.configs.schema.judges import JudgingConfig
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.reward.judges.registry import open_llm_judge
from paras2s.types import Unscored
from paras2s.utils.cache import JsonCache


def scored(digits, tokens=('{"', "score", '": ', None, ', "reasoning": "kind"}')):
    """A body whose score is the likeliest of `digits`, with the log-probabilities that a server gives of each token."""
    best = max(digits, key=digits.get)
    texts = [best if token is None else token for token in tokens]
    given = [{"token": token, "logprob": math.log(p)} for token, p in digits.items()]
    content = [{"token": text, "logprob": 0.0, "top_logprobs": given if text == best else []} for text in texts]
    choice = {"message": {"content": "".join(texts)}, "finish_reason": "stop", "logprobs": {"content": content}}
    return Raw(json.dumps({"choices": [choice]}).encode())


def test_an_expected_score_is_the_mean_over_the_digits_of_the_score_token(spoken, tmp_path):
    """0.1 x 1 + 0.3 x 4 + 0.4 x 5 of 0.8: 4.125. What is no score, such as a 7 or a quote, takes no part."""
    exchange = Exchange(Utterance(text="I failed.", style="sad"), spoken("I am sorry", 1))
    digits = {"5": 0.3, " 5": 0.1, "4": 0.3, "1": 0.1, "7": 0.1, '"': 0.1}
    with ScriptedEndpoint(lambda sent, _: scored(digits)) as server:
        judge = judge_for(server, read="expected", kept=JsonCache(tmp_path / "a.sqlite"))
        verdict = judge.score_batch([exchange])[0]
        again = judge_for(server, read="expected", kept=JsonCache(tmp_path / "a.sqlite")).score_batch([exchange])[0]
        sent = server.requests
        plain = judge_for(server)
    assert verdict.score == again.score == pytest.approx((0.1 + 1.2 + 2.0) / 0.8)
    assert verdict.spread == pytest.approx(1.268611, abs=1e-6)
    assert "probabilities 1: 0.125, 2: 0.000, 3: 0.000, 4: 0.375, 5: 0.500; entropy 1.41 bits" in verdict.reason
    assert len(sent) == 1
    assert (sent[0]["logprobs"], sent[0]["top_logprobs"]) == (True, 20)
    assert list(sent[0]["response_format"]["json_schema"]["schema"]["properties"]) == ["score", "reasoning"]
    assert '{"score": <whole number from 1 to 5>, "reasoning": "<why, in one sentence>"}' in said(sent[0])
    assert (judge.version, judge.prompt_hash) != (plain.version, plain.prompt_hash)


def test_an_expected_label_of_a_pair_is_the_mean_of_both_orders(spoken):
    """The judge prefers what comes first: .6 + .1 / 2 = .65 in the one order, and 1 - (.5 + .2 / 2) = .4 in the other."""
    orders = [{"1": 0.6, "2": 0.3, "tie": 0.1}, {"1": 0.5, "2": 0.3, "tie": 0.2}]
    tokens = ('{"', "label", '": "', None, '", "reasoning": "first"}')
    with ScriptedEndpoint(lambda sent, _: scored(orders["second" in said(sent).split("Answer 1")[1][:60]], tokens)) as server:
        settings = {"llm.base_url": server.base_url, "judge.read": "expected"}
        judge = open_llm_judge("transcript_overall", settings, both_orders=True)
        judge.cache = None
        pair = Pair(Utterance(text="Hi"), spoken("the first words", 1), spoken("the second words", 2))
        found = judge.compare_batch([pair])[0]
        schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert found.votes == pytest.approx((0.65, 0.4))
    assert found.points == pytest.approx(0.525)
    # .6 + .3 for the first one, .3 + .5 for the second: each order named what came first.
    assert (found.label, found.order_labels, found.consistent) == ("1", ("1", "1"), False)
    assert "probabilities 1: 0.600, 2: 0.300, tie: 0.100" in found.reason
    assert list(schema["properties"]) == ["label", "reasoning"]


@pytest.mark.parametrize(
    "body",
    [
        Say('{"score": 4, "reasoning": ""}'),
        scored({"4": 0.9}, ('{"score', '": 4, "reasoning": ""}')),
        scored({"4x": 0.9, "9": 0.1}, ('{"score": ', None, '"}')),
    ],
)
def test_an_expected_score_without_its_log_probabilities_is_unscored(spoken, body):
    """A server that gives none, tokens that the score is a part of, and none of the scores among the likeliest."""
    with ScriptedEndpoint(lambda sent, _: body) as server:
        judge = judge_for(server, read="expected")
        found = judge.score_batch([Exchange(Utterance(text="x"), spoken("y", 1))])[0]
    assert isinstance(found, Unscored)
    assert "no log-probabilities of the verdict" in found.reason or "no JSON object" in found.reason


def test_reasoning_is_bounded_where_the_endpoint_takes_a_bound(spoken):
    """OpenAI and Azure refuse lengths, so that they are not sent; another endpoint's refusal costs one call."""

    def answer(sent, number):
        refused = "maxLength" in json.dumps(sent["response_format"])
        return Fail(400, "response_format: 'maxLength' is not permitted") if refused else Say('{"reasoning": "", "score": 4}')

    exchanges = [Exchange(Utterance(text="x"), spoken(f"y {n}", n)) for n in range(2)]
    with ScriptedEndpoint(answer) as server:
        judge = judge_for(server, llm={"concurrency": 1})
        assert [verdict.score for verdict in judge.score_batch(exchanges)] == [4.0, 4.0]
        sent = [request["response_format"]["json_schema"]["schema"]["properties"]["reasoning"] for request in server.requests]
    assert sent[0] == {"type": "string", "maxLength": 240}
    assert sent[-1] == {"type": "string"}
    assert not LLMClient(JudgingConfig().llm, calls=False)._bounded
