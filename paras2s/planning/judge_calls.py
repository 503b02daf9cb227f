"""The calls that a judge as reward takes, and their price."""

from __future__ import annotations

from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.configs.schema.judges import ContrastConfig, JudgingConfig, find_judge
from paras2s.configs.schema.run import RewardSourceConfig
from paras2s.planning.cluster import RewardFacts
from paras2s.utils.addresses import is_loopback


def calls_of(source: RewardSourceConfig, known: RewardFacts, group: int, input_s: float) -> tuple[int, int, float | None]:
    """Return calls a group, calls at once, and USD a call (None: no price is known)."""
    contrast = _contrast(source)
    if contrast is not None:
        # Each answer is read under its own style and the others; a pair is two scores.
        others = max((len(styles) for styles in contrast.styles.values()), default=2) - 1 if contrast.against == "others" else 1
        return _priced(contrast.llm, known, group * (1 + others), 0.0)
    judge = find_judge(str(source.options.get("judge", "trace"))).config(JudgingConfig)
    calls = group
    if source.kind == "pairwise":
        swiss = source.options.get("schedule", "all") == "swiss"
        calls = int(source.options.get("rounds", 3)) * (group // 2) if swiss else group * (group - 1) // 2
        calls *= 2 if judge.judge.both_orders else 1
    return _priced(judge.llm, known, calls, input_s if judge.judge.reads == "audio" else 0.0)


def _priced(llm: LLMConfig, known: RewardFacts, calls: int, audio_s: float) -> tuple[int, int, float | None]:
    """Return calls, calls at once and USD a call with n seconds of audio."""
    price = load_prices(llm.prices).models.get(llm.model)
    if price is None and llm.prices is None and is_loopback(llm.base_url):
        return calls, llm.concurrency, 0.0
    if price is None or known.tokens_in is None or known.tokens_out is None:
        return calls, llm.concurrency, None
    usd = known.tokens_in.value * price.text_in + known.tokens_out.value * price.text_out
    if audio_s:
        if price.audio_in is None or price.audio_tokens_per_s is None:
            return calls, llm.concurrency, None
        usd += audio_s * price.audio_tokens_per_s * price.audio_in
    return calls, llm.concurrency, usd / 1e6


def _contrast(source: RewardSourceConfig) -> ContrastConfig | None:
    """Return the settings of a source's contrast judge; None of any other."""
    if source.kind not in ("llm", "pairwise"):
        return None
    named = find_judge(str(source.options.get("judge", "trace")))
    return named.config(ContrastConfig) if named.kind == "contrast" else None


def rated_as(source: RewardSourceConfig) -> str:
    """Return the name of a source's cost in the rates; a judge by likelihoods generates nothing."""
    judge = _contrast(source)
    return source.kind if judge is None else f"contrast_{judge.engine}"
