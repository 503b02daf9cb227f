"""Qwen3-Omni as a policy: transformers' own generation on a tiny random instance of the true classes, and its own rules.

Weights are float64, but transformers' norms, rotary angles and routers are float32 in any case. The contract is in
test_contract.py. Not covered: released weights, half precision on a GPU, sharding.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import qwen3_omni as tiny
from tiny.qwen3_omni import CODEBOOKS, CODEC_END, CODEC_PAD, CODES
from tiny.qwen_omni import noise_clip
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.qwen3_omni import Qwen3OmniPolicy as Omni
from paras2s.policy.qwen3_omni import users_part
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block

CLOSE = 1e-6
PLAIN = Sampling(max_steps=7)


@pytest.fixture(scope="module")
def policy() -> Omni:
    return tiny.tiny_qwen3_omni()


@pytest.fixture(scope="module")
def prompts(policy: Omni) -> list[Prompt]:
    return [policy.encode_prompt(turns) for turns in tiny.tiny_qwen3_omni_turns()]


def blocks_of(words: Any, frames: Any) -> tuple[Block, Block]:
    """One answer of given words [T] and frames [T, K]; an end stands alone in its step."""
    text, codes = np.asarray(words, dtype=np.int64)[None, :, None], np.asarray(frames, dtype=np.int64)[None]
    sampled = np.ones(codes.shape, dtype=bool)
    sampled[..., 1:] &= codes[..., :1] != CODEC_END
    names = tuple(f"audio{number}" for number in range(CODEBOOKS))
    return (
        Block(("text",), text, np.ones(text.shape, dtype=bool), np.zeros(text.shape)),
        Block(names, codes, sampled, np.zeros(codes.shape)),
    )


def test_a_prompt_is_the_chat_template_s_with_one_place_for_each_state_of_the_tower(policy: Omni) -> None:
    turns = [Turn("system", text="Be kind."), Turn("user", clip=noise_clip(0, 1.3))]
    prompt = policy.encode_prompt(turns)
    places = policy.audio_places(round(1.3 * 16_000))
    said = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n<|audio_start|>" + "<|audio_pad|>" * places
    said += "<|audio_end|><|im_end|>\n<|im_start|>assistant\n"
    assert prompt.text_ids.tolist() == policy.tokenizer(said, add_special_tokens=False)["input_ids"]
    # 130 frames: a whole chunk, and 30, 15, 8, 4.
    assert places == 13 + 4 == int(prompt.continuous.sum())
    # Without a system's turn there is none: the makers' template adds none.
    assert (
        policy.encode_prompt(turns[1:]).text_ids.tolist() == prompt.text_ids[len(policy._words("\nBe kind.\n")) + 3 :].tolist()
    )


def test_a_clip_s_features_do_not_depend_on_the_clip_beside_it(policy: Omni, prompts: list[Prompt]) -> None:
    both = prompts[1]
    alone = [policy.encode_prompt([turn]) for turn in tiny.tiny_qwen3_omni_turns()[1] if turn.clip is not None]
    assert both.features is not None
    np.testing.assert_array_equal(
        both.features[both.continuous],
        np.concatenate([one.features[one.continuous] for one in alone if one.features is not None]),
    )


def test_the_talker_reads_the_users_turns_alone() -> None:
    start, user, system = 7, 8, 9
    ids = np.array([start, system, 1, 2, start, user, 3, 4, start, 1, 5, start, user, 6, start, 1])
    assert users_part(ids, start, user).tolist() == [4, 5, 6, 7, 11, 12, 13]


@pytest.mark.parametrize("ended", [False, True], ids=["a reply that is cut", "a reply that ends"])
def test_log_probs_and_codes_are_those_of_transformers_generate(ended: bool) -> None:
    """Every word, every first code and every later code of greedy generation, from a prompt with history."""
    tokenizer = tiny.tiny_tokenizer()
    # One that does not end at once where it is greedy.
    full = tiny.tiny_model(tokenizer, seed=0)
    policy = Omni(full, tokenizer, speaker="Chelsie")
    turns = [Turn("user", text="Hi"), Turn("assistant", text="Yes?"), Turn("user", clip=noise_clip(3, 1.2))]
    prompt = policy.encode_prompt(turns)
    words: list[Tensor] = []
    firsts: list[Tensor] = []
    laters: list[Tensor] = []

    def forced(module: Any, inputs: Any, logits: Tensor) -> Tensor:
        words.append(logits[0, -1].detach())
        changed = logits.clone()
        changed[..., policy.special["<|im_end|>"]] = 1e9 if ended and len(words) == 4 else -1e9
        return changed

    hooks = [
        full.thinker.lm_head.register_forward_hook(forced),
        full.talker.codec_head.register_forward_hook(lambda m, i, logits: firsts.append(logits[0, -1].detach())),
        *(head.register_forward_hook(lambda m, i, logits: laters.append(logits[0, -1].detach()))
          for head in full.talker.code_predictor.lm_head),
    ]  # fmt: skip
    made: list[Tensor] = []
    hooks.append(full.code2wav.register_forward_hook(lambda module, args, output: made.append(args[0])))
    samples = turns[-1].clip.samples if turns[-1].clip is not None else None
    mel = policy.mel(samples, sampling_rate=16_000, padding="longest", truncation=False, return_attention_mask=True,
                     return_tensors="pt")  # fmt: skip
    ids = torch.from_numpy(prompt.text_ids)[None]
    texts, _ = full.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), input_features=mel["input_features"].double(),
        feature_attention_mask=mel["attention_mask"], speaker="Chelsie", thinker_max_new_tokens=5, talker_max_new_tokens=7,
        thinker_do_sample=False, talker_do_sample=False, talker_repetition_penalty=1.0,
        thinker_eos_token_id=policy.special["<|im_end|>"],
        talker_suppress_tokens=policy.model.forbidden.nonzero()[:, 0].tolist(),
    )  # fmt: skip
    for hook in hooks:
        hook.remove()
    reply = texts[0, prompt.length :]
    assert len(reply) == (4 if ended else 5)
    codes = made[0][0].T
    # transformers draws no later codes of its last frame, so that frame is not decoded.
    frames = len(codes)
    assert frames >= 3
    text, audio = policy.logprobs([prompt], [blocks_of(reply, codes)], PLAIN)
    expected = torch.stack(words)[: len(reply)].log_softmax(-1).gather(1, reply[:, None])[:, 0]
    torch.testing.assert_close(text[0, :, 0], expected, atol=CLOSE, rtol=0)
    leading = torch.stack(firsts)[:frames].masked_fill(policy.model.forbidden, float("-inf")).log_softmax(-1)
    later = torch.stack(laters)[: frames * (CODEBOOKS - 1)].log_softmax(-1).reshape(frames, CODEBOOKS - 1, CODES)
    assert leading.argmax(-1).tolist() == codes[:, 0].tolist()
    assert later.argmax(-1).tolist() == codes[:, 1:].tolist()
    found = torch.cat([leading.gather(1, codes[:, :1]), later.gather(2, codes[:, 1:, None])[..., 0]], 1)
    torch.testing.assert_close(audio[0], found, atol=CLOSE, rtol=0)
    (drawn,) = policy.generate(SampleRequest([prompt], [[0]], replace(PLAIN, max_steps=frames, text_top_k=1, audio_top_k=1)))
    if ended:
        return
    # And our own greedy loop says and speaks the same, up to where transformers was held from ending.
    free = drawn.blocks[0].tokens[0, :, 0]
    if policy.special["<|im_end|>"] not in free[:5]:
        assert free[:5].tolist() == reply.tolist()


def test_answers_follow_the_rules(policy: Omni, prompts: list[Prompt]) -> None:
    seen = set()
    warm = Sampling(audio_temperature=1.5, max_steps=7)
    for one in policy.generate(SampleRequest(prompts, [[100 * row + n for n in range(24)] for row in range(3)], warm)):
        text, audio = one.blocks
        assert audio.slots == ("audio0", "audio1", "audio2")
        for answer, finish in enumerate(one.finish_reason):
            words = int(text.sampled[answer].sum())
            frames, mask = audio.tokens[answer], audio.sampled[answer]
            count = int(mask[:, 0].sum())
            ended = count > 0 and frames[count - 1, 0] == CODEC_END
            assert mask[: count - ended].all()
            # An end stands alone, and behind it nothing was drawn.
            assert not mask[count:].any()
            assert not ended or mask[count - 1].tolist() == [True, False, False]
            assert (frames[:count, 0] <= CODEC_END).all()
            assert (frames[mask.all(1)] < CODES).all()
            assert (frames[count:, 0] == CODEC_PAD).all()
            assert (count == 0) == (words == 1)
            assert len(policy.decode_codes(one.blocks, answer)) == count - ended
            said = text.tokens[answer, words - 1, 0] == policy.special["<|im_end|>"]
            assert finish == ("eos" if said and (ended or count == 0) else "length")
            seen.add((bool(said), bool(ended), count == 0))
    assert len(seen) >= 4, "silent answers, whole ones, and those cut in either stream must all have been drawn"


def test_an_answer_may_be_text_alone(policy: Omni, prompts: list[Prompt]) -> None:
    (found,) = policy.generate(SampleRequest(prompts[:1], [[1, 2]], replace(PLAIN, speak=False)))
    assert not found.blocks[1].sampled.any()
    assert len(policy.decode_audio(found.blocks, 0, 0).samples) == 0
    text, audio = policy.logprobs(prompts[:1], [found.blocks], PLAIN)
    assert bool((text < 0).any())
    assert not audio.any()


def test_with_the_talker_s_gradient_the_sound_reaches_what_the_thinker_heard(policy: Omni) -> None:
    """Words are spoken from their embeddings, so of the thinker's layers only those below the one that is heard are reached."""
    reached = {}
    for talker_gradient in (False, True):
        one = tiny.tiny_qwen3_omni(talker_gradient=talker_gradient)
        prompts = [one.encode_prompt(tiny.tiny_qwen3_omni_turns()[0])]
        answers = [one.generate(SampleRequest(prompts, [[1, 2]], PLAIN))[0].blocks]
        one.logprobs(prompts, answers, PLAIN)[1].sum().backward()
        reached[talker_gradient] = {
            name for name, value in one.model.thinker.named_parameters() if value.grad is not None and bool(value.grad.any())
        }
    assert reached[False] == set()
    assert any("layers.0.mlp.experts" in name for name in reached[True])
    assert not any("layers.1." in name for name in reached[True])


def test_layers_may_be_checkpointed(prompts: list[Prompt]) -> None:
    found = []
    for checkpointed in (False, True):
        one = tiny.tiny_qwen3_omni(talker_gradient=True)
        one.add_lora(2, 4)
        for parameter in one.trainable().values():
            parameter.data += 0.1
        if checkpointed:
            one.enable_gradient_checkpointing()
        answers = [one.generate(SampleRequest(prompts[:1], [[1, 2]], PLAIN))[0].blocks]
        sum(part.sum() for part in one.logprobs(prompts[:1], answers, PLAIN)).backward()
        found.append([parameter.grad for parameter in one.trainable().values()])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-5, atol=1e-8)


def test_neighbours_change_nothing_in_float32(prompts: list[Prompt]) -> None:
    """Grouped multiplication of experts, as on a GPU; each answer's experts are chosen from its own states."""
    one = tiny.tiny_qwen3_omni()
    one.model.thinker.float()
    one.model.talker.float()
    one = Omni(_with_parts(one), one.tokenizer)
    assert one.config.thinker_config.text_config._experts_implementation == "grouped_mm"
    found = one.generate(SampleRequest(prompts, [[10 * row + n for n in range(4)] for row in range(3)], PLAIN))
    together = one.logprobs(prompts, [part.blocks for part in found], PLAIN)
    for number, (prompt, part) in enumerate(zip(prompts, found, strict=True)):
        alone = one.logprobs([prompt], [part.blocks], PLAIN)
        for all_of, own, block in zip(together, alone, part.blocks, strict=True):
            rows = all_of[4 * number : 4 * number + 4, : own.shape[1]]
            torch.testing.assert_close(rows, own, atol=1e-4, rtol=0)
            np.testing.assert_allclose(own.detach().numpy(), block.behaviour_logp, atol=1e-4)


def _with_parts(policy: Omni) -> Any:
    """The released class around a policy's modules, with transformers' own choice of how experts run."""
    full = tiny.tiny_model(policy.tokenizer)
    full.thinker, full.talker, full.code2wav = policy.model.thinker, policy.model.talker, policy.model.code2wav
    full.set_experts_implementation("grouped_mm")
    return full


def test_a_checkpoint_is_transformers_own(policy: Omni, tmp_path: Path) -> None:
    """Names and values, expert by expert; transformers reads ours, and we read transformers'."""
    from safetensors.torch import load_file
    from transformers import Qwen3OmniMoeForConditionalGeneration

    policy.save(tmp_path / "ours")
    full = tiny.tiny_model(tiny.tiny_tokenizer())
    full.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert "thinker.model.layers.1.mlp.experts.3.up_proj.weight" in ours
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    read = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    own = policy.model.state_dict()
    assert all(torch.equal(value, own[name].to(value)) for name, value in read.state_dict().items())
    other = tiny.tiny_qwen3_omni(seed=4)
    other.reload(tmp_path / "theirs")
    assert all(torch.equal(value, own[name]) for name, value in other.model.state_dict().items())


def test_stacked_experts_and_their_stored_matrices_are_the_same_memory(policy: Omni) -> None:
    stored = policy.released_tensors()
    stacked = policy.model.state_dict()["talker.model.layers.0.mlp.experts.gate_up_proj"]
    up = stored["talker.model.layers.0.mlp.experts.2.up_proj.weight"]
    assert torch.equal(up, stacked[2, 12:])
    assert up.untyped_storage().data_ptr() == stacked.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda config: setattr(config.talker_config, "accept_hidden_layer", 2), r"accept_hidden_layer is 2; .* 2 layers"),
        (lambda config: setattr(config.talker_config, "codec_eos_token_id", 3), r"codec control ids .* must lie from 6 to 14"),
        (lambda config: setattr(config.code2wav_config, "num_quantizers", 4), r"differ in codes: \[3, 4\] a frame"),
        (lambda config: setattr(config, "assistant_token_id", 5), r"'assistant' and 'user' are other ids to the tokenizer"),
        (lambda config: setattr(config, "tts_pad_token_id", 320), r"must be below 320"),
        (
            lambda config: setattr(config.thinker_config, "audio_token_id", 1),
            r"<\|audio_pad\|> is \d+ to the tokenizer and 1 to the",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: Any, complaint: str) -> None:
    full = tiny.tiny_model(tiny.tiny_tokenizer())
    change(full.config)
    with pytest.raises(PolicyError, match=complaint):
        Omni(full, tiny.tiny_tokenizer())


def test_what_cannot_speak_or_be_read_is_refused(policy: Omni, tmp_path: Path) -> None:
    from paras2s.utils.io import read_json, write_json

    with pytest.raises(PolicyError, match="no speaker 'nobody'; there are chelsie, ethan"):
        tiny.tiny_qwen3_omni(speaker="nobody")
    with pytest.raises(PolicyError, match=r"a clip of 0.020 s; Qwen3-Omni takes 0.03 s"):
        policy.encode_prompt([Turn("user", clip=noise_clip(0, 0.02))])
    policy.save(tmp_path)
    described = dict(read_json(tmp_path / "config.json"))
    write_json(tmp_path / "config.json", {**described, "enable_audio_output": False})
    with pytest.raises(PolicyError, match="take the Instruct model"):
        Omni.load(tmp_path)
