"""The verbs `unisrm data`, `import`, `verify`, `train`, `run` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from paras2s.cli.options import Estimate, Json, Set, parse_overrides, parse_seeds, print_json

unisrm_app = typer.Typer(
    help="UniSRM, a reward model that reasons: data, training in two stages, export.", no_args_is_help=True
)

Size = Literal["ci", "small", "medium", "full"]
PublishedSet = Literal[
    "qualispeech", "speechjudge", "bvcc", "somos-clean", "somos-full", "libritts-r", "esd-en", "esd-zh", "dailytalk"
]
Stage = Literal["sft", "grpo"]


@unisrm_app.command("data")
def unisrm_data(
    out: Annotated[Path, typer.Argument(help="Folder for items.jsonl and clips.")] = Path("runs/unisrm-data"),
    size: Annotated[Size, typer.Option(help="Size of the data: 16, 128, 1,600 or 3,200 pairs a task for SFT.")] = "small",
    seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same items.")] = 0,
    as_json: Json = False,
) -> None:
    """Make the embedded data of all four tasks on this machine, and measure its shortcuts."""
    from dataclasses import asdict

    from paras2s.unisrm.data_gen.embedded import build_embedded
    from paras2s.unisrm.data_gen.shortcuts import measure_shortcuts
    from paras2s.unisrm.reward.items import read_items
    from paras2s.utils.progress import open_console, progress_bar

    console = open_console(to_stderr=as_json)
    with progress_bar(console, "tasks by splits", None, quiet=as_json) as bar:
        report = build_embedded(out, size, seed, on_progress=bar.at)
    shortcuts = measure_shortcuts(out, read_items(out))
    items = {f"{task} {split}": count for (task, split), count in report.items.items()}
    dropped = {f"{task}: {why}": count for (task, why), count in report.dropped.items()}
    if as_json:
        print_json({"items": items, "dropped": dropped, "shortcuts": [asdict(shortcut) for shortcut in shortcuts]})
        return
    console.print(f"{out}: {sum(items.values())} items; dropped: {dropped or 'none'}")
    for shortcut in shortcuts:
        value = "none" if shortcut.value is None else f"{shortcut.value:.3f} +- {shortcut.error or 0:.3f}"
        console.print(f"{shortcut.task} by {shortcut.name}: {value} (n = {shortcut.n})")


@unisrm_app.command("import")
def unisrm_import(
    layout: Annotated[PublishedSet, typer.Argument(help="The data set, in the layout of its release.")],
    source: Annotated[Path, typer.Argument(help="Folder of the release, unpacked.")],
    out: Annotated[Path, typer.Argument(help="Folder for items.jsonl and clips; items of other data sets in it are kept.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="Config with sizes, voices, writer and judges: paper, local, or a YAML. Required for corpora without labels."
        ),
    ] = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and count everything; call and write nothing.")] = False,
    estimate: Estimate = False,
    as_json: Json = False,
) -> None:
    """Import a published data set into a data folder, with labels by people, or by construction and a judge.

    With labels by people: T1 of SpeechJudge, T2 of QualiSpeech, BVCC and SOMOS. From LibriTTS-R (T1), ESD in English or
    Chinese (T3) and DailyTalk (T4) pairs are made, spoken and judged.
    """
    from paras2s.unisrm.pipeline.data import estimate_import, import_corpus, report_lines
    from paras2s.utils.progress import open_console, progress_bar

    console, overrides = open_console(to_stderr=as_json), parse_overrides(set_)
    if estimate:
        report = estimate_import(layout, source, out, config, overrides)
    else:
        with progress_bar(console, layout, None, quiet=as_json) as bar:
            report = import_corpus(layout, source, out, config, overrides, dry_run, bar.at)
    if as_json:
        print_json(report)
        return
    for line in report_lines(report, "nothing is called or written" if estimate or dry_run else str(out)):
        console.print(line)


@unisrm_app.command("verify")
def unisrm_verify(
    data: Annotated[Path, typer.Argument(help="Folder with items.jsonl.")],
    ratings: Annotated[
        Path, typer.Argument(help="CSV of people's choices: item, rater, choice (A, B, invalid), seconds, left.")
    ],
    gold: Annotated[Path | None, typer.Option(help="CSV of gold items with the right choices: item, choice.")] = None,
    config: Annotated[str, typer.Option(help="Config whose `verification` applies: paper, local, or a YAML.")] = "paper",
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Keep the pairs whose label most of three people confirm; move the others to rejected.jsonl (appendix G)."""
    from paras2s.unisrm.pipeline.data import report_lines, verify_folder
    from paras2s.utils.progress import open_console

    report = verify_folder(data, ratings, gold, config, parse_overrides(set_), dry_run)
    if as_json:
        print_json(report)
        return
    for line in report_lines(report, "nothing is written" if dry_run else str(data)):
        open_console().print(line)


@unisrm_app.command("train")
def unisrm_train(
    stage: Annotated[Stage, typer.Argument(help="Stage: sft, or grpo from the model of sft.")],
    config: Annotated[str, typer.Argument(help="Config: paper, embedded, without_rcr ..., or a YAML.")],
    data: Annotated[Path, typer.Option(help="Folder with items.jsonl and its clips.")] = Path("runs/unisrm-data"),
    out: Annotated[Path, typer.Option(help="Folder of both stages; models are saved in its sft and grpo.")] = Path(
        "runs/unisrm"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of items, of sampling, and of random weights.")] = 0,
    set_: Set = None,
) -> None:
    """Train one stage: SFT on written replies, or GRPO on rewards for format, decision and dimensions."""
    from paras2s.unisrm.pipeline.train import train_stage
    from paras2s.utils.progress import open_console

    console = open_console()
    folder = train_stage(stage, config, parse_overrides(set_), data, out, seed, console)
    console.print(f"{folder}: the model, and metrics.jsonl")


@unisrm_app.command("run")
def unisrm_run(
    config: Annotated[str, typer.Argument(help="Config: embedded, embedded_short, embedded_ci, or a YAML.")] = "embedded",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by blanks.")] = "0",
    folder: Annotated[Path, typer.Option(help="Folder for data and seeds; after a stop the same command continues.")] = Path(
        "runs/unisrm-results"
    ),
    docs: Annotated[
        Path | None,
        typer.Option(help="Folder for unisrm.json and experiments/unisrm.md. Default: unisrm.json in --folder only."),
    ] = None,
    run: Annotated[bool, typer.Option(help="Run unfinished seeds first; --no-run: write from finished ones.")] = True,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Make the data, train SFT and both kinds of GRPO, bench the three models, and write the tables of all seeds."""
    import torch

    from paras2s.configs.schema.unisrm import load_unisrm_config
    from paras2s.experiments.unisrm_results import collect, run_seeds, tables, write_results
    from paras2s.utils.process_pool import cores
    from paras2s.utils.progress import open_console

    settings, seed_list = load_unisrm_config(config, parse_overrides(set_)), parse_seeds(seeds)
    console = open_console(to_stderr=as_json)
    if run:
        # On one GPU the two models of GRPO would compete for memory.
        run_seeds(settings, seed_list, folder, console, as_json, processes=1 if torch.cuda.is_available() else cores())
    command = " ".join(["paras2s unisrm run", config, f"--seeds '{seeds}'", *(f"--set {override}" for override in set_ or [])])
    collected = collect(settings, command, seed_list, folder)
    written = write_results(collected, docs or folder)
    if as_json:
        print_json(collected)
    else:
        typer.echo("\n".join([tables(collected), *map(str, written)]))


@unisrm_app.command("export")
def unisrm_export(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a trained model: all weights, or adapters.")] = Path(
        "runs/unisrm/grpo"
    ),
    out: Annotated[Path | None, typer.Argument(help="New folder. Default: `served` beside the checkpoint.")] = None,
    as_json: Json = False,
) -> None:
    """Write a trained model for a vLLM server, adapters merged in, with the config of a judge that calls it."""
    from paras2s.unisrm.reward.export import export_served

    served = export_served(checkpoint, out)
    if as_json:
        print_json({"folder": str(served.folder), "name": served.name, "command": served.command, "judge": str(served.judge)})
        return
    typer.echo(f"{served.folder}: the model as {served.name}\nserve it: {served.command}\njudge by it: --judge {served.judge}")
