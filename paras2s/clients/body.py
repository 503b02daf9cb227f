"""The body of a reply, up to a size: a broken or hostile server may send without end, or pack much into little."""

from __future__ import annotations

from typing import Any

# Ten minutes of speech in base64 are 40 MB.
LARGEST_BODY_BYTES = 64 * 2**20


class LargeBodyError(Exception):
    """A body beyond reason."""


async def read_body(response: Any) -> None:
    """Read a reply's body up to a limit, as it is unpacked. Raises LargeBodyError: it is larger."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > LARGEST_BODY_BYTES:
            raise LargeBodyError(f"a body of more than {LARGEST_BODY_BYTES >> 20} MiB")
        parts.append(part)
    # The name under which `aread` keeps what it has read.
    response._content = b"".join(parts)
