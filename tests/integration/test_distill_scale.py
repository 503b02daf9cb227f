"""The preference set and the warm-up on Ray workers of this machine: what this process alone makes, stopped or not.

Not covered: several machines, GPUs, and rounding of other threads, which may turn a draw in a thousand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from safetensors.numpy import load_file
from tiny.world import invoke, write_run

from paras2s.audio.clip import Clip, write_clip
from paras2s.configs.schema.align import RolloutRoleConfig
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import Dataset, load_dataset
from paras2s.data_gen.policy_inputs import CODEC, prepare_prompts
from paras2s.errors import ConfigError
from paras2s.pipeline import preference_set
from paras2s.pipeline.preference_set import Sampled, SampleJob, judge_sampled, sample_answers
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import ClipStore, SampleRequest, Sampling
from paras2s.reward.reward_model.teachers import Cost, Progress, Scores, TeacherRequest
from paras2s.rollout import answer_files
from paras2s.rollout.answer_files import AnswerShard, _write_codes, plan_shards, read_shard
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.rollout.samplers import LocalSampler, WorkerSampler
from paras2s.run import Run
from paras2s.types import Unscored
from paras2s.utils.io import read_jsonl
from paras2s.utils.progress import open_console

STREAM, COUNT, TEMPERATURE = 1_000_000, 2, 1.2


@pytest.fixture(scope="module", autouse=True)
def _one_thread_and_no_ray_left() -> Iterator[None]:
    """One thread as the workers have: sums of other threads round otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    ray.shutdown()


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shards of the eight queries, two calls to the sampler in each."""
    monkeypatch.setattr(answer_files, "SHARD_QUERIES", 3)
    monkeypatch.setattr(answer_files, "SAMPLED_TOGETHER", 4)


def open_run(tiny_run: Path, folder: Path) -> tuple[Run, Dataset]:
    folder.mkdir()
    config = load_config(write_run(folder))
    (folder / "run").mkdir()
    for part in ("data", "sft"):
        (folder / "run" / part).symlink_to(tiny_run / "run" / part)
    return Run(config, open_console(), True), load_dataset(folder / "run/data")


def assert_same(found: Sampled, expected: Sampled) -> None:
    assert found.owners == expected.owners
    for one, other in zip(found.answers, expected.answers, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes)


@pytest.mark.usefixtures("small_shards")
def test_shards_hold_what_the_engine_samples_with_the_seeds_of_their_places(tiny_run: Path, tmp_path: Path) -> None:
    run, dataset = open_run(tiny_run, tmp_path / "own")
    queries = dataset.of_role("preference")
    (found,) = sample_answers(run, dataset, [SampleJob(queries, COUNT, STREAM)])
    policy = EmbeddedPolicy.load(run.sft_dir)
    prompts = prepare_prompts(policy, dataset, queries)
    expected: list[np.ndarray] = []
    for start in (0, 3, 6):
        part = slice(start, start + 3)
        seeds = answer_seeds(run.config.seed, STREAM + start, range(len(queries[part])), COUNT)
        sampling = Sampling(TEMPERATURE, TEMPERATURE, 14)
        request = SampleRequest(prompts[part], seeds, sampling)
        for rollout in NativeEngine(policy).generate([q.id for q in queries[part]], request):
            expected += rollout.codes
    assert found.owners == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert len(expected) == 16
    assert any(map(len, expected))
    for one, codes in zip(found.answers, expected, strict=True):
        np.testing.assert_array_equal(one.codes, codes)
        assert one.file is None
        np.testing.assert_array_equal(one.sound().samples, CODEC.decode(codes).samples)


class StoppingSampler:
    """One that is stopped once three shards are written."""

    def __init__(self, sampler: LocalSampler) -> None:
        self._sampler = sampler

    def sample(self, clips: ClipStore, shards: Sequence[AnswerShard]) -> Iterator[AnswerShard]:
        for number, shard in enumerate(self._sampler.sample(clips, shards)):
            yield shard
            if number == 2:
                raise KeyboardInterrupt


@pytest.mark.usefixtures("small_shards")
def test_two_workers_write_what_this_process_writes_and_go_on_where_one_stopped(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, dataset = open_run(tiny_run, tmp_path / "alone")
    wanted = [SampleJob(dataset.of_role("preference"), COUNT, STREAM), SampleJob(dataset.of_role("test"), 2, 2 * STREAM)]
    alone = sample_answers(run, dataset, wanted)

    other, dataset = open_run(tiny_run, tmp_path / "workers")
    role = RolloutRoleConfig(count=2, threads=1)
    other = Run(
        other.config.model_copy(update={"distill": other.config.distill.model_copy(update={"rollout": role})}),
        other.console, True,
    )  # fmt: skip
    # This process stops after three of six shards; the workers do the rest, and no shard twice.
    local = LocalSampler(lambda: other.load_policy(other.sft_dir))
    with monkeypatch.context() as patch:
        patch.setattr(preference_set, "open_sampler", lambda run: StoppingSampler(local))
        with pytest.raises(KeyboardInterrupt):
            sample_answers(other, dataset, wanted)
    assert len(list((tmp_path / "workers/run/reward").glob("sampled-*/*.npz"))) == 3
    sample, written = WorkerSampler.sample, []

    def counted(self: WorkerSampler, clips: ClipStore, shards: Sequence[AnswerShard]) -> Iterator[AnswerShard]:
        written.append([shard.start for shard in shards])
        yield from sample(self, clips, shards)

    monkeypatch.setattr(WorkerSampler, "sample", counted)
    for found, expected in zip(sample_answers(other, dataset, wanted), alone, strict=True):
        assert_same(found, expected)
    # All is there now.
    sample_answers(other, dataset, wanted)
    assert written == [[0, 3, 6], []]


def test_a_shard_is_complete_with_its_sound_and_of_one_make(tmp_path: Path, tiny_run: Path) -> None:
    queries = load_dataset(tiny_run / "run/data").of_role("preference")[:2]

    def plan(made_of: str, group_size: int = 2) -> AnswerShard:
        (shard,) = plan_shards(tmp_path, queries, group_size, Sampling(), 0, STREAM, made_of)
        return shard

    shard = plan("one policy")
    codes = [np.full((steps, CODEC.num_codebooks), steps) for steps in (3, 0, 2, 1)]
    for number in (0, 2, 3):
        write_clip(shard.sound(number), Clip(np.full(1600, 0.1, np.float32), 16_000))
    _write_codes(shard, codes, with_sound=True)
    found = read_shard(shard)
    assert found is not None
    for one, expected in zip(found, codes, strict=True):
        np.testing.assert_array_equal(one.codes, expected)
    assert [len(one.sound().samples) for one in found] == [1600, 0, 1600, 1600]
    # Nothing was said in the second.
    assert [one.file is None for one in found] == [False, True, False, False]
    assert read_shard(plan("another policy")) is None
    assert read_shard(plan("one policy", group_size=3)) is None
    shard.sound(2).unlink()
    assert read_shard(shard) is None
    _write_codes(shard, codes, with_sound=False)
    assert read_shard(shard) is not None
    shard.path.write_bytes(shard.path.read_bytes()[:100])
    assert read_shard(shard) is None


def test_answers_that_do_not_fit_the_disk_are_refused_after_the_first_shard(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_files, "SHARD_QUERIES", 3)
    run, dataset = open_run(tiny_run, tmp_path / "own")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ConfigError, match=r"distill\.answers_per_query: the answers take .* more and .* has 1 kB left"):
        sample_answers(run, dataset, [SampleJob(dataset.of_role("preference"), COUNT, STREAM)])
    assert len(list(run.reward_dir.glob("sampled-*/*.npz"))) == 1


class LengthTeacher:
    """Scores by the number of samples, and says how many answers it was given together."""

    name, spent = "length", Cost(0, 0.0)

    def __init__(self, free: bool) -> None:
        self.free, self.parts, self.costed = free, [], []  # type: ignore[var-annotated]

    def scores(self, requests: Sequence[TeacherRequest], on_progress: Progress) -> list[Scores | Unscored]:
        self.parts.append(len(requests))
        return [
            {one.style: 1.0 + len(one.answer.samples) % 5} if len(one.answer.samples) else Unscored("length", "silence")
            for one in requests
        ]

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        self.costed.append(len(requests))
        return Cost(len(requests), 0.5)


@pytest.mark.parametrize("free", [True, False])
def test_answers_are_judged_in_parts_as_at_once_and_scores_without_a_cache_are_kept(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: bool
) -> None:
    run, dataset = open_run(tiny_run, tmp_path / "own")
    queries = dataset.of_role("preference")
    (sampled,) = sample_answers(run, dataset, [SampleJob(queries, COUNT, STREAM)])
    at_once, in_parts = LengthTeacher(free), LengthTeacher(free)
    expected = judge_sampled(run, dataset, at_once, queries, sampled)
    monkeypatch.setattr(preference_set, "JUDGED_TOGETHER", 5)
    found = judge_sampled(run, dataset, in_parts, queries, sampled)
    assert (at_once.parts, in_parts.parts) == ([16], [5, 5, 5, 1])
    assert in_parts.costed == ([] if free else [5, 5, 5, 1])
    assert found.scores == expected.scores
    assert found.durations_s == expected.durations_s == [one.sound().duration_s for one in sampled.answers]
    assert found.loudness_db == expected.loudness_db
    for one, other in zip(found.coded_again, expected.coded_again, strict=True):
        np.testing.assert_array_equal(one, other)
    again = judge_sampled(run, dataset, in_parts, queries, sampled)
    assert again.scores == expected.scores
    # A teacher that costs nothing has no cache of its own.
    assert in_parts.parts == [5, 5, 5, 1] * (1 if free else 2)
    assert found.only([3, 1]).scores == [expected.scores[3], expected.scores[1]]


def test_a_warm_up_on_two_ranks_is_the_one_of_this_process(tiny_run: Path, tmp_path: Path) -> None:
    """In float32: Adam's first steps are as large for a gradient of rounding as for another, so a few weights may differ."""
    warmup = {"steps": 2, "batch_size": 3, "demonstration_contrasts": 1}
    made = {}
    for name, more in (("alone", {}), ("ranks", {"learner": {"count": 2, "threads": 1}})):
        (tmp_path / name).mkdir()
        config = write_run(tmp_path / name, warmup=warmup | more)
        (tmp_path / name / "run").mkdir()
        (tmp_path / name / "run/data").symlink_to(tiny_run / "run/data")
        invoke("warmup", config)
        log = list(read_jsonl(tmp_path / name / "run/warmup.jsonl"))
        made[name] = log, load_file(tmp_path / name / "run/sft/model.safetensors")
        assert json.loads((tmp_path / name / "run/sft/answers.json").read_text())["sampling"]["max_steps"] == 14
    (log, weights), (expected, wanted) = made["ranks"], made["alone"]
    assert [row["step"] for row in log] == [0, 1]
    for one, other in zip(log, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert weights.keys() == wanted.keys()
    apart = np.concatenate([np.abs(weights[name] - wanted[name]).ravel() for name in weights])
    assert (apart > 1e-6).mean() < 0.01
    # The config's rate at its second step is a tenth: what a step may move.
    assert apart.max() < 1e-3
