"""Keys that a run's config had in version 0.5 and before, and what they are called now; verbs likewise.

Read by the error on an old key, and by `paras2s convert`, which rewrites a run folder of that version.
"""

from __future__ import annotations

_SAMPLING = ("queries_per_step", "group_size", "temperature", "engine", "engine_python")
_OBJECTIVE = (
    "loss_type", "scale_rewards", "ratio_level", "average", "text_weight", "audio_weight", "clip_low", "clip_high",
    "ratio_cap", "kl_weight", "kl_form", "kl_bias_correction",
)  # fmt: skip
_OPTIMIZER = ("warmup_steps", "max_grad_norm", "mixed_precision")

RENAMED_KEYS: dict[str, str] = {
    **{f"align.{key}": f"align.sampling.{key}" for key in _SAMPLING},
    **{f"align.{key}": f"align.objective.{key}" for key in _OBJECTIVE},
    **{f"align.{key}": f"align.optimizer.{key}" for key in _OPTIMIZER},
    "align.learned_queries": "align.objective.groups_per_update",
    "align.importance_cap": "align.objective.tis_cap",
    "align.max_drift": "align.objective.max_logprob_gap",
    "align.learning_rate": "align.optimizer.lr",
    "align.hearing_learning_rate": "align.optimizer.adaptor_lr",
    "align.answers_at_once": "align.optimizer.micro_batch_size",
    "align.checkpoint_layers": "align.optimizer.gradient_checkpointing",
    "align.rollout_workers": "align.workers.rollout.count",
    "align.rollout_workers_max": "align.workers.rollout.max_count",
    "align.reward_workers": "align.workers.reward.count",
    "align.learner_workers": "align.workers.learner.count",
    "align.rollout": "align.workers.rollout",
    "align.reward": "align.workers.reward",
    "align.learner": "align.workers.learner",
    "align.ray_address": "align.workers.ray_address",
    "warmup.learning_rate": "warmup.lr",
    "warmup.examples_at_once": "warmup.micro_batch_size",
    "warmup.checkpoint_layers": "warmup.gradient_checkpointing",
    "distill.learning_rate": "distill.lr",
    "distill.omni.learning_rate": "distill.omni.lr",
}

# Verbs of `bench`.
RENAMED_BENCH_VERBS = {"guard": "voicebench"}
