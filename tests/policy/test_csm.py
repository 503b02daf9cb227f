"""CSM as a policy: transformers' own generation on a tiny random instance of the true classes, and its own rules.

The contract is in test_contract.py. Not covered: released weights, half precision, sharding with the shared table of codes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import csm as tiny
from tiny.csm import CODEBOOKS, CODES, IDS
from tiny.moshi import tone
from tiny.world import invoke
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.csm import CsmPolicy, read_replies
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block, Query

CLOSE = 1e-6
PLAIN = Sampling(max_steps=8)


@pytest.fixture(scope="module")
def policy() -> CsmPolicy:
    return tiny.tiny_csm()


@pytest.fixture(scope="module")
def prompts(policy: CsmPolicy) -> list[Prompt]:
    return [policy.encode_prompt(turns) for turns in tiny.tiny_csm_turns()]


def block_of(policy: CsmPolicy, frames: Any) -> Block:
    tokens = np.asarray(frames, dtype=np.int64)[None]
    names = tuple(slot.name for slot in policy.spec.slots)
    return Block(names, tokens, np.ones(tokens.shape, dtype=bool), np.zeros(tokens.shape))


def test_a_dialogue_is_laid_out_as_the_chat_template_does(policy: CsmPolicy, prompts: list[Prompt]) -> None:
    said, frames = "", []
    for turn in tiny.tiny_csm_turns()[1]:
        said += f"<|begin_of_text|>[{1 if turn.role == 'user' else 0}]{turn.text}<|end_of_text|>"
        if turn.clip is not None:
            frames.append(policy.encode_target(turn.clip, "")[0].tokens[0])
            said += "<|AUDIO|>" * (len(frames[-1]) - 1) + "<|audio_eos|>"
    assert prompts[1].text_ids.tolist() == policy.tokenizer(said, add_special_tokens=False)["input_ids"]
    np.testing.assert_array_equal(prompts[1].audio_ids[prompts[1].continuous], np.concatenate(frames))


def test_log_probs_and_codes_are_those_of_transformers_generate() -> None:
    """Greedy, from a prompt with a clip that transformers codes itself: every first and every later code."""
    full = tiny.tiny_released()
    full.codec_model.float()
    firsts: list[Tensor] = []
    laters: list[Tensor] = []

    def only_codes(kept: list[Tensor]) -> Any:
        def hook(module: Any, inputs: Any, logits: Tensor) -> Tensor:
            allowed = logits.masked_fill(torch.arange(IDS) >= CODES, float("-inf"))
            kept.append(allowed[0, -1].detach())
            return allowed

        return hook

    hooks = [
        full.lm_head.register_forward_hook(only_codes(firsts)),
        full.depth_decoder.codebooks_head.register_forward_hook(only_codes(laters)),
    ]
    tokenizer, clip = tiny.tiny_tokenizer(), tone(0.48, 24_000, 200)
    said = "<|begin_of_text|>[1]Hi<|end_of_text|>" + "<|AUDIO|>" * 6 + "<|audio_eos|><|begin_of_text|>[0]Ho<|end_of_text|>"
    ids = torch.tensor([tokenizer(said, add_special_tokens=False)["input_ids"]])
    made = full.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), input_values=torch.from_numpy(clip.samples)[None, None],
        input_values_cutoffs=torch.tensor([[len(clip.samples)]]), max_new_tokens=6, do_sample=False,
        depth_decoder_do_sample=False,
    )  # fmt: skip
    for hook in hooks:
        hook.remove()
    frames = made[0]
    policy = CsmPolicy(full, tokenizer)
    prompt = policy.encode_prompt([Turn("user", "Hi", clip), Turn("assistant", "Ho")])
    assert prompt.text_ids.tolist() == ids[0].tolist()
    (logp,) = policy.logprobs([prompt], [(block_of(policy, frames),)], PLAIN)
    count = len(frames)
    assert count >= 3
    leading = torch.stack(firsts)[:count].log_softmax(-1)
    later = torch.stack(laters)[: count * (CODEBOOKS - 1)].log_softmax(-1).reshape(count, CODEBOOKS - 1, IDS)
    expected = torch.cat([leading.gather(1, frames[:, :1]), later.gather(2, frames[:, 1:, None])[..., 0]], 1)
    torch.testing.assert_close(logp[0], expected, atol=CLOSE, rtol=0)
    (own,) = policy.generate(SampleRequest([prompt], [[0]], replace(PLAIN, max_steps=count, audio_top_k=1)))
    assert own.blocks[0].tokens[0].tolist() == frames.tolist()


def test_answers_end_with_a_frame_of_ends_and_all_its_codes_were_drawn(policy: CsmPolicy, prompts: list[Prompt]) -> None:
    sampling, seen = replace(PLAIN, audio_temperature=2.0), set()
    for one in policy.generate(SampleRequest(prompts, [[100 * row + n for n in range(16)] for row in range(3)], sampling)):
        (block,) = one.blocks
        for answer, finish in enumerate(one.finish_reason):
            count = int(block.sampled[answer, :, 0].sum())
            frames = block.tokens[answer, :count]
            assert block.sampled[answer, :count].all()
            assert not block.sampled[answer, count:].any()
            assert (frames < CODES).all()
            ends = (frames[:, :-1] == 0).all(1)
            assert not ends[:-1].any()
            assert finish == ("eos" if ends[-1] else "length")
            assert len(policy.decode_codes(one.blocks, answer)) == count - int(ends[-1])
            seen.add(finish)
    assert seen == {"eos", "length"}


def test_a_run_s_words_are_those_of_its_replies(policy: CsmPolicy, tmp_path: Path) -> None:
    class Clips:
        def clip(self, name: str) -> Any:
            return tone(0.3, 24_000, 180)

        def cached_features(self, name: str) -> None:
            return None

    query = Query("q", "c", None, None, "rl", "s", "q.wav", 0.3, "How are you?", None, None)
    with pytest.raises(PolicyError, match=r"replies.jsonl .* has none for 1 of the questions, such as 'How are you\?'"):
        policy.encode_queries(Clips(), [query])
    # The same before a warm-up, from the folder alone.
    with pytest.raises(PolicyError, match="none for 1 of the questions"):
        CsmPolicy.check_queries(tmp_path, [query])
    (tmp_path / "replies.jsonl").write_text('{"question": "How are you?", "reply": "Well."}')
    CsmPolicy.check_queries(tmp_path, [query])
    answering = CsmPolicy(tiny.tiny_released(), tiny.tiny_tokenizer(), {"How are you?": "Well."})
    (prompt,) = answering.encode_queries(Clips(), [query])
    spoken = [Turn("user", "How are you?", tone(0.3, 24_000, 180)), Turn("assistant", "Well.")]
    assert prompt.text_ids.tolist() == answering.encode_prompt(spoken).text_ids.tolist()


def test_a_checkpoint_is_transformers_own_and_has_the_replies(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import CsmForConditionalGeneration

    policy = tiny.tiny_csm(replies={"Hi": "Ho"})
    policy.save(tmp_path / "ours")
    released = tiny.tiny_released()
    released.codec_model.float()
    released.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    read = CsmForConditionalGeneration.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert torch.equal(read.lm_head.weight, policy.model.lm_head.weight)
    loaded = CsmPolicy.load(tmp_path / "ours")
    assert loaded.replies == {"Hi": "Ho"}
    other = tiny.tiny_csm(seed=4)
    other.reload(tmp_path / "ours")
    own = policy.model.state_dict()
    for one in (loaded, other):
        assert all(torch.equal(value, own[name].to(value)) for name, value in one.model.state_dict().items())
    (tmp_path / "ours/replies.jsonl").write_text('{"question": "Hi"}')
    with pytest.raises(PolicyError, match="lines must be"):
        read_replies(tmp_path / "ours/replies.jsonl")


@pytest.mark.parametrize(
    ("turns", "complaint"),
    [
        ([Turn("user", "Hi", tone(0.2, 24_000, 200))], "end the dialogue with the assistant's turn"),
        ([Turn("user", clip=tone(0.2, 24_000, 200)), Turn("assistant", "x")], "complete the user's turn ''"),
        ([Turn("user", "Hi"), Turn("assistant", "x")], "complete the user's turn 'Hi'"),
        ([Turn("system", "s"), Turn("assistant", "x")], "complete the system's turn"),
        ([Turn("assistant", "x" * 200)], "the dialogue has 205 positions, CSM's context 200"),
    ],
)
def test_what_it_cannot_read_is_refused(policy: CsmPolicy, turns: list[Turn], complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        policy.encode_prompt(turns)


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_layers_may_be_checkpointed(prompts: list[Prompt], lora: bool) -> None:
    policy = tiny.tiny_csm()
    if lora:
        policy.add_lora(2, 4)
    answers = [[one] for one in (block_of(policy, np.full((4, CODEBOOKS), 1)), block_of(policy, np.full((2, CODEBOOKS), 2)))]

    def gradients() -> dict[str, Tensor]:
        policy.model.zero_grad()
        (logp,) = policy.logprobs(prompts[:2], answers, PLAIN)
        logp.sum().backward()  # type: ignore[no-untyped-call]
        return {name: value.grad for name, value in policy.trainable().items() if value.grad is not None}

    plain = gradients()
    policy.enable_gradient_checkpointing()
    runs: list[int] = []
    policy.model.depth_decoder.model.layers[0].mlp.gate_proj.register_forward_hook(lambda *_: runs.append(1))
    again = gradients()
    assert plain.keys() == again.keys() != set()
    torch.testing.assert_close(again, plain, atol=1e-12, rtol=1e-9)
    # Once, and once more on the way back.
    assert len(runs) == 2


def test_the_command_checks_it_with_words_to_say(tmp_path: Path) -> None:
    done = invoke("check-policy", "csm", "--weights", tiny.write_csm(tmp_path), "--device", "cpu", "--json", "--steps", 4)
    assert json.loads(done.stdout)["failed"] == 0


def test_what_it_cannot_say_is_refused(policy: CsmPolicy, prompts: list[Prompt]) -> None:
    with pytest.raises(PolicyError, match="text alone"):
        policy.generate(SampleRequest(prompts[:1], [[1]], replace(PLAIN, speak=False)))
    with pytest.raises(PolicyError, match="context holds 200"):
        policy.generate(SampleRequest(prompts[:1], [[1]], replace(PLAIN, max_steps=199)))
