"""Every family's policy, tiny and random, with prompts to check it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from paras2s.policy.base import Policy
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.subject import TOLERANCE, Subject, subject_of
from paras2s.policy.types import Turn
from tiny.csm import tiny_csm, tiny_csm_turns
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt
from tiny.interleaved import tiny_glm, tiny_step, tiny_turns
from tiny.kimi import write_kimi
from tiny.minimind import tiny_minimind
from tiny.moshi import tiny_moshi, tiny_moshi_turns
from tiny.qwen3_omni import tiny_qwen3_omni, tiny_qwen3_omni_turns
from tiny.qwen_omni import tiny_qwen_omni, tiny_qwen_omni_turns
from tiny.spoken_lm import tiny_spoken_lm, tiny_spoken_lm_turns


def embedded_subject(policy: EmbeddedPolicy | None = None) -> Subject:
    """Return the embedded policy with three prompts of random steps."""
    config = small_config(delay=2)
    prompts = tuple(small_prompt(config, clips, steps, seed) for seed, (clips, steps) in enumerate(((1, 4), (2, 3), (1, 1))))
    return Subject(policy or small_policy(small_model(config)), prompts, TOLERANCE[torch.float64], text="b d")


def kimi_subject(folder: Path, device: str = "cpu") -> Subject:
    """Return Kimi-Audio from a tiny checkpoint that is written to the folder."""
    return subject_of(KimiPolicy.load(write_kimi(folder / "kimi"), device))


# Each made without arguments, with its dialogues.
RELEASED: dict[str, tuple[Callable[[], Policy], Callable[[], list[list[Turn]]]]] = {
    "glm4_voice": (tiny_glm, tiny_turns),
    "step_audio2": (tiny_step, tiny_turns),
    "moshi": (tiny_moshi, tiny_moshi_turns),
    "qwen_omni": (tiny_qwen_omni, tiny_qwen_omni_turns),
    "qwen3_omni": (tiny_qwen3_omni, tiny_qwen3_omni_turns),
    "csm": (tiny_csm, tiny_csm_turns),
    "spoken_lm": (tiny_spoken_lm, tiny_spoken_lm_turns),
}
FAMILIES = ("embedded", "kimi", "minimind_o", *RELEASED)


def subject_of_family(name: str, folder: Path, device: str = "cpu") -> Subject:
    """Return a family's policy on a device, with prompts that it encodes there; `folder` is for its files."""
    if name == "embedded":
        subject = embedded_subject()
        subject.policy.model.to(device)
        return subject
    if name == "kimi":
        return kimi_subject(folder, device)
    policy = tiny_minimind(folder / "minimind") if name == "minimind_o" else RELEASED[name][0]()
    # Codecs and encoders lie beside the model.
    for part in vars(policy).values():
        if isinstance(part, torch.nn.Module):
            part.to(device)
    return subject_of(policy, None if name == "minimind_o" else RELEASED[name][1]())
