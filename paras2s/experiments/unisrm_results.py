"""`paras2s unisrm run`: a config from its data to the bench, over several seeds, and the tables of the page on it.

Three models of each seed are benched: after SFT, after GRPO for the decision alone (the paper's w/o RCR), and after GRPO with
the reasoning-consistent reward. Both stages of GRPO begin at the same SFT and see the same items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from paras2s import __version__
from paras2s.configs.schema.unisrm import UniSRMConfig, UniSRMGrpoConfig
from paras2s.errors import ConfigError, DataError
from paras2s.run import source_commit
from paras2s.types import Absent
from paras2s.unisrm.bench.data import COLUMNS, BenchData, load_bench
from paras2s.unisrm.bench.metrics import Figure, mean_gain, points
from paras2s.unisrm.bench.report import control, figure_json, number, percent
from paras2s.unisrm.bench.results import BenchRow, load_rows
from paras2s.unisrm.bench.run import UniSRMBenchOptions, run_bench, verdicts_path
from paras2s.unisrm.data_gen.embedded import build_embedded
from paras2s.unisrm.data_gen.shortcuts import measure_shortcuts
from paras2s.unisrm.pipeline.train import DESCRIPTION_PROBE, TOWER_PROBE, is_trained, run_grpo, run_sft
from paras2s.unisrm.reward.items import ITEMS, read_items
from paras2s.unisrm.reward.reply import parse_reply
from paras2s.unisrm.reward.rewards import preferences
from paras2s.unisrm.reward.tasks import TASKS, Item, PairRecord
from paras2s.utils.generated import put_between
from paras2s.utils.io import read_json, read_jsonl, write_json, write_text
from paras2s.utils.machine import describe_machine
from paras2s.utils.process_pool import end_workers, map_chunks
from paras2s.utils.progress import LOG_WIDTH, progress_bar
from paras2s.utils.tables import Table, number_text

SCHEMA = 1
RESULTS, PAGE = "unisrm.json", "experiments/unisrm.md"
BEGIN, END = "<!-- results: begin; renewed by `paras2s unisrm run` -->", "<!-- results: end -->"
SFT, ACCURACY, CONSISTENT = "sft", "grpo_accuracy", "grpo_consistent"
MODELS = {SFT: "SFT", ACCURACY: "GRPO, decision alone", CONSISTENT: "GRPO, reasoning-consistent"}
# Which gains are asked for: the second model over the first.
GAINS = ((SFT, ACCURACY), (SFT, CONSISTENT), (ACCURACY, CONSISTENT))
# Replies of the bench at once.
BENCH_BATCH = 32
# Points of a curve in the results.
CURVE_POINTS = 12
CURVES = ("loss", "reward", "reward_format", "reward_accuracy", "reward_consistency", "flat_group_share", "kl")
Rows = Mapping[str, BenchRow]
# None if the measure does not ask this reply.
Value = Callable[[Item, BenchRow], float | None]


# Running.


@dataclass(frozen=True)
class _Stage:
    """The training of one model of a seed, and its bench: what a process does at once."""

    config: UniSRMConfig
    name: str
    seed: int
    data: Path
    folder: Path
    quiet: bool


def run_seeds(
    config: UniSRMConfig, seeds: Sequence[int], folder: Path, console: Console, quiet: bool, processes: int = 1
) -> None:
    """Make the data, train and bench every unfinished seed; a stopped one continues.

    With two `processes` a seed's two models of GRPO are trained beside each other.

    Raises:
        ConfigError: the config has no GRPO with a reasoning-consistent reward, or the folder is another config's.
        DataError: a process was killed from outside.
    """
    _consistent_grpo(config)
    settings = config.model_dump(mode="json")
    if (folder / "config.json").is_file() and read_json(folder / "config.json") != settings:
        raise ConfigError(f"{folder}: holds a run of another config; give another --folder")
    write_json(folder / "config.json", settings)
    data = folder / "data"
    if not (data / ITEMS).is_file():
        with _timed(folder, "all", "data"), progress_bar(console, "data, tasks by splits", None, quiet) as bar:
            build_embedded(data, config.data, on_progress=bar.at)
    for seed in seeds:
        run_seed(config, seed, data, folder / f"seed{seed}", console, quiet, processes)


def run_seed(
    config: UniSRMConfig, seed: int, data: Path, folder: Path, console: Console, quiet: bool, processes: int = 1
) -> None:
    """Train the three models of a seed and bench them."""
    stages = [_Stage(config, name, seed, data, folder, quiet) for name in MODELS]
    pending = [stage for stage in stages if not is_trained(folder / stage.name)]
    # GRPO begins at what SFT has saved.
    first = [stage for stage in pending if stage.name == SFT or processes == 1]
    for stage in first:
        _note_origin(folder, stage.name)
        _run_stage(stage, console)
    if beside := [stage for stage in pending if stage not in first]:
        for stage in beside:
            _note_origin(folder, stage.name)
        map_chunks(_run_stages, beside, 1)
        end_workers()
    # All of them in one report. What is judged already is not judged again.
    with _timed(folder, "all", "bench"):
        run_bench(_bench_options(config, data, folder, list(MODELS)), console, quiet)


def _run_stages(stages: Sequence[_Stage]) -> list[None]:
    """Run stages in a process of its own, which prints lines: bars of two processes do not fit on one terminal."""
    console = Console(stderr=True, force_terminal=False, width=LOG_WIDTH, markup=False, highlight=False)
    for stage in stages:
        _run_stage(stage, console)
    return [None] * len(stages)


def _run_stage(stage: _Stage, console: Console) -> None:
    """Train a model and bench it, so that a run that is stopped has figures of what it trained."""
    consistent = _consistent_grpo(stage.config)
    decision = consistent.weights.model_copy(update={"consistency": 0.0})
    target, begin = stage.folder / stage.name, stage.folder / SFT
    if not stage.quiet:
        console.print(f"seed {stage.seed}: {MODELS[stage.name]}")
    with _timed(stage.folder, stage.name, "training"):
        if stage.name == SFT:
            run_sft(stage.config, stage.data, target, stage.seed, console, stage.quiet)
        else:
            settings = consistent if stage.name == CONSISTENT else consistent.model_copy(update={"weights": decision})
            run_grpo(settings, begin, stage.data, target, stage.seed, console, stage.quiet)
    with _timed(stage.folder, stage.name, "bench"):
        # SFT beside it, without which there are no tables; the third may be judged by another process just now.
        models = list(dict.fromkeys([SFT, stage.name]))
        run_bench(_bench_options(stage.config, stage.data, stage.folder, models), console, stage.quiet)


def _note_origin(folder: Path, name: str) -> None:
    """Note by which version and commit a model's training was begun: a later one may train the next."""
    path = folder / "origin.json"
    known: dict[str, Any] = read_json(path) if path.is_file() else {"machine": describe_machine(), "models": {}}
    known["models"].setdefault(name, {"version": __version__, "commit": source_commit()})
    write_json(path, known)


def _consistent_grpo(config: UniSRMConfig) -> UniSRMGrpoConfig:
    if config.grpo is None or not config.grpo.weights.consistency:
        raise ConfigError("grpo.weights.consistency: the run compares GRPO with and without it; set it above 0")
    return config.grpo


def _bench_options(config: UniSRMConfig, data: Path, folder: Path, models: Sequence[str]) -> UniSRMBenchOptions:
    """Return these models as judges, whose replies may be as long as those of training."""
    longest = _consistent_grpo(config).max_completion_tokens
    for name in models:
        judge = {"kind": "unisrm", "checkpoint": str(folder / name), "max_reply_tokens": longest, "batch_size": BENCH_BATCH}
        write_text(_judge_path(folder, name), yaml.safe_dump(judge))
    judges = [str(_judge_path(folder, name)) for name in models]
    return UniSRMBenchOptions(data, judges, folder / "bench", folder / "cache", objective=False)


def _judge_path(folder: Path, name: str) -> Path:
    return folder / "judges" / f"{name}.yaml"


@contextmanager
def _timed(folder: Path, part: str, what: str) -> Iterator[None]:
    """Add the minutes to those of a part, even if an error stops it. Each process writes another part's file."""
    path, started = _minutes_path(folder, part), time.monotonic()
    try:
        yield
    finally:
        known = read_json(path) if path.is_file() else {}
        write_json(path, known | {what: known.get(what, 0.0) + (time.monotonic() - started) / 60})


def _minutes_path(folder: Path, part: str) -> Path:
    # Beside the models: their folders' content is part of their version.
    return folder / "minutes" / f"{part}.json"


# Reading what came out.


def collect(config: UniSRMConfig, command: str, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """Return the figures of the finished seeds. Raises DataError: the data or a bench cannot be read."""
    data = load_bench(folder / "data")
    items = read_items(data.folder)
    finished = [seed for seed in seeds if (folder / f"seed{seed}" / "bench" / "unisrm.json").is_file()]
    return {
        "schema": SCHEMA,
        "command": command,
        "config": config.name,
        "missing": sorted(set(seeds) - set(finished)),
        "items": {split: {task: _count(items, task, split) for task in TASKS} for split in ("sft", "rl", "bench")},
        "shortcuts": [asdict(shortcut) for shortcut in measure_shortcuts(data.folder, items)],
        "data_minutes": read_json(_minutes_path(folder, "all"))["data"],
        "seeds": [_seed(data, seed, folder / f"seed{seed}") for seed in finished],
        "gains": _gains_of(data, [folder / f"seed{seed}" for seed in finished]),
    }


def _count(items: Sequence[Item], task: str, split: str) -> int:
    return sum(item.task == task and item.split == split for item in items)


def _seed(data: BenchData, seed: int, folder: Path) -> dict[str, Any]:
    report = read_json(folder / "bench" / "unisrm.json")
    places = {name: str(_judge_path(folder, name)) for name in MODELS}
    judges = {name: report["judges"][row]["columns"] for name, row in places.items() if row in report["judges"]}
    rows = {name: _own_rows(folder, name) for name in judges}
    return {
        "seed": seed,
        "origin": read_json(folder / "origin.json"),
        "minutes": _minutes(folder),
        "majority": report["majority"],
        "models": judges,
        "right_of_asked": {name: _of_tasks(data, rows[name], _right) for name in judges},
        "dimensions_of_asked": {name: _of_tasks(data, rows[name], _dimensions) for name in judges},
        "right_by_fault": {name: _by_fault(data, rows[name]) for name in judges},
        "undecided": {name: _undecided(rows[name]) for name in judges},
        "scores_and_reasons": {name: _scores_and_reasons(data, rows[name]) for name in judges},
        "gains": _gains_of(data, [folder]),
        **{
            name: read_json(folder / SFT / file)
            for name, file in (("tower_probe", TOWER_PROBE), ("description_probe", DESCRIPTION_PROBE))
            if (folder / SFT / file).is_file()
        },
        "curves": {name: _curve(folder / name / "metrics.jsonl") for name in judges},
    }


def _minutes(folder: Path) -> dict[str, float]:
    """Return the minutes of each model's training, and of the bench of all."""
    paths = {name: _minutes_path(folder, name) for name in ("all", *MODELS)}
    spent = {name: read_json(path) for name, path in paths.items() if path.is_file()}
    training = {name: minutes["training"] for name, minutes in spent.items() if name in MODELS}
    return training | {"bench": sum(minutes.get("bench", 0.0) for minutes in spent.values())}


def _own_rows(folder: Path, name: str) -> dict[str, BenchRow]:
    path = verdicts_path(folder / "bench", str(_judge_path(folder, name)))
    return {row.item: row for row in load_rows(path) if row.condition == "own"}


def _right(item: Item, row: BenchRow) -> float:
    """Return whether the decision is right. A reply that cannot be parsed decides nothing, so it is not."""
    return points(item, row) or 0.0


def _dimensions(item: Item, row: BenchRow) -> float:
    """Return the share of dimensions with the right sign (equation 10), for T2 the right score; None for an unparsed reply."""
    if row.unscored is not None:
        return 0.0
    keys = TASKS[item.task].keys
    record = item.record
    expected = preferences(record) if isinstance(record, PairRecord) else record.scores
    return sum(row.dimensions.get(key) == value for key, value in zip(keys, expected, strict=True)) / len(keys)


def _right_or_coin(item: Item, row: BenchRow) -> float:
    """Give a pair without a verdict one half, as a coin would have: whoever merely guesses there gains nothing over it."""
    return 0.5 if row.unscored is not None and isinstance(item.record, PairRecord) else _right(item, row)


def _dimensions_if_parsed(item: Item, row: BenchRow) -> float | None:
    return None if row.unscored is not None else _dimensions(item, row)


def _of_tasks(data: BenchData, rows: Mapping[str, BenchRow], value: Callable[[Item, BenchRow], float]) -> dict[str, float]:
    means = {task: [value(item, rows[item.id]) for item in data.of_task(task)] for task in TASKS}
    return {task: sum(values) / len(values) for task, values in means.items() if values}


def _by_fault(data: BenchData, rows: Mapping[str, BenchRow]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the shares right and decided of all asked, by task and by the worse candidate's fault where it is known."""
    shares: dict[str, dict[str, dict[str, float]]] = {}
    for task in TASKS:
        for fault in sorted({item.factors["fault"] for item in data.of_task(task) if "fault" in item.factors}):
            own = [(item, rows[item.id]) for item in data.of_task(task) if item.factors.get("fault") == fault]
            right, decided = sum(_right(*pair) for pair in own), sum(row.unscored is None for _, row in own)
            shares.setdefault(task, {})[fault] = {"value": right / len(own), "decided": decided / len(own), "n": len(own)}
    return shares


def _undecided(rows: Mapping[str, BenchRow]) -> dict[str, dict[str, int]]:
    """Return the number of replies without a verdict, by task and by the broken rule of the format, or else the reason."""
    undecided: dict[str, dict[str, int]] = {}
    for row in rows.values():
        if row.unscored is not None:
            reasons, reason = undecided.setdefault(row.task, {}), row.malformed or row.unscored
            reasons[reason] = reasons.get(reason, 0) + 1
    return undecided


def _scores_and_reasons(data: BenchData, rows: Mapping[str, BenchRow]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the shares of candidates whose score, and whose reason, is that of the label word for word, by task and dimension.

    Of pairs whose reply can be parsed. The embedded data has a handful of reasons, so that equal words are a fair measure.
    """
    agreed: dict[str, dict[str, dict[str, float]]] = {}
    for task in TASKS.values():
        sides = [
            (given, said)
            for item in data.of_task(task.id)
            if isinstance(item.record, PairRecord) and item.record.sides and rows[item.id].unscored is None
            if isinstance(reply := parse_reply(task.id, rows[item.id].reply), PairRecord) and reply.sides
            for given, said in zip(item.record.sides, reply.sides, strict=True)
        ]
        for index, key in enumerate(task.keys if sides else ()):
            same = [
                (first.scores[index] == other.scores[index], first.explanations[index] == other.explanations[index])
                for first, other in sides
            ]
            scores, reasons = (sum(column) / len(same) for column in zip(*same, strict=True))
            agreed.setdefault(task.id, {})[key] = {"score": scores, "reason": reasons, "n": len(same)}
    return agreed


def _gains_of(data: BenchData, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the gains over the seeds in these folders, of the models that all of them have."""
    rows = [{name: _own_rows(folder, name) for name in MODELS if is_trained(folder / name)} for folder in folders]
    return [
        {"from": first, "to": second, "measure": measure, **figure_json(_gain(data, pairs, value))}
        for first, second in GAINS
        if (pairs := [(row[first], row[second]) for row in rows if first in row and second in row]) and len(pairs) == len(rows)
        for measure, value in MEASURES.items()
    ]


def _gain(data: BenchData, pairs: Sequence[tuple[Rows, Rows]], value: Value) -> Figure:
    """Return the mean gain of second over first, over items asked of both, tasks and pairs of models; clusters are texts."""
    valued = [
        (value(item, first[item.id]), value(item, second[item.id]), item.text_id)
        for first, second in pairs
        for item in data.items
    ]
    gains = [None if before is None or after is None else after - before for before, after, _ in valued]
    share = mean_gain(gains, [text for _, _, text in valued])
    return share if share.n else Absent("no verdicts of both")


MEASURES: Mapping[str, Value] = {
    "decision": _right,
    "decision_or_coin": _right_or_coin,
    "dimensions": _dimensions,
    "dimensions_if_parsed": _dimensions_if_parsed,
}


def _curve(path: Path) -> list[dict[str, float]]:
    """Return means over equal parts of a stage's updates."""
    rows = list(read_jsonl(path))
    size = max(1, -(-len(rows) // CURVE_POINTS))
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [
        {"step": part[-1]["step"]}
        | {key: sum(values) / len(values) for key in CURVES if (values := [row[key] for row in part if key in row])}
        for part in parts
    ]


# Tables.


def write_results(results: Mapping[str, Any], docs: Path) -> list[Path]:
    """Write the results and the tables of their page; return the files. Raises DataError: the page has no place for them."""
    write_json(docs / RESULTS, results)
    page = docs / PAGE
    if not page.is_file():
        return [docs / RESULTS]
    write_text(page, rendered(results, page))
    return [docs / RESULTS, page]


def rendered(results: Mapping[str, Any], page: Path) -> str:
    """Return the page with the tables of these results. Raises DataError: the page has no place for them."""
    try:
        return put_between(page.read_text(encoding="utf-8"), BEGIN, END, tables(results))
    except ValueError as error:
        raise DataError(f"{page}: {error}") from error


def tables(results: Mapping[str, Any]) -> str:
    """Return all tables: the seeds together, each seed's models beside their controls, the gains, the curves, the shortcuts."""
    missing = f" Not finished: seeds {', '.join(map(str, results['missing']))}." if results["missing"] else ""
    seeds = results["seeds"]
    lines = [f"`{results['command']}`.{missing}", ""]
    if len(seeds) > 1:
        lines += [f"Means over {len(seeds)} seeds (the least to the most of them):", "", _means(seeds), ""]
    for seed in seeds:
        lines += [*_head(results, seed), "", _scores(seed), "", _faults(seed), "", _breaks(seed), "", _reasons(seed), ""]
    return "\n".join([*lines, _gains(results), "", _curves(seeds), "", _shortcuts(results)])


def _head(results: Mapping[str, Any], seed: Mapping[str, Any]) -> list[str]:
    minutes = {"data": results["data_minutes"], **seed["minutes"]}
    spent = ", ".join(f"{MODELS.get(name, name)} {value:.0f}" for name, value in minutes.items())
    # The stored file has its keys in another order.
    items = ", ".join(f"{sum(count.values())} for {split}" for split, count in sorted(results["items"].items()))
    models = seed["origin"]["models"]
    begun = {name: str(models[name]["commit"])[:7] for name in MODELS if name in models}
    commits = ", ".join(f"{MODELS[name]} {commit}" for name, commit in begun.items())
    by = f"commit {begun[SFT]}" if len(set(begun.values())) == 1 else f"commits {commits}"
    origin = f"{by}, {seed['origin']['machine']}"
    absent = [title for name, title in MODELS.items() if name not in seed["models"]]
    not_yet = f" Not trained yet: {'; '.join(absent)}." if absent else ""
    return [f"Seed {seed['seed']}, {origin}. Minutes: {spent}. Items of all tasks: {items}.{not_yet}{_probed(seed)}"]


def _probed(seed: Mapping[str, Any]) -> str:
    said = ""
    if "tower_probe" in seed:
        parts = ", ".join(f"{name} {100 * value:.0f}" for name, value in sorted(seed["tower_probe"]["traits"].items()))
        wrong = f"{100 * seed['tower_probe']['letter_errors']:.0f} % of letters wrong"
        said += f" Before SFT two heads read of other speakers and texts: {wrong}; of each trait's variance, in %: {parts}."
    if "description_probe" in seed:
        parts = ", ".join(f"{name} {100 * value:.0f} %" for name, value in sorted(seed["description_probe"].items()))
        said += f" It then describes of their clips rightly: {parts}."
    return said


def _means(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return means over the seeds, with the least and the most of them."""
    head = ["task", "model", "of all asked", "dimensions right", "PCC", "seeds that use the sound", "seeds above the majority"]
    rows: list[Sequence[object]] = []
    for column in COLUMNS:
        for name, title in MODELS.items():
            figures = [seed["models"].get(name, {}).get(column, {"absent": ""}) for seed in seeds]
            if any("absent" in figure for figure in figures):
                continue
            right, dimensions = (
                [100 * seed[key][name][column[:2]] for seed in seeds] for key in ("right_of_asked", "dimensions_of_asked")
            )
            known = [figure["pcc"]["value"] for figure in figures if figure.get("pcc", {}).get("value") is not None]
            uses = sum(figure["sound"]["verdict"] == "uses the sound" for figure in figures)
            above = sum(value > 100 * seed["majority"][column]["value"] for value, seed in zip(right, seeds, strict=True))
            cells = [column, title, _spread(right, 1), _spread(dimensions, 1), _spread(known, 2) if known else None]
            rows.append([*cells, f"{uses} of {len(seeds)}", f"{above} of {len(seeds)}"])
    return Table(head, rows).markdown()


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{sum(values) / len(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _scores(seed: Mapping[str, Any]) -> str:
    head = ["task", "model", "right, of those parsed", "of all asked", "majority", "text only", "shuffled", "swapped"]
    head += ["dimensions right", "PCC", "sound", "parsed"]
    rows: list[Sequence[object]] = []
    for column in COLUMNS:
        task = column[:2]
        for name, title in MODELS.items():
            figures = seed["models"].get(name, {}).get(column, {"absent": "not trained"})
            if "absent" in figures:
                continue
            controls = figures["controls"]
            cells: list[object] = [column, title, percent(figures["acc"]), f"{100 * seed['right_of_asked'][name][task]:.1f}"]
            cells += [percent(seed["majority"][column]), control(controls["text_only"]), control(controls["shuffled"])]
            cells += [control(controls["swapped"]) if "swapped" in controls else None]
            cells += [f"{100 * seed['dimensions_of_asked'][name][task]:.1f}"]
            cells += [
                number(figures["pcc"], 2) if "pcc" in figures else None,
                figures["sound"]["verdict"],
                percent(figures["parsed"]),
            ]
            rows.append(cells)
    return Table(head, rows).markdown()


def _faults(seed: Mapping[str, Any]) -> str:
    """Return a row for each kind of fault: how many of all asked each model has right, and how many it decides."""
    by_model = seed["right_by_fault"]
    trained = [name for name in MODELS if name in by_model]
    head = ["right / decided of all asked, by what is wrong", "fault", "n", *(MODELS[name] for name in trained)]
    rows: list[Sequence[object]] = []
    for task, faults in sorted(by_model[SFT].items()):
        for fault in sorted(faults):
            known = [by_model[name][task][fault] for name in trained]
            shares = [f"{100 * share['value']:.1f} / {100 * share['decided']:.1f}" for share in known]
            rows.append([task, fault, by_model[SFT][task][fault]["n"], *shares])
    return Table(head, rows).markdown()


def _breaks(seed: Mapping[str, Any]) -> str:
    """Return a row for each reason why a reply gives no verdict: how many of each model's do not."""
    by_model = seed["undecided"]
    trained = [name for name in MODELS if name in by_model]
    head = ["replies without a verdict", "reason", *(MODELS[name] for name in trained)]
    rows: list[Sequence[object]] = []
    for task in TASKS:
        for reason in sorted({reason for name in trained for reason in by_model[name].get(task, {})}):
            rows.append([task, reason, *(by_model[name].get(task, {}).get(reason, 0) for name in trained)])
    return Table(head, rows).markdown()


def _reasons(seed: Mapping[str, Any]) -> str:
    """Return a row for each dimension: how many scores, and how many reasons behind them, are those of the label."""
    by_model = seed["scores_and_reasons"]
    trained = [name for name in MODELS if name in by_model]
    head = ["scores and reasons that are the label's", "dimension"]
    head += [f"{MODELS[name]}: {what}" for name in trained for what in ("score", "reason")]
    rows: list[Sequence[object]] = []
    for task in sorted(by_model[SFT]):
        for key in TASKS[task].keys:
            known = [by_model[name].get(task, {}).get(key) for name in trained]
            cells = [f"{100 * share[what]:.1f}" if share else None for share in known for what in ("score", "reason")]
            rows.append([task, key, *cells])
    return Table(head, rows).markdown()


def _gains(results: Mapping[str, Any]) -> str:
    """Return each seed's gains, and those of all seeds together."""
    head = [
        "gain over all tasks, in points",
        "seed",
        "right",
        "a coin for no verdict",
        "dimensions right",
        "where both have a verdict",
    ]
    rows: list[Sequence[object]] = []
    several = [("all", results)] if len(results["seeds"]) > 1 else []
    for first, second in GAINS:
        for name, part in [*((str(seed["seed"]), seed) for seed in results["seeds"]), *several]:
            gains = [gain for gain in part["gains"] if (gain["from"], gain["to"]) == (first, second)]
            own = {gain["measure"]: {key: gain[key] for key in gain.keys() - {"from", "to", "measure"}} for gain in gains}
            if not own:
                continue
            rows.append([f"{MODELS[second]} over {MODELS[first]}", name, *(percent(own[kind]) for kind in MEASURES)])
    return Table(head, rows).markdown()


def _curves(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each part of a stage's updates, the mean over seeds; what a stage does not have is left out."""
    head = ["stage", "update", *CURVES]
    rows: list[Sequence[object]] = []
    for name, title in MODELS.items():
        for parts in zip(*(seed["curves"][name] for seed in seeds if name in seed["curves"]), strict=False):
            means = {key: sum(part[key] for part in parts) / len(parts) for key in CURVES if all(key in part for part in parts)}
            cells = [format(means[key], ".3f") if key in means else None for key in CURVES]
            rows.append([title, f"{parts[0]['step']:.0f}", *cells])
    return Table(head, rows).markdown()


def _shortcuts(results: Mapping[str, Any]) -> str:
    head = ["shortcut", *TASKS]
    names = list(dict.fromkeys(shortcut["name"] for shortcut in results["shortcuts"]))
    rows: list[Sequence[object]] = []
    for name in names:
        own = {shortcut["task"]: shortcut["value"] for shortcut in results["shortcuts"] if shortcut["name"] == name}
        rows.append([name, *(number_text(own.get(task)) for task in TASKS)])
    return Table(head, rows).markdown()
