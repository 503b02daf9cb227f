"""The part that TRL, verl and ms-swift share: a judge, served or in this process, and a trainer's rows as groups."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from paras2s.audio.clip import Clip, make_clip, read_clip
from paras2s.clients.rewards import AnswerScore, RewardClient, on_our_scale
from paras2s.configs.schema.base import parse_config
from paras2s.configs.schema.endpoints import HttpRewardConfig
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion, SaidBefore, Scores
from paras2s.types import Unscored

if TYPE_CHECKING:
    from paras2s.integrations.scorer import Scorer

log = logging.getLogger(__name__)
# Columns of a data set that the reward reads beside the prompt.
STYLE, QUESTION, QUESTION_AUDIO, ANSWER_AUDIO = "style", "question", "question_audio", "answer_audio"
HISTORY = "history"


class JudgeReward:
    """Scores of a judge for rows of a trainer: from a reward server by its address, or from a judge of this process.

    `judge` is an http address, or whatever `paras2s serve` takes; `options` are those of the source `http`, or dotted keys of
    the judge's config. `scope` is whether answers are judged by the whole dialogue or by its last turn alone.
    """

    def __init__(
        self, judge: str, tone: str | Path | None = None, scope: Literal["dialogue", "last"] = "dialogue", **options: Any
    ) -> None:
        """Open the judge. Raises ConfigError: there is no such judge, or a wrong option."""
        if scope not in ("dialogue", "last"):
            raise ConfigError(f"scope: {scope!r}; give dialogue, or last to judge the last turn alone")
        self.judge, self.scope = judge, scope
        self._client: RewardClient | None = None
        if judge.startswith(("http://", "https://")):
            self._client = RewardClient(parse_config({"url": judge, **options}, judge, HttpRewardConfig))
            return
        from paras2s.integrations.scorer import open_scorer

        # Trainers call rewards from several threads, and no judge is made for that.
        self._lock = threading.Lock()
        self._scorer = open_scorer(judge, options, None if tone is None else Path(tone))

    def scores(self, groups: Sequence[Group]) -> list[Scores]:
        """Return the score of every answer, from 1 to 5. Raises BudgetError: spent, or the server failed too often."""
        if self._client is not None:
            from paras2s.reward.sources.http import HttpSource

            return HttpSource(self._client).score(groups)
        scorer = self._scorer
        with self._lock:
            return [[_value(outcome, scorer) for outcome in row] for row in scorer.score(groups)]

    def of_rows(self, answers: Sequence[str], prompts: Sequence[Any], columns: Mapping[str, Any]) -> Scores:
        """Return a score for each row of a trainer's batch, in its order.

        Rows with the same question in succession are one group. `columns` may hold a value a row of `style`, `question` (its
        words; else those of the prompt), `question_audio`, `answer_audio`, and `history`: the messages before the question
        (else those of the prompt). Raises ValueError: audio or a history of no known form.
        """
        groups: list[Group] = []
        unread: dict[int, Unscored] = {}
        before: Any = None
        for row, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
            given = {name: columns[name][row] if columns.get(name) is not None else None for name in COLUMNS}
            words = given[QUESTION] or text_of(prompt)
            try:
                given_answer = GivenAnswer(0, answer, clip_of(given[ANSWER_AUDIO]))
                sound, history = clip_of(given[QUESTION_AUDIO]), self._history(given[HISTORY], prompt)
            except AudioError as error:
                unread[row] = Unscored(self.judge, str(error))
                continue
            key = words, given[STYLE], _digest(sound), [(turn.speaker, turn.text, _digest(turn.clip)) for turn in history]
            if key != before:
                groups.append(Group(RewardQuestion(str(row), None, words, given[STYLE], sound, history), ()))
            before = key
            groups[-1] = Group(groups[-1].question, (*groups[-1].answers, given_answer))
        judged = iter([score for row_scores in self.scores(groups) for score in row_scores])
        scores = [unread[row] if row in unread else next(judged) for row in range(len(answers))]
        if missing := [score for score in scores if isinstance(score, Unscored)]:
            log.warning("%d of %d answers are unscored, the first: %s", len(missing), len(scores), missing[0].reason)
        return scores

    def _history(self, given: Any, prompt: Any) -> tuple[SaidBefore, ...]:
        if self.scope == "last":
            return ()
        messages = before_the_question(prompt) if given is None else given
        return tuple(turn for message in messages if (turn := _said_before(message)) is not None)


COLUMNS = (STYLE, QUESTION, QUESTION_AUDIO, ANSWER_AUDIO, HISTORY)


@functools.lru_cache(maxsize=8)
def open_reward(judge: str, options: tuple[tuple[str, Any], ...] = ()) -> JudgeReward:
    """Return the reward of a judge, opened once a process."""
    return JudgeReward(judge, **dict(options))


def _value(outcome: AnswerScore | BudgetError, scorer: Scorer) -> float | Unscored:
    if isinstance(outcome, BudgetError):
        raise outcome
    if outcome.score is None:
        return Unscored(scorer.label, outcome.unscored or "")
    return on_our_scale(outcome.score, scorer.low, scorer.high)


def numbers(scores: Iterable[float | Unscored], unscored: float | None) -> list[float]:
    """Return scores as numbers; `unscored` is paid for a missing score. Raises JudgeError: one is missing, `unscored` None."""
    values: list[float] = []
    for score in scores:
        if isinstance(score, Unscored):
            if unscored is not None:
                values.append(unscored)
                continue
            raise JudgeError(
                f"an answer has no score ({score.reason}), and this trainer knows no missing reward: it would count it as 0 or "
                "fail; give unscored=NUMBER to pay that instead"
            )
        values.append(score)
    return values


def text_of(message: Any) -> str:
    """Return the text of a prompt or a completion: itself, or that of its last message."""
    if isinstance(message, str):
        return message
    if isinstance(message, Mapping):
        return text_of(message.get("content") or message.get("text") or "")
    if isinstance(message, Sequence) and message:
        parts = [part for part in message if isinstance(part, Mapping)]
        if parts and "role" in parts[-1]:
            return text_of(parts[-1])
        return "".join(text_of(part) for part in parts)
    return ""


def before_the_question(prompt: Any) -> Sequence[Any]:
    """Return the messages of a prompt before its last one, which is the question; of a text, or of parts, no message."""
    messages = [] if isinstance(prompt, str) or not isinstance(prompt, Sequence) else prompt
    return [message for message in messages[:-1] if isinstance(message, Mapping) and "role" in message]


def _said_before(message: Any) -> SaidBefore | None:
    """Return a message as a turn before the question; None if it is no speaker's (system, tool), or holds no words or sound."""
    if not isinstance(message, Mapping) or "role" not in message:
        raise ValueError(f"a turn before the question is a message with role and content, and not {message!r:.100}")
    if message["role"] not in ("user", "assistant"):
        return None
    content = message.get("content")
    parts = [] if isinstance(content, str) or not isinstance(content, Sequence) else content
    sounds = [part["audio"] for part in parts if isinstance(part, Mapping) and part.get("audio") is not None]
    text, clip = text_of(content or ""), clip_of(sounds[0] if sounds else None)
    return SaidBefore(message["role"], text, clip) if text or clip is not None else None


def _digest(clip: Path | Clip | None) -> str | None:
    return clip.digest if isinstance(clip, Clip) else None


def clip_of(value: Any) -> Clip | None:
    """Return a clip from a path, bytes, `datasets.Audio`, (samples, rate), a clip, None. Raises AudioError. ValueError."""
    if value is None or isinstance(value, Clip):
        return value
    if isinstance(value, str | Path | bytes):
        return read_clip(value)
    if isinstance(value, Mapping) and value.get("array") is not None:
        return make_clip(np.asarray(value["array"]), int(value["sampling_rate"]))
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        return read_clip(value.get("bytes") or value["path"])
    if isinstance(value, Sequence) and len(value) == 2:
        return make_clip(np.asarray(value[0]), int(value[1]))
    raise ValueError(f"audio is a path, bytes, datasets.Audio or (samples, rate), and not {type(value).__name__}")
