"""`paras2s <verb>`. Parses before heavy imports; errors of this project are one line and exit with 2."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from paras2s import __version__
from paras2s.cli.ablate import ablate
from paras2s.cli.align import align
from paras2s.cli.bench_contrasts import contrasts, curve
from paras2s.cli.bench_detection import bench_detect, bench_detect_grid, bench_detect_pairs
from paras2s.cli.bench_paras2s import bench_paras2s, bench_template, bench_voicebench
from paras2s.cli.bench_speakbench import bench_app
from paras2s.cli.bench_styleset import bench_styleset
from paras2s.cli.bench_suite import bench_suite
from paras2s.cli.bench_systems import bench_systems
from paras2s.cli.bench_unisrm import bench_unisrm
from paras2s.cli.check_policy import check_policy, new_policy
from paras2s.cli.config import config
from paras2s.cli.data import data, import_data
from paras2s.cli.demo import demo
from paras2s.cli.distill import distill
from paras2s.cli.doctor import doctor
from paras2s.cli.export import export
from paras2s.cli.hub import pull, push
from paras2s.cli.judge import blueprint, judge_app
from paras2s.cli.judge_audit import judge_audit
from paras2s.cli.options import EXIT_CODES, print_failure
from paras2s.cli.paper import paper
from paras2s.cli.plan import plan
from paras2s.cli.probe import probe
from paras2s.cli.rank import rank
from paras2s.cli.results import results
from paras2s.cli.rollouts import rollouts
from paras2s.cli.serve import serve
from paras2s.cli.studio import studio
from paras2s.cli.study import study_app
from paras2s.cli.talk import talk
from paras2s.cli.unisrm import unisrm_app
from paras2s.cli.warmup import warmup
from paras2s.errors import ParaS2SError, one_line
from paras2s.utils.io import DISK_REFUSED, cannot_write

app = typer.Typer(
    name="paras2s",
    help="Teach a speech-to-speech model to hear how something is said, and to answer fittingly.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

# The groups of --help, in the order of use.
PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Run": {
        "demo": demo,
        "data": data,
        "import-data": import_data,
        "warmup": warmup,
        "distill": distill,
        "align": align,
        "ablate": ablate,
    },
    "Judge": {"blueprint": blueprint, "probe": probe, "rank": rank, "serve": serve},
    "Look": {"studio": studio, "talk": talk, "rollouts": rollouts},
    "Models": {"new-policy": new_policy, "check-policy": check_policy, "export": export},
    "Share": {"push": push, "pull": pull},
    "Plan and set up": {"plan": plan, "config": config, "doctor": doctor},
    "This project's pages": {"results": results, "paper": paper},
}
for panel, verbs in PANELS.items():
    for verb, function in verbs.items():
        app.command(verb, rich_help_panel=panel)(function)
judge_app.command("audit")(judge_audit)
app.add_typer(judge_app, name="judge", rich_help_panel="Judge")
app.add_typer(study_app, name="study", rich_help_panel="Judge")
app.add_typer(unisrm_app, name="unisrm", rich_help_panel="Models")
bench_app.command("contrasts")(contrasts)
bench_app.command("curve")(curve)
bench_app.command("paras2s")(bench_paras2s)
bench_app.command("template")(bench_template)
bench_app.command("voicebench")(bench_voicebench)
bench_app.command("systems")(bench_systems)
bench_app.command("detect")(bench_detect)
bench_app.command("detect-grid")(bench_detect_grid)
bench_app.command("detect-pairs")(bench_detect_pairs)
bench_app.command("styleset")(bench_styleset)
bench_app.command("unisrm")(bench_unisrm)
bench_app.command("suite")(bench_suite)
app.add_typer(bench_app, name="bench", rich_help_panel="Benchmark")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    # Set before torch is loaded: no progress bars, telemetry or hub access of other libraries, but for push and pull. OpenMP
    # threads sleep while they wait: spinning threads slow down beside any busy program.
    quiet = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONWARNINGS": "ignore",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    if context.invoked_subcommand in PANELS["Share"]:
        del quiet["HF_HUB_OFFLINE"], quiet["HF_HUB_DISABLE_PROGRESS_BARS"]
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    import warnings

    warnings.filterwarnings("ignore")


STOPPED = "paras2s: stopped; the same command continues where this one ended"
INTERRUPTED, TERMINATED, UNREAD = 130, 143, 141


def main() -> None:
    """Run the command line: every error is one line, and exit code 1 is kept for "done, but something is unscored"."""
    for stream in (sys.stdout, sys.stderr):
        # File names and transcripts need not be text of the terminal's encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        app()
    except ParaS2SError as error:
        typer.echo(f"paras2s: {one_line(error)}", err=True)
        print_failure(one_line(error))
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo(STOPPED, err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _end_unread()
    except SystemExit as end:
        # click and rich turn a broken pipe into their exit code 1, which is "unscored" here.
        if isinstance(end.__context__, BrokenPipeError) or not _flushed():
            _end_unread()
        # typer turns Ctrl-C into its exit code.
        if end.code in (INTERRUPTED, TERMINATED):
            typer.echo(STOPPED, err=True)
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_REFUSED:
            said = one_line(cannot_write(error.filename or "the output", error))
        else:
            said = f"unexpected {type(error).__name__}: {one_line(error)[:300]}; {_keep_traceback()}"
        typer.echo(f"paras2s: {said}", err=True)
        print_failure(said)
        sys.exit(2)


def _flushed() -> bool:
    """Write what is left of the output; return whether someone still reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True


def _end_unread() -> NoReturn:
    """End without a word, since whoever read the output has enough (`paras2s ... | head`)."""
    # Python itself writes once more as it ends.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.exit(UNREAD)


def _stop(number: int, _: object) -> None:
    """End by an exception, so that files are closed; worker processes end first, since closing a pool waits for them."""
    for child in multiprocessing.active_children():
        child.terminate()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(TERMINATED)


def _keep_traceback() -> str:
    """Write the traceback of the present error to a file; return where it is."""
    try:
        handle, path = tempfile.mkstemp(prefix="paras2s-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"paras2s {__version__}: {sys.argv[1:2]}\n{traceback.format_exc()}")
    except OSError:
        traceback.print_exc()
        return "its traceback is above"
    return f"its traceback is in {path}"


if __name__ == "__main__":
    main()
