"""A refresh of the reward model: its settings, which answers it takes, what earlier validation answers get, and its files.

Not covered: training and judging (tests/integration/test_reward_refresh.py), and other codecs' sound from real detokenizers.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paras2s.align.checkpoints import comparable_rows, last_refresh, next_stop
from paras2s.align.job import GRPOJob
from paras2s.audio.clip import Clip
from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import RewardSourceConfig, RunConfig
from paras2s.data_gen.candidates import ledger_of_prompts, prompt_name
from paras2s.data_gen.dataset import Dataset
from paras2s.errors import ConfigError, DataError, JudgeError
from paras2s.pipeline import distill, refresh
from paras2s.pipeline.demo import refresh_facts
from paras2s.pipeline.learned_answers import KEPT_OUT, LEARNED, AnswerRow, read_answers, write_answers
from paras2s.pipeline.refresh import RewardRefresher, labels_spent, open_refresher
from paras2s.pipeline.refresh_plan import choose_newest, kept_out_contrasts, mean_reward, rescored, stays
from paras2s.run import Run
from paras2s.train.checkpoint import best_by_validation, under_one_model
from paras2s.types import Candidate, Query, Reward, Unscored
from paras2s.utils.io import append_jsonl, write_json
from paras2s.utils.progress import open_console

WITH = {"distill": {"refresh_every": 10}}


def changed(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({**WITH, **sections})


def run_in(folder: Path, **sections: Any) -> Run:
    return Run(changed(**sections).model_copy(update={"run_dir": folder / "run"}), open_console(True), True)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"distill": {"refresh_every": 10, "teacher": "ratings.csv"}}, "people .* cannot be asked in the middle of a run"),
        ({"distill": {"refresh_every": 10, "teacher": "labels.JSON"}}, "let a judge teach"),
        ({"distill": {"refresh_every": 10, "omni": {}}}, "the small reward model again and not distill.omni"),
        ({"distill": {"refresh_answers": 64}}, "refresh_answers belongs to refresh_every"),
        ({"distill": {"refresh_every": 0}}, "greater than or equal to 1"),
        ({"distill": {"refresh_every": 15}}, r"a multiple of align.checkpoint_every \(10\)"),
        ({"align": {"keep_rollouts_every": 0}}, "set align.keep_rollouts_every to 1, at most to 10"),
        ({"align": {"keep_rollouts_every": 11}}, "set align.keep_rollouts_every to 1, at most to 10"),
    ],
)
def test_settings_that_a_refresh_cannot_work_with_are_refused(sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        changed(**sections)


def test_nothing_is_refreshed_where_no_reward_model_pays() -> None:
    assert not changed(reward={"sources": [{"kind": "rubric"}]}).refreshes
    assert not changed(align={"preferences": {"file": "pairs.jsonl"}}).refreshes


def test_other_sources_go_on_beside_the_reward_model() -> None:
    mix = {"sources": [{"kind": "word_errors"}, {"kind": "reward_model", "required": False}]}
    assert changed(reward=mix, align={"keep_rollouts_every": 10, "steps": 90}).refreshes == range(10, 90, 10)


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [(None, 90, []), (30, 90, [30, 60]), (30, 91, [30, 60, 90]), (40, 90, [40, 80]), (90, 90, []), (90, 3, [])],
)
def test_the_reward_model_is_refreshed_before_the_last_step_and_not_behind_it(
    every: int | None, steps: int, expected: list[int]
) -> None:
    assert list(changed(distill={"refresh_every": every}, align={"steps": steps}).refreshes) == expected


@pytest.mark.parametrize(("answers", "expected"), [(None, 32 * 8), (40, 40)])
def test_as_many_answers_as_a_step_samples_are_scored_where_nothing_else_is_said(answers: int | None, expected: int) -> None:
    assert changed(distill={"refresh_every": 10, "refresh_answers": answers}).refresh_answers == expected


@pytest.mark.parametrize(
    ("updates", "refreshes", "stop"),
    [(0, [], 90), (0, [30, 60], 30), (29, [30, 60], 30), (30, [30, 60], 60), (60, [30, 60], 90), (90, [30, 60], 90)],
)
def test_the_loop_stops_before_every_refresh(updates: int, refreshes: list[int], stop: int) -> None:
    assert next_stop(updates, refreshes, 90) == stop


def test_which_answers_are_kept_may_change_unless_a_reward_model_learns_from_them(tmp_path: Path) -> None:
    plain = {"distill": {}}
    for sections in (plain, {**plain, "align": {"keep_rollouts_every": 5}}):
        run_in(tmp_path / "plain", **sections).open()
    run_in(tmp_path / "refreshed").open()
    with pytest.raises(ConfigError, match=r"align.keep_rollouts_every"):
        run_in(tmp_path / "refreshed", align={"keep_rollouts_every": 5}).open()


def test_a_folder_of_before_these_settings_is_still_this_run(tmp_path: Path) -> None:
    run = Run(RunConfig(run_dir=tmp_path / "run"), open_console(True), True)
    run.folder.mkdir()
    lines = dump_config(run.config).splitlines(keepends=True)
    (run.folder / "config.resolved.yaml").write_text("".join(line for line in lines if "refresh_" not in line))
    run.open()


# -- which answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "kept_out"), [(0, 0), (1, 0), (2, 1), (4, 1), (8, 2), (40, 10)])
def test_a_quarter_of_the_contrasts_is_kept_out(count: int, kept_out: int) -> None:
    names = [f"c{number}" for number in range(count)]
    found = kept_out_contrasts([*names, *reversed(names)], seed=1)
    assert len(found) == kept_out
    assert found <= set(names)
    assert found == kept_out_contrasts(names, seed=1)


def test_another_seed_keeps_others_out() -> None:
    names = [f"c{number}" for number in range(40)]
    assert kept_out_contrasts(names, seed=1) != kept_out_contrasts(names, seed=2)


def queries_of(text: str) -> list[str]:
    """Each letter a query; capitals are kept out."""
    return list(text)


@pytest.mark.parametrize(
    ("steps", "count", "expected"),
    [
        # Of four a quarter is kept out.
        ({5: "aaAA"}, 4, {5: "aaA"}),
        ({5: "aaaA"}, 4, {5: "aaaA"}),
        # The newest come first, and of the step before as many as are missing.
        ({4: "bbbb", 5: "aaAA"}, 8, {5: "aaAA", 4: "bbbb"}),
        ({4: "bbBB", 5: "aaaA"}, 4, {5: "aaaA"}),
        ({4: "bbbB", 5: "aaaa"}, 4, {5: "aaa", 4: "B"}),
        ({3: "C", 4: "b", 5: "a"}, 8, {5: "a", 4: "b", 3: "C"}),
        # All or nothing is kept out.
        ({5: "aaaa"}, 4, {5: "aaa"}),
        ({5: "AAAA"}, 4, {5: "A"}),
        ({}, 4, {}),
    ],
)
def test_the_newest_answers_are_chosen(steps: dict[int, str], count: int, expected: dict[int, str]) -> None:
    kept_out = {"A", "B", "C"}
    chosen = choose_newest([(step, queries_of(text)) for step, text in steps.items()], kept_out, count, seed=3)
    found = {step: "".join(sorted(one.query_id for one in chosen if one.step == step)) for step in steps}
    assert {step: text for step, text in found.items() if text} == {s: "".join(sorted(t)) for s, t in expected.items()}
    assert all(one.kept_out == (one.query_id in kept_out) for one in chosen)
    assert all(steps[one.step][one.row] == one.query_id for one in chosen)
    assert len({(one.step, one.row) for one in chosen}) == len(chosen)


def test_of_the_oldest_step_the_seed_draws() -> None:
    steps = [(1, ["a"] * 100)]
    drawn = [[one.row for one in choose_newest(steps, (), 20, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != list(range(15))


# -- one reward model for all evaluations -----------------------------------------------------------------------------


def sources(*described: dict[str, Any]) -> list[RewardSourceConfig]:
    return [RewardSourceConfig.model_validate(one) for one in described]


MODEL, WORDS = {"kind": "reward_model"}, {"kind": "word_errors"}
UNLIKE, SILENT = Unscored("reward_model", "unlike"), Unscored("word_errors", "no transcript")


@pytest.mark.parametrize(
    ("mix", "paid", "value", "expected"),
    [
        ([MODEL], {"reward_model": 2.0}, 4.0, 4.0),
        ([MODEL], UNLIKE, 4.0, 4.0),
        ([MODEL], {"reward_model": 2.0}, UNLIKE, UNLIKE),
        # (3 x 4 + 1 x 2) / 4.
        ([{**MODEL, "weight": 3.0}, WORDS], {"reward_model": 1.0, "word_errors": 2.0}, 4.0, 3.5),
        # The words failed, which no reward model changes.
        ([MODEL, WORDS], SILENT, 4.0, SILENT),
        # The words were never asked, or their score went with the answer's.
        ([MODEL, WORDS], UNLIKE, 4.0, None),
        ([WORDS, MODEL], UNLIKE, 4.0, None),
        # An optional source that failed counts as little as before.
        ([MODEL, {**WORDS, "required": False}], {"reward_model": 2.0}, 4.0, 4.0),
        ([{**MODEL, "required": False}, WORDS], {"word_errors": 2.0}, 4.0, 3.0),
        ([{**MODEL, "required": False}, WORDS], {"reward_model": 4.0, "word_errors": 2.0}, UNLIKE, 2.0),
        # Both failed, and either may have been all that was wrong.
        ([{**MODEL, "required": False}, {**WORDS, "required": False}], SILENT, 4.0, None),
        # Two weights of one model.
        ([{**MODEL, "name": "a"}, {**MODEL, "name": "b"}], {"a": 1.0, "b": 1.0}, 5.0, 5.0),
        ([{**MODEL, "name": "a"}, WORDS], Unscored("a", "the score is nan"), 5.0, None),
    ],
)
def test_an_answer_is_paid_again_by_the_new_model(mix: Any, paid: Any, value: Any, expected: Any) -> None:
    found = rescored(paid, value, sources(*mix))
    assert (found.value if isinstance(found, Reward) else found) == expected


def agreed(pearson: float | None, error: float | None, known: float | None) -> dict[str, float | int | None]:
    return {"n": 8, "pearson": pearson, "mean_absolute_error": error, "known": known}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (agreed(0.7, 0.3, 0.9), True),
        (agreed(0.7, 0.3, None), True),
        (agreed(0.7, 0.3, 0.5), True),
        # Better in something.
        (agreed(0.7, 0.3, 1.0), False),
        (agreed(0.7, 0.1, 0.9), False),
        (agreed(0.9, 0.3, 0.9), False),
        (agreed(0.8, 0.2, 0.9), False),
        # It cannot be said.
        (agreed(None, 0.3, 0.9), False),
        (agreed(None, None, None), False),
    ],
)
def test_the_old_model_stays_where_the_new_one_is_better_in_nothing(new: Any, expected: bool) -> None:
    assert stays(agreed(0.8, 0.2, 0.9), new) == expected


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([Reward(2.0, {}), Reward(4.0, {}), UNLIKE], 3.0), ([UNLIKE], None), ([Reward(2.0, {}), None], None), ([], None)],
)
def test_a_mean_without_all_its_answers_is_no_mean(rewards: Any, expected: float | None) -> None:
    assert mean_reward(rewards) == expected


@pytest.mark.parametrize(
    ("rewards", "there", "best"),
    [
        # By the old model step 9 is the best, by the new one step 19; then step 29 is above both.
        ({9: 2.0, 19: 3.0}, {10, 20, 30, 40}, 30),
        ({9: 2.0, 19: 3.4}, {10, 20, 30, 40}, 20),
        # What has no checkpoint any more is no best.
        ({9: 2.0, 19: 3.4}, {30, 40}, 30),
        # What cannot be scored again is not compared.
        ({9: None, 19: None}, {10, 20, 30, 40}, 30),
        ({}, {10, 20, 30, 40}, 30),
    ],
)
def test_the_best_checkpoint_is_so_under_the_newest_reward_model(rewards: Any, there: set[int], best: int) -> None:
    log = [{"step": 9, "validation_reward": 4.9}, {"step": 19, "validation_reward": 4.0}, {"step": 25},
           {"step": 29, "validation_reward": 3.2}, {"step": 39, "validation_reward": 3.1}]  # fmt: skip
    assert best_by_validation(log) == 10
    assert best_by_validation(under_one_model(log, 20, rewards, there)) == best


# -- files ------------------------------------------------------------------------------------------------------------


def answer(query_id: str | None = "q", scores: Any = None, steps: int = 3, part: str = LEARNED) -> AnswerRow:
    return AnswerRow(part, query_id, np.arange(8 * steps).reshape(steps, 8), {"sad": 4.0} if scores is None else scores)


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [answer(), answer(None, {}, 0), answer("b", Unscored("judge", "no reply", "r"), 5, KEPT_OUT)]
    write_answers(tmp_path / "a.npz", rows, ["q", "b"])
    found = read_answers(tmp_path / "a.npz")
    assert found.queries == ("q", "b")
    assert [(one.part, one.query_id, one.scores) for one in found.answers] == [(r.part, r.query_id, r.scores) for r in rows]
    assert [one.codes.tolist() for one in found.answers] == [one.codes.tolist() for one in rows]
    assert [one.query_id for one in found.of(KEPT_OUT)] == ["b"]
    write_answers(tmp_path / "none.npz", [])
    assert read_answers(tmp_path / "none.npz").answers == ()


@pytest.mark.parametrize("broken", [b"", b"no archive", None])
def test_a_broken_file_of_answers_says_what_to_do(broken: bytes | None, tmp_path: Path) -> None:
    if broken is not None:
        (tmp_path / "a.npz").write_bytes(broken)
    with pytest.raises(DataError, match=r"a\.npz: cannot be read .*run the stage that writes it again"):
        read_answers(tmp_path / "a.npz")


def refreshed(run: Run, updates: int, prompts: int = 0, used: str = "after") -> None:
    folder = run.refreshed_dir / f"step_{updates:06d}"
    report = {
        "labels": {"prompts": prompts},
        "newest": {"before": {"pearson": None}, "after": {"pearson": 0.5}},
        "used": used,
        "validation_rewards": {"0": 2.5, "7": None},
    }
    write_json(folder / "agreement.json", report)


def refresher(run: Run) -> RewardRefresher:
    return RewardRefresher(run, SimpleNamespace(queries=()), {})  # type: ignore[arg-type]


def test_a_step_is_rewarded_by_the_newest_model_before_it(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert run.reward_setup().refreshed is None
    assert labels_spent(run) == 0
    refreshed(run, 20, 12)
    refreshed(run, 10, 7)
    # Killed before its report.
    write_answers(run.refreshed_dir / "step_000030/answers.npz", [])
    found = {after: run.reward_setup(after).refreshed for after in (0, 9, 10, 19, 20, 50)}
    names = {after: None if path is None else path.name for after, path in found.items()}
    assert names == {0: None, 9: None, 10: "step_000010", 19: "step_000010", 20: "step_000020", 50: "step_000020"}
    assert run.reward_setup().refreshed == (run.refreshed_dir / "step_000020").resolve()
    assert run.reward_setup().model_dir == run.reward_dir.resolve()
    assert labels_spent(run) == 12
    assert refresher(run).validation_rewards(10) == {0: 2.5, 7: None}


@pytest.mark.parametrize(
    ("step", "models", "evaluations"), [(20, [10, 20], [0, 9, 19]), (19, [10], [0, 9]), (10, [10], [0, 9]), (0, [], [])]
)
def test_what_steps_to_be_done_again_made_is_removed(
    step: int, models: list[int], evaluations: list[int], tmp_path: Path
) -> None:
    """What was made before them stays; a model whose report is missing is half a model."""
    run = run_in(tmp_path)
    for updates in (10, 20):
        refreshed(run, updates)
    write_answers(run.refreshed_dir / "step_000030/answers.npz", [])
    for number in (0, 9, 19, 29):
        write_answers(run.refreshed_dir / f"evaluations/step_{number:06d}.npz", [])
    refresher(run).discard_from(step)
    assert list(run.refreshed_models()) == models
    assert sorted(path.name for path in run.refreshed_dir.glob("step_*")) == [f"step_{number:06d}" for number in models]
    left = sorted((run.refreshed_dir / "evaluations").iterdir())
    assert [int(path.stem[5:]) for path in left] == [one for one in evaluations if one < step]


def test_a_page_says_how_many_labels_were_spent(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert refresh_facts(run) == []
    refreshed(run, 10, 7)
    refreshed(run, 20, 12)
    facts = dict(refresh_facts(run))
    assert facts["labels of RL prompts spent"] == "12"
    known = "after 10, 20 steps; newest answers kept out of the last: Pearson - before, 0.500 after"
    assert facts["reward model refreshed"] == known
    refreshed(run, 30, 13, used="before")
    assert dict(refresh_facts(run))["reward model refreshed"].endswith("0.500 after; the one before stayed")


@pytest.mark.parametrize(("every", "stored", "trained_again"), [(10, False, True), (10, True, False), (None, False, False)])
def test_a_reward_model_of_before_is_trained_again_where_more_is_to_be_learned(
    every: int | None, stored: bool, trained_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trained(Exception):
        pass

    def train(_: object) -> None:
        raise Trained

    run = run_in(tmp_path, distill={"refresh_every": every})
    write_json(run.reward_dir / "agreement.json", {})
    if stored:
        write_answers(run.reward_dir / distill.LEARNED_FILE, [])
    monkeypatch.setattr(distill, "open_teacher", lambda *_: SimpleNamespace(free=True))
    monkeypatch.setattr(distill, "check_decoder", train)
    monkeypatch.setattr(distill.RewardModel, "load", lambda _: "the model that is there")
    with pytest.raises(Trained) if trained_again else nullcontext():
        assert distill.run_distill(run, Any) == "the model that is there"  # type: ignore[arg-type,comparison-overlap]


def test_a_model_that_is_there_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in(tmp_path)
    refreshed(run, 10)
    monkeypatch.setattr(refresh, "open_teacher", lambda *_: pytest.fail("the teacher is asked again"))
    refresher(run).refresh(10)


def test_answers_that_are_not_kept_are_missed_before_anything_is_paid_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rollouts: the answers of steps 10 to 19.*are not kept"):
        refresher(run_in(tmp_path)).choose(20)


def test_answers_of_older_policies_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of a run that went farther before it was killed, whose files are still there."""
    run = run_in(tmp_path, distill={"refresh_every": 10, "refresh_answers": 80})
    for step in (8, 9, 10, 15, 19, 20, 25):
        path = run.folder / f"rollouts/step_{step:06d}.parquet"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    monkeypatch.setattr(refresh, "read_rollouts", lambda path: [SimpleNamespace(query_id=path.stem)] * 10)
    chosen = refresher(run).choose(20)
    assert sorted({one.step for one in chosen}) == [10, 15, 19]
    assert len(chosen) == 30
    assert all(one.query_id == f"step_{one.step:06d}" for one in chosen)


def test_a_teacher_that_scored_nothing_stops_the_run() -> None:
    rows = [answer(scores=Unscored("j", "no reply")), answer(part=KEPT_OUT)]
    with pytest.raises(JudgeError, match=r"j/1 scored none of the newest answers \(the first: no reply\).*--resume"):
        refresh.check_scored("j/1", rows)
    refresh.check_scored("j/1", [*rows, answer()])


def test_the_log_compares_evaluations_by_one_model(tmp_path: Path) -> None:
    run = run_in(tmp_path, align={"steps": 40})
    job = GRPOJob(run, *[Any] * 5, refresher=refresher(run))  # type: ignore[arg-type]
    assert [last_refresh(job, step) for step in (0, 9, 10, 19, 20)] == [0, 0, 10, 10, 20]
    # The checkpoint of step 5 was removed.
    for step, reward in ((0, 4.0), (5, 4.2), (7, 4.5), (12, 3.0)):
        append_jsonl(run.metrics_path, {"step": step, "validation_reward": reward})
    assert [row["validation_reward"] for row in comparable_rows(job, 9)] == [4.0, 4.2, 4.5, 3.0]
    refreshed(run, 10)
    write_json(job.checkpoints / "step_000001" / "trainer.json", {})
    write_json(job.checkpoints / "step_000008" / "trainer.json", {})
    rows = comparable_rows(job, 12)
    assert [(row["step"], row["validation_reward"]) for row in rows] == [(0, 2.5), (7, None), (12, 3.0)]


# -- labels of RL prompts ---------------------------------------------------------------------------------------------


def candidate(name: str, role: Any = "rl") -> Candidate:
    return Candidate(name, "c1", "emotion", "t", role, "sad", "m1", "words", "word", 0.0, 1.0, None, None)


def test_the_ledger_knows_prompts_of_either_kind_of_dataset() -> None:
    ledger = ledger_of_prompts([candidate("a-sad"), candidate("b-sad", "test")])
    assert set(ledger) == {prompt_name("a-sad", 1), prompt_name("a-sad", 2)}
    assert {line.style for line in ledger.values()} == {"sad"}
    assert prompt_name("a-sad", 2).startswith(prompt_name("a-sad", 1))
    assert "sad" not in prompt_name("a-sad", 2)


def test_prompts_whose_style_nobody_knows_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path, policy={"kind": "embedded"})
    write_answers(run.reward_dir / "learned.npz", [])
    known = Query(prompt_name("a-sad", 1), "", None, None, "rl", "", "a.wav", 1.0, "word", None, None)
    dataset = Dataset(tmp_path, (known,), (), (candidate("a-sad"),), Any, Any, {})
    found = open_refresher(run, dataset, [known])
    assert found is not None
    (query,) = found.labelled.values()
    assert (query.style, query.text, query.contrast_id, query.category) == ("sad", "words", "c1", "emotion")
    other = Query("mine", "", None, None, "rl", "", "a.wav", 1.0, "word", None, None)
    with pytest.raises(ConfigError, match=r"does not say the style of 1 of 2 RL prompts \(mine\)"):
        open_refresher(run, dataset, [known, other])
    (run.reward_dir / "learned.npz").unlink()
    with pytest.raises(DataError, match=r"learned\.npz"):
        open_refresher(run, dataset, [known])
    assert open_refresher(run_in(tmp_path, distill={}), dataset, [other]) is None


# -- sound ------------------------------------------------------------------------------------------------------------


def test_answers_of_another_codec_are_judged_by_their_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake detokenizer, whose sound is silence of a length that its codes name; an answer without sound has no file."""

    class Speaker:
        def speak(self, codes: Any, seeds: Any) -> list[Clip]:
            assert len(codes) == len(seeds)
            return [Clip(np.full(800 * len(one), 0.1, np.float32), 16_000) for one in codes]

    monkeypatch.setattr(refresh, "_open_speaker", lambda run: Speaker())
    monkeypatch.setattr(refresh, "code_clips", lambda clips: [np.zeros((len(one.samples) // 800, 8), int) for one in clips])
    monkeypatch.setattr(refresh, "SAMPLED_TOGETHER", 2)
    codes, answers = [np.zeros((steps, 1)) for steps in (3, 0, 5)], [SimpleNamespace(seed=n) for n in range(3)]
    found = refresher(run_in(tmp_path)).spoken(codes, answers, tmp_path / "sound")  # type: ignore[arg-type]
    assert [len(one.codes) for one in found] == [3, 0, 5]
    assert [None if one.file is None else one.file.name for one in found] == ["00000.wav", None, "00002.wav"]
    assert [len(one.sound().samples) for one in found if one.file is not None] == [2400, 4000]
