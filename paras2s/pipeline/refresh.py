"""The reward model, trained again on the policy's newest answers while the policy is aligned (`distill.refresh_every`).

A policy leaves what its reward model learned from, and is then paid for what the model does not know. At a refresh the teacher
scores a sample of the newest answers, they join what the model learned from, and it is trained again from random weights: so
it is the same whatever came between, and a learning rate that has fallen need not be raised again. The distilled model stays as
it is, since other runs may share it; the new one is in `RUN/reward_refreshed/step_000030`.

A quarter of the RL prompts' sentences is never learned from: on the newest answers to these the report compares the models.
RL prompts have no labels. A refresh takes those of the prompts that it samples from the ledger, and the report counts them.

Left out: `distill.omni`, people as teachers, and a second look at checkpoints that were deleted before a refresh.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import write_clip
from paras2s.data_gen.candidates import ledger_of_prompts
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC, code_clips, encode_questions
from paras2s.errors import ConfigError, DataError, JudgeError
from paras2s.pipeline.distill import train_small
from paras2s.pipeline.learned_answers import (
    DEGENERATE,
    KEPT_OUT,
    KEPT_OUT_AGAIN,
    LEARNED,
    LEARNED_FILE,
    AnswerFile,
    AnswerRow,
    read_answers,
    write_answers,
)
from paras2s.pipeline.preference_set import JudgedAnswers, Sampled, judge_sampled, open_teacher
from paras2s.pipeline.refresh_plan import NewestAnswer, choose_newest, kept_out_contrasts, mean_reward, rescored, stays
from paras2s.policy.registry import NEW_POLICY, kind_of, load_speaker
from paras2s.policy.types import Speaker
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel
from paras2s.reward.reward_model.teachers import Teacher
from paras2s.reward.reward_model.train import PreferenceSet, ScoredAnswer, agreement, learned_codes
from paras2s.rollout.answer_files import SAMPLED_TOGETHER, StoredAnswer
from paras2s.rollout.reward_inputs import embedded_codes
from paras2s.rollout.store import FOLDER as ROLLOUTS
from paras2s.rollout.store import KeptAnswer, read_codes, steps_kept
from paras2s.rollout.store import read_answers as read_rollouts
from paras2s.run import Run
from paras2s.train.checkpoint import step_name
from paras2s.types import Query, Reward, Rollout, Unscored
from paras2s.utils.device import give_back
from paras2s.utils.io import read_json, write_json
from paras2s.utils.process_pool import end_workers

# In the folder of refreshed models, and in that of one of them.
EVALUATIONS, ANSWERS, REPORT = "evaluations", "answers.npz", "agreement.json"
EVALUATED = "validation"


def open_refresher(run: Run, dataset: Dataset, prompts: Sequence[Query]) -> RewardRefresher | None:
    """Return the run's refresher, None if the reward model stays as it was distilled; `prompts` are those of alignment.

    Raises:
        ConfigError: a prompt's label is not in the ledger. DataError: what the reward model learned from is not stored.
        PolicyError: the sound of the policy's answers cannot be made again.
    """
    if not run.config.refreshes:
        return None
    ledger = ledger_of_prompts(dataset.candidates)
    if unknown := [query.id for query in prompts if query.id not in ledger]:
        raise ConfigError(
            f"distill.refresh_every: the ledger ({dataset.folder / 'candidates.parquet'}) does not say the style of "
            f"{len(unknown)} of {len(prompts)} RL prompts ({unknown[0]}), which a teacher is to score answers to; leave it out"
        )
    read_answers(run.reward_dir / LEARNED_FILE)
    if (run.config.policy.kind or kind_of(run.sft_dir)) != NEW_POLICY:
        # Now, and not after hours.
        _open_speaker(run)
    lines = [(query, ledger[query.id]) for query in prompts]
    return RewardRefresher(
        run,
        dataset,
        {
            query.id: replace(query, text=line.text, style=line.style, category=line.category, contrast_id=line.contrast_id)
            for query, line in lines
        },
    )


def _open_speaker(run: Run) -> Speaker:
    policy = run.config.policy
    return load_speaker(run.sft_dir, policy.kind, policy.device, policy.decoder)


class RewardRefresher:
    """Trains a run's reward model again on the policy's newest answers. `labelled` are the RL prompts with labels, by id."""

    def __init__(self, run: Run, dataset: Dataset, labelled: Mapping[str, Query]) -> None:
        self.run, self.dataset, self.labelled = run, dataset, labelled
        contrasts = kept_out_contrasts((query.contrast_id for query in labelled.values()), run.config.seed)
        self.kept_out = frozenset(query.id for query in labelled.values() if query.contrast_id in contrasts)

    def refresh(self, updates: int) -> None:
        """Score the newest answers after `updates` updates and train a reward model with them, unless it exists already.

        Raises:
            JudgeError: the teacher failed on too many answers. BudgetError: its budget ended.
            DataError: the answers are not kept.
        """
        run = self.run
        earlier = {after: path for after, path in run.refreshed_models().items() if after < updates}
        folder = run.refreshed_dir / step_name(updates)
        if (folder / REPORT).is_file():
            return
        started = time.perf_counter()
        run.headline(f"reward model after {updates} steps")
        before = RewardModel.load(next(reversed(earlier.values()), run.reward_dir))
        teacher = open_teacher(run, self.dataset)
        chosen = self.choose(updates)
        judged = self._judge(teacher, chosen, folder)
        newest = self._rows(chosen, judged)
        write_answers(folder / ANSWERS, newest)
        check_scored(teacher.name, newest)
        distilled = read_answers(run.reward_dir / LEARNED_FILE)
        added = [*(row for path in earlier.values() for row in read_answers(path / ANSWERS).answers), *newest]
        model, encoded = self.train(distilled, added)
        # Its processes would hold their recognisers while the workers are back.
        end_workers()
        models = {"before": before, "after": model}
        kept_out = [row for row in newest if row.part == KEPT_OUT]
        agreed = {name: self._agreement(model, encoded, kept_out) for name, model in models.items()}
        used = "before" if stays(agreed["before"], agreed["after"]) else "after"
        models[used].save(folder)
        report: dict[str, Any] = {
            "after_steps": updates,
            "teacher": teacher.name,
            "answers": len(chosen),
            "unscored": sum(isinstance(score, Unscored) for score in judged.scores),
            "labels": self._labels(earlier, chosen),
            "used": used,
            "newest": agreed,
            "sft": {name: self._agreement(model, encoded, distilled.of(KEPT_OUT)) for name, model in models.items()},
            "validation_rewards": self._validation_rewards(models[used], encoded, updates),
            "cost_usd": teacher.spent.usd,
            "calls_now": teacher.spent.calls,
            "seconds": round(time.perf_counter() - started, 1),
        }
        write_json(folder / REPORT, report)
        describe_refresh(run, report)

    # -- the newest answers ---------------------------------------------------------------------------------------------

    def choose(self, updates: int) -> list[NewestAnswer]:
        """Return the answers of the policy after n updates for the teacher. Raises DataError: they are not kept."""
        config = self.run.config
        every = config.distill.refresh_every or updates
        files = {step: path for step, path in self._rollouts().items() if updates - every <= step < updates}
        if not files:
            raise DataError(
                f"{self.run.folder / ROLLOUTS}: the answers of steps {updates - every} to {updates - 1}, which the reward "
                "model is to learn from, are not kept; free disk space, and start the alignment again without --resume"
            )
        steps = [(step, [answer.query_id for answer in read_rollouts(path)]) for step, path in files.items()]
        return choose_newest(steps, self.kept_out, config.refresh_answers, config.seed)

    def _rollouts(self) -> dict[int, Path]:
        return steps_kept(self.run.folder / ROLLOUTS)

    def _judge(self, teacher: Teacher, chosen: Sequence[NewestAnswer], folder: Path) -> JudgedAnswers:
        names = list(dict.fromkeys(answer.query_id for answer in chosen))
        index = {name: number for number, name in enumerate(names)}
        sampled = Sampled([index[answer.query_id] for answer in chosen], self._stored(chosen, folder))
        return judge_sampled(self.run, self.dataset, teacher, [self.labelled[name] for name in names], sampled, folder=folder)

    def _stored(self, chosen: Sequence[NewestAnswer], folder: Path) -> list[StoredAnswer]:
        """Return the answers with the embedded codec's codes; the sound of another codec is made again and written."""
        stored: list[StoredAnswer] = []
        for step in dict.fromkeys(answer.step for answer in chosen):
            path = self._rollouts()[step]
            answers, (codes, code_format) = read_rollouts(path), read_codes(path)
            rows = [answer.row for answer in chosen if answer.step == step]
            if code_format == CODEC.version:
                stored += [StoredAnswer(codes[row], None) for row in rows]
            else:
                stored += self.spoken([codes[row] for row in rows], [answers[row] for row in rows], folder / step_name(step))
        return stored

    def spoken(self, codes: Sequence[np.ndarray], answers: Sequence[KeptAnswer], folder: Path) -> list[StoredAnswer]:
        """Write the sound of another codec's answers, file by file, and return it with its codes."""
        speaker, stored = _open_speaker(self.run), list[StoredAnswer]()
        for start in range(0, len(codes), SAMPLED_TOGETHER):
            part = slice(start, start + SAMPLED_TOGETHER)
            clips = speaker.speak(codes[part], [answer.seed for answer in answers[part]])
            for clip, own in zip(clips, code_clips(clips), strict=True):
                file = folder / f"{len(stored):05d}.wav" if len(clip.samples) else None
                if file is not None:
                    write_clip(file, clip)
                stored.append(StoredAnswer(own, file))
        del speaker
        give_back()
        return stored

    def _rows(self, chosen: Sequence[NewestAnswer], judged: JudgedAnswers) -> list[AnswerRow]:
        """Return the answers as they were paid for; those to learn from again from their sound, if that is another thing."""
        both = zip(chosen, judged.codes, judged.scores, strict=True)
        rows = [
            AnswerRow(KEPT_OUT if answer.kept_out else LEARNED, answer.query_id, codes, scores)
            for answer, codes, scores in both
        ]
        if judged.coded_again is not judged.codes:
            again = zip(chosen, judged.coded_again, judged.scores, strict=True)
            rows += [
                AnswerRow(LEARNED, answer.query_id, codes, scores) for answer, codes, scores in again if not answer.kept_out
            ]
        return rows

    # -- training and what comes out ------------------------------------------------------------------------------------

    def train(self, distilled: AnswerFile, added: Sequence[AnswerRow]) -> tuple[RewardModel, dict[str, EncodedQuestion]]:
        """Return the new reward model, and all queries that it may be asked with, encoded, by id."""
        by_id = {query.id: query for query in self.dataset.queries} | dict(self.labelled)
        learned = [row for row in added if row.part == LEARNED]
        questions = list(dict.fromkeys([*distilled.queries, *(str(row.query_id) for row in learned)]))
        others = [row.query_id for row in (*distilled.answers, *added) if row.query_id is not None]
        names = list(dict.fromkeys([*questions, *others, *(query.id for query in self.dataset.of_role("validation"))]))
        if unknown := [name for name in names if name not in by_id]:
            raise DataError(
                f"{self.run.reward_dir / LEARNED_FILE}: names query {unknown[0]}, which is not in {self.dataset.folder}; run "
                "`paras2s distill` again"
            )
        encoded = dict(zip(names, encode_questions(self.dataset, [by_id[name] for name in names]), strict=True))
        index = {name: number for number, name in enumerate(questions)}
        preferences = PreferenceSet(
            questions=tuple(encoded[name] for name in questions),
            styles=tuple(by_id[name].style or "" for name in questions),
            answers=tuple(
                ScoredAnswer(
                    None if row.query_id is None else index[row.query_id],
                    row.codes,
                    row.scores if isinstance(row.scores, dict) else {},
                )
                for row in (*distilled.of(LEARNED), *learned)
            ),
            degenerate=tuple(row.codes for row in distilled.of(DEGENERATE)),
        )
        model = train_small(self.run, preferences)
        # Without the newest answers: the report then says how many of them are known.
        kept_out = [row for part in (KEPT_OUT, KEPT_OUT_AGAIN) for row in distilled.of(part)]
        model.learned_from(learned_codes(preferences, self.run.config.seed), [row.codes for row in kept_out])
        return model, encoded

    def _agreement(
        self, model: RewardModel, encoded: Mapping[str, EncodedQuestion], rows: Sequence[AnswerRow]
    ) -> dict[str, float | int | None]:
        """Return the agreement with the teacher, and the share of the answers that the model knows and would reward."""
        styles = {query.id: query.style or "" for query in (*self.dataset.queries, *self.labelled.values())}
        scored = [
            (encoded[row.query_id], row.codes, row.scores[styles[row.query_id]])
            for row in rows
            if row.query_id is not None and isinstance(row.scores, dict) and styles[row.query_id] in row.scores
        ]
        predicted = model.score([question for question, _, _ in scored], [codes for _, codes, _ in scored])
        figures = agreement(predicted, [score for _, _, score in scored])
        return figures | {"known": model.known_share([row.codes for row in rows if len(row.codes)])}

    def _labels(self, earlier: Mapping[int, Path], chosen: Sequence[NewestAnswer]) -> dict[str, int]:
        """Return the RL prompts whose labels the teacher was given so far, and in this refresh for the first time."""
        before = {row.query_id for path in earlier.values() for row in read_answers(path / ANSWERS).answers}
        names = before | {answer.query_id for answer in chosen}
        kept_out = len(names & self.kept_out)
        return {"prompts": len(names), "new": len(names - before), "kept_out": kept_out, "learned_from": len(names) - kept_out}

    # -- evaluations, which must compare --------------------------------------------------------------------------------

    def keep_evaluation(self, step: int, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]) -> None:
        """Keep one answer to each validation query [B] with sound, and the parts of its reward. Raises StorageError."""
        rows = []
        for rollout, (paid, *_) in zip(rollouts, rewards, strict=True):
            parts = paid.parts if isinstance(paid, Reward) else paid
            rows.append(AnswerRow(EVALUATED, rollout.query_id, embedded_codes(rollout, CODEC)[0], parts))
        write_answers(self.run.refreshed_dir / EVALUATIONS / f"{step_name(step)}.npz", rows)

    def _validation_rewards(
        self, model: RewardModel, encoded: Mapping[str, EncodedQuestion], updates: int
    ) -> dict[str, float | None]:
        """Return the mean reward of the answers of each evaluation before `updates` updates, by step, with this model."""
        rewards = {}
        for path in sorted((self.run.refreshed_dir / EVALUATIONS).glob("step_*.npz")):
            step = int(path.stem.removeprefix("step_"))
            if step >= updates:
                continue
            rows = read_answers(path).answers
            values = model.score_known([encoded[str(row.query_id)] for row in rows], [row.codes for row in rows])
            sources = self.run.config.reward.sources
            rewards[str(step)] = mean_reward(
                [rescored(row.scores, value, sources) for row, value in zip(rows, values, strict=True)]
            )
        return rewards

    def validation_rewards(self, updates: int) -> dict[int, float | None]:
        """Return the rewards of all earlier evaluations by the model trained after `updates` updates, by step."""
        report = read_json(self.run.refreshed_dir / step_name(updates) / REPORT)
        return {int(step): value for step, value in report["validation_rewards"].items()}

    def discard_from(self, step: int) -> None:
        """Remove models and evaluations of steps that are about to be done again."""
        for after, path in self.run.refreshed_models().items():
            if after > step:
                (path / REPORT).unlink()
        for path in self.run.refreshed_dir.glob("step_*"):
            if not (path / REPORT).is_file():
                shutil.rmtree(path, ignore_errors=True)
        for path in (self.run.refreshed_dir / EVALUATIONS).glob("step_*.npz"):
            if int(path.stem.removeprefix("step_")) >= step:
                path.unlink()


def check_scored(teacher: str, newest: Sequence[AnswerRow]) -> None:
    """Check that there is something to learn from. Raises JudgeError: the teacher scored none of the answers."""
    learned = [row.scores for row in newest if row.part == LEARNED]
    unscored = [score for score in learned if isinstance(score, Unscored)]
    if len(unscored) == len(learned):
        reason = f" (the first: {unscored[0].reason})" if unscored else ""
        raise JudgeError(
            f"{teacher} scored none of the newest answers{reason}, so there is nothing to learn from; fix the judge, and "
            "`paras2s align --resume` goes on"
        )


def describe_refresh(run: Run, report: Mapping[str, Any]) -> None:
    """Say what a refresh cost in labels, and whether the new model agrees better with the teacher on the newest answers."""
    labels, newest, sft = report["labels"], report["newest"], report["sft"]
    run.say(
        f"  {report['teacher']} scored the {report['answers']} newest answers, {report['unscored']} of them without a score; "
        f"the styles of {labels['prompts']} RL prompts are spent so far ({labels['new']} now), {labels['learned_from']} to "
        f"learn from and {labels['kept_out']} to check by"
    )
    for name, figures in (("newest answers kept out", newest), ("SFT policy's answers to validation queries", sft)):
        pearson, error = (
            f"{_number(figures['before'][key])} -> {_number(figures['after'][key])}"
            for key in ("pearson", "mean_absolute_error")
        )
        known = f"{_share(figures['before']['known'])} -> {_share(figures['after']['known'])}"
        run.say(f"  {name} ({figures['after']['n']}): Pearson {pearson} with the teacher, error {error}, known {known}")
    if report["used"] == "before":
        run.say("  the new model agrees worse and knows no more: alignment goes on with the model before it")
    cost = report["cost_usd"]
    if report["calls_now"]:
        run.say(f"  {report['calls_now']} calls, {'an unknown price' if cost is None else f'{cost:.4f} USD'}")


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def labels_spent(run: Run) -> int:
    """Return the number of RL prompts whose labels the run's refreshes took."""
    newest = next(reversed(run.refreshed_models().values()), None)
    return 0 if newest is None else int(read_json(newest / REPORT)["labels"]["prompts"])


def verdicts_of_refreshes(run: Run) -> int:
    """Return the number of the policy's answers that the teacher scored in the run's refreshes."""
    return sum(int(read_json(folder / REPORT)["answers"]) for folder in run.refreshed_models().values())
