"""Judges that listen, from their config: signals rendered, examples read, and what they are sent written out to look at."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paras2s.audio.clip import Clip
from paras2s.bench.judges import judge_path
from paras2s.clients.chat import Audio
from paras2s.configs.schema.audio_judge import listens, load_audio_judge_config
from paras2s.reward.judges.audio_judge.concatenation import Speak
from paras2s.reward.judges.audio_judge.ensemble import AspectJudge, as_one, open_judges
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.audio_judge.messages import JudgeRequest
from paras2s.types import to_json
from paras2s.utils.io import write_bytes, write_json


def is_listening(name: str) -> bool:
    """Whether a judge, by name or path, is one that hears the clips by AudioJudge's prompts."""
    return listens(judge_path(name))


def open_audio_judges(
    name: str, overrides: dict[str, Any] | None = None, tasks: Sequence[str] | None = None
) -> list[AudioJudge]:
    """One judge a task, that share endpoint, budget and cache; `tasks` in place of the config's.

    Raises:
        ConfigError: not such a config, or a part that it needs is not installed.
    """
    chosen = {} if tasks is None else {"tasks": list(tasks)}
    config = load_audio_judge_config(judge_path(name), (overrides or {}) | chosen)
    return open_judges(config, _voice())


def open_pair_judge(name: str, overrides: dict[str, Any] | None = None) -> AudioJudge | AspectJudge:
    """The judge of pairs that a config describes: of one task, or several with the rule that makes one of them."""
    return as_one(open_audio_judges(name, overrides))


def _voice() -> Speak | None:
    """Who speaks the signals between joined clips, where there is a voice."""
    if importlib.util.find_spec("piper") is None:
        return None

    def speak(texts: Sequence[str]) -> list[Clip]:
        from paras2s.data_gen.tts.piper_world import speak_plain

        return speak_plain(texts)

    return speak


def write_dump(folder: Path, judge: AudioJudge, orders: Sequence[JudgeRequest]) -> None:
    """What a judge is sent, an order each: messages.json with every text, and the recordings with their segments.

    Raises:
        StorageError: the disk refused.
    """
    for old in (folder / judge.task.name).glob("order-*"):
        shutil.rmtree(old)
    for number, asked in enumerate(orders, 1):
        place = folder / judge.task.name / f"order-{number}"
        messages, marks, count = [], iter(asked.marks), 0
        for message in asked.messages:
            content: list[Any] = []
            for part in message.parts:
                if isinstance(part, Audio):
                    count += 1
                    name = f"audio-{count}"
                    write_bytes(place / f"{name}.{part.format}", part.data)
                    segments = [to_json(mark) for mark in next(marks)]
                    content.append({"audio": f"{name}.{part.format}", "duration_s": part.duration_s, "segments": segments})
                else:
                    content.append(part)
            messages.append({"role": message.role, "content": content})
        write_json(place / "messages.json", messages)
