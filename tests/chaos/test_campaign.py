"""A small edition of the campaign: six mutations a reader. The full edition: `make chaos`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import Environment

from chaos import campaign, long, words
from chaos.readers import READERS


def test_mutated_files_are_read_or_refused() -> None:
    result = campaign.run(6 * len(READERS), seed=1)
    assert not result.failures, "\n".join(result.failures)
    assert min(result.counts[name] for name in READERS) == 6
    assert sum(result.refused.values()) > len(READERS)


def test_hostile_words_are_data_everywhere() -> None:
    result = words.run_words(150, seed=1)
    assert not result.failures, "\n".join(result.failures)


def test_words_that_get_out_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paras2s.utils.tables.escape_markdown", lambda text: text)
    monkeypatch.setattr(words, "read_score", lambda text: (5.0, ""))
    monkeypatch.setattr(words, "names_a_file", lambda name: True)
    monkeypatch.setattr(words, "spreadsheet_cell", lambda cell: cell)
    monkeypatch.setattr(words, "PAYLOADS", ("=1", "../x"))
    failed = {re.sub(r" \d+:.*", "", failure) for failure in words.run_words(20, seed=1).failures}
    assert {"replies that quote them", "cells of CSV", "names of files"} <= failed


def test_tags_of_words_in_the_studio_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words.in_studio(["<b>", "a"]) == []
    settings = {"autoescape": False}
    monkeypatch.setattr("paras2s.utils.html.Environment", lambda **given: Environment(**{**given, **settings}))
    assert words.in_studio(["<b>", "a"]) != []


def test_an_error_of_another_library_is_a_failure(tmp_path: Path) -> None:
    result = campaign.Result()

    def read(path: object) -> None:
        raise RecursionError("deep")

    campaign.attack("x", campaign.Reader(read, "a.json", b"{}"), 0, tmp_path, 0, result)
    assert len(result.failures) == 1


def test_a_page_keeps_the_parts_that_are_not_measured_again(tmp_path: Path) -> None:
    out, texts = tmp_path / "page.md", {name: f"{heading}\n\nText of {name}." for name, heading in campaign.PARTS.items()}
    written = campaign.write_page(out, texts)
    assert campaign.parts_of(written) == texts
    assert out.read_text() == written
    assert list(texts)[:-1] == campaign.CAMPAIGNS


def test_growth_over_its_bound_is_a_failure_of_the_long_run() -> None:
    figures = [{"name": "memory", "unit": "%", "ours": [7.0], "at_most": 5.0}, {"name": "steps", "ours": [9.0]}]
    result = long.result_of(figures)
    assert result.failures == ["memory: 7.0 %, at most 5"]
    section = long.long_section(result, 500)
    assert "| memory | 7.0 %, at most 5 |" in section
    assert "--steps 500" in section
