"""Lets every test folder import the tiny models of tests/policy/tiny.py and the scripted endpoint."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "policy")]
