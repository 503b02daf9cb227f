"""The distilled reward model: batching, files, what it is taught, that it learns to listen to the question, agreement.

Not covered: how well it follows the rubric on real answers, which `paras2s distill` measures and writes down.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.reward_model import random_reward_model

from paras2s.configs.schema.run import DistillConfig
from paras2s.errors import DataError, JudgeError
from paras2s.reward.reward_model.known_range import KnownRange
from paras2s.reward.reward_model.model import MAX_STEPS, EncodedQuestion, RewardModel, RewardModelConfig
from paras2s.reward.reward_model.train import (
    PROSODY_NOISE,
    WORDS_NOISE,
    PreferenceSet,
    ScoredAnswer,
    agreement,
    batch_loss,
    draw_batch,
    fit_baseline,
    split_batch,
    train_reward_model,
)
from paras2s.types import Unscored

SIZES, FEATURES = (8, 6), 3
# Every code sounds like itself alone.
VECTORS = np.eye(sum(SIZES))
STYLES = ("happy", "sad", "angry")
# What an answer of a kind (column) is worth to a question of a style (row). Neither alone says much.
VALUE = ((5, 1, 2), (1, 5, 3), (3, 2, 5))


def make_model(seed: int = 0) -> RewardModel:
    torch.manual_seed(seed)
    sizes = RewardModelConfig(
        codebook_sizes=SIZES, code_dim=sum(SIZES), feature_dim=FEATURES, styles=STYLES, hidden_size=16, layers=2
    )
    return random_reward_model(sizes, VECTORS)


def make_codes(steps: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, SIZES, size=(steps, len(SIZES)))


def make_question(steps: int, rng: np.random.Generator) -> EncodedQuestion:
    return EncodedQuestion(make_codes(steps, rng), rng.normal(size=(steps, FEATURES)).astype(np.float32))


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_batch_scores_as_its_parts_do() -> None:
    rng = np.random.default_rng(0)
    questions = [make_question(steps, rng) for steps in (1, 9, 4, 30, MAX_STEPS + 20)]
    answers = [make_codes(steps, rng) for steps in (12, 1, MAX_STEPS + 5, 7, 3)]
    model = make_model()
    together = model.score(questions, answers)
    alone = [model.score([question], [answer])[0] for question, answer in zip(questions, answers, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert all(1 < score < 5 for score in together)
    assert len({round(score, 6) for score in together}) == 5


def test_scoring_leaves_no_dropout_on() -> None:
    rng = np.random.default_rng(1)
    pair = [make_question(5, rng)], [make_codes(6, rng)]
    model = make_model().train()
    assert model.score(*pair) == model.score(*pair)


def test_an_empty_answer_scores_1() -> None:
    rng = np.random.default_rng(2)
    questions = [make_question(5, rng) for _ in range(3)]
    answer, nothing = make_codes(6, rng), np.zeros((0, 2), dtype=np.int64)
    model = make_model()
    assert model.score(questions, [nothing] * 3) == [1.0, 1.0, 1.0]
    mixed = model.score(questions, [nothing, answer, nothing])
    assert mixed[::2] == [1.0, 1.0]
    assert mixed[1] == pytest.approx(model.score(questions[1:2], [answer])[0], abs=1e-6)
    assert model.score([], []) == []


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_saved_model_scores_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    questions, answers = [make_question(4, rng) for _ in range(3)], [make_codes(5, rng) for _ in range(3)]
    model = make_model(seed=4)
    model.save(tmp_path)
    loaded = RewardModel.load(tmp_path)
    assert loaded.config == model.config
    assert loaded.score(questions, answers) == model.score(questions, answers)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "known_range.safetensors",
        "reward_model.json",
        "reward_model.safetensors",
    ]


@pytest.mark.parametrize("length", [0, 5, 200, -40])
def test_cut_off_weights_are_named(tmp_path: Path, length: int) -> None:
    make_model().save(tmp_path)
    path = tmp_path / "reward_model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(JudgeError, match=r"reward_model\.safetensors: does not fit.*run `paras2s distill` again") as caught:
        RewardModel.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_weights_of_another_size_are_named_in_one_line(tmp_path: Path) -> None:
    make_model().save(tmp_path)
    path = tmp_path / "reward_model.json"
    path.write_text(path.read_text().replace('"hidden_size": 16', '"hidden_size": 32'))
    with pytest.raises(JudgeError, match="does not fit") as caught:
        RewardModel.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ['{"hidden_size": 16', "[]", "{}", '{"hidden_size": "wide"}'])
def test_a_broken_config_is_named(tmp_path: Path, content: str) -> None:
    make_model().save(tmp_path)
    (tmp_path / "reward_model.json").write_text(content)
    with pytest.raises((DataError, JudgeError), match=r"reward_model\.json"):
        RewardModel.load(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"reward_model\.json: no such file"):
        RewardModel.load(tmp_path)
    make_model().save(tmp_path)
    (tmp_path / "reward_model.safetensors").unlink()
    with pytest.raises(JudgeError, match=r"reward_model\.safetensors"):
        RewardModel.load(tmp_path)
    make_model().save(tmp_path)
    (tmp_path / "known_range.safetensors").unlink()
    with pytest.raises(JudgeError, match=r"known_range\.safetensors: .*run `paras2s distill` again"):
        RewardModel.load(tmp_path)


# -- what it knows ----------------------------------------------------------------------------------------------------


def test_a_state_is_as_far_as_from_the_nearest_one_and_the_limit_lets_95_of_100_in() -> None:
    learned = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    # At 1 to 100 above the second: 95 % of them, with interpolation, lie within 1 + 0.95 x 99.
    known = KnownRange.fit(learned, torch.stack([torch.full((100,), 10.0), torch.arange(1.0, 101.0)], 1))
    assert known.limit == pytest.approx(95.05)
    distances = known.distances(torch.tensor([[3.0, 4.0], [10.0, 0.0], [16.0, -8.0]]))
    assert distances.tolist() == pytest.approx([5.0, 0.0, 10.0])
    assert known.distances(torch.zeros(0, 2)).tolist() == []


def test_an_answer_unlike_all_that_it_learned_from_has_no_score() -> None:
    rng, model = np.random.default_rng(5), make_model()
    learned, question = [make_codes(6, rng) for _ in range(20)], make_question(4, rng)
    strange = np.zeros((90, 2), dtype=np.int64)
    # Without a held-out answer of any length nothing says what is too far.
    model.learned_from(learned, [learned[0][:0]])
    assert model.score_known([question], [strange]) == model.score([question], [strange])
    # Held-out answers that differ in one code of one step from those learned from.
    near = [np.vstack([codes[:5], make_codes(1, rng)]) for codes in learned]
    model.learned_from([*learned, learned[0][:0]], near)
    found = model.score_known([question] * 4, [learned[3], near[3], strange, learned[0][:0]])
    assert found[:2] == pytest.approx(model.score([question] * 2, [learned[3], near[3]]), abs=1e-5)
    assert found[3] == 1.0
    assert isinstance(found[2], Unscored)
    assert "unlike the answers that the model learned from" in found[2].reason
    assert model.score([question], [strange])[0] > 1.0
    assert (model.known_share(learned), model.known_share([strange]), model.known_share([])) == (1.0, 0.0, None)
    model.known = None
    with pytest.raises(JudgeError, match="does not know which answers it learned from"):
        model.score_known([question], [strange])


# -- what it is taught ------------------------------------------------------------------------------------------------


def toy_preferences(per_style: int, seed: int) -> PreferenceSet:
    """Style is in the features and kind is in the first codebook; the score is WORTH[style][kind]."""
    rng = np.random.default_rng(seed)
    questions, styles, answers = [], [], []
    for number in range(per_style * len(STYLES)):
        style, steps = number % len(STYLES), int(rng.integers(3, 8))
        features = rng.normal(scale=0.3, size=(steps, FEATURES)) + 2 * np.eye(FEATURES)[style]
        questions.append(EncodedQuestion(make_codes(steps, rng), features.astype(np.float32)))
        styles.append(STYLES[style])
        for kind in range(3):
            codes = make_codes(int(rng.integers(4, 9)), rng)
            codes[:, 0] = rng.integers(2 * kind, 2 * kind + 2, size=len(codes))
            answers.append(ScoredAnswer(number, codes, {s: float(VALUE[i][kind]) for i, s in enumerate(STYLES)}))
    degenerate = tuple(np.full((6, 2), value) for value in ([7, 5], [6, 5]))
    return PreferenceSet(tuple(questions), tuple(styles), tuple(answers), degenerate)


@pytest.fixture(scope="module")
def taught() -> RewardModel:
    config = DistillConfig(steps=130, batch_size=48, lr=3e-3, hidden_size=32, layers=2)
    losses: list[float] = []
    model = train_reward_model(toy_preferences(12, seed=0), SIZES, VECTORS, config, 0, lambda _, loss: losses.append(loss))
    assert len(losses) == 130
    assert losses[-1] < 0.5 * losses[0]
    return model


def test_it_learns_scores_that_depend_on_question_and_answer(taught: RewardModel) -> None:
    held_out = toy_preferences(8, seed=1)
    judged = [a.scores[held_out.styles[a.question]] for a in held_out.answers]
    predicted = taught.score([held_out.questions[a.question] for a in held_out.answers], [a.codes for a in held_out.answers])
    found = agreement(predicted, judged)
    assert found["pearson"] > 0.9
    # The best that a model could do which does not listen to the question: the mean worth of each kind of answer.
    deaf = agreement([float(np.mean(VALUE, axis=0)[n % 3]) for n in range(len(judged))], judged)
    assert abs(deaf["pearson"]) < 0.4


def test_it_learns_that_degenerate_answers_score_1(taught: RewardModel) -> None:
    held_out = toy_preferences(4, seed=2)
    scores = taught.score(held_out.questions, [held_out.degenerate[n % 2] for n in range(len(held_out.questions))])
    assert max(scores) < 1.5


def test_it_hears_order() -> None:
    """Answers of one word in order, and the same steps in any other: equal in every mean over steps."""
    rng = np.random.default_rng(0)
    word = np.stack([np.arange(8), np.arange(8) % 6], 1)
    questions = tuple(make_question(4, rng) for _ in range(12))
    answers = tuple(ScoredAnswer(n, np.tile(word, (1 + n % 2, 1)), dict.fromkeys(STYLES, 5.0)) for n in range(12))
    styles = tuple(STYLES[n % 3] for n in range(12))
    config = DistillConfig(steps=120, batch_size=32, lr=3e-3, hidden_size=32, layers=2)
    model = train_reward_model(PreferenceSet(questions, styles, answers, ()), SIZES, VECTORS, config, 0, lambda *_: None)
    mixed = [word[rng.permutation(8)] for _ in range(20)]
    assert model.score_for(["happy"], [word])[0] > 4
    assert np.mean(model.score_for(["happy"] * 20, mixed)) < 2


def test_scores_for_a_known_style_are_those_of_its_row() -> None:
    rng = np.random.default_rng(6)
    answers, model = [make_codes(steps, rng) for steps in (5, 9)], make_model()
    expected = model.eval().score_logprobs(answers).exp() @ torch.arange(1.0, 6.0)
    assert model.score_for(["sad", "angry"], answers) == pytest.approx([expected[0, 1].item(), expected[1, 2].item()])
    assert model.score_for([], []) == []


def test_code_vectors_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"code vectors \[14, 13\] for 14 codes of 14 numbers"):
        RewardModel(make_model().config, VECTORS[:, 1:])


def test_training_depends_on_its_seed_alone() -> None:
    config = DistillConfig(steps=3, batch_size=8, hidden_size=16, layers=1)
    data = toy_preferences(2, seed=0)
    pair = data.questions[:1], [data.answers[0].codes]
    runs = [train_reward_model(data, SIZES, VECTORS, config, seed, lambda *_: None).score(*pair) for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("steps", [1, 9, 10, 11])
def test_any_number_of_steps_can_be_trained(steps: int) -> None:
    losses: list[float] = []
    config = DistillConfig(steps=steps, batch_size=8, hidden_size=16, layers=1)
    train_reward_model(toy_preferences(2, seed=0), SIZES, VECTORS, config, 0, lambda _, loss: losses.append(loss))
    assert len(losses) == steps


def test_training_does_not_depend_on_the_number_of_cores() -> None:
    config = DistillConfig(steps=3, batch_size=8, hidden_size=16, layers=1)
    data, before, scores = toy_preferences(2, seed=0), torch.get_num_threads(), list[float]()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = train_reward_model(data, SIZES, VECTORS, config, 5, lambda *_: None)
            scores += model.score(data.questions[:1], [data.answers[0].codes])
    finally:
        torch.set_num_threads(before)
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_losses_of_the_parts_of_a_batch_add_up_to_its_loss() -> None:
    """Also where answers have no score for some styles, in some parts more than in others."""
    data = toy_preferences(4, seed=0)
    for answer in data.answers[::2]:
        answer.scores.pop(STYLES[(STYLES.index(data.styles[answer.question]) + 1) % 3])
    batch = draw_batch(data, STYLES, 21, np.random.default_rng(0))
    assert (batch.score_classes < 0).any()
    parts, model = split_batch(batch, 4), make_model().eval()
    assert [len(part.answers) for part in parts] == [6, 6, 6, 3]
    expected = batch_loss(model, batch, batch, None).item()
    assert sum(batch_loss(model, part, batch, None).item() for part in parts) == pytest.approx(expected, rel=1e-5)
    # A mean over each part is another number.
    assert np.mean([batch_loss(model, part, part, None).item() for part in parts]) != pytest.approx(expected, rel=1e-3)
    together = sorted((len(one), int(score)) for part in parts for one, score in zip(part.answers, part.classes, strict=True))
    assert together == sorted((len(one), int(score)) for one, score in zip(batch.answers, batch.classes, strict=True))


# -- batches ----------------------------------------------------------------------------------------------------------


def test_prosody_and_words_are_augmented_each_by_its_own_size() -> None:
    """Questions of 2000 numbers, half of them words; the same draw for every step."""
    question = EncodedQuestion(np.zeros((3, 2), dtype=np.int64), np.zeros((3, 2000), np.float32), words_dim=1000)
    answer = ScoredAnswer(0, np.full((4, 2), 1), {"happy": 3.0})
    batch = draw_batch(PreferenceSet((question,), ("happy",), (answer,), ()), STYLES, 4, np.random.default_rng(0))
    for augmented in batch.questions:
        assert (augmented.features == augmented.features[0]).all()
        assert np.std(augmented.features[0, :1000]) == pytest.approx(PROSODY_NOISE, rel=0.1)
        assert np.std(augmented.features[0, 1000:]) == pytest.approx(WORDS_NOISE, rel=0.1)
    assert batch.questions[0].features[0, 0] != batch.questions[1].features[0, 0]


def marked_preferences(missing: bool = False) -> PreferenceSet:
    """Who is who: question q has codes q and features 10 q, answer a has codes 4 + a, another system's 7, degenerate ones 8."""
    questions = tuple(EncodedQuestion(np.full((3, 2), q), np.full((3, FEATURES), 10.0 * q, np.float32)) for q in range(3))
    scores = [{s: float(VALUE[i][kind]) for i, s in enumerate(STYLES)} for kind in range(3)]
    if missing:
        # Answer 0 was not scored for its own question, nor answer 1 for the third one.
        del scores[0]["happy"], scores[1]["angry"]
    answers = tuple(ScoredAnswer(a, np.full((4, 2), 4 + a), scores[a]) for a in range(3))
    another = ScoredAnswer(None, np.full((4, 2), 7), dict.fromkeys(STYLES, 4.0))
    return PreferenceSet(questions, STYLES, (*answers, another), (np.full((5, 2), 8), np.zeros((0, 2), dtype=np.int64)))


@pytest.mark.parametrize("missing", [False, True], ids=["all scored", "two not scored"])
def test_batches_hold_the_proportions_and_classes_they_should(missing: bool) -> None:
    rng = np.random.default_rng(0)
    preferences = marked_preferences(missing)
    kinds: Counter[str] = Counter()
    crossed: Counter[tuple[int, int]] = Counter()
    hidden = 0
    for _ in range(20):
        batch = draw_batch(preferences, STYLES, 64, rng)
        assert len(batch.questions) == len(batch.answers) == len(batch.classes) == 64
        hidden += len(batch.questions[0].codes) == 0
        assert len({len(question.codes) for question in batch.questions}) == 1
        pairs = zip(batch.questions, batch.answers, batch.classes.tolist(), strict=True)
        for place, (question, answer, found) in enumerate(pairs):
            q, a = round(float(question.features.mean()) / 10), int(answer[0, 0]) - 4
            assert batch.styles[place] == q
            scores = preferences.answers[a].scores if a < 4 else dict.fromkeys(STYLES, 1.0)
            assert batch.score_classes[place].tolist() == [round(scores.get(style, 0)) - 1 for style in STYLES]
            assert found == scores[STYLES[q]] - 1
            if place < 20:
                kinds["own"] += 1
                assert q == a
            elif place < 26:
                crossed[q, a] += 1
                assert a < 3
            elif place < 39:
                kinds["another system's"] += 1
                assert a == 3
            elif place < 57:
                # Too short to be put out of order.
                kinds["another system's, out of order"] += a == 3
                assert a < 4
            else:
                kinds["degenerate"] += 1
                assert a == 4
    assert 130 < kinds.pop("another system's, out of order") < 230
    assert kinds == {"own": 400, "another system's": 260, "degenerate": 140}
    assert 10 <= hidden <= 19
    # An answer without a score for its own question is not crossed either.
    assert len(crossed) == (5 if missing else 9)
    assert preferences.own_pairs == [(q, q) for q in range(1 if missing else 0, 3)]


def test_answers_out_of_order_are_worth_1() -> None:
    """The answer is 0, 1, ... 9 by its first code: what has them in this order is the answer, and all else is worth 1."""
    codes = np.stack([np.arange(10), np.zeros(10, dtype=int)], 1)
    question = EncodedQuestion(np.zeros((3, 2), dtype=np.int64), np.zeros((3, FEATURES), np.float32))
    preferences = PreferenceSet((question,), ("happy",), (ScoredAnswer(0, codes, {"happy": 5.0}),), ())
    found: Counter[tuple[bool, int]] = Counter()
    for seed in range(10):
        batch = draw_batch(preferences, STYLES, 64, np.random.default_rng(seed))
        for answer, score in zip(batch.answers, batch.classes.tolist(), strict=True):
            found[len(answer) == 10 and (answer == codes).all(), score] += 1
    assert found == {(True, 4): 460, (False, 0): 180}


def test_without_degenerate_answers_their_share_is_crossed() -> None:
    complete = marked_preferences()
    preferences = PreferenceSet(complete.questions, complete.styles, complete.answers, ())
    batch = draw_batch(preferences, STYLES, 64, np.random.default_rng(0))
    assert {int(answer[0, 0]) - 4 for answer in batch.answers} == {0, 1, 2, 3}


def test_nothing_scored_is_an_error() -> None:
    complete = marked_preferences()
    unscored = tuple(ScoredAnswer(answer.question, answer.codes, {}) for answer in complete.answers)
    with pytest.raises(JudgeError, match="scored none"):
        draw_batch(PreferenceSet(complete.questions, complete.styles, unscored, ()), STYLES, 8, np.random.default_rng(0))


def test_answers_that_are_all_empty_are_an_error() -> None:
    """The batch was drawn forever."""
    complete = marked_preferences()
    empty = tuple(ScoredAnswer(answer.question, answer.codes[:0], answer.scores) for answer in complete.answers)
    with pytest.raises(JudgeError, match="all sampled answers with a score are empty"):
        draw_batch(PreferenceSet(complete.questions, complete.styles, empty, ()), STYLES, 8, np.random.default_rng(0))


def test_scores_mix_an_answers_values_over_the_predicted_styles() -> None:
    rng = np.random.default_rng(5)
    questions, answers = [make_question(4, rng) for _ in range(3)], [make_codes(5, rng) for _ in range(3)]
    model = make_model().eval()
    style, score_of = model.style_logprobs(questions).exp(), model.score_logprobs(answers).exp()
    mixed = torch.einsum("ny,nyc->nc", style, score_of)
    torch.testing.assert_close(model(questions, answers).exp(), mixed)
    torch.testing.assert_close(mixed.sum(1), torch.ones(3))


def test_questions_are_augmented_but_not_changed_in_the_set() -> None:
    preferences = marked_preferences()
    questions = draw_batch(preferences, STYLES, 64, np.random.default_rng(0)).questions
    shifts = np.stack([question.features[0] - 10 * round(float(question.features.mean()) / 10) for question in questions])
    assert shifts.std() == pytest.approx(PROSODY_NOISE, abs=0.06)
    assert all((question.features == question.features[0]).all() for question in questions)
    assert [float(question.features.max()) for question in preferences.questions] == [0.0, 10.0, 20.0]


# -- agreement --------------------------------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    """Deviations (-1, 0, 1) x2 and (-2, 1, 1): Pearson 3 / sqrt(2 * 6), and ranks (1, 2, 3) with (1, 2.5, 2.5)."""
    found = agreement([1.0, 2.0, 3.0], [1.0, 4.0, 4.0])
    assert found["n"] == 3
    assert found["pearson"] == pytest.approx(3 / 12**0.5)
    assert found["spearman"] == pytest.approx(1.5 / (2 * 1.5) ** 0.5)
    assert found["mean_absolute_error"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("predicted", "judged", "error"),
    [
        ([2.0, 2.0, 2.0], [1.0, 3.0, 5.0], 5 / 3),
        ([1.0, 3.0, 5.0], [2.0, 2.0, 2.0], 5 / 3),
        ([1.0, 2.0], [1.0, 3.0], 0.5),
        ([], [], None),
    ],
    ids=["prediction constant", "judge constant", "two answers", "no answer"],
)
def test_agreement_is_none_where_there_is_none(predicted: list[float], judged: list[float], error: float | None) -> None:
    found = agreement(predicted, judged)
    assert (found["pearson"], found["spearman"], found["n"]) == (None, None, len(judged))
    assert found["mean_absolute_error"] == (None if error is None else pytest.approx(error))


@pytest.mark.parametrize(
    ("known", "scores", "requests", "guessed"),
    [
        ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [5.0, 0.0], [6.0, 1.0]),
        ([7.0, 7.0, 7.0], [1.0, 5.0, 5.0], [7.0, 9.0], [5.0, 5.0]),
    ],
)
def test_a_baseline_is_a_line_through_what_was_taught_or_the_commonest_score(
    known: list[float], scores: list[float], requests: list[float], guessed: list[float]
) -> None:
    assert fit_baseline(known, scores, requests) == pytest.approx(guessed)
