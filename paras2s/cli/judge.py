"""The verbs `blueprint`, `judge pair`, `judge answer` and `judge clip`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import (
    Dump,
    Estimate,
    Json,
    Set,
    Task,
    Tone,
    exit_if_unscored,
    parse_overrides,
    parse_pairs,
    print_json,
    print_json_members,
)
from paras2s.errors import AudioError

judge_app = typer.Typer(help="Judge two answers, or one.", no_args_is_help=True)

Judge = Annotated[
    str,
    typer.Option(
        "--judge",
        help="Judge: trace, trace_paper, transcript, audio, unisrm or a YAML; for answers also rubric, audiojudge, a run.",
    ),
]
Style = Annotated[str | None, typer.Option(help="Style of the question: happy, sad, sarcastic, child, female ...")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", help="Input of the task, KEY=VALUE: text=..., prompt_speech=FILE. Repeatable.")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the studio: adds the verdict to its verdicts.jsonl, with copies of the clips.")
]
Both = Annotated[bool, typer.Option("--both-orders", help="Ask twice, with the answers exchanged, for one symmetric verdict.")]


def blueprint(
    clips: Annotated[list[Path], typer.Argument(help="Audio files of any format, up to 10 minutes each.")],
    extractors: Annotated[str | None, typer.Option(help="Comma-separated extractors. Default: those of --judge.")] = None,
    judge: Judge = "trace",
    tone: Tone = None,
    cache: Annotated[bool, typer.Option(help="Cache the measurements, by content and extractor version.")] = True,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of one thread each. Default: one a core; none for a few files.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Spread the files over Ray.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster. Default: start Ray on this machine.")
    ] = None,
    set_: Set = None,
) -> None:
    """Measure clips: words, pitch, loudness, rates, quality and more. Prints JSON, clip by clip."""
    from paras2s.bench.blueprints import measure_files
    from paras2s.configs.schema.endpoints import ExtractorConfig
    from paras2s.configs.schema.judges import JudgingConfig, find_judge
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.types import Blueprint, to_json
    from paras2s.utils.progress import open_console, progress_bar

    config = find_judge(judge).config(JudgingConfig, parse_overrides(set_))
    specs = [ExtractorConfig(name=name.strip()) for name in extractors.split(",")] if extractors else config.extractors
    classifier = ToneClassifier.load(tone) if tone else None
    path = config.cache_dir / "judging.sqlite" if cache else None
    files = list(dict.fromkeys(clips))
    measured = measure_files(files, specs, classifier, path, workers, ray_address, ray or ray_address is not None)
    errors: list[str] = []

    def members() -> Iterator[tuple[str, Any]]:
        unread_members: list[tuple[str, Any]] = []
        with progress_bar(open_console(to_stderr=True), "clips measured", len(files), quiet=len(files) == 1) as bar:
            for number, (file, result) in enumerate(measured, 1):
                if isinstance(result, Blueprint):
                    # Unreadable files are printed only beside readable ones.
                    yield from unread_members
                    unread_members.clear()
                    yield str(file), to_json(result)
                else:
                    errors.append(result)
                    unread_members.append((str(file), {"error": result}))
                bar.at(number, len(files))
            if len(errors) < len(files):
                yield from unread_members

    print_json_members(members())
    if errors:
        raise AudioError(
            errors[0] if len(files) == 1 else f"{len(errors)} of {len(files)} clips could not be read: {errors[0]}"
        )


@judge_app.command("pair")
def judge_pair(
    first: Annotated[Path, typer.Argument(help="The first spoken answer.")],
    second: Annotated[Path, typer.Argument(help="The second spoken answer.")],
    question: Annotated[
        str | None, typer.Option("--question", "--instruction", help="The question: an audio file, or its text.")
    ] = None,
    style: Style = None,
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="Judge, as for `judge answer`. Default: any that can decide here; else differences."),
    ] = None,
    task: Task = None,
    inputs: Inputs = None,
    both_orders: Both = False,
    dump: Dump = None,
    estimate: Estimate = False,
    tone: Tone = None,
    out: Out = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Compare two recordings with what is installed: their differences as measured, or a judge's decision."""
    from paras2s.bench.judge_clips import JudgeOptions, measure_pair
    from paras2s.bench.judge_clips import judge_pair as run
    from paras2s.bench.pair_judges import choose_judge

    given = parse_pairs(inputs, "--input")
    overrides = parse_overrides(set_)
    # Options of a judge that is called mean such a judge.
    called = overrides or given or task or both_orders or dump or estimate
    name = judge or ("trace" if called else choose_judge(question, style))
    clips = {"question": question, "answer 1": first, "answer 2": second}
    if name is None:
        _print(lambda _: measure_pair(first, second, question, style, tone), as_json, out, "pair", clips)
        return
    options = JudgeOptions(name, overrides, tone, task, both_orders, estimate, dump, given)
    _print(lambda on_progress: run(options, first, second, question, style, on_progress), as_json, out, "pair", clips)


@judge_app.command("answer")
def judge_answer(
    question: Annotated[str, typer.Argument(help="The question: an audio file, or its text.")],
    answer: Annotated[Path, typer.Argument(help="The spoken answer.")],
    judge: Judge = "trace",
    style: Style = None,
    estimate: Estimate = False,
    tone: Tone = None,
    rubric: Annotated[Path | None, typer.Option(help="Your own rubric (YAML), for --judge rubric.")] = None,
    out: Out = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score one spoken answer from 1 to 5 by how well it fits the question and how it was said (ParaS2S)."""
    from paras2s.bench.judge_clips import JudgeOptions
    from paras2s.bench.judge_clips import judge_answer as run

    name = str(rubric) if rubric is not None and judge == "rubric" else judge
    options = JudgeOptions(name, parse_overrides(set_), tone, estimate=estimate)
    clips = {"question": question, "answer": answer}
    _print(lambda on_progress: run(options, question, answer, style, on_progress), as_json, out, "answer", clips)


@judge_app.command("clip")
def judge_clip(
    clip: Annotated[Path, typer.Argument(help="The recording to score.")],
    task: Task = None,
    inputs: Inputs = None,
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="Audio judge or UniSRM (name or YAML). Default: styleset for styles, audiojudge for mos."),
    ] = None,
    dump: Dump = None,
    estimate: Estimate = False,
    out: Out = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score one recording by an audio model: its quality (mos, UniSRM's T2), how it follows a style, a role-play."""
    from paras2s.bench.judge_clips import JudgeOptions
    from paras2s.bench.judge_clips import judge_clip as run
    from paras2s.reward.judges.audio_judge.tasks import find_task

    name = judge or ("styleset" if find_task(task or "mos").inputs else "audiojudge")
    given = parse_pairs(inputs, "--input")
    options = JudgeOptions(name, parse_overrides(set_), None, task, estimate=estimate, dump=dump, inputs=given)
    _print(lambda on_progress: run(options, clip, on_progress), as_json, out, "clip", {"answer": clip})


def _print(judge: Callable[[Any], Any], as_json: bool, out: Path | None, kind: str, clips: dict[str, Any]) -> None:
    from paras2s.bench.judge_clips import keep_outcome
    from paras2s.utils.progress import open_console, progress_bar

    errors = open_console(to_stderr=True)
    # A thinking judge, or an endpoint with many retries, takes minutes.
    with progress_bar(errors, "asking the judge", None, quiet=not errors.is_terminal) as bar:
        outcome = judge(bar.at)
    if as_json:
        print_json(outcome.as_json)
    else:
        outcome.show(open_console())
    if out is not None and (path := keep_outcome(out, kind, outcome, clips)) is not None:
        errors.print(f"{path}: to see it, run paras2s studio {out}")
    exit_if_unscored(not outcome.scored)
