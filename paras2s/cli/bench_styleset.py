"""The verb `bench styleset`: judge whether a model speaks in the requested style, and in a style that fits a role."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import Cache, Json, Set, exit_if_unscored, parse_overrides, parse_systems, print_json

Systems = Annotated[
    list[str] | None,
    typer.Option("--system", help="NAME=SYSTEM: a checkpoint's folder, an endpoint's YAML, or a folder of ID.wav. Repeatable."),
]
Judges = Annotated[
    list[str] | None, typer.Option("--judge", help="Audio judge: styleset, or a YAML. Repeatable. Default: styleset.")
]
# Options that shape new outputs: recorded verdicts leave them without effect.
OF_OUTPUTS = ("contexts", "limit", "turns", "seed", "longest_answer_s")


def bench_styleset(
    ctx: typer.Context,
    system: Systems = None,
    judge: Judges = None,
    task: Annotated[str | None, typer.Option(help="Task: following or role_play. Default: both.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for outputs, verdicts and tables.")] = Path("runs/styleset"),
    items: Annotated[Path | None, typer.Option(help="Sentences and styles of your own (YAML).")] = None,
    contexts: Annotated[Path | None, typer.Option(help="Role-plays of your own (YAML).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N items of each task.")] = None,
    turns: Annotated[int, typer.Option(min=3, help="Turns per role-play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed of checkpoints and endpoints.")] = 42,
    longest_answer_s: Annotated[float, typer.Option(min=0.5, help="Longest turn of a checkpoint, in seconds.")] = 18.0,
    verdicts: Annotated[
        list[Path] | None, typer.Option(help="Recorded verdicts (JSONL) in place of judges; no call is made. Repeatable.")
    ] = None,
    human: Annotated[Path | None, typer.Option(help="People's scores (CSV: item, system, task, rater, score).")] = None,
    recorded: Annotated[
        list[str] | None, typer.Option(help="A --system of people's recordings, left out of correlations. Repeatable.")
    ] = None,
    temperatures: Annotated[
        str | None, typer.Option(help="Temperatures at which the same outputs are judged: 0.5,1.0,1.5.")
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", "--dry-run", help="Print missing outputs and the highest cost of replies and judging; call nothing."
        ),
    ] = False,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Judge how systems follow style instructions and play both roles of a scene (StyleSet, Tables 1 and 2)."""
    from paras2s.bench.styleset.report import markdown
    from paras2s.bench.styleset.run import StyleSetOptions, estimate_styleset, run_styleset
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    options = StyleSetOptions(
        systems=parse_systems(system or []),
        out=out,
        cache_dir=cache_dir,
        judges=judge or [],
        task=task,
        items=items,
        contexts=contexts,
        limit=limit,
        turns=turns,
        seed=seed,
        longest_answer_s=longest_answer_s,
        verdicts=verdicts or [],
        human=human,
        recorded=recorded or [],
        temperatures=temperatures,
        overrides=parse_overrides(set_),
        made_given=[name for name in OF_OUTPUTS if _is_given(ctx, name)],
    )
    if estimate:
        _show_estimate(estimate_styleset(options), console, as_json)
        return
    result = run_styleset(options, console, as_json)
    if as_json:
        print_json(result.report)
    else:
        console.print(markdown(result.report))
        console.print(f"{out}: outputs, verdicts.jsonl, styleset.html, styleset.md and styleset.json")
    if result.stopped:
        raise result.stopped
    exit_if_unscored(result.unscored)


def _is_given(ctx: typer.Context, option: str) -> bool:
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _show_estimate(cost: dict[str, Any], console: Any, as_json: bool) -> None:
    if as_json:
        print_json(cost)
        return
    for name, tasks in cost["systems"].items():
        for task, counts in tasks.items():
            console.print(
                f"{name}, {task}: {counts['kept']} of {counts['items']} outputs exist, at most {counts['replies_at_most']} "
                "replies to make"
            )
    replies, judging = cost["replies"], cost["judging"]
    tokens = judging["tokens"]
    console.print(f"replies: {replies['calls']} calls of endpoints: {_price(replies['at_most_usd'])}")
    console.print(
        f"judging: {judging['calls']} calls, {tokens['text_in']} tokens of text and {tokens['audio_in']} of audio in, at most "
        f"{tokens['text_out']} out: {_price(judging['at_most_usd'])}"
    )
    console.print(f"in all: {cost['calls']} calls: {_price(cost['at_most_usd'])}")


def _price(usd: float | None) -> str:
    return "no price is known" if usd is None else f"at most {usd:.4f} USD"
