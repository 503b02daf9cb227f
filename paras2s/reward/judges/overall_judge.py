"""An LLM judge that is asked for one label of a pair, 1, 2 or tie, where others label three dimensions (TRACE, Tables 1 and 9).

Left out: what the paper's prompt for transcripts says as one message of the user is a system prompt here. The audio
judge has the prompt of AudioJudge's task `standard`, whose rules are those of the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import cast

from paras2s.clients.chat import LLMClient, Reply, Tokens
from paras2s.configs.schema.judges import JudgingConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError
from paras2s.reward.judges.audio_judge.tasks import TASKS
from paras2s.reward.judges.base import Pair, Preferred, Progress
from paras2s.reward.judges.llm_judge import LLMJudge, probabilities, reason_last, total_usd
from paras2s.reward.judges.parsing import is_readable
from paras2s.reward.judges.prompts import load_prompt
from paras2s.reward.judges.votes import POINTS, label_of, swapped
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import PAIR_LABELS, PairLabel, PairVerdict, Preference, Unscored
from paras2s.utils.cache import JsonCache

# Its reply is that of AudioJudge's task: reasoning, and a label.
REPLY = TASKS["standard"]


class OverallJudge(LLMJudge):
    """Compares pairs by their transcripts, or by their sound, with one label. `name` says so behind what it reads."""

    pair_schema = REPLY.schema or {}

    def __init__(
        self, config: JudgingConfig, client: LLMClient, cache: JsonCache | None = None, tone: ToneClassifier | None = None
    ) -> None:
        super().__init__(config, client, cache, tone)
        self.name = f"{self.reads}_overall:{config.llm.model}"
        system = "listen_standard" if self.reads == "audio" else "overall"
        self.pair_prompt = load_prompt(system, f"overall_{self.reads}", config.judge.prompts)
        if self.expects:
            properties = dict(reversed(self.pair_schema["properties"].items()))
            self.pair_schema = {**self.pair_schema, "properties": properties, "required": list(properties)}
            self.pair_prompt, self.pair_scored = reason_last(self.pair_prompt), (REPLY.key, REPLY.labels)

    def label_pairs(
        self, pairs: Sequence[Pair], on_progress: Progress | None = None
    ) -> list[PairVerdict | Unscored | BudgetError]:
        """Raise a ConfigError: this judge labels no dimensions."""
        raise ConfigError(f"{self.name}: gives one label and none of the dimensions; `--baselines` measures such judges")

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs, in order, in both orders where the config says so; the mean of the orders' points is the label's."""
        requests_by_pair = self.pair_requests(pairs)
        requests = [request for orders in requests_by_pair if isinstance(orders, list) for request in orders]
        replies = iter(self.client.complete_all(requests, on_progress, self._has_label))
        return [
            orders
            if isinstance(orders, Unscored)
            else self._overall([next(replies) for _ in orders], self.pair_prompt_of(pair).hash)
            for orders, pair in zip(requests_by_pair, pairs, strict=True)
        ]

    def _has_label(self, reply: Reply) -> bool:
        return is_readable(reply, REPLY.read) and not (self.expects and reply.logprobs is None)

    def _overall(self, outcomes: Sequence[Reply | JudgeError | BudgetError], prompt_hash: str) -> Preferred:
        orders = self._read_orders(outcomes, REPLY.read)
        if isinstance(orders, Unscored | BudgetError):
            return orders
        replies, read, text = orders
        # As replied: "1" is the clip that came first.
        labels = tuple(cast(PairLabel, label) for label, _ in read)
        votes = tuple(POINTS[label if number == 0 else swapped(label)] for number, label in enumerate(labels))
        consistent = votes[0] == votes[1] if len(votes) == 2 else None
        reasons, label = [reason for _, reason in read], label_of(fmean(votes))
        if self.expects:
            try:
                given = [probabilities(reply.logprobs, REPLY.labels) for reply in replies]
            except JudgeError as error:
                return Unscored(self.name, str(error), text)
            reasons = [f"{reason} ({words})" for reason, (_, words) in zip(reasons, given, strict=True)]
            ordered = [
                shares if number == 0 else {swapped(known): shares[known] for known in PAIR_LABELS}
                for number, (shares, _) in enumerate(given)
            ]
            votes = tuple(sum(POINTS[known] * shares[known] for known in PAIR_LABELS) for shares in ordered)
            label = max(PAIR_LABELS, key=lambda known: sum(shares[known] for shares in ordered))
        tokens = sum((reply.tokens for reply in replies), Tokens())
        return Preference(
            judge=self.name,
            version=self.version,
            prompt_hash=prompt_hash,
            task="overall",
            label=label,
            points=fmean(votes),
            order_labels=labels,
            votes=votes,
            spread=None,
            consistent=consistent,
            reason="\n---\n".join(reasons),
            reply=text,
            text_in_tokens=tokens.text_in,
            audio_in_tokens=tokens.audio_in,
            text_out_tokens=tokens.text_out,
            cost_usd=total_usd(replies),
            latency_s=sum(reply.latency_s for reply in replies),
            cost_estimated=tokens.audio_estimated,
        )
