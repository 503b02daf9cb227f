"""The verbs `study new`, `study annotators`, `study results` and `study export`: blind listening studies with people."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.options import Json, parse_systems, print_json

if TYPE_CHECKING:
    from paras2s.studies.store import Annotator

study_app = typer.Typer(
    help="Blind listening studies with people; annotators work in the browser (`paras2s studio STUDY`).", no_args_is_help=True
)


class KindName(StrEnum):
    """Kinds of study; each has a form in `studies/forms.yaml`."""

    pair = "pair"
    single = "single"
    style_following = "style_following"
    role_play = "role_play"
    check = "check"


Study = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder.")]


@study_app.command("new")
def new(
    source: Annotated[Path, typer.Argument(help="A JSONL file of items, or a run with benched systems.")],
    out: Annotated[Path, typer.Option(help="The study's folder; it must be new.")],
    kind: Annotated[KindName, typer.Option(help="Two answers side by side, or one answer at a time.")] = KindName.pair,
    system: Annotated[
        list[str] | None, typer.Option("--system", help="A run's benched system; a pair takes two. Repeatable.")
    ] = None,
    annotator: Annotated[list[str] | None, typer.Option("--annotator", help="A person who takes part. Repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Draw N of a run's items at random.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw, of each annotator's order and of the sides.")] = 0,
    title: Annotated[str | None, typer.Option(help="What annotators see above the form; else the form's title.")] = None,
    as_json: Json = False,
) -> None:
    """Make a study, blind: clips are copied under names that tell nothing, order and sides are random for each annotator.

    A row of items has id, answers ([{system, clip}], two of a pair) and, where it is wanted, question (a clip), question_text,
    context, category, instruction_id and gold ({question: value}: a check of the annotators). Clips are relative to the file.
    """
    from paras2s.errors import ConfigError
    from paras2s.studies.forms import load_forms
    from paras2s.studies.store import make_study
    from paras2s.studies.study import as_study, read_items
    from paras2s.studio.annotation.run_items import items_of_run

    if source.is_dir():
        items, root = items_of_run(source, kind.value, system or [], limit, seed), source
    elif system or limit:
        raise ConfigError("--system and --limit are for a run; a file of items names its own")
    else:
        items, root = read_items(source)
    study = as_study(kind.value, title or load_forms()[kind.value].title, seed, items)
    store = make_study(out, study, root)
    added = [store.add_annotator(name) for name in annotator or []]
    if as_json:
        print_json({"study": str(out), "items": len(items), "annotators": {one.name: _link(one) for one in added}})
        return
    typer.echo(f"{out}: {len(items)} items of kind {kind.value}")
    _show_links(out, added)


@study_app.command("annotators")
def annotators(
    study: Study,
    add: Annotated[list[str] | None, typer.Option("--add", help="A person who takes part. Repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Show every annotator's own link, after adding those named."""
    from paras2s.studies.store import StudyStore

    store = StudyStore(study)
    for name in add or []:
        store.add_annotator(name)
    everyone = store.annotators()
    print_json({one.name: _link(one) for one in everyone}) if as_json else _show_links(study, everyone)


@study_app.command("results")
def results(
    study: Study,
    verdicts: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE of `bench speakbench` over the exported labels: a judge to compare. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how far people agree with each other and with each judge, by question, with 95 % intervals."""
    from paras2s.studies.store import StudyStore
    from paras2s.studio.annotation.report import show_results
    from paras2s.studio.annotation.results import results as compute
    from paras2s.utils.progress import open_console

    files = {name: Path(path) for name, path in parse_systems(verdicts or [], "--verdicts").items()}
    found = compute(StudyStore(study), files)
    print_json(found.to_json()) if as_json else show_results(open_console(), found)


@study_app.command("export")
def export(
    study: Study,
    out: Annotated[Path, typer.Option(help="Folder of the files.")],
    as_json: Json = False,
) -> None:
    """Write what people said to the files that `bench speakbench`, `rank` and `bench paras2s --human` read.

    Always annotations.jsonl (everything). Of pairs labels.json (majority) and labels-NAME.json in the form of TRACE's release,
    whose audio lies in STUDY, and system_scores.csv; of single answers ratings.csv.
    """
    from paras2s.studies.store import StudyStore
    from paras2s.studio.annotation.export import export_study

    summary = export_study(StudyStore(study), out)
    if as_json:
        print_json(summary)
        return
    for name, rows in summary["files"].items():
        typer.echo(f"{out / name}: {rows} rows")
    for name, why in summary["left_out"].items():
        typer.echo(f"left out: {name}: {why}")


def _link(one: Annotator) -> str:
    return f"/annotate/{one.token}"


def _show_links(study: Path, everyone: list[Annotator]) -> None:
    for one in everyone:
        typer.echo(f"{one.name}: {_link(one)}")
    typer.echo(
        f"paras2s studio {study} serves these links" if everyone else f"add people: paras2s study annotators {study} --add NAME"
    )
