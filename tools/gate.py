"""Runs a check of a stored report as a program: prints each failure, and ends with 1 where there is one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paras2s.utils.io import read_json


def run_gate(description: str | None, folder: str, file: str, failures: Callable[[Mapping[str, Any]], Sequence[str]]) -> None:
    """Checks `file` in the folder that the command names; `folder` is how the help calls it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(folder, type=Path)
    path = vars(parser.parse_args())[folder] / file
    found = failures(read_json(path))
    for line in found:
        print(line)
    print(f"{path}: {'passes' if not found else f'{len(found)} failures'}")
    sys.exit(bool(found))
