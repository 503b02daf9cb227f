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
# Files whose tests start Ray: clusters of two processes at once may meet, and find each other's cores taken.
ON_RAY = frozenset(
    {
        *("test_cli", "test_cluster", "test_curation_cli", "test_distill_cli", "test_distill_scale", "test_drivers"),
        *("test_judging_cli", "test_local_ray_ends", "test_ray_actors", "test_released_families", "test_released_policy"),
        *("test_minimind_cli", "test_reward_refresh", "test_speak_workers", "test_vllm_engine", "test_vllm_worker"),
    }
)
# Processes that tests start, Ray's workers among them, import tests/tiny as well.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path[:0] = [str(HERE), *(str(HERE / folder) for folder in ("policy", "train", "reward"))]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives a file's tests to one process where there are several, and all that start Ray to the same one."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("ray" if item.path.stem in ON_RAY else str(item.path)))


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
