"""`paras2s serve`: a judge or a reward as a server, for those who train elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Set, Tone, parse_overrides
from paras2s.errors import ConfigError

DEFAULT_PORT = 8018


def serve(
    judge: Annotated[
        str,
        typer.Argument(
            metavar="JUDGE_OR_REWARD",
            help="Judge (trace, rubric, contrast, a YAML ...), folder of a run or its reward model, word_errors, module:Class.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the address. 0: any free port.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Beyond 127.0.0.1 requests need the token in PARAS2S_REWARD_TOKEN.")
    ] = "127.0.0.1",
    tone: Tone = None,
    audio: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="Folder whose clips requests may name by path. Repeatable.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Answers judged together, if as many wait.")] = 64,
    cache_dir: Annotated[Path, typer.Option(help="Folder of cached scores.")] = Path("runs/cache"),
    set_: Set = None,
) -> None:
    """Serve a judge or a reward model as the reward of any trainer: POST /score, GET /health, /metrics and /schema.

    Our own runs use it as a source {kind: http, options: {url: ...}}; TRL, verl and ms-swift by
    paras2s.integrations. Ctrl-C ends it.
    """
    import os

    from paras2s.configs.schema.endpoints import REWARD_TOKEN

    try:
        from paras2s.integrations.server import HOSTS, JudgeThread, make_app
        from paras2s.utils.loopback import LoopbackServer
    except ImportError as error:
        raise ConfigError(
            f"serve needs {(error.name or 'starlette').partition('.')[0]}: pip install 'paras2s[studio]'"
        ) from error
    from paras2s.integrations.scorer import open_scorer
    from paras2s.utils.addresses import is_loopback
    from paras2s.utils.cache import JsonCache

    token = os.environ.get(REWARD_TOKEN, "").strip() or None
    local = is_loopback(f"http://{host}") and host != "0.0.0.0"
    if not local and token is None:
        raise ConfigError(f"--host {host}: other machines reach it; set {REWARD_TOKEN} to a token that requests must bear")
    for folder in audio or ():
        if not folder.is_dir():
            raise ConfigError(f"--audio {folder}: no such folder")
    scorer = open_scorer(judge, parse_overrides(set_), tone)
    server = LoopbackServer(port, host)
    judging = JudgeThread(scorer, JsonCache(cache_dir / "served.sqlite"), batch)
    # With a token the name by which a request calls the server proves nothing more.
    app = make_app(judging, audio or (), token, HOSTS if local else ["*"])
    needs = ", ".join(scorer.needs) or "any text or audio"
    server.run(
        app,
        lambda: typer.echo(
            f"serve: http://{host}:{server.port} scores from {scorer.low:g} to {scorer.high:g} by {scorer.label}; "
            f"send {needs}  (Ctrl-C ends it)"
        ),
    )
