"""The factory of judges: every name and path opens the right kind, and every judge scores and compares in the same way.

Not covered: the reward model as a judge of clips (tests/integration/test_probe_cli opens one of a run).
"""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter
from tiny.endpoint import Say, ScriptedEndpoint

from paras2s.audio.clip import Clip, write_clip
from paras2s.configs.schema import judges as judge_configs
from paras2s.configs.schema.base import preset_path, shipped_presets
from paras2s.configs.schema.judges import find_judge
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError
from paras2s.reward.judges import registry
from paras2s.reward.judges.audio_judge.ensemble import EnsembleJudge
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Judge, as_utterance
from paras2s.reward.judges.contrast import ContrastJudge
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.types import Preference, Unscored, Verdict

# A server of this machine needs no key; nothing is called.
LOCAL = {"llm.base_url": "http://127.0.0.1:1/v1"}
CLIP = Clip(np.full(8000, 0.25, dtype=np.float32), 16_000)


def speak(texts):
    return [CLIP for _ in texts]


class LevelJudge(Judge):
    """Scores a clip by its level, and silence not at all."""

    name, version, scores_alone = "level", "1", True

    def score_batch(self, exchanges, on_progress=None):
        levels = [float(np.abs(exchange.answer.samples).mean()) for exchange in exchanges]
        return [
            Verdict("level", "1", "", level, "", "", 0.0, 0.0) if level else Unscored("level", "silent") for level in levels
        ]


@pytest.mark.parametrize("name", shipped_presets("judges"))
def test_every_shipped_judge_opens_by_name_and_by_path(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A folder of the same name does not stand in the way.
    (tmp_path / name).mkdir()
    if name == "trace_paper":
        # Its extractors' weights come from a hub; here its config alone is read.
        assert find_judge(name).kind == "llm"
        return
    if name == "unisrm":
        # It reads a checkpoint; tests/reward/test_unisrm_judge.py has one.
        assert find_judge(name).kind == "unisrm"
        return
    if name == "dimensions":
        # It takes the items of a benchmark, no pair of answers; tests/bench/unisrm has some.
        assert {one.name for one in registry.open_dimension_judges(name, LOCAL).values()} == {"dimensions:gpt-audio"}
        return
    # StyleSet's tasks score single clips, and have no ensemble.
    tasks = {"tasks": ["mos"]} if name == "styleset" else {}
    # Of this machine it reads a model; tests/reward/test_contrast.py has one.
    tasks |= {"engine": "completions"} if name == "contrast" else {}
    cache = {**LOCAL, **tasks, "cache_dir": str(tmp_path)}
    opened = registry.open_judge(name, cache, voice=speak)
    again = registry.open_judge(preset_path(name, "judges"), cache, voice=speak)
    kind = find_judge(name).kind
    assert isinstance(opened, {"llm": LLMJudge, "contrast": ContrastJudge}.get(kind, AudioJudge | EnsembleJudge))
    assert (opened.name, opened.version) == (again.name, again.version)
    assert opened.client is not None


def test_a_yaml_names_its_kind_and_its_keys_tell_it_where_it_does_not(tmp_path):
    """Files of 0.21 and before have no kind."""
    for name, values in (("llm", {"judge": {"reads": "audio"}}), ("audio", {"tasks": ["mos"]}), ("rubric", {"families": {}})):
        for written in (values, {"kind": name, **values}):
            (tmp_path / f"{name}.yaml").write_text(json.dumps(written))
            assert find_judge(tmp_path / f"{name}.yaml").kind == name
    (tmp_path / "odd.yaml").write_text("kind: oracle")
    with pytest.raises(
        ConfigError, match=r"odd.yaml: kind: no kind of judge 'oracle'; there are llm, contrast, audio, unisrm, dimensions,"
    ):
        find_judge(tmp_path / "odd.yaml")
    (tmp_path / "both.yaml").write_text("{kind: audio, judge: {reads: audio}}")
    with pytest.raises(ConfigError, match="judge: unknown key"):
        registry.open_judge(tmp_path / "both.yaml", voice=speak)


@pytest.mark.parametrize("name", ["trace", "audio", "audiojudge"])
def test_a_yaml_is_read_once(name, tmp_path, monkeypatch):
    read = []

    def counted(path, real=judge_configs.read_values):
        read.append(path)
        return real(path)

    monkeypatch.setattr(judge_configs, "read_values", counted)
    registry.open_judge(name, {**LOCAL, "cache_dir": str(tmp_path)}, voice=speak)
    assert len(read) == 1


def test_a_verdict_that_0_21_recorded_is_still_read():
    old = {
        "judge": "rubric", "version": "3", "prompt_hash": "abc", "score": 4.0, "reason": "fits", "reply": "", "cost_usd": 0.0,
        "latency_s": 0.1, "votes": [], "spread": None, "failed": [], "cost_estimated": False, "parts": {"kind": 4.0},
    }  # fmt: skip
    verdict = TypeAdapter(Verdict).validate_python(old)
    assert (verdict.score, verdict.parts, verdict.transcript, verdict.family, verdict.tone) == (4.0, {"kind": 4.0}, *[None] * 3)
    assert TypeAdapter(Unscored).validate_python({"judge": "a", "reason": "b", "reply": ""}).transcript is None


def test_both_orders_is_the_key_of_either_kind(tmp_path):
    cache = {**LOCAL, "cache_dir": str(tmp_path)}
    assert registry.open_judge("trace", cache, both_orders=True).config.judge.both_orders
    detection = registry.open_judge("detection", cache, tasks=["speaker_identity"], both_orders=False, voice=speak)
    assert not detection.config.both_orders


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("rubric", {}, "needs a fitted tone classifier"),
        ("rubric", {"overrides": {"llm.model": "x"}}, "has no config"),
        ("reward_model", {}, "holds no reward model"),
        ("nobody", {}, "there are audio, audio_overall, audiojudge"),
        ("trace", {"tasks": ["mos"]}, "only an audio judge has tasks"),
    ],
)
def test_a_judge_that_cannot_be_opened_says_what_is_missing(name, options, why):
    with pytest.raises(ConfigError, match=why):
        registry.open_judge(name, **options)


def test_an_audio_judge_is_refused_where_an_llm_judge_is_needed():
    with pytest.raises(ConfigError, match="audiojudge: this is an audio judge"):
        registry.open_llm_judge("audiojudge")


def test_a_judge_of_single_answers_compares_by_its_scores(tmp_path):
    judge = LevelJudge()
    louder = Clip(2 * CLIP.samples, 16_000)
    write_clip(tmp_path / "louder.wav", louder)
    assert judge.score("Hello?", CLIP).score == pytest.approx(0.25)
    found = judge.compare(CLIP, tmp_path / "louder.wav", "Hello?")
    assert isinstance(found, Preference)
    assert (found.label, found.reason) == ("2", "scores 0.250 and 0.500")
    assert judge.compare(CLIP, CLIP).label == "tie"
    assert judge.compare(CLIP, Clip(0 * CLIP.samples, 16_000)) == Unscored("level", "silent")
    assert judge.requests([]) == []


def test_a_verdict_beyond_the_budget_is_raised():
    class Poor(LevelJudge):
        def score_batch(self, exchanges, on_progress=None):
            return [BudgetError("spent") for _ in exchanges]

    with pytest.raises(BudgetError, match="spent"):
        Poor().score("Hello?", CLIP)
    with pytest.raises(BudgetError, match="spent"):
        Poor().compare(CLIP, CLIP)


def test_a_judge_of_pairs_scores_no_single_answer(tmp_path):
    judge = registry.open_judge("audiojudge", {**LOCAL, "cache_dir": str(tmp_path)})
    with pytest.raises(JudgeError, match="cannot score a single one"):
        judge.score("Hello?", CLIP)


def test_an_llm_judge_scores_and_compares_by_the_same_two_calls(tmp_path):
    labels = {"content": "1", "voice_quality": "1", "paralinguistics": "both_good"}

    def reply(sent, number):
        return Say(json.dumps({"reasoning": "clear", **({"score": 4} if number == 0 else labels)}))

    with ScriptedEndpoint(reply) as server:
        judge = registry.open_judge("audio", {"cache_dir": str(tmp_path), "llm.base_url": server.base_url})
        assert judge.score("Hello?", CLIP, style="sad").score == 4.0
        assert judge.compare(CLIP, CLIP, "Hello?").label == "1"


def test_a_question_is_a_file_or_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clip(Path("q.wav"), CLIP)
    assert as_utterance("q.wav").clip is not None
    assert as_utterance("How are you? " * 50, "sad").style == "sad"
    assert as_utterance(CLIP).clip is CLIP
    with pytest.raises(AudioError):
        as_utterance("missing.wav")
