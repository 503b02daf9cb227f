"""An LLM judge that reads a blueprint (TRACE) or a transcript, or hears the clips, and judges pairs and single answers.

It follows TRACE's protocol in full. Added: both orders, the user's blueprint, and Unscored, with the reply, for a reply
that cannot be read.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.clients.chat import Audio, LLMClient, Reply, Request, Tokens
from paras2s.configs.schema.judges import AUDIO_RATE_HZ, JudgingConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors, require_installed, to_measure
from paras2s.reward.blueprint.field_docs import describe_fields
from paras2s.reward.blueprint.schema import RESPONSE, Extractor, trace_json
from paras2s.reward.fusion import find_rule, swap, symmetric
from paras2s.reward.judges.base import (
    ANSWER_WORDS,
    QUESTION_WORDS,
    Exchange,
    Judge,
    Pair,
    Preferred,
    Progress,
    Scored,
    Utterance,
    preference_of,
)
from paras2s.reward.judges.parsing import (
    ANSWER_SCHEMA,
    PAIR_SCHEMA,
    SCORE_FIRST_SCHEMA,
    SCORES,
    is_readable,
    read_pair,
    read_score,
    require_complete,
)
from paras2s.reward.judges.prompts import Prompt, load_prompt, read_prompt
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import DIMENSIONS, Blueprint, Label, Measured, PairLabel, PairVerdict, Unscored, Verdict
from paras2s.utils.cache import JsonCache, key_of

# In version 4 a blueprint has shorter contours, and its groups are named once; judges of transcripts and clips keep version 3.
VERSION, BLUEPRINT_VERSION = "3", "4"
# Rankings and probes know one kind of tie.
PAIR_LABEL: dict[Label, PairLabel] = {"1": "1", "2": "2", "both_good": "tie", "both_bad": "tie"}


# The line of a prompt that shows the reply.
REASON_FIRST = re.compile(r'\{("reasoning": "[^"]*"), (.+)\}')
T = TypeVar("T")


class LLMJudge(Judge):
    """Judges many items at once. `name` is the kind of input and the model; `rule` fuses the labels of a pair into one."""

    client: LLMClient
    reads_history = True
    pair_schema: dict[str, Any] = PAIR_SCHEMA
    pair_scored: tuple[str, tuple[str, ...]] | None = None

    def __init__(
        self, config: JudgingConfig, client: LLMClient, cache: JsonCache | None = None, tone: ToneClassifier | None = None
    ) -> None:
        self.config, self.client, self.cache = config, client, cache
        self.reads = config.judge.reads
        self.needs = (QUESTION_WORDS, ANSWER_WORDS if self.reads == "transcript" else "answer.audio")
        self.name = f"{self.reads}:{config.llm.model}"
        self.rule = find_rule(config.judge.fusion, config.judge.fusion_rules)
        self.extractors: list[Extractor] = make_extractors(config.extractors, tone)
        self.version = self._version()
        self.pair_prompt = load_prompt("pair", f"pair_{self.reads}", config.judge.prompts)
        self.answer_prompt = load_prompt("answer", f"answer_{self.reads}", config.judge.prompts)
        self._history = read_prompt("history", config.judge.prompts)
        self.expects = config.judge.read == "expected"
        if self.expects:
            self.answer_prompt = reason_last(self.answer_prompt)
        if self.reads != "audio" and not any(RESPONSE in extractor.keys for extractor in self.extractors):
            raise ConfigError(f"a judge that reads a {self.reads} needs an extractor of words; add 'words' to extractors")
        if unknown := sorted(set(config.judge.left_out) - set(self.groups)):
            raise ConfigError(f"judge.left_out: {unknown[0]!r} is not among the groups measured: {', '.join(self.groups)}")

    def _version(self) -> str:
        """Return our version and a hash of all settings, besides the prompt, that may change a verdict."""
        judge, llm = self.config.judge, self.config.llm
        inputs = [
            judge.left_out,
            judge.describe_user,
            judge.both_orders,
            [extractor.version for extractor in self.extractors],
            self._fields(),
        ]
        # Behind the rest, so that versions of judges that have the default are what they were.
        inputs += [judge.sample_rate_hz] if judge.sample_rate_hz != AUDIO_RATE_HZ else []
        endpoint: list[Any] = [llm.base_url, llm.temperature, llm.max_output_tokens, llm.seed, llm.structured]
        endpoint += [llm.top_p] if llm.top_p is not None else []
        endpoint += [judge.read] if judge.read != "reply" else []
        endpoint += [llm.reasoning_effort, llm.extra_body] if llm.reasoning_effort or llm.extra_body else []
        return f"{BLUEPRINT_VERSION if self.reads == 'blueprint' else VERSION}-{key_of([inputs, endpoint])[:8]}"

    @property
    def groups(self) -> list[str]:
        """The groups of fields that are measured beside the words; `judge.left_out` may name any of them."""
        return sorted({key.partition(".")[0] for extractor in self.extractors for key in extractor.keys} - {RESPONSE})

    @property
    def fingerprint(self) -> str:
        """The version and the hash of the prompt for pairs."""
        return f"{self.version}/{self.pair_prompt.hash}"

    # Pairs.

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs by their fused labels, where both kinds of tie are a tie."""
        return [self._preference(verdict) for verdict in self.label_pairs(pairs, on_progress)]

    def _preference(self, verdict: PairVerdict | Unscored | BudgetError) -> Preferred:
        if not isinstance(verdict, PairVerdict):
            return verdict
        label = PAIR_LABEL[self.rule.fuse(verdict.labels)]
        return preference_of(
            verdict.judge, verdict.version, verdict.prompt_hash, "overall", label, verdict.reason,
            verdict.cost_usd, verdict.latency_s,
        )  # fmt: skip

    def label_pairs(
        self, pairs: Sequence[Pair], on_progress: Progress | None = None
    ) -> list[PairVerdict | Unscored | BudgetError]:
        """Label every pair in three dimensions, in order. A pair that cannot be judged is Unscored, one beyond the budget a
        BudgetError.
        """
        fresh = [self._is_to_measure(pair) for pair in pairs]
        started = time.perf_counter()
        requests_by_pair = self.pair_requests(pairs)
        each_s = (time.perf_counter() - started) / max(sum(fresh), 1)
        requests = [request for orders in requests_by_pair if isinstance(orders, list) for request in orders]
        replies = iter(self.client.complete_all(requests, on_progress, lambda reply: is_readable(reply, read_pair)))
        return [
            orders
            if isinstance(orders, Unscored)
            else self._pair_verdict([next(replies) for _ in orders], each_s * now, self.pair_prompt_of(pair).hash)
            for orders, now, pair in zip(requests_by_pair, fresh, pairs, strict=True)
        ]

    def _is_to_measure(self, pair: Pair) -> bool:
        """Return whether a clip of the pair is not in the cache of measurements."""
        if self.reads == "audio":
            return False
        return any(to_measure((pair.first, pair.second, *self._user_clips(pair.instruction)), self.extractors, self.cache))

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """Return the calls for each item, one for each order of a pair, one for a single answer; items are of one kind."""
        pairs = [item for item in items if isinstance(item, Pair)]
        if pairs:
            return self.pair_requests(pairs)
        made = self.answer_requests([item for item in items if isinstance(item, Exchange)])
        return [[request] if isinstance(request, Request) else request for request in made]

    def pair_requests(self, pairs: Sequence[Pair]) -> list[list[Request] | Unscored]:
        """Return the requests for each pair, one for each order."""
        evidence = self._evidence([(pair.instruction, (pair.first, pair.second)) for pair in pairs])
        return [
            shown if isinstance(shown, Unscored) else self._orders(pair, *shown)
            for pair, shown in zip(pairs, evidence, strict=True)
        ]

    def pair_prompt_of(self, pair: Pair) -> Prompt:
        """Return the prompt for a pair."""
        return self._behind_history(self.pair_prompt, pair.instruction)

    def _behind_history(self, prompt: Prompt, question: Utterance) -> Prompt:
        """Return a prompt with the turns before the question ahead of it; without any, the prompt as it is."""
        return replace(prompt, user=f"{self._history}\n\n{prompt.user}") if question.history else prompt

    def _orders(self, pair: Pair, instruction: Any, answers: Sequence[Any]) -> list[Request]:
        orders = [(answers[0], answers[1])] + ([(answers[1], answers[0])] if self.config.judge.both_orders else [])
        plain = {"fields": self._fields()}
        given = {"instruction": instruction, "history": pair.instruction.said_before}
        values = [{**given, "first": first, "second": second} for first, second in orders]
        prompt = self.pair_prompt_of(pair)
        return [
            Request(prompt.messages(inputs, plain), self.pair_schema, scored=self.pair_scored, follows=number > 0)
            for number, inputs in enumerate(values)
        ]

    def _read_orders(
        self, outcomes: Sequence[Reply | JudgeError | BudgetError], read: Callable[[str], T]
    ) -> tuple[list[Reply], list[T], str] | Unscored | BudgetError:
        """Return the replies to a pair's orders, each read, and their joined texts; or why a reply is missing."""
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        if out_of_budget := [outcome for outcome in outcomes if isinstance(outcome, BudgetError)]:
            return out_of_budget[0]
        text = "\n---\n".join(reply.text for reply in replies)
        if failed := [outcome for outcome in outcomes if isinstance(outcome, JudgeError)]:
            return Unscored(self.name, str(failed[0]), text)
        try:
            return replies, [read(require_complete(reply)) for reply in replies], text
        except JudgeError as error:
            return Unscored(self.name, str(error), text)

    def _pair_verdict(
        self, outcomes: Sequence[Reply | JudgeError | BudgetError], local_s: float, prompt_hash: str
    ) -> PairVerdict | Unscored | BudgetError:
        orders = self._read_orders(outcomes, read_pair)
        if isinstance(orders, Unscored | BudgetError):
            return orders
        replies, parsed, text = orders
        labels, reason = parsed[0]
        consistent = None
        if len(parsed) == 2:
            other = parsed[1][0]
            consistent = all(labels[name] == swap(other[name]) for name in DIMENSIONS)
            labels = {name: symmetric(labels[name], other[name]) for name in DIMENSIONS}
            reason = f"{reason}\n---\n{parsed[1][1]}"
        tokens = sum((reply.tokens for reply in replies), Tokens())
        return PairVerdict(
            judge=self.name,
            version=self.version,
            prompt_hash=prompt_hash,
            labels=labels,
            reason=reason,
            reply=text,
            consistent=consistent,
            text_in_tokens=tokens.text_in,
            audio_in_tokens=tokens.audio_in,
            text_out_tokens=tokens.text_out,
            cost_usd=total_usd(replies),
            latency_s=sum(reply.latency_s for reply in replies),
            local_s=local_s,
            cost_estimated=tokens.audio_estimated,
        )

    # Single answers.

    @property
    def prompt_hash(self) -> str:  # type: ignore[override]
        """The hash of the prompt for single answers."""
        return self.answer_prompt.hash

    def exchange_of(self, text: str | None, style: str | None, question: Path | None, answer: Clip) -> Exchange:
        """Return a question and an answer as this judge takes them: it hears the style in the clip, or reads its label."""
        if self.reads == "audio" and question is not None:
            return Exchange(Utterance(clip=read_clip(question)), answer)
        return Exchange(Utterance(text=text, style=style), answer)

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers from 1 to 5, in order (ParaS2S, appendix I.5)."""
        maybe = self.answer_requests(exchanges)
        requests = [request for request in maybe if isinstance(request, Request)]
        replies = iter(self.client.complete_all(requests, on_progress, self._has_score))
        return [
            replace(request, transcript=words)
            if isinstance(request, Unscored)
            else self._answer_verdict(next(replies), words, self._behind_history(self.answer_prompt, exchange.question).hash)
            for request, words, exchange in zip(maybe, self._transcripts(exchanges), exchanges, strict=True)
        ]

    def _has_score(self, reply: Reply) -> bool:
        return is_readable(reply, read_score) and not (self.expects and reply.logprobs is None)

    def _transcripts(self, exchanges: Sequence[Exchange]) -> list[str | None]:
        """Return the words of each answer, which `_evidence` has measured already; None for a judge that measures nothing."""
        if not self.extractors or self.cache is None:
            return [None] * len(exchanges)
        answers = [self._answer_of(exchange) for exchange in exchanges]
        clips = [answer for answer in answers if isinstance(answer, Clip)]
        measured = iter(build_blueprints(clips, self.extractors, self.cache))
        return [next(measured).value(RESPONSE) if isinstance(answer, Clip) else answer for answer in answers]

    def _answer_of(self, exchange: Exchange) -> Clip | str:
        """Return an answer's clip, or its words where a judge of transcripts is given an answer in writing alone."""
        if self.reads == "transcript" and exchange.words and not len(exchange.answer.samples):
            return exchange.words
        return exchange.answer

    def answer_requests(self, exchanges: Sequence[Exchange]) -> list[Request | Unscored]:
        """Return the request for each answer."""
        evidence = self._evidence([(exchange.question, (self._answer_of(exchange),)) for exchange in exchanges])
        plain = {"fields": self._fields()}
        schema, scored = (SCORE_FIRST_SCHEMA, ("score", tuple(map(str, SCORES)))) if self.expects else (ANSWER_SCHEMA, None)

        def request(utterance: Utterance, question: Any, answers: Sequence[Any]) -> Request:
            values = {"question": question, "answer": answers[0], "history": utterance.said_before}
            messages = self._behind_history(self.answer_prompt, utterance).messages(values, plain)
            return Request(messages, schema, scored=scored)

        return [
            shown if isinstance(shown, Unscored) else request(exchange.question, *shown)
            for exchange, shown in zip(exchanges, evidence, strict=True)
        ]

    def _answer_verdict(self, reply: Reply | JudgeError | BudgetError, transcript: str | None, prompt_hash: str) -> Scored:
        if isinstance(reply, BudgetError):
            return reply
        if isinstance(reply, JudgeError):
            return Unscored(self.name, str(reply), transcript=transcript)
        try:
            score, reason = read_score(require_complete(reply))
            spread = None
            if self.expects:
                score, spread, probabilities = expected_score(reply.logprobs)
                reason = f"{reason} ({probabilities})"
        except JudgeError as error:
            return Unscored(self.name, str(error), reply.text, transcript)
        return Verdict(
            self.name, self.version, prompt_hash, score, reason, reply.text, total_usd([reply]), reply.latency_s,
            cost_estimated=reply.tokens.audio_estimated, transcript=transcript, spread=spread,
        )  # fmt: skip

    # The evidence in the prompt.

    def _fields(self) -> str:
        return describe_fields(self.extractors, self.config.judge.left_out)

    def _evidence(self, items: Sequence[tuple[Utterance, Sequence[Clip | str]]]) -> list[tuple[Any, list[Any]] | Unscored]:
        """Return the question and the answers as the judge reads them; Unscored where a transcript is missing."""
        if self.reads == "audio":
            return [
                (self._audio_question(question), [self._wav(clip) for clip in clips if isinstance(clip, Clip)])
                for question, clips in items
            ]
        clips = [clip for question, answers in items for clip in (*answers, *self._user_clips(question))]
        measured = build_blueprints([clip for clip in clips if isinstance(clip, Clip)], self.extractors, self.cache)
        # No verdict on fields that say "not installed" is paid for.
        require_installed(measured, self.config.judge.left_out)
        blueprints = iter(measured)
        evidence: list[tuple[Any, list[Any]] | Unscored] = []
        for question, answers in items:
            described = [
                next(blueprints) if isinstance(answer, Clip) else Blueprint({RESPONSE: Measured(answer)}) for answer in answers
            ]
            users = [next(blueprints) for _ in self._user_clips(question)]
            evidence.append(self._described(question, described, users[0] if users else None))
        return evidence

    def _user_clips(self, question: Utterance) -> list[Clip]:
        """Return the question's clip, where the judge needs a blueprint or a transcript of it."""
        needed = question.clip is not None and (self.config.judge.describe_user or question.text is None)
        return [question.clip] if needed and question.clip is not None else []

    def _described(
        self, question: Utterance, answers: Sequence[Blueprint], user: Blueprint | None
    ) -> tuple[Any, list[Any]] | Unscored:
        for blueprint in (*answers, *([user] if user and question.text is None else [])):
            if blueprint.value(RESPONSE) is None:
                return Unscored(self.name, f"no transcript: {blueprint.why_absent(RESPONSE)}")
        described: dict[str, Any] = {"words": question.text if question.text is not None else user and user.value(RESPONSE)}
        if question.style is not None:
            described["spoken"] = question.style
        left_out = self.config.judge.left_out
        if user is not None and self.config.judge.describe_user and self.reads == "blueprint":
            described |= trace_json(user, "user", left_out)
        if self.reads == "transcript":
            return described, [{"words": blueprint.value(RESPONSE)} for blueprint in answers]
        return described, [trace_json(blueprint, left_out=left_out) for blueprint in answers]

    def _audio_question(self, question: Utterance) -> Any:
        if question.clip is not None:
            # This judge hears the words and the style in the clip, so it is given neither in writing.
            return self._wav(question.clip)
        return {"words": question.text, **({"spoken": question.style} if question.style else {})}

    def _wav(self, clip: Clip) -> Audio:
        return Audio(encode_clip(clip.at(self.config.judge.sample_rate_hz)), clip.duration_s)


def reason_last(prompt: Prompt) -> Prompt:
    """Return a prompt whose reply has the verdict first: after its own reasoning a small model judges worse than without."""
    return replace(prompt, system=REASON_FIRST.sub(r"{\2, \1}", prompt.system))


def probabilities(logprobs: Mapping[str, float] | None, values: Sequence[str]) -> tuple[dict[str, float], str]:
    """Return the probabilities of values, which are 1 together, and in words with their entropy.

    Raises:
        JudgeError: the server gave no log-probability of any.
    """
    if not logprobs:
        raise JudgeError("the server gave no log-probabilities of the verdict; judge.read: reply takes the reply alone")
    given = {value: math.exp(logprobs[value]) if value in logprobs else 0.0 for value in values}
    shares = {value: share / sum(given.values()) for value, share in given.items()}
    entropy = -sum(share * math.log2(share) for share in shares.values() if share)
    listed = ", ".join(f"{value}: {share:.3f}" for value, share in shares.items())
    return shares, f"probabilities {listed}; entropy {entropy:.2f} bits"


def expected_score(logprobs: Mapping[str, float] | None) -> tuple[float, float, str]:
    """Return the mean of the scores by their probabilities, its standard deviation, and the probabilities in words.

    Raises:
        JudgeError: the server gave no log-probabilities of a score.
    """
    shares, words = probabilities(logprobs, tuple(map(str, SCORES)))
    mean = sum(float(score) * share for score, share in shares.items())
    return mean, math.sqrt(sum((float(score) - mean) ** 2 * share for score, share in shares.items())), words


def total_usd(replies: Sequence[Reply]) -> float | None:
    """Return what the replies cost when they were paid for, in this run or an earlier one; None if one cost is unknown."""
    known = [reply.cost_usd for reply in replies if reply.cost_usd is not None]
    return sum(known) if len(known) == len(replies) else None
