"""GRPO on a speech-to-speech policy: the main loop (ParaS2S, section 4.3).

    choose prompts -> sample groups of answers -> score them -> update the policy -> push its weights -> evaluate

The same loop serves synchronous and asynchronous (off-policy) runs. `align.max_staleness` is the number of updates by which
the weights that sampled an answer may be behind the learner's. At 0 (the default) each step waits for its own answers. Above 0
the next batches are sampled and scored while the learner updates; set `align.objective.tis_cap` as well, which corrects for
the older weights token by token. Where workers share CPU cores leave it at 0: sampling slows the learner, and the reverse. A
resumed run samples its pending batches again, with its checkpoint's weights.

With `distill.refresh_every` the loop stops after every n-th update, where a checkpoint is always due, and its workers are
shut down; the reward model is trained again with the newest answers added (`pipeline/refresh.py`), and the loop goes on
from the checkpoint, as a resumed run does. No answer is sampled ahead of such a stop. With `align.sampling.resample` groups
whose rewards have no spread are replaced before the update. With `align.preferences` the loop takes recorded answers in place
of sampled ones, and updates by DPO or KTO (`train/preference.py`).

The parts of the loop are in `align/`: the job (a run's inputs and due dates), answers sampled ahead, dynamic sampling (which
decides what "no spread" is), evaluation, checkpoints, and the clock, which logs the seconds of each phase.
Loss, advantages and the KL penalty are in `train/algorithms/`, and the learner computes them in `workers.update`.
One machine: `paras2s align CONFIG`. A cluster: set `align.workers.ray_address`. Not implemented: several updates on one
batch (`num_iterations` in TRL).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paras2s.align.answers_ahead import answers_ahead
from paras2s.align.checkpoints import announce_checkpoints, discard_from, finish_step, next_stop
from paras2s.align.dynamic_sampling import resample
from paras2s.align.evaluation import evaluate
from paras2s.align.job import GRPOJob
from paras2s.align.step_clock import StepClock
from paras2s.policy.answers import answer_settings_of, write_answer_settings
from paras2s.rollout.orchestrator import Orchestrator, open_orchestrator
from paras2s.rollout.store import RolloutKeeper
from paras2s.train.checkpoint import latest_checkpoint, updates_of


def train_grpo(job: GRPOJob, resume: bool) -> None:
    """Move the SFT policy toward its better answers; the aligned policy is then in the run folder.

    Raises:
        ConfigError: the cluster has no room for the run's workers, or the disk for its checkpoints.
        PolicyError: too many unscored answers, a loss that is not finite, or a worker that could not be kept alive.
    """
    checkpoint = latest_checkpoint(job.checkpoints) if resume else None
    resumed_at = updates = updates_of(checkpoint)
    with job.run.stage("align", job.run.logged_s(before=resumed_at)):
        while True:
            if job.refresher is not None and updates in job.refreshes:
                job.refresher.refresh(updates)
            updates = train_until_stop(job, checkpoint, announce=updates == resumed_at)
            if updates == job.config.steps:
                break
            checkpoint = latest_checkpoint(job.checkpoints)


def train_until_stop(job: GRPOJob, checkpoint: Path | None, announce: bool) -> int:
    """Train from a checkpoint to the next refresh of the reward model, or to the end; return the total number of updates."""
    config, run = job.config, job.run
    with open_workers(job, checkpoint) as workers, run.bar(job.steps_name, config.steps) as bar:
        if announce:
            announce_checkpoints(job, workers.checkpoint_bytes())
        # The version of the weights is the number of updates made.
        first, stop = workers.version, next_stop(workers.version, job.refreshes, config.steps)
        discard_from(job, first)
        keeper, clock = RolloutKeeper(run.folder, config.keep_rollouts_every, run.say), StepClock(run, workers)
        keeper.discard_from(first)
        batches = answers_ahead(workers, job, first, stop)
        for step in clock.steps(first, stop):
            if job.preferences is not None:
                with clock.phase("update"):
                    batch = job.preferences.batch(step, config.sampling.queries_per_step, run.config.seed)
                    metrics = workers.learn(batch, job.anchor_batch(step))
                with clock.phase("sync"):
                    workers.sync(step + 1)
            else:
                with clock.phase("answers"):
                    answers = resample(workers, job, next(batches))
                with clock.phase("update"):
                    metrics, advantages = workers.update(answers, job.anchor_batch(step))
                with clock.phase("sync"):
                    workers.sync(step + 1)
                    keeper.keep(step, answers.rollouts, answers.rewards, advantages)
            if job.evaluates_after(step):
                with clock.phase("evaluation"):
                    metrics |= evaluate(workers, job, step)
            with clock.phase("finish"):
                finish_step(job, workers, step, metrics | clock.seconds(), bar)
        if stop == config.steps:
            write_answer_settings(job.output, answer_settings_of(run.config))
            workers.export(job.output)
    return stop


@contextmanager
def open_workers(job: GRPOJob, checkpoint: Path | None) -> Iterator[Orchestrator]:
    """Open the run's workers; they encode prompts, demonstrations and recorded preferences that are not encoded yet."""
    run = job.run
    with open_orchestrator(run.config, run.sft_dir.resolve(), run.reward_setup(updates_of(checkpoint)), checkpoint) as workers:
        for name, prompts in (("prompts encoded", job.prompts), ("validation encoded", job.validation_prompts)):
            if prompts.clips is not None and prompts.queries:
                with run.bar(name, len(prompts)) as bar:
                    prompts.names = workers.encode(prompts.folder, prompts.clips, prompts.queries, bar.at)
        for name, recorded in (("demonstrations encoded", job.demonstrations), ("preferences encoded", job.preferences)):
            if recorded is not None:
                with run.bar(name, len(recorded)) as bar:
                    recorded.encode(workers, bar.at)
        yield workers
