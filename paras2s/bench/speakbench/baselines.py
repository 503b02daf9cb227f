"""TRACE's Table 1: two judges that say 1, 2 or tie, one by the words and one by the sound, on a benchmark's original labels.

The table shows whether labels can be guessed from the words alone. Verdicts are appended as they come, and a run that goes on
judges pairs without a label. Intervals draw instructions; the paper's are over pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, model_validator
from rich.console import Console

from paras2s.bench.display import PairsEstimate
from paras2s.bench.made_from import MadeFrom
from paras2s.bench.results import require_new
from paras2s.bench.speakbench.data import SuitePair
from paras2s.bench.speakbench.label_sets import SetLabel, load_labels
from paras2s.bench.speakbench.metrics import JudgeComparison, accuracy, collapse, compare
from paras2s.bench.speakbench.report import share_text, show_comparison
from paras2s.bench.speakbench.run import CHUNK_PAIRS, SuiteOptions, estimate_suite, judge_pairs_read, made_from
from paras2s.bench.verdict_file import VerdictFile, read_rows, rows_by_key
from paras2s.clients.chat import Bill
from paras2s.errors import BudgetError, ConfigError, DataError
from paras2s.reward.judges.base import Progress
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.registry import open_llm_judge
from paras2s.statistics.intervals import Share
from paras2s.types import PAIR_LABELS, Label, PairLabel, Preference, Unscored
from paras2s.utils.io import read_jsonl
from paras2s.utils.progress import progress_bar
from paras2s.utils.tables import Table, percent

# The paper's rows, in its order, by the shipped judge.
JUDGES = {"audio judge": "audio_overall", "LLM judge": "transcript_overall"}
# In %, with its 95 % interval (TRACE, Table 1; Gemini 2.5 Flash).
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "speakbench": {"random guess": (33.3,), "audio judge": (51.4, 47.6, 56.6), "LLM judge": (59.8, 55.8, 64.6)},
    "s2sarena": {"random guess": (50.0,), "audio judge": (78.6, 75.0, 81.9), "LLM judge": (78.8, 74.7, 82.4)},
}


class BaselineRow(BaseModel):
    """One pair's label by one judge, or the reason why there is none."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    index: int
    judge: str
    version: str = ""
    prompt_hash: str = ""
    label: PairLabel | None = None
    unscored: str | None = None
    cost_usd: float | None = None

    @model_validator(mode="after")
    def _check(self) -> BaselineRow:
        if (self.label is None) == (self.unscored is None):
            raise ValueError("give either a label or the reason in 'unscored', and not both")
        return self


def load_rows(path: Path) -> dict[int, BaselineRow]:
    """Return the rows of a judge's file by the pair's index, as `rows_by_key`. Raises DataError: names the line."""
    return rows_by_key(read_rows(path, BaselineRow), lambda row: row.index, lambda row: row.label is not None, "pair")


@dataclass(frozen=True)
class BaselineJudge:
    """One row of the table: the accuracy of a judge, what it said how often, and why pairs have no label."""

    judge: str
    accuracy: Share
    said: dict[str, int]
    unscored: dict[str, int]
    cost_usd: float | None
    file: str


@dataclass(frozen=True)
class BaselineTable:
    """Table 1 on one set of original labels (`unlabelled` lack one); `comparison` is the LLM judge less the audio judge."""

    suite: str
    n_pairs: int
    unlabelled: int
    random_guess: float
    majority: tuple[str, float]
    judges: dict[str, BaselineJudge]
    comparison: JudgeComparison | None
    stopped: BudgetError | None = None

    @property
    def n_unscored(self) -> int:
        """The number of labels that are missing, over all judges."""
        return sum(sum(judge.unscored.values()) for judge in self.judges.values())

    def to_json(self) -> dict[str, Any]:
        """Return the table with the paper's figures, as plain JSON."""
        values = {key: value for key, value in asdict(self).items() if key != "stopped"}
        return {**values, "paper": {name: list(figures) for name, figures in PUBLISHED[self.suite].items()}}


def original_labels(options: SuiteOptions, path: Path) -> tuple[list[SuitePair], dict[int, PairLabel], int]:
    """Return the pairs with an original label, those labels with one tie, and the number without. Raises DataError: none."""
    pairs, original = options.load_pairs(), load_labels(path)
    labels = {pair.index: _bare(original.get(pair.index)) for pair in pairs}
    known = {index: label for index, label in labels.items() if label is not None}
    if not known:
        raise DataError(f"{path}: labels none of these pairs")
    return [pair for pair in pairs if pair.index in known], known, len(pairs) - len(known)


def _bare(label: SetLabel | None) -> PairLabel | None:
    return None if label is None else cast(PairLabel, label if label == "tie" else collapse(label, 3))


def open_baseline(options: SuiteOptions, name: str, calls: bool = True) -> LLMJudge:
    """Return one of the two judges, with the options laid over its config."""
    both = True if options.both_orders else None
    return open_llm_judge(JUDGES[name], options.overrides, both_orders=both, calls=calls)


def estimate_baselines(options: SuiteOptions, path: Path, console: Console, quiet: bool) -> PairsEstimate:
    """Return the most that both judges can cost, without a call; `unscored` counts pairs that one of them cannot judge."""
    pairs, _, _ = original_labels(options, path)
    bill, unscored, models = Bill(), 0, []
    for name in JUDGES:
        judge = open_baseline(options, name, calls=False)
        with progress_bar(console, "pairs read", len(pairs), quiet=quiet) as bar:
            cost, missing = estimate_suite(judge, pairs, options.audio_root(), bar.at)
        bill, unscored = bill + cost, max(unscored, missing)
        models.append(judge.config.llm.model)
    return PairsEstimate(" and ".join(dict.fromkeys(models)), bill, unscored, len(pairs))


def run_baselines(options: SuiteOptions, path: Path, console: Console, quiet: bool) -> BaselineTable:
    """Judge the pairs by both judges, and compare with the original labels. Raises ConfigError: no audio. StorageError."""
    pairs, truth, unlabelled = original_labels(options, path)
    files: dict[str, Path] = {}
    stopped: BudgetError | None = None
    for name in JUDGES:
        judge = open_baseline(options, name)
        own_name = f"{judge.name}-{judge.version}".replace(":", "-").replace("/", "-")
        files[name] = Path("runs") / options.name / f"{own_name}.jsonl"
        with progress_bar(console, f"pairs, {name}", len(pairs), quiet=quiet) as bar:
            stopped = judge_pairs(judge, pairs, options.audio_root(), files[name], bar.at)
        if stopped:
            break
    rows = {name: load_rows(file) for name, file in files.items() if file.is_file()}
    clusters = {pair.index: pair.instruction_id for pair in pairs}
    table = baseline_table(options.name, truth, clusters, rows, {name: str(file) for name, file in files.items()})
    return replace(table, unlabelled=unlabelled, stopped=stopped)


def judge_pairs(
    judge: LLMJudge, pairs: Sequence[SuitePair], root: Path, path: Path, on_progress: Progress
) -> BudgetError | None:
    """Judge the pairs without a label in the file; return the budget's end. Raises StorageError: it is another judge's."""
    existing = load_rows(path) if path.is_file() else {}
    own = f"{judge.name}/{judge.version}/{judge.pair_prompt.hash}"
    require_new(path, [f"{row.judge}/{row.version}/{row.prompt_hash}" for row in existing.values() if row.label], [own])
    # As they were written: a row holds more than `BaselineRow` reads.
    rows = {row["index"]: row for row in (read_jsonl(path) if existing else ())}
    file = VerdictFile(path, rows, lambda row: row["index"], lambda row: row.get("label") is not None, dict)

    def judge_chunk(chunk: Sequence[SuitePair], at: Progress) -> list[dict[str, Any] | BudgetError]:
        judged = judge_pairs_read(chunk, root, lambda read: judge.compare_batch(read, at), judge.pair_requests)
        return [
            verdict if isinstance(verdict, BudgetError) else _row(pair, verdict, made_from(pair, root, path.parent, prompts))
            for pair, (verdict, prompts) in zip(chunk, judged, strict=True)
        ]

    todo = [pair for pair in pairs if not file.is_judged(pair.index)]
    stopped = file.judge(todo, CHUNK_PAIRS, judge_chunk, on_progress)
    if todo and file.rows:
        file.rows = dict(sorted(file.rows.items()))
        file.rewrite()
    return stopped


def _row(pair: SuitePair, verdict: Preference | Unscored, source: MadeFrom) -> dict[str, Any]:
    if isinstance(verdict, Unscored):
        values = {"judge": verdict.judge, "unscored": verdict.reason, "reply": verdict.reply}
    else:
        values = asdict(verdict)
    return {"index": pair.index, **values, "made_from": source.to_json()}


def baseline_table(
    suite: str,
    truth: Mapping[int, PairLabel],
    clusters: Mapping[int, int | str],
    rows: Mapping[str, Mapping[int, BaselineRow]],
    files: Mapping[str, str],
) -> BaselineTable:
    """Return the table from recorded labels by judge and pair."""
    right = cast(list[Label], list(truth.values()))
    groups = [clusters[index] for index in truth]
    guesses = {
        name: [of_judge[index].label if index in of_judge else None for index in truth] for name, of_judge in rows.items()
    }
    judges = {}
    for name, guess in guesses.items():
        own = [rows[name][index] for index in truth if index in rows[name]]
        why = Counter(row.unscored for row in own if row.unscored is not None)
        lacking = len(truth) - len(own)
        costs = [row.cost_usd for row in own if row.label is not None]
        judges[name] = BaselineJudge(
            judge=next((f"{row.judge}/{row.version}/{row.prompt_hash}" for row in own if row.label), name),
            accuracy=accuracy(right, cast(list[Label | None], guess), groups, 3),
            said={label: guess.count(label) for label in PAIR_LABELS},
            unscored={**why, **({"not judged: the budget ended before": lacking} if lacking else {})},
            cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
            file=files.get(name, ""),
        )
    sides = [cast(list[Label | None], guesses[name]) for name in ("LLM judge", "audio judge") if name in guesses]
    both = len(sides) == 2 and any(None not in pair for pair in zip(*sides, strict=True))
    label, count = Counter(truth.values()).most_common(1)[0]
    # A benchmark that forces a winner is guessed right half of the time, as in the paper.
    random_guess = 1 / (3 if "tie" in truth.values() else 2)
    comparison = compare(right, sides[0], sides[1], groups) if both else None
    return BaselineTable(suite, len(truth), 0, random_guess, (label, count / len(truth)), judges, comparison)


def show_baselines(console: Console, table: BaselineTable) -> None:
    """Print the table, the paper's figures in its last column, and what the judges said."""
    paper = {name: _published(figures) for name, figures in PUBLISHED[table.suite].items()}
    rows = [("random guess", percent(table.random_guess), "", paper["random guess"])]
    rows.append((f"majority class ({table.majority[0]})", percent(table.majority[1]), "", ""))
    for name, judge in table.judges.items():
        said = ", ".join(str(judge.said[label]) for label in PAIR_LABELS)
        rows.append((name, share_text(asdict(judge.accuracy)), said, paper[name]))
    head = ("judge", "accuracy (95 %; n of pairs)", "said 1, 2, tie", "TRACE, Table 1")
    Table(head, rows, f"{table.suite}: {table.n_pairs} pairs with an original label").show(console)
    for name, judge in table.judges.items():
        spent = "cost unknown" if judge.cost_usd is None else f"{judge.cost_usd:.4f} USD"
        console.print(f"{name}: {judge.judge}, {spent}, labels in {judge.file}")
        for reason, count in judge.unscored.items():
            console.print(f"  unscored, {count}: {reason}")
    if table.comparison is not None:
        show_comparison(console, "LLM judge", "audio judge", asdict(table.comparison))
    if table.unlabelled:
        console.print(f"{table.unlabelled} pairs have no original label, and were not judged")


def _published(figures: tuple[float, ...]) -> str:
    return f"{figures[0]:.1f} %" if len(figures) == 1 else f"{figures[0]:.1f} % ({figures[1]:.1f} to {figures[2]:.1f})"


def refuse_others(options: SuiteOptions, judge_default: str, oracle: bool) -> None:
    """Refuse what does not go with the two judges. Raises ConfigError: names the options."""
    others = (options.verdicts, options.out, options.plots, options.cases, options.ablate, options.rule, options.rules, oracle)
    if any(others) or options.retry_unscored or options.tone or options.judge != judge_default:
        raise ConfigError(
            f"--baselines judges by {' and '.join(JUDGES.values())}, and judges what is unscored again: of the other options "
            "it takes --audio, --limit, --both-orders, --estimate, --set and --json"
        )
