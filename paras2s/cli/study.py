"""The verbs `study new`, `annotators`, `results` and `export`: blind listening studies with people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from paras2s.cli.options import Json, parse_systems, print_json

if TYPE_CHECKING:
    from paras2s.studies.store import Annotator

study_app = typer.Typer(
    help="Blind listening studies with people; annotators work in the browser (`paras2s studio STUDY`).", no_args_is_help=True
)

KindName = Literal["pair", "single", "style_following", "role_play", "check"]


Study = Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of a study.")]


@study_app.command("new")
def new(
    source: Annotated[Path, typer.Argument(help="JSONL file of items, or a run with benched systems.")],
    out: Annotated[Path, typer.Option(help="New folder of the study.")],
    kind: Annotated[KindName, typer.Option(help="Kind of study: two answers side by side, or one answer at a time.")] = "pair",
    system: Annotated[
        list[str] | None, typer.Option("--system", help="Benched system of a run; a pair takes two. Repeatable.")
    ] = None,
    annotator: Annotated[list[str] | None, typer.Option("--annotator", help="Name of an annotator. Repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Draw N items of a run at random.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw, of each annotator's order and of the sides.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title above the form. Default: the form's title.")] = None,
    as_json: Json = False,
) -> None:
    """Make a blind study: names of clips reveal nothing, order and sides are random for each annotator.

    A row of items has id, answers ([{system, clip}], two of a pair) and optionally question (a clip), question_text,
    context, category, instruction_id and gold ({question: value}, to check annotators). Clips are relative to the file.
    """
    from paras2s.errors import ConfigError
    from paras2s.studies.forms import load_forms
    from paras2s.studies.store import make_study
    from paras2s.studies.study import as_study, read_items
    from paras2s.studio.annotation.run_items import items_of_run

    if source.is_dir():
        items, root = items_of_run(source, kind, system or [], limit, seed), source
    elif system or limit:
        raise ConfigError("--system and --limit are for a run; a file of items names its own")
    else:
        items, root = read_items(source)
    study = as_study(kind, title or load_forms()[kind].title, seed, items)
    store = make_study(out, study, root)
    added = [store.add_annotator(name) for name in annotator or []]
    if as_json:
        print_json({"study": str(out), "items": len(items), "annotators": {person.name: _link(person) for person in added}})
        return
    typer.echo(f"{out}: {len(items)} items of kind {kind}")
    _show_links(out, added)


@study_app.command("annotators")
def annotators(
    study: Study,
    add: Annotated[list[str] | None, typer.Option("--add", help="Name of an annotator. Repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Show every annotator's own link, after adding new annotators."""
    from paras2s.studies.store import StudyStore

    store = StudyStore(study)
    for name in add or []:
        store.add_annotator(name)
    everyone = store.annotators()
    print_json({person.name: _link(person) for person in everyone}) if as_json else _show_links(study, everyone)


@study_app.command("results")
def results(
    study: Study,
    verdicts: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE of `bench speakbench` over the exported labels: a judge to compare. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure agreement of people with each other and with each judge, by question, with 95 % intervals."""
    from paras2s.studies.store import StudyStore
    from paras2s.studio.annotation.report import show_results
    from paras2s.studio.annotation.results import results as compute
    from paras2s.utils.progress import open_console

    files = {name: Path(path) for name, path in parse_systems(verdicts or [], "--verdicts").items()}
    report = compute(StudyStore(study), files)
    print_json(report.to_json()) if as_json else show_results(open_console(), report)


@study_app.command("export")
def export(
    study: Study,
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    preferences: Annotated[
        bool, typer.Option("--preferences", help="Also preferences.jsonl, to train from; ASR transcribes its clips.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write people's answers to files that `bench speakbench`, `rank` and `bench paras2s --human` read.

    Always: annotations.jsonl (everything). Pairs: labels.json (majority) and labels-NAME.json in the form of TRACE's release,
    with audio in STUDY, and system_scores.csv. Single answers: ratings.csv. With --preferences, of pairs the answer that the
    majority prefers against the other, of single answers a label: good from a mean fitness of 4, bad up to 2.
    """
    from paras2s.studies.store import StudyStore
    from paras2s.studio.annotation.export import export_study

    summary = export_study(StudyStore(study), out, preferences)
    if as_json:
        print_json(summary)
        return
    for name, rows in summary["files"].items():
        typer.echo(f"{out / name}: {rows} rows")
    for name, reason in summary["left_out"].items():
        typer.echo(f"left out: {name}: {reason}")


def _link(annotator: Annotator) -> str:
    return f"/annotate/{annotator.token}"


def _show_links(study: Path, everyone: list[Annotator]) -> None:
    for person in everyone:
        typer.echo(f"{person.name}: {_link(person)}")
    typer.echo(
        f"paras2s studio {study} serves these links" if everyone else f"add people: paras2s study annotators {study} --add NAME"
    )
