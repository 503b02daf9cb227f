"""Memory over processes, with a child that holds a known amount. Not covered: peaks between two looks."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny.processes import started

from paras2s.utils.process_memory import MemoryWatch, descendants, proportional_gib

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="there is no /proc here")
HOLD = "import sys; held = bytearray(200 * 2**20); print(len(held), flush=True); sys.stdin.read()"


def test_a_childs_memory_counts_and_is_gone_with_it() -> None:
    import os

    alone = sum(map(proportional_gib, descendants(os.getpid())))
    with started([sys.executable, "-c", HOLD], stdin=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        with MemoryWatch() as memory:
            pass
        assert memory.peak_gib is not None
        assert 0.19 < memory.peak_gib - alone < 0.3
        assert 0.19 < proportional_gib(child.pid) < 0.3
        child.communicate(timeout=60)
    assert child.pid not in descendants(os.getpid())
    assert proportional_gib(child.pid) == 0.0
