"""`paras2s distill` with an LLM as teacher, over real HTTP, and with the Omni thinker as pupil: true classes, tiny instances.

Scripted answers and answers out of order are judged by the true rubric. Not covered: that what is learned is any good; the
demo's reward model shows that for the small one.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiny.endpoint import Fail, Say, ScriptedEndpoint
from tiny.world import invoke, write_run

from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import load_dataset
from paras2s.data_gen.policy_inputs import CODEC
from paras2s.data_gen.scripted.tones import load_tones
from paras2s.data_gen.tts.piper_world import USER_STYLES
from paras2s.errors import JudgeError
from paras2s.pipeline import distill
from paras2s.pipeline.data import run_data
from paras2s.pipeline.learned_answers import read_answers
from paras2s.pipeline.other_answers import judge_spoken, plan_spoken
from paras2s.pipeline.preference_set import JudgedAnswers
from paras2s.pipeline.refresh import RewardRefresher
from paras2s.pipeline.reward_probes import disorder_report, judge_disorder
from paras2s.pipeline.source_hacks import hack_report
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.degenerate import KINDS
from paras2s.reward.reward_model.disorder import KEPT_OUT, TAUGHT
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel, RewardModelConfig
from paras2s.reward.reward_model.teachers import JudgeTeacher
from paras2s.reward.sources.composite import CompositeReward
from paras2s.rollout.answer_files import StoredAnswer
from paras2s.run import Run
from paras2s.types import Query
from paras2s.utils.io import read_json, read_jsonl, write_json
from paras2s.utils.progress import open_console

sys.path.insert(0, str(Path(__file__).parents[1] / "reward"))
from test_omni import tiny_thinker, tiny_tokenizer

ANSWERS = 8 * 2


def pupil(tiny_run: Path, folder: Path, server: ScriptedEndpoint, **distill: Any) -> Path:
    """A run of its own on the tiny run's data and warm-up, taught by an audio judge at `server`."""
    llm = {"base_url": server.base_url, "model": "gpt-audio", "backoff_s": 0.001, "max_attempts": 2, "timeout_s": 20.0}
    judge = {"name": "audio", "extractors": [], "judge": {"reads": "audio"}, "llm": llm}
    (folder / "judge.yaml").write_text(yaml.safe_dump(judge))
    base = yaml.safe_load((tiny_run / "run.yaml").read_text())["distill"]
    path = write_run(folder, distill={**base, "teacher": str(folder / "judge.yaml"), **distill})
    (folder / "run").mkdir()
    for part in ("data", "sft"):
        (folder / "run" / part).symlink_to(tiny_run / "run" / part)
    return path


def teacher(sent: dict[str, Any], number: int) -> Say:
    """A score by the answer's length alone: one that a baseline can find."""
    transcript = [part for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"]
    assert len(transcript) == 2
    score = 1 + len(transcript[1]["input_audio"]["data"]) % 5
    return Say(json.dumps({"reasoning": "r", "score": score}))


def test_an_llm_teaches_the_small_model_and_no_call_is_paid_for_twice(tiny_run: Path, tmp_path: Path) -> None:
    with ScriptedEndpoint(teacher) as server:
        config = pupil(tiny_run, tmp_path, server, refresh_every=30)
        given = invoke("distill", config).output
        first = len(server.requests)
        (tmp_path / "run/reward/agreement.json").unlink()
        # What was sampled is kept: another machine need not sample the same to go on.
        kept = sorted((tmp_path / "run/reward").glob("sampled-*/*.npz"))
        assert len(kept) == 2
        invoke("distill", config)
        assert len(server.requests) == first
        # A reward model as version 0.7 stored it.
        stored = tmp_path / "run/reward/reward_model.json"
        write_json(stored, {key: value for key, value in read_json(stored).items() if key != "code_dim"})
        assert "so a new one is trained" in " ".join(invoke("distill", config).output.split())
        assert "code_dim" in read_json(stored)
        assert len(server.requests) == first
    # Preference answers, held-out answers and seven kinds of degenerate ones.
    assert first == ANSWERS + ANSWERS + 7 * 8
    assert f"scores {ANSWERS} answers, for at most" in given
    # 90 steps of 256 answers, with a refresh after 30 and after 60.
    assert "up to 512 more (distill.refresh_every), for at most" in " ".join(given.split())
    assert "verdicts cost" in given
    report = read_json(tmp_path / "run/reward/agreement.json")
    assert report["teacher"].startswith("audio:gpt-audio/")
    assert (report["preference_answers"], report["preference_unscored"], report["held_out_unscored"]) == (ANSWERS, 0, 0)
    assert set(report["baselines"]) == {"majority", "length", "loudness"}
    assert report["baselines"]["majority"]["pearson"] is None
    assert report["held_out"]["n"] == report["held_out_coded_again"]["n"] == ANSWERS
    assert set(report["held_out_by_category"]) == {"emotion", "sarcasm", "age", "gender"}
    rows = list(read_jsonl(tmp_path / "run/reward/preferences.jsonl"))
    assert len(rows) == ANSWERS
    # An LLM scores an answer for the style it was given to, and for no other.
    assert all(list(row["scores"]) == [row["style"]] for row in rows)


def test_answers_are_learned_as_they_were_sampled_and_as_their_sound_is_coded_again(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Degenerate answers are coded from sound: without the second kind, all that is coded from sound is learned to be one.
    learned, train = [], distill.train_reward_model

    def keep(preferences: Any, *rest: Any) -> Any:
        learned.append(preferences)
        return train(preferences, *rest)

    monkeypatch.setattr(distill, "train_reward_model", keep)
    with ScriptedEndpoint(teacher) as server:
        config = pupil(tiny_run, tmp_path, server)
        invoke("distill", config)
    # What is stored of it trains the same model again.
    run = Run(load_config(config), open_console(), True)
    stored = read_answers(run.reward_dir / distill.LEARNED_FILE)
    again, _ = RewardRefresher(run, load_dataset(run.data_dir), {}).train(stored, [])
    distilled = RewardModel.load(run.reward_dir)
    for name, value in distilled.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert distilled.known is not None
    assert again.known is not None
    assert torch.equal(distilled.known.states, again.known.states)
    assert again.known.limit == pytest.approx(distilled.known.limit, rel=1e-6)
    answers = learned[0].answers
    assert len(answers) == 2 * ANSWERS
    for sampled, again in zip(answers[:ANSWERS], answers[ANSWERS:], strict=True):
        assert (sampled.question, sampled.scores) == (again.question, again.scores)
        assert (again.codes == CODEC.encode(CODEC.decode(sampled.codes))).all()
    assert any(
        len(a.codes) != len(b.codes) or (a.codes != b.codes).any()
        for a, b in zip(answers[:ANSWERS], answers[ANSWERS:], strict=True)
    )


def test_a_teacher_that_fails_for_a_fifth_leaves_those_without_a_score_and_goes_on(tiny_run: Path, tmp_path: Path) -> None:
    """32 answers at the default budget of 0.3: enough for the budget to be looked at, and within it."""

    def failing(sent: dict[str, Any], number: int) -> Any:
        return Fail(400, "no audio today") if number % 5 == 0 else teacher(sent, number)

    with ScriptedEndpoint(failing) as server:
        given = invoke("distill", pupil(tiny_run, tmp_path, server, answers_per_query=4)).output
    rows = list(read_jsonl(tmp_path / "run/reward/preferences.jsonl"))
    failed = [row for row in rows if row["scores"] is None]
    assert 0 < len(failed) < len(rows)
    assert all("HTTP 400" in row["unscored"] for row in failed)
    assert len(failed) in (6, 7)
    assert f"{len(failed)} of 32 answers have no score" in given
    report = read_json(tmp_path / "run/reward/agreement.json")
    assert report["preference_unscored"] == len(failed)


def test_a_teacher_that_fails_too_often_stops_the_run_and_nothing_is_learned(tiny_run: Path, tmp_path: Path) -> None:
    # Each refusal differs: twenty alike would stop the calls, before or after the last one is under way.
    with ScriptedEndpoint(lambda _, number: Fail(400, f"no audio in request {number}")) as server:
        config = pupil(tiny_run, tmp_path, server, answers_per_query=4)
        with pytest.raises(JudgeError, match=r"scored none of 32 in 32 answers, more than distill\.max_unscored_share"):
            invoke("distill", config)
    assert not (tmp_path / "run/reward/agreement.json").exists()


def test_the_thinker_learns_from_the_same_scores_and_rewards_with_its_adapter(tiny_run: Path, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tiny_thinker(tokenizer).save_pretrained(tmp_path / "thinker")
    tokenizer.save_pretrained(tmp_path / "thinker")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/omni.md").write_text("My own: {{question}} and {{answer}}?")
    omni = {
        "model": str(tmp_path / "thinker"),
        "prompts": str(tmp_path / "prompts"),
        "max_audio_s": 9.0,
        "steps": 3,
        "batch_size": 4,
        "lora_rank": 2,
        "lr": 0.001,
    }
    with ScriptedEndpoint(teacher) as server:
        config = pupil(tiny_run, tmp_path, server, omni=omni)
        invoke("distill", config)
    invoke("distill", config, "--export", tmp_path / "served")
    assert (tmp_path / "served/model.safetensors").is_file()
    report = read_json(tmp_path / "run/reward/agreement.json")["omni"]
    assert (report["pairs"] + report["pairs_left_out"], report["held_out"]["n"] + report["held_out_unscored"]) == (
        ANSWERS,
        ANSWERS,
    )
    assert set(report["probes"]) == set(KINDS)
    # A random head has hardly any mass on digits, and says so.
    assert report["low_mass_share"] == 1.0
    assert (tmp_path / "run/reward/omni/adapter_model.safetensors").is_file()
    loaded = load_config(config, {"reward.sources": [{"kind": "omni"}]})
    panel = CompositeReward(Run(loaded, open_console(), True).reward_setup())
    model = panel.sources[0].model.model
    # What it was trained with is what it rewards with.
    assert model.config.model == str(tmp_path / "thinker")
    assert (model.template, model.config.max_audio_s) == ("My own: {{question}} and {{answer}}?", 9.0)
    assert any("lora" in name for name, _ in model.thinker.named_parameters())


def test_scripted_answers_are_spoken_and_judged_and_disorder_is_worth_nothing_to_the_rubric(tiny_run: Path) -> None:
    """Real speech, recognition and rubric; the reward model is of chance, so only what the judge says is looked at."""
    run = Run(load_config(tiny_run / "run.yaml"), open_console(), quiet=True)
    judge = JudgeTeacher(RubricJudge(tone=load_tones()[1]), styles=tuple(USER_STYLES))
    spoken = judge_spoken(run, judge, ("angry",))
    assert len(spoken) == len(plan_spoken(("angry",))) == 17
    by_tone = {in_tone: [one.scores["angry"] for one in spoken if one.spoken.in_tone == in_tone] for in_tone in (True, False)}
    assert np.mean(by_tone[True]) > np.mean(by_tone[False]) + 0.5
    good = [one for one in spoken if one.spoken.in_tone and one.scores["angry"] == 5.0]
    assert len(good) >= 4
    query = Query("q", "c", "emotion", "work", "validation", "m1", "q.wav", 1.0, "words", "words", "angry")
    codes = [one.codes for one in good]
    question = EncodedQuestion(codes[0], np.zeros((1, 3), np.float32))
    held = JudgedAnswers(
        [query],
        [question],
        [0] * len(good),
        [StoredAnswer(one, None) for one in codes],
        [one.scores for one in good],
        [1.0] * len(good),
        [-20.0] * len(good),
        1.0,
        codes,
    )
    sizes = RewardModelConfig(
        codebook_sizes=CODEC.cardinality, code_dim=46, feature_dim=3, styles=("angry",), hidden_size=16, layers=1
    )
    report = disorder_report(RewardModel(sizes, CODEC.code_vectors), judge_disorder(judge, held, ("angry",)))
    assert set(report) == {"original", *TAUGHT, *KEPT_OUT, "question"}
    assert {row["n"] for row in report.values()} == {len(good)}
    assert report["original"]["judge_mean"] == 5.0
    assert max(report[kind]["judge_mean"] for kind in ("shuffled", "reversed")) < 1.6
    # Here the question is a good answer's sound.
    assert report["question"]["judge_mean"] == 5.0


def test_the_rubric_pays_a_good_answer_more_than_its_hacks(tiny_run: Path) -> None:
    run = Run(load_config(tiny_run / "run.yaml", {"reward.sources": [{"kind": "rubric"}]}), open_console(), quiet=True)
    found = hack_report(run, run_data(run), 4)
    # Its style is a classifier's guess here; where that is wrong, the good answer gets 1 as well.
    for kind in ("shuffled", "reversed", "the question itself"):
        assert (found[kind].n_scored, found[kind].n_asked) == (2, 2)
        assert (found[kind].good_mean or 0) > (found[kind].mean or 5) + 0.5
