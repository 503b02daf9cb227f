"""The tasks of an audio judge, one prompt each (AudioJudge, Tables 5 to 7; StyleSet, Tables 3 to 5), and their replies.

A reply that does not hold exactly what its task allows gives no vote. It is never guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.judges.parsing import BOUNDED_TEXT, agreed, reasoning_of, verdict_objects
from paras2s.reward.judges.votes import POINTS
from paras2s.types import PAIR_LABELS, MatchLabel, PairLabel

Kind = Literal["winner", "winner_or_tie", "match", "score", "realism"]
PAIRWISE: tuple[Kind, ...] = ("winner", "winner_or_tie", "match")
SCALES: dict[Kind, tuple[int, ...]] = {"score": (1, 2, 3, 4, 5), "realism": (0, 1)}
# At the very end: text before it may quote a clip, or be a consideration.
FINAL_SCORE = re.compile(r"final\s+score\W*?\[\[\s*(-?\d+)\s*\]\]\W*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class AudioTask:
    """One task. `prompt` is the file of the user's message; `instructed` tells whether the clips answer an instruction.

    `inputs` are the keys that `Exchange.task_inputs` must have; `reply_format` is JSON or a number in double brackets.
    """

    name: str
    kind: Kind
    prompt: str
    instructed: bool = False
    inputs: tuple[str, ...] = ()
    reply_format: Literal["json", "brackets"] = "json"

    @property
    def clips(self) -> int:
        """The number of clips that are judged at once."""
        return 2 if self.kind in PAIRWISE else 1

    @property
    def key(self) -> str:
        """The key of the verdict in the reply."""
        return {"match": "match", "score": "score", "realism": "score"}.get(self.kind, "label")

    @property
    def labels(self) -> tuple[PairLabel | MatchLabel, ...]:
        """The possible labels of a pair; () for a single clip."""
        if self.kind == "match":
            return get_args(MatchLabel)
        return () if self.clips == 1 else PAIR_LABELS if self.kind == "winner_or_tie" else ("1", "2")

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the reply; None if it is no JSON."""
        if self.reply_format != "json":
            return None
        verdict: dict[str, Any] = {"type": "string", "enum": list(self.labels)}
        if self.kind == "match":
            verdict = {"type": "boolean"}
        elif self.clips == 1:
            verdict = {"type": "integer", "enum": list(SCALES[self.kind])}
        return {
            "type": "object",
            "properties": {"reasoning": BOUNDED_TEXT, self.key: verdict},
            "required": ["reasoning", self.key],
            "additionalProperties": False,
        }

    def read(self, text: str) -> tuple[PairLabel | MatchLabel | float, str]:
        """Read the verdict (label or number) and its reasoning. Raises JudgeError: missing, or unknown to this task."""
        if self.reply_format == "brackets":
            return self._read_brackets(text)
        objects = verdict_objects(text, (self.key,))
        return agreed([self._verdict(reply[self.key]) for reply in objects]), reasoning_of(objects[-1])

    def _read_brackets(self, text: str) -> tuple[float, str]:
        match = FINAL_SCORE.search(text)
        if match is None:
            raise JudgeError("the reply does not end with a final score in double brackets")
        return float(self._on_scale(int(match.group(1)))), text[: match.start()].strip()

    def _verdict(self, value: Any) -> PairLabel | MatchLabel | float:
        if self.clips == 1:
            score = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
            return float(self._on_scale(score))
        if self.kind == "match":
            match = {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else value
            if not isinstance(match, bool):
                raise JudgeError(f"match: {value!r} is neither true nor false")
            return "same" if match else "different"
        # 1 and "1" cannot be taken for anything else; True is not 1.
        label = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else value
        for known in self.labels:
            if label == known:
                return known
        raise JudgeError(f"label: {value!r} is not one of {', '.join(self.labels)}")

    def _on_scale(self, value: Any) -> int:
        scale = SCALES[self.kind]
        if isinstance(value, bool) or not isinstance(value, int | float) or value not in scale:
            raise JudgeError(f"score: {value!r} is not a whole number from {scale[0]} to {scale[-1]}")
        return int(value)

    def example_reply(self, label: str, reasoning: str) -> str:
        """Return the assistant's reply to an example with this label. Raises JudgeError: the task knows no such label."""
        import json

        if self.reply_format == "brackets":
            return f"{reasoning}\nFinal score: [[{self._on_scale(_number(label))}]]".strip()
        verdict: Any = label.strip().lower()
        label = verdict
        if self.kind == "match":
            if label not in self.labels:
                raise JudgeError(f"label: {label!r} is not one of {', '.join(self.labels)}")
            verdict = label == "same"
        elif self.clips == 1:
            verdict = self._on_scale(_number(label))
        else:
            self._verdict(label)
        return json.dumps({**({"reasoning": reasoning} if reasoning else {}), self.key: verdict}, ensure_ascii=False)


def _number(label: str) -> Any:
    try:
        return float(label)
    except ValueError:
        return label


TASKS: dict[str, AudioTask] = {
    task.name: task
    for task in (
        # AudioJudge, Table 5.
        AudioTask("pronunciation", "match", "listen_ask_pronunciation"),
        AudioTask("speaker_identity", "match", "listen_ask_speaker"),
        AudioTask("speaking_rate", "winner", "listen_ask_rate"),
        AudioTask("clip_quality", "winner", "listen_ask_quality"),
        AudioTask("chat_content", "winner_or_tie", "listen_ask_content", instructed=True),
        AudioTask("standard", "winner_or_tie", "listen_ask_better", instructed=True),
        # AudioJudge, Table 7: the judges of the ensemble.
        AudioTask("lexical", "winner_or_tie", "listen_ask_better", instructed=True),
        AudioTask("paralinguistic", "winner_or_tie", "listen_ask_better", instructed=True),
        AudioTask("speech_quality", "winner_or_tie", "listen_ask_better", instructed=True),
        # AudioJudge, appendix E.
        AudioTask("mos", "score", "listen_ask_mos"),
        # StyleSet, Tables 3 to 5.
        AudioTask("style_following", "score", "listen_ask_style", inputs=("text", "style"), reply_format="brackets"),
        AudioTask("role_play_style", "score", "listen_ask_role_play", inputs=("context",), reply_format="brackets"),
        AudioTask("role_play_realism", "realism", "listen_ask_role_play", inputs=("context",), reply_format="brackets"),
    )
}


def find_task(name: str) -> AudioTask:
    """Find a task by name. Raises ConfigError: there is none of that name."""
    if name not in TASKS:
        raise ConfigError(f"tasks: there is no {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]


def points_of(verdict: PairLabel | MatchLabel | float) -> float:
    """Return a vote as a number: the points of a label, a score as it is."""
    return verdict if isinstance(verdict, float) else POINTS[verdict]
