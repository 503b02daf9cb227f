"""`paras2s bench speakbench` and `s2sarena`: a judge over people's labelled pairs, or its recorded verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.display import PairsEstimate
from paras2s.bench.made_from import MadeFrom, clip_names, fusion_of, sent
from paras2s.bench.results import require_new
from paras2s.bench.speakbench.cases import write_cases
from paras2s.bench.speakbench.data import SUITES, Suite, SuitePair, load_pairs, read_pair_audio
from paras2s.bench.speakbench.plots import write_plots
from paras2s.bench.speakbench.report import (
    comparison_report,
    judge_report,
    oracle_report,
    show_comparison,
    show_judge,
    show_labels,
)
from paras2s.bench.speakbench.verdicts import VerdictRow, as_verdict_row, load_verdicts
from paras2s.bench.verdict_file import Result, VerdictFile, judge_readable
from paras2s.clients.chat import Bill, Request
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.fusion import FusionRule, find_rule, load_rules
from paras2s.reward.judges.base import Pair, Progress
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.overall_judge import OverallJudge
from paras2s.reward.judges.registry import open_llm_judge
from paras2s.types import PairVerdict, Unscored
from paras2s.utils.progress import progress_bar

# Pairs in memory at once; a chunk's calls all run together.
CHUNK_PAIRS = 64


@dataclass(frozen=True)
class SuiteOptions:
    """The options of `bench speakbench` and `bench s2sarena`; see their help."""

    name: str
    labels: Path
    audio: Path | None
    judge: str
    verdicts: tuple[Path, ...]
    rule: str | None
    rules: Path | None
    both_orders: bool
    out: Path | None
    limit: int | None
    tone: Path | None
    overrides: dict[str, Any]
    retry_unscored: bool = False
    plots: Path | None = None
    cases: Path | None = None
    ablate: bool = False

    @property
    def suite(self) -> Suite:
        """The suite of that name."""
        return SUITES[self.name]

    def load_pairs(self) -> list[SuitePair]:
        """Return the labelled pairs, up to the limit."""
        return load_pairs(self.labels)[: self.limit]

    def named_rule(self) -> tuple[str, FusionRule]:
        """Return the fusion rule with its name, the suite's own by default. Raises ConfigError: there is none of that name."""
        name = self.rule or self.suite.rule
        return name, find_rule(name, self.rules)

    def audio_root(self) -> Path:
        """Return the folder of the labels' audio. Raises ConfigError: there is none."""
        if self.audio is None or not self.audio.is_dir():
            raise ConfigError("--audio: give the folder that holds the labels' audio, or --verdicts, or --oracle")
        return self.audio

    def open_judge(self, calls: bool = True) -> LLMJudge:
        """Return the judge; without `calls` for an estimate. Raises ConfigError: it does not exist, or labels no dimensions."""
        both = True if self.both_orders else None
        judge = open_llm_judge(self.judge, self.overrides, both_orders=both, tone=self.tone, calls=calls)
        if isinstance(judge, OverallJudge):
            raise ConfigError(f"{self.judge}: gives one label and none of the dimensions; --baselines measures such judges")
        return judge

    def setups(self) -> dict[str, SuiteOptions]:
        """Return the judge as it is, and with `ablate` without each group of its blueprint in turn (TRACE, Table 12).

        Raises:
            ConfigError: the judge reads no blueprint, or a group is left out of it already.
        """
        if not self.ablate:
            return {"": self}
        judge = self.open_judge(calls=False)
        if judge.reads != "blueprint" or judge.config.judge.left_out:
            raise ConfigError(f"--ablate-features: {self.judge} reads {judge.reads!r}; give a judge of whole blueprints")
        without = {f"without {group}": {**self.overrides, "judge.left_out": [group]} for group in judge.groups}
        return {"all fields": self} | {name: replace(self, overrides=overrides) for name, overrides in without.items()}


@dataclass(frozen=True)
class SuiteResult:
    """Reports by file or setup, comparisons by name, a line on judging, the budget's end, and the pairs without a verdict."""

    judges: dict[str, Any]
    comparisons: dict[tuple[str, str], Any]
    note: str
    stopped: BudgetError | None
    unscored: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the reports and comparisons."""
        return {"judges": self.judges, "comparisons": {" - ".join(names): row for names, row in self.comparisons.items()}}

    def show(self, console: Console) -> None:
        """Print the note, the labels, each judge's report, and the comparisons."""
        if self.note:
            console.print(self.note)
        show_labels(console, next(iter(self.judges.values())))
        for name, report in self.judges.items():
            show_judge(console, name, report)
        for (first, second), compared in self.comparisons.items():
            show_comparison(console, first, second, compared)


def oracle(options: SuiteOptions) -> dict[str, Any]:
    """Return each fusion rule's agreement from people's own labels of the dimensions. Raises ConfigError. StorageError."""
    pairs, rules = options.load_pairs(), load_rules(options.rules)
    if options.plots is not None:
        people = {pair.index: VerdictRow(index=pair.index, labels=pair.label.dimensions()) for pair in pairs}
        of_rules = {name: judge_report(options.suite, pairs, people, name, rule) for name, rule in rules.items()}
        write_plots(options.plots, of_rules, "people's own labels of the dimensions, fused by each rule")
    return oracle_report(options.suite, pairs, rules)


def run_suite(options: SuiteOptions, console: Console, quiet: bool) -> SuiteResult:
    """Judge the suite or read recorded verdicts, and compare with people's labels. Raises ConfigError. StorageError."""
    pairs, (rule_name, rule) = options.load_pairs(), options.named_rule()
    if options.verdicts:
        named, note, stopped = {str(path): path for path in options.verdicts}, "", None
    else:
        named, note, stopped = _judge_setups(options, pairs, console, quiet)
    loaded = {name: load_verdicts(path) for name, path in named.items()}
    short = dict(zip(_short(list(named.values())) if not options.ablate else named, loaded.values(), strict=True))
    reports = {name: judge_report(options.suite, pairs, rows, rule_name, rule) for name, rows in loaded.items()}
    if options.plots is not None:
        write_plots(options.plots, dict(zip(short, reports.values(), strict=True)), f"verdicts fused by {rule_name}")
    if options.cases is not None:
        judge = None if options.verdicts else options.open_judge(calls=False)
        write_cases(options.cases, options.name, pairs, short, (rule_name, rule), options.audio, judge)
    # Of an ablation, only the whole has something to be compared with.
    compared = [(next(iter(loaded)), name) for name in list(loaded)[1:]] if options.ablate else combinations(loaded, 2)
    comparisons = {(first, second): comparison_report(pairs, loaded[first], loaded[second], rule) for first, second in compared}
    unscored = 0 if options.verdicts else sum(len(_without_verdict(path, pairs)) for path in named.values())
    return SuiteResult(reports, comparisons, note, stopped, unscored)


def _short(paths: Sequence[Path]) -> list[str]:
    """Return the names of the files without their ending, or their paths where two are called alike."""
    names = [path.stem for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


def _judge_setups(
    options: SuiteOptions, pairs: Sequence[SuitePair], console: Console, quiet: bool
) -> tuple[dict[str, Path], str, BudgetError | None]:
    """Return files of verdicts by setup, or by path if there is one setup, up to the setup that a budget ended."""
    named: dict[str, Path] = {}
    notes: list[str] = []
    for name, setup in options.setups().items():
        path, note, stopped = _judge_now(setup, pairs, console, quiet)
        named[name or str(path)] = path
        notes.append(f"{name}: {note}" if name else note)
        if stopped:
            return named, "\n".join(notes), stopped
    return named, "\n".join(notes), None


def _judge_now(
    options: SuiteOptions, pairs: Sequence[SuitePair], console: Console, quiet: bool
) -> tuple[Path, str, BudgetError | None]:
    root, judge = options.audio_root(), options.open_judge()
    own_name = f"{judge.name}-{judge.version}".replace(":", "-").replace("/", "-")
    path = options.out or Path("runs") / options.name / f"{own_name}.jsonl"
    if options.retry_unscored:
        pairs = _without_verdict(path, pairs)
    with progress_bar(console, "pairs judged", len(pairs), quiet=quiet) as bar:
        took_s, stopped = judge_suite(judge, pairs, root, path, options.named_rule(), bar.at)
    return path, f"{took_s:.0f} s; {judge.client.spending()}; verdicts in {path}", stopped


def estimate(options: SuiteOptions, console: Console, quiet: bool) -> PairsEstimate:
    """Estimate the cost of judging without a call; clips are measured and cached."""
    pairs, root = options.load_pairs(), options.audio_root()
    bill, unscored, model = Bill(), 0, ""
    for setup in options.setups().values():
        judge = setup.open_judge(calls=False)
        with progress_bar(console, "pairs read", len(pairs), quiet=quiet) as bar:
            cost, unscored = estimate_suite(judge, pairs, root, bar.at)
        bill, model = bill + cost, judge.config.llm.model
    return PairsEstimate(model, bill, unscored, len(pairs))


def estimate_suite(judge: LLMJudge, pairs: Sequence[SuitePair], root: Path, on_progress: Progress) -> tuple[Bill, int]:
    """Return the most that judging can cost, and the number of pairs that cannot be judged; clips are measured and cached."""
    bill, unscored = Bill(), 0
    for start in range(0, len(pairs), CHUNK_PAIRS):
        read = [read_pair_audio(pair, root) for pair in pairs[start : start + CHUNK_PAIRS]]
        requests = judge.pair_requests([pair for pair in read if isinstance(pair, Pair)])
        bill += judge.client.estimate(requests)
        unscored += len(read) - sum(isinstance(request, list) for request in requests)
        on_progress(min(start + CHUNK_PAIRS, len(pairs)), len(pairs))
    return bill, unscored


def judge_suite(
    judge: LLMJudge, pairs: Sequence[SuitePair], root: Path, path: Path, named_rule: tuple[str, FusionRule],
    on_progress: Progress,
) -> tuple[float, BudgetError | None]:  # fmt: skip
    """Judge all pairs and write their verdicts; seconds taken, and the error if the budget ended before the pairs did.

    Each has what it was made from, its labels fused by the named rule. The file is in the order of the indices, and keeps its
    verdicts on other pairs, and those that this run does not reach or cannot give again.

    Raises:
        StorageError: the file holds verdicts of another judge, or of another prompt.
    """
    _require_new(path, judge)
    recorded = load_verdicts(path) if path.is_file() else {}
    rows: dict[int, dict[str, Any]] = {index: row.model_dump(exclude_unset=True) for index, row in recorded.items()}
    file = VerdictFile(path, rows, lambda row: row["index"], lambda row: row.get("labels") is not None, dict)

    def judge_chunk(chunk: Sequence[SuitePair], at: Progress) -> list[dict[str, Any] | BudgetError]:
        judged = judge_pairs_read(chunk, root, lambda read: judge.label_pairs(read, at), judge.pair_requests)
        return [
            verdict
            if isinstance(verdict, BudgetError)
            else as_verdict_row(pair.index, verdict, made_from(pair, root, path.parent, prompts, named_rule, verdict))
            for pair, (verdict, prompts) in zip(chunk, judged, strict=True)
        ]

    started = time.perf_counter()
    stopped = file.judge(pairs, CHUNK_PAIRS, judge_chunk, on_progress)
    if pairs:
        file.rows = dict(sorted(file.rows.items()))
        file.rewrite()
    return time.perf_counter() - started, stopped


def judge_pairs_read(
    pairs: Sequence[SuitePair],
    root: Path,
    judge: Callable[[list[Pair]], Iterable[Result]],
    requests_of: Callable[[list[Pair]], Iterable[list[Request] | Unscored]],
) -> list[tuple[Result | Unscored, tuple[str, ...]]]:
    """Return each pair's verdict with the prompts it came from: () of a pair whose clips cannot be read."""

    def with_prompts(read: list[Pair]) -> Iterator[tuple[Result | Unscored, tuple[str, ...]]]:
        # The same requests again, from cached measurements: a verdict without its prompt cannot be checked.
        verdicts = judge(read)
        return zip(verdicts, map(sent, requests_of(read)), strict=True)

    judged = judge_readable([read_pair_audio(pair, root) for pair in pairs], with_prompts)
    return [(result, ()) if isinstance(result, Unscored) else result for result in judged]


def made_from(
    pair: SuitePair,
    root: Path,
    folder: Path,
    prompts: tuple[str, ...],
    named_rule: tuple[str, FusionRule] | None = None,
    verdict: PairVerdict | Unscored | None = None,
) -> MadeFrom:
    """Return what a verdict on a pair was made from, clips by their path from `folder`, labels fused by the named rule."""
    clips = {name: root / clip for name, clip in pair.clips().items()}
    names = clip_names({name: clip if clip.is_file() else None for name, clip in clips.items()}, folder)
    fusion = (fusion_of(*named_rule, verdict.labels),) if named_rule and isinstance(verdict, PairVerdict) else ()
    return MadeFrom(clips=names, words=pair.instruction_text, prompts=prompts, fusion=fusion)


def _without_verdict(path: Path, pairs: Sequence[SuitePair]) -> list[SuitePair]:
    """Return the pairs that a file of verdicts lacks or leaves unscored."""
    rows = load_verdicts(path) if path.is_file() else {}
    scored = {index for index, row in rows.items() if row.labels is not None}
    return [pair for pair in pairs if pair.index not in scored]


def _require_new(path: Path, judge: LLMJudge) -> None:
    rows = load_verdicts(path).values() if path.is_file() else ()
    existing = [f"{row.judge}/{row.version}/{row.prompt_hash}" for row in rows if row.labels]
    require_new(path, existing, [f"{judge.name}/{judge.version}/{judge.pair_prompt.hash}"])
