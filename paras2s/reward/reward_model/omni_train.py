"""Training of the Omni reward model (ParaS2S, 4.2 and appendix C): batches in parts, resumable at any step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paras2s.errors import JudgeError
from paras2s.reward.reward_model.omni import OmniRewardModel, SpokenPair
from paras2s.utils.epochs import rows_of_step
from paras2s.utils.seeds import Stream


class OmniTraining:
    """The adapters' optimiser and the pairs' order; `step` n depends on seed and n. Raises JudgeError: nothing to train on."""

    def __init__(self, model: OmniRewardModel, pairs: Sequence[SpokenPair], scores: Sequence[int], seed: int) -> None:
        if not pairs or len(pairs) != len(scores) or not set(scores) <= {1, 2, 3, 4, 5}:
            raise JudgeError(f"{len(pairs)} pairs and {len(scores)} scores from 1 to 5 do not make a preference set")
        self.model, self.pairs, self.scores, self.seed = model, pairs, scores, seed
        if model.config.gradient_checkpointing:
            # The other kind asks for inputs that have a gradient, and here adapters alone have one.
            model.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._learning = list(model.trainable().values())
        self.optimiser = torch.optim.AdamW(self._learning, lr=model.config.lr, weight_decay=0.0)

    def step(self, number: int) -> float:
        """Make one update; return the loss, the mean over the batch. Raises JudgeError: the loss is not finite."""
        config = self.model.config
        rows = rows_of_step(number, config.batch_size, len(self.pairs), [self.seed, Stream.OMNI_ORDER])
        size = config.micro_batch_size or len(rows)
        self.model.thinker.train()
        self.optimiser.zero_grad()
        total = 0.0
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            loss = self.model.loss([self.pairs[row] for row in part], [self.scores[row] for row in part])
            if not torch.isfinite(loss):
                raise JudgeError(f"step {number}: the loss is {loss.item()}; lower distill.omni.lr")
            share = loss * (len(part) / len(rows))
            torch.autograd.backward(share)
            total += share.item()
        torch.nn.utils.clip_grad_norm_(self._learning, 1.0)
        self.optimiser.step()
        return total

    def finish(self) -> None:
        """Leave training: activations are kept again, and the model scores."""
        if self.model.config.gradient_checkpointing:
            self.model.base.gradient_checkpointing_disable()
        self.model.thinker.eval()
