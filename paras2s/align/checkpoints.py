"""The end of a step: its row of the log, and the checkpoints that are due, the best or the newest; and where the loop stops."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from paras2s.align.job import GRPOJob
from paras2s.errors import ConfigError
from paras2s.rollout.orchestrator import Orchestrator
from paras2s.rollout.validation_answers import discard_from as discard_validation_answers
from paras2s.train.checkpoint import (
    best_by_validation,
    checkpoints_in,
    describe_size,
    remove_all,
    remove_superseded,
    step_name,
    under_one_model,
)
from paras2s.utils.progress import Bar
from paras2s.utils.tables import size_text


def announce_checkpoints(job: GRPOJob, each_bytes: int) -> None:
    """Say how much disk the checkpoints will take. Raises ConfigError: there is less."""
    most = job.config.most_checkpoints
    job.run.say(f"  {describe_size(each_bytes, most, job.config.lora is not None)}")
    missing = each_bytes * (most - len(checkpoints_in(job.checkpoints)))
    job.checkpoints.mkdir(parents=True, exist_ok=True)
    if missing > (free := shutil.disk_usage(job.checkpoints).free):
        raise ConfigError(
            f"align.keep_checkpoints: {most} checkpoints of {size_text(each_bytes)} do not fit: {job.checkpoints} has "
            f"{size_text(free)} left; keep fewer, write fewer (checkpoint_every), train adapters (align.lora), or free some"
        )


def discard_from(job: GRPOJob, step: int) -> None:
    """Remove log rows and validation answers of steps that are about to be done again; at step 0 the checkpoints as well."""
    job.run.drop_steps_from(step)
    discard_validation_answers(job.run.folder, step)
    if job.refresher is not None:
        job.refresher.discard_from(step)
    if step == 0:
        # Else a later --resume would continue from the checkpoints of a run that was started before this run.
        remove_all(job.checkpoints)


def finish_step(job: GRPOJob, workers: Orchestrator, step: int, metrics: dict[str, Any], bar: Bar) -> None:
    """Log a step, move the bar, and write a checkpoint if one is due, or if the step is the best by validation so far."""
    refreshed = last_refresh(job, step)
    job.run.log_step(metrics if job.refresher is None else metrics | {"reward_model_step": refreshed})
    if job.preferences is None:
        bar.at(step + 1, job.config.steps, f"reward {metrics['reward_mean']:.2f} KL {metrics.get('kl', 0):.3f}")
    else:
        accuracy = metrics["preference_accuracy"]
        bar.at(step + 1, job.config.steps, f"loss {metrics['loss']:.3f} accuracy {accuracy:.2f}")
    due = (step + 1) % job.config.checkpoint_every == 0
    if due or metrics.get("validation_reward") is not None:
        best = best_by_validation(comparable_rows(job, step))
        if due or best == step + 1:
            workers.save(job.checkpoints / step_name(step + 1))
            remove_superseded(job.checkpoints, job.config.keep_checkpoints, best)


def last_refresh(job: GRPOJob, step: int) -> int:
    """Return the number of updates after which the reward model of a step was trained; 0: the distilled model."""
    return max((updates for updates in job.refreshes if updates <= step), default=0)


def next_stop(updates: int, refreshes: Sequence[int], steps: int) -> int:
    """Return the number of updates after which the loop stops next: for a refresh of the reward model, or at the end."""
    return min((refresh for refresh in refreshes if refresh > updates), default=steps)


def comparable_rows(job: GRPOJob, step: int) -> Sequence[Mapping[str, Any]]:
    """Return the log's rows up to a step, all with validation rewards of the newest reward model."""
    rows, refreshed = job.run.metrics(), last_refresh(job, step)
    if job.refresher is None or not refreshed:
        return rows
    existing = {*checkpoints_in(job.checkpoints), step + 1}
    return under_one_model(rows, refreshed, job.refresher.validation_rewards(refreshed), existing)
