"""The contract of docs/policies.md on tiny random GLM-4-Voices and Step-Audios in float64.

Not covered: released weights, tokenizers and decoders, half precision, and GPUs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.interleaved import (
    STEP_IDS,
    WARM,
    Beeps,
    TinyGlm,
    drawn,
    fresh,
    scored,
    seeds,
    sliding,
    tiny_glm_once,
    tiny_step_once,
    tiny_turns,
)
from tiny.job import Noise
from torch import Tensor
from torch.nn import functional as fn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.config import SPECIAL_IDS, DualStreamConfig
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import sample
from paras2s.policy.interleaved.base import InterleavedPolicy
from paras2s.policy.interleaved.glm4_voice import Glm4VoicePolicy
from paras2s.policy.interleaved.step_audio2 import StepAudio2Policy
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.types import AUDIO, TEXT, Block, Query


@pytest.mark.parametrize("sampling", [Sampling(max_steps=9), WARM], ids=["T 1", "T 0.7"])
def test_1_behaviour_logprobs_are_the_teacher_forced_ones(
    case: tuple[InterleavedPolicy, list[Prompt]], sampling: Sampling
) -> None:
    policy, prompts = case
    blocks = drawn(policy, prompts, 5, sampling)
    logp = scored(policy, prompts, blocks, sampling).detach().numpy()
    for number, block in enumerate(blocks):
        rows = logp[5 * number : 5 * number + 5]
        np.testing.assert_allclose(rows[:, : block.tokens.shape[1]], block.behaviour_logp, atol=1e-10, rtol=0)
        assert not rows[:, block.tokens.shape[1] :].any()
        assert (block.behaviour_logp[block.sampled] < 0).all()


def test_1_every_token_is_labelled_by_its_id_and_ends_are_ends(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    kinds: Counter[int] = Counter()
    for one in policy.generate(SampleRequest(prompts, seeds(3, 12), Sampling(max_steps=24))):
        (block,) = one.blocks
        assert block.slots == ("text",)
        assert block.labels is not None
        np.testing.assert_array_equal(block.labels == AUDIO, block.tokens >= policy.first_audio)
        np.testing.assert_array_equal(block.streams, block.labels)
        for answer, finish in enumerate(one.finish_reason):
            steps = int(block.sampled[answer].sum())
            ids = block.tokens[answer, :steps, 0]
            # From the first to the last all are sampled, and none behind.
            assert block.sampled[answer, :steps].all()
            ended = np.isin(ids, policy.config.text_end_ids)
            assert ended.tolist() == [False] * (steps - 1) + [finish == "eos"]
            assert finish == "eos" or steps == 24
            kinds.update(block.labels[answer, :steps, 0].tolist())
            kinds[10 + (finish == "eos")] += 1
    assert min(kinds[TEXT], kinds[AUDIO], kinds[10], kinds[11]) > 3


def test_2_a_batch_is_its_prompts_one_by_one(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    together = policy.generate(SampleRequest(prompts, seeds(3, 4), WARM))
    logp = scored(policy, prompts, [one.blocks[0] for one in together])
    for number, (prompt, one) in enumerate(zip(prompts, together, strict=True)):
        (alone,) = policy.generate(SampleRequest([prompt], [seeds(3, 4)[number]], WARM))
        np.testing.assert_array_equal(alone.blocks[0].tokens, one.blocks[0].tokens)
        np.testing.assert_array_equal(alone.blocks[0].sampled, one.blocks[0].sampled)
        np.testing.assert_allclose(alone.blocks[0].behaviour_logp, one.blocks[0].behaviour_logp, atol=1e-10, rtol=0)
        own = scored(policy, [prompt], [one.blocks[0]])
        torch.testing.assert_close(logp[4 * number : 4 * number + 4, : own.shape[1]], own, atol=1e-10, rtol=0)


def test_2_both_clips_of_a_prompt_matter(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    (block,) = drawn(policy, prompts[1:2], 2)
    before = scored(policy, prompts[1:2], [block])
    for place in (1, 3):
        turns = list(tiny_turns()[1])
        turns[place] = Turn("user", clip=sliding(0.2 if place == 1 else 0.16, 16_000, 700))
        other = scored(policy, [policy.encode_prompt(turns)], [block])
        assert (other - before).abs().max() > 1e-3


def test_3_a_group_is_its_answers_one_by_one(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    (group,) = policy.generate(SampleRequest(prompts[1:2], seeds(1, 5), WARM))
    for answer, seed in enumerate(seeds(1, 5)[0]):
        (alone,) = policy.generate(SampleRequest(prompts[1:2], [[seed]], WARM))
        steps = alone.blocks[0].tokens.shape[1]
        np.testing.assert_array_equal(alone.blocks[0].tokens[0], group.blocks[0].tokens[answer, :steps])
        assert not group.blocks[0].sampled[answer, steps:].any()


def test_4_masks_and_causality(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    (block,) = drawn(policy, prompts[:1], 6)
    full = scored(policy, prompts[:1], [block])
    assert not full[~torch.from_numpy(block.sampled)].any()
    answer = int(block.sampled.sum((1, 2)).argmax())
    tokens, sampled = block.tokens[answer : answer + 1], block.sampled[answer : answer + 1]
    steps = int(sampled.sum())
    assert steps > 4

    def again(tokens: np.ndarray, sampled: np.ndarray) -> Tensor:
        return scored(policy, prompts[:1], [Block(block.slots, tokens, sampled, sampled * 0.0)])[0, :, 0]

    before = again(tokens, sampled)
    for step in range(steps):
        fewer = sampled.copy()
        fewer[0, step] = False
        left = again(tokens, fewer)
        assert left[step] == 0
        kept = [other for other in range(steps) if other != step]
        torch.testing.assert_close(left[kept], before[kept], atol=1e-12, rtol=0)
        changed = tokens.copy()
        changed[0, step, 0] = (tokens[0, step, 0] + 1) % policy.config.vocab_size
        after = again(changed, sampled)
        assert torch.equal(after[:step], before[:step])
        assert step == steps - 1 or (after[step + 1 :] != before[step + 1 :]).any()


def test_5_every_adapter_learns_from_text_and_from_audio(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = fresh(case), case[1]
    blocks = drawn(policy, prompts, 4)
    labels = torch.cat(
        [fn.pad(torch.from_numpy(b.labels), (0, 0, 0, 9 - b.labels.shape[1])) for b in blocks if b.labels is not None]
    )
    policy.add_lora(rank=2, alpha=4)
    matrices = {name: one for name, one in policy.model.named_parameters() if "lora_" in name}
    # Two layers of seven projections, two matrices each.
    assert len(matrices) == 2 * 7 * 2
    for parameter in matrices.values():
        parameter.data += 0.2 * torch.randn_like(parameter)
    for kind in (TEXT, AUDIO):
        logp = fn.pad(scored(policy, prompts, blocks), (0, 0, 0, 9))[:, :9]
        assert (labels == kind).sum() > 5
        logp[labels == kind].sum().backward()
        assert not [name for name, one in matrices.items() if one.grad is None or not one.grad.abs().max() > 1e-9]
        assert not [name for name, one in policy.model.named_parameters() if "lora_" not in name and one.grad is not None]
        policy.model.zero_grad()


def test_6_reference_merge_and_files(case: tuple[InterleavedPolicy, list[Prompt]], tmp_path: Path) -> None:
    policy, prompts = fresh(case), case[1]
    blocks = drawn(policy, prompts, 3)
    before = scored(policy, prompts, blocks).detach()
    policy.add_lora(rank=2, alpha=4)
    for name, parameter in policy.model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    trained = scored(policy, prompts, blocks).detach()
    with policy.reference():
        assert torch.equal(scored(policy, prompts, blocks), before)
    assert torch.equal(scored(policy, prompts, blocks), trained)
    assert (trained - before).abs().max() > 1e-2
    policy.merge_lora()
    policy.save(tmp_path)
    loaded = type(policy).load(tmp_path, dtype=torch.float64)
    assert loaded.spec == policy.spec
    torch.testing.assert_close(scored(loaded, prompts, blocks), trained, atol=1e-10, rtol=0)
    # A reload changes the weights and nothing else.
    policy.model.load_state_dict({name: value + 1 for name, value in policy.model.state_dict().items()})
    policy.reload(tmp_path)
    torch.testing.assert_close(scored(policy, prompts, blocks), trained, atol=1e-10, rtol=0)


def plain_six() -> DualStreamLM:
    """Six ids: 0 pads, 1 is a word, 2 and 3 are codes, 4 and 5 end."""
    unused = dict.fromkeys(set(SPECIAL_IDS) - {"text_eos_id"}, 0)
    config = DualStreamConfig(
        hidden_size=16, intermediate_size=24, num_layers=2, tap_layer=1, num_heads=4, num_kv_heads=2, rotary_share=0.5,
        rotary_in_pairs=True, text_vocab=6, codebook_sizes=(), audio_delay_steps=0, text_eos_id=5, more_end_ids=(4,),
        audio_from_id=2, mask_invalid_ids=False, **unused,
    )  # fmt: skip
    torch.manual_seed(3)
    model = DualStreamLM(config).double()
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    return model.eval()


def all_answers(length: int) -> Iterator[tuple[int, ...]]:
    """Every answer of at most so many of six ids that ends with its first 4 or 5."""
    for steps in range(1, length + 1):
        for body in itertools.product(range(4), repeat=steps - 1):
            yield from ((*body, last) for last in (range(6) if steps == length else (4, 5)))


def test_7_the_probabilities_of_all_answers_add_up_to_one() -> None:
    model = plain_six()
    prompt = Prompt(np.zeros((4, 0), dtype=np.int64), np.array([1, 3, 2, 1]), None, np.zeros(4, dtype=bool))
    answers = list(all_answers(3))
    assert len(answers) == 2 + 4 * 2 + 16 * 6
    tokens, sampled = np.zeros((len(answers), 3, 1), dtype=np.int64), np.zeros((len(answers), 3, 1), dtype=bool)
    for row, ids in enumerate(answers):
        tokens[row, : len(ids), 0], sampled[row, : len(ids)] = ids, True
    block = Block(("text",), tokens, sampled, np.zeros(tokens.shape))
    sampling = Sampling(text_temperature=0.8, max_steps=3)
    logp = teacher_forced(model, [prompt], [block], sampling).sum((1, 2))
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-12)
    count = 4000
    (found,) = sample(model, SampleRequest([prompt], [list(range(count))], sampling))
    places = {ids: row for row, ids in enumerate(answers)}
    one = found.blocks[0]
    counts = Counter(
        places[tuple(ids[mask].tolist())] for ids, mask in zip(one.tokens[..., 0], one.sampled[..., 0], strict=True)
    )
    for row, probability in enumerate(logp.exp().tolist()):
        error = (probability * (1 - probability) / count) ** 0.5
        assert counts[row] / count == pytest.approx(probability, abs=5 * error + 1 / count)


def test_8_answers_are_decoded(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, _ = case
    base, word, end = policy.first_audio, ord("H"), policy.config.text_eos_id
    # A code, a word, the first id behind the codes, codes, an end; and a second answer that is an end and padding.
    ids = [[base + 3, word, base + policy.codes, base, base + policy.codes - 1, end], [end, base, word, base, 0, 0]]
    sampled = np.array([[True] * 6, [True] + [False] * 5])[..., None]
    block = Block(("text",), np.array(ids)[..., None], sampled, np.zeros((2, 6, 1)))
    assert policy.decode_codes([block], 0).tolist() == [[3], [0], [policy.codes - 1]]
    assert policy.decode_text([block], 0) == "H"
    first, again, other = (policy.decode_audio([block], 0, seed) for seed in (1, 1, 2))
    rate = policy.spec.output_rate_hz
    assert first.sample_rate_hz == rate
    assert len(first.samples) == 3 * rate / (12.5 if isinstance(policy, TinyGlm) else 25)
    np.testing.assert_array_equal(first.samples, again.samples)
    assert (first.samples != other.samples).any()
    assert policy.decode_codes([block], 1).shape == (0, 1)
    assert policy.decode_text([block], 1) == ""
    silent = policy.decode_audio([block], 1, 1)
    assert (len(silent.samples), silent.sample_rate_hz) == (0, rate)


class TogetherBeeps(Beeps):
    """A decoder that speaks many answers at once; keeps how long they were."""

    def __init__(self, sample_rate_hz: int, frame_rate_hz: float) -> None:
        super().__init__(sample_rate_hz, frame_rate_hz)
        self.batches: list[list[int]] = []

    def decode_all(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        self.batches.append([len(one) for one in codes])
        return [self.decode(one, seed) for one, seed in zip(codes, seeds, strict=True)]


def test_a_decoder_that_takes_many_answers_gets_those_of_like_length(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    """20 answers of 1 to 20 codes, the third without any, in batches of 16 and 3, each as by itself."""
    policy = fresh(case)
    ids = [policy.interleave([], [code % 4 for code in range(0 if number == 3 else number)]) for number in range(1, 21)]
    blocks = [block_of(one or [policy.end_ids[0]]) for one in ids]
    answers = [((block,), 0, seed) for seed, block in enumerate(blocks)]
    plain = [policy.decode_audio(*one) for one in answers]
    rate = policy.output_rate_hz
    decoder = TogetherBeeps(22_050, 12.5) if isinstance(policy, TinyGlm) else TogetherBeeps(24_000, 25)
    policy.decoder = decoder
    together = policy.decode_audios(answers)
    speaker = type(policy).load_speaker(policy.folder, decoder=decoder)
    apart = speaker.speak([policy.decode_codes(*one[:2]) for one in answers], [seed for _, _, seed in answers])
    sizes = [[length for length in range(20, 0, -1) if length != 3][start : start + 16] for start in (0, 16)]
    assert decoder.batches == sizes * 2
    for one, other, third in zip(plain, together, apart, strict=True):
        assert other.sample_rate_hz == rate
        np.testing.assert_array_equal(one.samples, other.samples)
        np.testing.assert_array_equal(one.samples, third.samples)


def block_of(ids: list[int]) -> Block:
    tokens = np.array(ids, dtype=np.int64)[None, :, None]
    return Block(("text",), tokens, np.ones(tokens.shape, dtype=bool), np.zeros(tokens.shape))


def test_8_without_a_decoder_it_is_said_where_one_is(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy = fresh(case)
    policy.decoder = None
    (target,) = policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
    with pytest.raises(PolicyError, match=r"load\(decoder=...\).*github.com/"):
        policy.decode_audio([target], 0, 0)


def test_glm_encodes_queries_together_as_one_by_one() -> None:
    policy, names = tiny_glm_once(), "0123"
    queries = [Query(name, name, None, None, "rl", "someone", name, 0.3, "hello", None, None) for name in names]
    for name, prompt in zip(names, policy.encode_queries(Noise(), queries), strict=True):
        assert prompt.text_ids.tolist() == policy.encode_prompt([Turn("user", "", Noise().clip(name))]).text_ids.tolist()


def test_specs() -> None:
    glm, step = tiny_glm_once().spec, tiny_step_once().spec
    assert (glm.step_rate_hz, glm.output_rate_hz, glm.code_format) == (18.75, 22_050, "glm-4-voice-16384@12.5")
    assert (step.step_rate_hz, step.output_rate_hz, step.code_format) == (31.25, 24_000, "s3-6561@25")
    assert [(slot.name, slot.kind, slot.start, slot.stop) for slot in glm.slots] == [("text", "both", 0, 340)]
    assert Glm4VoicePolicy.codes == 16_384
    assert StepAudio2Policy.codes == 6561
    assert STEP_IDS["<audio_0>"] == tiny_step_once().first_audio
