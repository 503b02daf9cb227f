"""`paras2s align`: the inputs of the GRPO loop, from the run's folder."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np

from paras2s.align.job import GRPOJob
from paras2s.data_gen.candidates import ledger_of_prompts
from paras2s.data_gen.dataset import ClipFolder, Dataset
from paras2s.data_gen.policy_inputs import question_encoder
from paras2s.errors import ConfigError, DataError, PolicyError
from paras2s.grpo import train_grpo
from paras2s.pipeline.audit import audit_rewards
from paras2s.pipeline.demonstrations import learned_demonstrations
from paras2s.pipeline.preflight import check_align, check_style_in_words
from paras2s.pipeline.question_styles import StyleGuesses
from paras2s.pipeline.refresh import open_refresher
from paras2s.pipeline.train_preferences import open_preferences
from paras2s.policy.base import Policy
from paras2s.policy.registry import is_checkpoint, kind_of, policy_class
from paras2s.policy.types import Prompt
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.sources.base import RewardQuestion, SaidBefore
from paras2s.reward.sources.composite import check_scopes
from paras2s.rollout.demonstrations import DemonstrationFiles
from paras2s.rollout.prompts import FOLDER, PromptFiles
from paras2s.run import Run
from paras2s.types import Query
from paras2s.utils.device import give_back
from paras2s.utils.process_pool import end_workers


class RewardQuestions:
    """The queries as rewards may know them, without a label, each made when needed; codes are for the embedded reward model."""

    def __init__(self, run: Run, dataset: Dataset, queries: Sequence[Query]) -> None:
        setup = run.reward_setup()
        self._queries, self._folder = queries, run.data_dir.resolve()
        needs_style = setup.needs_style or run.config.align.distilled is not None
        self._styles = StyleGuesses(dataset) if needs_style else None
        self._encode = question_encoder(dataset, queries) if setup.needs(RewardModel.name) else None

    def __len__(self) -> int:
        return len(self._queries)

    def __getitem__(self, row: int) -> RewardQuestion:
        query = self._queries[row]
        encoded = None if self._encode is None else self._encode(query)
        clip, *past = [(self._folder / name).resolve() for name in query.clips]
        clips = iter(past)
        history = tuple(SaidBefore(turn.speaker, turn.text, next(clips) if turn.clip else None) for turn in query.history)
        style = None if self._styles is None else self._styles.of(query)
        return RewardQuestion(query.id, encoded, query.transcript, style, clip, history)


def rl_prompts(dataset: Dataset, only: Sequence[str]) -> list[Query]:
    """Return the RL prompts, of some categories for Table 7. Raises ConfigError: there are none, or an unknown category."""
    queries = dataset.of_role("rl")
    if not queries:
        raise ConfigError(f"{dataset.folder}: holds no RL prompts; make them with `paras2s data` (data.rl_contrasts)")
    if not only:
        return queries
    ledger = ledger_of_prompts(dataset.candidates)
    category = {query.id: ledger[query.id].category for query in queries if query.id in ledger}
    if missing := sorted(set(only) - set(category.values())):
        raise ConfigError(f"align.only_categories: no RL prompt is of {missing[0]!r}")
    return [query for query in queries if category.get(query.id) in only]


def anchor_demonstrations(run: Run, dataset: Dataset, kind: type[Policy]) -> DemonstrationFiles | None:
    """Return the warm-up's demonstrations for `align.objective.anchor`, None without it.

    Raises:
        DataError: there is none; the file is named. PolicyError: what encodes them is not in the checkpoint's folder.
    """
    config, anchor = run.config.warmup, run.config.align.objective.anchor
    if anchor is None or not anchor.weight:
        return None
    if not dataset.demonstrations:
        raise DataError(
            f"{dataset.folder / 'demonstrations.parquet'}: holds no demonstration, and align.objective.anchor learns from "
            "them; make them with `paras2s data`, or set it to null"
        )
    demonstrations = learned_demonstrations(dataset, config)
    if not demonstrations:
        raise DataError(
            f"{dataset.folder / 'demonstrations.parquet'}: holds no demonstration of the queries that warmup.*_contrasts "
            "choose, and align.objective.anchor learns from them; raise these, or set it to null"
        )
    try:
        kind.check_warmup(run.sft_dir)
    except PolicyError as error:
        raise PolicyError(
            f"align.objective.anchor needs what a warm-up needs; add it, or set the anchor to null: {error}"
        ) from error

    def augment(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return kind.augment_prompt(prompt, config.augment, rng)

    answered = {demonstration.query_id for demonstration in demonstrations}
    queries = [query for query in dataset.queries if query.id in answered]
    folder, clips = (run.folder / FOLDER).resolve(), ClipFolder(dataset.folder.resolve())
    return DemonstrationFiles(folder, clips, demonstrations, queries, augment)


def validation_queries(run: Run, dataset: Dataset) -> list[Query]:
    """Return the queries of an evaluation; none if only preferences are learned from and the reward model is missing."""
    rewarded = not run.reward_setup().needs(RewardModel.name) or run.reward_dir.is_dir()
    if run.config.align.preferences is not None and not rewarded:
        run.say(f"  {run.reward_dir}: no reward model, so validation queries are not sampled (reward.sources)")
        return []
    return dataset.of_role("validation")


def run_align(run: Run, dataset: Dataset, resume: bool) -> None:
    """Train the SFT policy, by GRPO or from recorded preferences, unless done; the workers load its weights."""
    if (run.aligned_dir / "trainer.json").is_file():
        run.headline("align: cached")
        return
    if not is_checkpoint(run.sft_dir):
        raise ConfigError(
            f"{run.sft_dir}: there is no policy to align; run `paras2s warmup` first (warmup.steps: 0 takes released weights "
            "as they are)"
        )
    check_align(run, resume)
    audit_rewards(run, dataset, lambda queries: RewardQuestions(run, dataset, queries))
    config = run.config.align
    kind = policy_class(run.config.policy.kind or kind_of(run.sft_dir))
    readers = {
        "align.self_distill": config.distilled is not None,
        "reward.sources: self_contrast": any(source.kind == "self_contrast" for source in run.config.reward.sources),
    }
    for key in (key for key, used in readers.items() if used):
        check_style_in_words(run.config, kind, dataset.user_tone.labels, key)

    def augment(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return kind.augment_prompt(prompt, config.augment, rng)

    preferences = open_preferences(run, augment, resume)
    queries = rl_prompts(dataset, config.only_categories) if preferences is None else []
    validation = validation_queries(run, dataset)
    kind.check_queries(run.sft_dir, [*queries, *validation])
    if preferences is None:
        check_scopes(run.config.reward, [query.id for query in (*queries, *validation) if query.history])
    refresher = open_refresher(run, dataset, queries)
    folder, clips = (run.folder / FOLDER).resolve(), ClipFolder(dataset.folder.resolve())
    prompts, validation_prompts = (PromptFiles(folder, clips, part) for part in (queries, validation))
    questions, validation_questions = (RewardQuestions(run, dataset, part) for part in (queries, validation))
    anchored = anchor_demonstrations(run, dataset, kind)
    job = GRPOJob(run, prompts, questions, validation_prompts, validation_questions, augment, refresher, anchored, preferences)
    # Their recognisers would sit in memory, one for every core, for as long as the loop runs.
    end_workers()
    # What the warm-up and the stages after it held on a device is the workers' now.
    gc.collect()
    give_back()
    train_grpo(job, resume)
