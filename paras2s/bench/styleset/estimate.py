"""The calls that endpoints' replies in dialogues take, and the most that they can cost, without a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paras2s.bench.styleset.data import FollowingItem, RoleContext
from paras2s.bench.styleset.systems import MAX_TOKENS
from paras2s.clients.audio_chat import LONG_ANSWER_S, chat_usd
from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.endpoints import load_audio_chat
from paras2s.data_gen.tts.remote import SLOW_CHARACTERS_PER_S
from paras2s.reward.judges.base import MAX_CLIP_S


@dataclass(frozen=True)
class Replies:
    """Spoken replies of endpoints; `at_most_usd` is None if a price is unknown."""

    calls: int = 0
    at_most_usd: float | None = 0.0

    def __add__(self, other: Replies) -> Replies:
        """Return the sum."""
        known = None not in (self.at_most_usd, other.at_most_usd)
        return Replies(self.calls + other.calls, (self.at_most_usd or 0) + (other.at_most_usd or 0) if known else None)


def replies_at_most(spec: str, items: Sequence[FollowingItem | RoleContext], turns: int) -> Replies:
    """Return a system's replies to items without an output, those paid for before a stop too; none of a checkpoint."""
    if not Path(spec).is_file() or not items:
        return Replies()
    config = load_audio_chat(Path(spec))
    price = load_prices(config.prices).models.get(config.model)
    per_s = price.audio_out_tokens_per_s if price else None
    longest_s = MAX_TOKENS / per_s if per_s else LONG_ANSWER_S
    inputs_s = [input_s for item in items for input_s in _inputs_s(item, turns, min(longest_s, MAX_CLIP_S))]
    each = [None if price is None else chat_usd(price, input_s, longest_s) for input_s in inputs_s]
    known = [usd for usd in each if usd is not None]
    return Replies(len(each), sum(known) if len(known) == len(each) else None)


def _inputs_s(item: FollowingItem | RoleContext, turns: int, longest_s: float) -> list[float]:
    """Return the seconds of sound in each turn's request: an instance's prompt, and all turns of the other so far."""
    if isinstance(item, RoleContext):
        prompts_s = [_spoken_s(text) for text in item.prompts()]
        return [prompts_s[number % 2] + number // 2 * longest_s for number in range(turns)]
    first_s, second_s = map(_spoken_s, item.requests())
    return [first_s, first_s + second_s]


def _spoken_s(text: str) -> float:
    return len(text) / SLOW_CHARACTERS_PER_S
