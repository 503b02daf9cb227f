"""Learning from recorded preferences: losses as TRL's, weights by stream, parts of a batch, resuming, and what it moves.

Not covered: several ranks (test_fsdp.py), files of preferences (tests/pipeline/test_preferences.py), and whether a real run
gets better.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from tiny.interleaved import sliding, tiny_glm, tiny_turns
from tiny.learner import STEPS, Demonstrations, examples
from tiny.settings import align_config
from torch import Tensor

from paras2s.configs.schema.align import PreferencesConfig
from paras2s.errors import PolicyError
from paras2s.policy.types import Sampling
from paras2s.train.anchor import batch_of_step
from paras2s.train.preference import PreferenceBatch, PreferenceLearner, dpo_losses, kto_losses
from paras2s.train.sft import Example
from paras2s.types import AUDIO, TEXT


def preferences(**values: Any) -> PreferencesConfig:
    return PreferencesConfig(file=Path("pairs.jsonl"), **values)


def make_learner(policy: Any = None, **values: Any) -> PreferenceLearner:
    settings = {"lr": 0.01, "warmup_steps": 1, "steps": 20, "preferences": preferences(), **values}
    return PreferenceLearner(policy or small_policy(small_model(small_config())), align_config(**settings), STEPS)


def make_batch(learner: PreferenceLearner, pairs: bool, count: int = 6) -> PreferenceBatch:
    made = examples(learner.policy, count)  # type: ignore[arg-type]
    if pairs:
        made = [Example(made[row - row % 2].prompt, one.target) for row, one in enumerate(made)]
    return PreferenceBatch(tuple(made), tuple(row % 2 == 0 for row in range(count)), pairs)


def advance(learner: PreferenceLearner, batch: PreferenceBatch, steps: int) -> list[dict[str, Any]]:
    return [learner.learn(batch) for _ in range(steps)]


# -- losses -----------------------------------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    """Two pairs with margins 2 and -1; three answers around z = 0.5, a bad one counted twice."""
    ratios = torch.tensor([1.5, -0.5, 0.0, 1.0], dtype=torch.float64)
    found = dpo_losses(ratios, 0.5)
    assert found.tolist() == pytest.approx([np.log1p(np.exp(-1.0)), np.log1p(np.exp(0.5))])
    config = preferences(beta=2.0, undesirable_weight=2.0)
    found = kto_losses(ratios[:3], torch.tensor([True, False, False]), 0.5, config)
    sigmoid = [1 / (1 + np.exp(-value)) for value in (2.0, 2.0, 1.0)]
    assert found.tolist() == pytest.approx([1 - sigmoid[0], 2 * (1 - sigmoid[1]), 2 * (1 - sigmoid[2])])


class TrlModel(torch.nn.Module):
    """In place of a model of TRL's trainers: log-probs that are given, one tensor a call."""

    is_gradient_checkpointing = False

    def __init__(self, *logps: Tensor) -> None:
        super().__init__()
        self.logps = list(logps)

    def forward(self, **_: Any) -> SimpleNamespace:
        logps = self.logps.pop(0)
        nothing = torch.zeros_like(logps)
        return SimpleNamespace(log_probs=logps, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())


def trl_trainer(loss: str, reference: TrlModel, beta: float) -> SimpleNamespace:
    """The fields of a trainer that its loss reads."""
    accelerator = SimpleNamespace(device="cpu", gather_for_metrics=lambda value: value, gather=lambda value: value)
    return SimpleNamespace(
        model=TrlModel(), ref_model=reference, accelerator=accelerator, beta=beta, loss_type=loss, loss_types=[loss],
        loss_weights=[1.0], f_divergence_type="reverse_kl", ld_alpha=None, label_smoothing=0.0, precompute_ref_logps=False,
        aux_loss_enabled=False, use_weighting=False, calculate_KL=True, desirable_weight=1.5, undesirable_weight=0.5,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None), _total_train_tokens=0, _tp_size=1,
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip


def random_logps(seed: int, count: int, tokens: int = 9) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.arange(tokens)[None] < torch.randint(1, tokens + 1, (count,), generator=draw)[:, None]).double()
    logps = [-2 * torch.rand(count, tokens, generator=draw, dtype=torch.float64) * mask for _ in range(4)]
    return (mask, *logps)


def trl_inputs(mask: Tensor) -> dict[str, Tensor]:
    ids = torch.zeros(len(mask), mask.shape[1] + 1, dtype=torch.long)
    completion = torch.cat([torch.zeros(len(mask), 1), mask], 1).long()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": completion}


@pytest.mark.parametrize("seed", range(3))
def test_dpo_agrees_with_trl(seed: int) -> None:
    pytest.importorskip("trl", reason="the agreement is with trl==1.16.0")
    from trl.trainer.dpo_trainer import DPOTrainer

    mask, logp, ref, *_ = random_logps(seed, 6)
    logp.requires_grad_()
    trainer = trl_trainer("sigmoid", TrlModel(ref), beta=0.3)
    expected = DPOTrainer._compute_loss(trainer, TrlModel(logp), trl_inputs(mask), False)
    (theirs,) = torch.autograd.grad(expected, logp)
    # TRL has the chosen answers first, and then the rejected ones.
    ratios = (logp - ref).sum(1).view(2, 3).T.flatten()
    ours = dpo_losses(ratios, 0.3).mean()
    assert ours.item() == pytest.approx(expected.item(), abs=1e-9)
    torch.testing.assert_close(torch.autograd.grad(ours, logp)[0], theirs, atol=1e-9, rtol=0)
    margin = 0.3 * float((ratios[0::2] - ratios[1::2]).detach().mean())
    assert trainer._metrics["train"]["rewards/margins"][0] == pytest.approx(margin)


@pytest.mark.parametrize("seed", range(3))
def test_kto_agrees_with_trl(seed: int) -> None:
    pytest.importorskip("trl", reason="the agreement is with trl==1.16.0")
    from trl.trainer.kto_trainer import KTOTrainer

    mask, logp, ref, other, ref_other = random_logps(seed, 6)
    logp.requires_grad_()
    good = torch.tensor([True, False, True, True, False, False])
    inputs = trl_inputs(mask)
    inputs |= {f"KL_{name}": value for name, value in inputs.items()} | {"label": good}
    reference = TrlModel(ref_other, ref)
    trainer = trl_trainer("kto", reference, beta=0.3)
    trainer._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(trainer, model, batch)
    expected = KTOTrainer._compute_loss(trainer, TrlModel(other, logp), inputs, False)
    (theirs,) = torch.autograd.grad(expected, logp)
    z = max(0.0, float((other - ref_other).sum(1).mean()))
    assert trainer._metrics["train"]["kl"][0] == pytest.approx(z)
    config = preferences(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)
    ours = kto_losses((logp - ref).sum(1), good, z, config).mean()
    assert ours.item() == pytest.approx(expected.item(), abs=1e-9)
    torch.testing.assert_close(torch.autograd.grad(ours, logp)[0], theirs, atol=1e-9, rtol=0)


# -- updates ----------------------------------------------------------------------------------------------------------


def log_ratios(learner: PreferenceLearner, prompts: list[Any], targets: list[Any]) -> np.ndarray:
    """Token by token, an answer at a time: log-ratios to the reference of text and audio, [N, 2]."""
    rows = []
    for prompt, target in zip(prompts, targets, strict=True):
        with torch.no_grad():
            logp = learner.policy.logprobs([prompt], [target], Sampling())
            with learner.policy.reference():
                fixed = learner.policy.logprobs([prompt], [target], Sampling())
        sums = [0.0, 0.0]
        for block, own, other in zip(target, logp, fixed, strict=True):
            for _, step, slot in np.argwhere(block.sampled):
                sums[int(block.streams[0, step, slot])] += float(own[0, step, slot] - other[0, step, slot])
        rows.append(sums)
    return np.array(rows)


@pytest.mark.parametrize(
    ("average", "weights"), [("joint", (1.0, 1.0)), ("per_stream", (0.8, 0.3))], ids=["joint", "per stream"]
)
@pytest.mark.parametrize("pairs", [True, False], ids=["dpo", "kto"])
def test_an_update_by_hand(pairs: bool, average: str, weights: tuple[float, float]) -> None:
    """After some updates, so that policy and reference differ; the prompt of a row reads the answer before it for z."""
    learner = make_learner(average=average, text_weight=0.8, audio_weight=0.3, preferences=preferences(beta=0.4))
    batch = make_batch(learner, pairs)
    first = advance(learner, batch, 3)[0]
    prompts, targets = [one.prompt for one in batch.examples], [one.target for one in batch.examples]
    by_stream = log_ratios(learner, prompts, targets)
    ratios = by_stream @ weights
    z = max(0.0, float(np.mean(log_ratios(learner, prompts, [targets[-1], *targets[:-1]]) @ weights)))
    row = learner.learn(batch)
    if pairs:
        margins = ratios[0::2] - ratios[1::2]
        loss, accuracy = np.mean(np.log1p(np.exp(-0.4 * margins))), np.mean(margins > 0)
        assert first["loss"] == pytest.approx(np.log(2.0))
        assert "kto_reference_point" not in row
    else:
        signs = np.where(batch.good, 1.0, -1.0)
        loss = np.mean(1 - 1 / (1 + np.exp(-0.4 * signs * (ratios - z))))
        accuracy = np.mean((ratios > z) == np.array(batch.good))
        assert first["loss"] == pytest.approx(0.5)
        assert row["kto_reference_point"] == pytest.approx(z, abs=1e-9)
    assert row["loss"] == pytest.approx(loss, abs=1e-9)
    assert row["preference_accuracy"] == pytest.approx(accuracy)
    for name, side in (("chosen", by_stream[0::2]), ("rejected", by_stream[1::2])):
        for stream, number in (("text", TEXT), ("audio", AUDIO)):
            assert row[f"log_ratio_{name}_{stream}"] == pytest.approx(side[:, number].mean(), abs=1e-9)
        assert row[f"{name}_reward"] == pytest.approx(0.4 * float((side @ weights).mean()), abs=1e-9)
    assert row["reward_margin"] == pytest.approx(row["chosen_reward"] - row["rejected_reward"])


@pytest.mark.parametrize("pairs", [True, False], ids=["dpo", "kto"])
def test_chosen_answers_become_likelier_than_rejected_ones(pairs: bool) -> None:
    learner = make_learner()
    log = advance(learner, make_batch(learner, pairs), 8)
    assert log[-1]["loss"] < log[0]["loss"] - 0.05
    assert log[-1]["preference_accuracy"] == 1.0
    assert log[-1]["reward_margin"] > 0.2
    assert [row["step"] for row in log] == list(range(8))


@pytest.mark.parametrize("size", [3])
@pytest.mark.parametrize("pairs", [True, False], ids=["dpo", "kto"])
def test_in_micro_batches_it_is_the_same(pairs: bool, size: int) -> None:
    complete, parts = (make_learner(micro_batch_size=one) for one in (None, size))
    batch = make_batch(complete, pairs)
    for one, other in zip(advance(parts, batch, 3), advance(complete, batch, 3), strict=True):
        assert one == pytest.approx(other, abs=1e-8)


@pytest.mark.parametrize("pairs", [True, False], ids=["dpo", "kto"])
def test_a_resumed_learner_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path, pairs: bool) -> None:
    complete, first, second = (make_learner() for _ in range(3))
    batch = make_batch(complete, pairs)
    expected = advance(complete, batch, 4)
    log = advance(first, batch, 2)
    first.save(tmp_path)
    second.restore(tmp_path)
    assert log + advance(second, batch, 2) == expected
    left, right = complete.weights(), second.weights()
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_the_anchor_is_added() -> None:
    plain, anchored = (make_learner(anchor=one) for one in (None, {"weight": 0.5, "streams": "both", "demonstrations": 2}))
    batch = make_batch(plain, True)
    rows = Demonstrations(examples(plain.policy, 4))  # type: ignore[arg-type]
    demonstrated = batch_of_step(anchored.config.objective.anchor, rows, 0, 0)
    row, other = plain.learn(batch), anchored.learn(batch, demonstrated)
    assert other["anchor_loss"] > 0
    assert other["loss"] == row["loss"]
    assert other["grad_norm"] != row["grad_norm"]


def test_one_stream_that_holds_both_is_told_apart_by_its_labels() -> None:
    policy = tiny_glm()
    policy.model.double()
    learner = make_learner(policy, average="per_stream", text_weight=1.0, audio_weight=0.5)
    prompt = policy.encode_prompt(tiny_turns()[0])
    targets = [policy.encode_target(sliding(0.3, 16_000, hz), text) for hz, text in ((100, "Hi"), (220, "No"))]
    batch = PreferenceBatch(tuple(Example(prompt, target) for target in targets), (True, False), True)
    log = advance(learner, batch, 3)
    assert log[-1]["reward_margin"] > log[0]["reward_margin"]
    assert all(log[-1][f"log_ratio_chosen_{stream}"] != 0 for stream in ("text", "audio"))


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    learner = make_learner()
    batch = make_batch(learner, True)
    next(learner.policy.model.parameters()).data[:] = float("nan")
    before = learner.optimiser.state_dict()["state"]
    with pytest.raises(PolicyError, match="the loss is nan"):
        learner.learn(batch)
    assert (learner.next_step, learner.optimiser.state_dict()["state"]) == (0, before)
