"""Seconds a step of the synchronous and the asynchronous driver, with a judge that takes a second to answer.

The policy has the embedded one's sizes (6.5 M parameters) and random weights, with which answers soon end. A step samples
8 questions x 8 answers of at most 52 steps, waits for the judge, and learns from 4 of the questions. The judge sleeps for a
second a call, as if it waited for an LLM behind an endpoint, and then rewards long answers. Both drivers run in turns, with
the same questions and seeds. Times are whole steps as the drivers log them, without the start of Ray and of the actors:
their median without the first two, and the mean of all, with the filling and emptying of the queue.

The score is the mean reward over the last third of a run; repeats have seeds of their own, and their spread is its error.

Sampler and learner share this machine's cores. So what is hidden is the judge's latency, and hardly any of the learning:
see `--judge-s 0`.

    python benchmarks/drivers.py [--steps 24] [--repeats 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from figures import Figure, add_json_option, write_figures
from rich.console import Console

from paras2s.align.job import GRPOJob
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.audio.text_embedding import SENTENCE_DIM, WordPieces
from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig, OptimizerConfig, SamplingConfig, WorkersConfig
from paras2s.configs.schema.run import PolicyConfig, RewardConfig, RewardSourceConfig, RunConfig
from paras2s.grpo import train_grpo
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.features import FEATURE_DIM, FeatureNormalizer
from paras2s.policy.embedded.policy import EmbeddedPolicy, special_ids
from paras2s.policy.types import Prompt
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import CompositeReward, RewardSetup
from paras2s.rollout import workers
from paras2s.rollout.prompts import PromptFiles, write_prompt
from paras2s.rollout.reward_inputs import Waves
from paras2s.rollout.timeline import Span
from paras2s.run import Run
from paras2s.types import Reward, Rollout, Unscored

SIZES = PolicyConfig(device="cpu")
QUESTIONS, LEARNED, GROUP, PROMPTS, QUESTION_STEPS = 8, 4, 8, 64, 40
# The reward is for answers of this length: as long as they may be.
TARGET_STEPS = SIZES.max_answer_steps


def slow_worker(judge_s: float) -> Any:
    """A reward worker whose judge takes this long to answer a call, and else is the run's reward."""

    @ray.remote
    class SlowRewardWorker:
        def __init__(self, setup: RewardSetup, threads: int) -> None:
            torch.set_num_threads(threads)
            self.rewards = CompositeReward(setup)

        def score(
            self, rollouts: Sequence[Rollout], waves: Waves, part: slice, questions: Sequence[RewardQuestion]
        ) -> tuple[list[list[Reward | Unscored]], list[Span]]:
            time.sleep(judge_s)
            rewards = self.rewards.score(
                [
                    Group(question, tuple(GivenAnswer(len(own), text) for own, text in zip(one.codes, one.texts, strict=True)))
                    for question, one in zip(questions, rollouts[part], strict=True)
                ]
            )
            return rewards, []

    return SlowRewardWorker


def save_policy(folder: Path, seed: int) -> int:
    """Random weights; returns how many."""
    pieces = WordPieces([f"w{number}" for number in range(SIZES.text_pieces)])
    model = DualStreamLM(
        DualStreamConfig(
            hidden_size=SIZES.hidden_size,
            intermediate_size=SIZES.intermediate_size,
            num_layers=SIZES.num_layers,
            tap_layer=SIZES.tap_layer,
            num_heads=SIZES.num_heads,
            num_kv_heads=SIZES.num_kv_heads,
            rope_theta=10_000.0,
            text_vocab=SIZES.text_pieces + len(special_ids(0)),
            codebook_sizes=Codec2Pairs.cardinality,
            audio_delay_steps=SIZES.audio_delay_steps,
            continuous_dim=FEATURE_DIM,
            mask_invalid_ids=True,
            **special_ids(SIZES.text_pieces),
        )
    )
    model.initialise(seed)
    # All states share a direction, and the end of an answer likes it: about one step in ten ends an answer at first.
    shared = torch.randn(SIZES.hidden_size, generator=torch.Generator().manual_seed(seed))
    shared /= shared.norm()
    with torch.no_grad():
        model.model.embed_tokens.weight += 0.02 * SIZES.hidden_size**0.5 * shared
        model.mimo_output.weight[model.dual_config.msg_end_id] += 0.3 * shared
    listener = FeatureNormalizer(np.zeros(UTTERANCE_DIM), np.ones(UTTERANCE_DIM))
    EmbeddedPolicy(model, pieces, Codec2Pairs(), listener).save(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def random_prompt(rng: np.random.Generator) -> Prompt:
    """A question's codes and features, between the special ids that the embedded policy puts around them."""
    ids, codec = special_ids(SIZES.text_pieces), Codec2Pairs
    offsets = np.cumsum([SIZES.text_pieces + len(ids), *codec.cardinality[:-1]])
    audio = np.full((QUESTION_STEPS + 3, len(codec.cardinality)), ids["pad_id"])
    audio[[0, 1, -1], 0] = ids["user_id"], ids["media_begin_id"], ids["assistant_id"]
    speech = slice(2, 2 + QUESTION_STEPS)
    audio[speech] = offsets + rng.integers(codec.cardinality, size=(QUESTION_STEPS, len(codec.cardinality)))
    features = np.zeros((len(audio), FEATURE_DIM), dtype=np.float32)
    features[speech] = rng.normal(size=(QUESTION_STEPS, FEATURE_DIM))
    continuous = np.zeros(len(audio), dtype=bool)
    continuous[speech] = True
    return Prompt(audio, np.full(len(audio), ids["blank_id"]), features, continuous, SENTENCE_DIM, tuple(map(int, offsets)))


def make_job(folder: Path, sft: Path, seed: int, steps: int, threads: int | None, staleness: int) -> GRPOJob:
    role = {"threads": threads}
    config = RunConfig(
        seed=seed,
        run_dir=folder,
        cache_dir=folder / "cache",
        policy=SIZES,
        reward=RewardConfig(sources=(RewardSourceConfig(kind="length", options={"target_steps": TARGET_STEPS}),)),
        align=AlignConfig(
            steps=steps,
            max_staleness=staleness,
            checkpoint_every=steps,
            evaluate_every=steps,
            sampling=SamplingConfig(queries_per_step=QUESTIONS, group_size=GROUP),
            objective=ObjectiveConfig(groups_per_update=LEARNED, kl_weight=0.0, tis_cap=2.0 if staleness else None),
            optimizer=OptimizerConfig(warmup_steps=1),
            workers=WorkersConfig.model_validate({"rollout": role, "reward": role, "learner": role}),
        ),
    )
    run = Run(config, Console(quiet=True), quiet=True)
    folder.mkdir(parents=True)
    run.sft_dir.symlink_to(sft)
    rng = np.random.default_rng(seed)
    prompts = PromptFiles(folder / "prompts", names=[f"{number}.npz" for number in range(PROMPTS)])
    for name in prompts.names:
        write_prompt(prompts.folder / name, random_prompt(rng), half=False)
    nothing = EncodedQuestion(np.zeros((0, 2), dtype=np.int64), np.zeros((0, FEATURE_DIM)), SENTENCE_DIM)
    questions = [RewardQuestion(f"q{number}", nothing, "") for number in range(PROMPTS)]
    return GRPOJob(run, prompts, questions, PromptFiles(prompts.folder), [], lambda prompt, _: prompt)


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """With the mean's standard error; of one value there is none."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def final_reward(run: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([row["reward_mean"] for row in run[-(len(run) // 3) :]]))


def summary(runs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Of one driver's runs."""
    later = [row["seconds"] for run in runs for row in run[2:]]
    score, error = mean_error([final_reward(run) for run in runs])
    return {
        "median_s": float(np.median(later)),
        "range_s": [float(np.percentile(later, 5)), float(np.percentile(later, 95))],
        "mean_of_all_s": float(np.mean([row["seconds"] for run in runs for row in run])),
        "first_reward": float(np.mean([run[0]["reward_mean"] for run in runs])),
        "score": score,
        "score_error": error,
        "staleness": float(np.mean([row["staleness"] for run in runs for row in run])),
        "runs": len(runs),
        "steps": len(runs[0]),
    }


def shown(value: float, error: float | None) -> str:
    return f"{value:.3f}" + ("" if error is None else f" +- {error:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24, help="of a run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each driver")
    parser.add_argument("--judge-s", type=float, default=1.0, help="seconds that the judge takes")
    parser.add_argument("--staleness", type=int, default=1, help="of the asynchronous driver")
    parser.add_argument("--threads", type=int, help="of sampler and of learner; else all cores each")
    add_json_option(parser)
    options = parser.parse_args()
    drivers = {"sync": 0, "async": options.staleness}
    workers.RewardWorker = slow_worker(options.judge_s)
    runs: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in drivers}
    with tempfile.TemporaryDirectory() as root:
        count = save_policy(Path(root) / "sft", seed=0)
        print(f"{count / 1e6:.1f} M parameters, {QUESTIONS} x {GROUP} answers a step, a judge of {options.judge_s:g} s")
        for repeat in range(options.repeats):
            for name, staleness in drivers.items():
                folder = Path(root) / f"{name}{repeat}"
                job = make_job(folder, Path(root) / "sft", repeat, options.steps, options.threads, staleness)
                train_grpo(job, resume=False)
                run = job.run.metrics()
                runs[name].append(run)
                taken = [row["seconds"] for row in run]
                print(f"  run {repeat} {name:5s} {np.median(taken[2:]):.2f} s a step, {sum(taken):.1f} s for {len(run)}; "
                      f"reward {run[0]['reward_mean']:.2f} to {final_reward(run):.2f}", flush=True)  # fmt: skip
    found: dict[str, Any] = {name: summary(rows) for name, rows in runs.items()}
    for name, one in found.items():
        low, high = one["range_s"]
        print(f"{name:5s} {one['median_s']:.2f} s a step, median of {one['runs']} x {one['steps'] - 2} "
              f"({low:.2f} to {high:.2f}, 5 to 95 %); mean of all {one['mean_of_all_s']:.2f}; "
              f"score {shown(one['score'], one['score_error'])}; staleness {one['staleness']:.2f}")  # fmt: skip
    ratios = {key: found["sync"][key] / found["async"][key] for key in ("median_s", "mean_of_all_s")}
    apart = mean_error([final_reward(b) - final_reward(a) for a, b in zip(runs["sync"], runs["async"], strict=True)])
    print(f"sync / async: {ratios['median_s']:.2f} times the seconds by medians, {ratios['mean_of_all_s']:.2f} over all steps; "
          f"async scores {shown(*apart)} more on the same seeds")  # fmt: skip
    later = {name: [row["seconds"] for run in rows for row in run[2:]] for name, rows in runs.items()}
    scores = {name: [final_reward(run) for run in rows] for name, rows in runs.items()}
    name = f"a step with a judge of {options.judge_s:g} s"
    figures = [
        Figure(name, "s", later["async"], later["sync"], "synchronous", least_ratio=1.3),
        Figure("reward of the last steps", "1 to 5", scores["async"], scores["sync"], "synchronous", more_is_better=True),
    ]
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
