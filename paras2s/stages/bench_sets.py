"""`paras2s bench paras2s` and `bench guard`: spoken answers to a dataset's held-out questions, or to VoiceBench's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.acoustics.asr import normalise_words, transcribe, word_error_rate
from paras2s.audio import Clip, read_clip, write_clip
from paras2s.bench.respondents import (
    SUFFIXES,
    EndpointRespondent,
    FolderRespondent,
    PolicyRespondent,
    Respondent,
    Response,
    SpokenQuestion,
    WrittenRespondent,
    question_of_query,
)
from paras2s.bench.rows import FITTING_SCORE, AnswerRow, load_rows, save_rows
from paras2s.config import load_audio_chat, load_curation
from paras2s.data_gen.manifest import Manifest, load_manifest
from paras2s.errors import BudgetError, ConfigError
from paras2s.records import Query, Unscored, Verdict
from paras2s.reward.blueprint.build import build_blueprints
from paras2s.reward.blueprint.schema import RESPONSE
from paras2s.reward.judges.llm_judge import Exchange, LLMJudge, Utterance
from paras2s.reward.judges.rubric import Question, RubricJudge
from paras2s.stages.progress import progress_bar

YARDSTICKS = ("cascade", "topline")
CHUNK_ANSWERS = 64


@dataclass(frozen=True)
class BenchAsked:
    """What is benched: a dataset, one role of it, systems by name and how each is reached, and where rows go."""

    data: Path
    role: str
    systems: dict[str, str]
    answers: int
    out: Path
    curation: Path | None
    cache_dir: Path
    temperature: float = 1.0
    seed: int = 0


def open_respondent(spec: str, asked: BenchAsked) -> Respondent:
    """A system by its spec: `cascade`, `topline`, an endpoint's YAML, a checkpoint's folder, or a folder of clips.

    Raises:
        ConfigError: it is none of these, or a yardstick without a curation's config.
    """
    if spec in YARDSTICKS:
        if asked.curation is None:
            raise ConfigError(f"--curation: the {spec} needs a curation's YAML: its tester writes, its agent speaks")
        return WrittenRespondent(load_curation(asked.curation), told_style=spec == "topline")
    path = Path(spec)
    if path.suffix in (".yaml", ".yml"):
        return EndpointRespondent(load_audio_chat(path), asked.cache_dir)
    if (path / "policy.json").is_file():
        return PolicyRespondent(path, asked.temperature, asked.seed)
    if path.is_dir():
        return FolderRespondent(path)
    raise ConfigError(f"--system: {spec!r} is no folder, no YAML of an endpoint, and neither {' nor '.join(YARDSTICKS)}")


class SetJudge:
    """One answer at a time or many: an LLM judge, or the rubric over the same blueprints."""

    def __init__(self, judge: LLMJudge | None, rubric_extractors: Sequence[Any] = ()) -> None:
        self.judge = judge
        self._rubric = RubricJudge()
        self._extractors = judge.extractors if judge else list(rubric_extractors)

    def judge_all(self, pairs: Sequence[tuple[Query, Clip]]) -> list[tuple[Verdict | Unscored, str | None]]:
        """A verdict and the words heard (None: not measured) for each query's answer.

        Raises:
            BudgetError: the budget ended; what was said is kept.
        """
        clips = [clip for _, clip in pairs]
        blueprints = build_blueprints(clips, self._extractors, self.judge.kept if self.judge else None)
        heard = [one.value(RESPONSE) for one in blueprints]
        if self.judge is None:
            found: list[Any] = [
                self._rubric.judge(Question(query.text or "", query.style or ""), blueprint)
                for (query, _), blueprint in zip(pairs, blueprints, strict=True)
            ]
        else:
            found = self.judge.answers([Exchange(Utterance(None, q.text, q.style), clip) for q, clip in pairs])
        for one in found:
            if isinstance(one, BudgetError):
                raise one
        return list(zip(found, heard, strict=True))


def bench_system(
    asked: BenchAsked, manifest: Manifest, name: str, judge: SetJudge, console: Console, quiet: bool
) -> list[AnswerRow]:
    """Rows of one system: its answers are written beside them, so that people can listen."""
    queries = [query for query in manifest.queries if query.role == asked.role]
    if not queries:
        raise ConfigError(f"{asked.data}: no queries of role {asked.role}")
    questions = [question_of_query(query, manifest.folder) for query in queries]
    respondent = open_respondent(asked.systems[name], asked)
    with progress_bar(console, f"{name} answers", len(questions), quiet) as bar:
        responses = respondent.respond(questions, asked.answers, bar.at)
    flat = [(query, n, one) for query, row in zip(queries, responses, strict=True) for n, one in enumerate(row)]
    rows: list[AnswerRow] = []
    with progress_bar(console, f"judging {name}", len(flat), quiet) as bar:
        for start in range(0, len(flat), CHUNK_ANSWERS):
            chunk = flat[start : start + CHUNK_ANSWERS]
            judged = iter(judge.judge_all([(query, one.clip) for query, _, one in chunk if one.clip is not None]))
            for query, n, one in chunk:
                relative = Path("samples") / name / f"{query.id}-{n}.wav"
                if one.clip is None:
                    verdict: tuple[Any, str | None] = (Unscored("", one.failed or "no answer"), None)
                else:
                    write_clip(asked.out / relative, one.clip)
                    verdict = next(judged)
                rows.append(_row(name, query, n, one, verdict, manifest, relative))
            bar.at(len(rows), len(flat))
    return rows


def _row(
    system: str, query: Query, number: int, one: Response, verdict: tuple[Verdict | Unscored, str | None],
    manifest: Manifest, relative: Path,
) -> AnswerRow:  # fmt: skip
    found, heard = verdict
    scored = found if isinstance(found, Verdict) else None
    comparable = heard is not None and bool(normalise_words(one.text))
    return AnswerRow(
        system=system,
        query_id=query.id,
        contrast_id=query.contrast_id,
        category=query.category or "",
        style=query.style or "",
        question_text=query.text or "",
        question_clip=str(manifest.folder / query.clip),
        answer_index=number,
        text_stream=one.text,
        transcript=heard,
        tone=None,
        tone_scores={},
        score=scored.score if scored else None,
        unscored=None if scored else (found.reason if isinstance(found, Unscored) else "no verdict"),
        reason=scored.reason if scored else "",
        family=None,
        fitting=bool(scored and scored.score >= FITTING_SCORE),
        answer_clip=str(relative),
        duration_s=one.clip.duration_s if one.clip else 0.0,
        word_error_rate=word_error_rate(one.text, heard or "") if comparable else None,
        judge=f"{scored.judge}/{scored.version}/{scored.prompt_hash}" if scored else "",
        model_score=None,
    )


def bench_sets(asked: BenchAsked, judge: SetJudge, console: Console, quiet: bool) -> dict[str, list[AnswerRow]]:
    """All systems, each written as soon as it is done; rows of systems benched earlier into the same folder stand beside."""
    manifest = load_manifest(asked.data)
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
    from paras2s.bench.human_scores import AnswerKey

    scores: dict[Any, float | Unscored] = {}
    for name, rows in systems.items():
        several = any(row.answer_index for row in rows)
        for row in rows:
            key = AnswerKey(f"{row.query_id}-{row.answer_index}" if several else row.query_id, name, row.category)
            scores[key] = Unscored("", row.unscored or "") if row.score is None else row.score
    return scores


def guard_transcripts(
    spec: str, ids: Sequence[str], questions: Path | None, asked: BenchAsked, console: Console, quiet: bool
) -> dict[str, str | Unscored]:
    """What a system said to a guard's questions, as Whisper hears it; an answer that is not there is unscored.

    Raises:
        ConfigError: the system must be asked, and there is no folder of spoken questions.
    """
    respondent = open_respondent(spec, asked)
    if isinstance(respondent, FolderRespondent):
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


def guard_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Guard rows as JSON."""
    return [asdict(row) for row in rows]
