"""`paras2s distill`: the SFT policy's own answers, judged, to a reward model (ParaS2S, section 4.2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paras2s.audio import Clip
from paras2s.data_gen.manifest import Dataset
from paras2s.data_gen.speech import USER_STYLES
from paras2s.parallel import cores
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt, Sampling
from paras2s.records import Blueprint, Query, Rollout, Verdict
from paras2s.reward.degenerate import KINDS, degenerate_clip
from paras2s.reward.distill import PreferenceSet, ScoredAnswer, agreement, train_reward_model
from paras2s.reward.judges.measure import measure_answers
from paras2s.reward.judges.rubric import Question, RubricJudge
from paras2s.reward.model import RewardModel
from paras2s.rollout.actors import question_of
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.stages.prompts import prepare_prompts
from paras2s.stages.run import Run
from paras2s.storage import read_json, write_json

BATCH_QUERIES = 16
DEGENERATE_OF_EACH = 96


def sample_answers(
    run: Run, policy: DualStreamPolicy, queries: Sequence[Query], prompts: Sequence[Prompt], count: int, stream: int
) -> list[Rollout]:
    """`count` answers a query, at the distillation's temperature."""
    engine = NativeEngine(policy)
    temperature = run.config.distill.temperature
    sampling = Sampling(temperature, temperature, run.config.policy.max_answer_steps)
    rollouts: list[Rollout] = []
    with run.bar("answers sampled", len(queries)) as bar:
        for start in range(0, len(queries), BATCH_QUERIES):
            part = slice(start, start + BATCH_QUERIES)
            ids = [query.id for query in queries[part]]
            seeds = answer_seeds(run.config.seed, stream + start, range(len(ids)), count)
            rollouts += engine.generate(ids, prompts[part], count, sampling, seeds)
            bar.at(len(rollouts), len(queries))
    return rollouts


def scores_by_style(judge: RubricJudge, blueprint: Blueprint) -> dict[str, float]:
    """The judge's score of one answer for every style of question; what it cannot score is missing."""
    verdicts = {style: judge.judge(Question("", style), blueprint) for style in USER_STYLES}
    return {style: verdict.score for style, verdict in verdicts.items() if isinstance(verdict, Verdict)}


def judge_rollouts(
    run: Run, dataset: Dataset, judge: RubricJudge, rollouts: Sequence[Rollout]
) -> tuple[list[ScoredAnswer], float]:
    """Scored answers, and how many answers the judge scores a second (blueprints included)."""
    clips = [Clip(wave, rollout.sample_rate_hz) for rollout in rollouts for wave in rollout.waves]
    owners = [(number, codes) for number, rollout in enumerate(rollouts) for codes in rollout.codes]
    started = time.perf_counter()
    with run.bar("answers judged", len(clips)) as bar:
        blueprints = measure_answers(clips, dataset.agent_tone, bar.at)
    found = [
        ScoredAnswer(number, codes, scores_by_style(judge, blueprint))
        for (number, codes), blueprint in zip(owners, blueprints, strict=True)
    ]
    return found, len(clips) / (time.perf_counter() - started)


def degenerate_answers(dataset: Dataset, policy: DualStreamPolicy, per_kind: int, seed: int) -> dict[str, list[Clip]]:
    """Degenerate relatives of demonstrated answers, through the codec as an answer would be."""
    demonstrated = sorted({one.clip for one in dataset.demonstrations})
    found: dict[str, list[Clip]] = {kind: [] for kind in KINDS}
    for number in range(per_kind):
        answer = dataset.clip(demonstrated[(seed + number) % len(demonstrated)])
        for kind in KINDS:
            found[kind].append(degenerate_clip(kind, answer, seed + number))
    return found


def probe(
    model: RewardModel, judge: RubricJudge, dataset: Dataset, policy: DualStreamPolicy, prompts: Sequence[Prompt],
    queries: Sequence[Query],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """What judge and reward model make of degenerate answers to held-out questions, by kind: their highest scores."""
    table = {}
    by_kind = degenerate_answers(dataset, policy, 8, seed=1000)
    measured = iter(measure_answers([clip for clips in by_kind.values() for clip in clips], dataset.agent_tone))
    for kind, clips in by_kind.items():
        blueprints = [next(measured) for _ in clips]
        verdicts = [judge.judge(Question("", queries[n % len(queries)].style or ""), b) for n, b in enumerate(blueprints)]
        scores = [verdict.score for verdict in verdicts if isinstance(verdict, Verdict)]
        heard = [question_of(prompts[n % len(prompts)]) for n in range(len(clips))]
        predicted = model.score(heard, [policy.codec.encode(clip) for clip in clips])
        table[kind] = {
            "judge_max": max(scores) if scores else None,
            "judge_unscored": len(verdicts) - len(scores),
            "model_max": max(predicted),
            "model_mean": float(np.mean(predicted)),
            "n": len(clips),
        }
    return table


def run_distill(run: Run, dataset: Dataset, policy: DualStreamPolicy) -> RewardModel:
    """Make the preference set and train the reward model, or load it where it is whole already."""
    if (run.reward_dir / "agreement.json").is_file():
        run.say("  the reward model is there already")
        return RewardModel.load(run.reward_dir)
    torch.set_num_threads(cores())
    config, judge = run.config.distill, RubricJudge()
    with run.stage("distill"):
        queries, held_out = dataset.of_role("preference"), dataset.of_role("test")
        prompts, held_prompts = (prepare_prompts(policy, dataset, part) for part in (queries, held_out))
        # Asked in crossed pairs only: their own answers are known by heart, but their styles are there to be heard.
        demonstrated = dataset.of_role("demonstration")
        more_prompts = prepare_prompts(policy, dataset, demonstrated)
        rollouts = sample_answers(run, policy, queries, prompts, config.answers_per_query, stream=1_000_000)
        answers, judge_per_s = judge_rollouts(run, dataset, judge, rollouts)
        degenerate = degenerate_answers(dataset, policy, DEGENERATE_OF_EACH, seed=run.config.seed)
        preferences = PreferenceSet(
            questions=tuple(question_of(prompt) for prompt in (*prompts, *more_prompts)),
            styles=tuple(query.style or "" for query in (*queries, *demonstrated)),
            answers=tuple(answers),
            degenerate=tuple(policy.codec.encode(clip) for clips in degenerate.values() for clip in clips),
        )
        with run.bar("reward model steps", config.steps) as bar:
            model = train_reward_model(
                preferences,
                policy.codec.cardinality,
                config,
                run.config.seed,
                lambda step, loss: bar.at(step + 1, config.steps, f"loss {loss:.2f}"),
            )
        model.save(run.reward_dir)
        report = _report(run, dataset, policy, model, judge, (held_out, held_prompts), judge_per_s)
        report["preference_answers"] = len(answers)
        report["probes"] = probe(model, judge, dataset, policy, held_prompts, held_out)
        write_json(run.reward_dir / "agreement.json", report)
    describe_reward(run)
    return model


def _report(
    run: Run,
    dataset: Dataset,
    policy: DualStreamPolicy,
    model: RewardModel,
    judge: RubricJudge,
    held_out: tuple[Sequence[Query], Sequence[Prompt]],
    judge_per_s: float,
) -> dict[str, Any]:
    """Agreement with the judge on held-out queries, per category and against a baseline that does not listen."""
    queries, prompts = held_out
    rollouts = sample_answers(run, policy, queries, prompts, 2, stream=2_000_000)
    answers, _ = judge_rollouts(run, dataset, judge, rollouts)
    scored = [a for a in answers if (queries[a.question].style or "") in a.scores]
    heard = [question_of(prompts[a.question]) for a in scored]
    started = time.perf_counter()
    predicted = model.score(heard, [a.codes for a in scored])
    model_per_s = len(scored) / (time.perf_counter() - started)
    judged = [a.scores[queries[a.question].style or ""] for a in scored]
    by_category: dict[str, Any] = {}
    for category in sorted({query.category or "" for query in queries}):
        rows = [n for n, a in enumerate(scored) if queries[a.question].category == category]
        by_category[category] = agreement([predicted[n] for n in rows], [judged[n] for n in rows])
    lengths = [float(len(a.codes)) for a in scored]
    return {
        "held_out": agreement(predicted, judged),
        "held_out_by_category": by_category,
        "baseline_length": agreement(lengths, judged),
        "judge_answers_per_s": judge_per_s,
        "model_answers_per_s": model_per_s,
    }


def describe_reward(run: Run) -> None:
    """Agreement and probes in a few lines."""
    report = read_json(run.reward_dir / "agreement.json")
    held = report["held_out"]
    pearson = "unknown (a side is constant)" if held["pearson"] is None else f"{held['pearson']:.3f}"
    run.say(
        f"  reward model on held-out queries: Pearson {pearson} with the judge over {held['n']} answers; "
        f"{report['model_answers_per_s']:.0f} answers/s against the judge's {report['judge_answers_per_s']:.1f}"
    )
    worst = max(row["model_max"] for row in report["probes"].values())
    run.say(f"  degenerate answers score at most {worst:.2f} with the reward model")
