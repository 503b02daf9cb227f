"""A UniSRM as a judge and as a reward: a tiny model of the true class, and scripted replies where verdicts are checked.

Not covered: the verdicts of a trained model, and a served one (test_unisrm_served.py).
"""

import json

import pytest
import torch
from tiny.qwen_omni import noise_clip
from tiny.unisrm import pair_record, short_prompts, tiny_unisrm
from typer.testing import CliRunner

from paras2s.audio.clip import write_clip
from paras2s.bench.bias.judges import ProbeOptions, open_probed
from paras2s.cli.app import app
from paras2s.configs.schema.judges import find_judge
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.reward.judges.registry import open_judge, open_unisrm_judge
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import RewardSetup, make_source
from paras2s.types import Preference, Unscored, Verdict
from paras2s.unisrm.reward.judge import TaskInputs, UniSRMJudge, read_task_inputs
from paras2s.unisrm.reward.readers import weights_digest
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.tasks import QualityRecord
from paras2s.unisrm.reward.thinker import UniSRM

A_WINS = write_reply("T4", pair_record("A", (9, 8, 9, 9, 7), (2, 8, 3, 9, 7)))
B_WINS = write_reply("T4", pair_record("B", (2, 8, 3, 9, 7), (9, 8, 9, 9, 7)))
GOOD = write_reply("T2", QualityRecord((5, 4, 3, 5, 4, 4, 4), ("no hiss", "b", "c", "d"), "All in all good."))
FIRST, SECOND, QUESTION = (noise_clip(seed, 0.3) for seed in range(3))
PAIR = Pair(Utterance(QUESTION), FIRST, SECOND)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unisrm")
    (folder / "prompts").mkdir()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    tiny_unisrm(prompts=short_prompts(folder / "prompts")).save(folder / "model")
    yield folder / "model"
    torch.set_num_threads(before)


@pytest.fixture
def replies(monkeypatch):
    """Replies to give, in order, and the encoded items that the model got."""
    given, got = [], []

    def reply(self, rows, max_tokens, batch_size=8):
        got.extend(rows)
        return [given.pop(0) for _ in rows]

    monkeypatch.setattr(UniSRM, "reply", reply)
    return given, got


def test_a_folder_and_a_yaml_open_the_same_judge(checkpoint, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({"kind": "unisrm", "checkpoint": str(checkpoint), "batch_size": 2}))
    assert {find_judge(name).kind for name in (checkpoint, tmp_path / "mine.yaml", "unisrm")} == {"unisrm"}
    one, two = open_judge(checkpoint), open_judge(tmp_path / "mine.yaml")
    three = open_judge("unisrm", {"checkpoint": str(checkpoint)}, both_orders=False)
    assert one.version == two.version == three.version
    assert [judge.config.both_orders for judge in (one, two, three)] == [True, True, False]
    with pytest.raises(JudgeError, match="holds no UniSRM model"):
        open_judge("unisrm", {"checkpoint": str(tmp_path)})
    with pytest.raises(JudgeError, match="holds no UniSRM model"):
        weights_digest(tmp_path)


def test_random_weights_give_no_verdict_but_a_reason(checkpoint):
    judge = open_judge(checkpoint, {"max_reply_tokens": 4})
    found = judge.compare_batch([PAIR])[0]
    assert isinstance(found, Unscored)
    assert found.reason.startswith("missing_think")


def test_both_orders_make_one_verdict_with_its_dimensions(checkpoint, replies):
    given, got = replies
    given.extend([A_WINS, B_WINS, A_WINS, A_WINS])
    agreed, torn = open_judge(checkpoint).compare_batch([PAIR, PAIR])
    assert isinstance(agreed, Preference)
    assert (agreed.label, agreed.order_labels, agreed.consistent) == ("1", ("1", "2"), True)
    assert (torn.label, torn.points, torn.order_labels, torn.consistent) == ("tie", 0.5, ("1", "1"), False)
    assert "Intent Matching & Dialogue Act: 9 and 2 of 10 (x; x)" in agreed.reason
    assert agreed.reply == f"{A_WINS}\n---\n{B_WINS}"
    # History, first, second; then the candidates exchanged.
    model = UniSRM.load(checkpoint)
    history, first, second = (model.features_of("clip", one) for one in (QUESTION, FIRST, SECOND))
    for row, wanted in zip(got[:2], ((history, first, second), (history, second, first)), strict=True):
        assert all(torch.equal(clip, one) for clip, one in zip(row.clips, wanted, strict=True))
    assert not torch.equal(first, second)


def test_a_pair_without_a_spoken_question_is_unscored(checkpoint, replies):
    found = open_judge(checkpoint).compare_batch([Pair(Utterance(text="Hello?"), FIRST, SECOND)])[0]
    assert isinstance(found, Unscored)
    assert "no history" in found.reason


def test_other_tasks_take_their_inputs(checkpoint, replies, tmp_path):
    given, got = replies
    given.append(write_reply("T1", pair_record("B", (1, 1, 1, 1), (2, 2, 2, 2))))
    write_clip(tmp_path / "p.wav", QUESTION)
    inputs = read_task_inputs("T1", {"reference_text": "one two", "prompt_speech": str(tmp_path / "p.wav")})
    judge = open_unisrm_judge(checkpoint, both_orders=False, inputs=inputs)
    found = judge.compare_batch([Pair(Utterance(), FIRST, SECOND)])[0]
    assert (found.label, found.task) == ("2", "T1")
    assert len(got[0].clips) == 3
    for task, values, why in (
        ("T1", {}, "reference_text is missing"),
        ("T3", {"speech_a": "x"}, "got speech_a"),
        ("T2", {}, "judges T1, T3, T4"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_task_inputs(task, values)
    with pytest.raises(ConfigError, match="T2: scores single clips"):
        UniSRMJudge(judge.config, TaskInputs("T2"))


def test_a_single_clip_is_scored_by_its_overall_quality(checkpoint, replies):
    replies[0].extend([GOOD, GOOD.replace("overall=4", "overall=9")])
    good, broken = open_judge(checkpoint).score_batch([Exchange(Utterance(), FIRST), Exchange(Utterance(), SECOND)])
    assert isinstance(good, Verdict)
    assert (good.score, good.reply) == (4.0, GOOD)
    assert good.reason.startswith("noise 5, distortion 4, speed 3")
    assert "Noise description: no hiss" in good.reason
    assert broken.reason.startswith("out_of_range")


def test_the_command_line_shows_the_reasoning(checkpoint, replies, tmp_path):
    for name, clip in (("a", FIRST), ("b", SECOND), ("q", QUESTION)):
        write_clip(tmp_path / f"{name}.wav", clip)
    first, second, question = (str(tmp_path / f"{name}.wav") for name in "abq")
    judge = ["--judge", "unisrm", "--set", f"checkpoint={checkpoint}"]
    replies[0].extend([A_WINS, B_WINS, GOOD, "no reply"])
    done = CliRunner().invoke(app, ["judge", "pair", first, second, "--instruction", question, *judge])
    assert done.exit_code == 0
    assert "Intent Matching" in done.stdout
    done = CliRunner().invoke(app, ["judge", "clip", first, *judge, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["verdict"]["score"]) == (0, 4.0)
    assert CliRunner().invoke(app, ["judge", "clip", first, *judge]).exit_code == 1
    for wrong in (["--instruction", "text"], ["--estimate"], ["--task", "T2"], ["--input", "x=y"]):
        refused = CliRunner().invoke(app, ["judge", "pair", first, second, *judge, *wrong])
        assert isinstance(refused.exception, ConfigError)
    refused = CliRunner().invoke(app, ["judge", "clip", first, *judge, "--task", "mos"])
    assert isinstance(refused.exception, ConfigError)
    refused = CliRunner().invoke(app, ["judge", "pair", first, second, "--instruction", question, "--input", "x=y"])
    assert isinstance(refused.exception, ConfigError)


def test_a_probe_lets_it_compare_one_order_at_a_time(checkpoint, replies, tmp_path):
    replies[0].extend([A_WINS, A_WINS])
    options = ProbeOptions(tmp_path, (str(checkpoint),), None, None, (), None, 0, {"batch_size": 2})
    probed = open_probed(str(checkpoint), options)[0]
    assert (probed.judge.config.both_orders, probed.judge.config.batch_size, probed.client) == (False, 2, None)
    exchanged = Pair(PAIR.instruction, SECOND, FIRST)
    assert [one.label for one in probed.judge.compare_batch([PAIR, exchanged])] == ["1", "1"]


# As a reward.


def source(checkpoint, tmp_path, **options):
    config = RewardSourceConfig(kind="unisrm", options={"judge": str(checkpoint), **options})
    return make_source(config, RewardSetup(RewardConfig(sources=(config,)), tmp_path, tmp_path / "tone.json"))


def group(tmp_path, clips):
    write_clip(tmp_path / "q.wav", QUESTION)
    question = RewardQuestion("q", None, "Hello?", clip=tmp_path / "q.wav")
    return Group(question, tuple(GivenAnswer(0, "", clip) for clip in clips))


def test_a_group_is_rewarded_by_its_games(checkpoint, replies, tmp_path):
    replies[0].extend([A_WINS, B_WINS])
    assert source(checkpoint, tmp_path).score([group(tmp_path, [FIRST, SECOND])]) == [[5.0, 1.0]]


def test_single_answers_are_rewarded_by_their_quality(checkpoint, replies, tmp_path):
    replies[0].extend([GOOD, "no reply"])
    found = source(checkpoint, tmp_path, judges="single").score([group(tmp_path, [FIRST, None, SECOND])])[0]
    assert found[0] == 4.0
    assert [one.reason.partition(":")[0] for one in found[1:]] == ["the answer has no sound", "missing_think"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"judges": "x"}, "pairs or single"),
        ({"schedule": "x"}, "schedule"),
        ({"judge": "rubric"}, "rubric is no UniSRM"),
        ({"judge": "none.yaml"}, r"reward\.sources: unisrm: none\.yaml: no such config.* `paras2s unisrm run` trains one"),
    ],
)
def test_wrong_options_of_the_reward_are_refused(checkpoint, tmp_path, options, why):
    with pytest.raises(ConfigError, match=why):
        source(checkpoint, tmp_path, **options)
