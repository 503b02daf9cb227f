"""Writes the messages and recordings of a judge's calls to a folder, to be read and heard."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paras2s.clients.chat import Audio
from paras2s.reward.judges.audio_judge.messages import JudgeRequest
from paras2s.types import to_json
from paras2s.utils.io import write_bytes, write_json


def write_dump(folder: Path, task: str, orders: Sequence[JudgeRequest]) -> None:
    """Write a folder for each order of a task: messages.json with every text, and the recordings. Raises StorageError."""
    for old in (folder / task).glob("order-*"):
        shutil.rmtree(old)
    for number, request in enumerate(orders, 1):
        target = folder / task / f"order-{number}"
        messages, marks, count = [], iter(request.marks), 0
        for message in request.messages:
            content: list[Any] = []
            for part in message.parts:
                if isinstance(part, Audio):
                    count += 1
                    name = f"audio-{count}.{part.format}"
                    write_bytes(target / name, part.data)
                    segments = [to_json(mark) for mark in next(marks)]
                    content.append({"audio": name, "duration_s": part.duration_s, "segments": segments})
                else:
                    content.append(part)
            messages.append({"role": message.role, "content": content})
        write_json(target / "messages.json", messages)
