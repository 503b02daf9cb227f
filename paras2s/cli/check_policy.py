"""`paras2s check-policy`: the contract that every policy must keep, run on a checkpoint or on one's own class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from paras2s.policy.base import Policy


def check_policy(
    name: Annotated[str, typer.Argument(help="kimi, glm4_voice ..., an entry point's name, or module:Class.")],
    weights: Annotated[
        Path | None, typer.Option(help="Its checkpoint. Without: module:function makes a policy itself.")
    ] = None,
    clip: Annotated[list[Path] | None, typer.Option(help="A spoken question to try it on. Repeatable; else tones.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda; auto: a GPU where there is one.")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32, float64, bfloat16; else as stored.")] = None,
    decoder: Annotated[
        str | None, typer.Option(help="module:function of a folder, for models whose vocoder is no package.")
    ] = None,
    save_to: Annotated[
        Path | None, typer.Option(help="Also save it there and load it again: as large as the checkpoint.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="What the makers' code gave, by tools/dump_official.py: compare each part with it.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Recorded answers, a JSON Lines file of question, answer (clips) and text: are the weights trained?"),
    ] = None,
    steps: Annotated[int, typer.Option(min=3, help="Longest answer sampled.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check that a policy samples what it scores, batches without mixing, learns where it should, and speaks.

    These hold for any weights. --against and --pairs check that the weights are read as their makers read them.
    """
    from dataclasses import asdict, replace
    from itertools import chain

    from paras2s.audio.clip import read_clip
    from paras2s.cli.options import print_json
    from paras2s.policy.contract import check_policy as run_checks
    from paras2s.policy.contract import subject_of
    from paras2s.policy.official import check_against, read_dump
    from paras2s.policy.trained_checks import check_trained, read_pairs
    from paras2s.policy.types import Turn
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    # Read first: a file at fault is said before minutes are spent on weights.
    dump = None if against is None else read_dump(against)
    recorded = None if pairs is None else read_pairs(pairs)
    policy = _open(name, weights, device, dtype, decoder)
    dialogues = [[Turn("user", clip=read_clip(path))] for path in clip or ()]
    subject = replace(subject_of(policy, dialogues or None), steps=steps)
    found = []
    of_weights = () if dump is None else check_against(policy, dump)
    of_training = () if recorded is None else check_trained(policy, recorded)
    for one in chain(run_checks(subject, save_to), of_weights, of_training):
        found.append(one)
        mark = {True: "[green]ok[/]", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}[one.ok]
        if not as_json:
            console.print(f"{mark} {one.name}: {one.detail}", highlight=False)
    failed = sum(one.ok is False for one in found)
    if not as_json and (first := next((one for one in found if one.ok is False), None)) is not None:
        console.print(f"{failed} of {len(found)} failed; look first at: {first.name}", highlight=False)
    if as_json:
        print_json({"policy": name, "failed": failed, "checks": [asdict(one) for one in found]})
    if failed:
        raise typer.Exit(1)


def _open(name: str, weights: Path | None, device: str, dtype: str | None, decoder: str | None) -> Policy:
    """From its checkpoint, or from a function that makes one."""
    import torch

    from paras2s.errors import PolicyError
    from paras2s.policy.base import Policy
    from paras2s.policy.registry import load_policy
    from paras2s.utils.plugins import import_part

    if weights is not None:
        return load_policy(weights, name, device, None if dtype is None else getattr(torch, dtype), decoder)
    if ":" not in name:
        raise PolicyError(f"{name}: give --weights, the folder of its checkpoint, or module:function that makes a tiny one")
    try:
        found = import_part(name, "check-policy", PolicyError)()
    except TypeError as error:
        raise PolicyError(f"{name}: cannot be made without arguments ({error}); give a function that makes one") from error
    if not isinstance(found, Policy):
        raise PolicyError(f"{name} gives a {type(found).__name__}, and no paras2s.policy.base.Policy")
    return found
