"""UniSRM's rewards by hand, for each task, and the shipped settings."""

import pytest

from paras2s.configs.schema.unisrm import RewardWeights, load_unisrm_config
from paras2s.errors import ConfigError
from paras2s.unisrm.reward.reply import Malformed, ParseFailure
from paras2s.unisrm.reward.rewards import accuracy_reward, combine, consistency_reward, format_reward, preferences
from paras2s.unisrm.reward.tasks import PairRecord, QualityRecord, SideScores

BROKEN = Malformed(ParseFailure.MISSING_ANSWER, "no answer")


def pair(better, first, second):
    return PairRecord(better, tuple(SideScores(tuple(scores), ("x",) * len(scores)) for scores in (first, second)))


T1_LABEL = pair("A", (9, 5, 7, 6), (4, 5, 8, 2))  # signs + 0 - +
T3_LABEL = pair("B", (3, 2, 9), (9, 9, 8))  # signs - - +
T4_LABEL = pair("B", (1, 5, 1, 5, 7), (9, 5, 9, 6, 7))  # signs - 0 - - 0
T2_LABEL = QualityRecord((2, 5, 4.5, 5, 4, 4, 3.5))


@pytest.mark.parametrize(
    ("task", "reply", "label", "accuracy", "consistency"),
    [
        ("T1", pair("A", (9, 5, 7, 6), (4, 5, 8, 2)), T1_LABEL, 1, 1),
        # Signs + + - -: the first and the third are right.
        ("T1", pair("A", (9, 9, 1, 1), (4, 5, 8, 2)), T1_LABEL, 1, 2 / 4),
        # The right signs but for the last, and the other answer.
        ("T1", pair("B", (5, 5, 0, 0), (4, 5, 8, 2)), T1_LABEL, 0, 3 / 4),
        ("T3", pair("B", (0, 0, 1), (1, 1, 0)), T3_LABEL, 1, 1),
        ("T3", pair("A", (9, 9, 9), (1, 1, 1)), T3_LABEL, 0, 1 / 3),
        ("T4", pair("B", (1, 1, 1, 1, 1), (2, 2, 2, 2, 2)), T4_LABEL, 1, 3 / 5),
        ("T4", pair("A", (2, 2, 2, 2, 2), (1, 1, 1, 1, 1)), T4_LABEL, 0, 0),
        ("T4", BROKEN, T4_LABEL, 0, 0),
        # Overall 3 against 3.5: 1 - 0.5 / 4. All: 0 0 0.5 0 0 0 0.5, so 1 - (1 / 7) / 4.
        ("T2", QualityRecord((2, 5, 4, 5, 4, 4, 3)), T2_LABEL, 0.875, 1 - 1 / 28),
        # Overall 1 against 3.5: 1 - 2.5 / 4. Distances 1 4 3.5 4 3 3 2.5 = 21, so 1 - 3 / 4.
        ("T2", QualityRecord((1, 1, 1, 1, 1, 1, 1)), T2_LABEL, 0.375, 0.25),
        ("T2", BROKEN, T2_LABEL, 0, 0),
        # A preference by people has no scores.
        ("T1", pair("A", (9, 9, 9, 9), (1, 1, 1, 1)), PairRecord("A"), 1, None),
        ("T1", BROKEN, PairRecord("A"), 0, None),
    ],
)
def test_terms_by_hand(task, reply, label, accuracy, consistency):
    assert accuracy_reward(task, reply, label) == pytest.approx(accuracy)
    found = consistency_reward(task, reply, label)
    assert found is None if consistency is None else found == pytest.approx(consistency)
    fmt = -1 if reply is BROKEN else 0
    assert format_reward(reply) == fmt
    total = combine(task, reply, label, RewardWeights(format=2, accuracy=3, consistency=5))
    assert total.value == pytest.approx(2 * fmt + 3 * accuracy + 5 * (consistency or 0))
    assert set(total.parts) == {"format", "accuracy", *(() if consistency is None else ("consistency",))}


def test_signs_of_dimensions():
    assert preferences(T1_LABEL) == (1, 0, -1, 1)
    with pytest.raises(ValueError, match="without scores"):
        preferences(PairRecord("A"))


def test_shipped_settings_are_the_papers():
    paper = load_unisrm_config("paper")
    assert (paper.sft.lr, paper.sft.batch_size) == (1e-5, 64)
    assert paper.grpo is not None
    assert (paper.grpo.lr, paper.grpo.batch_size, paper.grpo.group_size, paper.grpo.kl_weight) == (1e-6, 16, 8, 0.04)
    assert paper.grpo.weights == RewardWeights(format=1, accuracy=1, consistency=1)
    assert load_unisrm_config("without_grpo").grpo is None
    without_rcr, no_reasoning = load_unisrm_config("without_rcr"), load_unisrm_config("no_reasoning")
    assert without_rcr.grpo.weights == no_reasoning.grpo.weights == RewardWeights(consistency=0)
    assert (without_rcr.thinker.reasoning, no_reasoning.thinker.reasoning) == (True, False)


@pytest.mark.parametrize(
    ("preset", "key", "value", "message"),
    [
        ("paper", "grpo.batch_size", 12, "no multiple"),
        ("paper", "thinker.reasoning", False, "needs thinker.reasoning"),
        ("paper", "grpo.weight", 1, "unknown key"),
    ],
)
def test_wrong_settings_are_refused(preset, key, value, message):
    with pytest.raises(ConfigError, match=message):
        load_unisrm_config(preset, {key: value})
