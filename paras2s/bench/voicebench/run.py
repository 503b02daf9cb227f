"""`paras2s bench voicebench`: whether a model still knows what it knew before post-training. VoiceBench, on transcripts.

After VoiceBench (arXiv 2410.17196; github.com/MatthewCYM/VoiceBench at 5338154), which ParaS2S puts beside its own benchmark
to see what training makes a model forget (appendix D.1, H; Fig. 3c, Fig. 4). Where this differs:

1. An answer that chooses none of the options is wrong. There, a letter is drawn at random for it.
2. `sd-qa` is the LLM's verdict alone. There, it is averaged with PEDANT, whose versions differ by 27 points (its issue 11).
3. The LLM scores once. There, three times at temperature 0.5; the mean counts, or the majority.
4. Prompts, refusal phrases and the reading of letters are our own, in English. Scores do not compare with its leaderboard.
5. `ifeval` (25 rules of its own) and `mtbench` (several turns) are left out, and refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import read_clip
from paras2s.bench.systems import FolderSystem, SpokenQuestion, answered_folder, find_clip, open_system
from paras2s.bench.voicebench.data import SUBSETS, VoiceBenchItem, load_voicebench
from paras2s.bench.voicebench.metrics import (
    FULL_POINTS,
    NEEDS_JUDGE,
    POINTS_PER_SCORE,
    VoiceBenchRow,
    VoiceBenchSummary,
    score_text,
    voicebench_summary,
)
from paras2s.clients.chat import Bill, LLMClient, Reply, Request
from paras2s.configs.schema.judges import JudgingConfig, find_judge
from paras2s.errors import BudgetError, ConfigError, DataError, JudgeError
from paras2s.reward.judges.parsing import ANSWER_SCHEMA, is_readable, read_as, read_score, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt
from paras2s.types import Unscored
from paras2s.utils.cache import JsonCache
from paras2s.utils.io import write_jsonl
from paras2s.utils.progress import progress_bar

OPEN_USER = "The user's request:\n{{request}}\n\nThe assistant's answer:\n{{answer}}"
QA_USER = "The question:\n{{request}}\n\nThe answer known to be right:\n{{reference}}\n\nThe assistant's answer:\n{{answer}}"


class FactVerdict(BaseModel):
    """The reply of the judge of `sd-qa`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reasoning: str
    correct: Literal["yes", "no"]


@dataclass(frozen=True)
class VoiceBenchOptions:
    """The options of `bench voicebench`: files of questions, one system by its spec, a judge's config, where rows go.

    `questions` is a folder of spoken questions, for systems that are still to answer; `overrides` change the judge's config.
    """

    files: Sequence[Path]
    system: str
    out: Path
    cache_dir: Path
    questions: Path | None = None
    subset: str | None = None
    judge: str | None = None
    curation: Path | None = None
    overrides: dict[str, Any] | None = None
    limit: int | None = None

    def items(self) -> list[VoiceBenchItem]:
        """Return the questions, `limit` of each file at most."""
        return [item for path in self.files for item in load_voicebench(path, self.subset)[: self.limit]]

    def open_client(self, calls: bool = True) -> LLMClient | None:
        """Return the judge's LLM; None without a judge."""
        if self.judge is None:
            return None
        config = find_judge(self.judge).config(JudgingConfig, self.overrides)
        return LLMClient(config.llm, JsonCache(self.cache_dir / "judging.sqlite"), calls=calls)


def run_voicebench(options: VoiceBenchOptions, console: Console, quiet: bool) -> VoiceBenchSummary:
    """Let a system answer, transcribe and score its answers, and write their rows. Raises ConfigError. BudgetError."""
    items, client = options.items(), options.open_client()
    transcripts = answer_transcripts(options, [item.id for item in items], console, quiet)
    with progress_bar(console, "answers judged", None, quiet) as bar:
        rows = score_voicebench(items, transcripts, client, bar.at)
    write_jsonl(options.out, (asdict(row) for row in rows))
    return voicebench_summary(rows)


def estimate_voicebench(options: VoiceBenchOptions, console: Console, quiet: bool) -> Bill:
    """Return the most that judging a folder of answers costs. Raises ConfigError: the system is still to answer."""
    answered_folder(options.system)
    items, client = options.items(), options.open_client(calls=False)
    if client is None:
        return Bill()
    transcripts = answer_transcripts(options, [item.id for item in items], console, quiet)
    return client.estimate(list(judge_requests(items, transcripts)[1].values()))


def answer_transcripts(
    options: VoiceBenchOptions, ids: Sequence[str], console: Console, quiet: bool
) -> dict[str, str | Unscored]:
    """Return Whisper's transcripts of a system's answers, or Unscored. Raises ConfigError: no spoken questions to ask."""
    system = open_system(options.system, options.curation, options.cache_dir)
    if isinstance(system, FolderSystem):
        questions = [SpokenQuestion(path, Path(path), "") for path in ids]
    else:
        if options.questions is None:
            raise ConfigError("--questions: give the folder with the spoken questions, ID.wav each, or a folder of answers")
        questions = _spoken_questions(options.questions, ids)
    with progress_bar(console, "answers", len(questions), quiet) as bar:
        responses = [row[0] for row in system.answer(questions, 1, bar.at)]
    transcripts = iter(transcribe([reply.clip for reply in responses if reply.clip is not None and not reply.missing]))
    return {
        name: Unscored("", response.missing) if response.missing else next(transcripts).text
        for name, response in zip(ids, responses, strict=True)
    }


def _spoken_questions(folder: Path, ids: Sequence[str]) -> list[SpokenQuestion]:
    paths = []
    for name in ids:
        if (path := find_clip(folder, name)) is None:
            raise ConfigError(f"{folder / name}.wav: no such question; VoiceBench's audio is named by its ids")
        paths.append(path)
    words = [transcript.text for transcript in transcribe([read_clip(path) for path in paths])]
    return [SpokenQuestion(name, path, text) for name, path, text in zip(ids, paths, words, strict=True)]


def score_voicebench(
    items: Sequence[VoiceBenchItem],
    transcripts: Mapping[str, str | Unscored],
    client: LLMClient | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[VoiceBenchRow]:
    """Score transcripts: a row an item, in order. Answers without a transcript, or that the LLM could not judge, are unscored.

    An empty transcript is an answer of silence. `on_progress` counts the calls of the LLM.

    Raises:
        DataError: an id occurs twice, or a transcript belongs to no item. BudgetError: the budget ended; replies so far stay
            in the cache.
    """
    rows, requests = judge_requests(items, transcripts)
    if client is not None and requests:
        replies = client.complete_all(list(requests.values()), on_progress, _is_readable)
        for name, reply in zip(requests, replies, strict=True):
            prompt = _prompts()[SUBSETS[rows[name].subset]]
            rows[name] = _judged(replace(rows[name], judge=client.config.model, prompt_hash=prompt.hash), reply)
    return [rows[item.id] for item in items]


def _prompts() -> dict[str, Prompt]:
    return {"open": Prompt(read_prompt("voicebench_open"), OPEN_USER), "qa": Prompt(read_prompt("voicebench_qa"), QA_USER)}


def judge_requests(
    items: Sequence[VoiceBenchItem], transcripts: Mapping[str, str | Unscored]
) -> tuple[dict[str, VoiceBenchRow], dict[str, Request]]:
    """Return the rows by id as far as they are known without a call, and the LLM's requests for the others.

    Raises:
        DataError: as `score_voicebench`.
    """
    if len({item.id for item in items}) < len(items):
        raise DataError("id: an item occurs more than once")
    if unknown := sorted(set(transcripts) - {item.id for item in items}):
        raise DataError(f"transcripts: {unknown[0]!r} belongs to no item")
    prompts = _prompts()
    schemas = {"open": ANSWER_SCHEMA, "qa": FactVerdict.model_json_schema()}
    rows: dict[str, VoiceBenchRow] = {}
    requests: dict[str, Request] = {}
    for item in items:
        transcript, kind = transcripts.get(item.id, Unscored("", "none was given")), SUBSETS[item.subset]
        if isinstance(transcript, Unscored):
            reason = f"no transcript: {transcript.reason}"
            rows[item.id] = VoiceBenchRow(item.id, item.subset, None, transcript.judge, unscored=reason)
        elif kind not in prompts:
            outcome = score_text(item, transcript)
            row = VoiceBenchRow(item.id, item.subset, transcript, "rules", FULL_POINTS * outcome.right, reason=outcome.reason)
            rows[item.id] = replace(row, undecided=outcome.undecided)
        else:
            rows[item.id] = VoiceBenchRow(item.id, item.subset, transcript, "", unscored=NEEDS_JUDGE)
            values = {"request": item.prompt, "reference": item.reference, "answer": transcript}
            requests[item.id] = Request(prompts[kind].messages(values, {}), schemas[kind])
    return rows, requests


def _is_readable(reply: Reply) -> bool:
    return is_readable(reply, read_score) or is_readable(reply, lambda text: read_as(text, FactVerdict))


def _judged(row: VoiceBenchRow, reply: Reply | JudgeError | BudgetError) -> VoiceBenchRow:
    """Return the row with an LLM's verdict, or with the reason why there is none."""
    if isinstance(reply, BudgetError):
        raise reply
    if not isinstance(reply, Reply):
        return replace(row, unscored=str(reply), cost_usd=None)
    row = replace(row, reply=reply.text, cost_usd=reply.cost_usd)
    try:
        if SUBSETS[row.subset] == "open":
            score, reason = read_score(require_complete(reply))
            return replace(row, score=POINTS_PER_SCORE * score, unscored=None, reason=reason)
        verdict = read_as(require_complete(reply), FactVerdict)
        return replace(row, score=FULL_POINTS * (verdict.correct == "yes"), unscored=None, reason=verdict.reasoning)
    except JudgeError as error:
        return replace(row, unscored=str(error))
