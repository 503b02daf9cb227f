"""TRL's `GRPOTrainer` with clips: they reach generation, the policy's log-probs and the reference's alike.

TRL 1.16 hands media of images to the model, and nothing of audio. Four methods are overridden for that, and a fifth so that a
stopped stage can go on; loss, advantages, sampling and logging stay TRL's. A prompt in the data set is the number of an item.
Alphabet: N completions, G of them to each item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from trl.trainer.grpo_trainer import GRPOTrainer

from paras2s.unisrm.reward.labels_alone import labels_alone
from paras2s.unisrm.reward.reply import Malformed, ParseFailure, parse_reply
from paras2s.unisrm.reward.resume import ResumingTrainer
from paras2s.unisrm.reward.rewards import accuracy_reward, consistency_reward, format_reward
from paras2s.unisrm.reward.tasks import Item, Record
from paras2s.unisrm.reward.thinker import ItemEncoder

# The key of a TRL batch that names each completion's item.
ROWS = "item_numbers"


class UniSRMGrpoTrainer(ResumingTrainer, GRPOTrainer):
    """GRPO over items with clips."""

    def __init__(self, encoder: ItemEncoder, **options: Any) -> None:
        self.encoder = encoder
        self._rows: Sequence[int] | None = None
        super().__init__(reward_funcs=RewardTerms(encoder).functions(), **options)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        """Return TRL's order of items, which a trainer resumed in a later epoch would otherwise begin again."""
        return EpochSampler(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Remember the items for the log-probs on the way, and send their numbers along with the batch."""
        self._rows = [int(row["prompt"]) for row in inputs]
        output = super()._generate_and_score_completions(inputs)
        output[ROWS] = torch.tensor(self._rows, device=output["prompt_ids"].device)
        return output

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Tensor]]:
        """Return prompt tokens and clips of the items, for generation."""
        rows = [self.encoder[int(prompt)] for prompt in prompts]
        return [list(row.ids) for row in rows], None, self.encoder.model.features(rows)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Remember the items of this part of the batch, which is shuffled and split after generation."""
        self._rows = inputs[ROWS].tolist()
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log-probs [N, T] of the policy and of the reference, given the clips; `batch_size` rows at once."""
        assert self._rows is not None
        if len(self._rows) != len(input_ids):
            raise RuntimeError(f"{len(input_ids)} completions, but the clips of {len(self._rows)}: their order is lost")
        encoded = [self.encoder[row] for row in self._rows]
        size = batch_size or len(input_ids)
        compute_entropy = options.get("compute_entropy", False)
        logps, entropies = [], []
        for start in range(0, len(input_ids), size):
            part = slice(start, start + size)
            labels = input_ids[part].masked_fill(attention_mask[part] == 0, -100)
            labels[:, :-logits_to_keep] = -100
            with self.accelerator.autocast(), labels_alone():
                outputs = model(
                    input_ids=input_ids[part],
                    attention_mask=attention_mask[part],
                    labels=labels,
                    fused_lm_head=True,
                    **self._media(encoded[part]),
                )
            logps.append(outputs.log_probs[:, -logits_to_keep:])
            if compute_entropy:
                entropies.append(outputs.entropy[:, -logits_to_keep:])
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _media(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        return self.encoder.model.features(rows)


class EpochSampler(Sampler[int]):
    """TRL's `RepeatSampler` with an order that seed and epoch give alone; there all epochs draw from one generator."""

    def __init__(self, sampler: Any, epoch: Callable[[], int]) -> None:
        self.sampler, self.epoch = sampler, epoch

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.sampler.seed + self.epoch())
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class RewardTerms:
    """The reward's terms as TRL's reward functions, so that each is logged apart; failures of parsing are counted by reason."""

    def __init__(self, encoder: ItemEncoder) -> None:
        self.encoder = encoder

    def functions(self) -> list[Any]:
        """Return functions called "format", "accuracy" and "consistency", in the order of the weights."""

        def format(prompts: list[str], completion_ids: list[list[int]], log_metric: Any, **_: Any) -> list[float]:
            replies = [reply for _, reply in self._parsed(prompts, completion_ids)]
            failed = [reply.reason for reply in replies if isinstance(reply, Malformed)]
            for reason in ParseFailure:
                log_metric(f"parse_failure/{reason}", failed.count(reason) / len(replies))
            return [format_reward(reply) for reply in replies]

        def accuracy(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
            parsed = self._parsed(prompts, completion_ids)
            return [accuracy_reward(item.task, reply, item.record) for item, reply in parsed]

        def consistency(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
            parsed = self._parsed(prompts, completion_ids)
            return [consistency_reward(item.task, reply, item.record) for item, reply in parsed]

        return [format, accuracy, consistency]

    def _parsed(self, prompts: list[str], completion_ids: list[list[int]]) -> list[tuple[Item, Record | Malformed]]:
        model = self.encoder.model
        items = [self.encoder.items[int(prompt)] for prompt in prompts]
        texts = [model.text_of(ids) for ids in completion_ids]
        return [(item, parse_reply(item.task, text, model.config.reasoning)) for item, text in zip(items, texts, strict=True)]
