"""Every test folder can import the tiny models and servers of tests/tiny, and the rank that tests/train starts.

Threads that wait for each other must not spin: beside one busy program, two spinning threads are up to twenty times slower.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE / folder) for folder in ("policy", "train", "reward"))]
