"""Tiny random GLM-4-Voices and Step-Audios in float64, read from the released layout, which is written here name by name."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.interleaved.base import InterleavedPolicy
from paras2s.policy.interleaved.glm4_voice import Glm4VoicePolicy
from paras2s.policy.interleaved.step_audio2 import StepAudio2Policy
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.policy.weights import shard_files
from paras2s.types import Block
from tiny.ranks import pieces_of, write_ranks
from tiny.whisper_vq import SMALL, encoder_of, save_tokenizer

GLM_CODES, STEP_CODES = 64, 8
# Text comes first, of which byte b is id b; then the special tokens; then the codes.
GLM_NAMES = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_audio|>", "<|end_of_audio|>",
)  # fmt: skip
STEP_NAMES = (
    "<|endoftext|>", "<|BOT|>", "<|EOT|>", "<audio_start>", "<audio_end>", "<audio_patch>", "<tts_start>", "<tts_end>",
    "<tts_pad>",
)  # fmt: skip


def glm_ids(codes: int = GLM_CODES, words: int = 256) -> dict[str, int]:
    """Ids of the special tokens and the codes, behind those of text."""
    return {name: words + n for n, name in enumerate((*GLM_NAMES, *(f"<|audio_{n}|>" for n in range(codes))))}


def step_ids(codes: int = STEP_CODES) -> dict[str, int]:
    """Ids of the special tokens, the codes and the one for no code, behind the bytes."""
    return {name: 256 + n for n, name in enumerate((*STEP_NAMES, *(f"<audio_{n}>" for n in range(codes + 1))))}


def glm_config(ids: dict[str, int], vocab: int) -> dict[str, Any]:
    """A released config of these ids."""
    return {
        "architectures": ["ChatGLMModel"], "model_type": "chatglm", "padded_vocab_size": vocab, "hidden_size": 16,
        "ffn_hidden_size": 24, "num_layers": 2, "num_attention_heads": 2, "multi_query_group_num": 1, "kv_channels": 8,
        "layernorm_epsilon": 1e-5, "rope_ratio": 2, "seq_length": 600, "add_qkv_bias": True, "add_bias_linear": False,
        "multi_query_attention": True, "rmsnorm": True, "post_layer_norm": True, "original_rope": True,
        "eos_token_id": [ids["<|endoftext|>"], ids["<|user|>"], ids["<|observation|>"]],
        "pad_token_id": ids["<|endoftext|>"], "torch_dtype": "bfloat16",
    }  # fmt: skip


def step_config(vocab: int) -> dict[str, Any]:
    """A released config of so many ids."""
    return {
        "architectures": ["StepAudio2ForCausalLM"], "model_type": "step_audio_2",
        "text_config": {
            "vocab_size": vocab, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 500,
        },
        "audio_encoder_config": {
            "n_mels": 8, "n_audio_ctx": 1500, "n_audio_state": 8, "n_audio_head": 2, "n_audio_layer": 2, "llm_dim": 16,
            "kernel_size": 3, "adapter_stride": 2,
        },
    }  # fmt: skip


GLM_IDS, STEP_IDS = glm_ids(), step_ids()
GLM_VOCAB, STEP_VOCAB = 340, 280
GLM_CONFIG, STEP_CONFIG = glm_config(GLM_IDS, GLM_VOCAB), step_config(STEP_VOCAB)


class TinyGlm(Glm4VoicePolicy):
    """With as many codes as its tokenizer has."""

    codes = GLM_CODES


class TinyStep(StepAudio2Policy):
    """With eight codes and one for none."""

    codes = STEP_CODES


class Beeps:
    """A decoder that can be listened to: a tone a code, and noise of the seed."""

    def __init__(self, sample_rate_hz: int, frame_rate_hz: float) -> None:
        self.sample_rate_hz, self.samples = sample_rate_hz, round(sample_rate_hz / frame_rate_hz)

    def decode(self, codes: np.ndarray, seed: int) -> Clip:
        time = np.arange(self.samples) / self.sample_rate_hz
        wave = np.concatenate([0.3 * np.sin(2 * np.pi * (200 + 10 * int(code)) * time) for code in codes])
        noise = np.random.default_rng(seed).normal(scale=0.01, size=len(wave))
        return Clip((wave + noise).astype(np.float32), self.sample_rate_hz)


class FakeS3:
    """A code for every 640 samples begun, of where their mean lies."""

    def encode(self, clip: Clip) -> np.ndarray:
        samples = clip.at(16_000).samples
        frames = [samples[start : start + 640] for start in range(0, len(samples), 640)]
        return np.array([int(1e5 * abs(frame.mean())) % STEP_CODES for frame in frames], dtype=np.int64)


def beeps_of_glm(folder: Path) -> Beeps:
    """A decoder of the checkpoint in `folder`, as a user names one."""
    assert (folder / "config.json").is_file()
    return Beeps(22_050, 12.5)


def beeps_of_step(folder: Path) -> Beeps:
    """A decoder of the checkpoint in `folder`, as a user names one."""
    assert (folder / "config.json").is_file()
    return Beeps(24_000, 25)


def shapes_of_glm(vocab: int = GLM_VOCAB) -> dict[str, tuple[int, ...]]:
    """Names and shapes as released (ChatGLM's remote code); two heads of queries, one of keys and one of values."""
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.embedding.word_embeddings.weight": (vocab, 16),
        "transformer.encoder.final_layernorm.weight": (16,),
        "transformer.output_layer.weight": (vocab, 16),
        "transformer.rotary_pos_emb.inv_freq": (1,),
    }
    for layer in range(2):
        shapes |= {f"transformer.encoder.layers.{layer}.{name}": shape for name, shape in {
            "input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,),
            "self_attention.query_key_value.weight": (32, 16), "self_attention.query_key_value.bias": (32,),
            "self_attention.dense.weight": (16, 16), "mlp.dense_h_to_4h.weight": (48, 16), "mlp.dense_4h_to_h.weight": (16, 24),
        }.items()}  # fmt: skip
    return shapes


def shapes_of_step(vocab: int = STEP_VOCAB) -> dict[str, tuple[int, ...]]:
    """Names and shapes as released (modeling_step_audio_2.py)."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, 16), "model.norm.weight": (16,), "lm_head.weight": (vocab, 16),
        "encoder.conv1.weight": (8, 8, 3), "encoder.conv1.bias": (8,), "encoder.conv2.weight": (8, 8, 3),
        "encoder.conv2.bias": (8,), "encoder.positional_embedding.weight": (1500, 8), "encoder.after_norm.weight": (8,),
        "encoder.after_norm.bias": (8,), "adapter.conv.weight": (8, 8, 3), "adapter.conv.bias": (8,),
        "adapter.linear1.weight": (2048, 8), "adapter.linear1.bias": (2048,), "adapter.linear2.weight": (16, 2048),
        "adapter.linear2.bias": (16,),
    }  # fmt: skip
    for layer in range(2):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in {
            "input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,), "self_attn.q_proj.weight": (16, 16),
            "self_attn.q_proj.bias": (16,), "self_attn.k_proj.weight": (8, 16), "self_attn.k_proj.bias": (8,),
            "self_attn.v_proj.weight": (8, 16), "self_attn.v_proj.bias": (8,), "self_attn.o_proj.weight": (16, 16),
            "mlp.gate_proj.weight": (24, 16), "mlp.up_proj.weight": (24, 16), "mlp.down_proj.weight": (16, 24),
        }.items()}  # fmt: skip
        shapes |= {f"encoder.blocks.{layer}.{name}": shape for name, shape in {
            "attn.query.weight": (8, 8), "attn.query.bias": (8,), "attn.key.weight": (8, 8), "attn.value.weight": (8, 8),
            "attn.value.bias": (8,), "attn.out.weight": (8, 8), "attn.out.bias": (8,), "attn_ln.weight": (8,),
            "attn_ln.bias": (8,), "mlp.0.weight": (32, 8), "mlp.0.bias": (32,), "mlp.2.weight": (8, 32), "mlp.2.bias": (8,),
            "mlp_ln.weight": (8,), "mlp_ln.bias": (8,),
        }.items()}  # fmt: skip
    return shapes


def random_tensors(
    shapes: dict[str, tuple[int, ...]], ends: list[int], codes: slice, seed: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Weights with which positions, codes and prompts matter, which speak, and which come to an end now and then."""
    noise = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=noise, dtype=torch.float64)
        scale = 0.02 if name.startswith("adapter.linear2") else 0.4
        norm = name.endswith("weight") and len(shape) == 1
        found[name] = (1 + 0.2 * value if norm else scale * value).to(dtype)
    for name in ("transformer.output_layer.weight", "lm_head.weight"):
        if name in found:
            # Among thousands of codes a few ends would else never come.
            found[name][ends] *= 2 if codes.stop - codes.start < 1000 else 8
            found[name][codes] *= 2
    return found


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Two files and an index."""
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in halves.items():
        save_file({name: tensors[name].contiguous() for name in held}, folder / file)
    weight_map = {name: file for file, held in halves.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_glm(
    folder: Path,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    codes: int = GLM_CODES,
    texts: Sequence[str] = (),
) -> Path:
    """What `Glm4VoicePolicy.load` reads, its speech tokenizer included; tokens for the words of `texts` among its text."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = pieces_of(texts)
    ids = glm_ids(codes, len(pieces))
    # A few more rows than there are ids, as released.
    config = glm_config(ids, len(pieces) + len(ids) + 8)
    (folder / "config.json").write_text(json.dumps(config))
    write_ranks(folder / "tokenizer.model", pieces)
    added = {str(number): {"content": name, "special": True} for name, number in ids.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (folder / "tokenization_chatglm.py").write_text("# the makers'\n")
    first = ids["<|audio_0|>"]
    shapes = shapes_of_glm(config["padded_vocab_size"])
    write_shards(folder, random_tensors(shapes, config["eos_token_id"], slice(first, first + codes), seed, dtype))
    tokenizer = folder / "glm-4-voice-tokenizer"
    tokenizer.mkdir()
    sizes = SMALL | {"quantize_vocab_size": codes}
    save_tokenizer(tokenizer, encoder_of(sizes), sizes)
    return folder


def write_step(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float64, codes: int = STEP_CODES) -> Path:
    """What `StepAudio2Policy.load` reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    folder.mkdir(parents=True, exist_ok=True)
    ids = step_ids(codes)
    vocab = STEP_VOCAB - STEP_CODES + codes
    (folder / "config.json").write_text(json.dumps(step_config(vocab)))
    pieces = bytes_to_unicode()
    tokenizer = Tokenizer(models.BPE(vocab={pieces[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(ids))
    tokenizer.save(str(folder / "tokenizer.json"))
    first = ids["<audio_0>"]
    tensors = random_tensors(shapes_of_step(vocab), [ids["<|EOT|>"]], slice(first, first + codes + 1), seed, dtype)
    write_shards(folder, tensors)
    return folder


def tiny_glm(seed: int = 0) -> TinyGlm:
    """Two layers, 64 codes, a decoder that beeps; it keeps its folder as long as it lives."""
    held = tempfile.TemporaryDirectory()
    folder = write_glm(Path(held.name) / "weights", seed)
    policy = TinyGlm.load(folder, decoder=beeps_of_glm(folder))
    policy.__dict__["held"] = held
    return policy


def tiny_step(seed: int = 0) -> TinyStep:
    """Two layers, 8 codes, a decoder that beeps, and codes of its own, since the S3 tokenizer is no small file."""
    held = tempfile.TemporaryDirectory()
    folder = write_step(Path(held.name) / "weights", seed)
    policy = TinyStep.load(folder, decoder=beeps_of_step(folder))
    policy.__dict__["held"], policy.__dict__["tokenizer"] = held, FakeS3()
    return policy


def tiny_turns() -> list[list[Turn]]:
    """Dialogues of different length: one clip; two of the user with an answer between; words alone."""
    return [
        [Turn("user", "(not read)", sliding(0.45, 16_000, 200))],
        [Turn("system", "Be kind."), Turn("user", clip=sliding(0.2, 24_000, 150)),
         Turn("assistant", "Yes?", sliding(0.3, 22_050, 330)), Turn("user", clip=sliding(0.16, 8_000, 260))],
        [Turn("user", "Hi")],
    ]  # fmt: skip


def sliding(duration_s: float, rate_hz: int, pitch_hz: float) -> Clip:
    """A tone that moves, in noise."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    noise = np.random.default_rng(round(pitch_hz)).normal(size=len(time_s))
    wave = 0.4 * np.sin(2 * np.pi * pitch_hz * time_s * (1 + time_s)) * (1 + np.sin(30 * time_s)) + 0.1 * noise
    return Clip(wave.astype(np.float32), rate_hz)


MAKERS: dict[str, Callable[[], InterleavedPolicy]] = {"glm": tiny_glm, "step": tiny_step}
WARM = Sampling(text_temperature=0.7, max_steps=9)


@functools.cache
def tiny_glm_once() -> TinyGlm:
    return tiny_glm()


@functools.cache
def tiny_step_once() -> TinyStep:
    return tiny_step()


def fresh(case: tuple[InterleavedPolicy, list[Prompt]]) -> InterleavedPolicy:
    """The same policy again, to be changed."""
    return MAKERS["glm" if isinstance(case[0], TinyGlm) else "step"]()


def seeds(prompts: int, group: int) -> list[list[int]]:
    return [[1000 * row + number for number in range(group)] for row in range(prompts)]


def scored(policy: InterleavedPolicy, prompts: list[Prompt], blocks: list[Block], sampling: Sampling = WARM) -> Tensor:
    (logp,) = policy.logprobs(prompts, [[block] for block in blocks], sampling)
    return logp


def drawn(policy: InterleavedPolicy, prompts: list[Prompt], group: int, sampling: Sampling = WARM) -> list[Block]:
    return [one.blocks[0] for one in policy.generate(SampleRequest(prompts, seeds(len(prompts), group), sampling))]


def logits_of(model: DualStreamLM, ids: Tensor) -> Tensor:
    """Ours [B, L, V] at every position of ids [B, L]."""
    x = model.embed(torch.zeros(*ids.shape, 0, dtype=torch.long), ids, None, None)
    state, _ = model.hidden(x, torch.arange(ids.shape[1]).expand(ids.shape))
    return model.text_logits(state)


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in shard_files(folder) for name, value in load_file(file).items()}
