"""`paras2s check-policy`: run the contract of every policy on a checkpoint or on your own class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.policy.base import Policy


def check_policy(
    name: Annotated[str, typer.Argument(help="Policy: a checkpoint's folder, kimi ..., an entry point, or module:Class.")],
    weights: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoint. Default: module:function makes a policy itself.")
    ] = None,
    clip: Annotated[list[Path] | None, typer.Option(help="Spoken question to test with. Repeatable. Default: tones.")] = None,
    device: Annotated[str, typer.Option(help="Device: cpu or cuda. auto: a GPU if available.")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="Precision: float32, float64 or bfloat16. Default: as stored.")] = None,
    decoder: Annotated[
        str | None, typer.Option(help="module:function that loads a vocoder from a folder, for vocoders that are no package.")
    ] = None,
    save_to: Annotated[
        Path | None, typer.Option(help="Folder to save the policy to and load it again from; as large as the checkpoint.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Outputs of the makers' code (from tools/dump_official.py), to compare each part with.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Recorded answers (JSONL: question, answer, text), to check that the weights are trained."),
    ] = None,
    steps: Annotated[int, typer.Option(min=3, help="Longest sampled answer, in steps.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check that a policy samples what it scores, batches without mixing, learns where it should, and speaks.

    The checks hold for any weights. --against and --pairs check that the weights are read as their makers read them.
    """
    from dataclasses import asdict, replace
    from itertools import chain

    from rich.markup import escape

    from paras2s.audio.clip import read_clip
    from paras2s.cli.options import print_json
    from paras2s.policy.contract import check_policy as run_checks
    from paras2s.policy.official import check_against, read_dump
    from paras2s.policy.subject import subject_of
    from paras2s.policy.trained_checks import check_trained, read_pairs
    from paras2s.policy.types import Turn
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    # Read first: a faulty file is reported before minutes are spent on weights.
    dump = None if against is None else read_dump(against)
    recorded = None if pairs is None else read_pairs(pairs)
    if weights is None and not _walk(name, console, as_json):
        raise typer.Exit(1)
    policy = _open(name, weights, device, dtype, decoder)
    dialogues = [[Turn("user", clip=read_clip(path))] for path in clip or ()]
    subject = replace(subject_of(policy, dialogues or None), steps=steps)
    findings = []
    official = () if dump is None else check_against(policy, dump)
    trained = () if recorded is None else check_trained(policy, recorded)
    for finding in chain(run_checks(subject, save_to), official, trained):
        findings.append(finding)
        mark = {True: "[green]ok[/]", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}[finding.ok]
        if not as_json:
            console.print(f"{mark} {escape(f'{finding.name}: {finding.detail}')}", markup=True)
    failed = sum(finding.ok is False for finding in findings)
    if not as_json and (first := next((finding for finding in findings if finding.ok is False), None)) is not None:
        console.print(f"{failed} of {len(findings)} failed; first failure: {first.name}")
    if as_json:
        print_json({"policy": name, "failed": failed, "checks": [asdict(finding) for finding in findings]})
    if failed:
        raise typer.Exit(1)


def new_policy(
    name: Annotated[str, typer.Argument(help="Name of the module: my_model writes my_model.py and test_my_model.py.")],
    like: Annotated[str, typer.Option(help="Layout of an answer: dual_stream, interleaved or frames.")] = "dual_stream",
    folder: Annotated[Path, typer.Option(help="Folder for both files.")] = Path(),
) -> None:
    """Write a policy to fill in, in which every method says what it must return, and its test."""
    from paras2s.policy.first_steps import class_name, write_policy

    module, test = write_policy(name, like, folder)
    typer.echo(
        f"{module} and {test}; the next method to write: PYTHONPATH={folder} paras2s check-policy {name}:{class_name(name)}"
    )


def _walk(name: str, console: Console, as_json: bool) -> bool:
    """Call the methods of a policy's class one after another; print the next to write, and return whether all are written."""
    from dataclasses import asdict

    from rich.markup import escape

    from paras2s.cli.options import print_json
    from paras2s.errors import PolicyError
    from paras2s.policy.base import Policy
    from paras2s.policy.first_steps import METHODS, walk_methods
    from paras2s.utils.plugins import import_part, is_reference

    policy = import_part(name, "check-policy", PolicyError) if is_reference(name) else None
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        return True
    findings = list(walk_methods(policy))
    if findings[-1].ok:
        return True
    if as_json:
        print_json({"policy": name, "failed": 1, "checks": [asdict(finding) for finding in findings]})
        return False
    for finding in findings:
        mark = "[green]ok[/]" if finding.ok else "[yellow]next[/]"
        console.print(f"{mark} {escape(f'{finding.name}: {finding.detail}')}", markup=True)
    console.print(f"{len(findings) - 1} of {len(METHODS)} parts are written; then the contract is checked")
    return False


def _open(name: str, weights: Path | None, device: str, dtype: str | None, decoder: str | None) -> Policy:
    """Load the policy from its checkpoint, or call the function that makes it."""
    import torch

    from paras2s.errors import PolicyError, one_line, raised_at
    from paras2s.policy.base import Policy
    from paras2s.policy.registry import is_checkpoint, load_policy
    from paras2s.run import kind_in_run
    from paras2s.utils.plugins import import_part

    kind: str | None = name
    if weights is None and is_checkpoint(Path(name)):
        weights, kind = Path(name), kind_in_run(Path(name))
    if weights is not None:
        return load_policy(weights, kind, device, None if dtype is None else getattr(torch, dtype), decoder)
    if Path(name).is_dir():
        checkpoints = [str(path.parent) for path in sorted(Path(name).glob("*/policy.json"))]
        raise PolicyError(f"{name}: holds no policy; give {' or '.join(checkpoints) or 'RUN/aligned or RUN/sft'}")
    if Path(name).suffix == ".py":
        command = f"PYTHONPATH={Path(name).parent} paras2s check-policy {Path(name).stem}:Class"
        raise PolicyError(f"{name}: is a file; name the class in it: {command}")
    if ":" not in name:
        raise PolicyError(f"{name}: give --weights, the folder of its checkpoint, or module:function that makes a tiny one")
    make = import_part(name, "check-policy", PolicyError)
    try:
        policy = make()
    except TypeError as error:
        raise PolicyError(f"{name}: cannot be made without arguments ({error}); give a function that makes one") from error
    except Exception as error:  # The user's own code may raise whatever it likes.
        raise PolicyError(f"{name}: raised {type(error).__name__} ({one_line(error)}){raised_at(error)}") from error
    if not isinstance(policy, Policy):
        raise PolicyError(f"{name} gives a {type(policy).__name__}, not a paras2s.policy.base.Policy")
    return policy
