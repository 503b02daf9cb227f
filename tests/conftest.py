"""Every test folder can import tests/tiny, outside.py and the rank that tests/train starts; a run ends with what it skipped.

Threads that wait for each other must sleep: spinning ones slow down beside any busy program.
"""

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE / folder) for folder in ("policy", "train", "reward"))]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests each reason skipped, and in which files."""
    files = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        # Of a skip, pytest gives file, line and reason.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        files[reason.removeprefix("Skipped: ")].append(report.nodeid.partition("::")[0])
    if files:
        terminalreporter.section("skipped, by reason")
    for reason, where in sorted(files.items()):
        terminalreporter.line(f"{len(where):3}  {reason}")
        terminalreporter.line(f"     in {', '.join(sorted(set(where)))}")
