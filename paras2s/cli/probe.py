"""The verb `probe`: measure biases of judges (AudioJudge, section 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import Estimate, Json, Set, Tone, exit_if_unscored, parse_overrides, print_json
from paras2s.errors import ConfigError


def probe(
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Pairs (CSV or JSONL), a run's folder with benched answers, or recorded verdicts (CSV with judge and given)."
        ),
    ],
    judge: Annotated[
        list[str] | None,
        typer.Option(
            "--judge", help="Judge: rubric, reward_model, trace, audiojudge, unisrm, or a YAML. Repeatable. Default: rubric."
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run with rubric and reward_model. Default: PAIRS, if it is a run.")] = None,
    tone: Tone = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", help="position, identical, verbosity, noise, loudness, speaker or mos_gap. Repeatable. Default: all."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--pairs", min=1, help="Sample N pairs (default: 120 for a run, otherwise all).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample, the noise and the resampling.")] = 0,
    estimate: Estimate = False,
    out: Annotated[Path | None, typer.Option(help="Folder for probe.html, probe.json and comparisons.jsonl.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Probe judges for biases: position, identical clips, length, noise, loudness, voice, and the gap in quality.

    Recorded verdicts are probed without calls, as far as the file's columns allow.
    """
    from paras2s.bench.bias.judges import ProbeOptions
    from paras2s.bench.bias.recorded import holds_recorded, run_recorded
    from paras2s.bench.bias.report import show_probe_estimates, show_probes
    from paras2s.bench.bias.run import estimate_probes, run_probes
    from paras2s.utils.progress import open_console, progress_bar

    folder = out or (pairs / "probe" if pairs.is_dir() else Path("runs/probe") / pairs.stem)
    console = open_console(to_stderr=as_json)
    if holds_recorded(pairs):
        if judge or run or tone or count or estimate or set_:
            raise ConfigError(f"{pairs}: holds recorded verdicts, so no judge is asked: leave --judge and its options out")
        recorded = run_recorded(pairs, tuple(only or ()), seed, folder)
        if as_json:
            print_json(recorded.as_json())
            return
        show_probes(console, recorded)
        console.print(f"{folder}: probe.html, probe.json and comparisons.jsonl")
        return
    names = tuple(dict.fromkeys(judge or ["rubric"]))
    options = ProbeOptions(pairs, names, run, tone, tuple(only or ()), count, seed, parse_overrides(set_))

    def bar_of(name: str) -> Any:
        return progress_bar(console, name, None, as_json)

    if estimate:
        estimates = estimate_probes(options, bar_of)
        print_json({"judges": estimates}) if as_json else show_probe_estimates(console, estimates)
        return
    report, stopped = run_probes(options, folder, bar_of)
    if as_json:
        print_json(report.as_json())
    else:
        show_probes(console, report)
        console.print(f"{folder}: probe.html, probe.json and comparisons.jsonl")
    if stopped:
        raise stopped
    exit_if_unscored(report.unscored)
