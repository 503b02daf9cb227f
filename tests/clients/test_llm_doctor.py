"""`paras2s doctor --llm` against scripted servers: one that can do everything, one that can do nothing, and none."""

import json

import pytest
from tiny.endpoint import Fail, Hang, Raw, ScriptedEndpoint
from tiny.world import invoke

from paras2s.clients import doctor
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import ConfigError, JudgeError


def completion(text, n_tokens=5, reason="stop", logprobs=None, n_read=400):
    choice = {"message": {"content": text}, "finish_reason": reason, "logprobs": logprobs}
    usage = {"prompt_tokens": n_read, "completion_tokens": n_tokens} if n_read else None
    return Raw(json.dumps({"model": "able-1", "choices": [choice], "usage": usage}).encode())


def able(sent, _):
    """Keeps limits and schemas, gives every probability, and takes audio."""
    if sent["route"] == "/v1/models":
        return Raw(json.dumps({"data": [{"id": "able", "max_model_len": 6000}]}).encode())
    if sent["route"] == "/v1/completions":
        tokens, values = list(sent["prompt"]), [None, *[-1.0] * (len(sent["prompt"]) - 1)]
        return Raw(json.dumps({"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": values}}]}).encode())
    if "response_format" in sent:
        texts = ['{"score": ', "4", ', "reasoning": ""}']
        content = [{"token": text, "logprob": 0.0, "top_logprobs": [{"token": text, "logprob": -0.1}]} for text in texts]
        return completion("".join(texts), logprobs={"content": content})
    return completion("1 2 3", sent["max_tokens"], "length", n_read=413 if sends_audio(sent) else 400)


def sends_audio(sent):
    return isinstance(sent["messages"][0]["content"], list)


def unable(sent, _):
    """Ignores the limit, writes prose, and has no list of models, no completions and no audio input."""
    if sent["route"] != "/v1/chat/completions" or sends_audio(sent):
        return Fail(404 if sent["route"] == "/v1/models" else 400, "not here")
    return completion("It is very kind.", 900)


def report_of(answer, *words):
    with ScriptedEndpoint(answer) as server:
        found = json.loads(invoke("doctor", "--llm", f"127.0.0.1:{server.port}", *words, "--json").stdout)
        assert len(server.requests) <= 15
    return found, {each["what"]: each["works"] for each in found["findings"]}


CHECKED = ("limit of a reply", "JSON schema", "probabilities of a score", "probabilities of a prompt", "audio input")


def test_a_server_that_can_do_everything_gets_few_settings():
    found, works = report_of(able)
    assert [works[what] for what in CHECKED] == [True] * 5
    assert works["cancelling"] is True
    settings = found["llm"]
    assert (settings["model"], settings["max_output_tokens"], settings["concurrency"]) == ("able", 1500, 1)
    assert not {"structured", "limit_field"} & set(settings)
    assert LLMConfig(**settings).timeout_s == 120.0
    assert "replies as able-1" in found["findings"][0]["state"]
    assert found["findings"][1]["state"] == "6000 tokens"


def test_a_server_that_can_do_nothing_is_told_apart_in_words_and_settings():
    found, works = report_of(unable, "--model", "mine")
    assert [works[what] for what in CHECKED] == [False] * 5
    settings = found["llm"]
    assert (settings["model"], settings["structured"], settings["max_output_tokens"]) == ("mine", "never", 1024)
    LLMConfig(**settings)


def test_what_a_server_is_too_slow_to_say_is_unknown_and_not_missing():
    with ScriptedEndpoint(lambda sent, _: Hang()) as server:
        config = LLMConfig(base_url=server.base_url, max_attempts=1, timeout_s=0.05)
        found = [doctor._schema(config)[1], doctor._echo(config)]
    assert [each.works for each in found] == [None, None]
    assert all("unknown: " in each.state and "no reply within 0.05 s" in each.state for each in found)


@pytest.mark.parametrize(
    ("extra", "counted", "works", "state"),
    [
        (13, True, True, "taken, as 13 tokens"),
        # As transformers' server did with a model of text: the clip was left out, and the words around it answered.
        (0, True, False, "dropped without a word: 400 tokens with a clip, 400 without"),
        (2, True, False, "dropped without a word: 402 tokens with a clip, 400 without"),
        (13, False, None, "taken; whether it is read is unknown: the server counts no tokens"),
    ],
)
def test_a_clip_that_costs_no_tokens_was_not_read(extra, counted, works, state):
    def answer(sent, _):
        return completion("Yes.", n_read=(400 + extra * sends_audio(sent)) * counted)

    with ScriptedEndpoint(answer) as server:
        found = doctor._audio(LLMConfig(base_url=server.base_url, max_attempts=1))
    assert (found.works, found.state) == (works, state)


def test_the_settings_are_printed_to_paste_and_no_server_is_said_so():
    with ScriptedEndpoint(able) as server:
        printed = invoke("doctor", "--llm", server.base_url).stdout
        port = server.port
    assert f"llm:\n  base_url: http://127.0.0.1:{port}/v1\n  model: able\n" in printed
    with pytest.raises(JudgeError, match="connection refused: nothing listens"):
        invoke("doctor", "--llm", f"http://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=r"--llm: base_url: .* is no address"):
        invoke("doctor", "--llm", "ftp://x")
