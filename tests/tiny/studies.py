"""Small studies and benched runs for tests, with tones for clips."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import soundfile

from paras2s.studies.clicks import Action, Click
from paras2s.studies.store import StudyStore, make_study
from paras2s.studies.study import Answer, StudyItem, as_study

RATE_HZ = 16_000
QUESTIONS = ("content", "voice_quality", "paralinguistics", "overall")
_numbers = itertools.count()


def tone(path: Path, pitch_hz: float, duration_s: float = 0.2) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(int(RATE_HZ * duration_s)) / RATE_HZ
    soundfile.write(path, 0.1 * np.sin(2 * np.pi * pitch_hz * times), RATE_HZ)
    return path.name


def pair_items(folder: Path, count: int, gold: int = 0) -> list[StudyItem]:
    """Pairs of the systems "ours" and "theirs", two to an instruction; the first `gold` of them are gold: content "1"."""
    items = []
    for number in range(count):
        clips = [tone(folder / f"{number}-{name}.wav", 200 + 20 * number + 7 * at) for at, name in enumerate(("q", "a", "b"))]
        answers = (Answer(system="ours", clip=clips[1]), Answer(system="theirs", clip=clips[2]))
        values = {"content": "1"} if number < gold else {}
        items.append(
            StudyItem(id=f"i{number}", question=clips[0], answers=answers, instruction_id=f"c{number // 2}", gold=values)
        )
    return items


def single_items(folder: Path, scores: list[float | str]) -> list[StudyItem]:
    """One answer of "ours" for each score of the judge "strict/1"."""
    return [
        StudyItem(
            id=f"i{number}",
            category="emotion",
            answers=(Answer(system="ours", clip=tone(folder / f"{number}.wav", 300 + 9 * number), scores={"strict/1": score}),),
        )
        for number, score in enumerate(scores)
    ]


def make(folder: Path, kind: str, items: list[StudyItem], *people: str) -> StudyStore:
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


def bench_row(system: str, query: str, number: int, score: float | None, judge: str = "rubric/1/x") -> dict[str, object]:
    scored = {"score": score, "unscored": None if score else "no words", "fitting": (score or 0) >= 4}
    return {
        "system": system, "query_id": query, "contrast_id": query[:2], "category": "emotion", "style": "sad",
        "question_text": "words", "question_clip": f"{query}.wav", "answer_index": number, "text_stream": "",
        "transcript": None, "tone": None, "tone_scores": {}, "reason": "", "family": None,
        "answer_clip": f"{system}-{query}-{number}.wav",
        "duration_s": 1.0, "word_error_rate": None, "judge": judge, "model_score": None, **scored,
    }  # fmt: skip


def bench_run(folder: Path) -> Path:
    rows = {
        "a.jsonl": [bench_row("a", "q1", 0, 5.0), bench_row("a", "q1", 1, 1.0), bench_row("a", "q2", 0, 4.0)],
        "b.jsonl": [bench_row("b", "q1", 0, 2.0), bench_row("b", "q2", 0, None)],
        "independent/a.jsonl": [bench_row("a", "q1", 0, 3.0, "other/1/y")],
    }
    for name, written in rows.items():
        path = folder / "bench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in written))
        for row in written:
            for clip in (row["question_clip"], row["answer_clip"]):
                tone(folder / str(clip), 250)
    return folder
