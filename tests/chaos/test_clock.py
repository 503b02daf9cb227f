"""A clock of the day that jumps, or is wrong: it decides nothing but how long a server asks to wait, and there not alone.

Everything else that waits, times or limits reads a clock that only goes on (`time.monotonic`, `time.perf_counter`).
"""

from __future__ import annotations

import email.utils
import re
import time
from pathlib import Path

import pytest

from paras2s.clients.endpoint import LONGEST_RETRY_AFTER_S, retry_after_s
from paras2s.rollout.timeline import SpanRecorder

PACKAGE = Path(__file__).resolve().parents[2] / "paras2s"
NOW_S = 1_700_000_000.0
YEAR_S = 365 * 86_400.0
# What reads the clock of the day: the retry of a call, who holds a folder since when, when a study's row was written, and the
# timeline's beginnings. The studio shows times.
READERS = {"clients/endpoint.py", "utils/lock.py", "studies/store.py", "rollout/timeline.py"}


def test_the_clock_of_the_day_is_read_in_four_modules() -> None:
    """Leases, timeouts, retries and budgets must not follow a clock that is set back; a new reader belongs into this table."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|\bdatetime\.(now|today|utcnow)\(|\bdate\.today\(", path.read_text("utf-8"))
    }
    assert {name for name in found if not name.startswith("studio/")} == READERS


@pytest.mark.parametrize("off_s", [-YEAR_S, -3600.0, 0.0, 3600.0, YEAR_S])
def test_a_servers_date_is_compared_with_its_own_clock(off_s: float) -> None:
    headers = {"retry-after": email.utils.formatdate(NOW_S + 30), "date": email.utils.formatdate(NOW_S)}
    assert retry_after_s(headers, NOW_S + off_s) == 30.0
    assert retry_after_s(headers | {"retry-after": "7"}, NOW_S + off_s) == 7.0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Wed, 99 Oct 99999"])
def test_without_the_servers_clock_a_wait_is_not_below_zero(date: str | None) -> None:
    headers = {"retry-after": email.utils.formatdate(NOW_S + 30), **({} if date is None else {"date": date})}
    assert retry_after_s(headers, NOW_S + YEAR_S) in (0.0, None)
    # A clock that is a year behind: the call fails at once, in place of a wait of a year.
    assert date is not None or (retry_after_s(headers, NOW_S - YEAR_S) or 0.0) > LONGEST_RETRY_AFTER_S


@pytest.mark.parametrize("jump_s", [-YEAR_S, YEAR_S])
def test_a_span_is_as_long_as_its_work_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    spans = SpanRecorder("rollout")
    with spans.span("work"):
        now_s = time.time()
        monkeypatch.setattr(time, "time", lambda: now_s + jump_s)
    (span,) = spans.take()
    assert 0.0 <= span.end_s - span.start_s < 60.0
