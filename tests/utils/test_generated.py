"""Generated parts of documents by hand. Not covered: which documents have some (tests/test_benchmarks.py, test_results.py)."""

from __future__ import annotations

import pytest

from paras2s.utils.generated import put_between


def test_a_part_of_a_document_is_replaced_and_no_other_line() -> None:
    assert put_between("before\n<a>\nold\n</a>\nafter\n", "<a>", "</a>", "new\n") == "before\n<a>\n\nnew\n\n</a>\nafter\n"


@pytest.mark.parametrize("text", ["", "<a>", "</a> <a>", "a </a>"])
def test_a_document_without_both_comments_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="<a> and </a> are missing"):
        put_between(text, "<a>", "</a>", "new")
