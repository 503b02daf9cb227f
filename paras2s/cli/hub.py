"""`paras2s push` and `paras2s pull`: folders to and from the Hugging Face Hub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json


def push(
    folder: Annotated[
        Path,
        typer.Argument(help="An exported policy, RUN/reward, RUN/data, RUN/rollouts, a curation or a folder of preferences."),
    ],
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository; it is made if it does not exist.")],
    public: Annotated[bool, typer.Option("--public", help="Let everyone read a new repository. Default: private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and their sizes; call nothing.")] = False,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Send these files too, which are left out otherwise (*.npz ...). Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Send a policy, reward model, dataset, rollouts or preferences to the Hugging Face Hub, privately, with a card."""
    from paras2s.pipeline.hub import address, plan_upload
    from paras2s.pipeline.hub import push as send

    upload = plan_upload(folder, include or ())
    name = address(repo, upload.kind)
    if not as_json:
        typer.echo(f"{folder}: a {upload.kind.name}, to {name} ({'public' if public else 'private'})")
        show_files({file.name: file.size for file in upload.files})
        if not upload.has_card:
            typer.echo("  README.md: a card, if the repository has none")
        if upload.left_out:
            typer.echo(f"  left out: {', '.join(grouped(dict.fromkeys(upload.left_out, 0)))}")
    if dry_run:
        if as_json:
            files = {file.name: file.size for file in upload.files}
            print_json({"repo": name, "kind": upload.kind.name, "files": files, "left_out": upload.left_out})
        return
    sent = send(upload, repo, public)
    if as_json:
        print_json({**asdict(sent), "kind": upload.kind.name})
        return
    typer.echo(f"{sent.repo} at {sent.commit}, {'private' if sent.private else 'public'}; to get it:")
    typer.echo(f"  paras2s pull {sent.repo} --revision {sent.commit}")


def pull(
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="A model, or a dataset as datasets/USER/NAME.")],
    out: Annotated[Path | None, typer.Argument(help="Folder. Default: NAME.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit. Default: main.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and their sizes; fetch nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch a policy, reward model, dataset, rollouts or preferences from the Hugging Face Hub; nothing of it is run."""
    from paras2s.pipeline.hub import plan_download
    from paras2s.pipeline.hub import pull as fetch

    out = out or Path(repo.split("/")[-1])
    download = plan_download(repo, out, revision)
    if not as_json:
        typer.echo(f"{repo} at {download.commit}, to {out}")
        show_files(download.files)
    if dry_run:
        if as_json:
            print_json(asdict(download))
        return
    kind = fetch(download, out)
    if as_json:
        print_json({**asdict(download), "folder": str(out), "kind": kind.name if kind else None})
    elif kind is None:
        typer.echo(f"{out}: none of the kinds that `paras2s push` sends")
    else:
        typer.echo(f"{out}: a {kind.name}; next: {kind.next_command.format(out=out)}")


def show_files(files: Mapping[str, int]) -> None:
    """Print files with their sizes, and the sum."""
    from paras2s.utils.tables import size_text

    for name, sizes in grouped(files).items():
        typer.echo(f"  {name}: {f'{len(sizes)} files, ' if '*' in name else ''}{size_text(sum(sizes))}")
    typer.echo(f"  {len(files)} files, {size_text(sum(files.values()))}")


def grouped(files: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the sizes of files by name, those below a folder with the same ending under one name."""
    groups: dict[str, list[int]] = defaultdict(list)
    for name, size in files.items():
        path = PurePosixPath(name)
        groups[name if len(path.parts) == 1 else f"{path.parent}/*{path.suffix}"].append(size)
    return groups
