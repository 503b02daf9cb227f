"""`paras2s rollouts --preferences`: the answers that a run kept as preferences, for its own training and for other trainers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from paras2s.audio.clip import encode_clip
from paras2s.data_gen.dataset import Manifest, load_manifest
from paras2s.data_gen.preference_file import FILE, labelled_row, pair_row
from paras2s.errors import ConfigError, DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.registry import load_speaker
from paras2s.policy.types import Speaker
from paras2s.rollout.demonstrations import tokens_file, write_target
from paras2s.rollout.export import kept
from paras2s.rollout.store import KeptAnswer, KeptTokens, read_all_tokens, read_answers
from paras2s.run import open_run
from paras2s.types import Block
from paras2s.utils.io import write_bytes, write_jsonl

CLIPS = "clips"


@dataclass(frozen=True)
class PreferenceRule:
    """The rule that makes preferences of the answers to a question: by which score, how far apart, in pairs or one by one.

    `by` is a source of reward, None the whole reward. The best answer of a group is chosen and the worst rejected if their
    scores are at least `margin` apart. As `labels`, answers half of it or more above the group's mean are good, and bad below.
    """

    margin: float = 0.0
    by: str | None = None
    labels: bool = False

    def score(self, answer: KeptAnswer) -> float | None:
        """Return the score of an answer; None without one."""
        return answer.reward if self.by is None else answer.parts.get(self.by)

    def of_group(self, answers: Sequence[KeptAnswer]) -> list[tuple[KeptAnswer, bool]]:
        """Return the answers of a group that are taken, and whether each is good: of a pair the chosen one first."""
        scored = [(score, answer) for answer in answers if (score := self.score(answer)) is not None]
        if len(scored) < 2:
            return []
        if self.labels:
            mean = fmean(score for score, _ in scored)
            apart = [(score - mean, answer) for score, answer in scored if score != mean]
            return [(answer, gap > 0) for gap, answer in apart if abs(gap) >= self.margin / 2]
        # The first of equals, as in training.
        best, worst = max(scored, key=itemgetter(0)), min(scored, key=itemgetter(0))
        enough = best[0] > worst[0] and best[0] - worst[0] >= self.margin
        return [(best[1], True), (worst[1], False)] if enough else []


@dataclass(frozen=True)
class Written:
    """The file that was written, its rows, and the number of groups that gave none."""

    path: Path
    rows: int
    groups_without: int


def write_preferences(run_folder: Path, out: Path, choice: PreferenceRule, step: int | None = None) -> Written:
    """Write the kept answers of a run, of one step or of all, as preferences with their sound; `out` is a new folder.

    Beside each answer's clip are the tokens that the policy sampled, from which the same policy learns.

    Raises:
        ConfigError: `out` is there, a step that is not kept, an unknown source, or no preferences at all.
        DataError: a broken file. PolicyError: the policy's codes cannot be made audible. StorageError: the disk refused.
    """
    if out.exists():
        raise ConfigError(f"--preferences {out}: is there already; give a new folder")
    files = kept(run_folder)
    if step is not None and step not in files:
        raise ConfigError(f"--step {step}: is not kept; the kept steps are {min(files)} to {max(files)}")
    manifest = load_manifest(run_folder / "data")
    writer = _Writer(run_folder, out, manifest, choice)
    rows: list[dict[str, Any]] = []
    for number, path in files.items():
        if step is None or number == step:
            rows += writer.of_step(number, path)
    if not rows:
        raise ConfigError(
            f"{run_folder}: no group has answers that are {choice.margin:g} apart{writer.unknown_source}; lower --margin"
        )
    write_jsonl(out / FILE, rows)
    return Written(out / FILE, len(rows), writer.groups_without)


class _Writer:
    """Writes clips, and returns rows; a clip is written once, and so is a question's."""

    def __init__(self, run_folder: Path, out: Path, manifest: Manifest, choice: PreferenceRule) -> None:
        self._run, self._out, self._manifest, self._choice = run_folder, out, manifest, choice
        self._queries = {query.id: query for query in manifest.queries}
        self._speaker: Speaker | None = None
        self._sources: set[str] = set()
        self.groups_without = 0

    @property
    def unknown_source(self) -> str:
        """The sources that there are, in words, if none is the requested one; else ""."""
        by = self._choice.by
        return "" if by is None or by in self._sources else f" by {by}; the sources are {', '.join(sorted(self._sources))}"

    def of_step(self, step: int, path: Path) -> Iterator[dict[str, Any]]:
        groups: dict[int, list[KeptAnswer]] = {}
        for answer in read_answers(path):
            groups.setdefault(answer.group, []).append(answer)
            self._sources |= answer.parts.keys()
        taken = [(answers[0].query_id, self._choice.of_group(answers)) for answers in groups.values()]
        places = [(answer.group, answer.answer) for _, chosen in taken for answer, _ in chosen]
        tokens = dict(zip(places, read_all_tokens(path, places), strict=True)) if places else {}
        for query_id, chosen in taken:
            # An answer without sound is no preference, nor are two that sound the same.
            audible = [(answer, good) for answer, good in chosen if len(tokens[answer.group, answer.answer].codes)]
            waves = [self._wave(tokens[answer.group, answer.answer], answer.seed) for answer, _ in audible]
            if not audible or (not self._choice.labels and len(set(waves)) < 2):
                self.groups_without += 1
                continue
            yield from self._rows(step, query_id, audible, waves, tokens)

    def _rows(
        self,
        step: int,
        query_id: str,
        answers: Sequence[tuple[KeptAnswer, bool]],
        waves: Sequence[bytes],
        tokens: dict[tuple[int, int], KeptTokens],
    ) -> Iterator[dict[str, Any]]:
        query = self._queries.get(query_id)
        if query is None:
            raise DataError(f"{self._run / 'data'}: has no question {query_id!r}, which step {step} answers")
        question = self._copied(query.clip)
        history = [replace(turn, clip=turn.clip and self._copied(turn.clip)) for turn in query.history]
        clips = []
        for (answer, _), wave in zip(answers, waves, strict=True):
            name, own = f"{CLIPS}/{step:06d}-{answer.group}-{answer.answer}.wav", tokens[answer.group, answer.answer]
            write_bytes(self._out / name, wave)
            write_target(tokens_file(self._out / name), _blocks(own), code_format=own.code_format)
            clips.append((name, answer.text))
        scores = [self._choice.score(answer) for answer, _ in answers]
        if not self._choice.labels:
            id = f"{step}-{answers[0][0].group}"
            given = {"chosen_score": scores[0], "rejected_score": scores[1]}
            yield pair_row(id, question, query.transcript, clips[0], clips[1], history, **given)
            return
        for (answer, good), clip, score in zip(answers, clips, scores, strict=True):
            id = f"{step}-{answer.group}-{answer.answer}"
            yield labelled_row(id, question, query.transcript, clip, good, history, score=score)

    def _copied(self, clip: str) -> str:
        """Return the new name of a clip of the dataset, which is copied with what is stored beside it."""
        source = self._run / "data" / clip
        data = source.read_bytes()
        name = f"{CLIPS}/question-{hashlib.sha256(data).hexdigest()[:16]}{source.suffix}"
        if not (self._out / name).is_file():
            write_bytes(self._out / name, data)
            features = self._manifest.cached_features(clip)
            if features is not None:
                write_bytes((self._out / name).with_suffix(".npz"), features)
        return name

    def _wave(self, tokens: KeptTokens, seed: int) -> bytes:
        """Return an answer's sound as a WAV file."""
        if self._speaker is None:
            if tokens.code_format == Codec2Pairs.version:
                self._speaker = Codec2Pairs()
            else:
                run = open_run(self._run, quiet=True)
                policy = run.config.policy
                self._speaker = load_speaker(run.sft_dir, policy.kind, policy.device, policy.decoder)
        return encode_clip(self._speaker.speak([tokens.codes], [seed])[0])


def _blocks(tokens: KeptTokens) -> list[Block]:
    """Return kept tokens as the blocks of one answer, with the streams that they were of."""
    return [
        Block(slots, ids[None].astype(np.int64), ~np.isnan(logp)[None], np.zeros((1, *ids.shape)), streams[None])
        for slots, ids, logp, streams in zip(tokens.slots, tokens.tokens, tokens.logprobs, tokens.streams, strict=True)
    ]
