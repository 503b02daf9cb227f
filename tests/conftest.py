"""Every test folder can import the tiny models and servers of tests/tiny, and the rank that tests/train starts."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE / folder) for folder in ("policy", "train", "reward"))]
