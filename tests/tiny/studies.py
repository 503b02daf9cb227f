"""Small studies for tests, with tones for clips."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import soundfile

from paras2s.studio.annotation.clicks import Action, Click
from paras2s.studio.annotation.store import StudyStore, make_study
from paras2s.studio.annotation.study import Answer, Item, as_study

RATE_HZ = 16_000
QUESTIONS = ("content", "voice_quality", "paralinguistics", "overall")
_numbers = itertools.count()


def tone(path: Path, pitch_hz: float, duration_s: float = 0.2) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(int(RATE_HZ * duration_s)) / RATE_HZ
    soundfile.write(path, 0.1 * np.sin(2 * np.pi * pitch_hz * times), RATE_HZ)
    return path.name


def pair_items(folder: Path, count: int, gold: int = 0) -> list[Item]:
    """Pairs of the systems "ours" and "theirs", two to an instruction; the first `gold` of them are gold: content "1"."""
    items = []
    for number in range(count):
        clips = [tone(folder / f"{number}-{name}.wav", 200 + 20 * number + 7 * at) for at, name in enumerate(("q", "a", "b"))]
        answers = (Answer(system="ours", clip=clips[1]), Answer(system="theirs", clip=clips[2]))
        values = {"content": "1"} if number < gold else {}
        items.append(Item(id=f"i{number}", question=clips[0], answers=answers, instruction_id=f"c{number // 2}", gold=values))
    return items


def single_items(folder: Path, scores: list[float | str]) -> list[Item]:
    """One answer of "ours" for each score of the judge "strict/1"."""
    return [
        Item(
            id=f"i{number}",
            category="emotion",
            answers=(Answer(system="ours", clip=tone(folder / f"{number}.wav", 300 + 9 * number), scores={"strict/1": score}),),
        )
        for number, score in enumerate(scores)
    ]


def make(folder: Path, kind: str, items: list[Item], *people: str) -> StudyStore:
    store = make_study(folder / "study", as_study(kind, "A study", 7, items), folder)  # type: ignore[arg-type]
    for name in people:
        store.add_annotator(name)
    return store


def click(item: int, action: Action, name: str = "", value: str = "", id: str | None = None, **more: object) -> Click:
    return Click(id or f"click-{next(_numbers)}", item, action, name, value, **more)  # type: ignore[arg-type]


def answer_pair(store: StudyStore, annotator: str, item: int, *labels: str) -> None:
    """One pair done: both played, the four labels (or one for all), and submitted."""
    for clip in ("1", "2"):
        store.add_click(annotator, click(item, "play", clip))
    for question, label in zip(QUESTIONS, labels * 4 if len(labels) == 1 else labels, strict=False):
        store.add_click(annotator, click(item, "choose", question, label))
    store.add_click(annotator, click(item, "submit"))


def answer_single(store: StudyStore, annotator: str, item: int, mos: int, fitness: int) -> None:
    store.add_click(annotator, click(item, "play", "1"))
    store.add_click(annotator, click(item, "choose", "mos", str(mos)))
    store.add_click(annotator, click(item, "choose", "fitness", str(fitness)))
    store.add_click(annotator, click(item, "submit"))
