"""What an answer depends on: the words of a question or its voice. Either is taken from a question of another category.

A policy of a finished run answers held-out questions as they are, then with another question's transcript, then with another
question's voice. The kind of an answer belongs to a category, so it tells whose question was answered.

    paras2s demo
    python benchmarks/dependence.py runs/demo [--policy aligned]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures import Figure, add_json_option, write_figures

from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import Dataset, load_dataset
from paras2s.data_gen.policy_inputs import prepare_prompts
from paras2s.policy.answers import answer_settings_of
from paras2s.policy.base import Policy
from paras2s.policy.registry import load_policy
from paras2s.policy.types import SampleRequest
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.types import Query, Unscored
from paras2s.utils.process_pool import end_workers

CASES = ("as it is", "another's words", "another's voice")


def partners(queries: Sequence[Query], seed: int) -> list[Query]:
    """A query of another category for each, drawn at random."""
    rng = np.random.default_rng(seed)
    return [strangers[int(rng.integers(len(strangers)))] for query in queries for strangers in [_strangers(queries, query)]]


def _strangers(queries: Sequence[Query], query: Query) -> list[Query]:
    return [other for other in queries if other.category != query.category]


def exchanged(queries: Sequence[Query], others: Sequence[Query], case: str) -> list[Query]:
    """The queries with what the case takes from the others: the transcript, or the clip."""
    if case == CASES[0]:
        return list(queries)
    key = "transcript" if case == CASES[1] else "clip"
    return [replace(query, **{key: getattr(other, key)}) for query, other in zip(queries, others, strict=True)]


def answered_categories(policy: Policy, dataset: Dataset, queries: Sequence[Query], count: int, seed: int) -> list[str]:
    """The category of each answer's kind, `count` answers to a query; "none" where it was not understood."""
    engine, judge = NativeEngine(policy), RubricJudge(tone=dataset.agent_tone)
    sampling = answer_settings_of(load_config(dataset.folder.parent / "config.resolved.yaml")).sampling
    prompts = prepare_prompts(policy, dataset, queries)
    seeds = answer_seeds(seed, 0, range(len(queries)), count)
    rollouts = engine.generate([query.id for query in queries], SampleRequest(prompts, seeds, sampling), True)
    clips = [Clip(wave, rollout.sample_rate_hz) for rollout in rollouts for wave in rollout.waves]
    found = []
    for blueprint in measure_answers(clips, dataset.agent_tone):
        # Any style that the rubric knows: the kind of an answer does not depend on it.
        finding = judge.find("", next(iter(judge.rubric.content)), blueprint)
        kind = None if isinstance(finding, Unscored) else finding.family
        found.append("none" if kind is None else judge.rubric.families[kind].category)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a finished run")
    parser.add_argument("--policy", default="aligned", help="sft or aligned")
    parser.add_argument("--answers", type=int, default=2, help="a query")
    add_json_option(parser)
    options = parser.parse_args()
    dataset = load_dataset(options.folder / "data")
    policy = load_policy(options.folder / options.policy)
    queries = dataset.of_role("test")
    others = partners(queries, seed=0)
    figures = []
    for case in CASES:
        found = answered_categories(policy, dataset, exchanged(queries, others, case), options.answers, seed=0)
        owners = [(query, other) for query, other in zip(queries, others, strict=True) for _ in range(options.answers)]
        words = [(other if case == CASES[1] else query).category for query, other in owners]
        voices = [(other if case == CASES[2] else query).category for query, other in owners]
        counts = Counter((one == word, one == voice) for one, word, voice in zip(found, words, voices, strict=True))
        by_words = sum(n for (word, _), n in counts.items() if word) / len(found)
        by_voice = sum(n for (_, voice), n in counts.items() if voice) / len(found)
        unclear = found.count("none") / len(found)
        print(
            f"{options.policy}, {case}: an answer to the words' category {by_words:.0%}, to the voice's {by_voice:.0%}, "
            f"not understood {unclear:.0%} (n = {len(found)})",
            flush=True,
        )
        figures += [
            Figure(f"{options.policy}, {case}: to the words' category", "share", [by_words], more_is_better=True),
            Figure(f"{options.policy}, {case}: to the voice's category", "share", [by_voice], more_is_better=True),
        ]
    write_figures(options.json, figures)
    end_workers()


if __name__ == "__main__":
    main()
