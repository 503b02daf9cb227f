"""What a finished run prints: a sentence, a short table with a legend, and the rest only where it is asked for."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from tiny import world
from tiny.answers import answer

from paras2s.bench.paras2s.contrasts import SHOWN, SYSTEMS, BenchedRun, describe_bench
from paras2s.run import open_run


@pytest.mark.parametrize("verbose", [False, True])
def test_the_closing_lines_are_a_sentence_and_a_short_table_with_a_legend(verbose: bool, tmp_path) -> None:
    rows = {name: [answer(float(score), f"c{number}") for number, score in enumerate((2, 3, 4))] for name in SYSTEMS}
    written = io.StringIO()
    console = Console(file=written, width=200)
    run = dataclasses.replace(open_run(world.write_run(tmp_path), verbose=verbose), console=console)
    describe_bench(run, BenchedRun(rows, rows))
    text = written.getvalue()
    assert text.startswith("No difference shown: ")
    shown = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert shown == (list(SYSTEMS) if verbose else list(SHOWN))
    assert all(f"{name}: {SYSTEMS[name]}" in text for name in shown)
    assert ("in its sound" in text) is verbose
