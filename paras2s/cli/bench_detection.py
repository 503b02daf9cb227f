"""The verb `bench detect`: suites of one characteristic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from paras2s.cli.options import Estimate, Json, Limit, RetryUnscored, Set, exit_if_unscored, parse_overrides, print_json

DetectName = Literal["pronunciation", "speaking_rate", "speaker_identity", "somos", "tmhintq", "thaimos"]


def bench_detect(
    suite: Annotated[DetectName, typer.Argument(help="Suite: the characteristic to detect.")],
    manifest: Annotated[
        Path, typer.Argument(help="Pairs (JSON or CSV, as the authors prepare them), or a released table of ratings.")
    ],
    audio: Annotated[Path | None, typer.Option(help="Folder with the clips.")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="An audio judge: detection, or a YAML.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Specialised judge: dnsmos, phonemes, syllables or speaker.")] = None,
    verdicts: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded verdicts (JSONL, or the authors' CSV); the first file is the baseline. Repeatable."),
    ] = None,
    pointwise: Annotated[bool, typer.Option("--pointwise", help="Score each clip alone; the higher score wins.")] = False,
    limit: Limit = None,
    retry_unscored: RetryUnscored = False,
    seed: Annotated[int | None, typer.Option(help="Seed for drawing pairs from a table of ratings. Default: 0.")] = None,
    estimate: Estimate = False,
    out: Annotated[Path | None, typer.Option(help="File for verdicts. Default: runs/detect/SUITE/JUDGE-VERSION.jsonl.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score how often a judge detects which clip is faster or better, or that two match (AudioJudge, Tables 1, 2, 9 and 10).

    The others are tested against the first of --verdicts, or else against the judge.
    """
    from paras2s.bench.detection.report import show_detection
    from paras2s.bench.detection.run import DetectionOptions, estimate_detection, run_detection
    from paras2s.utils.progress import open_console

    console, overrides = open_console(to_stderr=as_json), parse_overrides(set_)
    options = DetectionOptions(
        suite, manifest, audio, judge, baseline, verdicts or [], pointwise, limit, seed, out, overrides, retry_unscored
    )
    if estimate:
        cost = estimate_detection(options, console, as_json)
        print_json(cost.to_json()) if as_json else cost.show(console)
        return
    result = run_detection(options, console, as_json)
    if result.note:
        console.print(result.note)
    print_json(result.report) if as_json else show_detection(console, result.report)
    if result.stopped:
        raise result.stopped
    exit_if_unscored(result.unscored)


def bench_detect_grid(
    grid: Annotated[
        Path, typer.Argument(help="YAML: suites with pairs and audio; setups with judge and settings, or verdicts.")
    ],
    estimate: Estimate = False,
    out: Annotated[Path, typer.Option(help="Folder for grid.json and the verdicts of every judged cell.")] = Path(
        "runs/detect/grid"
    ),
    as_json: Json = False,
) -> None:
    """Score every setup of a judge on every suite, and the mean over suites (AudioJudge, Table 1).

    The first setup is the baseline for tests against the others.
    """
    from paras2s.bench.detection.grid import estimate_grid, run_grid, show_grid
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    if estimate:
        costs = estimate_grid(grid, console, as_json)
        if as_json:
            print_json({name: {**cost.to_json(), "model": cost.model} for name, cost in costs.items()})
            return
        for name, cost in costs.items():
            console.print(f"{name}:")
            cost.show(console)
        return
    report = run_grid(grid, out, console, as_json)
    print_json(report.to_json()) if as_json else show_grid(console, report)
    if report.stopped:
        raise report.stopped


BuildName = Literal["speaking_rate", "speaker_identity"]


def bench_detect_pairs(
    suite: Annotated[BuildName, typer.Argument(help="Suite: the characteristic to detect.")],
    corpus: Annotated[
        Path, typer.Argument(help="Folder in LibriTTS-R's layout: SPEAKER/CHAPTER/NAME.wav, NAME.normalized.txt.")
    ],
    out: Annotated[Path, typer.Option(help="File for the pairs (JSON), as bench detect reads them.")],
    count: Annotated[int, typer.Option("--pairs", min=1, help="Most pairs to make; the paper has 200.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed for drawing utterances.")] = 0,
    voice: Annotated[
        str | None, typer.Option(help="espeak-ng voice for the phonemes of speaking_rate. Default: en-us.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the pairs of a suite from a corpus (AudioJudge, appendix A.1); give the corpus to bench detect as --audio."""
    from paras2s.bench.detection.build import build
    from paras2s.utils.progress import open_console

    pairs = build(suite, corpus, count, seed, voice, out)
    labels = {label: sum(pair.label == label for pair in pairs) for label in sorted({pair.label for pair in pairs})}
    if as_json:
        print_json({"pairs": len(pairs), "labels": labels, "out": str(out)})
        return
    summary = ", ".join(f"{count} times {label}" for label, count in labels.items())
    open_console().print(f"{out}: {len(pairs)} pairs ({summary})")
