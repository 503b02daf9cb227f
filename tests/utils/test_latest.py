"""Values that are held: what is made, for whom, and which leave.

Not covered: several threads at once.
"""

from __future__ import annotations

from paras2s.utils.latest import Latest


def test_what_is_held_is_not_made_again_and_nothing_is_made_for_nothing() -> None:
    calls: list[list[int]] = []

    def double(items: list[int]) -> list[int]:
        calls.append(items)
        return [2 * item for item in items]

    latest: Latest[int] = Latest(8)
    assert latest.of({"a": 1, "b": 2}, double) == {"a": 2, "b": 4}
    assert latest.of({"c": 3, "a": 1}, double) == {"c": 6, "a": 2}
    assert latest.of({"b": 2}, double) == {"b": 4}
    assert latest.of({}, double) == {}
    assert calls == [[1, 2], [3]]


def test_the_oldest_leave_and_what_is_wanted_at_once_is_given_whole() -> None:
    made: list[str] = []

    def upper(items: list[str]) -> list[str]:
        made.extend(items)
        return [item.upper() for item in items]

    latest: Latest[str] = Latest(2)
    assert latest.of({one: one for one in "abc"}, upper) == {"a": "A", "b": "B", "c": "C"}
    assert latest.of({one: one for one in "bca"}, upper) == {"b": "B", "c": "C", "a": "A"}
    assert made == ["a", "b", "c", "a"]
    # "a" came last, so "b" has left.
    latest.of({"c": "c", "a": "a"}, upper)
    latest.of({"b": "b"}, upper)
    assert made == ["a", "b", "c", "a", "b"]
