"""Which scripted answers a reward model learns from, which are kept out, and the report of what it gives them.

Not covered: their sound and their scores, which `paras2s distill` makes (tests/integration/test_distill_cli.py).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from paras2s.data_gen.scripted.scripts import load_families
from paras2s.pipeline.other_answers import TAUGHT_TAKES, JudgedSpoken, SpokenAnswer, plan_spoken
from paras2s.pipeline.reward_probes import spoken_report
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.reward_model.model import RewardModel, RewardModelConfig

STYLES = ("happy", "sad")


def test_sentences_takes_and_a_voice_are_kept_out_of_training() -> None:
    planned = plan_spoken(STYLES)
    assert {one.style for one in planned} == set(STYLES)
    assert len({one.take.key for one in planned}) == len(planned)
    for style in STYLES:
        sentences = load_families()[style].answers
        groups = Counter((one.group, one.in_tone) for one in planned if one.style == style)
        taught = len(sentences) - 1
        assert groups == {
            ("", True): taught * TAUGHT_TAKES, ("", False): taught, ("take", True): taught, ("voice", True): 1,
            ("sentence", True): TAUGHT_TAKES + 1, ("sentence", False): 1,
        }  # fmt: skip
    by_group = {group: {one.take for one in planned if one.group == group} for group in ("", "take", "sentence", "voice")}
    assert not by_group[""] & by_group["take"]
    assert not {take.text for take in by_group[""]} & {take.text for take in by_group["sentence"]}
    assert not {take.speaker for take in by_group[""]} & {take.speaker for take in by_group["voice"]}


def judged(spoken: SpokenAnswer, number: int) -> JudgedSpoken:
    codes = np.random.default_rng(number).integers(0, 16, size=(5 + number, 8))
    return JudgedSpoken(spoken, codes, {"happy": 5.0, "sad": 1.0})


def test_the_report_is_of_each_group_apart() -> None:
    spoken = [judged(one, number) for number, one in enumerate(plan_spoken(STYLES))]
    torch.manual_seed(0)
    codec = Codec2Pairs()
    sizes = RewardModelConfig(
        codebook_sizes=codec.cardinality, code_dim=46, feature_dim=3, styles=STYLES, hidden_size=16, layers=1
    )
    model = RewardModel(sizes, codec.code_vectors)
    report = spoken_report(model, spoken)
    kept = [one for one in spoken if one.spoken.group == "take"]
    row = report["take, right tone"]
    assert row["n"] == len(kept) == 6
    assert row["judge_mean"] == pytest.approx((3 * 5 + 3 * 1) / 6)
    assert row["model_mean"] == pytest.approx(
        np.mean(model.score_for([one.spoken.style for one in kept], [one.codes for one in kept])), abs=1e-5
    )
    assert {name: row["taught"] for name, row in report.items() if name != "right_tone_above"} == {
        "taught, right tone": True, "taught, wrong tone": True, "take, right tone": False,
        "sentence, right tone": False, "sentence, wrong tone": False, "voice, right tone": False,
    }  # fmt: skip
    # Of each style: a kept-out take of three sentences and three takes of the fourth, each against one in the wrong tone.
    assert report["right_tone_above"]["n"] == 2 * (3 + 3)


def test_nothing_spoken_is_an_empty_report() -> None:
    model = RewardModel(
        RewardModelConfig(codebook_sizes=(4,), code_dim=4, feature_dim=3, styles=STYLES, hidden_size=16, layers=1), np.eye(4)
    )
    assert spoken_report(model, []) == {"right_tone_above": {"share": None, "n": 0}}
