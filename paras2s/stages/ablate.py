"""`paras2s ablate`: a grid of runs that differ in a few settings, their scores in one table and one plot.

Rows share every stage whose settings they share: the data, the warm-up and the reward model are made once for all rows that
would make the same. A killed ablation continues where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paras2s.bench.report import draw_curves, standalone_svg
from paras2s.bench.rows import AnswerRow, load_rows
from paras2s.bench.stats import paired_difference
from paras2s.config import AblationConfig, AblationRow, Claim, RunConfig, load_config
from paras2s.errors import ConfigError, JudgeError, PolicyError
from paras2s.kept import key_of
from paras2s.stages.demo import preset_path
from paras2s.stages.run import Run
from paras2s.storage import write_json, write_text

# Sections that decide what a stage makes; a later stage also depends on those before it.
SECTIONS = {"data": ("seed", "data"), "sft": ("policy", "warmup"), "reward": ("distill",)}
KL_STEPS = 20


def row_config(ablation: AblationConfig, row: AblationRow, seed: int) -> RunConfig:
    """The whole config of one row.

    Raises:
        ConfigError: a key that does not exist; names the row.
    """
    path = Path(ablation.base)
    base = path if path.suffix in (".yaml", ".yml") else preset_path(ablation.base)
    folder = ablation.run_dir / ablation.name / f"seed{seed}" / row.name.replace(" ", "_")
    # Timings of rows differ, so each has a name of its own.
    if taken := {"name", "seed", "run_dir"} & (flat := {**dotted(ablation.set), **dotted(row.set)}).keys():
        raise ConfigError(f"row {row.name!r}: {min(taken)} is the ablation's own; leave it out of set")
    own = {"name": f"{ablation.name}.{row.name}", "seed": seed, "run_dir": str(folder)}
    try:
        return load_config(base, {**flat, **own})
    except ConfigError as error:
        raise ConfigError(f"row {row.name!r}: {error}") from error


def dotted(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys, so that one laid over a section leaves the section's other keys alone."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= dotted(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found


def stage_keys(config: RunConfig) -> dict[str, str]:
    """A key for what each shared stage makes under this config: equal keys, equal outcome."""
    settings = config.model_dump(mode="json")
    keys, so_far = {}, []
    for stage, sections in SECTIONS.items():
        so_far += [settings[section] for section in sections]
        keys[stage] = key_of(so_far)[:12]
    return keys


def share_stages(run: Run, shared: Path) -> None:
    """Let the run's folders of shared stages be links to one place for each outcome."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for stage, key in stage_keys(run.config).items():
        place = (shared / f"{stage}-{key}").resolve()
        place.mkdir(parents=True, exist_ok=True)
        link = run.folder / stage
        if link.is_symlink() and link.resolve() != place:
            link.unlink()
        if not link.exists():
            link.symlink_to(place, target_is_directory=True)


def run_row(run: Run, row: AblationRow, on: str) -> dict[str, Any]:
    """One row through its stages; those that are whole are not run again."""
    from paras2s.stages.align import run_align
    from paras2s.stages.bench import run_bench, summary
    from paras2s.stages.data import run_data
    from paras2s.stages.distill import run_distill
    from paras2s.stages.warmup import run_warmup

    dataset = run_data(run)
    policy = run_warmup(run, dataset)
    model = run_distill(run, dataset, policy)
    if row.system == "aligned":
        run_align(run, dataset, policy, resume=True)
    systems = run_bench(run, dataset, model, "test" if on == "test" else "validation", (row.system,))
    found = summary(systems)[row.system]
    kl = [step["kl"] for step in run.metrics() if step.get("kl") is not None][-KL_STEPS:]
    return {
        "row": row.name,
        "line": row.line,
        "x": row.x,
        "seed": run.config.seed,
        "scores": found,
        "kl": sum(kl) / len(kl) if kl else None,
        "minutes": sum(run.timings().get(stage, 0.0) for stage in ("align", "bench")) / 60,
    }


def run_ablation(ablation: AblationConfig, console: Console, quiet: bool) -> Path:
    """All rows for all seeds; returns the folder with `table.json`, `table.md` and, where rows have places, a plot each."""
    folder = ablation.run_dir / ablation.name
    runs = [(row, Run(row_config(ablation, row, seed), console, quiet)) for seed in ablation.seeds for row in ablation.rows]
    folders = [run.folder for _, run in runs]
    if len(set(folders)) < len(folders):
        raise ConfigError(f"{ablation.name}: two rows would write {max(folders, key=folders.count)}; rename one")
    found: list[dict[str, Any]] = []
    for number, (row, run) in enumerate(runs, 1):
        run.say(f"[bold]row {number} of {len(runs)}: {row.name}, seed {run.config.seed}[/bold]")
        run.open()
        # One place for all ablations: figures that start from the same warm-up do not each train it.
        share_stages(run, ablation.run_dir / "shared")
        try:
            found.append(run_row(run, row, ablation.queries))
        except (PolicyError, JudgeError) as error:
            # A row that diverges is a result as well; those after it are still to be run.
            found.append({"row": row.name, "line": row.line, "x": row.x, "seed": run.config.seed, "failed": str(error)})
            run.say(f"[red]row {row.name!r} failed[/red]: {error}")
        # After every row, so that a long grid can be looked at while it runs.
        write_json(folder / "table.json", {"name": ablation.name, "queries": ablation.queries, "rows": found})
        write_text(folder / "table.md", markdown(ablation, found))
    for kind in ablation.plots:
        if (plot := draw(ablation, found, kind)) is not None:
            write_text(folder / f"{kind}.svg", plot)
    if not quiet:
        console.print(_table(ablation, found))
    return folder


COLUMNS = ("row", "seed", "score", "told apart", "word errors", "KL", "scored", "align and bench, minutes")


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the table; what could not be measured is a dash."""
    if "failed" in row:
        return [row["row"], str(row["seed"]), f"failed: {row['failed']}", *["-"] * (len(COLUMNS) - 3)]
    scores = row["scores"]
    overall, apart, errors = scores["overall"], scores["contrast"], scores["word_error_rate"]

    def plain(one: dict[str, Any], factor: float = 1.0, digits: int = 2) -> str:
        if one["mean"] is None:
            return "-"
        error = "" if one["standard_error"] is None else f" ± {factor * one['standard_error']:.{digits}f}"
        return f"{factor * one['mean']:.{digits}f}{error}"

    scored = f"{overall['n_scored']} of {overall['n_asked']}"
    kl = "-" if row["kl"] is None else f"{row['kl']:.3f}"
    shares = (f"{plain(apart, 100, 0)} %", f"{plain(errors, 100, 1)} %")
    return [row["row"], str(row["seed"]), plain(overall), *shares, kl, scored, f"{row['minutes']:.1f}"]


def markdown(ablation: AblationConfig, rows: Sequence[dict[str, Any]]) -> str:
    """The table for a page, with the ablation's name and what the paper found."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    body = "".join(f"| {' | '.join(cells(row))} |\n" for row in rows)
    paper = f"\nThe paper: {ablation.paper}\n" if ablation.paper else ""
    return f"`paras2s ablate` {ablation.name}, {ablation.queries} queries.\n\n{head}{body}{paper}"


def _table(ablation: AblationConfig, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(*COLUMNS, title=f"{ablation.name}, {ablation.queries} queries", title_justify="left")
    for row in rows:
        table.add_row(*cells(row))
    return table


def value_of(row: dict[str, Any], of: str) -> tuple[float | None, float | None]:
    """A row's figure and its standard error; None where it was not measured."""
    if "failed" in row:
        return None, None
    key = {"score": "overall", "told_apart": "contrast", "words_understood": "word_error_rate"}[of]
    one = row["scores"][key]
    if one["mean"] is None:
        return None, None
    return (1.0 - one["mean"] if of == "words_understood" else one["mean"]), one["standard_error"]


def answers_of(ablation: AblationConfig, row: str, seed: int) -> list[AnswerRow]:
    """What a row's system answered, judged; [] where the run's folder is gone."""
    found = next(one for one in ablation.rows if one.name == row)
    config = row_config(ablation, found, seed)
    path = config.run_dir / ("bench" if ablation.queries == "test" else "bench-validation") / f"{found.system}.jsonl"
    return load_rows(path) if path.is_file() else []


def paired_claim(ablation: AblationConfig, claim: Claim) -> tuple[float, float] | None:
    """Difference of two rows' scores on the same questions and its error, over all seeds; None where rows are gone."""
    found = []
    for seed in ablation.seeds:
        rows = [answers_of(ablation, name, seed) for name in (claim.higher, claim.lower)]
        if not all(rows):
            return None
        estimate = paired_difference(*rows).difference.estimate
        if estimate.mean is None or estimate.standard_error is None:
            return None
        found.append((estimate.mean, estimate.standard_error))
    return sum(mean for mean, _ in found) / len(found), sum(error**2 for _, error in found) ** 0.5 / len(found)


def judge_claim(claim: Claim, rows: Sequence[dict[str, Any]], paired: tuple[float, float] | None = None) -> str:
    """Whether our rows bear a claim out: the difference of the two means over seeds, in standard errors.

    `paired`: the difference on the same questions and its error, where that is known; else the two errors are added, which is
    at least as much.
    """
    sides = []
    for name in (claim.higher, claim.lower):
        found = [value_of(row, claim.of) for row in rows if row["row"] == name]
        means = [mean for mean, _ in found if mean is not None]
        errors = [error for _, error in found if error is not None]
        if not means:
            return f"not measured: {name}"
        sides.append((sum(means) / len(means), sum(error**2 for error in errors) ** 0.5 / len(means)))
    (high, error_high), (low, error_low) = sides
    difference, error = paired or (high - low, (error_high**2 + error_low**2) ** 0.5)
    factor = 1 if claim.of == "score" else 100
    digits = 2 if claim.of == "score" else 1
    shown = f"{factor * difference:+.{digits}f} ± {factor * error:.{digits}f}" + ("" if factor == 1 else " points")
    if not difference:
        return f"no difference: {shown}"
    if not error or abs(difference) >= 2 * error:
        return f"{'agrees' if difference > 0 else 'does not agree'}: {shown}"
    return f"{'leans that way' if difference > 0 else 'leans the other way'}, within the noise: {shown}"


def draw(ablation: AblationConfig, rows: Sequence[dict[str, Any]], of: str = "score") -> str | None:
    """Mean over seeds against `x`, a curve a line; None where no row has a place."""
    placed = [(row, value) for row in rows if row["x"] is not None and (value := value_of(row, of)[0]) is not None]
    if not placed:
        return None
    places = sorted({row["x"] for row, _ in placed})
    lines = list(dict.fromkeys(row["line"] for row, _ in placed))
    curves = []
    for line in lines:
        values: list[float | None] = []
        for place in places:
            means = [value for row, value in placed if (row["line"], row["x"]) == (line, place)]
            values.append(sum(means) / len(means) if means else None)
        curves.append(values)
    spread: list[float | None] = [None] * len(places)
    what = "Score from 1 to 5" if of == "score" else "Share of words understood"
    description = f"{what} against {ablation.axis or 'x'}; lines: {', '.join(line or 'all' for line in lines)}"
    names = [line or of.replace("_", " ") for line in lines]
    return standalone_svg(draw_curves(places, curves, spread, description), names, ablation.axis)
