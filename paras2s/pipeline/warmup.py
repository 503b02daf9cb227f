"""`paras2s warmup`: demonstrations to the SFT policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paras2s.data_gen.dataset import Dataset
from paras2s.pipeline.demonstrations import first_policy, learned_demonstrations, make_examples, style_words_of
from paras2s.pipeline.preflight import check_run
from paras2s.policy.answers import answer_settings_of, write_answer_settings
from paras2s.policy.registry import is_checkpoint, kind_of, policy_class
from paras2s.run import Run
from paras2s.train.checkpoint import describe_size, latest_checkpoint, remove_superseded, step_name
from paras2s.train.sft import Warmup
from paras2s.utils.device import use_threads
from paras2s.utils.io import append_jsonl, drop_steps_from
from paras2s.utils.process_pool import cores

if TYPE_CHECKING:
    from paras2s.pipeline.warmup_ranks import RankedWarmup

CHECKPOINT_EVERY, KEEP_CHECKPOINTS = 100, 2


@contextmanager
def open_updates(run: Run, dataset: Dataset) -> Iterator[Warmup | RankedWarmup]:
    """Open the warm-up that the config asks for: in this process, or on ranks."""
    config = run.config.warmup
    demonstrations = learned_demonstrations(dataset, config)
    if config.learner is None:
        policy = first_policy(run, dataset)
        yield Warmup(policy, make_examples(policy, dataset, demonstrations, style_words_of(run)), config, run.config.seed)
    else:
        # Ray is not loaded for a warm-up in this process.
        from paras2s.pipeline.warmup_ranks import open_ranks

        with open_ranks(run, len(demonstrations)) as ranks:
            yield ranks


def run_warmup(run: Run, dataset: Dataset) -> None:
    """Train the SFT policy, or continue an interrupted training; a complete policy stays."""
    if is_checkpoint(run.sft_dir):
        run.headline("warmup: cached")
        return
    check_run(run)
    if (weights := run.config.policy.weights) is not None:
        policy_class(run.config.policy.kind or kind_of(weights)).check_queries(weights, dataset.queries)
    use_threads(cores())
    config = run.config.warmup
    if config.steps == 0:
        _save(run, first_policy(run, dataset).save)
        return
    with run.stage("warmup"), open_updates(run, dataset) as updates, run.bar("warm-up steps", config.steps) as bar:
        checkpoints = (run.folder / "checkpoints" / "sft").resolve()
        if most := min(KEEP_CHECKPOINTS + 1, (config.steps - 1) // CHECKPOINT_EVERY):
            run.say(f"  {describe_size(updates.checkpoint_bytes, most, config.lora is not None)}")
        checkpoint = latest_checkpoint(checkpoints)
        first = updates.restore(checkpoint) if checkpoint else 0
        log = run.folder / "warmup.jsonl"
        drop_steps_from(log, first)
        for step in range(first, config.steps):
            losses = updates.step(step)
            append_jsonl(log, {"step": step, **losses})
            bar.at(step + 1, config.steps, f"text {losses['loss_text']:.2f} audio {losses['loss_audio']:.2f}")
            if (step + 1) % CHECKPOINT_EVERY == 0 and step + 1 < config.steps:
                updates.save(checkpoints / step_name(step + 1), step + 1)
                remove_superseded(checkpoints, KEEP_CHECKPOINTS, None)
        _save(run, updates.export)


def _save(run: Run, write: Callable[[Path], None]) -> None:
    """Write the settings first: the policy's own description is the sign that it is complete."""
    write_answer_settings(run.sft_dir, answer_settings_of(run.config))
    write(run.sft_dir.resolve())
