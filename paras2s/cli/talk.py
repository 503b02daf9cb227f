"""`paras2s talk`: ask two checkpoints in the browser, and vote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Tone
from paras2s.cli.studio import DEFAULT_PORT, check_installed
from paras2s.errors import ConfigError


def talk(
    first: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run (its sft and aligned), or a checkpoint.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="CHECKPOINT2", help="The other side. One checkpoint alone answers twice.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option("--judge", help="Judge of the answers. Repeatable. Default: the run's rubric and reward model."),
    ] = None,
    tone: Tone = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for votes: preferences.jsonl and clips. Default: RUN/talk.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the address. 0: any free port.")] = DEFAULT_PORT,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address; do not open a browser.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page with recorded answers as one .html file; no server.")
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(
            "--question", help="Export: ask this (audio file, or words). Repeatable. Default: the run's test questions."
        ),
    ] = None,
    style: Annotated[str | None, typer.Option(help="Export: the style of every --question: happy, sad, child ...")] = None,
) -> None:
    """Ask two checkpoints by microphone, file or typing: both answers side by side, with verdicts; votes are preferences.

    Serves this machine alone (127.0.0.1). Ctrl-C ends it. Votes are what `align --preferences` reads.
    """
    if export is None and (question or style):
        raise ConfigError("--question and --style: belong to --export FILE; on the page you ask yourself")
    if style and not question:
        raise ConfigError("--style: belongs to --question; the test questions have styles of their own")
    if export is not None and export.suffix != ".html":
        raise ConfigError(f"--export {export}: is one page; give a name that ends in .html")
    check_installed()
    from paras2s.studio.talk.page import export_talk, make_talking_app, question_of
    from paras2s.studio.talk.setup import open_conversation
    from paras2s.utils.progress import open_console, progress_bar

    conversation, world, folder = open_conversation(first, second, judge or (), tone, out)
    if export is None:
        from paras2s.studio.serve import serve

        serve(make_talking_app(folder, conversation, world), port, not no_open, typer.echo, "talk")
        return
    questions = [question_of(given, style) for given in question or ()] or list(world.recorded())
    if not questions:
        raise ConfigError(f"--export: {first} has no labelled test questions; give --question FILE or TEXT")
    with progress_bar(open_console(to_stderr=True), "questions answered", len(questions)) as bar:
        export_talk(folder, conversation, world, questions, export, bar.at)
    many = "question" if len(questions) == 1 else "questions"
    typer.echo(f"{export}: {len(questions)} {many}, {export.stat().st_size / 1e6:.1f} MB")
