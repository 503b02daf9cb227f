"""Errors, named by the boundary that was crossed. The command line prints their message in one line and exits with 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class ParaS2SError(Exception):
    """Root of every error this project raises on purpose; the message names the file or key and says what to do."""


class ConfigError(ParaS2SError):
    """A config key, preset or command-line value is wrong."""


class AudioError(ParaS2SError):
    """A clip cannot be read, or holds nothing that can be measured."""


class DataError(ParaS2SError):
    """A manifest, corpus or cache on disk is wrong or incomplete."""


class AssetError(ParaS2SError):
    """A model file that should come with a package is missing or is not the file it should be."""


class PolicyError(ParaS2SError):
    """A checkpoint, prompt or rollout does not fit the policy."""


class JudgeError(ParaS2SError):
    """A judge or reward model cannot score; becomes `types.Unscored` at the reward boundary."""


class BudgetError(ParaS2SError):
    """A call would cost more than the budget still holds; paid replies stay cached, and a later run continues."""


class EndpointError(BudgetError):
    """An endpoint failed too many calls in a row, and no more are made; as at a budget's end, a later run continues."""


class HubError(ParaS2SError):
    """A hub of models cannot be reached, or refuses; what was sent stays there, and the same command goes on."""


class StorageError(ParaS2SError):
    """The disk refused a write (full, read-only); what was written before stays valid."""


def printable(text: str) -> str:
    """Return a foreign text in one line, with an escape for each sign that is none, such as those that command a terminal."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(text.split()))


def one_line(error: Exception) -> str:
    """Return another library's message without line breaks and indents."""
    return printable(str(error))


def raised_at(error: BaseException) -> str:
    """Return " at FILE:LINE" of the line of the user's own code that raised an error; "" if there is none."""
    import os
    import sysconfig
    import traceback

    installed = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), os.path.dirname(__file__))
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(installed)]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def first_problem(error: ValidationError, what: str = "row") -> str:
    """Return the first problem of a record with its key; `what` names the record where it is wrong as a whole."""
    wrong = error.errors()[0]
    return f"{'.'.join(map(str, wrong['loc'])) or what}: {message_of(wrong)}"


@contextmanager
def checking(where: Path | str, what: str = "row", error: type[ParaS2SError] = DataError, advice: str = "") -> Iterator[None]:
    """Raise pydantic's first problem with a record that is read within as an `error`: WHERE: KEY: problem.

    `what` names the record where it is wrong as a whole; `advice` follows the problem.
    """
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as wrong:
        raise error(f"{where}: {first_problem(wrong, what)}{advice}") from wrong


def message_of(problem: Mapping[str, Any]) -> str:
    """Return what pydantic says of a problem; a rule of ours is quoted without the name of the error that it raised."""
    return str(problem["msg"]).removeprefix("Value error, ")
