"""Parameters, FLOPs and memory: by hand, and against the network itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny.plans import KIMI_CONFIG, RATES, TINY, device

from paras2s.configs.schema.run import PolicyConfig, load_config
from paras2s.planning import cost
from paras2s.planning.cluster import Engine, LearnerPlan, load_cluster
from paras2s.planning.cost import Work

# -- parameters and FLOPs -----------------------------------------------------------------------------------------------


def test_kimi_audio_has_the_parameters_counted_by_hand() -> None:
    """From the released configuration: 28 + 6 layers, tap 21, two untied heads, VQ adaptor."""
    sizes = cost.policy_sizes(load_config(KIMI_CONFIG).policy, RATES.policies["kimi-audio-7b"])
    q, k, o = 3584 * 3584 + 3584, 3584 * 512 + 512, 3584 * 3584
    layer = q + 2 * k + o + 3 * 3584 * 18944 + 2 * 3584
    assert layer == 233_057_792
    parts = cost.parameters(sizes)
    assert parts == {
        "embedding": 168_448 * 3584,
        "shared layers": 22 * layer,
        "text branch": 6 * layer,
        "audio branch": 6 * layer,
        "heads": 2 * 168_448 * 3584,
        "norms": 2 * 3584,
        "adaptor": (5120 * 3584 + 3584) + (3584 * 3584 + 3584) + 2 * 3584,
    }
    assert sum(parts.values()) == 9_766_334_464


def test_a_gpus_own_memory_by_hand() -> None:
    """32 rows, answers of up to 600 steps with up to 140 of text: 10 sizes of rows, and 10 and 3 lengths of 64 positions."""
    from paras2s.policy.dual_stream.captured import POSITIONS, size_of

    assert cost.recorded_steps(TINY, 32, 600, 140) == (10 * (10 + 3), 41 * 4)
    assert cost.RECORDED_POSITIONS == POSITIONS
    for rows in (1, 2, 3, 7, 32, 100, 256):
        assert len({size_of(count) for count in range(1, rows + 1)}) <= cost.recorded_steps(TINY, rows, 64, 0)[0]
    # Two heads share a key of 2 numbers: on a GPU each gets its own, 4 numbers a position, for keys, values and gradients.
    assert cost.attention_bytes(TINY, 3, 10, 5, 2) == 4 * 2 * 4 * 3 * 15


@pytest.mark.parametrize(
    "sizes",
    [{}, {"hidden_size": 96, "intermediate_size": 160, "num_layers": 3, "tap_layer": 0, "num_heads": 6, "num_kv_heads": 2}],
    ids=["default", "grouped heads"],
)
def test_the_embedded_policy_has_the_parameters_of_its_network(sizes: dict[str, int]) -> None:
    from paras2s.policy.dual_stream.config import SPECIAL_IDS, DualStreamConfig
    from paras2s.policy.dual_stream.model import DualStreamLM
    from paras2s.policy.embedded.codec2 import Codec2Pairs
    from paras2s.policy.embedded.features import FEATURE_DIM
    from paras2s.policy.embedded.policy import special_ids

    config = PolicyConfig(**sizes)
    network = DualStreamLM(
        DualStreamConfig(
            **config.model_dump(include=set(PolicyConfig.model_fields) & set(DualStreamConfig.model_fields)),
            text_vocab=config.text_pieces + len(SPECIAL_IDS), codebook_sizes=Codec2Pairs().cardinality,
            continuous_dim=FEATURE_DIM, mask_invalid_ids=True, **special_ids(config.text_pieces),
        )
    )  # fmt: skip
    counted = cost.policy_sizes(config, RATES.policies["embedded"])
    assert sum(cost.parameters(counted).values()) == sum(one.numel() for one in network.parameters())
    text, audio = network.dual_config.text_range, network.dual_config.audio_ranges
    assert counted.text_rows == text[1] - text[0]
    assert counted.audio_rows == sum(stop - start for start, stop in audio)


def test_flops_of_the_linear_layers() -> None:
    # q and o 4x4, k and v 4x2, gate, up and down 4x6.
    assert cost.layer_products(TINY) == 16 + 16 + 8 + 8 + 3 * 24
    # 7 positions through 2 shared layers and one of each branch, and the adaptor's 3x4 and 4x4.
    read = cost.read_prompts(TINY, prompts=1, prompt_steps=7, dtype_bytes=2)
    assert read.products == 2 * 7 * (4 * 120 + 12 + 16)
    assert read.attention == 4 * 4 * 7 * 7 * 4


def test_a_decoded_step_by_hand() -> None:
    """3 rows with 6 positions behind them and prompts of 5, one text still being written: 4 layers and both heads."""
    step = cost.decode_step(TINY, rows=3, own_positions=6, prompts=1, prompt_steps=5, text=True, dtype_bytes=2)
    assert step.products == 2 * 3 * (4 * 120 + 4 * 5 + 4 * 7)
    assert step.attention == 4 * 4 * (6 + 3 * 5) * 4
    # The prompt's keys and values are read once for its rows.
    assert step.cache_bytes == 2 * 2 * 2 * 4 * (6 + 5)
    assert step.drawn_logits == 3 * (5 + 7)
    silent = cost.decode_step(TINY, rows=3, own_positions=6, prompts=1, prompt_steps=5, text=False, dtype_bytes=2)
    assert silent.products == 2 * 3 * (3 * 120 + 4 * 7)


def test_scoring_by_hand_and_its_way_back() -> None:
    """2 answers of 4 steps, their text 3 long, behind prompts of 5."""
    work = cost.score_answers(TINY, rows=2, steps=4, text_steps=3, prompt_steps=5, dtype_bytes=4)
    layers = 2 * 120 * (2 * 4 * 3 + 2 * 3 * 1)
    heads = 2 * 4 * (2 * 3 * 5 + 2 * 4 * 7)
    assert work.products == layers + heads
    assert work.attention == 4 * 4 * (9 * 2 * 4 * 3 + 8 * 2 * 3 * 1)
    assert cost.backward(work).products == 2 * work.products
    assert cost.backward(work, of_weights=False).products == work.products


def test_a_device_takes_the_slower_of_arithmetic_and_memory() -> None:
    fast = device()
    assert cost.seconds(Work(products=3e12, weight_bytes=1e9), fast, "decode") == 3
    assert cost.seconds(Work(products=3e12, weight_bytes=5e9), fast, "decode") == 5
    # Attention is another kernel, with limits of its own.
    assert cost.seconds(Work(products=3e12, cache_bytes=2e9), fast, "decode") == 5
    assert cost.seconds(Work(products=1e12), device(train_share=0.25), "train") == 4
    assert cost.seconds(Work(weight_bytes=1e9), device(memory_share=0.5), "decode") == 2


def test_a_measured_device_does_one_thing_after_another() -> None:
    here = load_cluster("this_machine", RATES).rates
    work = Work(products=1e9, weight_bytes=1e6, vector_bytes=1e6, backward_bytes=1e6, stream_bytes=1e6, drawn_logits=1e6,
                scored_logits=1e6, launches=10)  # fmt: skip
    alone = [Work(**{name: value}) for name, value in vars(work).items()]
    assert cost.seconds(work, here, "train") == pytest.approx(sum(cost.seconds(one, here, "train") for one in alone))


def test_kimi_decodes_at_the_speed_of_its_memory() -> None:
    """All of 34 layers and both heads are read once a step, whatever the rows."""
    sizes = cost.policy_sizes(load_config(KIMI_CONFIG).policy, RATES.policies["kimi-audio-7b"])
    bytes_read = 2 * (34 * 233_057_792 + 2 * 168_448 * 3584)
    step = cost.decode_step(sizes, rows=1, own_positions=0, prompts=1, prompt_steps=0, text=True, dtype_bytes=2)
    h100 = RATES.devices["h100_sxm"]
    assert cost.seconds(step, h100, "decode") == pytest.approx(bytes_read / (0.6 * 3350e9))


# -- memory -------------------------------------------------------------------------------------------------------------


LAYER = 120 + 4 + 2 * 2 + 2 * 4


def learner_parts(**changes: Any) -> dict[str, float]:
    """2 prompts of 5 steps, 4 answers of 3, their texts of 2."""
    plan = LearnerPlan(**({"rows": 4, "checkpointing": False, "logits_at_once": None} | changes))
    return cost.learner_memory(TINY, plan, rows=4, prompts=2, steps=3, text_steps=2, prompt_steps=5)


def test_learner_memory_by_hand() -> None:
    total = sum(cost.parameters(TINY).values())
    assert learner_parts(shard_over=2) == {
        "weights": 2 * total,  # float32, over 2 devices
        "reference": total,
        "optimiser": 4 * total,
        "gradients": 2 * total,
        # Of 10 prompt positions, 6 d + 3 f and 2 j of what each sees, in 4 layers; of 12 of answers, which see 32, in 3; of 8
        # of their texts, which see 28, in one. The ends of both branches, and a mask an answer.
        "activations": 2 * (4 * (42 * 10 + 4 * 10) + 3 * (42 * 12 + 4 * 32) + (42 * 8 + 4 * 28) + 1.5 * 4 * 40 + 4 * 3 * 8),
        # Of both heads, 4 x 2 x 5 of text and 4 x 3 x 7 of audio, and two copies of the larger in 4 bytes each.
        "logits": 2 * (40 + 84) + 2 * 4 * 84,
        # The policy in 2 bytes and its gradients in 4, all of them on each device; the reference was, and is not any more.
        "gathered": 2 * total + 4 * total,
    }
    # Two layers and what is in none; of gradients one layer's, and those of what is in none.
    assert learner_parts(shard_over=2, gather="layer")["gathered"] == 2 * (3 * LAYER + 2 * (total - 4 * LAYER))
    assert learner_parts(weight_bytes=4).get("gathered", 0) == 0


def test_adapters_by_hand() -> None:
    # q and o 4+4, k and v 4+2, gate, up and down 4+6.
    adapters, total = 4 * (8 + 8 + 6 + 6 + 30), sum(cost.parameters(TINY).values())
    assert cost.lora_parameters(TINY, 1) == adapters
    parts = learner_parts(shard_over=2, trainable="lora", lora_rank=1)
    assert parts["weights"] == (2 * total + 4 * adapters) / 2
    assert parts["reference"] == 0
    assert parts["optimiser"] == 8 * adapters / 2
    assert parts["gradients"] == 4 * adapters / 2
    assert parts["gathered"] == 2 * (total + adapters) + 4 * adapters


def test_what_less_memory_costs() -> None:
    assert learner_parts(checkpointing=True)["activations"] < learner_parts()["activations"]
    heads = [(40.0, 10.0), (84.0, 21.0)]
    # A call scores a quarter of them.
    assert cost.logit_bytes(heads, LearnerPlan(logits_at_once=None)) == 2 * (40 + 84) + 2 * 4 * 21
    # In parts of 3 logits nothing is kept, and a part has two copies in 4 bytes.
    assert cost.logit_bytes(heads, LearnerPlan(logits_at_once=3)) == (2 + 2 * 4) * 3
    assert cost.logit_bytes(heads, LearnerPlan(logits_at_once=15)) == 2 * 40 + (2 + 2 * 4) * 15


def test_where_all_gradients_are_made_activations_are_gone() -> None:
    """Long texts of one short answer: the way back ends fuller than it begins, with two look-ups' gradients of the table."""
    big = replace(TINY, vocab=100_000)
    parts = cost.learner_memory(
        big, LearnerPlan(rows=None, weight_bytes=4), rows=1, prompts=1, steps=1, text_steps=1, prompt_steps=1
    )
    total = sum(cost.parameters(big).values())
    assert parts["gradients"] == 4 * total + 2 * 4 * 100_000 * 4
    assert parts["activations"] == parts["logits"] == 0


def test_rollout_memory_by_hand() -> None:
    parts = cost.rollout_memory(TINY, Engine(), RATES.policies["embedded"], rows=4, prompts=2, most_steps=9, prompt_steps=5)
    assert parts["weights"] == 2 * sum(cost.parameters(TINY).values())
    assert parts["keys and values"] == 2 * 2 * 4 * 2 * (4 * 9 + 2 * 5)
