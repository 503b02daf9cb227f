"""A judge that asks a language model for no score, but how much likelier an answer is after a question said in its style.

The ratio is log p(answer | question, said in its style) - log p(answer | question, said in another style), over all words of
the answer; of several other styles, their mean probability. Its map to 1 to 5 is monotone: a file that `fit_map` made, or a
sigmoid. How the answer sounds is judged where `tones` has words for the tones of voice: "(cheerfully) Thank you." is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from paras2s.audio.clip import Clip
from paras2s.clients.chat import LLMClient, Message, Reply, Request
from paras2s.configs.schema.judges import ContrastConfig
from paras2s.errors import BudgetError, ConfigError, DataError, JudgeError, checking
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.schema import RESPONSE
from paras2s.reward.judges.base import ANSWER_WORDS, QUESTION_WORDS, Exchange, Judge, Pair, Progress, Scored, sides_of
from paras2s.reward.judges.likelihood import LocalLikelihoods
from paras2s.reward.judges.prompts import load_prompt
from paras2s.reward.judges.rubric import tone_of
from paras2s.types import Absent, Blueprint, Unscored, Verdict
from paras2s.utils.cache import JsonCache, key_of
from paras2s.utils.io import read_json, write_json

if TYPE_CHECKING:
    from paras2s.reward.tone_classifier import ToneClassifier

VERSION = "1"
# Qwen, SmolLM and others; a server's own template cannot be asked for.
CHATML = "".join(("<|im_start|>{role}\n", "{content}<|im_end|>\n"))


class ScoreMap(BaseModel):
    """A monotone map of ratios in nats to scores: straight lines between `points`, level beyond the outer ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    points: tuple[tuple[float, float], ...]
    n_fitted: int

    def score(self, ratio: float) -> float:
        """Return the score of a ratio."""
        return float(np.interp(ratio, [at for at, _ in self.points], [score for _, score in self.points]))


def fit_map(ratios: Sequence[float], scores: Sequence[float]) -> ScoreMap:
    """Fit a monotone map of ratios to scores by isotonic regression. Raises DataError: fewer than two different ratios."""
    from sklearn.isotonic import IsotonicRegression

    if len(set(ratios)) < 2:
        raise DataError(f"a map of ratios to scores needs two different ratios, and there are {len(set(ratios))}")
    fitted = IsotonicRegression(y_min=1.0, y_max=5.0).fit(list(ratios), list(scores))
    points = zip(fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist(), strict=True)
    return ScoreMap(points=tuple(points), n_fitted=len(ratios))


def load_map(path: Path) -> ScoreMap:
    """Load a map. Raises ConfigError: no such file, or its points do not rise."""
    with checking(f"score_map: {path}", error=ConfigError):
        loaded = ScoreMap.model_validate(read_json(path))
    ratios, scores = zip(*loaded.points, strict=True) if loaded.points else ((), ())
    rises = all(np.diff(ratios) > 0) and all(np.diff(scores) >= 0)
    if len(ratios) < 2 or not rises or scores[0] < 1 or scores[-1] > 5:
        raise ConfigError(f"score_map: {path}: its points must rise, in ratio and in score, from 1 to 5")
    return loaded


def save_map(path: Path, fitted: ScoreMap) -> None:
    """Save a map."""
    write_json(path, fitted.model_dump(mode="json"))


@dataclass(frozen=True)
class Likelihood:
    """The log-likelihood of an answer after a prompt, and what reading it cost; None: unknown."""

    nats: float
    cost_usd: float | None = 0.0


@dataclass(frozen=True)
class Readings:
    """The prompts whose answers' likelihoods make one ratio: under the question's style first, then under the others."""

    prompts: tuple[str, ...]
    answer: str


class ContrastJudge(Judge):
    """Scores the words of answers by likelihood ratios. `name` is "contrast" and the model."""

    scores_alone = True
    needs_question_audio = False
    needs = (QUESTION_WORDS, "question.style", ANSWER_WORDS)

    def __init__(
        self, config: ContrastConfig, client: LLMClient | None, cache: JsonCache, tone: ToneClassifier | None = None
    ) -> None:
        self.config, self.client, self.cache = config, client, cache
        self._local = LocalLikelihoods(config) if client is None else None
        self._map = load_map(config.score_map) if config.score_map else None
        self._extractors = make_extractors(config.extractors, tone)
        self._prompt = load_prompt("contrast", "contrast_question", config.prompts)
        self.prompt_hash = self._prompt.hash
        model = self._local.fingerprint if self._local else [config.llm.base_url, config.llm.extra_body]
        template = None if config.chat_template is None else config.chat_template.read_text(encoding="utf-8")
        scale = self._map.model_dump() if self._map else config.sigmoid_nats
        measured = [extractor.version for extractor in self._extractors]
        # Behind the rest, so that a judge of words alone keeps its version.
        settings = [model, template, scale, config.styles, config.against, measured, *([config.tones] if config.tones else [])]
        self.version = f"{VERSION}-{key_of(settings)[:8]}"
        self.name = f"contrast:{config.llm.model if self.client else config.model and config.model.stem}"

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """Return the calls for each item: one for each style of each answer; a model of this machine makes none."""
        if self.client is None:
            return [[] for _ in items]
        made: list[list[Request] | Unscored] = []
        for item in items:
            sides = list(sides_of(item)) if isinstance(item, Pair) else [item]
            read = self._all_readings(sides, self._words(sides))
            calls = [_request(prompt, part.answer) for part in read if isinstance(part, Readings) for prompt in part.prompts]
            made.append(next((part for part in read if isinstance(part, Unscored)), calls))
        return made

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers, in order; an answer or a style without words, or a server without log-probabilities, is Unscored."""
        started = time.perf_counter()
        words = self._words(exchanges)
        readings = self._all_readings(exchanges, words)
        items = [(prompt, part.answer) for part in readings if isinstance(part, Readings) for prompt in part.prompts]
        read = self._read_local if self.client is None else self._read_served
        values = iter(read(items, on_progress))
        each_s = (time.perf_counter() - started) / max(1, len(exchanges))
        return [
            part if isinstance(part, Unscored) else self._verdict([next(values) for _ in part.prompts], known, each_s)
            for part, known in zip(readings, words, strict=True)
        ]

    # The words of both sides.

    def _words(self, exchanges: Sequence[Exchange]) -> list[str | Unscored]:
        """Return the words of each answer: as known, as measured, or measured now."""
        return self._transcribed(list(map(_known_words, exchanges)), [exchange.answer for exchange in exchanges], "answer")

    def _questions(self, exchanges: Sequence[Exchange]) -> list[str | Unscored]:
        known = [exchange.question.text for exchange in exchanges]
        return self._transcribed(known, [exchange.question.clip for exchange in exchanges], "question")

    def _transcribed(self, known: Sequence[str | None], clips: Sequence[Clip | None], what: str) -> list[str | Unscored]:
        """Return texts, those that are None transcribed from their clips; without words Unscored."""
        measured = [clip for text, clip in zip(known, clips, strict=True) if text is None and clip is not None]
        blueprints = iter(build_blueprints(measured, self._extractors, self.cache))
        texts: list[str | Unscored] = []
        for text, clip in zip(known, clips, strict=True):
            reason = f"the {what} has no words"
            if text is None and clip is not None:
                blueprint = next(blueprints)
                text = blueprint.value(RESPONSE)
                reason = reason if text is not None else f"no transcript of the {what}: {blueprint.why_absent(RESPONSE)}"
            texts.append(text or self._unscored(reason))
        return texts

    def _tones(self, exchanges: Sequence[Exchange]) -> list[str | Unscored]:
        """Return the word for the tone of each answer's voice, "" where the words alone are read."""
        if not self.config.tones:
            return [""] * len(exchanges)
        missing = [exchange.answer for exchange in exchanges if exchange.blueprint is None]
        measured = iter(build_blueprints(missing, self._extractors, self.cache))
        return [self._tone(exchange.blueprint or next(measured)) for exchange in exchanges]

    def _tone(self, answer: Blueprint) -> str | Unscored:
        tone = tone_of(answer)
        if isinstance(tone, Absent):
            return self._unscored(f"the answer has no tone: {tone.reason}")
        no_word = f"the tone {tone} has no word; add it to tones of the judge's config"
        return self.config.tones.get(tone) or self._unscored(no_word)

    def _unscored(self, reason: str, transcript: str | None = None) -> Unscored:
        return Unscored(self.name, reason, transcript=transcript)

    def _readings(
        self, style: str | None, question: str | Unscored, words: str | Unscored, tone: str | Unscored
    ) -> Readings | Unscored:
        if isinstance(words, Unscored):
            return words
        for missing in (question, tone):
            if isinstance(missing, Unscored):
                return replace(missing, transcript=words)
        assert isinstance(question, str)
        if style is None:
            return self._unscored("the style of the question must be known", words)
        own = next((named for named in self.config.styles.values() if style in named), None)
        if own is None:
            return self._unscored(f"style {style} has no words; add it to styles of the judge's config", words)
        others: list[str] = [""] if self.config.against == "none" else [text for name, text in own.items() if name != style]
        if not others:
            return self._unscored(f"style {style} has no other style in its category to be told from", words)
        answer = f"({tone}) {as_sentence(words)}" if tone else as_sentence(words)
        return Readings(tuple(self._rendered(question, text) for text in (own[style], *others)), answer)

    def _all_readings(self, exchanges: Sequence[Exchange], words: Sequence[str | Unscored]) -> list[Readings | Unscored]:
        questions, tones = self._questions(exchanges), self._tones(exchanges)
        return [
            self._readings(exchange.question.style, *read)
            for exchange, *read in zip(exchanges, questions, words, tones, strict=True)
        ]

    def _rendered(self, question: str, style: str) -> str:
        plain = {"style": f" {style}" if style else "", "question": harmless(question)}
        messages = [
            {"role": message.role, "content": "".join(map(str, message.parts))} for message in self._prompt.messages({}, plain)
        ]
        if self._local is not None:
            return self._local.prompt(messages)
        if self.config.chat_template is not None:
            from jinja2.sandbox import SandboxedEnvironment

            template = SandboxedEnvironment().from_string(self.config.chat_template.read_text(encoding="utf-8"))
            return template.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="")
        return "".join(CHATML.format(**message) for message in messages) + "<|im_start|>assistant\n"

    # The model.

    def _read_local(self, items: Sequence[tuple[str, str]], on_progress: Progress | None) -> list[Likelihood]:
        assert self._local is not None
        keys = [key_of(["likelihood", self._local.fingerprint, self.config.dtype, *item]) for item in items]
        known = self.cache.get_many(keys)
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        fresh = dict(zip(missing, self._local.read(list(missing.values())), strict=True))
        self.cache.put_many(fresh)
        if on_progress:
            on_progress(len(items), len(items))
        return [Likelihood((known | fresh)[key]) for key in keys]

    def _read_served(
        self, items: Sequence[tuple[str, str]], on_progress: Progress | None
    ) -> list[Likelihood | JudgeError | BudgetError]:
        assert self.client is not None
        replies = self.client.complete_all([_request(*item) for item in items], on_progress, _has_logprobs)
        url = self.config.llm.base_url
        none = JudgeError(f"{url} gives no log-probabilities of a prompt; use vLLM, SGLang, or engine: local")
        return [
            reply
            if not isinstance(reply, Reply)
            else none
            if not reply.logprobs
            else Likelihood(reply.logprobs[""], reply.cost_usd)
            for reply in replies
        ]

    def _verdict(self, values: Sequence[Likelihood | JudgeError | BudgetError], words: str | Unscored, each_s: float) -> Scored:
        transcript = words if isinstance(words, str) else None
        for value in values:
            if isinstance(value, BudgetError):
                return value
            if isinstance(value, JudgeError):
                return self._unscored(str(value), transcript)
        read = [value for value in values if isinstance(value, Likelihood)]
        own, *others = [likelihood.nats for likelihood in read]
        costs = [likelihood.cost_usd for likelihood in read]
        ratio = own - (float(np.logaddexp.reduce(others)) - math.log(len(others)))
        if not math.isfinite(ratio):
            return self._unscored(f"the likelihood ratio is {ratio}", transcript)
        nats = self.config.sigmoid_nats
        score = self._map.score(ratio) if self._map else 3.0 + 2.0 * math.tanh(ratio / (2 * nats))
        by = f"by {self.config.score_map}" if self._map else f"by a sigmoid of {nats:g} nats"
        against = "no style" if self.config.against == "none" else f"{len(others)} other style{'s' * (len(others) > 1)}"
        reason = f"{ratio:+.2f} nats for the question's style over {against} ({own:.2f} under its own), {by}"
        return Verdict(
            self.name, self.version, self.prompt_hash, score, reason, "",
            None if None in costs else math.fsum(cost or 0.0 for cost in costs), each_s, transcript=transcript,
        )  # fmt: skip


def ratio_of(reason: str) -> float:
    """Return the likelihood ratio in nats that a verdict's reason begins with."""
    return float(reason.partition(" nats")[0])


def as_sentence(words: str) -> str:
    """Return an answer's words with a capital and a full stop, as a language model writes them; no mark of a chat within."""
    text = harmless(words.strip())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def harmless(text: str) -> str:
    """Return a text without the marks that divide a chat's messages."""
    return text.replace("<|", "< |")


def _known_words(exchange: Exchange) -> str | None:
    if exchange.words is not None or exchange.blueprint is None:
        return exchange.words
    words: str | None = exchange.blueprint.value(RESPONSE)
    return words


def _has_logprobs(reply: Reply) -> bool:
    return reply.logprobs is not None


def _request(prompt: str, answer: str) -> Request:
    return Request((Message("user", (prompt + answer,)),), continues_at=len(prompt))
