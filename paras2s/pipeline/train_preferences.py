"""`paras2s align --preferences`: the rows of a file as an alignment learns from them, and a count of them beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paras2s.align.job import Augment
from paras2s.align.recorded import RecordedPreferences
from paras2s.configs.schema.align import AlignConfig, PreferencesConfig
from paras2s.data_gen.preference_file import PreferenceRow, SoundFacts, read_preferences, sound_facts, without_words
from paras2s.errors import ConfigError, DataError
from paras2s.rollout.demonstrations import DemonstrationFiles, RecordedClips
from paras2s.rollout.prompts import FOLDER
from paras2s.run import Run
from paras2s.types import Demonstration, Query
from paras2s.utils.io import read_json, write_json

# In the run's folder: which file its updates learn from.
LEARNED_FROM = "preferences.json"


@dataclass(frozen=True)
class PreferenceCount:
    """Counts of a file of preferences: rows (answers, for KTO), seconds of sound, and passes through the rows."""

    file: str
    method: str
    rows: int
    good: int
    bad: int
    question_s: float
    answer_s: float
    words_missing: int
    rows_per_step: int
    steps: int
    epochs: float

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)

    @property
    def text(self) -> str:
        """Return it in words."""
        what = f"{self.rows} pairs" if self.method == "DPO" else f"{self.rows} answers, {self.good} good and {self.bad} bad"
        lacks = f"; {self.words_missing} clips without words, which ASR transcribes" if self.words_missing else ""
        sound = f"{self.question_s:.1f} s of questions and {self.answer_s:.1f} s of answers"
        return (
            f"{self.file}: {self.method} on {what}; {sound}{lacks}\n"
            f"{self.steps} steps of {self.rows_per_step}: each is learned from {self.epochs:.2f} times"
        )


def count_preferences(config: AlignConfig) -> PreferenceCount:
    """Count what a run would learn from, without its policy. Raises ConfigError, DataError: as `open_preferences`."""
    preferences, rows, facts = _read(config)
    pairs = _of_pairs(config, preferences, rows)
    answers = [answer for row in rows for answer in row.answers]
    groups, per_step = len(rows) if pairs else len(answers), config.sampling.queries_per_step
    return PreferenceCount(
        file=str(preferences.file),
        method="DPO" if pairs else "KTO",
        rows=groups,
        good=sum(answer.good for answer in answers),
        bad=sum(not answer.good for answer in answers),
        question_s=sum(facts[row.question].duration_s for row in rows),
        answer_s=sum(facts[answer.clip].duration_s for answer in answers),
        words_missing=len(without_words(rows)),
        rows_per_step=per_step,
        steps=config.steps,
        epochs=config.steps * per_step / groups,
    )


def open_preferences(run: Run, augment: Augment, resume: bool) -> RecordedPreferences | None:
    """Return what the run of `align.preferences` learns from, None if the config has none; clips without words are
    transcribed.

    Raises:
        ConfigError: DPO of answers with labels, or a file that has changed since the resumed run began.
        DataError: a wrong row or clip; names file:line.
    """
    if run.config.align.preferences is None:
        return None
    preferences, rows, facts = _read(run.config.align)
    pairs = _of_pairs(run.config.align, preferences, rows)
    _check_same(run, preferences.file, resume)
    rows = _with_words(run, rows, preferences.file.parent)
    # A question of several rows is encoded once.
    queries = list({_name(row): _query(row, facts[row.question]) for row in rows}.values())
    answers = [(row, answer) for row in rows for answer in row.answers]
    demonstrations = [Demonstration(_name(row), answer.text or "", "", answer.clip) for row, answer in answers]
    folder, clips = (run.folder / FOLDER).resolve(), RecordedClips(preferences.file.parent.resolve())
    each = tuple((number,) for number in range(len(answers)))
    return RecordedPreferences(
        path=preferences.file,
        answers=DemonstrationFiles(folder, clips, demonstrations, queries, augment),
        groups=tuple((number, number + 1) for number in range(0, len(answers), 2)) if pairs else each,
        good=tuple(answer.good for _, answer in answers),
        lines=tuple(row.line for row, _ in answers),
        rates_hz=tuple(facts[answer.clip].sample_rate_hz for _, answer in answers),
    )


def _read(config: AlignConfig) -> tuple[PreferencesConfig, list[PreferenceRow], dict[str, SoundFacts]]:
    preferences = config.preferences
    assert preferences is not None
    rows = read_preferences(preferences.file)
    facts: dict[str, SoundFacts] = {}
    for row in rows:
        for clip in row.clips:
            try:
                facts[clip] = facts.get(clip) or sound_facts(preferences.file.parent / clip)
            except DataError as error:
                raise DataError(f"{preferences.file}:{row.line}: {error}") from error
    return preferences, rows, facts


def _of_pairs(config: AlignConfig, preferences: PreferencesConfig, rows: Sequence[PreferenceRow]) -> bool:
    """Return whether DPO learns from these rows, else KTO. Raises ConfigError, DataError: they are not what it needs."""
    single = next((row.line for row in rows if not row.is_pair), None)
    if preferences.loss == "dpo" and single is not None:
        raise DataError(
            f"{preferences.file}:{single}: an answer with a label, and DPO learns from pairs; leave the row out, or set "
            "align.preferences.loss to kto"
        )
    if preferences.loss != "kto" and single is None:
        if config.optimizer.micro_batch_size == 1:
            raise ConfigError(
                "align.optimizer.micro_batch_size: 1, and both answers of a pair go through together; set it to 2, or to null"
            )
        return True
    if config.sampling.queries_per_step == 1:
        raise ConfigError("align.sampling.queries_per_step: 1, and KTO compares the answers of a step; raise it to 2 or more")
    labels = {answer.good for row in rows for answer in row.answers}
    if len(labels) == 1:
        same = "good" if labels == {True} else "bad"
        raise DataError(f"{preferences.file}: every answer is {same}; KTO learns from good and bad answers: add the others")
    return False


def _check_same(run: Run, file: Path, resume: bool) -> None:
    """Check that a resumed run learns from what it began with, and note it. Raises ConfigError: the file has changed."""
    noted = run.folder / LEARNED_FROM
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if resume and noted.is_file() and read_json(noted).get("sha256") != digest:
        raise ConfigError(f"{file}: has changed since this run began; put the old file back, or start again without --resume")
    write_json(noted, {"file": str(file.resolve()), "sha256": digest})


def _with_words(run: Run, rows: list[PreferenceRow], folder: Path) -> list[PreferenceRow]:
    """Return the rows with the words of all clips: those that are missing as ASR transcribes them."""
    missing = without_words(rows)
    if not missing:
        return rows
    from paras2s.audio.asr import transcribe

    run.say(f"  {len(missing)} clips without words are transcribed")
    clips = RecordedClips(folder)
    transcripts = transcribe([clips.clip(name) for name in missing])
    words = {name: transcript.text for name, transcript in zip(missing, transcripts, strict=True)}

    def completed(row: PreferenceRow) -> PreferenceRow:
        answers = [replace(answer, text=words[answer.clip]) if answer.text is None else answer for answer in row.answers]
        return replace(row, words=words[row.question] if row.words is None else row.words, answers=tuple(answers))

    return [completed(row) for row in rows]


def _name(row: PreferenceRow) -> str:
    """Return the name of a row's question."""
    return f"{row.question} {row.words}" + (f" {row.history}" if row.history else "")


def _query(row: PreferenceRow, facts: SoundFacts) -> Query:
    return Query(
        id=_name(row),
        contrast_id=_name(row),
        category=None,
        topic=None,
        role="rl",
        speaker="",
        clip=row.question,
        duration_s=facts.duration_s,
        transcript=row.words or "",
        text=None,
        style=None,
        history=row.history,
    )
