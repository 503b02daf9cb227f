"""The Omni reward model behind a vLLM server: the same two clips and guideline over HTTP, the digits' log-probabilities back.

`paras2s distill CONFIG --export FOLDER` merges one, `vllm serve FOLDER --limit-mm-per-prompt '{"audio": 2}'` serves it. The
server writes its own marks around a clip, so scores are those of the in-process model up to these. Plain `logprobs` would not
do: they are the likeliest tokens, which need not be digits; `logprob_token_ids` asks for the five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paras2s.audio.clip import encode_clip
from paras2s.clients.chat import Audio, LLMClient, Message, Reply, Request
from paras2s.configs.schema.judges import OmniServedConfig
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.prompts import PLACEHOLDER, read_prompt
from paras2s.reward.reward_model.omni import DIGITS, RATE_HZ, SYSTEM, OmniScore, SpokenPair
from paras2s.types import Unscored
from paras2s.utils.cache import JsonCache


def score_of(logprobs: dict[str, float] | None) -> OmniScore:
    """Expected digit, likeliest digit and the digits' mass, from raw log-probabilities of the first token.

    Raises:
        JudgeError: one of the five digits is missing: then the others are no distribution.
    """
    # As they are: the server also gives the token it sampled, which may be " 5" or a line break and a 5.
    present = logprobs or {}
    if missing := [digit for digit in DIGITS if digit not in present]:
        raise JudgeError(f"the server gave no log-probability of {', '.join(missing)}; it must know logprob_token_ids (vLLM)")
    shares = [math.exp(present[digit]) for digit in DIGITS]
    mass = sum(shares)
    if not 0 < mass < math.inf:
        raise JudgeError(f"the digits' probabilities sum to {mass}")
    best = max(range(len(DIGITS)), key=lambda index: shares[index])
    return OmniScore(sum(int(d) * share for d, share in zip(DIGITS, shares, strict=True)) / mass, best + 1, mass)


class ServedOmni:
    """Scores spoken pairs through a server, as many at once as it has slots."""

    name = "omni"

    def __init__(self, config: OmniServedConfig, cache: JsonCache | None = None) -> None:
        self.config = config
        self.client = LLMClient(config.llm, cache, "omni.llm")
        self._template = read_prompt("omni", config.prompts)

    def request(self, pair: SpokenPair) -> Request:
        """Return the template's text and clips as parts of a message. Raises JudgeError: a clip exceeds `max_audio_s`."""
        clips = {"question": pair.question.at(RATE_HZ), "answer": pair.answer.at(RATE_HZ)}
        for name, clip in clips.items():
            if clip.duration_s > self.config.max_audio_s:
                raise JudgeError(f"the {name} lasts {clip.duration_s:.0f} s, at most {self.config.max_audio_s:.0f} s are read")
        parts: list[str | Audio] = []
        end = 0
        for match in PLACEHOLDER.finditer(self._template):
            clip = clips[match.group(1)]
            parts += [self._template[end : match.start()], Audio(encode_clip(clip), clip.duration_s)]
            end = match.end()
        messages = (Message("system", (SYSTEM,)), Message("user", (*parts, self._template[end:])))
        return Request(messages, token_ids=self.config.digit_ids)

    def score_each(self, pairs: Sequence[SpokenPair]) -> list[OmniScore | Unscored]:
        """Score pairs, in order; an unscored pair does not affect the others. Raises BudgetError: the budget ended."""
        requests = [self.request_or_reason(pair) for pair in pairs]
        replies = iter(self.client.complete_all([request for request in requests if isinstance(request, Request)]))
        return [request if isinstance(request, Unscored) else self._read(next(replies)) for request in requests]

    def request_or_reason(self, pair: SpokenPair) -> Request | Unscored:
        """Return the call of a pair, or why it has none."""
        try:
            return self.request(pair)
        except JudgeError as error:
            return Unscored(self.name, str(error))

    def _read(self, reply: Reply | JudgeError | BudgetError) -> OmniScore | Unscored:
        if isinstance(reply, BudgetError):
            raise reply
        try:
            return Unscored(self.name, str(reply)) if isinstance(reply, JudgeError) else score_of(reply.logprobs)
        except JudgeError as error:
            return Unscored(self.name, str(error))
