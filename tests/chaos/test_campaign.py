"""A small edition of the campaign: six mutations a reader. The full edition: `make chaos`."""

from __future__ import annotations

from pathlib import Path

from chaos import campaign
from chaos.readers import READERS


def test_mutated_files_are_read_or_refused() -> None:
    result = campaign.run(6 * len(READERS), seed=1)
    assert not result.failures, "\n".join(result.failures)
    assert min(result.counts[name] for name in READERS) == 6
    assert sum(result.refused.values()) > len(READERS)


def test_an_error_of_another_library_is_a_failure(tmp_path: Path) -> None:
    result = campaign.Result()

    def read(path: object) -> None:
        raise RecursionError("deep")

    campaign.attack("x", campaign.Reader(read, "a.json", b"{}"), 0, tmp_path, 0, result)
    assert len(result.failures) == 1
