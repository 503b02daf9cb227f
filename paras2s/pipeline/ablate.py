"""`paras2s ablate`: a grid of runs that differ in a few settings, their scores in one table and one plot.

Rows share every stage whose settings they share: the data, the warm-up and the reward model are made once for all rows that
would make the same. A killed ablation continues where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.audit import audit_warnings
from paras2s.bench.paras2s.metrics import error_text, summary
from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.curves import Curves
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.configs.schema.ablation import AblationConfig, AblationRow, Claim
from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.scripted.scripts import assign_roles, load_contrasts
from paras2s.errors import ConfigError, DataError, JudgeError, PolicyError
from paras2s.pipeline.shared_stages import share_stages
from paras2s.run import ORIGIN, Run
from paras2s.statistics.means import CERTAIN_FROM, Estimate, clustered_mean, mean_of_means
from paras2s.train.algorithm import check_algorithm
from paras2s.utils.io import read_json, write_json, write_text
from paras2s.utils.tables import Table, number_text, percent

KL_STEPS = 20


def row_config(ablation: AblationConfig, row: AblationRow, seed: int) -> RunConfig:
    """Return the whole config of a row. Raises ConfigError: an unknown key, or too many contrasts; names the row."""
    path = Path(ablation.base)
    base = path if path.suffix in (".yaml", ".yml") else preset_path(ablation.base)
    folder = ablation.run_dir / ablation.name / f"seed{seed}" / row.name.replace(" ", "_")
    # Timings of rows differ, so each has a name of its own.
    if taken := {"name", "seed", "run_dir"} & (flat := {**dotted(ablation.set), **dotted(row.set)}).keys():
        raise ConfigError(f"row {row.name!r}: {min(taken)} is the ablation's own; leave it out of set")
    own = {"name": f"{ablation.name}.{row.name}", "seed": seed, "run_dir": str(folder)}
    try:
        config = load_config(base, {**flat, **own})
        check_algorithm(config.align)
        if config.data.curated is None:
            # Else the row would fail at its data, after hours of the rows before it.
            assign_roles(load_contrasts(), config.data, seed)
        return config
    except ConfigError as error:
        raise ConfigError(f"row {row.name!r}: {error}") from error


def dotted(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings as dotted keys, so that one laid over a section leaves the section's other keys alone."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= dotted(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def run_row(
    run: Run, row: AblationRow, on: str, with_curve: bool = False, hacks: int = 0, with_labels: bool = False
) -> dict[str, Any]:
    """Run a row through its unfinished stages.

    `with_curve` judges validation answers, `hacks` is the number of questions, `with_labels` counts what the row learned from.
    """
    from paras2s.bench.paras2s.contrasts import run_bench
    from paras2s.bench.paras2s.curve import judge_curve
    from paras2s.pipeline.align import run_align
    from paras2s.pipeline.data import run_data
    from paras2s.pipeline.distill import run_distill
    from paras2s.pipeline.source_hacks import hack_report
    from paras2s.pipeline.warmup import run_warmup

    dataset = run_data(run)
    run_warmup(run, dataset)
    aligned = row.system == "aligned"
    # Nothing of the other systems learns from it.
    model = run_distill(run, dataset) if aligned else None
    if aligned:
        run_align(run, dataset, resume=True)
    benched = run_bench(run, dataset, model, "test" if on == "test" else "validation", (row.system,))
    scores, independent = (summary(rows)[row.system] for rows in (benched.rows, benched.independent))
    kl = [step["kl"] for step in run.metrics() if step.get("kl") is not None][-KL_STEPS:]
    curve = judge_curve(run, dataset, model) if with_curve and model is not None else []
    paid = hack_report(run, dataset, hacks) if hacks and aligned else {}
    return {
        "row": row.name,
        "line": row.line,
        "x": row.x,
        "seed": run.config.seed,
        "commit": read_json(run.folder / ORIGIN)["commit"],
        "scores": scores,
        "independent": independent["overall"],
        "kl": sum(kl) / len(kl) if kl else None,
        "curve": [point.to_json() for point in curve],
        "hacks": {kind: asdict(hack) for kind, hack in paid.items()},
        "reward_model_pearson": read_json(run.reward_dir / "agreement.json")["held_out"]["pearson"] if aligned else None,
        **(row_labels(run, dataset, aligned) if with_labels else {}),
        "refused": audit_warnings(run.folder),
        "minutes": sum(run.timings().get(stage, 0.0) for stage in ("align", "bench")) / 60,
    }


def row_labels(run: Run, dataset: Dataset, aligned: bool) -> dict[str, int]:
    """Return the answers that people gave for a row of the demo's world, and the judge's verdicts that it learned from.

    A plain answer that came twice to a question was given, and judged, twice; the warm-up learns from one of them.
    """
    from paras2s.pipeline.demonstrations import demonstrated_queries
    from paras2s.pipeline.learned_answers import KEPT_OUT, LEARNED, LEARNED_FILE, read_answers
    from paras2s.pipeline.refresh import verdicts_of_refreshes

    data = run.config.data
    given = len(demonstrated_queries(dataset, run.config.warmup)) * data.answers_per_query
    verdicts = given if data.keep_answers == "best" else 0
    if aligned:
        learned = read_answers(run.reward_dir / LEARNED_FILE).answers
        verdicts += sum(row.part in (LEARNED, KEPT_OUT) for row in learned) + verdicts_of_refreshes(run)
    return {"demonstrations": given, "verdicts": verdicts}


def run_ablation(ablation: AblationConfig, console: Console, quiet: bool, anyway: bool = False) -> Path:
    """Run all rows for all seeds; return the folder with `table.json`, `table.md` and a plot where rows have a value of `x`."""
    folder = ablation.run_dir / ablation.name
    runs = [
        (row, Run(row_config(ablation, row, seed), console, quiet, anyway=anyway))
        for seed in ablation.seeds
        for row in ablation.rows
    ]
    folders = [run.folder for _, run in runs]
    if len(set(folders)) < len(folders):
        raise ConfigError(f"{ablation.name}: two rows would write {max(folders, key=folders.count)}; rename one")
    # An earlier try's figures are kept until they are measured again.
    earlier = {(row["row"], row["seed"]): row for row in _earlier(folder / "table.json")}
    measured: list[dict[str, Any]] = []
    for number, (row, run) in enumerate(runs, 1):
        run.headline(f"row {number} of {len(runs)}: {row.name}, seed {run.config.seed}")
        run.open()
        # One place for all ablations: figures that start from the same warm-up do not each train it.
        share_stages(run, ablation.run_dir / "shared")
        try:
            priced = ablation.demonstration_price is not None
            measured.append(run_row(run, row, ablation.queries, "curve" in ablation.plots, ablation.hacks, priced))
        except (PolicyError, JudgeError) as error:
            # A row that diverges is a result as well; those after it are still to be run.
            measured.append({"row": row.name, "line": row.line, "x": row.x, "seed": run.config.seed, "failed": str(error)})
            run.say(f"row {row.name!r} failed: {error}")
        # After every row, so that a long grid can be looked at while it runs.
        done = {(row["row"], row["seed"]) for row in measured}
        kept = [earlier[key] for row, run in runs if (key := (row.name, run.config.seed)) in earlier and key not in done]
        write_json(folder / "table.json", {"name": ablation.name, "queries": ablation.queries, "rows": [*measured, *kept]})
        write_text(folder / "table.md", markdown(ablation, [*measured, *kept]))
    for kind in ablation.plots:
        if (plot := draw(ablation, measured, kind)) is not None:
            write_text(folder / f"{kind}.svg", plot)
    if not quiet:
        score_table(measured, f"{ablation.name}, {ablation.queries} queries").show(console)
    return folder


def _earlier(path: Path) -> list[dict[str, Any]]:
    try:
        return list(read_json(path)["rows"]) if path.is_file() else []
    except (DataError, KeyError, TypeError):
        return []


COLUMNS = ("row", "seed", "score", "independent judge", "told apart", "word errors", "KL", "scored", "align and bench, minutes")


def cells(row: dict[str, Any]) -> list[str]:
    """Return one row of the table; what could not be measured is a dash."""
    if "failed" in row:
        return [row["row"], str(row["seed"]), f"failed: {row['failed']}", *["-"] * (len(COLUMNS) - 3)]
    scores = row["scores"]
    overall, apart, errors = scores["overall"], scores["contrast"], scores["word_error_rate"]

    def plain(mean: dict[str, Any], factor: float = 1.0, digits: int = 2) -> str:
        return number_text(mean["mean"], digits, scale=factor) + error_text(mean, factor, digits)

    scored = f"{overall['n_scored']} of {overall['n_asked']}"
    kl = number_text(row["kl"], 3)
    shares = (f"{plain(apart, 100, 0)} %", f"{plain(errors, 100, 1)} %")
    # What an earlier version measured has no second judge.
    independent = plain(row["independent"]) if "independent" in row else "-"
    return [row["row"], str(row["seed"]), plain(overall), independent, *shares, kl, scored, f"{row['minutes']:.1f}"]


def markdown(ablation: AblationConfig, rows: Sequence[dict[str, Any]]) -> str:
    """Return the tables for a page, with the ablation's name and what the paper found."""
    extra = (hack_table(rows), label_table(rows, ablation.demonstration_price))
    tables = [table.markdown() for table in (score_table(rows), *extra) if table is not None]
    paper = [f"The paper: {ablation.paper}"] if ablation.paper else []
    head = f"`paras2s ablate` {ablation.name}, {ablation.queries} queries."
    return "\n\n".join([head, *tables, *refused_rows(rows), *paper]) + "\n"


def score_table(rows: Sequence[dict[str, Any]], title: str = "") -> Table:
    """Return the table of the rows' scores."""
    return Table(COLUMNS, [cells(row) for row in rows], title)


def refused_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the audits refused of rows that went on anyway, a line each."""
    return [f"{row['row']}, seed {row['seed']}. {said}" for row in rows for said in row.get("refused", ())]


def hack_table(rows: Sequence[dict[str, Any]]) -> Table | None:
    """Return a table of what each row's reward pays for hacks, or None if no row was asked."""

    def paid(share: Mapping[str, Any]) -> str | None:
        return None if share["paid"] is None else f"{percent(share['paid'], 0)} of {share['n_scored']}"

    probed = [row for row in rows if row.get("hacks")]
    if not probed:
        return None
    kinds = sorted(probed[0]["hacks"])
    cells = [(row["row"], row["seed"], *(paid(row["hacks"][kind]) for kind in kinds)) for row in probed]
    return Table(("paid at least what the good answer is", "seed", *kinds), cells)


def label_table(rows: Sequence[dict[str, Any]], price: float | None) -> Table | None:
    """Return what each row's labels cost, a demonstration at `price` verdicts; None without a price."""
    if price is None:
        return None
    columns = ("row", "seed", "demonstrations", "verdicts", f"cost in verdicts, a demonstration at {number_text(price, 1)}")
    counted = [row for row in rows if "verdicts" in row]
    return Table(
        columns,
        [
            (row["row"], row["seed"], row["demonstrations"], row["verdicts"],
             number_text(row["demonstrations"] * price + row["verdicts"], 0))
            for row in counted
        ],
    )  # fmt: skip


def value_of(row: dict[str, Any], of: str) -> tuple[float | None, float | None]:
    """Return a row's figure and standard error (of a share of 0 or 100 % by Wilson's interval); None if not measured."""
    if "failed" in row:
        return None, None
    key = {"score": "overall", "told_apart": "contrast", "words_understood": "word_error_rate"}[of]
    figure = row["scores"][key]
    if figure["mean"] is None:
        return None, None
    error = figure["standard_error"]
    if (ends := figure.get("wilson")) is not None:
        error = (ends[1] - ends[0]) / CERTAIN_FROM
    return (1.0 - figure["mean"] if of == "words_understood" else figure["mean"]), error


def answers_of(ablation: AblationConfig, row: str, seed: int) -> list[AnswerRow]:
    """Return the judged answers of a row's system; [] where the run's folder is gone."""
    chosen = next(other for other in ablation.rows if other.name == row)
    config = row_config(ablation, chosen, seed)
    path = config.run_dir / ("bench" if ablation.queries == "test" else "bench-validation") / f"{chosen.system}.jsonl"
    return load_rows(path) if path.is_file() else []


def paired_claim(ablation: AblationConfig, claim: Claim) -> tuple[float, float] | None:
    """Return the mean difference of two rows on the same questions and its error, over categories and seeds, or None."""
    estimates = []
    for seed in ablation.seeds:
        first, second = (answers_of(ablation, name, seed) for name in (claim.higher, claim.lower))
        estimate = _paired(first, second, claim) if first and second else None
        if estimate is None or estimate.mean is None or estimate.standard_error is None:
            return None
        estimates.append((estimate.mean, estimate.standard_error))
    return sum(mean for mean, _ in estimates) / len(estimates), sum(error**2 for _, error in estimates) ** 0.5 / len(estimates)


def _paired(first: Sequence[AnswerRow], second: Sequence[AnswerRow], claim: Claim) -> Estimate | None:
    if claim.of == "told_apart":
        return None
    sides = [_by_query(rows, claim.of) for rows in (first, second)]
    places = {row.query_id: (row.category, row.contrast_id) for row in (*first, *second)}
    shared = [query for query in places if query in sides[0] and query in sides[1] and places[query][0] not in claim.leave_out]
    parts = []
    for category in sorted({places[query][0] for query in shared}):
        own = [query for query in shared if places[query][0] == category]
        parts.append(clustered_mean([sides[0][query] - sides[1][query] for query in own], [places[query][1] for query in own]))
    return mean_of_means(parts)


def _by_query(rows: Sequence[AnswerRow], of: str) -> dict[str, float]:
    """Return a question's mean over its answers; those not measured are left out."""
    values: dict[str, list[float]] = {}
    for row in rows:
        value = row.score if of == "score" else None if row.word_error_rate is None else 1.0 - row.word_error_rate
        if value is not None:
            values.setdefault(row.query_id, []).append(value)
    return {name: sum(scores) / len(scores) for name, scores in values.items()}


def judge_claim(claim: Claim, rows: Sequence[dict[str, Any]], paired: tuple[float, float] | None = None) -> str:
    """Return whether our rows bear a claim out: a difference in standard errors.

    `paired`: the difference on the same questions and its error, where that is known; else the two rows' errors are added,
    which is at least as much.
    """
    if paired is None:
        if claim.leave_out:
            return "not measured: the rows' answers are gone"
        sides = []
        for name in (claim.higher, claim.lower):
            figures = [value_of(row, claim.of) for row in rows if row["row"] == name]
            means = [mean for mean, _ in figures if mean is not None]
            errors = [error for _, error in figures if error is not None]
            if not means:
                return f"not measured: {name}"
            if len(errors) < len(means):
                return f"not known: {name} has no standard error"
            sides.append((sum(means) / len(means), sum(error**2 for error in errors) ** 0.5 / len(means)))
        (high, error_high), (low, error_low) = sides
        paired = high - low, (error_high**2 + error_low**2) ** 0.5
    difference, error = paired
    points = claim.of != "score"
    shown = f"{100 * difference:+.1f} ± {100 * error:.1f} points" if points else f"{difference:+.2f} ± {error:.2f}"
    apart = abs(difference) >= 2 * error and difference != 0
    if claim.at_least:
        return f"{'does not agree' if apart and difference < 0 else 'agrees' if apart else 'not told apart'}: {shown}"
    if apart:
        return f"{'agrees' if difference > 0 else 'does not agree'}: {shown}"
    if not difference:
        return f"no difference: {shown}"
    return f"{'leans that way' if difference > 0 else 'leans the other way'}, within the noise: {shown}"


def draw_panels(rows: Sequence[dict[str, Any]]) -> str | None:
    """Draw reward model and judges over the steps of each row; None if no row has a curve."""
    from paras2s.bench.paras2s.curve import curves_of, curves_svg, point_of

    shown = [row for row in rows if row.get("curve")]
    if not shown:
        return None
    seeds = {row["seed"] for row in shown}
    names = [row["row"] if len(seeds) == 1 else f"{row['row']}, seed {row['seed']}" for row in shown]
    return curves_svg(
        [curves_of([point_of(point) for point in row["curve"]], name) for row, name in zip(shown, names, strict=True)]
    )


def draw(ablation: AblationConfig, rows: Sequence[dict[str, Any]], of: str = "score") -> str | None:
    """Draw the mean over seeds against `x`, a curve for each line, or a panel for each row; None if no row can be drawn."""
    if of == "curve":
        return draw_panels(rows)
    placed = [(row, value) for row in rows if row["x"] is not None and (value := value_of(row, of)[0]) is not None]
    if not placed:
        return None
    places = sorted({row["x"] for row, _ in placed})
    lines = list(dict.fromkeys(row["line"] for row, _ in placed))
    curves = []
    for line in lines:
        values: list[float | None] = []
        for x in places:
            means = [value for row, value in placed if (row["line"], row["x"]) == (line, x)]
            values.append(sum(means) / len(means) if means else None)
        curves.append(values)
    what = "Score from 1 to 5" if of == "score" else "Share of words understood"
    description = f"{what} against {ablation.axis or 'x'}; lines: {', '.join(line or 'all' for line in lines)}"
    names = [line or of.replace("_", " ") for line in lines]
    return svg_of([Curves(places, curves, names=names, axis=ablation.axis)], description)
