"""`paras2s bench paras2s` and `bench guard`: spoken answers to a dataset's held-out questions, or to VoiceBench's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.audio.asr import normalise_words, transcribe, word_error_rate
from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.bench.results import FITTING_SCORE, AnswerRow, load_rows, save_rows
from paras2s.bench.systems import (
    SUFFIXES,
    CascadeSystem,
    EndpointSystem,
    FolderSystem,
    PolicySystem,
    Response,
    SpokenQuestion,
    System,
    question_of_query,
)
from paras2s.configs.schema.run import load_audio_chat, load_curation
from paras2s.data_gen.dataset import Manifest, load_manifest
from paras2s.errors import BudgetError, ConfigError
from paras2s.policy.registry import is_checkpoint
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.parallel import JUDGE_EXTRACTORS
from paras2s.reward.blueprint.schema import RESPONSE
from paras2s.reward.judges.base import Judge
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.rubric import Question, RubricJudge
from paras2s.types import Query, Unscored, Verdict
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json
from paras2s.utils.progress import progress_bar

YARDSTICKS = ("cascade", "topline")
CHUNK_ANSWERS = 64


@dataclass(frozen=True)
class BenchOptions:
    """What is benched: a dataset, one role of it, systems by name and how each is reached, and where rows go."""

    data: Path
    role: str
    systems: dict[str, str]
    answers: int
    out: Path
    curation: Path | None
    cache_dir: Path


def open_system(spec: str, asked: BenchOptions) -> System:
    """A system by its spec: `cascade`, `topline`, an endpoint's YAML, a checkpoint's folder, or a folder of clips.

    Raises:
        ConfigError: it is none of these, or a yardstick without a curation's config.
    """
    if spec in YARDSTICKS:
        if asked.curation is None:
            raise ConfigError(f"--curation: the {spec} needs a curation's YAML: its tester writes, its agent speaks")
        return CascadeSystem(load_curation(asked.curation), told_style=spec == "topline")
    path = Path(spec)
    if path.suffix in (".yaml", ".yml"):
        return EndpointSystem(load_audio_chat(path), asked.cache_dir)
    if is_checkpoint(path):
        return PolicySystem(path)
    if path.is_dir():
        return FolderSystem(path)
    raise ConfigError(f"--system: {spec!r} is no folder, no YAML of an endpoint, and neither {' nor '.join(YARDSTICKS)}")


@dataclass(frozen=True)
class Judgement:
    """What a judge says of one answer: a score, or why there is none; the transcript; of the rubric, what it recognised."""

    score: float | None
    unscored: str | None
    reason: str = ""
    transcript: str | None = None
    family: str | None = None
    tone: str | None = None


class AnswerJudge:
    """One judge for all systems: an LLM, or the rubric over its own blueprints. `name` is of it and of all it is asked with."""

    def __init__(self, judge: Judge) -> None:
        if isinstance(judge, LLMJudge):
            self._judge: LLMJudge | None = judge
            self._extractors, prompt_hash = judge.extractors, judge.answer_prompt.hash
        elif isinstance(judge, RubricJudge):
            self._judge, self._rubric = None, judge
            self._extractors, prompt_hash = make_extractors(JUDGE_EXTRACTORS, judge.tone), judge.prompt_hash
        else:
            raise ConfigError(f"--judge: {judge.name} gives no transcript of an answer; choose an LLM judge, or rubric")
        self.name = f"{judge.name}/{judge.version}/{prompt_hash}"

    def judge_all(self, pairs: Sequence[tuple[Query, Clip]], folder: Path) -> list[Judgement]:
        """A judgement of each query's answer; `folder` holds the queries' clips.

        Raises:
            BudgetError: the budget ended; what was said is kept.
        """
        blueprints = build_blueprints([clip for _, clip in pairs], self._extractors, self._judge.cache if self._judge else None)
        heard = [one.value(RESPONSE) for one in blueprints] if self._extractors else [None] * len(pairs)
        if self._judge is None:
            found = [
                self._rubric.find(Question(query.text or "", query.style or ""), blueprint)
                for (query, _), blueprint in zip(pairs, blueprints, strict=True)
            ]
            return [
                Judgement(None, one.reason, transcript=words)
                if isinstance(one, Unscored)
                else Judgement(one.score, None, one.reason, words, one.family, one.tone)
                for one, words in zip(found, heard, strict=True)
            ]
        exchanges = [self._judge.exchange_of(q.text, q.style, folder / q.clip, clip) for q, clip in pairs]
        judged = []
        for verdict, words in zip(self._judge.score_batch(exchanges), heard, strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            judged.append(
                Judgement(verdict.score, None, verdict.reason, words)
                if isinstance(verdict, Verdict)
                else Judgement(None, verdict.reason, transcript=words)
            )
        return judged


def bench_system(
    asked: BenchOptions, manifest: Manifest, name: str, judge: AnswerJudge, console: Console, quiet: bool
) -> list[AnswerRow]:
    """Rows of one system: its answers are written beside them, so that people can listen."""
    queries = [query for query in manifest.queries if query.role == asked.role]
    questions = [question_of_query(query, manifest.folder) for query in queries]
    respondent = open_system(asked.systems[name], asked)
    with progress_bar(console, f"{name} answers", len(questions), quiet) as bar:
        responses = respondent.respond(questions, asked.answers, bar.at)
    flat = [(query, n, one) for query, row in zip(queries, responses, strict=True) for n, one in enumerate(row)]
    rows: list[AnswerRow] = []
    with progress_bar(console, f"judging {name}", len(flat), quiet) as bar:
        for start in range(0, len(flat), CHUNK_ANSWERS):
            chunk = flat[start : start + CHUNK_ANSWERS]
            spoken = [(query, one.clip) for query, _, one in chunk if one.clip is not None]
            judged = iter(judge.judge_all(spoken, manifest.folder))
            for query, n, one in chunk:
                relative = Path("samples") / name / f"{query.id}-{n}.wav"
                found = Judgement(None, one.failed or "no answer")
                if one.clip is not None:
                    write_clip(asked.out / relative, one.clip)
                    found = next(judged)
                question = os.path.relpath(manifest.folder / query.clip, asked.out)
                rows.append(_row(name, query, n, one, found, (question, str(relative), judge.name)))
            bar.at(len(rows), len(flat))
    return rows


def _row(system: str, query: Query, number: int, one: Response, found: Judgement, named: tuple[str, str, str]) -> AnswerRow:
    """`named`: the question's and the answer's clip, relative to where rows are written, and the judge."""
    question_clip, answer_clip, judge = named
    comparable = found.transcript is not None and bool(normalise_words(one.text))
    return AnswerRow(
        system=system,
        query_id=query.id,
        contrast_id=query.contrast_id,
        category=query.category or "",
        style=query.style or "",
        question_text=query.text or "",
        question_clip=question_clip,
        answer_index=number,
        text_stream=one.text,
        transcript=found.transcript,
        tone=found.tone,
        tone_scores={},
        score=found.score,
        unscored=found.unscored,
        reason=found.reason,
        family=found.family,
        fitting=found.score is not None and found.score >= FITTING_SCORE,
        answer_clip=answer_clip,
        duration_s=one.clip.duration_s if one.clip else 0.0,
        word_error_rate=word_error_rate(one.text, found.transcript or "") if comparable else None,
        judge=judge,
        model_score=None,
    )


def claim_table(asked: BenchOptions, manifest: Manifest, judge: AnswerJudge) -> None:
    """Refuse a folder whose rows are of other questions or of another judge: they would stand in one table.

    Raises:
        ConfigError: names what differs.
    """
    queries = [query.id for query in manifest.queries if query.role == asked.role]
    if not queries:
        raise ConfigError(f"{asked.data}: no queries of role {asked.role}")
    here = {"questions": key_of([asked.role, queries]), "answers": asked.answers, "judge": judge.name}
    path = asked.out / "asked.json"
    there = read_json(path) if path.is_file() else here
    if other := [name for name in here if there.get(name) != here[name]]:
        raise ConfigError(
            f"{asked.out}: holds rows with other {other[0]} ({there.get(other[0])}); give another --out, or delete it"
        )
    write_json(path, here)


def bench_sets(asked: BenchOptions, judge: AnswerJudge, console: Console, quiet: bool) -> dict[str, list[AnswerRow]]:
    """All systems, each written as soon as it is done; rows of systems benched earlier into the same folder stand beside."""
    manifest = load_manifest(asked.data)
    claim_table(asked, manifest, judge)
    there = {path.stem: load_rows(path) for path in sorted(asked.out.glob("*.jsonl"))}
    made = {}
    for name in asked.systems:
        made[name] = bench_system(asked, manifest, name, judge, console, quiet)
        save_rows(asked.out / f"{name}.jsonl", made[name])
    return {**{name: rows for name, rows in there.items() if name not in made}, **made}


def automatic_scores(systems: dict[str, list[AnswerRow]]) -> dict[Any, float | Unscored]:
    """What human ratings are set against: one score an answer; its id is the query's, with the answer's number where it has
    several.
    """
    from paras2s.bench.human_correlation import AnswerKey

    scores: dict[Any, float | Unscored] = {}
    for name, rows in systems.items():
        several = any(row.answer_index for row in rows)
        for row in rows:
            key = AnswerKey(f"{row.query_id}-{row.answer_index}" if several else row.query_id, name, row.category)
            scores[key] = Unscored("", row.unscored or "") if row.score is None else row.score
    return scores


def voicebench_transcripts(
    spec: str, ids: Sequence[str], questions: Path | None, asked: BenchOptions, console: Console, quiet: bool
) -> dict[str, str | Unscored]:
    """What a system said to a guard's questions, as Whisper hears it; an answer that is not there is unscored.

    Raises:
        ConfigError: the system must be asked, and there is no folder of spoken questions.
    """
    respondent = open_system(spec, asked)
    if isinstance(respondent, FolderSystem):
        spoken = [SpokenQuestion(one, Path(one), "") for one in ids]
    else:
        if questions is None:
            raise ConfigError("--questions: give the folder with the spoken questions, ID.wav each, or a folder of answers")
        paths = [_find(questions, one) for one in ids]
        words = [one.text for one in transcribe([read_clip(path) for path in paths])]
        spoken = [SpokenQuestion(one, path, heard) for one, path, heard in zip(ids, paths, words, strict=True)]
    with progress_bar(console, "answers", len(spoken), quiet) as bar:
        responses = [row[0] for row in respondent.respond(spoken, 1, bar.at)]
    clips = [one.clip for one in responses if one.clip is not None]
    heard_again = iter(transcribe(clips))
    return {
        name: Unscored("", one.failed or "no answer") if one.clip is None else next(heard_again).text
        for name, one in zip(ids, responses, strict=True)
    }


def _find(folder: Path, name: str) -> Path:
    for suffix in SUFFIXES:
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    raise ConfigError(f"{folder / name}.wav: no such question; the guard's audio is named by its ids")


def voicebench_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Guard rows as JSON."""
    return [asdict(row) for row in rows]
