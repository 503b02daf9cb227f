"""The verb `bench styleset`: whether a model speaks in a style that it is told, and in one that fits a role."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import Cache, Json, Set, parse_overrides, parse_systems, print_json

Systems = Annotated[
    list[str] | None,
    typer.Option("--system", help="NAME=WHAT: a checkpoint's folder, an endpoint's YAML, or a folder of ID.wav. Repeatable."),
]
Judges = Annotated[list[str] | None, typer.Option("--judge", help="An audio judge: styleset (default), or a YAML. Repeatable.")]
# Options that say what is made, so that verdicts of outputs made already leave them nothing to do.
OF_OUTPUTS = ("contexts", "limit", "turns", "seed", "longest_answer_s")


def bench_styleset(
    ctx: typer.Context,
    system: Systems = None,
    judge: Judges = None,
    task: Annotated[str | None, typer.Option(help="following, or role_play; else both.")] = None,
    out: Annotated[Path, typer.Option(help="Outputs, verdicts and tables.")] = Path("runs/styleset"),
    items: Annotated[Path | None, typer.Option(help="Sentences and styles of your own (YAML).")] = None,
    contexts: Annotated[Path | None, typer.Option(help="Role-plays of your own (YAML).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many items of each task.")] = None,
    turns: Annotated[int, typer.Option(min=3, help="Of a role-play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of what checkpoints and endpoints sample.")] = 42,
    longest_answer_s: Annotated[float, typer.Option(min=0.5, help="Of a checkpoint's turn.")] = 18.0,
    verdicts: Annotated[
        list[Path] | None, typer.Option(help="Recorded verdicts (JSONL) in place of judges; no call is made. Repeatable.")
    ] = None,
    human: Annotated[Path | None, typer.Option(help="People's scores (CSV: item, system, task, rater, score).")] = None,
    recorded: Annotated[
        list[str] | None, typer.Option(help="A --system that is recordings of people: not correlated. Repeatable.")
    ] = None,
    temperatures: Annotated[str | None, typer.Option(help="Judge the same outputs at each: 0.5,1.0,1.5.")] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", "--dry-run", help="Say what is to be made and what judging costs; make no call.")
    ] = False,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Follow style instructions, play both roles of a scene, and be judged by models that listen (StyleSet, Tables 1 and 2)."""
    from paras2s.bench.styleset.items import VERDICT_TASKS, load_following
    from paras2s.bench.styleset.report import build_report, load_human, load_rows, markdown
    from paras2s.bench.styleset.run import describe_outputs, fingerprint, judge_outputs, make_outputs, open_judges
    from paras2s.errors import ConfigError
    from paras2s.utils.io import write_json, write_text
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    asked = _asked(system, task, out, (items, contexts, limit), (turns, seed, longest_answer_s), cache_dir)
    ratings = load_human(human) if human else []
    rows, made, stopped = [], {}, None
    if verdicts:
        if judge or temperatures or estimate or set_ or asked.systems:
            raise ConfigError("--verdicts are judged already: leave --system, --judge, --set, --temperatures, --estimate out")
        if idle := [name for name in OF_OUTPUTS if _is_given(ctx, name)]:
            raise ConfigError(f"--verdicts are of outputs made already: leave --{idle[0].replace('_', '-')} out")
        rows = load_rows(verdicts)
    elif not asked.systems:
        raise ConfigError("--system: give NAME=WHAT at least once, or --verdicts")
    wanted = {name for of_task in asked.items for name in VERDICT_TASKS[of_task]}
    rows, ratings = [row for row in rows if row.task in wanted], [one for one in ratings if one.task in wanted]
    names = {row.system for row in rows} | set(asked.systems)
    if strange := sorted(set(recorded or []) - names):
        raise ConfigError(f"--recorded {strange[0]}: no system is called that; there are {', '.join(sorted(names))}")
    if not verdicts:
        overrides = {"cache_dir": str(cache_dir)} | parse_overrides(set_)
        judges = open_judges(judge or ["styleset"], list(asked.items), _temperatures(temperatures), overrides)
        if estimate:
            _show_estimate(asked, judges, console, as_json)
            return
        for spec in asked.systems.values():
            # A slip in the last one is not to be found after the hours of the first.
            fingerprint(spec)
        outputs = {name: make_outputs(asked, name, console, as_json) for name in asked.systems}
        made = {name: describe_outputs(tasks) for name, tasks in outputs.items()}
        rows, stopped = judge_outputs(judges, outputs, out / "verdicts.jsonl", console, as_json)
    report = build_report(rows, ratings, load_following(items), recorded or [], made, str(stopped) if stopped else None)
    write_json(out / "styleset.json", report)
    write_text(out / "styleset.md", markdown(report))
    if as_json:
        print_json(report)
    else:
        console.print(markdown(report), highlight=False, markup=False)
        console.print(f"{out}: outputs, verdicts.jsonl, styleset.md and styleset.json", highlight=False)
    if stopped:
        raise stopped


def _asked(
    system: list[str] | None,
    task: str | None,
    out: Path,
    files: tuple[Path | None, Path | None, int | None],
    settings: tuple[int, int, float],
    cache_dir: Path,
) -> Any:
    from paras2s.bench.styleset.items import TASKS, load_contexts, load_following
    from paras2s.bench.styleset.run import StyleSetOptions
    from paras2s.errors import ConfigError

    if task is not None and task not in TASKS:
        raise ConfigError(f"--task {task}: there are {' and '.join(TASKS)}")
    items, contexts, limit = files
    chosen: Any = {"following": load_following(items)[:limit], "role_play": load_contexts(contexts)[:limit]}
    if task is not None:
        chosen = {task: chosen[task]}
    return StyleSetOptions(parse_systems(system or []), chosen, out, cache_dir, *settings)


def _is_given(ctx: typer.Context, option: str) -> bool:
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _temperatures(text: str | None) -> list[float]:
    from paras2s.errors import ConfigError

    if text is None:
        return []
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--temperatures {text}: expected numbers with commas between, such as 0.5,1.0,1.5") from error
    if not all(0 <= one <= 2 for one in found) or len(set(found)) < len(found):
        raise ConfigError(f"--temperatures {text}: expected different numbers from 0 to 2")
    return found


def _show_estimate(asked: Any, judges: Any, console: Any, as_json: bool) -> None:
    from paras2s.bench.styleset.run import estimate

    found = estimate(asked, judges)
    if as_json:
        print_json(found)
        return
    for name, tasks in found["systems"].items():
        for task, one in tasks.items():
            console.print(
                f"{name}, {task}: {one['kept']} of {one['items']} outputs are there, at most {one['replies_at_most']} replies "
                "are to be made",
                highlight=False,
            )
    usd = found["at_most_usd"]
    price = "no price is known for a judge" if usd is None else f"at most {usd:.4f} USD"
    tokens = found["tokens"]
    console.print(
        f"judging: {found['calls']} calls, {tokens['text_in']} tokens of text and {tokens['audio_in']} of audio in, at most "
        f"{tokens['text_out']} out: {price}",
        highlight=False,
    )
