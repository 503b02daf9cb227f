"""The curation pipeline: write, check, test, deal, speak, filter, keep; round by round, until every role has what it wants.

Left out of ParaS2S, section 3.1: nothing. Every round is a function of replies, clips and decisions that are all
kept, so a stopped run that starts again repeats its work without paying for it, and ends as an unbroken one would. In memory is
one round and a line for each sentence; the tables are written as they grow.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paras2s.audio.clip import encode_clip
from paras2s.configs.schema.run import CurationConfig
from paras2s.data_gen.corpora import CORPORA, CorpusTurn, LeftOut
from paras2s.data_gen.curation.categories import NAME, QueryCategory, load_categories
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.dedup import Duplicates
from paras2s.data_gen.curation.leakage import Sides
from paras2s.data_gen.curation.list_parsing import NumberedList
from paras2s.data_gen.curation.llm_calls import PACKAGE, CurationLLM, Progress
from paras2s.data_gen.curation.scheduler import Dealer, ListRequest
from paras2s.data_gen.curation.synthesis import (
    AnswerMade,
    ClipMade,
    Ears,
    keep_whole_contrasts,
    speak_answers,
    speak_queries,
    take_name,
)
from paras2s.data_gen.curation.text_filters import reject, run_text_tests
from paras2s.data_gen.curation.voices import Engines, check_voices, describe_styles, engine_of, query_name, seed_of
from paras2s.data_gen.dataset import TableWriter
from paras2s.data_gen.review.decisions import Outcomes
from paras2s.errors import ConfigError, DataError, JudgeError
from paras2s.reward.judges.prompts import read_prompt
from paras2s.types import Candidate, Demonstration, PlannedAnswer, Query, Role, Script
from paras2s.utils.io import append_jsonl, write_bytes, write_json

# What takes its place when a run ends well.
LOGS = ("texts.jsonl", "answers.jsonl", "lists.jsonl", "left_out.jsonl")
MIN_LIST = 5
CORPUS_ROLE: dict[str, Role] = {"train": "rl", "validation": "validation", "test": "test"}
NEUTRAL = "neutral"


@dataclass(frozen=True)
class Curated:
    """What a run of the pipeline came to. `missing` is what roles still lack, by "category/role"."""

    folder: Path
    written: int
    queries: int
    demonstrations: int
    missing: dict[str, int]
    overlaps: dict[str, str]
    spends: dict[str, Spend]


class Pipeline:
    """One run. `limit`: sentences to be written at most, for a pilot."""

    def __init__(
        self, config: CurationConfig, progress: Progress, limit: int | None = None, ray_address: str | None = ""
    ) -> None:
        self.config, self.progress, self.limit = config, progress, limit
        self.categories = load_categories(config.category_file)
        check_wanted(config, self.categories)
        check_files(config)
        # A pilot's few sentences come from every pool.
        pools = max(1, len(Dealer(config, self.categories).pools()))
        size = config.list_size if limit is None else max(MIN_LIST, min(config.list_size, limit // pools))
        config = self.config = config.model_copy(update={"list_size": size})
        self.asker = CurationLLM.open(config, progress)
        self.dealer = Dealer(config, self.categories)
        self.duplicates = Duplicates(config.near_duplicate)
        self.engines = Engines(config)
        self.ears = Ears(config, ray_address)
        self.outcomes = Outcomes.load(config)
        self.sides = Sides()
        self.manners: dict[str, list[str]] = {}
        self.written = 0

    def run(self) -> Curated:
        """Everything, to whole tables in the folder.

        Raises:
            BudgetError: the budget ended. JudgeError: a stage failed for more than it may. DataError: the splits are not
            disjoint. StorageError: the disk refused.
        """
        folder, counts = self.config.folder, {"queries": 0, "demonstrations": 0}
        for name in LOGS:
            (folder / f"{name}.new").unlink(missing_ok=True)
        try:
            with ExitStack() as stack:
                self.tables = {
                    kind: stack.enter_context(TableWriter(folder / f"{name}.parquet", kind))
                    # Closed in the opposite order: the queries' table is the sign that the dataset is whole.
                    for kind, name in ((Query, "queries"), (Candidate, "candidates"), (Demonstration, "demonstrations"))
                }
                for written, dealt in self._rounds():
                    made = speak_queries(dealt, self.categories, self.engines, self.manners, self.ears, self.progress)
                    made = keep_whole_contrasts([replace(one, candidate=self.outcomes.judge(one.candidate)) for one in made])
                    counts["queries"] += self._write_queries(made)
                    answers = speak_answers(made, self.engines, self.ears, self.progress)
                    counts["demonstrations"] += self._write_answers(answers, made)
                    self._count(written, dealt, made)
                overlaps = self.sides.prove()
        finally:
            spends = dict(self.asker.spends) | {"speech": self.engines.spend}
            for stage, spend in spends.items():
                append_jsonl(folder / "spend.jsonl", {"stage": stage, **asdict(spend)})
        for name in LOGS:
            if (folder / f"{name}.new").is_file():
                (folder / f"{name}.new").replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        missing = self.dealer.missing()
        summary = {"written": self.written, "limit": self.limit, "missing": missing, "overlaps": overlaps, **counts}
        write_json(folder / "curated.json", summary)
        return Curated(folder, self.written, counts["queries"], counts["demonstrations"], missing, overlaps, spends)

    # Rounds.

    def _rounds(self) -> Iterator[tuple[list[Script], list[tuple[Script, Role]]]]:
        """What each round wrote, and what it hands to speech: scripts that passed, each with its role; corpora first."""
        for batch in self._corpus_batches():
            yield [], batch
        while True:
            lists = self.dealer.next_lists(self._room())
            scripts = self.write_lists(lists) if lists else []
            # What an LLM wrote beyond what it was asked for is told, and counts for nothing.
            self._log("texts.jsonl", [asdict(script) for script in scripts if script.rejected_by is not None])
            scripts = [script for script in scripts if script.rejected_by is None][: self._room()]
            self.written += len(scripts)
            tested = self.test(scripts)
            passed = [script for script in tested if script.rejected_by is None]
            self._log("texts.jsonl", [asdict(script) for script in tested if script.rejected_by is not None])
            given = self.dealer.deal(passed)
            if not lists and not given:
                break
            self._log("texts.jsonl", [asdict(script) for script, _ in given])
            self._describe(given)
            yield tested, given
        left = [reject(script, "surplus", "more than its roles want") for script in self.dealer.leftover()]
        self._log("texts.jsonl", [asdict(script) for script in left])

    def _room(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.written)

    def test(self, scripts: Sequence[Script]) -> list[Script]:
        """Rules, duplicates, and the three tests by the LLM."""
        checked = [self._by_the_rules(script) for script in scripts]
        return run_text_tests(self.duplicates.drop(checked), self.asker)

    def _by_the_rules(self, script: Script) -> Script:
        wrong = self.categories[script.category].complaint(script.text)
        return reject(script, "rules", wrong) if wrong else script

    def write_lists(self, lists: Sequence[ListRequest]) -> list[Script]:
        """Sentences of new lists, in order. A list that could not be had is told; a later run asks for it again."""
        asked = [
            (
                self.asker.prompt("write_system", self.categories[one.cell.category].prompt),
                {**_in_words(one), "count": str(self.config.list_size)},
            )
            for one in lists
        ]
        found = self.asker.write("lists", asked, self.config.list_size)
        return [script for one, text in zip(lists, found, strict=True) for script in self._scripts(one, text)]

    def _scripts(self, asked: ListRequest, found: NumberedList | JudgeError) -> list[Script]:
        cell = asked.cell
        name = f"{cell.category}-{seed_of(cell.split, cell.topic, cell.styles):08x}-{asked.part:02d}"
        if isinstance(found, JudgeError):
            self._log("lists.jsonl", [{"list": name, "complaint": f"could not be had: {found}"}])
            return []
        if found.complaint:
            self._log("lists.jsonl", [{"list": name, "complaint": found.complaint}])
        made = [
            Script(f"{name}-{line:03d}", cell.category, cell.topic, cell.split, item, cell.styles, f"{name}, line {line}")
            for line, item in enumerate((*found.items, *found.surplus), 1)
        ]
        count = len(found.items)
        return [*made[:count], *(reject(one, "list", f"beyond the {count} that were asked for") for one in made[count:])]

    def _log(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add to a log that takes its place when the run ends well."""
        with (self.config.folder / f"{name}.new").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def _describe(self, dealt: Sequence[tuple[Script, Role]]) -> None:
        """Ask how styles sound in words, for the engine that takes words, when they first come up."""
        styles = {
            style
            for script, _ in dealt
            if script.clip is None and engine_of(self.config, self.categories, script.category) == "openai"
            for style in script.styles[: script.spoken_styles]
        }
        if new := sorted(styles - self.manners.keys()):
            self.manners |= describe_styles(self.asker, new)

    # Corpora.

    def _corpus_batches(self) -> Iterator[list[tuple[Script, Role]]]:
        """Turns of real speech: long enough by their loader, and relevant: told the style, one would answer otherwise."""
        for name, root in self.config.corpora.items():
            turns, left_out = CORPORA[name](root, self.config.min_corpus_words)
            self._log("left_out.jsonl", [asdict(one) for one in left_out])
            neutral = [asdict(LeftOut(one.id, name, "its style is neutral")) for one in turns if one.style == NEUTRAL]
            self._log("left_out.jsonl", neutral)
            turns = [turn for turn in turns if turn.style != NEUTRAL][: self._room()]
            for start in range(0, len(turns), self.config.texts_at_once):
                scripts = [script_of_turn(turn) for turn in turns[start : start + self.config.texts_at_once]]
                self.written += len(scripts)
                tested = run_relevance(scripts, self.asker)
                self._log("texts.jsonl", [asdict(script) for script in tested])
                dealt = [(one, _role_of(one)) for one in tested if one.rejected_by is None]
                self._describe(dealt)
                yield dealt

    # What is written.

    def _write_queries(self, made: Sequence[ClipMade]) -> int:
        self.tables[Candidate].write([one.candidate for one in made])
        queries = []
        for one in made:
            if one.clip is None:
                continue
            if one.candidate.rejected_by == "people":
                # Still there to be listened to: people may come to it later, or take a decision back.
                write_bytes(self.config.folder / as_query(one, one.role).clip, encode_clip(one.clip))
            if one.candidate.rejected_by is not None:
                continue
            self.sides.add(one.candidate, one.script.split)
            # The labelled preference queries are prompts for RL too, without their labels.
            roles: tuple[Role, ...] = ("preference", "rl") if one.role == "preference" else (one.role,)
            for role in roles:
                query = as_query(one, role)
                write_bytes(self.config.folder / query.clip, encode_clip(one.clip))
                queries.append(query)
        # Prompts for RL in an order that does not tell which two belong together, and which style comes first.
        labelled = [query for query in queries if query.role != "rl"]
        unlabelled = sorted((query for query in queries if query.role == "rl"), key=lambda query: query.id)
        self.tables[Query].write([*labelled, *unlabelled])
        return len(queries)

    def _write_answers(self, answers: Sequence[AnswerMade], made: Sequence[ClipMade]) -> int:
        count, checked = 0, "demonstration" in self.config.human_check.roles
        kept = {query_name(one.role, one.script.id, one.style) for one in made if one.candidate.rejected_by is None}
        for answer in answers:
            picked, why = self.outcomes.pick(answer)
            names = [f"answers/{take_name(answer, take)}.wav" for take in range(len(answer.takes))]
            for take, (clip, _, _) in enumerate(answer.takes):
                if clip is not None and (checked or take == picked):
                    write_bytes(self.config.folder / names[take], encode_clip(clip))
            takes = [
                {"clip": name, "heard": heard, "word_error_rate": rate}
                for name, (_, heard, rate) in zip(names, answer.takes, strict=True)
            ]
            row = {"query_id": answer.query_id, "text": answer.planned.text, "tone": answer.planned.tone, "takes": takes}
            self._log("answers.jsonl", [row | {"clearest": answer.picked, "picked": picked, "why": why}])
            if picked is not None and answer.query_id in kept:
                one = Demonstration(answer.query_id, answer.planned.text, answer.planned.tone, names[picked])
                self.tables[Demonstration].write([one])
                count += 1
        return count

    def _count(self, written: Sequence[Script], dealt: Sequence[tuple[Script, Role]], made: Sequence[ClipMade]) -> None:
        survived = {one.script.id for one in made if one.heard_out}
        kept = [(script, role) for script, role in dealt if script.id in survived and script.category in self.categories]
        self.dealer.count(written, kept)


def _in_words(asked: ListRequest) -> dict[str, str]:
    first, second = asked.cell.styles
    return {"topic": asked.cell.topic, "first": first, "second": second, "part": str(asked.part)}


def check_wanted(config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
    """Refuse what could not be done, before anything is paid.

    Raises:
        ConfigError: an unknown category or prompt, a voice that is missing, or more wanted than all lists could give.
    """
    if strange := [name for name in config.categories if name not in categories]:
        raise ConfigError(f"categories: {strange[0]!r} is not known; there are {', '.join(categories)}")
    if config.style_check == "tone" and config.tone is None:
        raise ConfigError("style_check: tone needs the classifier's file; give it as tone")
    if config.prompts is not None and not config.prompts.is_dir():
        raise ConfigError(f"prompts: {config.prompts} is not a folder")
    for name in config.categories:
        read_prompt(categories[name].prompt, config.prompts, PACKAGE)
    check_voices(config, categories)
    for name, (most, wanted) in Dealer(config, categories).out_of_reach().items():
        raise ConfigError(
            f"contrasts: {name}: {wanted} are wanted, of at most {most} sentences; raise max_lists, or add topics or styles"
        )


def check_files(config: CurationConfig) -> None:
    """Refuse clips, classifiers and models that are not here, before anything is paid.

    Raises:
        ConfigError: names the voice, the file or the extractor.
    """
    for voice in (*config.voices, config.agent):
        clip = voice.options.get("clip")
        if clip is not None and not Path(str(clip)).is_file():
            raise ConfigError(f"voices: {voice.name}: {clip} is missing; give a clip of the voice to copy")
    if config.tone is not None and not config.tone.is_file():
        raise ConfigError(f"tone: {config.tone} is missing; `paras2s data demo` fits one (RUN/data/tone_user.json)")
    if config.style_check == "emotion" and importlib.util.find_spec("funasr") is None:
        raise ConfigError("style_check: emotion needs emotion2vec: pip install 'paras2s[trace]', or set style_check to none")


def as_query(made: ClipMade, role: Role) -> Query:
    """A kept clip as a query. Prompts for RL lose their labels here, once and for all (ParaS2S, appendix C)."""
    candidate, clip = made.candidate, made.clip
    assert clip is not None
    name = query_name(role, made.script.id, made.style)
    labelled = role != "rl"
    return Query(
        id=name,
        contrast_id=candidate.contrast_id if labelled else "",
        category=candidate.category if labelled else None,
        topic=candidate.topic if labelled else None,
        role=role,
        speaker=candidate.speaker if labelled else "",
        clip=f"queries/{name}.wav",
        duration_s=clip.duration_s,
        transcript=candidate.transcript or "",
        text=candidate.text if labelled else None,
        style=candidate.style if labelled else None,
    )


def script_of_turn(turn: CorpusTurn) -> Script:
    """A corpus's turn as a script: its own style, compared with a neutral one.

    StyleTalk has no sound, but an answer: its training turns are demonstrations, spoken here.

    Raises:
        DataError: a style that could not be part of a file's name.
    """
    if not NAME.fullmatch(turn.style):
        raise DataError(f"{turn.corpus}, {turn.id}: style {turn.style!r} is no plain word; mend the corpus's table")
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
        # For whoever reads the ledger: the last turn of a dialogue may be hard to make sense of alone.
        tests={"context": turn.context} if turn.context else {},
        answers=answers,
    )


def run_relevance(scripts: Sequence[Script], asker: CurationLLM) -> list[Script]:
    """The relevance test alone; a corpus that gives its answers has been made to need its styles, and is not asked about."""
    from paras2s.data_gen.curation.text_filters import check_relevance, write_answers

    told = {place: script for place, script in enumerate(scripts) if script.answers}
    asked = [place for place in range(len(scripts)) if place not in told]
    tested = check_relevance(write_answers([scripts[place] for place in asked], asker), asker)
    found = told | dict(zip(asked, tested, strict=True))
    return [found[place] for place in range(len(scripts))]


def _role_of(script: Script) -> Role:
    return "demonstration" if script.answers and script.clip is None and script.split == "train" else CORPUS_ROLE[script.split]
