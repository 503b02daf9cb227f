"""Kimi-Audio: the official prompt manager's prompts and golden numbers (docs/experiments/policies.md), and what is refused.

Not covered: the released weights and tokenizers, which cannot be had here (`paras2s check-policy kimi --weights DIR`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.dual_stream import golden_prompt
from tiny.job import Noise
from tiny.kimi import CODES, IDS, SIZES, TEXT, write_golden, write_kimi
from tiny.whisper_vq import noise

from paras2s.errors import ParaS2SError, PolicyError
from paras2s.policy.answers import AnswerSettings, write_answer_settings
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.kimi.policy import SPECIALS, KimiPolicy, Message, lay_out, stream_config
from paras2s.policy.registry import kind_of, load_policy
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.policy.weights import shard_files
from paras2s.types import Block, Query

RELEASED = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 168448,
    "max_position_embeddings": 8192, "pad_token_id": 152063, "kimia_mimo_layers": 6,
    "kimia_mimo_transformer_from_layer_index": 21, "kimia_mimo_audiodelaytokens": 6, "kimia_token_offset": 152064,
    "kimia_adaptor_input_dim": 5120, "use_whisper_feature": True, "rope_scaling": None,
}  # fmt: skip
RELEASED_IDS = {
    "msg_end_id": 151645, "media_begin_id": 151661, "media_end_id": 151663, "blank_id": 151666, "text_eos_id": 151667,
    "user_id": 151670, "assistant_id": 151671, "audio_and_text_id": 151676,
}  # fmt: skip
BLANK = 151666


def released_config() -> DualStreamConfig:
    return stream_config(dict(RELEASED), RELEASED_IDS, "config.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kimi(tmp_path_factory.mktemp("kimi") / "weights")


# -- the layout -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("output", "marker"), [(151676, 151676), (151675, 151675)], ids=["both", "text"])
def test_golden_prompt_of_one_clip(output: int, marker: int) -> None:
    found = lay_out([Message("user", (), (0, 1, 16383))], released_config(), output)
    assert found.audio.tolist() == [151670, 151661, 152064, 152065, 168447, 151663, marker, 151645, 151671]
    assert found.text.tolist() == [BLANK] * 9
    assert np.flatnonzero(found.continuous).tolist() == [2, 3, 4]


def test_golden_prompt_with_an_earlier_answer() -> None:
    messages = [Message("user", (), (0,)), Message("assistant", (108386, 6313), (7, 4)), Message("user", (100640,))]
    found = lay_out(messages, released_config(), 151676)
    head = [151670, 151661, 152064, 151663, 151676, 151645]
    assert found.audio.tolist() == [*head, 151671, *[BLANK] * 6, 152071, 152068, 151645, 151670, BLANK, 151645, 151671]
    assert found.text.tolist() == [*[BLANK] * 6, BLANK, 108386, 6313, *[BLANK] * 6, BLANK, BLANK, 100640, BLANK, BLANK]
    # What the model said itself is heard by its codes alone.
    assert np.flatnonzero(found.continuous).tolist() == [2]


def test_a_transcript_stands_beside_the_codes_from_the_first_on() -> None:
    """ParaS2S, section 4: both streams are filled up to one length; other places are as released."""
    config = released_config()
    short = lay_out([Message("user", (5, 6), (0, 1, 16383))], config, 151676)
    plain = lay_out([Message("user", (), (0, 1, 16383))], config, 151676)
    assert short.text.tolist() == [BLANK, BLANK, 5, 6, *[BLANK] * 5]
    assert short.audio.tolist() == plain.audio.tolist()
    assert short.continuous.tolist() == plain.continuous.tolist()
    long = lay_out([Message("user", (5, 6, 7), (0,))], config, 151676)
    assert long.audio.tolist() == [151670, 151661, 152064, BLANK, BLANK, 151663, 151676, 151645, 151671]
    assert long.text.tolist() == [BLANK, BLANK, 5, 6, 7, *[BLANK] * 4]
    # Continuous features are the sound's alone.
    assert np.flatnonzero(long.continuous).tolist() == [2]


def test_a_checkpoint_says_whether_it_is_asked_with_the_transcript(folder: Path, tmp_path: Path) -> None:
    turns = [Turn("user", "Why?", noise(16_000))]
    plain = load_policy(folder, device="cpu")
    assert (plain.encode_prompt(turns).text_ids == IDS["blank_id"]).all()
    plain.use_transcript()
    plain.save(tmp_path / "sft")
    write_answer_settings(tmp_path / "sft", AnswerSettings(Sampling(), transcript_in_prompt=True))
    found, expected = load_policy(tmp_path / "sft", device="cpu").encode_prompt(turns), plain.encode_prompt(turns)
    np.testing.assert_array_equal(found.text_ids, expected.text_ids)
    words = found.text_ids[found.continuous]
    assert words[:4].tolist() == [*b"Why?"]
    assert (words[4:] == IDS["blank_id"]).all()
    # Its log-probs are of the prompt with the words.
    without = load_policy(folder, device="cpu").encode_prompt(turns)
    (answer,) = plain.generate(SampleRequest([expected], [[1]], Sampling(max_steps=5)))
    one, other = (plain.logprobs([prompt], [answer.blocks], Sampling())[0] for prompt in (found, without))
    assert not torch.allclose(one, other, atol=1e-3)


def test_prompt_layout_of_groups() -> None:
    """Text and clip in one turn: one start, one end; the output marker stands behind a clip that closes its group only."""
    config = released_config()
    both = lay_out([Message("user", (5,)), Message("user", (), (1,))], config, 151676)
    assert both.audio.tolist() == [151670, BLANK, 151661, 152065, 151663, 151676, 151645, 151671]
    assert both.text.tolist() == [BLANK, 5, *[BLANK] * 6]
    other = lay_out([Message("user", (), (1,)), Message("user", (5,))], config, 151676)
    assert other.audio.tolist() == [151670, 151661, 152065, 151663, BLANK, 151645, 151671]
    two = lay_out([Message("user", (), (1,)), Message("user", (), (2, 3))], config, 151676)
    assert two.audio.tolist() == [151670, 151661, 152065, 151663, 151661, 152066, 152067, 151663, 151676, 151645, 151671]
    written = lay_out([Message("assistant", (5, 6))], config, 151676)
    assert written.text.tolist() == [BLANK, 5, 6, 151667, BLANK, BLANK]
    assert written.audio.tolist() == [151671, BLANK, BLANK, BLANK, 151645, 151671]


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(PolicyError, match="needs a message"):
        lay_out([], released_config(), 151676)
    with pytest.raises(PolicyError, match="2 steps of sound"):
        lay_out([Message("assistant", tuple(range(9)), (7, 4))], released_config(), 151676)


# -- the network ------------------------------------------------------------------------------------------------------


def test_the_released_config_is_ours() -> None:
    config = released_config()
    assert (config.vocab_size, config.codebook_sizes, config.codebook_offsets) == (168448, (16384,), (152064,))
    assert (config.branch_layers, config.audio_delay_steps, config.audio_end_ids) == (6, 6, (151645, 151663))
    assert config.text_range == (0, 168448)
    assert not config.mask_invalid_ids
    with torch.device("meta"):
        state = DualStreamLM(config).state_dict()
    # Reference 1.4: 34 layers of 12 tensors, embedding, two norms, two heads, six of the adaptor.
    assert len(state) == 34 * 12 + 11
    assert sum(value.numel() for value in state.values()) == pytest.approx(9.76e9, rel=0.01)


def test_golden_numbers_through_a_released_checkpoint(tmp_path: Path) -> None:
    """Reference 1.12: a file under the released names gives the logits and log-probs of the official code."""
    policy = KimiPolicy.load(write_golden(tmp_path / "golden"))
    assert next(policy.model.parameters()).dtype == torch.float64
    tokens = np.array([[[5, 36], [9, 36], [37, 43], [36, 57]]])
    sampled = np.array([[[1, 0], [1, 0], [1, 1], [0, 1]]], dtype=bool)
    block = Block(("text", "audio0"), tokens, sampled, np.zeros(tokens.shape))
    (logp,) = policy.logprobs([golden_prompt()], [[block]], Sampling())
    assert logp.sum().item() == pytest.approx(-23.2060466182290, abs=1e-10)


def test_names_are_kept_in_shards(folder: Path, tmp_path: Path) -> None:
    policy = KimiPolicy.load(folder)
    policy.save(tmp_path / "saved")
    before, after = ({name: value for path in shard_files(place) for name, value in load_file(path).items()}
                     for place in (folder, tmp_path / "saved"))  # fmt: skip
    before.pop("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "saved/config.json").read_text()) == SIZES
    again = load_policy(tmp_path / "saved", device="cpu")
    assert isinstance(again, KimiPolicy)
    # Its frozen parts are found where the first checkpoint has them.
    clip = noise(9000)
    np.testing.assert_array_equal(again.tokenizer.encode(clip), policy.tokenizer.encode(clip))
    assert len(again.detokenizer.decode(np.array([1, 2]), 0).samples)


def test_queries_are_encoded_together_as_one_by_one(folder: Path) -> None:
    policy, names = KimiPolicy.load(folder), "0123"
    policy.whisper.encoder.double()
    queries = [Query(name, name, None, None, "rl", "someone", name, 0.3, "hello", None, None) for name in names]
    for name, found in zip(names, policy.encode_queries(Noise(), queries), strict=True):
        expected = policy.encode_prompt([Turn("user", "", Noise().clip(name))])
        assert found.audio_ids.tolist() == expected.audio_ids.tolist()
        assert found.text_ids.tolist() == expected.text_ids.tolist()
        assert found.continuous.tolist() == expected.continuous.tolist()
        np.testing.assert_allclose(found.features, expected.features, atol=1e-6)
    policy.use_transcript()
    for name, found in zip(names, policy.encode_queries(Noise(), queries), strict=True):
        expected = policy.encode_prompt([Turn("user", "hello", Noise().clip(name))])
        assert found.text_ids.tolist() == expected.text_ids.tolist()
        assert bytes(int(one) for one in found.text_ids if one < 256) == b"hello"


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    policy = KimiPolicy.load(write_kimi(tmp_path / "half", dtype=torch.bfloat16))
    assert next(policy.model.parameters()).dtype == torch.bfloat16
    prompt = policy.encode_prompt([Turn("user", clip=noise(16_000))])
    (found,) = policy.generate(SampleRequest([prompt], [[1, 2]], Sampling(max_steps=6)))
    (logp,) = policy.logprobs([prompt], [found.blocks], Sampling(max_steps=6))
    assert logp.dtype == torch.float32
    np.testing.assert_allclose(logp.detach().numpy(), found.blocks[0].behaviour_logp, atol=0.3)


# -- prompts, targets, answers ----------------------------------------------------------------------------------------


def test_a_prompt_holds_each_clip_by_its_codes_and_features(folder: Path) -> None:
    policy, first, second = KimiPolicy.load(folder), noise(20_000), noise(9_000, seed=1)
    prompt = policy.encode_prompt([Turn("user", clip=first), Turn("user", "Why?"), Turn("user", clip=second)])
    codes = [policy.tokenizer.encode(clip) for clip in (first, second)]
    transcript = np.concatenate([policy.whisper.features(clip) for clip in (first, second)])
    assert prompt.continuous.sum() == sum(map(len, codes)) == 16 + 8
    assert (prompt.audio_ids[prompt.continuous, 0] - TEXT).tolist() == np.concatenate(codes).tolist()
    # Both clips are encoded together, which rounds otherwise.
    np.testing.assert_allclose(prompt.features[prompt.continuous], transcript, rtol=0, atol=2e-6)
    assert not prompt.features[~prompt.continuous].any()
    assert bytes(int(one) for one in prompt.text_ids if one < 256) == b"Why?"


def test_two_clips_of_one_prompt_are_scored_in_a_batch(folder: Path) -> None:
    """The official code cannot: it takes features by row of the batch."""
    policy = KimiPolicy.load(folder)
    clips = [noise(5_000, seed=seed) for seed in range(3)]
    prompts = [policy.encode_prompt([Turn("user", clip=clips[0]), Turn("user", clip=clips[1])]),
               policy.encode_prompt([Turn("user", clip=clips[2])])]  # fmt: skip
    found = policy.generate(SampleRequest(prompts, [[1, 2], [3, 4]], Sampling(max_steps=7)))
    together = policy.logprobs(prompts, [one.blocks for one in found], Sampling(max_steps=7))[0]
    for number, one in enumerate(found):
        (alone,) = policy.logprobs([prompts[number]], [one.blocks], Sampling(max_steps=7))
        torch.testing.assert_close(together[2 * number : 2 * number + 2, : alone.shape[1]], alone, atol=1e-10, rtol=0)


def test_a_target_is_laid_out_for_warm_up(folder: Path) -> None:
    """Reference 1.9: forced blanks, codes, one end; words, their end, blanks."""
    policy = KimiPolicy.load(folder)
    (block,) = policy.encode_target(noise(12_000), "Hi you")
    codes, blank, end = policy.tokenizer.encode(noise(12_000)), IDS["blank_id"], IDS["msg_end_id"]
    assert block.tokens[0, :, 1].tolist() == [blank, blank, *(TEXT + codes), end]
    assert block.sampled[0, :, 1].tolist() == [False, False, *[True] * (len(codes) + 1)]
    assert block.tokens[0, :, 0].tolist() == [*b"Hi you", IDS["text_eos_id"], *[blank] * (len(codes) + 3 - 7)]
    assert block.sampled[0, :, 0].tolist() == [True] * 7 + [False] * (len(codes) + 3 - 7)
    assert policy.decode_text([block], 0) == "Hi you"
    np.testing.assert_array_equal(policy.decode_codes([block], 0)[:, 0], codes)


def test_ids_of_the_other_stream_are_dropped_as_in_the_release(folder: Path) -> None:
    policy = KimiPolicy.load(folder)
    tokens = np.array([[[72, IDS["blank_id"]], [TEXT + 3, IDS["blank_id"]], [105, TEXT + 5], [IDS["text_eos_id"], 42],
                        [IDS["blank_id"], TEXT + CODES - 1], [IDS["blank_id"], IDS["media_end_id"]]]])  # fmt: skip
    sampled = np.array([[[1, 0], [1, 0], [1, 1], [1, 1], [0, 1], [0, 1]]], dtype=bool)
    block = Block(("text", "audio0"), tokens, sampled, np.zeros(tokens.shape))
    assert policy.decode_text([block], 0) == "Hi"
    assert policy.decode_codes([block], 0).tolist() == [[5], [CODES - 1]]
    assert len(policy.decode_audio([block], 0, 0).samples) == 2 * policy.detokenizer.samples_per_code


def test_an_answer_in_text_alone(folder: Path) -> None:
    policy = KimiPolicy.load(folder)
    prompt = policy.encode_prompt([Turn("user", clip=noise(5_000))], speak=False)
    assert IDS["text_only_id"] in prompt.audio_ids
    sampling = Sampling(max_steps=30, speak=False)
    (found,) = policy.generate(SampleRequest([prompt], [list(range(40))], sampling))
    block = found.blocks[0]
    assert not block.sampled[..., 1].any()
    ends = (block.tokens[..., 0] == IDS["text_eos_id"]) & block.sampled[..., 0]
    assert [reason == "eos" for reason in found.finish_reason] == ends.any(1).tolist()
    (logp,) = policy.logprobs([prompt], [found.blocks], sampling)
    np.testing.assert_allclose(logp.detach().numpy(), block.behaviour_logp, atol=1e-10)


def test_truncated_sampling_draws_from_the_top_and_says_so(folder: Path) -> None:
    """As the released inference: greedy words; the behaviour is that of the truncated policy, the score is not."""
    policy = KimiPolicy.load(folder)
    prompt = policy.encode_prompt([Turn("user", clip=noise(5_000))])
    sampling = Sampling(max_steps=6, text_top_k=1, audio_top_k=4)
    assert sampling.truncated
    (found,) = policy.generate(SampleRequest([prompt], [list(range(8))], sampling))
    block = found.blocks[0]
    assert len(np.unique(block.tokens[:, 0, 0])) == 1
    assert not block.behaviour_logp[..., 0].any()
    (logp,) = policy.logprobs([prompt], [found.blocks], sampling)
    assert (logp.detach().numpy() <= block.behaviour_logp + 1e-12).all()
    assert (logp.detach().numpy()[block.sampled] < block.behaviour_logp[block.sampled] - 1e-3).any()


# -- what is refused --------------------------------------------------------------------------------------------------


def edit_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        held = json.loads((folder / "config.json").read_text())
        held |= values
        (folder / "config.json").write_text(json.dumps({key: value for key, value in held.items() if value != "gone"}))

    return change


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        state = load_file(folder / "model-1.safetensors")
        change(state)
        save_file(state, folder / "model-1.safetensors")

    return apply


def without_special(folder: Path) -> None:
    held = json.loads((folder / "tokenizer_config.json").read_text())
    held["added_tokens_decoder"].pop(str(IDS["msg_end_id"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(held))


HEAD = "lm_head.weight"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (edit_weights(lambda state: state.pop(HEAD)), [HEAD, f"[{TEXT + CODES}, 16]", "missing"]),
        (edit_weights(lambda state: state.update(extra=torch.zeros(3))), ["extra", "[3]", "not expected"]),
        (edit_weights(lambda state: state.update({HEAD: torch.zeros(9, 16)})), [HEAD, "[9, 16]"]),
        (edit_config(hidden_size=20), ["tensors do not fit", "and "]),
        (edit_config(kimia_token_offset="gone"), ["kimia_token_offset", "defaults of a class"]),
        (edit_config(kimia_mimo_layers=6), ["defaults of a config class"]),
        (edit_config(rope_scaling={"type": "yarn"}), ["rope_scaling"]),
        (edit_config(kimia_token_offset=200), ["outside the text vocabulary of 200"]),
        (edit_config(num_attention_heads=3), ["num_heads"]),
        (without_special, ["<|im_msg_end|>"]),
        (lambda folder: (folder / "tiktoken.model").write_text("no ranks"), ["tiktoken.model"]),
        (lambda folder: (folder / "model-2.safetensors").unlink(), ["model-2.safetensors"]),
        (lambda folder: (folder / "model-2.safetensors").write_bytes(b"cut"), ["model-2.safetensors"]),
    ],
    ids=["missing", "extra", "misshaped", "other size", "no offset", "class defaults", "rope", "ids outside", "heads",
         "no special", "no ranks", "no shard", "cut shard"],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path: Path, damage: Callable[[Path], object], named: list[str]) -> None:
    folder = write_kimi(tmp_path / "weights")
    damage(folder)
    with pytest.raises(ParaS2SError) as caught:
        KimiPolicy.load(folder)
    assert [word for word in named if word not in str(caught.value)] == []
    assert str(caught.value).count(";") <= 12


@pytest.mark.parametrize(("code", "named"), [(CODES, TEXT + CODES), (-TEXT - 1, -1)])
def test_an_id_outside_the_vocabulary_is_refused(folder: Path, code: int, named: int) -> None:
    policy = KimiPolicy.load(folder)
    found = lay_out([Message("user", (), (3, code))], policy.config, IDS["audio_and_text_id"])
    prompt = Prompt(found.audio[:, None], found.text, None, found.continuous)
    with pytest.raises(PolicyError, match=f"a prompt holds id {named}, and the vocabulary ends at {TEXT + CODES - 1}"):
        policy.generate(SampleRequest([prompt], [[1]], Sampling(max_steps=4)))
    good = lay_out([Message("user", (), (3,))], policy.config, IDS["audio_and_text_id"])
    prompt = Prompt(good.audio[:, None], good.text, None, good.continuous)
    (answer,) = policy.generate(SampleRequest([prompt], [[1]], Sampling(max_steps=4)))
    tokens = answer.blocks[0].tokens.copy()
    tokens[0, 1, 0] = TEXT + CODES
    with pytest.raises(PolicyError, match="an answer holds id"):
        policy.logprobs([prompt], [[replace(answer.blocks[0], tokens=tokens)]], Sampling())


def test_more_than_ten_tensors_are_counted(tmp_path: Path) -> None:
    folder = write_kimi(tmp_path / "weights")
    edit_config(intermediate_size=25)(folder)
    with pytest.raises(PolicyError, match=r"18 tensors do not fit: .*; and 8 more") as caught:
        KimiPolicy.load(folder)
    assert str(caught.value).count("the config wants") == 10


def test_a_missing_part_is_named_when_it_is_needed(tmp_path: Path) -> None:
    policy = KimiPolicy.load(write_golden(tmp_path / "golden"))
    with pytest.raises(PolicyError, match="glm-4-voice-tokenizer"):
        policy.encode_prompt([Turn("user", clip=noise(5_000))])
    with pytest.raises(PolicyError, match="audio_detokenizer"):
        _ = policy.detokenizer
    with pytest.raises(PolicyError, match="no system role"):
        policy.encode_prompt([Turn("system", "Be kind.")])


def test_the_kind_is_what_the_checkpoint_calls_itself(folder: Path, tmp_path: Path) -> None:
    assert kind_of(folder) == "kimi"
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(PolicyError, match="LlamaForCausalLM"):
        kind_of(tmp_path)
    with pytest.raises(PolicyError, match="neither"):
        kind_of(tmp_path / "nothing")


def test_scoring_in_parts_is_scoring_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than so many logits exist at once, and gradients are the same."""
    policy = KimiPolicy.load(folder)
    prompts = [policy.encode_prompt([Turn("user", clip=noise(5_000))])]
    (found,) = policy.generate(SampleRequest(prompts, [list(range(5))], Sampling(max_steps=9)))

    def graded() -> tuple[torch.Tensor, list[torch.Tensor]]:
        policy.model.zero_grad()
        logp = teacher_forced(policy.model, prompts, [found.blocks[0]], Sampling(0.7, 1.3, 9))
        logp.square().sum().backward()
        return logp.detach(), [parameter.grad.clone() for parameter in policy.model.parameters() if parameter.grad is not None]

    full, gradients = graded()
    monkeypatch.setattr("paras2s.policy.dual_stream.logprobs.LOGITS_AT_ONCE", 3 * (TEXT + CODES))
    parts, other = graded()
    torch.testing.assert_close(parts, full, atol=1e-12, rtol=0)
    assert len(gradients) == len(other) > 40
    for one, two in zip(gradients, other, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


def test_special_names_have_an_id_each() -> None:
    assert len(set(IDS.values())) == len(SPECIALS) == 9
