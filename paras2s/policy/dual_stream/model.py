"""`DualStreamLM`: the dual-stream network whose forward is the teacher-forced pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.network import DualStreamNetwork
from paras2s.policy.types import Prompt, Sampling
from paras2s.types import Block


class DualStreamLM(DualStreamNetwork):
    """The network as policies hold it: one call scores answers, so that FSDP can wrap and shard it."""

    def forward(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor]:
        """Teacher-forced log-probs [N, T, S] of the answers' only block (see `Policy.logprobs`)."""
        return (teacher_forced(self, prompts, [blocks[0] for blocks in answers], sampling),)
