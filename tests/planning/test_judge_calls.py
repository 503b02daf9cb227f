"""Calls and price of a judge by likelihoods as reward, by hand."""

from pathlib import Path

import pytest
from tiny.plans import kimi_plan

from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError
from paras2s.reward.sources.composite import CompositeReward, RewardSetup


def test_a_judge_by_likelihoods_generates_nothing(tmp_path: Path) -> None:
    """Each of 256 answers a step is read under its own style and the others of the largest category."""
    judge = tmp_path / "judge.yaml"
    styles = "styles: {a: {x: in x, y: in y, z: in z}, b: {u: in u, v: in v}}"
    judge.write_text(f"kind: contrast\nengine: completions\n{styles}\nllm: {{model: gpt-4o, base_url: 'https://x.org/v1'}}\n")
    judged = {"reward.sources": [{"kind": "llm", "options": {"judge": str(judge)}}]}
    assert kimi_plan(overrides=judged, prompts=3200).judge_usd == pytest.approx(100 * 256 * 3 * (70 * 2.50 + 10.0) / 1e6)
    local = {"reward.sources": [{"kind": "llm", "options": {"judge": "contrast"}}]}
    assert kimi_plan(overrides=local, prompts=3200).judge_usd == 0.0


def test_a_pairwise_reward_of_three_labels_by_their_probabilities_is_refused(tmp_path: Path) -> None:
    config = RewardConfig(sources=(RewardSourceConfig(kind="pairwise", options={"judge": "trace_local"}),))
    with pytest.raises(ConfigError, match=r"judge\.read: expected reads one label of a pair"):
        CompositeReward(RewardSetup(config, tmp_path, tmp_path))
