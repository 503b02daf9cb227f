"""`paras2s results`: a preset over several seeds, what came out in one file, and the tables of the documents made from it.

A seed that failed stays in the file with its reason, and its row says so; no mean is taken over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.paras2s.contrasts import SYSTEMS, BenchedRun
from paras2s.bench.paras2s.metrics import cell, summary
from paras2s.bench.paras2s.scripted_baselines import BAD, CONSTANT, FLAT, LINEAR, PROSODY, STYLE_DEAF
from paras2s.bench.paras2s.seeds import gain_over, mean_score, of_both, of_system, with_intervals
from paras2s.bench.results import load_rows
from paras2s.bench.systems import CASCADE, TOPLINE
from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import DataError, ParaS2SError
from paras2s.pipeline.demo import run_demo
from paras2s.pipeline.shared_stages import copy_finished_stages, offer_finished_stages, shared_folder
from paras2s.run import ORIGIN, Run
from paras2s.types import CATEGORIES
from paras2s.utils.generated import put_between
from paras2s.utils.io import read_json, write_json, write_text
from paras2s.utils.tables import Styled, Table, number_text, percent, with_interval

SCHEMA = 1
FAILED = "failed.json"
RESULTS, PAGE, README = "results.json", "results.md", "README.md"
# A generated part of a document is between two comments with its name.
BEGIN, END = "<!-- {name}: begin; renewed by `paras2s results` -->", "<!-- {name}: end -->"
JUDGES = ("teacher", "independent")
NAMES = {
    BAD: "bad: answers the other style",
    CONSTANT: "constant answer",
    CASCADE: "cascade: words only",
    STYLE_DEAF: "style-deaf oracle",
    LINEAR: "linear model of words and prosody, scripted answers",
    PROSODY: "knows the category: linear model of prosody, scripted answers",
    "sft": "SFT warm-up",
    "aligned": Styled("aligned (GRPO)"),
    FLAT: "flat: knows the style, neutral voice",
    TOPLINE: "topline: knows the style",
}
IN_README = (CASCADE, "sft", "aligned", LINEAR, TOPLINE)


def seed_config(preset: str, seed: int, folder: Path) -> RunConfig:
    """Return the config of one seed, in a folder of its own."""
    return load_config(preset_path(preset), {"seed": seed, "run_dir": str(folder / f"seed{seed}")})


def run_seeds(preset: str, seeds: Sequence[int], folder: Path, console: Console, quiet: bool) -> None:
    """Run every unfinished seed; a failed one keeps its reason in its folder. What the ablations share is made once."""
    for number, seed in enumerate(seeds, 1):
        run = Run(seed_config(preset, seed, folder), console, quiet)
        run.headline(f"seed {seed}, {number} of {len(seeds)}")
        (run.folder / FAILED).unlink(missing_ok=True)
        try:
            copy_finished_stages(run, shared_folder(folder))
            run_demo(run, resume=True)
        except ParaS2SError as error:
            # The other seeds are to be run all the same, and this one is to be seen.
            write_json(run.folder / FAILED, {"reason": f"{type(error).__name__}: {error}"})
            run.say(f"seed {seed} failed: {error}")
        offer_finished_stages(run, shared_folder(folder))


def read_benched(run: Run) -> BenchedRun | None:
    """Return the judged answers of a run's systems; None before its bench is finished."""
    folder = run.folder / "bench"
    if not (folder / "independent" / "summary.json").is_file():
        return None
    names = [name for name in SYSTEMS if (folder / f"{name}.jsonl").is_file()]
    own, other = ({name: load_rows(parent / f"{name}.jsonl") for name in names} for parent in (folder, folder / "independent"))
    return BenchedRun(own, other)


def collect(preset: str, seeds: Sequence[int], folder: Path, console: Console) -> dict[str, Any]:
    """Read the finished seeds' results and compute the figures. Raises DataError: an unreadable file, or a missing system."""
    entries: list[dict[str, Any]] = []
    benched: list[BenchedRun] = []
    for seed in seeds:
        run = Run(seed_config(preset, seed, folder), console, True)
        if (run.folder / FAILED).is_file():
            entries.append({"seed": seed, "failed": read_json(run.folder / FAILED)["reason"]})
        elif (answers := read_benched(run)) is not None:
            benched.append(answers)
            entries.append(_seed(run, answers))
    return {
        "schema": SCHEMA,
        "command": f"paras2s results --preset {preset} --seeds '{' '.join(map(str, seeds))}'",
        "preset": preset,
        "missing": sorted(set(seeds) - {entry["seed"] for entry in entries}),
        "seeds": entries,
        "over_seeds": {judge: over_seeds(benched, judge) for judge in JUDGES} if benched else None,
    }


def _seed(run: Run, benched: BenchedRun) -> dict[str, Any]:
    origin, comparison = read_json(run.folder / ORIGIN), benched.comparison
    agreed = run.reward_dir / "agreement.json"
    gains = {judge: gain_over([of_both(_rows(benched, judge)["aligned"], _rows(benched, judge)["sft"])]) for judge in JUDGES}
    return {
        "seed": run.config.seed,
        "commit": origin["commit"],
        "version": origin["version"],
        # A run that an earlier version began does not say it.
        "machine": origin.get("machine"),
        "minutes": sum(run.timings().values()) / 60,
        "teacher": {name: row for name, row in summary(benched.rows).items() if name in benched.rows},
        "independent": {name: comparison["summary"][name] for name in benched.independent},
        "judges_agree": comparison["policies"],
        "only_teacher": comparison["only_teacher"],
        "reward_model_pearson": read_json(agreed)["held_out"]["pearson"] if agreed.is_file() else None,
        "gain": {judge: gain.to_json() for judge, gain in gains.items()},
    }


def _rows(benched: BenchedRun, judge: str) -> Mapping[str, Any]:
    return benched.rows if judge == "teacher" else benched.independent


def over_seeds(benched: Sequence[BenchedRun], judge: str) -> dict[str, Any]:
    """Score systems and the aligned policy's gain, by one judge over all seeds. Raises DataError: a seed lacks answers."""
    sides = [_rows(answers, judge) for answers in benched]
    names = [name for name in SYSTEMS if any(name in side for side in sides)]
    try:
        systems = {
            name: with_intervals([of_system(side[name]) for side in sides], lambda seeds: [mean_score(seeds)]) for name in names
        }
        gain = gain_over([of_both(side["aligned"], side["sft"]) for side in sides])
    except (KeyError, ValueError) as error:
        raise DataError(f"the seeds do not compare: {error}") from error
    return {"systems": {name: pair[0].to_json() for name, pair in systems.items()}, "gain": gain.to_json()}


def write_results(results: Mapping[str, Any], docs: Path) -> list[Path]:
    """Write the results beside the page, and the tables of the page and of the README above it; return what was written."""
    write_json(docs / RESULTS, results)
    written = [docs / RESULTS]
    for path, text in rendered(results, docs).items():
        write_text(path, text)
        written.append(path)
    return written


def rendered(results: Mapping[str, Any], docs: Path) -> dict[Path, str]:
    """Return the documents with generated parts. Raises DataError: a document lacks the comments around its part."""
    parts = {docs / PAGE: ("seeds", page_part(results))}
    # Its table stays that of the last complete results of all requested seeds.
    complete = results["over_seeds"] and not results["missing"]
    parts |= {docs.parent / README: ("scores", readme_part(results))} if complete else {}
    return {path: _renewed(path, name, body) for path, (name, body) in parts.items() if path.is_file()}


def _renewed(path: Path, name: str, body: str) -> str:
    try:
        return put_between(path.read_text(encoding="utf-8"), BEGIN.format(name=name), END.format(name=name), body)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


# -- tables -------------------------------------------------------------------------------------------------------------


def page_part(results: Mapping[str, Any]) -> str:
    """Return the part of the page on results: each seed, all seeds, the gain."""
    finished = [seed for seed in results["seeds"] if "failed" not in seed]
    commits = sorted({str(seed["commit"])[:7] for seed in finished})
    machines = sorted({seed["machine"] or "a machine that was not noted" for seed in finished})
    missing = f" Not run yet: seeds {', '.join(map(str, results['missing']))}." if results["missing"] else ""
    if not results["seeds"]:
        return f"`{results['command']}`:{missing}"
    lines = [
        f"`{results['command']}`, commit {', '.join(commits) or '-'}, {', '.join(machines)}; {_minutes(finished)} minutes "
        f"a seed.{missing}",
        "",
        _seed_table(results["seeds"]),
    ]
    if results["over_seeds"] is None:
        return "\n".join(lines)
    lines += ["", _system_table(results), "", _gain_table(results)]
    return "\n".join(lines)


def _minutes(seeds: Sequence[Mapping[str, Any]]) -> str:
    minutes = [round(seed["minutes"]) for seed in seeds]
    return "-" if not minutes else " to ".join(str(minute) for minute in sorted({min(minutes), max(minutes)}))


def _seed_table(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each seed and system, by the teacher, with the independent judge's score beside it."""
    head = ["seed", "system", *CATEGORIES, "all", "independent judge", "told apart", "word errors", "scored"]
    rows: list[list[object]] = []
    for result in seeds:
        if "failed" in result:
            rows.append([result["seed"], f"failed: {result['failed']}", *[None] * (len(head) - 2)])
            continue
        for name in (name for name in SYSTEMS if name in result["teacher"]):
            row, other = result["teacher"][name], result["independent"][name]
            overall, categories = row["overall"], row["categories"]
            cells = [cell(categories[category]) if category in categories else None for category in CATEGORIES]
            cells += [cell(overall), cell(other["overall"]), *_shares(row), f"{overall['n_scored']} of {overall['n_asked']}"]
            rows.append([result["seed"], NAMES[name], *cells])
    return Table(head, rows).markdown()


def _shares(row: Mapping[str, Any]) -> tuple[str, str]:
    return percent(row["contrast"]["mean"], 0), percent(row["word_error_rate"]["mean"])


def _system_table(results: Mapping[str, Any]) -> str:
    """Return a row for each system over all seeds, with 95 % intervals over seeds and questions."""
    teacher, other = (results["over_seeds"][judge]["systems"] for judge in JUDGES)
    rows = [
        (NAMES[name], with_interval(teacher[name]), with_interval(other[name]), *mean_shares(results, name))
        for name in SYSTEMS
        if name in teacher
    ]
    return Table(("over all seeds", "teacher", "independent judge", "told apart", "word errors"), rows).markdown()


def mean_shares(results: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return contrasts told apart and word errors of a system, each the mean over the seeds where it was measured."""
    rows = [seed["teacher"][name] for seed in results["seeds"] if "failed" not in seed and name in seed["teacher"]]
    means: dict[str, Any] = {}
    for key in ("contrast", "word_error_rate"):
        values = [row[key]["mean"] for row in rows if row[key]["mean"] is not None]
        means[key] = {"mean": sum(values) / len(values) if values else None}
    return _shares(means)


def _gain_table(results: Mapping[str, Any]) -> str:
    """Return the gain of the aligned policy over its warm-up, by each judge."""
    head = ["aligned over SFT", "difference", "in %", "middle half, SFT", "aligned", "better answer", "seeds above 0"]
    rows = []
    finished = [seed for seed in results["seeds"] if "failed" not in seed]
    for judge in JUDGES:
        gain = results["over_seeds"][judge]["gain"]
        above = sum(seed["gain"][judge]["difference"]["low"] > 0 for seed in finished)
        cells = [with_interval(gain["difference"], signed=True), with_interval(gain["percent"], 1, unit=" %", signed=True)]
        cells += [with_interval(gain["middle_before"]), with_interval(gain["middle_after"])]
        cells += [with_interval(gain["improvement"], 1, scale=100.0, unit=" %"), f"{above} of {len(finished)}"]
        rows.append((f"by the {judge if judge == 'teacher' else 'independent judge'}", *cells))
    return Table(head, rows).markdown()


def readme_part(results: Mapping[str, Any]) -> str:
    """Return the few rows that the README shows."""
    teacher, other = (results["over_seeds"][judge]["systems"] for judge in JUDGES)
    rows = [
        (NAMES[name], number_text(teacher[name]["value"]), number_text(other[name]["value"]), *mean_shares(results, name))
        for name in IN_README
        if name in teacher
    ]
    table = Table(("system", "score", "independent judge", "contrasts told apart", "word errors"), rows)
    finished = [seed for seed in results["seeds"] if "failed" not in seed]
    commits = sorted({str(seed["commit"])[:7] for seed in finished})
    seeds = "seed" if len(finished) == 1 else "seeds"
    made = f"{len(finished)} {seeds}, commit {', '.join(commits)}, `{results['command']}`, {_minutes(finished)} minutes a seed."
    return f"{table.markdown()}\n\n{made}"
