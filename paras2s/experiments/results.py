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
from paras2s.bench.paras2s.scripted_baselines import BAD, CONSTANT, FLAT, PROSODY, STYLE_DEAF
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

SCHEMA = 1
FAILED = "failed.json"
RESULTS, PAGE, README = "results.json", "results.md", "README.md"
# A generated part of a document stands between two comments with its name.
BEGIN, END = "<!-- {name}: begin; renewed by `paras2s results` -->", "<!-- {name}: end -->"
JUDGES = ("teacher", "independent")
NAMES = {
    BAD: "bad: answers the other style",
    CONSTANT: "constant answer",
    CASCADE: "cascade: words only",
    STYLE_DEAF: "style-deaf oracle",
    PROSODY: "linear prosody, scripted answers",
    "sft": "SFT warm-up",
    "aligned": "**aligned (GRPO)**",
    FLAT: "flat: knows the style, neutral voice",
    TOPLINE: "topline: knows the style",
}
IN_README = (CASCADE, "sft", "aligned", TOPLINE)


def seed_config(preset: str, seed: int, folder: Path) -> RunConfig:
    """The config of one seed, in a folder of its own."""
    return load_config(preset_path(preset), {"seed": seed, "run_dir": str(folder / f"seed{seed}")})


def run_seeds(preset: str, seeds: Sequence[int], folder: Path, console: Console, quiet: bool) -> None:
    """Runs every seed that is not finished yet; a killed one goes on where it was, and why one failed stays in its folder.

    What the ablations beside it have made, or will want, is made once for both.
    """
    for number, seed in enumerate(seeds, 1):
        run = Run(seed_config(preset, seed, folder), console, quiet)
        run.say(f"[bold]seed {seed}, {number} of {len(seeds)}[/bold]")
        (run.folder / FAILED).unlink(missing_ok=True)
        try:
            copy_finished_stages(run, shared_folder(folder))
            run_demo(run, resume=True)
        except ParaS2SError as error:
            # The other seeds are to be run all the same, and this one is to be seen.
            write_json(run.folder / FAILED, {"reason": f"{type(error).__name__}: {error}"})
            run.say(f"[red]seed {seed} failed[/red]: {error}")
        offer_finished_stages(run, shared_folder(folder))


def read_benched(run: Run) -> BenchedRun | None:
    """The judged answers of a run's systems; None before its bench is finished."""
    folder = run.folder / "bench"
    if not (folder / "independent" / "summary.json").is_file():
        return None
    names = [name for name in SYSTEMS if (folder / f"{name}.jsonl").is_file()]
    own, other = ({name: load_rows(place / f"{name}.jsonl") for name in names} for place in (folder, folder / "independent"))
    return BenchedRun(own, other)


def collect(preset: str, seeds: Sequence[int], folder: Path, console: Console) -> dict[str, Any]:
    """Reads the results of the finished seeds, and computes the figures over them.

    Raises:
        DataError: a run's files cannot be read, or lack a system that another seed has.
    """
    found: list[dict[str, Any]] = []
    benched: list[BenchedRun] = []
    for seed in seeds:
        run = Run(seed_config(preset, seed, folder), console, True)
        if (run.folder / FAILED).is_file():
            found.append({"seed": seed, "failed": read_json(run.folder / FAILED)["reason"]})
        elif (one := read_benched(run)) is not None:
            benched.append(one)
            found.append(_seed(run, one))
    return {
        "schema": SCHEMA,
        "command": f"paras2s results --preset {preset} --seeds '{' '.join(map(str, seeds))}'",
        "preset": preset,
        "missing": sorted(set(seeds) - {one["seed"] for one in found}),
        "seeds": found,
        "over_seeds": {judge: over_seeds(benched, judge) for judge in JUDGES} if benched else None,
    }


def _seed(run: Run, benched: BenchedRun) -> dict[str, Any]:
    origin, comparison = read_json(run.folder / ORIGIN), benched.comparison
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
        "reward_model_pearson": read_json(run.reward_dir / "agreement.json")["held_out"]["pearson"],
        "gain": {judge: gain.to_json() for judge, gain in gains.items()},
    }


def _rows(benched: BenchedRun, judge: str) -> Mapping[str, Any]:
    return benched.rows if judge == "teacher" else benched.independent


def over_seeds(benched: Sequence[BenchedRun], judge: str) -> dict[str, Any]:
    """Scores of all systems and the gain of the aligned policy, by one judge over all seeds.

    Raises:
        DataError: a seed lacks a system, or has no scored answer in a category.
    """
    sides = [_rows(one, judge) for one in benched]
    names = [name for name in SYSTEMS if any(name in side for side in sides)]
    try:
        systems = {
            name: with_intervals([of_system(side[name]) for side in sides], lambda seeds: [mean_score(seeds)]) for name in names
        }
        gain = gain_over([of_both(side["aligned"], side["sft"]) for side in sides])
    except (KeyError, ValueError) as error:
        raise DataError(f"the seeds do not compare: {error}") from error
    return {"systems": {name: found[0].to_json() for name, found in systems.items()}, "gain": gain.to_json()}


def write_results(results: Mapping[str, Any], docs: Path) -> list[Path]:
    """Writes the results beside the page, and the tables of the page and of the README above it; returns what was written."""
    write_json(docs / RESULTS, results)
    written = [docs / RESULTS]
    for path, text in rendered(results, docs).items():
        write_text(path, text)
        written.append(path)
    return written


def rendered(results: Mapping[str, Any], docs: Path) -> dict[Path, str]:
    """The documents with generated parts, as they should read.

    Raises:
        DataError: a document lacks the comments between which its part stands.
    """
    parts = {docs / PAGE: ("seeds", page_part(results))}
    # Its table stays that of the last results of all seeds that were wanted.
    complete = results["over_seeds"] and not results["missing"]
    parts |= {docs.parent / README: ("scores", readme_part(results))} if complete else {}
    return {path: _renewed(path, name, body) for path, (name, body) in parts.items() if path.is_file()}


def _renewed(path: Path, name: str, body: str) -> str:
    try:
        return put_between(path.read_text(), BEGIN.format(name=name), END.format(name=name), body)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


# -- tables -------------------------------------------------------------------------------------------------------------


def page_part(results: Mapping[str, Any]) -> str:
    """The part of the page on results: each seed, all seeds, the gain."""
    finished = [one for one in results["seeds"] if "failed" not in one]
    commits = sorted({str(one["commit"])[:7] for one in finished})
    machines = sorted({one["machine"] or "a machine that was not noted" for one in finished})
    missing = f" Not run yet: seeds {', '.join(map(str, results['missing']))}." if results["missing"] else ""
    if not results["seeds"]:
        return f"`{results['command']}`:{missing}"
    lines = [
        f"`{results['command']}`, commit {', '.join(commits) or '-'}, {', '.join(machines)}; {_minutes(finished)} minutes "
        f"a seed.{missing}",
        "",
        *_seed_table(results["seeds"]),
    ]
    if results["over_seeds"] is None:
        return "\n".join(lines)
    lines += ["", *_system_table(results), "", *_gain_table(results)]
    return "\n".join(lines)


def _minutes(seeds: Sequence[Mapping[str, Any]]) -> str:
    minutes = [round(one["minutes"]) for one in seeds]
    return "-" if not minutes else " to ".join(str(one) for one in sorted({min(minutes), max(minutes)}))


def _seed_table(seeds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a seed and system, by the teacher, with the independent judge's score beside it."""
    head = ["seed", "system", *CATEGORIES, "all", "independent judge", "told apart", "word errors", "scored"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for one in seeds:
        if "failed" in one:
            lines.append(f"| {one['seed']} | failed: {one['failed']} |{' - |' * (len(head) - 2)}")
            continue
        for name in (name for name in SYSTEMS if name in one["teacher"]):
            row, other = one["teacher"][name], one["independent"][name]
            cells = [cell(row["categories"][category]) if category in row["categories"] else "-" for category in CATEGORIES]
            cells += [cell(row["overall"]), cell(other["overall"]), *_shares(row)]
            cells.append(f"{row['overall']['n_scored']} of {row['overall']['n_asked']}")
            lines.append(f"| {one['seed']} | {NAMES[name]} | {' | '.join(cells)} |")
    return lines


def _shares(row: Mapping[str, Any]) -> tuple[str, str]:
    apart, errors = row["contrast"]["mean"], row["word_error_rate"]["mean"]
    return "-" if apart is None else f"{100 * apart:.0f} %", "-" if errors is None else f"{100 * errors:.1f} %"


def _interval(one: Mapping[str, Any], unit: str = "", signed: bool = False) -> str:
    sign = "+" if signed else ""
    digits = 1 if unit else 2
    return f"{one['value']:{sign}.{digits}f}{unit} ({one['low']:{sign}.{digits}f} to {one['high']:{sign}.{digits}f})"


def _system_table(results: Mapping[str, Any]) -> list[str]:
    """A row a system over all seeds, with 95 % intervals over seeds and questions."""
    teacher, other = (results["over_seeds"][judge]["systems"] for judge in JUDGES)
    lines = ["| over all seeds | teacher | independent judge | told apart | word errors |", "|---|---|---|---|---|"]
    for name in (name for name in SYSTEMS if name in teacher):
        apart, errors = mean_shares(results, name)
        lines.append(f"| {NAMES[name]} | {_interval(teacher[name])} | {_interval(other[name])} | {apart} | {errors} |")
    return lines


def mean_shares(results: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Contrasts told apart and word errors of a system, each the mean over the seeds that have it measured."""
    rows = [one["teacher"][name] for one in results["seeds"] if "failed" not in one and name in one["teacher"]]
    means: dict[str, Any] = {}
    for key in ("contrast", "word_error_rate"):
        values = [row[key]["mean"] for row in rows if row[key]["mean"] is not None]
        means[key] = {"mean": sum(values) / len(values) if values else None}
    return _shares(means)


def _gain_table(results: Mapping[str, Any]) -> list[str]:
    """The aligned policy over its warm-up, by each judge."""
    head = ["aligned over SFT", "difference", "in %", "middle half, SFT", "aligned", "better answer", "seeds above 0"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    finished = [one for one in results["seeds"] if "failed" not in one]
    for judge in JUDGES:
        gain = results["over_seeds"][judge]["gain"]
        above = sum(one["gain"][judge]["difference"]["low"] > 0 for one in finished)
        cells = [_interval(gain["difference"], signed=True), _interval(gain["percent"], " %", signed=True)]
        cells += [_interval(gain["middle_before"]), _interval(gain["middle_after"])]
        cells += [_interval(_percent(gain["improvement"]), " %"), f"{above} of {len(finished)}"]
        lines.append(f"| by the {judge if judge == 'teacher' else 'independent judge'} | {' | '.join(cells)} |")
    return lines


def _percent(one: Mapping[str, Any]) -> dict[str, float]:
    return {key: 100 * one[key] for key in ("value", "low", "high")}


def readme_part(results: Mapping[str, Any]) -> str:
    """The few rows that the README shows."""
    teacher, other = (results["over_seeds"][judge]["systems"] for judge in JUDGES)
    lines = ["| system | score | independent judge | contrasts told apart | word errors |", "|---|---|---|---|---|"]
    for name in (name for name in IN_README if name in teacher):
        apart, errors = mean_shares(results, name)
        lines.append(f"| {NAMES[name]} | {teacher[name]['value']:.2f} | {other[name]['value']:.2f} | {apart} | {errors} |")
    finished = [one for one in results["seeds"] if "failed" not in one]
    commits = sorted({str(one["commit"])[:7] for one in finished})
    seeds = "seed" if len(finished) == 1 else "seeds"
    lines += [
        "",
        f"{len(finished)} {seeds}, commit {', '.join(commits)}, `{results['command']}`, {_minutes(finished)} minutes a seed.",
    ]
    return "\n".join(lines)
