"""`paras2s bench contrasts`: a run's own systems on its held-out queries, judged by the rubric and by the independent judge.

The rubric taught the reward model; the independent judge taught nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paras2s.bench.audit import audit_warnings
from paras2s.bench.paras2s.gain import GainVerdict, verdict_on_gain
from paras2s.bench.paras2s.judges import AnswerJudge, RunJudge, open_answer_judge
from paras2s.bench.paras2s.metrics import SpokenKinds, cell, spoken_kinds, summary
from paras2s.bench.paras2s.run import Runner
from paras2s.bench.paras2s.scripted_baselines import (
    BAD,
    CONSTANT,
    FLAT,
    LINEAR,
    PROSODY,
    SCRIPTED,
    STYLE_DEAF,
    missing_for,
    open_baseline,
)
from paras2s.bench.paras2s.second_judge import answers_of, compare_judges, describe_agreement, judge_again, take_evenly
from paras2s.bench.results import AnswerRow, load_rows, save_rows
from paras2s.bench.systems import CASCADE, TOPLINE, PolicySystem, SpokenQuestion, System, histories_of
from paras2s.clients.chat import Bill
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import prepare_prompts
from paras2s.policy.answers import answer_settings_of
from paras2s.policy.base import Policy
from paras2s.policy.registry import is_checkpoint
from paras2s.policy.types import Prompt
from paras2s.reward.judges.independent.judge import IndependentJudge
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.model import RewardModel
from paras2s.run import Run
from paras2s.types import CATEGORIES
from paras2s.utils.device import use_threads
from paras2s.utils.io import write_json
from paras2s.utils.process_pool import cores
from paras2s.utils.tables import Table, number_text, percent

HeldOut = Literal["validation", "test"]
# What the judges' scores are made of, in the order of the table.
PARTS = ("kind", "tone", "topic")
POLICIES = ("sft", "aligned")
# Every system in a line.
SYSTEMS = {
    BAD: "answers of a kind that does not fit: the lowest score",
    CONSTANT: "always the same kind of answer, the best over the training labels",
    CASCADE: "knows the words alone, not how they are said",
    STYLE_DEAF: "knows the two styles of a question and guesses between them",
    LINEAR: "scripted answers, chosen by a linear classifier of styles on the question's words and prosody",
    PROSODY: "knows the category; takes the style from a linear classifier on the question's prosody",
    "sft": "the policy before reinforcement (SFT warm-up)",
    "aligned": "the policy after reinforcement (GRPO)",
    FLAT: "fitting words in a flat tone",
    TOPLINE: "is given the true style: the highest score in reach",
}
# The systems of the short table.
SHOWN = (CASCADE, "sft", "aligned", TOPLINE)


def policy_system(run: Run, dataset: Dataset, policy: Policy) -> PolicySystem:
    """Return a policy under the run's settings, its prompts made as in training."""
    queries = {query.id: query for query in dataset.queries}

    def prompts(policy: Policy, questions: Sequence[SpokenQuestion]) -> list[Prompt]:
        return prepare_prompts(policy, dataset, [queries[question.id] for question in questions])

    return PolicySystem(policy, run.config.seed, answer_settings_of(run.config).sampling, prompts)


def open_reward_model(run: Run) -> RewardModel | None:
    """Load a run's reward model; None for a run whose rewards need none and that has none.

    Raises:
        DataError: it is missing. JudgeError: it is of another version.
    """
    needed = run.config.reward.needs_distillation or (run.reward_dir / "agreement.json").is_file()
    return RewardModel.load(run.reward_dir) if needed else None


def open_runner(run: Run, dataset: Dataset, model: RewardModel | None, role: HeldOut) -> Runner:
    """Return the runner for one role of a run's queries, with the rubric as judge."""
    queries = dataset.of_role(role)
    suffix = "" if role == "test" else f"-{role}"
    rows, samples = run.folder / f"bench{suffix}", Path(f"samples{suffix}")
    judge, answers = RunJudge(dataset, queries, model), run.config.bench.answers_per_query
    return Runner(queries, dataset.folder, answers, judge, run.folder, rows, samples, run.console, run.quiet)


@dataclass(frozen=True)
class BenchedRun:
    """Rows of a run's systems by the judge that taught, the same answers under the independent judge, and both compared."""

    rows: dict[str, list[AnswerRow]]
    independent: dict[str, list[AnswerRow]]

    @property
    def spoken_kinds(self) -> dict[str, SpokenKinds]:
        """The kind of each policy's answers in their text and in their sound, and the share that is garbled."""
        rubric = RubricJudge()
        return {name: spoken_kinds(self.rows[name], rubric) for name in POLICIES if name in self.rows}

    @property
    def comparison(self) -> dict[str, Any]:
        """See `compare_judges`."""
        return compare_judges(self.rows, self.independent)

    @property
    def gain(self) -> GainVerdict | None:
        """Whether the aligned policy is better than its warm-up, by both judges; None before there are both policies."""
        return verdict_on_gain({"rubric judge": self.rows, "independent judge": self.independent})

    def to_json(self) -> dict[str, Any]:
        """Return the summary of all systems, with the independent judge's beside it, and whether reinforcement helped."""
        gain = None if self.gain is None else self.gain.to_json()
        return summary_of(self) | {"independent": self.comparison, "gain": gain}


def summary_of(benched: BenchedRun) -> dict[str, Any]:
    """Return the summary of all systems, and the kind of policies' answers in text and sound."""
    kinds = {name: counted.to_json() for name, counted in benched.spoken_kinds.items()}
    return {**summary(benched.rows), "spoken_kinds": kinds}


def run_bench(
    run: Run, dataset: Dataset, model: RewardModel | None, role: HeldOut, systems: Collection[str] = tuple(SYSTEMS)
) -> BenchedRun:
    """Return the rows of the present systems, the aligned policy's too once it is trained. Finished rows are read."""
    use_threads(cores())
    runner = open_runner(run, dataset, model, role)
    checkpoints = {"sft": run.sft_dir, "aligned": run.aligned_dir}

    def open_own(name: str) -> System:
        if name in checkpoints:
            return policy_system(run, dataset, run.load_policy(checkpoints[name]))
        return open_baseline(name, dataset, runner.queries, run.config.cache_dir)

    chosen = [name for name in SYSTEMS if name in systems]
    rows = {name: load_rows(path) for name in chosen if (path := runner.rows_path(name)).is_file()}
    missing = [name for name in chosen if name not in rows]
    missing = [name for name in missing if name not in checkpoints or is_checkpoint(checkpoints[name])]
    for name in [name for name in missing if name in SCRIPTED]:
        if reason := missing_for(name, dataset, runner.queries):
            run.say(f"  no baseline {name}: {reason}")
            missing.remove(name)
    earlier_s = run.timings().get("bench", 0.0) if rows else 0.0
    with run.stage("bench", earlier_s) if missing else contextlib.nullcontext():
        for name in missing:
            # Before its clips are replaced: the other judge's rows are of those.
            _independent_path(runner, name).unlink(missing_ok=True)
            rows[name] = runner.bench(name, open_own(name))
        rows = {name: rows[name] for name in SYSTEMS if name in rows}
        benched = BenchedRun(rows, _independent_rows(run, runner, rows))
    write_json(runner.rows / "summary.json", summary_of(benched))
    write_json(runner.rows / "independent" / "summary.json", benched.comparison)
    return benched


def _independent_rows(run: Run, runner: Runner, rows: dict[str, list[AnswerRow]]) -> dict[str, list[AnswerRow]]:
    """Return the same answers under the independent judge; verdicts on these very answers are read, not made again."""
    judge = AnswerJudge(IndependentJudge())
    judged = {name: load_rows(path) for name in rows if (path := _independent_path(runner, name)).is_file()}
    for name, own in rows.items():
        existing = [(row.query_id, row.answer_index, row.text_stream, row.judge) for row in judged.get(name, [])]
        if existing != [(row.query_id, row.answer_index, row.text_stream, judge.name) for row in own]:
            with run.bar(f"independent judge, {name}", len(own)) as bar:
                judged[name] = judge_again(own, run.folder, judge, bar.at)
            save_rows(_independent_path(runner, name), judged[name])
    return judged


def _independent_path(runner: Runner, name: str) -> Path:
    return runner.rows / "independent" / f"{name}.jsonl"


def bench_by_judge(
    run: Run, dataset: Dataset, benched: BenchedRun, role: HeldOut, name: str, limit: int | None
) -> dict[str, Any]:
    """Judge the answers of a run by another judge, print its table, and return its summary and agreement with the rubric.

    Verdicts are written beside the rubric's, in a folder of the judge's name. `limit` is the most queries of each system.

    Raises:
        ConfigError: no such judge, or a judge without transcripts. BudgetError: the budget ended; replies are cached.
    """
    judge = open_answer_judge(name, {}, dataset.agent_tone, run.config.cache_dir)
    rows = _of_queries(dataset, benched, role, limit)
    bench = run.folder / ("bench" if role == "test" else f"bench-{role}")
    folder = bench / "judges" / re.sub(r"[^\w.-]+", "_", Path(name).stem)
    judged: dict[str, list[AnswerRow]] = {}
    histories = histories_of(dataset.of_role(role), dataset.folder)
    for system, own in rows.items():
        with run.bar(f"{name}, {system}", len(own)) as bar:
            judged[system] = judge_again(own, run.folder, judge, bar.at, histories)
        save_rows(folder / f"{system}.jsonl", judged[system])
    report = {"judge": judge.name, **compare_judges(rows, judged)}
    report["unscored"] = dict(Counter(row.unscored for own in judged.values() for row in own if row.score is None))
    write_json(folder / "summary.json", report)
    if not run.quiet:
        lines = []
        for system, agreed in report["agreement"].items():
            score = cell(report["summary"][system]["overall"])
            lines.append((system, score, number_text(agreed["pearson"]), f"{agreed['n']}/{agreed['asked']}"))
        Table(("system", judge.name, "Pearson with the rubric", "scored"), lines).show(run.console)
    for line in describe_agreement(report, name):
        run.say(line)
    for reason, count in report["unscored"].items():
        run.say(f"  unscored: {count} times {reason}")
    return report


def estimate_by_judge(run: Run, dataset: Dataset, benched: BenchedRun, role: HeldOut, name: str, limit: int | None) -> Bill:
    """Return the most that `bench_by_judge` costs. Raises ConfigError: no such judge, or a judge without transcripts."""
    judge = open_answer_judge(name, {}, dataset.agent_tone, run.config.cache_dir, calls=False)
    rows = _of_queries(dataset, benched, role, limit)
    histories = histories_of(dataset.of_role(role), dataset.folder)
    return judge.estimate(answers_of([row for own in rows.values() for row in own], run.folder, histories))


def _of_queries(dataset: Dataset, benched: BenchedRun, role: HeldOut, limit: int | None) -> dict[str, list[AnswerRow]]:
    chosen = {query.id for query in take_evenly(dataset.of_role(role), limit)}
    return {system: [row for row in own if row.query_id in chosen] for system, own in benched.rows.items()}


def describe_bench(run: Run, benched: BenchedRun) -> None:
    """Print whether reinforcement helped, a table of the run's systems, and if verbose the parts and the judges' agreement."""
    for line in audit_warnings(run.folder):
        run.say(line)
    if (gain := benched.gain) is not None:
        run.say("\n".join(gain.lines()))
    rows = {name: row for name, row in summary(benched.rows).items() if name in benched.rows}
    if not run.quiet:
        (_full_table if run.verbose else _short_table)(rows, benched.comparison).show(run.console)
    for name, kinds in benched.spoken_kinds.items():
        text, sound, gap, garbled = (cell(part.to_json()) for part in (kinds.text, kinds.sound, kinds.gap, kinds.garbled))
        run.detail(f"  {name}: kind {text} in its text, {sound} in its sound (lost: {gap}); garbled: {garbled}")
    for line in describe_agreement(benched.comparison):
        run.detail(line)


def _short_table(rows: Mapping[str, Mapping[str, Any]], comparison: Mapping[str, Any]) -> Table:
    """Return the scores of the two policies between what words alone and a known style give, with a line on each."""
    shown = [name for name in SHOWN if name in rows]
    table = [
        (name, cell(rows[name]["overall"]), cell(comparison["summary"][name]["overall"]), cell(rows[name]["contrast"]))
        for name in shown
    ]
    head = ("system", "score, 1 to 5", "independent judge", "contrasts told apart")
    return Table(head, table, notes=[f"{name}: {SYSTEMS[name]}" for name in shown])


def _full_table(rows: Mapping[str, Mapping[str, Any]], comparison: Mapping[str, Any]) -> Table:
    """Return every system's scores by category and part, with a line on each system."""
    categories = [category for category in CATEGORIES if any(category in row["categories"] for row in rows.values())]
    parts = [part for part in PARTS if any(part in row["parts"] for row in rows.values())]
    table = []
    for name, row in rows.items():
        overall, other = row["overall"], comparison["summary"][name]["overall"]
        scores = [*(row["categories"][category] for category in categories), overall, other]
        means = [number_text(row["parts"][part]["mean"]) if part in row["parts"] else None for part in parts]
        ends = [cell(row["contrast"]), cell(row["word_error_rate"]), percent(row["distinct_texts"], 0)]
        table.append((name, *map(cell, scores), *means, *ends, f"{overall['n_scored']}/{overall['n_asked']}"))
    head = ("system", *categories, "all", "independent", *parts, "contrast", "WER", "texts", "scored")
    return Table(head, table, notes=[f"{name}: {SYSTEMS[name]}" for name in rows])
