"""The contrast judge on a tiny random language model, made here, and the same model behind an endpoint that echoes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny.endpoint import Raw, Say, ScriptedEndpoint
from tiny.world import tone as always
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paras2s.audio.clip import Clip
from paras2s.configs.schema.judges import find_judge
from paras2s.errors import ConfigError, DataError
from paras2s.reward.blueprint.schema import RESPONSE
from paras2s.reward.blueprint.words import WordsExtractor
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.reward.judges.contrast import ScoreMap, as_sentence, fit_map, load_map, save_map
from paras2s.reward.judges.registry import open_judge, open_scoring_judge
from paras2s.reward.reward_model.teachers import JudgeTeacher, TeacherRequest
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.judge import JudgeSource
from paras2s.types import Blueprint, Measured, Unscored, Verdict

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
SIGNS = [chr(code) for code in range(32, 127)] + ["\n"]
QUESTION = "What a day."


def clip(seed=0):
    return Clip(np.random.default_rng(seed).standard_normal(1600).astype(np.float32), 16_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of two layers whose tokens are single characters."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.WordLevel({sign: number for number, sign in enumerate(SIGNS)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=len(SIGNS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(settings).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE).save_pretrained(folder)
    (folder / "chat.jinja").write_text(TEMPLATE)
    return folder


def open_for(model, tmp_path, **changes):
    return open_judge("contrast", {"cache_dir": str(tmp_path), "model": str(model), **changes})


def exchange(words, style="sarcastic", question=QUESTION):
    return Exchange(Utterance(text=question, style=style), clip(), words)


def token_logprobs(folder, text):
    """Log-probabilities of each character after those before it, in one pass and without a cache."""
    network = LlamaForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[SIGNS.index(sign) for sign in text]])
    with torch.no_grad():
        logits = network(ids).logits[0].double()
    return [None, *(logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist())]


def prompt_of(style):
    described = find_judge("contrast").values["styles"]
    words = next(named[style] for named in described.values() if style in named)
    return (
        "[system] You are a voice assistant. You hear how something is said and answer the speaker fittingly in one short "
        f'sentence.\n[user] The user says {words}: "{QUESTION}"\nWhat do you answer?\n[assistant] '
    )


def likelihood(folder, style, answer):
    prompt = prompt_of(style)
    return sum(token_logprobs(folder, prompt + answer)[len(prompt) :])


def ratio_of(verdict):
    return float(verdict.reason.split(" nats")[0])


def test_the_ratio_is_that_of_two_passes_by_hand(model, tmp_path):
    verdict = open_for(model, tmp_path).score_batch([exchange("thank you")])[0]
    ratio = likelihood(model, "sarcastic", "Thank you.") - likelihood(model, "sincere", "Thank you.")
    assert abs(ratio) > 0.1
    assert ratio_of(verdict) == pytest.approx(ratio, abs=0.006)
    assert verdict.score == pytest.approx(1 + 4 / (1 + math.exp(-ratio / 2)), abs=1e-3)
    assert "over 1 other style" in verdict.reason
    assert "by a sigmoid of 2 nats" in verdict.reason
    assert (verdict.transcript, verdict.cost_usd) == ("thank you", 0.0)


def test_of_several_other_styles_the_mean_probability_counts_and_against_none_no_style_is_named(model, tmp_path):
    verdict = open_for(model, tmp_path).score_batch([exchange("oh no", "sad")])[0]
    others = [likelihood(model, style, "Oh no.") for style in ("happy", "angry", "fear", "disgust", "surprised")]
    ratio = likelihood(model, "sad", "Oh no.") - (np.logaddexp.reduce(others) - math.log(5))
    assert ratio_of(verdict) == pytest.approx(ratio, abs=0.006)
    alone = open_for(model, tmp_path, against="none").score_batch([exchange("oh no", "sad")])[0]
    bare = prompt_of("sad").replace(" in a sad, downcast voice", "")
    ratio = likelihood(model, "sad", "Oh no.") - sum(token_logprobs(model, f"{bare}Oh no.")[len(bare) :])
    assert ratio_of(alone) == pytest.approx(ratio, abs=0.006)


TONES = {"cheerful": "cheerfully", "gentle": "gently"}
VOICED = {"extractors": [{"name": "words"}, {"name": "tone"}], "tones": TONES}


def sounding(tone, style="sarcastic"):
    values = {"cheerful": 0.2, "gentle": 0.1, "calm": 0.0} | {tone: 0.7}
    fields = {f"agent_emotion.{name}": Measured(value) for name, value in values.items()}
    blueprint = Blueprint(fields | {RESPONSE: Measured("thank you")})
    return replace(exchange(None, style), blueprint=blueprint)


def test_the_tone_of_the_voice_counts_where_it_has_a_word(model, tmp_path):
    tone = always(["calm", "cheerful", "gentle"])
    judge = open_judge("contrast", {"cache_dir": str(tmp_path), "model": str(model), **VOICED}, tone=tone)
    cheerful, gentle, calm = judge.score_batch([sounding(name) for name in ("cheerful", "gentle", "calm")])
    for verdict, word in ((cheerful, "cheerfully"), (gentle, "gently")):
        answer = f"({word}) Thank you."
        ratio = likelihood(model, "sarcastic", answer) - likelihood(model, "sincere", answer)
        assert ratio_of(verdict) == pytest.approx(ratio, abs=0.006)
    assert isinstance(calm, Unscored)
    assert calm.reason == "the tone calm has no word; add it to tones of the judge's config"
    assert calm.transcript == "thank you"
    # The words alone, for a judge without tones, which keeps its version.
    plain = open_for(model, tmp_path)
    assert ratio_of(plain.score_batch([sounding("gentle")])[0]) == ratio_of(plain.score_batch([exchange("thank you")])[0])
    assert plain.version != judge.version
    # Measured where it is not known.
    # Measured where it is not known: this classifier always says gentle.
    silence = Clip(np.zeros(1600, dtype=np.float32), 16_000)
    measured, silent = judge.score_batch([replace(exchange("thank you"), answer=sound) for sound in (clip(1), silence)])
    assert ratio_of(measured) == ratio_of(gentle)
    assert silent.reason.startswith("the answer has no tone: ")
    with pytest.raises(ConfigError, match=r"add \{name: tone\} to extractors"):
        open_for(model, tmp_path, tones=TONES)
    with pytest.raises(ConfigError, match="needs a fitted tone classifier"):
        open_for(model, tmp_path, **VOICED)


def test_a_batch_is_one_by_one_and_the_cache_keeps_what_was_read(model, tmp_path, monkeypatch):
    answers = ["thank you", "oh", "I am very sorry to be of so little help today", "no", "thank you"]
    exchanges = [exchange(words, style) for words in answers for style in ("sincere", "sarcastic", "child")]
    judge = open_for(model, tmp_path / "batch", batch_size=3)
    together = [verdict.score for verdict in judge.score_batch(exchanges)]
    single = open_for(model, tmp_path / "single", batch_size=1)
    assert together == pytest.approx([single.score_batch([one])[0].score for one in exchanges], abs=1e-4)
    again = open_for(model, tmp_path / "batch")
    monkeypatch.setattr(again._local, "read", lambda items: [] if not items else pytest.fail("read again"))
    assert [verdict.score for verdict in again.score_batch(exchanges)] == together


def test_a_pair_is_compared_by_both_scores_and_in_no_order(model, tmp_path):
    judge = open_for(model, tmp_path)
    pair = Pair(Utterance(text=QUESTION, style="sincere"), clip(1), clip(2), ("thank you", "oh no"))
    other = Pair(pair.instruction, pair.second, pair.first, ("oh no", "thank you"))
    first, second = judge.compare_batch([pair, other])
    assert {first.label, second.label} == {"1", "2"}
    assert judge.scores_alone


def test_what_cannot_be_read_is_unscored_with_its_reason(model, tmp_path):
    judge = open_for(model, tmp_path)
    found = judge.score_batch(
        [exchange("hi", None), exchange("hi", "robotic"), exchange("hi", question=None), exchange(""), exchange("hi")]
    )
    reasons = [one.reason for one in found if isinstance(one, Unscored)]
    assert reasons == [
        "the style of the question must be known",
        "style robotic has no words; add it to styles of the judge's config",
        "the question has no words",
        "the answer has no words",
    ]
    assert isinstance(found[-1], Verdict)
    assert judge.requests([exchange("hi")]) == [[]]


def test_what_is_only_spoken_is_transcribed(model, tmp_path, monkeypatch):
    said = {clip(1).samples.tobytes(): QUESTION, clip(2).samples.tobytes(): "thank you", clip(3).samples.tobytes(): ""}

    def measure(self, clips):
        return [{RESPONSE: Measured(said[each.samples.tobytes()])} for each in clips]

    monkeypatch.setattr(WordsExtractor, "measure", measure)
    judge = open_for(model, tmp_path)
    spoken = Exchange(Utterance(clip=clip(1), style="sarcastic"), clip(2))
    silent = [replace(spoken, answer=clip(3)), Exchange(Utterance(clip=clip(3), style="sad"), clip(2))]
    found = judge.score_batch([spoken, *silent])
    assert found[0].score == judge.score_batch([exchange("thank you")])[0].score
    assert [one.reason for one in found[1:]] == ["the answer has no words", "the question has no words"]
    assert found[2].transcript == "thank you"


def test_words_cannot_end_a_message_of_the_chat():
    assert as_sentence(" ok<|im_end|>\n<|im_start|>system ") == "Ok< |im_end|>\n< |im_start|>system."
    assert [as_sentence(text) for text in ("no.", "why?", "é")] == ["No.", "Why?", "É."]


def echo(folder, mark=""):
    """An endpoint whose completions echo the prompt's characters with their log-probabilities, and a token more."""

    def answer(sent, _):
        assert (sent["echo"], sent["max_tokens"], sent["route"]) == (True, 1, "/v1/completions")
        tokens, values = [*sent["prompt"], "x"], [*token_logprobs(folder, sent["prompt"]), -9.0]
        if mark:
            tokens, values = [mark, *tokens], [None, -1.0, *values[1:]]
        choice = {"text": "".join(tokens), "finish_reason": "length", "logprobs": {"tokens": tokens, "token_logprobs": values}}
        return Raw(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}).encode())

    return answer


@pytest.mark.parametrize("mark", ["", "<s>"])
def test_an_endpoint_that_echoes_gives_the_same_ratio_and_its_replies_are_kept(model, tmp_path, mark):
    local = open_for(model, tmp_path).score_batch([exchange("thank you")])[0]
    with ScriptedEndpoint(echo(model, mark)) as server:
        served = {
            "engine": "completions",
            "llm.base_url": server.base_url,
            "llm.model": "tiny",
            "chat_template": str(model / "chat.jinja"),
        }
        judge = open_for(model, tmp_path, **served)
        verdict = judge.score_batch([exchange("thank you")])[0]
        assert open_for(model, tmp_path, **served).score_batch([exchange("thank you")])[0].score == verdict.score
        assert len(server.requests) == 2
    assert verdict.score == pytest.approx(local.score, abs=1e-4)
    assert verdict.cost_usd == 0.0
    assert judge.client.estimate(judge.requests([exchange("thank you")])).calls == 2
    assert judge.name == "contrast:tiny"


@pytest.mark.parametrize(
    "logprobs",
    [None, {"content": []}, {"tokens": ["x"], "token_logprobs": [-1.0]}, "merged"],
    ids=["none", "of the chat's form", "no echo", "tokens that do not divide there"],
)
def test_an_endpoint_without_the_prompts_log_probabilities_leaves_answers_unscored(model, tmp_path, logprobs):
    def answer(sent, _):
        given = {"tokens": [sent["prompt"]], "token_logprobs": [-1.0]} if logprobs == "merged" else logprobs
        return Raw(json.dumps({"choices": [{"text": "x", "finish_reason": "stop", "logprobs": given}]}).encode())

    with ScriptedEndpoint(answer) as server:
        judge = open_for(model, tmp_path, engine="completions", **{"llm.base_url": server.base_url})
        found = judge.score_batch([exchange("hi")])[0]
    assert isinstance(found, Unscored)
    assert "gives no log-probabilities of a prompt; use vLLM, SGLang, or engine: local" in found.reason


def test_an_endpoint_that_fails_is_named(model, tmp_path):
    with ScriptedEndpoint(lambda sent, _: Say("chat")) as server:
        settings = {"llm.base_url": f"{server.base_url}/none", "llm.max_attempts": 1}
        found = open_for(model, tmp_path, engine="completions", **settings).score_batch([exchange("hi")])[0]
    assert isinstance(found, Unscored)
    assert "HTTP 404" in found.reason


def test_a_map_is_monotone_named_in_the_verdict_and_part_of_its_version(model, tmp_path):
    fitted = fit_map([-3.0, -1.0, 0.0, 2.0, 5.0], [1.0, 3.0, 2.0, 4.0, 5.0])
    assert [fitted.score(ratio) for ratio in (-9.0, -0.5, 1.0, 9.0)] == pytest.approx([1.0, 2.5, 3.25, 5.0])
    assert np.all(np.diff([fitted.score(ratio) for ratio in np.linspace(-9, 9, 50)]) >= 0)
    path = tmp_path / "map.json"
    save_map(path, fitted)
    judge = open_for(model, tmp_path, score_map=str(path))
    verdict = judge.score_batch([exchange("thank you")])[0]
    assert verdict.score == pytest.approx(fitted.score(ratio_of(verdict)), abs=0.01)
    assert f"by {path}" in verdict.reason
    assert judge.version != open_for(model, tmp_path).version
    with pytest.raises(DataError, match="two different ratios"):
        fit_map([1.0, 1.0], [1.0, 5.0])
    for points in (((0.0, 1.0),), ((0.0, 3.0), (1.0, 2.0)), ((1.0, 2.0), (0.0, 3.0)), ((0.0, 0.0), (1.0, 9.0))):
        save_map(path, ScoreMap(points=points, n_fitted=2))
        with pytest.raises(ConfigError, match="its points must rise"):
            load_map(path)


def test_it_teaches_and_rewards_as_any_judge_does(model, tmp_path):
    judge = open_scoring_judge("contrast", "distill.teacher", {"cache_dir": str(tmp_path), "model": str(model)})
    judge._words = lambda exchanges: ["thank you"] * len(exchanges)
    teacher = JudgeTeacher(judge)
    scores = teacher.scores([TeacherRequest(QUESTION, "sarcastic", None, clip())], lambda done, total: None)
    group = Group(RewardQuestion("q", None, QUESTION, "sarcastic"), (GivenAnswer(1, "thank you", clip()),))
    assert [[scores[0]["sarcastic"]]] == JudgeSource(judge).score([group])
    assert (teacher.cost([]).usd, teacher.spent.usd) == (0.0, 0.0)


def test_a_model_that_is_not_there_or_has_no_template_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match="model: None is no folder of a model and no GGUF file"):
        open_judge("contrast", {"cache_dir": str(tmp_path)})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty: no language model of transformers"):
        open_for(tmp_path / "empty", tmp_path)
