"""An LLM as judge over a blueprint (TRACE), over transcripts, or over the clips themselves; of pairs and of single answers.

Left out of TRACE: nothing of the protocol. Added: both orders, the user's blueprint, and replies that cannot be read are
Unscored with the reply kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.clients.chat import Audio, LLMClient, Reply, Request, Tokens
from paras2s.configs.schema.run import JudgingConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.field_docs import describe_fields
from paras2s.reward.blueprint.schema import RESPONSE, Extractor, trace_json
from paras2s.reward.fusion import FusionRule, find_rule, swap, symmetric
from paras2s.reward.judges.parsing import ANSWER_SCHEMA, PAIR_SCHEMA, read_pair, read_score, require_whole
from paras2s.reward.judges.prompts import load_prompt
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import DIMENSIONS, Blueprint, PairVerdict, Unscored, Verdict
from paras2s.utils.cache import JsonCache, key_of

VERSION = "1"
AUDIO_RATE_HZ = 16_000
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Utterance:
    """Something said: as a clip, as text, or both. `style` is how it was said, where that is known (ParaS2S's s_i)."""

    clip: Clip | None = None
    text: str | None = None
    style: str | None = None


@dataclass(frozen=True)
class Pair:
    """A request and two answers to it; `words` is what the answers say, where that is known."""

    instruction: Utterance
    first: Clip
    second: Clip
    words: tuple[str, str] | None = None


@dataclass(frozen=True)
class Exchange:
    """A request and one answer; `words` is what the answer says, and `told` what a judge's prompt names beside it."""

    question: Utterance
    answer: Clip
    words: str | None = None
    told: Mapping[str, str] = field(default_factory=dict)


class LLMJudge:
    """Judges many at once. `name` says what it reads and which model it is; every verdict carries it, `version` and the
    prompt's hash.
    """

    def __init__(
        self, config: JudgingConfig, client: LLMClient, kept: JsonCache | None = None, tone: ToneClassifier | None = None
    ) -> None:
        self.config, self.client, self.kept = config, client, kept
        self.reads = config.judge.reads
        self.name = f"{self.reads}:{config.llm.model}"
        self.extractors: list[Extractor] = make_extractors(config.extractors, tone)
        self.version = self._version()
        self.pair_prompt = load_prompt("pair", f"pair_{self.reads}", config.judge.prompts)
        self.answer_prompt = load_prompt("answer", f"answer_{self.reads}", config.judge.prompts)
        if self.reads != "audio" and not any(RESPONSE in extractor.keys for extractor in self.extractors):
            raise ConfigError(f"a judge that reads a {self.reads} needs an extractor of words; add 'words' to extractors")
        groups = {key.partition(".")[0] for extractor in self.extractors for key in extractor.keys} - {RESPONSE}
        if strange := sorted(set(config.judge.left_out) - groups):
            raise ConfigError(f"judge.left_out: {strange[0]!r} is not among the groups measured: {', '.join(sorted(groups))}")

    def _version(self) -> str:
        """Ours, and a hash of everything beside the prompt that may change a verdict."""
        judge, llm = self.config.judge, self.config.llm
        shown = [
            judge.left_out,
            judge.describe_user,
            judge.both_orders,
            [one.version for one in self.extractors],
            self._fields(),
        ]
        asked = [llm.base_url, llm.temperature, llm.max_output_tokens, llm.seed, llm.structured]
        asked += [llm.top_p] if llm.top_p is not None else []
        return f"{VERSION}-{key_of([shown, asked])[:8]}"

    # Pairs.

    def pairs(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[PairVerdict | Unscored | BudgetError]:
        """A verdict each, in order; a pair that cannot be judged is Unscored, one the budget does not reach a BudgetError."""
        started = time.perf_counter()
        asked = self.pair_requests(pairs)
        local_s = (time.perf_counter() - started) / max(len(pairs), 1)
        requests = [request for one in asked if isinstance(one, list) for request in one]
        replies = iter(self.client.complete_all(requests, on_progress))
        found: list[PairVerdict | Unscored | BudgetError] = []
        for one in asked:
            found.append(one if isinstance(one, Unscored) else self._pair_verdict([next(replies) for _ in one], local_s))
        return found

    def pair_requests(self, pairs: Sequence[Pair]) -> list[list[Request] | Unscored]:
        """What would be asked about each pair: one request an order."""
        seen = self._evidence([(pair.instruction, (pair.first, pair.second)) for pair in pairs])
        return [one if isinstance(one, Unscored) else self._orders(*one) for one in seen]

    def _orders(self, instruction: Any, answers: Sequence[Any]) -> list[Request]:
        orders = [(answers[0], answers[1])] + ([(answers[1], answers[0])] if self.config.judge.both_orders else [])
        plain = {"fields": self._fields()}
        values = [{"instruction": instruction, "first": first, "second": second} for first, second in orders]
        return [Request(self.pair_prompt.messages(one, plain), PAIR_SCHEMA) for one in values]

    def _pair_verdict(
        self, replies: Sequence[Reply | JudgeError | BudgetError], local_s: float
    ) -> PairVerdict | Unscored | BudgetError:
        whole = [reply for reply in replies if isinstance(reply, Reply)]
        if out_of_money := [reply for reply in replies if isinstance(reply, BudgetError)]:
            return out_of_money[0]
        said = "\n---\n".join(reply.text for reply in whole)
        if failed := [reply for reply in replies if isinstance(reply, JudgeError)]:
            return Unscored(self.name, str(failed[0]), said)
        try:
            read = [read_pair(require_whole(reply)) for reply in whole]
        except JudgeError as error:
            return Unscored(self.name, str(error), said)
        labels, reason = read[0]
        consistent = None
        if len(read) == 2:
            other = read[1][0]
            consistent = all(labels[name] == swap(other[name]) for name in DIMENSIONS)
            labels = {name: symmetric(labels[name], other[name]) for name in DIMENSIONS}
            reason = f"{reason}\n---\n{read[1][1]}"
        tokens = sum((one.tokens for one in whole), Tokens())
        return PairVerdict(
            judge=self.name,
            version=self.version,
            prompt_hash=self.pair_prompt.hash,
            labels=labels,
            reason=reason,
            reply=said,
            consistent=consistent,
            text_in_tokens=tokens.text_in,
            audio_in_tokens=tokens.audio_in,
            text_out_tokens=tokens.text_out,
            cost_usd=total_usd(whole),
            latency_s=sum(reply.latency_s for reply in whole),
            local_s=local_s,
        )

    # Single answers.

    def exchange_of(self, text: str | None, style: str | None, question: Path | None, answer: Clip) -> Exchange:
        """A labelled question and an answer as this judge takes them: one that listens hears the style for itself, one that
        reads is told it.
        """
        if self.reads == "audio" and question is not None:
            return Exchange(Utterance(clip=read_clip(question)), answer)
        return Exchange(Utterance(text=text, style=style), answer)

    def answers(
        self, exchanges: Sequence[Exchange], on_progress: Progress | None = None
    ) -> list[Verdict | Unscored | BudgetError]:
        """A score from 1 to 5 each, in order (ParaS2S, appendix I.5)."""
        asked = self.answer_requests(exchanges)
        requests = [one for one in asked if isinstance(one, Request)]
        replies = iter(self.client.complete_all(requests, on_progress))
        return [one if isinstance(one, Unscored) else self._answer_verdict(next(replies)) for one in asked]

    def answer_requests(self, exchanges: Sequence[Exchange]) -> list[Request | Unscored]:
        """What would be asked about each answer."""
        seen = self._evidence([(exchange.question, (exchange.answer,)) for exchange in exchanges])
        plain = {"fields": self._fields()}
        return [
            one
            if isinstance(one, Unscored)
            else Request(self.answer_prompt.messages({"question": one[0], "answer": one[1][0]}, plain), ANSWER_SCHEMA)
            for one in seen
        ]

    def _answer_verdict(self, reply: Reply | JudgeError | BudgetError) -> Verdict | Unscored | BudgetError:
        if isinstance(reply, BudgetError):
            return reply
        if isinstance(reply, JudgeError):
            return Unscored(self.name, str(reply))
        try:
            score, reason = read_score(require_whole(reply))
        except JudgeError as error:
            return Unscored(self.name, str(error), reply.text)
        prompt_hash, cost_usd = self.answer_prompt.hash, total_usd([reply])
        return Verdict(self.name, self.version, prompt_hash, score, reason, reply.text, cost_usd, reply.latency_s)

    # What the judge is shown.

    def _fields(self) -> str:
        return describe_fields(self.extractors, self.config.judge.left_out)

    def _evidence(self, asked: Sequence[tuple[Utterance, Sequence[Clip]]]) -> list[tuple[Any, list[Any]] | Unscored]:
        """The request and the answers as the judge is shown them; Unscored where the words of one cannot be had."""
        if self.reads == "audio":
            return [(self._heard(request), [_wav(clip) for clip in clips]) for request, clips in asked]
        clips = [clip for request, answers in asked for clip in (*answers, *self._to_measure(request))]
        blueprints = iter(build_blueprints(clips, self.extractors, self.kept))
        found: list[tuple[Any, list[Any]] | Unscored] = []
        for request, answers in asked:
            shown = [next(blueprints) for _ in answers]
            users = [next(blueprints) for _ in self._to_measure(request)]
            found.append(self._shown(request, shown, users[0] if users else None))
        return found

    def _to_measure(self, request: Utterance) -> list[Clip]:
        wanted = request.clip is not None and (self.config.judge.describe_user or request.text is None)
        return [request.clip] if wanted and request.clip is not None else []

    def _shown(
        self, request: Utterance, answers: Sequence[Blueprint], user: Blueprint | None
    ) -> tuple[Any, list[Any]] | Unscored:
        for blueprint in (*answers, *([user] if user and request.text is None else [])):
            if blueprint.value(RESPONSE) is None:
                return Unscored(self.name, f"no transcript: {blueprint.why_absent(RESPONSE)}")
        said: dict[str, Any] = {"words": request.text if request.text is not None else user and user.value(RESPONSE)}
        if request.style is not None:
            said["spoken"] = request.style
        left_out = self.config.judge.left_out
        if user is not None and self.config.judge.describe_user and self.reads == "blueprint":
            said |= trace_json(user, "user", left_out)
        if self.reads == "transcript":
            return said, [{"words": blueprint.value(RESPONSE)} for blueprint in answers]
        return said, [trace_json(blueprint, left_out=left_out) for blueprint in answers]

    def _heard(self, request: Utterance) -> Any:
        if request.clip is not None:
            # What was typed beside the sound, and how it was spoken, is not for this judge: it hears for itself.
            return _wav(request.clip)
        return {"words": request.text, **({"spoken": request.style} if request.style else {})}


def open_judge(config: JudgingConfig, tone: ToneClassifier | None = None) -> tuple[LLMJudge, FusionRule]:
    """The judge with its caches, and the rule that fuses its labels."""
    kept = JsonCache(config.cache_dir / "judging.sqlite")
    rule = find_rule(config.judge.fusion, config.judge.fusion_rules)
    return LLMJudge(config, LLMClient(config.llm, kept), kept, tone), rule


def _wav(clip: Clip) -> Audio:
    return Audio(encode_clip(clip.at(AUDIO_RATE_HZ)), clip.duration_s)


def total_usd(replies: Sequence[Reply]) -> float | None:
    """What these replies cost when they were paid for, whether now or in an earlier run; one unknown makes it unknown."""
    known = [reply.cost_usd for reply in replies if reply.cost_usd is not None]
    return sum(known) if len(known) == len(replies) else None
