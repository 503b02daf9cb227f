"""The curation pipeline (ParaS2S, section 3.1): write, test, assign, synthesise, filter, in rounds until every role is full.

Every round is a function of replies, clips and decisions that are all cached, so a stopped run that starts again repeats its
work without paying for it, and ends like an uninterrupted one. In memory are one round and a line for each sentence; the
tables are written as they grow.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paras2s.audio.clip import encode_clip, read_clip
from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.candidates import make_query
from paras2s.data_gen.corpora import CORPORA, CorpusTurn, LeftOut
from paras2s.data_gen.curation.categories import NAME, QueryCategory, load_categories
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.dedup import DuplicateFilter
from paras2s.data_gen.curation.human_check import Outcomes
from paras2s.data_gen.curation.leakage import LeakageCheck
from paras2s.data_gen.curation.list_parsing import NumberedList
from paras2s.data_gen.curation.llm_calls import PACKAGE, CurationLLM, Progress
from paras2s.data_gen.curation.scheduler import ListRequest, ScriptScheduler
from paras2s.data_gen.curation.synthesis import (
    AnswerTakes,
    ClipMeasurer,
    QueryClip,
    reject_broken_clips,
    synthesise_answers,
    synthesise_queries,
    take_name,
)
from paras2s.data_gen.curation.text_filters import check_relevance, reject, run_text_tests, write_answers
from paras2s.data_gen.curation.voices import Engines, check_voices, describe_styles, engine_of, query_name
from paras2s.data_gen.dataset import TableWriter
from paras2s.errors import ConfigError, DataError, JudgeError
from paras2s.reward.judges.prompts import read_prompt
from paras2s.types import Candidate, Demonstration, PastTurn, PlannedAnswer, Query, Role, Script
from paras2s.utils.io import append_jsonl, write_bytes, write_json
from paras2s.utils.seeds import seed_of

# Written as `NAME.new`, and renamed when a run ends without an error.
LOGS = ("texts.jsonl", "answers.jsonl", "lists.jsonl", "left_out.jsonl")
MIN_LIST = 5
CORPUS_ROLE: dict[str, Role] = {"train": "rl", "validation": "validation", "test": "test"}
NEUTRAL = "neutral"


@dataclass(frozen=True)
class CurationResult:
    """The result of a pipeline run. `missing` counts the contrasts that roles still lack, by "category/role"."""

    folder: Path
    written: int
    queries: int
    demonstrations: int
    missing: dict[str, int]
    overlaps: dict[str, str]
    spends: dict[str, Spend]


class Pipeline:
    """A run of the pipeline. `limit`: the most sentences to write, for a pilot."""

    def __init__(
        self, config: CurationConfig, progress: Progress, limit: int | None = None, ray_address: str | None = ""
    ) -> None:
        self.config, self.progress, self.limit = config, progress, limit
        self.categories = load_categories(config.category_file)
        check_config(config, self.categories)
        check_files(config)
        # A pilot's few sentences are spread over all pools.
        pools = max(1, len(ScriptScheduler(config, self.categories).pools()))
        size = config.list_size if limit is None else max(MIN_LIST, min(config.list_size, limit // pools))
        config = self.config = config.model_copy(update={"list_size": size})
        self.llm = CurationLLM.open(config, progress)
        self.scheduler = ScriptScheduler(config, self.categories)
        self.duplicates = DuplicateFilter(config.near_duplicate)
        self.engines = Engines(config)
        self.measurer = ClipMeasurer(config, ray_address)
        self.outcomes = Outcomes.load(config)
        self.leakage = LeakageCheck()
        self.manners: dict[str, list[str]] = {}
        # The turns of corpora before a script's, by its id.
        self.histories: dict[str, tuple[PastTurn, ...]] = {}
        self.written = 0

    def run(self) -> CurationResult:
        """Run all rounds and write the tables. Raises BudgetError. JudgeError: too many failures. DataError: splits overlap."""
        folder, counts = self.config.folder, {"queries": 0, "demonstrations": 0}
        for name in LOGS:
            (folder / f"{name}.new").unlink(missing_ok=True)
        try:
            with ExitStack() as stack:
                self.tables = {
                    kind: stack.enter_context(TableWriter(folder / f"{name}.parquet", kind))
                    # Closed in the opposite order: the queries' table marks the dataset as complete.
                    for kind, name in ((Query, "queries"), (Candidate, "candidates"), (Demonstration, "demonstrations"))
                }
                for written, assigned in self._rounds():
                    filtered = synthesise_queries(
                        assigned, self.categories, self.engines, self.manners, self.measurer, self.progress
                    )
                    clips = reject_broken_clips([replace(c, candidate=self.outcomes.judge(c.candidate)) for c in filtered])
                    counts["queries"] += self._write_queries(clips)
                    answers = synthesise_answers(clips, self.engines, self.measurer, self.progress)
                    counts["demonstrations"] += self._write_answers(answers, clips)
                    self._count(written, assigned, clips)
                overlaps = self.leakage.check()
        finally:
            spends = dict(self.llm.spends) | {"speech": self.engines.spend}
            for stage, spend in spends.items():
                append_jsonl(folder / "spend.jsonl", {"stage": stage, **asdict(spend)})
        for name in LOGS:
            if (folder / f"{name}.new").is_file():
                (folder / f"{name}.new").replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        missing = self.scheduler.missing()
        summary = {"written": self.written, "limit": self.limit, "missing": missing, "overlaps": overlaps, **counts}
        write_json(folder / "curated.json", summary)
        return CurationResult(folder, self.written, counts["queries"], counts["demonstrations"], missing, overlaps, spends)

    # Rounds.

    def _rounds(self) -> Iterator[tuple[list[Script], list[tuple[Script, Role]]]]:
        """Yield each round's written scripts, and the passed ones with their roles for synthesis; corpora come first."""
        for batch in self._corpus_batches():
            yield [], batch
        while True:
            lists = self.scheduler.next_lists(self._room())
            scripts = self.write_lists(lists) if lists else []
            # Sentences beyond the requested count are logged and not used.
            self._log("texts.jsonl", [asdict(script) for script in scripts if script.rejected_by is not None])
            scripts = [script for script in scripts if script.rejected_by is None][: self._room()]
            self.written += len(scripts)
            tested = self.test(scripts)
            passed = [script for script in tested if script.rejected_by is None]
            self._log("texts.jsonl", [asdict(script) for script in tested if script.rejected_by is not None])
            assigned = self.scheduler.assign(passed)
            if not lists and not assigned:
                break
            self._log("texts.jsonl", [asdict(script) for script, _ in assigned])
            self._describe(assigned)
            yield tested, assigned
        surplus = [reject(script, "surplus", "more than its roles need") for script in self.scheduler.leftover()]
        self._log("texts.jsonl", [asdict(script) for script in surplus])

    def _room(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.written)

    def test(self, scripts: Sequence[Script]) -> list[Script]:
        """Apply the rules, the duplicate filter and the three LLM tests."""
        checked = [self._apply_rules(script) for script in scripts]
        return run_text_tests(self.duplicates.drop(checked), self.llm)

    def _apply_rules(self, script: Script) -> Script:
        reason = self.categories[script.category].complaint(script.text)
        return reject(script, "rules", reason) if reason else script

    def write_lists(self, lists: Sequence[ListRequest]) -> list[Script]:
        """Request lists and return their sentences in order. A failed list is logged; a later run requests it again."""
        prompts = [
            (
                self.llm.prompt("write_system", self.categories[request.cell.category].prompt),
                {**_prompt_values(request), "count": str(self.config.list_size)},
            )
            for request in lists
        ]
        replies = self.llm.write_lists("lists", prompts, self.config.list_size)
        return [script for request, reply in zip(lists, replies, strict=True) for script in self._scripts(request, reply)]

    def _scripts(self, request: ListRequest, reply: NumberedList | JudgeError) -> list[Script]:
        cell = request.cell
        name = f"{cell.category}-{seed_of(cell.split, cell.topic, cell.styles):08x}-{request.part:02d}"
        if isinstance(reply, JudgeError):
            self._log("lists.jsonl", [{"list": name, "complaint": f"no list: {reply}"}])
            return []
        if reply.complaint:
            self._log("lists.jsonl", [{"list": name, "complaint": reply.complaint}])
        scripts = [
            Script(f"{name}-{line:03d}", cell.category, cell.topic, cell.split, item, cell.styles, f"{name}, line {line}")
            for line, item in enumerate((*reply.items, *reply.surplus), 1)
        ]
        count = len(reply.items)
        surplus = [reject(script, "list", f"beyond the {count} that were requested") for script in scripts[count:]]
        return [*scripts[:count], *surplus]

    def _log(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Append to a new version of a log, which replaces the old one when the run ends without an error."""
        with (self.config.folder / f"{name}.new").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def _describe(self, assigned: Sequence[tuple[Script, Role]]) -> None:
        """Let the writer describe new styles, for the engine that takes instructions."""
        styles = {
            style
            for script, _ in assigned
            if script.clip is None and engine_of(self.config, self.categories, script.category) == "openai"
            for style in script.styles[: script.spoken_styles]
        }
        if new := sorted(styles - self.manners.keys()):
            self.manners |= describe_styles(self.llm, new)

    # Corpora.

    def _corpus_batches(self) -> Iterator[list[tuple[Script, Role]]]:
        """Yield turns of published corpora that passed the relevance test, with their roles."""
        for name, root in self.config.corpora.items():
            turns, left_out = CORPORA[name](root, self.config.min_corpus_words)
            self._log("left_out.jsonl", [asdict(entry) for entry in left_out])
            neutral = [asdict(LeftOut(turn.id, name, "its style is neutral")) for turn in turns if turn.style == NEUTRAL]
            self._log("left_out.jsonl", neutral)
            turns = [turn for turn in turns if turn.style != NEUTRAL][: self._room()]
            for start in range(0, len(turns), self.config.texts_at_once):
                batch = turns[start : start + self.config.texts_at_once]
                scripts = [script_of_turn(turn) for turn in batch]
                if most := self.config.corpus_history:
                    self.histories |= {script.id: turn.history[-most:] for script, turn in zip(scripts, batch, strict=True)}
                self.written += len(scripts)
                tested = run_relevance(scripts, self.llm)
                self._log("texts.jsonl", [asdict(script) for script in tested])
                assigned = [(script, _role_of(script)) for script in tested if script.rejected_by is None]
                self._describe(assigned)
                yield assigned

    # Tables and clips.

    def _write_queries(self, clips: Sequence[QueryClip]) -> int:
        self.tables[Candidate].write([clip.candidate for clip in clips])
        queries = []
        for made in clips:
            if made.clip is None:
                continue
            if made.candidate.rejected_by == "people":
                # Annotators may still come to it, or take a decision back.
                write_bytes(self.config.folder / _query(made, made.role).clip, encode_clip(made.clip))
            if made.candidate.rejected_by is not None:
                continue
            self.leakage.add(made.candidate, made.script.split)
            query = self._with_history(_query(made, made.role), made.script)
            write_bytes(self.config.folder / query.clip, encode_clip(made.clip))
            queries.append(query)
        # The order of RL prompts must not reveal which two belong together, nor which style comes first.
        labelled = [query for query in queries if query.role != "rl"]
        unlabelled = sorted((query for query in queries if query.role == "rl"), key=lambda query: query.id)
        self.tables[Query].write([*labelled, *unlabelled])
        return len(queries)

    def _with_history(self, query: Query, script: Script) -> Query:
        """Return a query with the turns before it, whose clips are copied."""
        history = []
        for number, turn in enumerate(self.histories.get(script.id, ())):
            name = f"queries/{query.id}-{number}.wav"
            write_bytes(self.config.folder / name, encode_clip(read_clip(Path(turn.clip or ""))))
            history.append(replace(turn, clip=name))
        return replace(query, history=tuple(history))

    def _write_answers(self, answers: Sequence[AnswerTakes], clips: Sequence[QueryClip]) -> int:
        count, checked = 0, "demonstration" in self.config.human_check.roles
        accepted = {query_name(c.role, c.script.id, c.style) for c in clips if c.candidate.rejected_by is None}
        for answer in answers:
            picked, why = self.outcomes.pick(answer)
            names = [f"answers/{take_name(answer, take)}.wav" for take in range(len(answer.takes))]
            for take, (clip, _, _) in enumerate(answer.takes):
                if clip is not None and (checked or take == picked):
                    write_bytes(self.config.folder / names[take], encode_clip(clip))
            takes = [
                {"clip": name, "transcript": transcript, "word_error_rate": rate}
                for name, (_, transcript, rate) in zip(names, answer.takes, strict=True)
            ]
            row = {"query_id": answer.query_id, "text": answer.planned.text, "tone": answer.planned.tone, "takes": takes}
            self._log("answers.jsonl", [row | {"clearest": answer.picked, "picked": picked, "why": why}])
            if picked is not None and answer.query_id in accepted:
                demonstration = Demonstration(answer.query_id, answer.planned.text, answer.planned.tone, names[picked])
                self.tables[Demonstration].write([demonstration])
                count += 1
        return count

    def _count(self, written: Sequence[Script], assigned: Sequence[tuple[Script, Role]], clips: Sequence[QueryClip]) -> None:
        survived = {clip.script.id for clip in clips if clip.passed_filters}
        self.scheduler.count(
            written,
            [(script, role) for script, role in assigned if script.id in survived and script.category in self.categories],
        )


def _prompt_values(request: ListRequest) -> dict[str, str]:
    first, second = request.cell.styles
    return {"topic": request.cell.topic, "first": first, "second": second, "part": str(request.part)}


def check_config(config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
    """Refuse an impossible config before anything is paid. Raises ConfigError: names the category, prompt, voice or number."""
    if strange := [name for name in config.categories if name not in categories]:
        raise ConfigError(f"categories: {strange[0]!r} is not known; there are {', '.join(categories)}")
    if config.style_check == "tone" and config.tone is None:
        raise ConfigError("style_check: tone needs the classifier's file; give it as tone")
    if config.prompts is not None and not config.prompts.is_dir():
        raise ConfigError(f"prompts: {config.prompts} is not a folder")
    for name in config.categories:
        read_prompt(categories[name].prompt, config.prompts, PACKAGE)
    check_voices(config, categories)
    for name, (most, requested) in ScriptScheduler(config, categories).out_of_reach().items():
        raise ConfigError(
            f"contrasts: {name}: {requested} requested, of at most {most} sentences; raise max_lists, or add topics or styles"
        )


def check_files(config: CurationConfig) -> None:
    """Refuse missing clips, classifiers and models, before anything is paid. Raises ConfigError: names what is missing."""
    for voice in (*config.voices, config.agent):
        clip = voice.options.get("clip")
        if clip is not None and not Path(str(clip)).is_file():
            raise ConfigError(f"voices: {voice.name}: {clip} is missing; give a clip of the voice to copy")
    if config.tone is not None and not config.tone.is_file():
        raise ConfigError(f"tone: {config.tone} is missing; `paras2s data demo` fits one (RUN/data/tone_user.json)")
    if config.style_check == "emotion" and importlib.util.find_spec("funasr") is None:
        raise ConfigError("style_check: emotion needs emotion2vec: pip install 'paras2s[trace]', or set style_check to none")


def _query(made: QueryClip, role: Role) -> Query:
    assert made.clip is not None
    return make_query(made.candidate, role, query_name(role, made.script.id, made.style), made.clip.duration_s)


def script_of_turn(turn: CorpusTurn) -> Script:
    """Make a script of a corpus's turn: its own style, compared with a neutral one.

    StyleTalk has no audio, but an answer: its training turns become demonstrations, synthesised here.

    Raises:
        DataError: a style that cannot be part of a file name.
    """
    if not NAME.fullmatch(turn.style):
        raise DataError(f"{turn.corpus}, {turn.id}: style {turn.style!r} is no plain word; fix the corpus's table")
    answers: tuple[PlannedAnswer, ...] = ()
    if turn.answer is not None and turn.answer_style is not None:
        answers = (PlannedAnswer(turn.answer, turn.answer_style), PlannedAnswer(turn.answer, NEUTRAL))
    return Script(
        id=f"{turn.corpus}-{turn.id}",
        category=turn.corpus,
        topic=turn.dialogue,
        split=turn.split,
        text=turn.text,
        styles=(turn.style, NEUTRAL),
        source=f"{turn.corpus}, {turn.id}",
        spoken_styles=1,
        speaker=turn.speaker,
        clip=None if turn.clip is None else str(turn.clip),
        # For readers of the ledger: the last turn of a dialogue may be hard to understand alone.
        tests={"context": turn.context} if turn.context else {},
        answers=answers,
    )


def run_relevance(scripts: Sequence[Script], llm: CurationLLM) -> list[Script]:
    """Run the relevance test alone; turns of a corpus with answers were made to need their styles, and are not tested."""
    untested = {index: script for index, script in enumerate(scripts) if script.answers}
    indices = [index for index in range(len(scripts)) if index not in untested]
    tested = check_relevance(write_answers([scripts[index] for index in indices], llm), llm)
    result = untested | dict(zip(indices, tested, strict=True))
    return [result[index] for index in range(len(scripts))]


def _role_of(script: Script) -> Role:
    return "demonstration" if script.answers and script.clip is None and script.split == "train" else CORPUS_ROLE[script.split]
