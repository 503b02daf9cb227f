"""The curation pipeline: write, check, test, deal, speak, filter, keep; round by round, until every role has what it wants.

Left out of ParaS2S, section 3.1: nothing but the humans. Every round is a function of replies, clips and decisions that are all
kept, so a stopped run that starts again repeats its work without paying for it, and ends as an unbroken one would. In memory is
one round and a line for each sentence; the tables are written as they grow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paras2s.audio import encode_clip
from paras2s.config import CurationConfig
from paras2s.data_gen.corpora import CORPORA, CorpusTurn
from paras2s.data_gen.curation.asking import Asker, Progress, Spend
from paras2s.data_gen.curation.categories import QueryCategory, load_categories
from paras2s.data_gen.curation.dealing import Dealer, ListAsked
from paras2s.data_gen.curation.duplicates import Duplicates
from paras2s.data_gen.curation.lists import read_numbered
from paras2s.data_gen.curation.people import Outcomes
from paras2s.data_gen.curation.speaking import AnswerMade, ClipMade, Ears, speak_answers, speak_queries, take_name
from paras2s.data_gen.curation.splits import Sides
from paras2s.data_gen.curation.text_tests import reject, run_text_tests
from paras2s.data_gen.curation.voicing import Engines, check_voices, describe_styles, engine_of, query_name, seed_of
from paras2s.data_gen.manifest import TableWriter
from paras2s.errors import JudgeError
from paras2s.records import Candidate, Demonstration, PlannedAnswer, Query, Role, Script
from paras2s.storage import append_jsonl, write_bytes, write_json

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
        self.asker = Asker.open(config, progress)
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
            BudgetError: the budget ended. DataError: the splits are not disjoint. StorageError: the disk refused.
        """
        folder, counts = self.config.folder, {"queries": 0, "demonstrations": 0}
        with ExitStack() as stack:
            self.tables = {
                kind: stack.enter_context(TableWriter(folder / f"{name}.parquet", kind))
                # Closed in the opposite order: the queries' table is the sign that the dataset is whole.
                for kind, name in ((Query, "queries"), (Candidate, "candidates"), (Demonstration, "demonstrations"))
            }
            (folder / "texts.jsonl.new").unlink(missing_ok=True)
            (folder / "answers.jsonl.new").unlink(missing_ok=True)
            for dealt in self._rounds():
                made = speak_queries(dealt, self.categories, self.engines, self.manners, self.ears, self.progress)
                made = [replace(one, candidate=self.outcomes.judge(one.candidate)) for one in made]
                counts["queries"] += self._write_queries(made)
                counts["demonstrations"] += self._write_answers(speak_answers(made, self.engines, self.ears, self.progress))
                self._count(dealt, made)
            overlaps = self.sides.prove()
        for name in ("texts.jsonl", "answers.jsonl"):
            if (folder / f"{name}.new").is_file():
                (folder / f"{name}.new").replace(folder / name)
        missing = {} if self.limit is not None else self.dealer.missing()
        spends = dict(self.asker.spends) | {"speech": Spend(usd=self.engines.spent_usd)}
        for stage, spend in spends.items():
            append_jsonl(folder / "spend.jsonl", {"stage": stage, **asdict(spend)})
        write_json(folder / "curated.json", {"written": self.written, "missing": missing, "overlaps": overlaps, **counts})
        return Curated(folder, self.written, counts["queries"], counts["demonstrations"], missing, overlaps, spends)

    # Rounds.

    def _rounds(self) -> Iterator[list[tuple[Script, Role]]]:
        """What each round hands to speech: scripts that passed, each with its role; corpora first."""
        yield from self._corpus_batches()
        while True:
            room = None if self.limit is None else max(0, self.limit - self.written)
            lists = self.dealer.next_lists(room)
            if not lists:
                return
            scripts = self.write_lists(lists)[:room]
            self.written += len(scripts)
            tested = self.test(scripts)
            dealt = self.dealer.deal([script for script in tested if script.rejected_by is None])
            surplus = {script.id for script, role in dealt if role is None}
            self._write_texts([reject(s, "surplus", "more than its roles want") if s.id in surplus else s for s in tested])
            given = [(script, role) for script, role in dealt if role is not None]
            self._describe(given)
            self._round_written = tested
            yield given

    def test(self, scripts: Sequence[Script]) -> list[Script]:
        """Rules, duplicates, and the three tests by the LLM."""
        checked = [self._by_the_rules(script) for script in scripts]
        return run_text_tests(self.duplicates.drop(checked), self.asker)

    def _by_the_rules(self, script: Script) -> Script:
        wrong = self.categories[script.category].complaint(script.text)
        return reject(script, "rules", wrong) if wrong else script

    def write_lists(self, lists: Sequence[ListAsked]) -> list[Script]:
        """Sentences of new lists, in order. A list that could not be had is told, and asked for again by the next run."""
        by_prompt: dict[str, list[int]] = {}
        for place, one in enumerate(lists):
            by_prompt.setdefault(self.categories[one.cell.category].prompt, []).append(place)
        texts: dict[int, str | JudgeError] = {}
        for name, places in by_prompt.items():
            plains = [
                {
                    **_in_words(lists[place]),
                    "count": str(self.config.list_size),
                }
                for place in places
            ]
            found = self.asker.write("lists", self.asker.prompt("write_system", name), plains)
            texts.update(zip(places, found, strict=True))
        return [script for place, one in enumerate(lists) for script in self._scripts(one, texts[place])]

    def _scripts(self, asked: ListAsked, text: str | JudgeError) -> list[Script]:
        cell = asked.cell
        name = f"{cell.category}-{seed_of(cell.split, cell.topic, cell.styles):08x}-{asked.part:02d}"
        if isinstance(text, JudgeError):
            self._note_list(name, f"could not be had: {text}")
            return []
        found = read_numbered(text, self.config.list_size)
        if found.complaint:
            self._note_list(name, found.complaint)
        return [
            Script(f"{name}-{line:03d}", cell.category, cell.topic, cell.split, item, cell.styles, f"{name}, line {line}")
            for line, item in enumerate(found.items, 1)
        ]

    def _note_list(self, name: str, complaint: str) -> None:
        append_jsonl(self.config.folder / "lists.jsonl", {"list": name, "complaint": complaint})

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
            for one in left_out:
                append_jsonl(self.config.folder / "left_out.jsonl", asdict(one))
            for start in range(0, len(turns), self.config.texts_at_once):
                scripts = [script_of_turn(turn) for turn in turns[start : start + self.config.texts_at_once]]
                self.written += len(scripts)
                tested = run_relevance(scripts, self.asker)
                self._write_texts(tested)
                dealt = [(one, _role_of(one)) for one in tested if one.rejected_by is None]
                self._describe(dealt)
                self._round_written = []
                yield dealt

    # What is written.

    def _write_texts(self, scripts: Sequence[Script]) -> None:
        with (self.config.folder / "texts.jsonl.new").open("a") as file:
            file.writelines(json.dumps(asdict(script), ensure_ascii=False) + "\n" for script in scripts)

    def _write_queries(self, made: Sequence[ClipMade]) -> int:
        count = 0
        self.tables[Candidate].write([one.candidate for one in made])
        for one in made:
            if one.candidate.rejected_by is not None or one.clip is None:
                continue
            self.sides.add(one.candidate, one.script.split)
            # The labelled preference queries are prompts for RL too, without their labels.
            roles: tuple[Role, ...] = ("preference", "rl") if one.role == "preference" else (one.role,)
            for role in roles:
                query = as_query(one, role)
                write_bytes(self.config.folder / query.clip, encode_clip(one.clip))
                self.tables[Query].write([query])
                count += 1
        return count

    def _write_answers(self, made: Sequence[AnswerMade]) -> int:
        count, checked = 0, "demonstration" in self.config.human_check.roles
        for answer in made:
            picked, why = self.outcomes.pick(answer)
            names = [f"answers/{take_name(answer, take)}.wav" for take in range(len(answer.takes))]
            for take, (clip, _, _) in enumerate(answer.takes):
                if clip is not None and (checked or take == picked):
                    write_bytes(self.config.folder / names[take], encode_clip(clip))
            row = {
                "query_id": answer.query_id, "text": answer.planned.text, "tone": answer.planned.tone, "picked": picked,
                "why": why, "takes": [
                    {"clip": name, "heard": heard, "word_error_rate": rate}
                    for name, (_, heard, rate) in zip(names, answer.takes, strict=True)
                ],
            }  # fmt: skip
            with (self.config.folder / "answers.jsonl.new").open("a") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if picked is not None:
                one = Demonstration(answer.query_id, answer.planned.text, answer.planned.tone, names[picked])
                self.tables[Demonstration].write([one])
                count += 1
        return count

    def _count(self, dealt: Sequence[tuple[Script, Role]], made: Sequence[ClipMade]) -> None:
        survived = {one.script.id for one in made if one.candidate.rejected_by is None}
        kept = [(script, role) for script, role in dealt if script.id in survived and script.category in self.categories]
        self.dealer.count(self._round_written, kept)


def _in_words(asked: ListAsked) -> dict[str, str]:
    first, second = asked.cell.styles
    return {"topic": asked.cell.topic, "first": first, "second": second, "part": str(asked.part)}


def check_wanted(config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
    """Refuse what could not be done, before anything is paid.

    Raises:
        ConfigError: an unknown category, or a voice that is missing.
    """
    from paras2s.errors import ConfigError

    if strange := [name for name in config.categories if name not in categories]:
        raise ConfigError(f"categories: {strange[0]!r} is not known; there are {', '.join(categories)}")
    if config.style_check == "tone" and config.tone is None:
        raise ConfigError("style_check: tone needs the classifier's file; give it as tone")
    check_voices(config, categories)


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
        heard=candidate.heard or "",
        text=candidate.text if labelled else None,
        style=candidate.style if labelled else None,
    )


def script_of_turn(turn: CorpusTurn) -> Script:
    """A corpus's turn as a script: its own style, compared with a neutral one.

    StyleTalk has no sound, but an answer: its training turns are demonstrations, spoken here.
    """
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
        answers=answers,
    )


def run_relevance(scripts: Sequence[Script], asker: Asker) -> list[Script]:
    """The relevance test alone; a corpus that gives its answers has been made to need its styles, and is not asked about."""
    from paras2s.data_gen.curation.text_tests import check_relevance, write_answers

    told = {place: script for place, script in enumerate(scripts) if script.answers}
    asked = [place for place in range(len(scripts)) if place not in told]
    tested = check_relevance(write_answers([scripts[place] for place in asked], asker), asker)
    found = told | dict(zip(asked, tested, strict=True))
    return [found[place] for place in range(len(scripts))]


def _role_of(script: Script) -> Role:
    return "demonstration" if script.answers and script.clip is None and script.split == "train" else CORPUS_ROLE[script.split]
