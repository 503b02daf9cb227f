"""A UniSRM behind a server: its export, and the judge, the reward, the probe and the bench that call it.

The server is a fake at the seam of HTTP: it says what a test tells it, or what transformers makes of the exported folder.
Not covered: vLLM itself (tests/rollout_vllm/test_unisrm_server.py).
"""

import base64
import io
import json
import logging

import pytest
import soundfile
import torch
import yaml
from safetensors import safe_open
from tiny.endpoint import Fail, Say, ScriptedEndpoint
from tiny.qwen_omni import noise_clip
from tiny.unisrm import pair_record, short_prompts, tiny_items, tiny_unisrm
from typer.testing import CliRunner

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.cli.app import app
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.configs.schema.unisrm import ServedUniSRMConfig, ThinkerConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError, StorageError
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.reward.judges.registry import open_unisrm_judge
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import RewardSetup, make_source
from paras2s.types import Preference, Unscored, Verdict
from paras2s.unisrm.bench.data import Sample
from paras2s.unisrm.bench.judges import open_bench_judge
from paras2s.unisrm.bench.results import Judgement, NoJudgement
from paras2s.unisrm.reward.export import export_served
from paras2s.unisrm.reward.readers import ServedReader
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.tasks import TASKS, QualityRecord
from paras2s.unisrm.reward.thinker import UniSRM

A_WINS = write_reply("T4", pair_record("A", (9, 8, 9, 9, 7), (2, 8, 3, 9, 7)))
B_WINS = write_reply("T4", pair_record("B", (2, 8, 3, 9, 7), (9, 8, 9, 9, 7)))
GOOD = write_reply("T2", QualityRecord((5, 4, 3, 5, 4, 4, 4), ("no hiss", "b", "c", "d"), "All in all good."))
# Greedy replies of random weights: this many tokens are enough to tell prompts apart.
TOKENS = 10


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model of all weights, adapters on it, items, and the adapters' export."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "prompts").mkdir()
    prompts = short_prompts(folder / "prompts")
    tiny_unisrm(prompts=prompts).save(folder / "base")
    model = UniSRM.pretrained(ThinkerConfig(model=str(folder / "base"), trains="adapters", prompts=prompts))
    model.prepare_training()
    with torch.no_grad():
        for name, parameter in model.thinker.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn_like(parameter))
    model.save(folder / "grpo")
    tiny_items(folder)
    export_served(folder / "grpo")
    return folder


@pytest.fixture(scope="module")
def clips(folder):
    return [read_clip(folder / f"c{number}.wav") for number in range(3)]


@pytest.fixture(scope="module")
def pair(clips):
    return Pair(Utterance(clips[0]), clips[1], clips[2])


def called(server, folder, **changed):
    """What is laid over an exported judge's config, so that it calls this server."""
    settings = {"served.llm.base_url": server.base_url, "served.llm.backoff_s": 0.001, "served.llm.max_attempts": 2}
    return {**settings, "served.cache_dir": str(folder / "cache"), **changed}


def judge_at(server, folder, where, **changed):
    orders = changed.pop("both_orders", None)
    return open_unisrm_judge(folder / "served/judge.yaml", called(server, where, **changed), both_orders=orders)


def words(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def invoke(*call, status=0):
    done = CliRunner().invoke(app, [str(word) for word in call])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done


def samples_of(part):
    samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(part["input_audio"]["data"])), dtype="float32")
    assert rate_hz == 16_000
    return samples


class TransformersServer:
    """In place of vLLM: the folder's own chat template and transformers' class, greedy, on what came over HTTP."""

    def __init__(self, folder):
        self.model, self.texts = UniSRM.load(folder), []

    def __call__(self, sent, number):
        from paras2s.reward.reward_model.omni import AUDIO, audio_tokens, mel_features
        from paras2s.unisrm.reward.thinker import Encoded

        messages, samples = [], []
        for message in sent["messages"]:
            content = message["content"]
            if not isinstance(content, str):
                for part in content:
                    if part["type"] == "input_audio":
                        samples.append(samples_of(part))
                content = [part if part["type"] == "text" else {"type": "audio"} for part in content]
            messages.append({"role": message["role"], "content": content})
        text = self.model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        before, *after = text.split(AUDIO)
        assert len(after) == len(samples)
        text = before + "".join(AUDIO * audio_tokens(len(one)) + rest for one, rest in zip(samples, after, strict=True))
        self.texts.append(text)
        ids = self.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        features = tuple(mel_features(self.model.extractor, [one])[0][0] for one in samples)
        return Say(self.model.reply([Encoded(tuple(ids), features)], TOKENS)[0])


# The export.


def test_an_export_is_the_released_layout_with_the_adapters_merged_in(folder):
    from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration

    served = folder / "served"
    with safe_open(served / "model.safetensors", "pt") as file:
        names = list(file.keys())
    assert all(name.startswith("thinker.") and "lora" not in name for name in names)
    config = json.loads((served / "config.json").read_text())
    assert config["architectures"] == ["Qwen2_5OmniForConditionalGeneration"]
    assert json.loads((served / "preprocessor_config.json").read_text())["feature_size"] == 128
    model = UniSRM.load(folder / "grpo")
    assert json.loads((served / "generation_config.json").read_text())["eos_token_id"] == model.end_id
    texts = {"reference_text": "one"}
    sounds = {name: read_clip(folder / f"c{n}.wav") for n, name in enumerate(("prompt_speech", "speech_a", "speech_b"))}
    batch = model.batch([model.encode("T1", texts, sounds)])
    again = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(served)
    plain = UniSRM.load(folder / "base")
    with torch.no_grad():
        trained, merged = model.thinker(**batch).logits, again(**batch).logits
        assert (plain.thinker(**batch).logits - trained).abs().max() > 1e-3
    torch.testing.assert_close(merged, trained, atol=1e-5, rtol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(served)
    assert (tokenizer.audio_token, tokenizer.vision_eos_token) == ("<|AUDIO|>", "<|vision_eos|>")
    assert tokenizer.get_vocab() == model.tokenizer.get_vocab()


def test_the_config_of_the_judge_names_the_weights_and_the_settings(folder, tmp_path):
    text = (folder / "served/judge.yaml").read_text()
    values = yaml.safe_load(text)
    name = values["served"]["llm"]["model"]
    assert f"--served-model-name {name} " in text.splitlines()[0]
    judge = open_unisrm_judge(folder / "served/judge.yaml")
    assert judge.reader.thinker.prompts == folder / "prompts"
    # Other weights are another model there: an old server does not answer for them, nor does the cache.
    other = UniSRM.load(folder / "base")
    other.thinker.lm_head.weight.data[0] += 1
    other.save(tmp_path / "model")
    assert export_served(tmp_path / "model").name != name == export_served(folder / "grpo", tmp_path / "again").name
    # In this process the folder is a checkpoint like any other.
    assert open_unisrm_judge(folder / "served").client is None


def test_an_export_replaces_nothing_and_leaves_nothing_half(folder, tmp_path):
    with pytest.raises(StorageError, match="exists already"):
        export_served(folder / "grpo")
    with pytest.raises(JudgeError, match="holds no UniSRM model"):
        export_served(folder / "prompts", tmp_path / "a")
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for file in (folder / "grpo").iterdir():
        (wrong / file.name).write_bytes(file.read_bytes())
    smaller = tiny_unisrm()
    smaller.thinker.config.text_config.intermediate_size = 32
    type(smaller.thinker)(smaller.thinker.config).save_pretrained(tmp_path / "small")
    smaller.tokenizer.save_pretrained(tmp_path / "small")
    settings = json.loads((wrong / "unisrm.json").read_text())
    (wrong / "unisrm.json").write_text(json.dumps(settings | {"model": str(tmp_path / "small")}))
    with pytest.raises(JudgeError, match="no adapter that fits"):
        export_served(wrong, tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir()} == {"wrong", "small"}


def test_the_verb_says_how_to_serve_and_how_to_judge(folder, tmp_path):
    done = invoke("unisrm", "export", folder / "grpo", tmp_path / "out")
    assert f"vllm serve {tmp_path / 'out'} --served-model-name unisrm-" in done.stdout
    assert f"--judge {tmp_path / 'out'}/judge.yaml" in done.stdout
    found = json.loads(invoke("unisrm", "export", folder / "grpo", tmp_path / "two", "--json").stdout)
    assert found["name"] == yaml.safe_load((tmp_path / "two/judge.yaml").read_text())["served"]["llm"]["model"]


# The same model on both sides of the wire.


def test_a_server_makes_the_tokens_and_the_replies_of_this_process(folder, tmp_path):
    from paras2s.unisrm.reward.items import read_items

    model = UniSRM.load(folder / "served")
    items = read_items(folder)
    sounds = {item.task: {name: read_clip(folder / path) for name, path in item.clips.items()} for item in items}
    behind = TransformersServer(folder / "served")
    with ScriptedEndpoint(behind) as server:
        reader = judge_at(server, folder, tmp_path).reader
        for item in items:
            encoded = model.encode(item.task, item.texts, sounds[item.task])
            found = reader.read(item.task, [(item.texts, sounds[item.task])])[0]
            ids = model.tokenizer(behind.texts[-1], add_special_tokens=False)["input_ids"]
            assert tuple(ids) == encoded.ids, item.task
            assert found.reply == model.reply([encoded], TOKENS)[0]
    assert sorted({item.task for item in items}) == ["T1", "T2", "T3", "T4"]


def test_both_ways_parse_the_same_records(folder, pair, clips, tmp_path, monkeypatch):
    given = [A_WINS, B_WINS, A_WINS, A_WINS, "no reply", A_WINS]
    answers = [GOOD, GOOD.replace("overall=4", "overall=9")]
    monkeypatch.setattr(UniSRM, "reply", lambda self, rows, *_: given if len(rows) == len(given) else answers)
    local = open_unisrm_judge(folder / "served")
    pairs = [pair, Pair(Utterance(clips[1]), clips[0], clips[2]), Pair(Utterance(clips[2]), clips[0], clips[1])]
    singles = [Exchange(Utterance(), clip) for clip in clips[:2]]
    expected = local.compare_batch(pairs), local.score_batch(singles)
    with ScriptedEndpoint(lambda sent, number: Say((given + answers)[number])) as server:
        judge = judge_at(server, folder, tmp_path, **{"served.llm.concurrency": 1})
        steps = []
        found = judge.compare_batch(pairs, lambda *step: steps.append(step)), judge.score_batch(singles)
    assert steps[-1] == (6, 6)
    for one, other in zip([*expected[0], *expected[1]], [*found[0], *found[1]], strict=True):
        assert type(one) is type(other)
        same = ("reason", "reply", "label", "points", "votes", "consistent", "score")
        assert [getattr(one, key, None) for key in same] == [getattr(other, key, None) for key in same]
    assert [type(one) for one in found[0]] == [Preference, Preference, Unscored]
    assert [type(one) for one in found[1]] == [Verdict, Unscored]
    assert found[0][0].judge.startswith("unisrm:unisrm-")


def test_what_the_server_gets(folder, pair, clips, tmp_path):
    with ScriptedEndpoint(lambda *_: Say(A_WINS)) as server:
        judge_at(server, folder, tmp_path, **{"served.audio_format": "flac"}).compare_batch([pair])
        first, second = server.requests
    system, user = first["messages"]
    assert system["content"].startswith("Reply in exactly this form")
    assert [part.get("text") for part in user["content"][::2]] == ["[Turn 1]\n", "\n[Speech A]\n", "\n[Speech B]\n"]
    assert {part["input_audio"]["format"] for part in user["content"][1::2]} == {"flac"}
    sounds = [sent["messages"][1]["content"][1::2] for sent in (first, second)]
    assert sounds[0] == [sounds[1][0], sounds[1][2], sounds[1][1]]
    assert first["skip_special_tokens"] is False
    assert len(first["logit_bias"]) == 3
    assert "response_format" not in first


# Cost, cache and budget.


def test_replies_are_paid_for_once_and_malformed_ones_too(folder, pair, tmp_path):
    priced = {"served.llm.model": "gpt-audio"}
    replies = iter([A_WINS, "no reply", A_WINS, A_WINS, B_WINS])
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"audio_tokens": 40}}
    with ScriptedEndpoint(lambda *_: Say(next(replies), usage=usage)) as server:
        judge = judge_at(server, folder, tmp_path, both_orders=False, **priced)
        one = judge.compare_batch([pair])[0]
        turned = Pair(pair.instruction, pair.second, pair.first)
        assert isinstance(judge.compare_batch([turned])[0], Unscored)
        assert len(server.requests) == 2
        again = judge_at(server, folder, tmp_path, both_orders=False, **priced)
        assert again.compare_batch([pair])[0] == one
        assert again.compare_batch([turned])[0].reason.startswith("missing_think")
        assert (len(server.requests), again.client.spent_usd) == (2, 0.0)
        # 60 tokens of text in, 40 of audio, and 20 out.
        assert one.cost_usd == pytest.approx((60 * 2.5 + 40 * 32 + 20 * 10) / 1e6)
        assert (one.text_in_tokens, one.audio_in_tokens, one.text_out_tokens) == (60, 40, 20)
        assert judge.client.spent_usd == pytest.approx(2 * one.cost_usd)
        bill = judge.client.estimate(judge.requests([pair]))
        assert bill.at_most_usd > one.cost_usd
        # Other settings of the endpoint are another judge, with replies of its own.
        warmer = judge_at(server, folder, tmp_path, both_orders=False, **priced, **{"served.llm.temperature": 1.0})
        assert warmer.version != judge.version == again.version
        warmer.compare_batch([pair])
        assert len(server.requests) == 3


def test_a_cut_off_reply_gives_no_verdict_and_is_requested_again(folder, clips, tmp_path):
    says = iter([Say(GOOD[:40], finish_reason="length"), Say(GOOD)])
    with ScriptedEndpoint(lambda *_: next(says)) as server:
        judge = judge_at(server, folder, tmp_path)
        found = judge.score_batch([Exchange(Utterance(), clips[0])])[0]
        assert isinstance(found, Unscored)
        assert (found.reason, found.reply) == ("the reply was cut off; raise llm.max_output_tokens", GOOD[:40])
        assert judge.score_batch([Exchange(Utterance(), clips[0])])[0].score == 4.0


def test_beyond_the_budget_no_call_is_made(folder, pair, clips, tmp_path):
    poor = {"served.llm.model": "gpt-audio", "served.llm.budget_usd": 1e-6}
    with ScriptedEndpoint(lambda *_: Say(A_WINS)) as server:
        judge = judge_at(server, folder, tmp_path, **poor)
        assert isinstance(judge.compare_batch([pair])[0], BudgetError)
        assert isinstance(judge.score_batch([Exchange(Utterance(), clips[0])])[0], BudgetError)
        item = ({}, {"history_1": clips[0], "speech_a": clips[1], "speech_b": clips[2]})
        assert isinstance(judge.read("T4", [item])[0], BudgetError)
        options = words(called(server, tmp_path, **poor))
        with pytest.raises(BudgetError, match="the budget of"):
            invoke("judge", "clip", folder / "c0.wav", "--judge", folder / "served/judge.yaml", *options)
        with pytest.raises(BudgetError):
            reward(folder, server, tmp_path, judges="single", poor=True).score([group(tmp_path, clips[:2])])
        assert not server.requests


def test_the_end_of_the_budget_counts_more_than_a_broken_rule(folder, pair, tmp_path):
    usage = {"prompt_tokens": 100, "completion_tokens": 1024}
    with ScriptedEndpoint(lambda *_: Say("no reply", usage=usage)) as server:
        named = {"served.llm.model": "gpt-audio", "served.llm.concurrency": 1}
        both = judge_at(server, folder, tmp_path, **named)
        most_usd = both.client.estimate(both.requests([pair])).at_most_usd
        poor = judge_at(server, folder, tmp_path, **named, **{"served.llm.budget_usd": 0.6 * most_usd})
        assert isinstance(poor.compare_batch([pair])[0], BudgetError)
        assert len(server.requests) == 1


# What goes wrong.


def test_one_item_that_cannot_be_sent_holds_nobody_up(folder, clips, tmp_path):
    long = Clip(torch.zeros(16_000 * 301).numpy(), 16_000)
    short = Clip(clips[0].samples[:200], 16_000)
    with ScriptedEndpoint(lambda *_: Say(GOOD)) as server:
        found = judge_at(server, folder, tmp_path).score_batch([Exchange(Utterance(), one) for one in (long, clips[0], short)])
        assert len(server.requests) == 1
    assert "speech lasts 301.0 s, at most 300 s are read" in found[0].reason
    assert found[1].score == 4.0
    assert "speech is too short" in found[2].reason


def test_a_long_clip_is_cut_where_the_settings_say_so(folder, tmp_path, caplog):
    settings = json.loads((folder / "served/unisrm.json").read_text()) | {"max_audio_s": 0.2, "too_long": "cut"}
    (tmp_path / "unisrm.json").write_text(json.dumps(settings))
    with ScriptedEndpoint(lambda *_: Say(GOOD)) as server, caplog.at_level(logging.WARNING):
        judge = judge_at(server, folder, tmp_path, **{"served.settings": str(tmp_path / "unisrm.json")})
        assert judge.score_batch([Exchange(Utterance(), noise_clip(0, 0.5))])[0].score == 4.0
        assert len(samples_of(server.requests[0]["messages"][1]["content"][1])) == 3_200
    assert "is cut to 0.2 s" in caplog.text


def test_a_server_that_is_not_there_or_refuses_is_named(folder, pair, tmp_path):
    with ScriptedEndpoint(lambda *_: Fail(404, "The model `unisrm-1` does not exist.")) as server:
        found = judge_at(server, folder, tmp_path).compare_batch([pair])[0]
    assert "HTTP 404" in found.reason
    assert "does not exist" in found.reason
    # Nobody listens at its port any more.
    gone = judge_at(server, folder, tmp_path).compare_batch([pair])[0]
    assert isinstance(gone, Unscored)
    assert server.base_url in gone.reason


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "give either checkpoint"),
        ({"checkpoint": "x", "served": {}}, "give either checkpoint"),
        ({"served": {"checkpoint": "x"}}, "served.checkpoint"),
        ({"served": {"settings": "nowhere/unisrm.json"}}, "served.settings: .*unisrm export"),
        ({"served": {"audio_format": "aiff"}}, "served.audio_format"),
    ],
)
def test_wrong_settings_are_named(values, why, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({"kind": "unisrm", **values}))
    with pytest.raises(ConfigError, match=why):
        open_unisrm_judge(tmp_path / "mine.yaml")


def test_without_settings_the_instructions_are_the_shipped_ones(tmp_path):
    config = ServedUniSRMConfig(cache_dir=tmp_path)
    assert ServedReader(config, calls=False).systems["T2"] == tiny_unisrm().systems["T2"]


# Use.


def test_the_command_line_judges_estimates_and_dumps(folder, tmp_path):
    first, second, question = (folder / f"c{number}.wav" for number in (1, 2, 0))
    with ScriptedEndpoint(lambda sent, _: Say(GOOD if len(sent["messages"][1]["content"]) == 2 else A_WINS)) as server:
        judge = ["--judge", folder / "served/judge.yaml", *words(called(server, tmp_path, **{"served.llm.model": "gpt-audio"}))]
        call = ["judge", "pair", first, second, "--instruction", question, *judge]
        bill = json.loads(invoke(*call, "--estimate", "--json").stdout)
        dump = tmp_path / "dump"
        assert "no call was made" in invoke(*call, "--dump", dump, "--both-orders").stdout
        assert json.loads(invoke("judge", "clip", first, *judge, "--dump", dump, "--estimate", "--json").stdout)["calls"] == 1
        assert not server.requests
        found = json.loads(invoke(*call, "--json", "--out", tmp_path / "kept").stdout)["verdicts"]["T4"]
        assert (len(server.requests), bill["calls"]) == (2, 2)
        assert 0 < found["cost_usd"] < bill["at_most_usd"]
        assert "Intent Matching & Dialogue Act: 9 and 2 of 10" in found["reason"]
        assert json.loads(invoke("judge", "clip", first, *judge, "--json").stdout)["verdict"]["score"] == 4.0
    written = json.loads((dump / "T4/order-2/messages.json").read_text())
    assert written[0]["content"][0].startswith("Reply in exactly this form")
    segment = {"type": "Mark", "name": "clip", "start_s": 0.0, "end_s": 0.3}
    assert written[1]["content"][1] == {
        "audio": "audio-1.wav", "duration_s": 0.3, "segments": [segment],
    }  # fmt: skip
    assert (dump / "T4/order-2/audio-2.wav").read_bytes() == (dump / "T4/order-1/audio-3.wav").read_bytes()
    assert (dump / "T2/order-1/audio-1.wav").is_file()
    prompts = json.loads((tmp_path / "kept/verdicts.jsonl").read_text())["made_from"]["prompts"]
    assert len(prompts) == 1
    assert "[Turn 1]\n[a clip of 0.3 s]\n[Speech A]" in prompts[0]


def test_a_checkpoint_makes_no_call_to_estimate_or_dump(folder, tmp_path):
    for option in (["--estimate"], ["--dump", tmp_path / "x"]):
        with pytest.raises(ConfigError, match="makes no call"):
            invoke("judge", "clip", folder / "c0.wav", "--judge", folder / "served", *option)
    with pytest.raises(JudgeError, match="no history"):
        invoke("judge", "pair", folder / "c1.wav", folder / "c2.wav", "--judge", folder / "served/judge.yaml", "--estimate")


def reward(folder, server, where, poor=False, **options):
    values = yaml.safe_load((folder / "served/judge.yaml").read_text())
    values["served"]["llm"] |= {"base_url": server.base_url, "backoff_s": 0.001}
    values["served"]["llm"] |= {"model": "gpt-audio", "budget_usd": 1e-6} if poor else {}
    values["served"]["cache_dir"] = str(where / "cache")
    (where / "mine.yaml").write_text(yaml.safe_dump(values))
    config = RewardSourceConfig(kind="unisrm", options={"judge": str(where / "mine.yaml"), **options})
    return make_source(config, RewardSetup(RewardConfig(sources=(config,)), where, where / "tone.json"))


def group(where, clips):
    write_clip(where / "q.wav", noise_clip(9, 0.3))
    question = RewardQuestion("q", None, "Hello?", clip=where / "q.wav")
    return Group(question, tuple(GivenAnswer(0, "", clip) for clip in clips))


def test_it_rewards_groups_and_single_answers(folder, clips, tmp_path):
    best = clips[1].digest

    def answer(sent, _):
        sounds = [samples_of(part) for part in sent["messages"][1]["content"][1::2]]
        wins = [Clip(sound, 16_000).digest == best for sound in sounds]
        if len(sounds) == 1:
            return Say(GOOD if wins[0] else "no reply")
        return Say(A_WINS if wins[1] else B_WINS)

    with ScriptedEndpoint(answer) as server:
        assert reward(folder, server, tmp_path).score([group(tmp_path, clips[:2])]) == [[1.0, 5.0]]
        found = reward(folder, server, tmp_path, judges="single").score([group(tmp_path, [clips[1], clips[2], None])])[0]
    assert found[0] == 4.0
    assert [one.reason.partition(":")[0] for one in found[1:]] == ["missing_think", "the answer has no sound"]


def test_a_probe_estimates_asks_and_shows_its_prompts(folder, tmp_path):
    row = {"id": "1", "first": "c1.wav", "second": "c2.wav", "instruction": "c0.wav", "human": "1"}
    manifest = folder / "pairs.jsonl"
    manifest.write_text(json.dumps(row) + "\n")
    with ScriptedEndpoint(lambda *_: Say(A_WINS)) as server:
        settings = words(called(server, tmp_path, **{"served.llm.model": "gpt-audio"}))
        call = ["probe", manifest, "--judge", folder / "served/judge.yaml", "--only", "position", *settings, "--json"]
        bill = json.loads(invoke(*call, "--estimate").stdout)["judges"][0]
        assert (bill["calls"], len(server.requests)) == (2, 0)
        found = json.loads(invoke(*call, "--out", tmp_path / "out").stdout)["judges"][0]
        assert len(server.requests) == 2
    assert found["probes"][0]["parts"][0]["shares"]["first"]["value"] == 1.0
    assert 0 < found["cost_usd"] < bill["at_most_usd"]
    rows = [json.loads(line) for line in (tmp_path / "out/comparisons.jsonl").read_text().splitlines()]
    assert all("[Speech A]" in one["made_from"]["prompts"][0] for one in rows)
    assert all("Intent Matching" in one["reason"] for one in rows)


def test_the_bench_tells_a_broken_rule_from_a_failed_call(folder, tmp_path):
    from paras2s.unisrm.reward.items import read_items

    item = read_items(folder)[1]
    samples = [Sample(item, "given", item.clips)] * 4
    sounds = [{"speech": noise_clip(number, 0.3)} for number in range(4)]
    says = iter([Say(GOOD), Say("no reply"), Say(GOOD, finish_reason="length"), Fail(400, "broken")])
    with ScriptedEndpoint(lambda *_: next(says)) as server:
        changed = called(server, tmp_path, **{"served.llm.concurrency": 1})
        bench = open_bench_judge(str(folder / "served/judge.yaml"), changed)
        assert set(bench.inputs) == set(TASKS)
        found = bench.judge("T2", samples, sounds)
    assert isinstance(found[0], Judgement)
    assert [one.malformed for one in found[1:] if isinstance(one, NoJudgement)] == ["missing_think", "", ""]
    assert [one.reply for one in found[1:]] == ["no reply", GOOD, ""]
