"""The cost of a pipeline stage in a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Spend:
    """Calls, tokens, USD and seconds of one stage. `cached` calls were paid for earlier; `failed` ones gave no usable result.

    `usd` is None as soon as one price is unknown. Made by the stages; read by the report and the next estimate.
    """

    requests: int = 0
    cached: int = 0
    failed: int = 0
    text_in_tokens: int = 0
    text_out_tokens: int = 0
    usd: float | None = 0.0
    seconds: float = 0.0

    def pay(self, usd: float | None) -> None:
        """Add a cost; an unknown one makes the sum unknown."""
        self.usd = None if self.usd is None or usd is None else self.usd + usd
