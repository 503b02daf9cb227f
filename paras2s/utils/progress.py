"""Progress with the time left: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# In a log, a line every so often is enough.
LINE_EVERY_S = 20.0
TELL_EVERY_S = 5.0
# Called with a bar's name, the work done, the total, and the seconds left (None: not known yet).
Tell = Callable[[str, int, int, float | None], None]
# A log has no width; tables that fold at 80 columns cannot be read in one.
LOG_WIDTH = 160


def open_console(to_stderr: bool = False) -> Console:
    """Open the terminal, or a log that is wide enough for tables. Brackets are text: names and a judge's words hold them."""
    console = Console(stderr=to_stderr, markup=False, emoji=False, highlight=False)
    if console.is_terminal:
        return console
    return Console(stderr=to_stderr, width=LOG_WIDTH, markup=False, emoji=False, highlight=False)


class Bar:
    """A progress bar. `tell` is called now and then, however quiet it is."""

    def __init__(
        self, console: Console, name: str, quiet: bool, progress: Progress, task: TaskID, tell: Tell | None = None
    ) -> None:
        self._console, self._name, self._quiet, self._tell = console, name, quiet, tell
        self._progress, self._task = progress, task
        # A bar may be made long before its work begins: time is counted from its first step.
        self._first: tuple[float, int] | None = None
        self._logged_s, self._noted_s = time.monotonic(), float("-inf")

    def at(self, done: int, total: int, note: str = "") -> None:
        """Show `done` of `total` and a short note."""
        self._progress.update(self._task, completed=done, total=total, note=note)
        now = time.monotonic()
        self._first = self._first or (now, done)
        since, already = self._first
        left_s = (now - since) / (done - already) * (total - done) if done > already else None
        if self._tell and now - self._noted_s >= TELL_EVERY_S:
            self._noted_s = now
            self._tell(self._name, done, total, left_s)
        if not self._quiet and not self._console.is_terminal and done < total and now - self._logged_s >= LINE_EVERY_S:
            self._logged_s = now
            left = f", {left_s:.0f} s left" if left_s is not None else ""
            self._console.print(f"{self._name:>22} {done}/{total}{left} {note}")


@contextlib.contextmanager
def progress_bar(
    console: Console, name: str, total: int | None, quiet: bool = False, tell: Tell | None = None
) -> Iterator[Bar]:
    """Show a progress bar inside a `with` block."""
    columns = (
        TextColumn("{task.description:>22}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=quiet) as progress:
        yield Bar(console, name, quiet, progress, progress.add_task(name, total=total, note=""), tell)
