"""How a checkpoint is let answer: its own file, its family, the embedded policy's length.

Not covered: that a sampler keeps to it (tests/policy/test_native.py), and real checkpoints.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.dual_stream import small_config, small_model, small_policy

from paras2s.configs.schema.run import BenchConfig, PolicyConfig, RunConfig
from paras2s.errors import PolicyError
from paras2s.policy.answers import AnswerSettings, answer_settings_of, read_answer_settings, write_answer_settings
from paras2s.policy.types import Sampling


def test_a_runs_settings_by_stream() -> None:
    policy = PolicyConfig(max_answer_steps=70, decoder="mine:open")
    one = RunConfig(policy=policy, bench=BenchConfig(temperature=0.5))
    assert answer_settings_of(one) == AnswerSettings(Sampling(0.5, 0.5, 70), "mine:open")
    bench = BenchConfig(temperature=0.5, audio_temperature=0.9, text_top_k=1, audio_top_k=7)
    assert answer_settings_of(RunConfig(bench=bench)) == AnswerSettings(Sampling(0.5, 0.9, 52, 1, 7), None)


def test_written_and_read_again(tmp_path: Path) -> None:
    settings = AnswerSettings(Sampling(0.5, 0.9, 70, 1, 7), "mine:open", transcript_in_prompt=True)
    write_answer_settings(tmp_path, settings)
    assert read_answer_settings(tmp_path, "kimi") == settings


def test_a_file_of_version_0_11_is_asked_without_the_transcript(tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text('{"sampling": {"max_steps": 9}, "decoder": null}')
    assert read_answer_settings(tmp_path, "kimi") == AnswerSettings(Sampling(max_steps=9))


def test_a_policy_without_a_place_for_the_transcript_refuses_it() -> None:
    with pytest.raises(PolicyError, match=r"policy\.transcript_in_prompt: is for Kimi-Audio, and this is EmbeddedPolicy"):
        small_policy(small_model(small_config())).use_transcript()


@pytest.mark.parametrize(
    ("kind", "steps"), [("kimi", 600), ("moshi", 600), ("qwen_omni", 2400), ("qwen3_omni", 600), ("csm", 600), ("embedded", 52)]
)
def test_without_a_file_it_is_the_familys(tmp_path: Path, kind: str, steps: int) -> None:
    settings = read_answer_settings(tmp_path, kind)
    assert settings is not None
    assert settings.sampling.max_steps == steps


def test_of_a_kind_from_outside_nothing_is_assumed(tmp_path: Path) -> None:
    assert read_answer_settings(tmp_path, "mine:Policy") is None


@pytest.mark.parametrize("text", ["{}", '{"sampling": {"warmth": 1}, "decoder": null}', "[]"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "answers.json").write_text(text)
    with pytest.raises(PolicyError, match=r"answers\.json: not how a policy answers"):
        read_answer_settings(tmp_path, "kimi")
