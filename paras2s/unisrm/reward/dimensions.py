"""An audio model that scores both clips of a pair dimension by dimension, and says why (UniSRM, section 3 and Table 8).

It gets what a UniSRM gets: the instruction, the texts, and every clip below its label, the turns of a dialogue among them.
The reply is JSON, and totals are added up here: a judge that adds wrongly does not lose a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paras2s.audio.clip import Clip
from paras2s.clients.chat import Audio, Bill, LLMClient, Message, Reply, Request
from paras2s.configs.schema.unisrm_data import DimensionJudgeConfig, PairTask
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.audio_judge.messages import SentAudio
from paras2s.reward.judges.base import Progress
from paras2s.reward.judges.parsing import agreed, is_readable, require_complete, verdict_objects
from paras2s.reward.reward_model.omni import RATE_HZ
from paras2s.types import Unscored
from paras2s.unisrm.reward.messages import clip_order, instruction, user_parts
from paras2s.unisrm.reward.reply import plain_words
from paras2s.unisrm.reward.tasks import SIDES, TASKS, Side, SideScores, Task
from paras2s.utils.cache import key_of

VERSION = "1"
SPEECH: dict[Side, str] = {"A": "speech_a", "B": "speech_b"}
KEYS = (*SPEECH.values(), "summary", "better")


@dataclass(frozen=True)
class DimensionScores:
    """A judge's scores of both clips, its summary, which clip it calls the better one, and its reply."""

    sides: tuple[SideScores, SideScores]
    summary: str
    stated: Side
    reply: str

    @property
    def better(self) -> Side | None:
        """The clip with the higher total; None if they are equal (equation 3 gives those to B)."""
        first, second = (side.total for side in self.sides)
        return None if first == second else "A" if first > second else "B"


PairInputs = tuple[Mapping[str, str], Mapping[str, Clip]]
Judged = DimensionScores | Unscored | BudgetError


class DimensionJudge:
    """Scores pairs of one task. Without `calls` it is for estimates."""

    def __init__(self, config: DimensionJudgeConfig, task_id: PairTask, client: LLMClient) -> None:
        self.config, self.task, self.client = config, TASKS[task_id], client
        self.name = f"dimensions:{config.llm.model}"
        self._system = instruction(task_id, json_format(self.task), config.prompts)
        self._schema = json_schema(self.task)

    @property
    def version(self) -> str:
        """Our version and a hash of all that may change a score."""
        llm, audio = self.config.llm, self.config.audio
        endpoint = [llm.base_url, llm.temperature, llm.top_p, llm.max_output_tokens, llm.seed, llm.structured]
        settings = [*endpoint, llm.reasoning_effort, llm.extra_body, audio.format, audio.sample_rate_hz, self._system]
        return f"{VERSION}-{key_of(settings)[:8]}"

    def score_pairs(self, items: Sequence[PairInputs], on_progress: Progress | None = None) -> list[Judged]:
        """Score pairs, each given as its texts and its clips by name, in order; after the budget's end a BudgetError."""
        requests = [self._sent(*item) for item in items]
        calls = [request for request in requests if isinstance(request, Request)]
        replies = iter(self.client.complete_all(calls, on_progress, lambda reply: is_readable(reply, self._read)))
        return [request if isinstance(request, Unscored) else self._judged(next(replies)) for request in requests]

    def estimate(self, items: Sequence[tuple[Mapping[str, str], Mapping[str, float]]]) -> Bill:
        """Return an upper estimate of the cost, of texts and the clips' lengths in seconds."""
        calls: list[Request | Unscored] = []
        for texts, lengths in items:
            sounds = {name: Audio(b"", length_s, self.config.audio.format) for name, length_s in lengths.items()}
            try:
                calls.append(self._request(texts, sounds))
            except JudgeError as error:
                calls.append(Unscored(self.name, str(error)))
        return self.client.estimate(calls)

    def _sent(self, texts: Mapping[str, str], clips: Mapping[str, Clip]) -> Request | Unscored:
        sent = SentAudio(self.config.audio)
        try:
            order = clip_order(self.task.id, clips)
            return self._request(texts, {name: sent.alone(name, clips[name]) for name in order})
        except JudgeError as error:
            return Unscored(self.name, str(error))

    def _request(self, texts: Mapping[str, str], sounds: Mapping[str, Audio]) -> Request:
        """Return the request for one pair; a missing, unknown or too short text or clip raises a JudgeError."""
        parts: list[str | Audio] = []
        samples = {name: int(sound.duration_s * RATE_HZ) for name, sound in sounds.items()}
        for before, name in user_parts(self.task.id, texts, samples):
            parts += [before, sounds[name]]
        return Request((Message("system", (self._system,)), Message("user", tuple(parts))), self._schema)

    def _read(self, text: str) -> DimensionScores:
        return read_scores(self.task, text)

    def _judged(self, reply: Reply | JudgeError | BudgetError) -> Judged:
        if isinstance(reply, BudgetError):
            return reply
        try:
            if isinstance(reply, JudgeError):
                raise reply
            return self._read(require_complete(reply))
        except JudgeError as error:
            return Unscored(self.name, str(error), reply.text if isinstance(reply, Reply) else "")


def json_format(task: Task) -> str:
    """Return the format of a reply in words."""
    dimensions = ", ".join(f'"{dimension.key}": {{"explanation": "...", "score": SCORE}}' for dimension in task.dimensions)
    return (
        "Reply with one JSON object and nothing else:\n"
        f'{{"speech_a": {{{dimensions}}}, "speech_b": {{the same keys}}, "summary": "...", "better": "A" or "B"}}\n'
        f"SCORE is a whole number from {task.low} to {task.high}. An explanation is one or two sentences about what you hear; "
        "the summary has two to four about how the two differ and why the winner wins."
    )


def json_schema(task: Task) -> dict[str, Any]:
    """Return the JSON schema of a reply."""
    score = {"type": "integer", "enum": list(range(task.low, task.high + 1))}
    scored = _object({"explanation": {"type": "string"}, "score": score})
    side = _object({key: scored for key in task.keys})
    return _object(
        {"speech_a": side, "speech_b": side, "summary": {"type": "string"}, "better": {"type": "string", "enum": list(SIDES)}}
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read_scores(task: Task, text: str) -> DimensionScores:
    """Read the scores of a reply. Raises JudgeError: a key or words are missing, a score is off, or objects differ."""
    objects = verdict_objects(text, KEYS)
    values = {key: agreed([verdict[key] for verdict in objects if key in verdict]) for key in KEYS}
    first, second = (_side(task, SPEECH[side], values[SPEECH[side]]) for side in SIDES)
    better = values["better"]
    if better not in SIDES:
        raise JudgeError(f"better: {better!r} is neither A nor B")
    return DimensionScores((first, second), _words("summary", values["summary"]), better, text)


def _side(task: Task, name: str, value: Any) -> SideScores:
    if not isinstance(value, dict) or set(value) != set(task.keys):
        raise JudgeError(f"{name}: expected the keys {', '.join(task.keys)}")
    return SideScores(
        tuple(float(_score(task, f"{name}.{key}", value[key])) for key in task.keys),
        tuple(_words(f"{name}.{key}", value[key].get("explanation")) for key in task.keys),
    )


def _score(task: Task, name: str, value: Any) -> int:
    score = value.get("score") if isinstance(value, dict) else None
    if isinstance(score, bool) or not isinstance(score, int | float) or score not in range(task.low, task.high + 1):
        raise JudgeError(f"{name}: {score!r} is no whole number from {task.low} to {task.high}")
    return int(score)


def _words(name: str, value: Any) -> str:
    text = plain_words(value) if isinstance(value, str) else ""
    if not text:
        raise JudgeError(f"{name}: no words")
    return text
