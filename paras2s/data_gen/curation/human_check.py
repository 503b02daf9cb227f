"""The human check of a curation (ParaS2S, section 3.1, step 5, and section 4.1): people listen, and accept or reject.

It is a listening study in the dataset's folder. A query has one clip: are the words and the style right? A spoken answer has
several takes and one of them is picked: people may accept another one, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.curation.synthesis import WAITING, AnswerTakes, take_name
from paras2s.data_gen.dataset import inside, load_manifest
from paras2s.errors import ConfigError, DataError, checking
from paras2s.studies.clicks import Click
from paras2s.studies.store import DATABASE, Annotator, StudyStore, make_study
from paras2s.studies.study import Answer, StudyItem, as_study
from paras2s.types import Candidate
from paras2s.utils.io import read_jsonl
from paras2s.utils.seeds import seed_of

STUDY = "check"
# Until 0.21, decisions were rows of this file.
OLD_DECISIONS = "decisions.jsonl"
QUESTION, REJECT = "verdict", "reject"


@dataclass(frozen=True)
class Decision:
    """An annotator's decision on an item; as an outcome of `judge_items`, that of all annotators together."""

    item_id: str
    annotator: str
    accept: bool
    choice: int | None = None  # another take than the picked one, counted from 0
    note: str = ""


class _OldRow(BaseModel):
    """A line of the file of 0.21: a decision, or an undo of the annotator's latest one on this item."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    item_id: str = Field(min_length=1)
    annotator: str = Field(min_length=1)
    accept: bool | None = None
    choice: int | None = Field(default=None, ge=0)
    note: str = ""
    undo: bool = False

    @model_validator(mode="after")
    def _check(self) -> _OldRow:
        if (self.accept is None) != self.undo:
            raise ValueError("give either 'accept' or 'undo', and not both")
        return self


def read_old_decisions(path: Path) -> list[Decision]:
    """Return the valid decisions of a folder of 0.21 in the order they were made.

    An annotator's last decision on an item is valid, unless undone. No file means no decisions.

    Raises:
        DataError: a line is not a decision; names the file and the line.
    """
    if not path.exists():
        return []
    made: dict[tuple[str, str], list[tuple[int, Decision]]] = {}
    for number, values in enumerate(read_jsonl(path), 1):
        with checking(f"{path}:{number}", advice="; fix or remove the line"):
            row = _OldRow.model_validate(values)
        earlier = made.setdefault((row.item_id, row.annotator), [])
        if row.accept is not None:
            earlier.append((number, Decision(row.item_id, row.annotator, row.accept, row.choice, row.note)))
        elif earlier:
            earlier.pop()
        else:
            raise DataError(
                f"{path}:{number}: {row.annotator} takes back a decision on {row.item_id!r} that no line above holds; "
                "fix or remove the line"
            )
    valid = sorted((decisions[-1] for decisions in made.values() if decisions), key=lambda numbered: numbered[0])
    return [decision for _, decision in valid]


def load_decisions(folder: Path) -> list[Decision]:
    """Return the decisions on a curated dataset in their order, those of 0.21 first. Raises DataError: an unreadable file."""
    old = read_old_decisions(folder / OLD_DECISIONS)
    if not (folder / STUDY / DATABASE).is_file():
        return old
    store = StudyStore(folder / STUDY)
    progress = {annotator.name: store.progress(annotator.name) for annotator in store.annotators()}
    items = store.study.items
    shown = {item.id for item in items if not item.retired}
    held = {item.id for item in items}
    decisions = [decision for decision in old if decision.item_id not in held or decision.annotator not in progress]
    for name, number in store.submissions():
        item, state = items[number], progress[name].item(number)
        if not state.closed or state.skipped is not None or (item.retired and item.id in shown):
            continue
        value = state.choices[QUESTION]
        take = None if value == REJECT else int(value) - 1
        decisions.append(
            Decision(item.id, name, take is not None, None if take == item.picked else take, state.comment.strip())
        )
    return decisions


def judge_items(decisions: Sequence[Decision], annotators_needed: int = 1) -> dict[str, Decision | str]:
    """Return the outcome of every item with a decision.

    All annotators of an item vote, also those beyond `annotators_needed`. An outcome names all of them and joins their notes.

    Args:
        decisions: in the order they were made; of an annotator's decisions on an item, the last binds.
        annotators_needed: with fewer, the item's outcome is a line that begins with "waiting".

    Returns:
        By item: a `Decision` (accepted if more than half accept, with the take most of those name; of takes named equally
        often, that of the earliest voter) or the line "waiting: 1 of 3 annotators".

    Raises:
        ConfigError: `annotators_needed` is below 1.
    """
    if annotators_needed < 1:
        raise ConfigError(f"annotators_needed: {annotators_needed} is no number of people; give 1 or more")
    votes: dict[str, dict[str, Decision]] = {}
    for decision in decisions:
        of_item = votes.setdefault(decision.item_id, {})
        # Inserted again, so that the order is that of the valid votes.
        of_item.pop(decision.annotator, None)
        of_item[decision.annotator] = decision
    return {item_id: _outcome(list(of_item.values()), annotators_needed) for item_id, of_item in votes.items()}


def _outcome(votes: Sequence[Decision], annotators_needed: int) -> Decision | str:
    if len(votes) < annotators_needed:
        return f"{WAITING}{len(votes)} of {annotators_needed} annotators"
    choices = [vote.choice for vote in votes if vote.accept]
    accept = 2 * len(choices) > len(votes)
    return Decision(
        votes[0].item_id,
        ", ".join(vote.annotator for vote in votes),
        accept,
        # Of equal counts, `most_common` returns the first one.
        Counter(choices).most_common(1)[0][0] if accept else None,
        "; ".join(vote.note for vote in votes if vote.note),
    )


def _item_id(candidate: Candidate) -> str:
    # Changes with the clip, so that a decision on an old clip does not bind a new one.
    return f"{candidate.id}-{seed_of(candidate.text, candidate.speaker, candidate.transcript):08x}"


@dataclass(frozen=True)
class Outcomes:
    """Outcomes by item: a decision, or the reason why there is none yet."""

    config: CurationConfig
    by_item: dict[str, Decision | str]

    @classmethod
    def load(cls, config: CurationConfig) -> Outcomes:
        """Load the outcomes so far."""
        return cls(config, judge_items(load_decisions(config.folder), config.human_check.annotators))

    def judge(self, candidate: Candidate) -> Candidate:
        """Reject the candidate where annotators rejected it, or where their decision is required and missing."""
        check = self.config.human_check
        if candidate.rejected_by is not None or candidate.role not in check.roles:
            return candidate
        outcome = self.by_item.get(_item_id(candidate), f"{WAITING}0 of {check.annotators} annotators")
        if isinstance(outcome, str):
            return replace(candidate, rejected_by="people", rejected=outcome) if check.required else candidate
        if outcome.accept:
            return candidate
        return replace(candidate, rejected_by="people", rejected=f"by {outcome.annotator}: {outcome.note}".rstrip(": "))

    def pick(self, answer: AnswerTakes) -> tuple[int | None, str]:
        """Pick the take of an answer and say why; None if no take is used."""
        if answer.picked is None:
            return None, "every take has too many word errors"
        check = self.config.human_check
        outcome = self.by_item.get(take_name(answer, answer.picked), f"{WAITING}0 of {check.annotators} annotators")
        if isinstance(outcome, str):
            waits = check.required and "demonstration" in check.roles
            return (None, outcome) if waits else (answer.picked, "fewest word errors")
        if not outcome.accept:
            return None, f"rejected by {outcome.annotator}"
        # Annotators see the takes that have a transcript, in order.
        shown = [number for number, (_, _, rate) in enumerate(answer.takes) if rate is not None]
        if outcome.choice is None or not 0 <= outcome.choice < len(shown):
            return answer.picked, f"accepted by {outcome.annotator}"
        return shown[outcome.choice], f"chosen by {outcome.annotator}"


def items_to_check(config: CurationConfig) -> list[StudyItem]:
    """Return all items to check: accepted queries and takes of demonstrated answers. Raises DataError: a clip is missing."""
    return [*_queries(config), *_answers(config)]


def _item(
    item_id: str, kind: str, text: str, style: str, clips: Sequence[str], picked: int, details: dict[str, str]
) -> StudyItem:
    lines = [f"{kind}, {style}", *(f"{name}: {value}" for name, value in details.items())]
    answers = tuple(Answer(system=Path(clip).stem, clip=clip) for clip in clips)
    return StudyItem(id=item_id, question_text=text, context="\n".join(lines), category=kind, answers=answers, picked=picked)


def _queries(config: CurationConfig) -> Iterator[StudyItem]:
    manifest = load_manifest(config.folder)
    clips = {query.id: query.clip for query in manifest.queries}
    for candidate in manifest.candidates:
        if candidate.role not in config.human_check.roles or candidate.rejected_by not in (None, "people"):
            continue
        clip = clips.get(candidate.id, f"queries/{candidate.id}.wav")
        rate = candidate.word_error_rate
        details = {
            "category": candidate.category or "",
            "topic": candidate.topic or "",
            "transcript": candidate.transcript or "",
            "word errors": "-" if rate is None else f"{100 * rate:.0f} %",
        }
        if (config.folder / clip).is_file():
            yield _item(_item_id(candidate), "question", candidate.text, candidate.style, [clip], 0, details)


def _answers(config: CurationConfig) -> Iterator[StudyItem]:
    path = config.folder / "answers.jsonl"
    if "demonstration" not in config.human_check.roles or not path.is_file():
        return
    for row in read_jsonl(path):
        shown = [take for take in row["takes"] if take["word_error_rate"] is not None]
        if row["clearest"] is None:
            continue
        clearest = row["takes"][row["clearest"]]
        for take in shown:
            inside(config.folder, take["clip"])
        transcripts = {f"take {n}": take["transcript"] for n, take in enumerate(shown, 1)}
        details = {"question": row["query_id"], **transcripts}
        clips = [take["clip"] for take in shown]
        yield _item(Path(clearest["clip"]).stem, "answer", row["text"], row["tone"], clips, shown.index(clearest), details)


def open_check(config: CurationConfig, annotator: str) -> tuple[StudyStore, Annotator]:
    """Return the study of the dataset's clips, made or brought up to date, and the annotator, who is added where missing.

    Decisions of 0.21 become clicks of the study.

    Raises:
        ConfigError: no name for an annotator. DataError: nothing to check, or decisions on other clips. StorageError: the disk.
    """
    items = items_to_check(config)
    if not items:
        raise DataError(f"{config.folder}: nothing to check for the roles {', '.join(config.human_check.roles) or 'none'}")
    given = list(_old_clicks(config.folder / OLD_DECISIONS, items))
    folder = config.folder / STUDY
    if not (folder / DATABASE).is_file():
        seed = seed_of(config.seed, STUDY)
        make_study(folder, as_study("check", f"Human check of {config.name}", seed, items), config.folder)
    store = StudyStore(folder)
    store.update_items(items, config.folder, given)
    known = {person.name: person for person in store.annotators()}
    return store, known.get(annotator) or store.add_annotator(annotator)


def _old_clicks(path: Path, items: Sequence[StudyItem]) -> Iterator[tuple[str, Click]]:
    """Yield the decisions of 0.21 on these items as clicks by annotator, with the item's index; their names are fixed."""
    indices = {item.id: index for index, item in enumerate(items)}
    for decision in read_old_decisions(path):
        if decision.item_id not in indices:
            continue
        index = indices[decision.item_id]
        item = items[index]
        take = item.picked if decision.choice is None else decision.choice
        if take is None or take >= len(item.answers):
            raise DataError(
                f"{path}: {decision.annotator} chose take {decision.choice} of {item.id!r}, which has {len(item.answers)}; "
                "the file belongs to other clips: move it away"
            )
        name = f"0.21 {decision.item_id}"
        if decision.note:
            yield decision.annotator, Click(f"{name} comment", index, "comment", value=decision.note)
        value = str(take + 1) if decision.accept else REJECT
        yield decision.annotator, Click(f"{name} choose", index, "choose", QUESTION, value)
        yield decision.annotator, Click(f"{name} submit", index, "submit")
