"""`distill.refresh_every` with real Ray and a teacher over HTTP: a stopped run ends as one that ran through.

The reward model is distilled by hand, in a second. Not covered: whether a refresh helps a policy (docs/experiments/judges.md),
the sound of policies with another codec, several machines.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import yaml
from tiny.endpoint import Fail, Say, ScriptedEndpoint
from tiny.job import counts
from tiny.world import invoke, write_run

from paras2s import grpo
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.candidates import prompt_name
from paras2s.data_gen.dataset import Dataset, load_dataset, save_tables
from paras2s.pipeline import refresh
from paras2s.pipeline.distill import LEARNED_FILE
from paras2s.pipeline.learned_answers import DEGENERATE, KEPT_OUT, LEARNED, AnswerRow, read_answers, write_answers
from paras2s.pipeline.refresh import RewardRefresher
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.reward_model.model import RewardModel
from paras2s.run import Run
from paras2s.types import Unscored
from paras2s.utils.io import read_json
from paras2s.utils.progress import open_console

ALIGN = {
    "steps": 4, "checkpoint_every": 2, "evaluate_every": 2, "max_unscored_share": 1.0,
    "sampling": {"queries_per_step": 4, "group_size": 2}, "objective": {"groups_per_update": 2},
    "optimizer": {"lr": 0.01, "warmup_steps": 1}, "workers": counts(rollout=1, reward=1, learner=1),
}  # fmt: skip


MADE = ("answers.npz", "reward_model.safetensors", "known_range.safetensors")


class Killed(Exception):
    """In place of a signal."""


def make_teacher() -> Callable[[dict[str, Any], int], Any]:
    """Scores by an answer's sound, and refuses each fifth that it hears for the first time, and that one ever after."""
    refused: dict[str, bool] = {}

    def teacher(sent: dict[str, Any], number: int) -> Any:
        answer = [part for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"][-1]["input_audio"]["data"]
        if refused.setdefault(answer, number % 5 == 0):
            return Fail(400, "no audio today")
        return Say(json.dumps({"reasoning": "r", "score": 1 + sum(map(ord, answer)) % 5}))

    return teacher


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(make_teacher()) as opened:
        yield opened
    ray.shutdown()


def add_roles(source: Path, data: Path) -> Dataset:
    """The tiny data, its test queries again as RL prompts without labels, and its preference queries as validation."""
    shutil.copytree(source, data)
    tiny = load_dataset(source)
    line = {(one.contrast_id, one.style): one for one in tiny.candidates if one.role == "test"}
    ledger = [replace(one, role="rl") for one in line.values()]
    unlabelled = {"role": "rl", "contrast_id": "", "category": None, "topic": None, "text": None, "style": None}
    prompts = [
        replace(query, id=prompt_name(line[query.contrast_id, query.style or ""].id, 1), **unlabelled)
        for query in tiny.of_role("test")
    ]
    validation = [replace(q, id=f"v-{q.id}", role="validation") for q in tiny.of_role("preference")]
    save_tables(data, [*tiny.queries, *prompts, *validation], tiny.demonstrations, [*tiny.candidates, *ledger])
    return load_dataset(data)


def distil_by_hand(run: Run, dataset: Dataset) -> None:
    """A reward model that learned from random answers, where `paras2s distill` leaves it."""
    rng = np.random.default_rng(0)

    def answer(part: str, query_id: str | None, scores: Any) -> AnswerRow:
        codes = [rng.integers(size, size=14) for size in Codec2Pairs.cardinality]
        return AnswerRow(part, query_id, np.stack(codes, 1), scores)

    queries = dataset.of_role("preference")
    rows = [answer(LEARNED, q.id, {q.style or "": float(1 + n % 5)}) for n, q in enumerate([*queries, *queries])]
    rows += [answer(DEGENERATE, None, Unscored("degenerate", "r")) for _ in range(4)]
    rows += [answer(KEPT_OUT, q.id, {q.style or "": 3.0}) for q in dataset.of_role("validation")]
    write_answers(run.reward_dir / LEARNED_FILE, rows, [q.id for q in queries])
    model, _ = RewardRefresher(run, dataset, {}).train(read_answers(run.reward_dir / LEARNED_FILE), [])
    assert model.known is not None
    # Else most random answers are unlike its own.
    model.known = replace(model.known, limit=1e9)
    model.save(run.reward_dir)


def write(tiny_run: Path, folder: Path, server: ScriptedEndpoint) -> Run:
    """A run up to its reward model; its judge's replies are cached beside it."""
    llm = {"base_url": server.base_url, "model": "gpt-audio", "backoff_s": 0.001, "max_attempts": 1, "timeout_s": 20.0}
    judge = {"name": "audio", "extractors": [], "judge": {"reads": "audio"}, "llm": llm}
    (folder / "judge.yaml").write_text(yaml.safe_dump(judge))
    path = write_run(folder, align=ALIGN)
    values = yaml.safe_load(path.read_text())
    values["distill"] |= {"teacher": str(folder / "judge.yaml"), "refresh_every": 2, "refresh_answers": 16}
    path.write_text(yaml.safe_dump(values))
    run = Run(load_config(path), open_console(), True)
    (run.folder).mkdir()
    (run.folder / "sft").symlink_to(tiny_run / "run" / "sft")
    distil_by_hand(run, add_roles(tiny_run / "run" / "data", run.data_dir))
    return run


@pytest.fixture(autouse=True, scope="module")
def new_models_are_used() -> Iterator[None]:
    """Among so few answers chance decides whether the old one stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refresh, "stays", lambda *_: False)
        yield


@pytest.fixture(scope="module")
def straight(tiny_run: Path, server: ScriptedEndpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run that nothing stopped, and what it said."""
    run = write(tiny_run, tmp_path_factory.mktemp("straight"), server)
    before = {path.name: path.read_bytes() for path in run.reward_dir.iterdir()}
    said = " ".join(invoke("align", run.folder.parent / "run.yaml").output.split())
    # Other rows of an ablation share it; the audit before it pays is a file of its own.
    assert {path.name: path.read_bytes() for path in run.reward_dir.iterdir() if path.name != "audit.json"} == before
    return run, said


def logged(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in run.metrics()]


def test_the_newest_answers_of_a_policy_join_what_its_reward_model_learned_from(
    straight: tuple[Run, str], server: ScriptedEndpoint
) -> None:
    run, said = straight
    assert [row["reward_model_step"] for row in logged(run)] == [0, 0, 2, 2]
    assert list(run.refreshed_models()) == [2]
    folder = run.refreshed_models()[2]
    rows, report = read_answers(folder / "answers.npz").answers, read_json(folder / "agreement.json")
    # 12 answers to learn from, each with the policy's codes and with those of its sound, and 4 that are kept out.
    assert Counter(row.part for row in rows) == {LEARNED: 24, KEPT_OUT: 4}
    assert report["answers"] == 16
    refused = [row for row in rows[:16] if isinstance(row.scores, Unscored)]
    assert 0 < len(refused) == report["unscored"] < 8
    assert all("no audio today" in row.scores.reason for row in refused if isinstance(row.scores, Unscored))
    queries = {part: {row.query_id for row in rows if row.part == part} for part in (LEARNED, KEPT_OUT)}
    assert (len(queries[LEARNED]), len(queries[KEPT_OUT])) == (6, 2)
    assert queries[LEARNED].isdisjoint(queries[KEPT_OUT])
    assert report["labels"] == {"prompts": 8, "new": 8, "learned_from": 6, "kept_out": 2}
    assert report["calls_now"] == 16
    kept_out = sum(row.part == KEPT_OUT and isinstance(row.scores, dict) for row in rows)
    assert {one["n"] for one in report["newest"].values()} == {kept_out}
    assert {one["n"] for one in report["sft"].values()} == {8}
    for text in ("the styles of 8 RL prompts are spent so far (8 now)", f"newest answers kept out ({kept_out}): Pearson"):
        assert text in said


def test_earlier_evaluations_are_scored_again_by_the_new_model(straight: tuple[Run, str]) -> None:
    run, _ = straight
    (row,) = [row for row in logged(run) if row["step"] == 0]
    rewards = read_json(run.refreshed_models()[2] / "agreement.json")["validation_rewards"]
    assert list(rewards) == ["0"]
    refresher = RewardRefresher(run, load_dataset(run.data_dir), {})
    evaluated = read_answers(run.refreshed_dir / "evaluations/step_000000.npz").answers
    _, encoded = refresher.train(read_answers(run.reward_dir / LEARNED_FILE), [])
    found = {}
    for name, folder in (("distilled", run.reward_dir), ("refreshed", run.refreshed_models()[2])):
        values = RewardModel.load(folder).score_known([encoded[one.query_id or ""] for one in evaluated],
                                                      [one.codes for one in evaluated])  # fmt: skip
        scored = [value for value in values if not isinstance(value, Unscored)]
        found[name] = (float(np.mean(scored)), len(values) - len(scored))
    # The first is what the run logged when the answers came.
    assert found["distilled"] == (pytest.approx(row["validation_reward"], abs=1e-6), row["validation_unscored"])
    assert found["refreshed"][0] == pytest.approx(rewards["0"], abs=1e-6)
    assert abs(found["refreshed"][0] - found["distilled"][0]) > 0.01


def test_where_the_old_model_stays_the_run_goes_on_with_it(
    straight: tuple[Run, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = straight[0]
    shutil.copytree(expected.folder, tmp_path / "run", symlinks=True)
    run = Run(expected.config.model_copy(update={"run_dir": tmp_path / "run"}), expected.console, True)
    shutil.rmtree(run.refreshed_dir / "step_000002")
    compared = []
    monkeypatch.setattr(refresh, "stays", lambda old, new: compared.append((old, new)) or True)
    dataset = load_dataset(run.data_dir)
    refresher = refresh.open_refresher(run, dataset, dataset.of_role("rl"))
    assert refresher is not None
    refresher.refresh(2)
    folder, used = run.refreshed_models()[2], read_json(expected.refreshed_models()[2] / "agreement.json")
    report = read_json(folder / "agreement.json")
    assert compared == [(report["newest"]["before"], report["newest"]["after"])]
    assert report["newest"] == used["newest"]
    assert (report["used"], used["used"]) == ("before", "after")
    for name in ("reward_model.safetensors", "known_range.safetensors"):
        assert (folder / name).read_bytes() == (run.reward_dir / name).read_bytes()
    # As the run logged it when the answers came.
    assert report["validation_rewards"]["0"] == pytest.approx(logged(run)[0]["validation_reward"], abs=1e-6)


def stop_in(patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """From now on a call of this function ends the run, `when` its arguments say so."""
    real = getattr(owner, name)

    def stopped(*arguments: Any, **more: Any) -> Any:
        if when(*arguments):
            raise Killed
        return real(*arguments, **more)

    patch.setattr(owner, name, stopped)


def test_a_run_that_is_killed_before_in_and_after_a_refresh_ends_as_one_that_ran_through(
    straight: tuple[Run, str], server: ScriptedEndpoint, tmp_path: Path
) -> None:
    expected = straight[0]
    # As a run that died between its checkpoint and the refresh, or in a step behind it, of which it wrote a little.
    shutil.copytree(expected.folder, tmp_path / "run", symlinks=True)
    run = Run(expected.config.model_copy(update={"run_dir": tmp_path / "run"}), expected.console, True)
    for name in ("aligned", "checkpoints/align/step_000004", "reward_refreshed/step_000002"):
        shutil.rmtree(run.folder / name)
    calls = len(server.requests)
    deaths: list[tuple[Any, str, Callable[..., bool]]] = [
        # The teacher has scored everything and the model is trained: all that is missing is the report.
        (refresh, "write_json", lambda *_: True),
        (grpo, "finish_step", lambda job, workers, step, *_: step == 3),
    ]
    for owner, name, when in deaths:
        with pytest.MonkeyPatch.context() as patch:
            stop_in(patch, owner, name, when)
            with pytest.raises(Killed):
                invoke("align", run.folder, "--resume")
    invoke("align", run.folder, "--resume")
    assert logged(run) == logged(expected)
    for made in ("aligned/model.safetensors", *(f"reward_refreshed/step_000002/{one}" for one in MADE)):
        assert (run.folder / made).read_bytes() == (expected.folder / made).read_bytes(), made
    reports = [read_json(one.refreshed_models()[2] / "agreement.json") for one in (run, expected)]
    assert {key for key in reports[0] if reports[0][key] != reports[1][key]} <= {"seconds", "calls_now", "cost_usd"}
    # Only what was refused is asked about again, at both tries.
    assert len(server.requests) - calls == 2 * reports[0]["unscored"]
