"""`paras2s bench contrasts`: a run's own systems on its held-out queries, judged by the rubric, with standard errors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from paras2s.bench.paras2s.judges import RunJudge
from paras2s.bench.paras2s.metrics import cell, summary
from paras2s.bench.paras2s.run import Runner
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.systems import CASCADE, TOPLINE, PolicySystem, ScriptedBaseline, SpokenQuestion, System
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import prepare_prompts
from paras2s.policy.answers import answer_settings_of
from paras2s.policy.base import Policy
from paras2s.policy.registry import is_checkpoint
from paras2s.policy.types import Prompt
from paras2s.reward.reward_model.model import RewardModel
from paras2s.run import Run
from paras2s.types import CATEGORIES
from paras2s.utils.io import write_json
from paras2s.utils.process_pool import cores

HeldOut = Literal["validation", "test"]
SYSTEMS = (CASCADE, "sft", "aligned", TOPLINE)


def policy_system(run: Run, dataset: Dataset, policy: Policy) -> PolicySystem:
    """A policy under the run's settings, its prompts made as in training."""
    queries = {query.id: query for query in dataset.queries}

    def prompts(policy: Policy, questions: Sequence[SpokenQuestion]) -> list[Prompt]:
        return prepare_prompts(policy, dataset, [queries[question.id] for question in questions])

    return PolicySystem(policy, run.config.seed, answer_settings_of(run.config).sampling, prompts)


def open_runner(run: Run, dataset: Dataset, model: RewardModel, role: HeldOut) -> Runner:
    """The runner for one role of a run's queries, with the rubric as judge."""
    queries = dataset.of_role(role)
    suffix = "" if role == "test" else f"-{role}"
    rows, samples = run.folder / f"bench{suffix}", Path(f"samples{suffix}")
    judge, answers = RunJudge(dataset, queries, model), run.config.bench.answers_per_query
    return Runner(queries, dataset.folder, answers, judge, run.folder, rows, samples, run.console, run.quiet)


def run_bench(
    run: Run, dataset: Dataset, model: RewardModel, role: HeldOut, wanted: Sequence[str] = SYSTEMS
) -> dict[str, list[AnswerRow]]:
    """Rows of the systems that there are by now; the aligned policy's where it is made already. Finished rows are read."""
    torch.set_num_threads(cores())
    runner = open_runner(run, dataset, model, role)
    checkpoints = {"sft": run.sft_dir, "aligned": run.aligned_dir}

    def open_own(name: str) -> System:
        if name in checkpoints:
            return policy_system(run, dataset, run.load_policy(checkpoints[name]))
        return ScriptedBaseline(name == TOPLINE, run.config.cache_dir)

    chosen = [name for name in SYSTEMS if name in wanted]
    rows = {name: load_rows(path) for name in chosen if (path := runner.rows_path(name)).is_file()}
    missing = [name for name in chosen if name not in rows]
    missing = [name for name in missing if name not in checkpoints or is_checkpoint(checkpoints[name])]
    with run.stage("bench") if missing else contextlib.nullcontext():
        for name in missing:
            rows[name] = runner.bench(name, open_own(name))
    rows = {name: rows[name] for name in SYSTEMS if name in rows}
    write_json(runner.rows / "summary.json", summary(rows))
    return rows


def describe_bench(run: Run, systems: dict[str, list[AnswerRow]]) -> None:
    """Print the table of a run's systems."""
    from rich.table import Table

    rows = {name: row for name, row in summary(systems).items() if name in systems}
    categories = [one for one in CATEGORIES if any(one in row["categories"] for row in rows.values())]
    table = Table("system", *categories, "all", "contrast", "WER", "scored")
    for name, row in rows.items():
        cells = [*(row["categories"][one] for one in categories), row["overall"]]
        cells += [row["contrast"], row["word_error_rate"]]
        overall = row["overall"]
        table.add_row(name, *map(cell, cells), f"{overall['n_scored']}/{overall['n_asked']}")
    if not run.quiet:
        run.console.print(table)
