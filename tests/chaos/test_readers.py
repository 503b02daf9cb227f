"""Every reader against damaged files: it reads them or raises an error of this project, and nothing else.

Not covered: files of a released model that transformers reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.readers import READERS, Reader
from paras2s.errors import ParaS2SError

DEEP = 100_000
DIGITS = "9" * 5_000


def damaged(reader: Reader) -> Iterator[tuple[str, bytes]]:
    """Yield what may be in a file in place of its content, with a name of the damage."""
    intact = reader.data
    yield "intact", intact
    yield "empty", b""
    yield "cut", intact[: len(intact) * 2 // 3]
    yield "cut within the first bytes", intact[:7]
    yield "other bytes", b"\xff\xfe\x00\x80" + intact
    yield "a byte in the middle", intact[: len(intact) // 2] + b"\xff" + intact[len(intact) // 2 + 1 :]
    yield "nothing but zeros", bytes(len(intact))
    yield "sizes in the header", b"\xff" * 8 + intact[8:]
    if reader.kind in ("json", "jsonl"):
        values = (
            "[" * DEEP,
            '{"a":' * DEEP,
            DIGITS,
            f'{{"a": {DIGITS}}}',
            "1e999",
            "NaN",
            '{"a": Infinity}',
            "null",
            "3",
            '"x"',
        )
        values += ("[]", "{}", "[[]]", "[{}]", '{"a": null}', '"\\ud83d"')
        for value in values:
            yield value[:20], value.encode()
        for value in (
            "null",
            "[]",
            "{}",
            "1e999",
            "NaN",
            DIGITS,
            '"a\\u0000\\ud83d.wav"',
            "[" * 900 + "]" * 900,
            '"' + "x" * 5_000 + '"',
        ):
            yield f"{value[:20]} in a place of each value", with_each_value(intact, value)
    if reader.kind == "yaml":
        for value in (
            "[" * 500,
            f"a: {DIGITS}",
            "a: .nan",
            "a: 2026-99-99",
            "? {a: b}\n: c",
            "- 1",
            "3",
            "null",
            "a: &a [*a]",
            "!!binary x",
        ):
            yield value[:20], value.encode()
    if reader.kind == "csv":
        yield "a huge cell", b"a,b\n" + b"x" * 200_000 + b",1\n"
        yield "a huge number", intact.replace(b"1", DIGITS.encode())
        yield "zeros", intact.replace(b"1", b"\x00")


def with_each_value(data: bytes, value: str) -> bytes:
    """Return a JSON or JSONL file with its members' values replaced, all of the first row's."""
    try:
        row = json.loads(data.splitlines()[0] if data.count(b"\n") else data)
    except ValueError:
        return data
    row = row[0] if isinstance(row, list) and row else row
    if not isinstance(row, dict):
        return value.encode()
    body = "{" + ", ".join(f"{json.dumps(key)}: {value}" for key in row) + "}"
    return (f"[{body}]" if data.lstrip().startswith(b"[") else body).encode()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_an_error_of_ours(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    wrong = []
    for damage, data in damaged(reader):
        try:
            reader.run(tmp_path, data)
        except ParaS2SError:
            continue
        except Exception as error:
            wrong.append(f"{damage}: {type(error).__name__}: {str(error)[:120]}")
    assert not wrong, "\n".join(wrong)
