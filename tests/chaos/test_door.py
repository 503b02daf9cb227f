"""The one door for errors of the command line: one line and exit code 2, and a word where a command was stopped."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from paras2s import __version__
from paras2s.cli import app, options
from paras2s.clients.endpoint import Budget
from paras2s.errors import BudgetError, DataError
from paras2s.utils.process_pool import end_workers


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: Callable[[], Any]) -> int:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(app, "app", verb)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def raises(error: BaseException) -> Callable[[], NoReturn]:
    def verb() -> NoReturn:
        raise error

    return verb


@pytest.mark.parametrize("error", [RecursionError("too deep"), OverflowError("int too large"), KeyError("a"), MemoryError()])
def test_an_error_of_nobodys_is_one_line_exit_code_2_and_a_file(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, raises(error)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    line = re.fullmatch(rf"paras2s: unexpected {type(error).__name__}: .*; its traceback is in (\S+)\n", said.err)
    assert line is not None, said.err
    assert type(error).__name__ in Path(line[1]).read_text()


def test_an_error_of_ours_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, raises(DataError("a.yaml: while parsing\n  a block"))) == 2
    assert capsys.readouterr().err == "paras2s: a.yaml: while parsing a block\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "a/b.wav"), "cannot write a/b.wav: No space left on device; free disk space"),
        (OSError(30, "Read-only file system", "a"), "cannot write a: Read-only file system; the disk is read-only"),
        # As a shell's redirection to a full disk raises it.
        (OSError(28, "No space left on device"), "cannot write the output: No space left on device; free disk space"),
    ],
)
def test_a_disk_that_refuses_is_one_line_wherever_it_does(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, raises(error)) == 2
    assert capsys.readouterr().err.startswith(f"paras2s: {said}")
    assert not list(tmp_path.iterdir())


def exits_as_click_does() -> NoReturn:
    try:
        raise BrokenPipeError(32, "Broken pipe")
    except OSError:
        sys.exit(1)


@pytest.mark.parametrize("verb", [raises(BrokenPipeError(32, "Broken pipe")), exits_as_click_does])
def test_output_that_nobody_reads_any_more_ends_without_a_word_and_not_as_unscored(
    verb: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert run(monkeypatch, tmp_path, verb) == 141
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("printed", [False, True])
def test_with_json_an_error_says_what_was_spent_unless_the_verb_has_printed(
    printed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["paras2s", "judge", "audit", "--json"])
    monkeypatch.setattr(options, "_printed", False)
    monkeypatch.setattr("paras2s.clients.endpoint.SPENT", {"spent_usd": 0.0, "unreported_usd": 0.0})
    budget = Budget(1.0)

    def verb() -> NoReturn:
        for cost in (0.25, None):
            budget.reserve(0.5)
            budget.settle(0.5, cost)
        if printed:
            options.print_json({"report": 1})
        raise BudgetError("the budget is spent")

    assert run(monkeypatch, tmp_path, verb) == 2
    said = json.loads(capsys.readouterr().out)
    assert said == ({"report": 1} if printed else {"error": "the budget is spent", "spent_usd": 0.25, "unreported_usd": 0.5})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_how_it_goes_on(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Those of earlier tests would be terminated with the command, and the next test's work find them dead.
    end_workers()
    assert run(monkeypatch, tmp_path, lambda: os.kill(os.getpid(), number)) == code
    assert capsys.readouterr().err == app.STOPPED + "\n"


def test_typers_own_exit_code_of_ctrl_c_is_said_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, raises(SystemExit(130))) == 130
    assert "the same command continues" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["paras2s", "paras2s.cli.app"])
def test_python_dash_m_runs_the_command_line(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "argv", ["paras2s", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{__version__}\n"
