"""The human check of a curation: which items annotators decide, and what their decisions mean for clips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.curation.synthesis import WAITING, AnswerTakes, take_name
from paras2s.data_gen.dataset import inside, load_manifest
from paras2s.data_gen.review.session import CheckItem, Decision, judge_items, load_decisions
from paras2s.types import Candidate
from paras2s.utils.io import read_jsonl
from paras2s.utils.seeds import seed_of

DECISIONS = "decisions.jsonl"


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
        """Loads the outcomes so far."""
        return cls(config, judge_items(load_decisions(config.folder / DECISIONS), config.human_check.annotators))

    def judge(self, candidate: Candidate) -> Candidate:
        """Rejects the candidate where annotators rejected it, or where their decision is required and missing."""
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
        """Picks the take of an answer and says why; None where none is used."""
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


def items_to_check(config: CurationConfig) -> list[CheckItem]:
    """Returns all items to check: accepted queries of the configured roles, and the takes of demonstrated answers.

    Raises:
        DataError: the pipeline has not run.
    """
    return [*_queries(config), *_answers(config)]


def _queries(config: CurationConfig) -> Iterator[CheckItem]:
    manifest = load_manifest(config.folder)
    clips = {query.id: query.clip for query in manifest.queries}
    for candidate in manifest.candidates:
        if candidate.role not in config.human_check.roles or candidate.rejected_by not in (None, "people"):
            continue
        path = config.folder / clips.get(candidate.id, f"queries/{candidate.id}.wav")
        rate = candidate.word_error_rate
        details = {
            "category": candidate.category,
            "topic": candidate.topic,
            "transcript": candidate.transcript or "",
            "word errors": "-" if rate is None else f"{100 * rate:.0f} %",
        }
        if path.is_file():
            yield CheckItem(_item_id(candidate), "query", candidate.text, candidate.style, (path,), 0, details)


def _answers(config: CurationConfig) -> Iterator[CheckItem]:
    path = config.folder / "answers.jsonl"
    if "demonstration" not in config.human_check.roles or not path.is_file():
        return
    for row in read_jsonl(path):
        shown = [take for take in row["takes"] if take["word_error_rate"] is not None]
        if row["clearest"] is None:
            continue
        clearest = row["takes"][row["clearest"]]
        clips = tuple(inside(config.folder, take["clip"]) for take in shown)
        transcripts = {f"take {n}": take["transcript"] for n, take in enumerate(shown, 1)}
        details = {"question": row["query_id"], **transcripts}
        item = Path(clearest["clip"]).stem
        yield CheckItem(item, "answer", row["text"], row["tone"], clips, shown.index(clearest), details)
