"""Lets every test folder import the tiny models of tests/policy/tiny.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "policy"))
