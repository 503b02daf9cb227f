"""Qwen2.5-Omni and Qwen3-Omni by transformers' classes: words, then sound. No encoder of their codes was released."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from dumps.files import RATE_HZ, Made, Parts, as_array, last_rows, slots_of
from dumps.frames import opened

END = "<|im_end|>"
Inputs = dict[str, torch.Tensor]
# The makers' system turn of Qwen2.5-Omni; Qwen3-Omni has none.
SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and visual "
    "inputs, as well as generating text and speech."
)


def processed(given: argparse.Namespace, question: np.ndarray, model: Any, processor: Any, system: str) -> Inputs:
    """What the makers' processor makes of the question: ids, features and masks."""
    turns = [{"role": "system", "content": [{"type": "text", "text": system}]}] if system else []
    turns.append({"role": "user", "content": [{"type": "audio", "audio": str(given.clip)}]})
    text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    made = processor(text=text, audio=[question], sampling_rate=RATE_HZ, return_tensors="pt", padding=True).to(model.device)
    return {name: part.to(model.dtype) if part.is_floating_point() else part for name, part in made.items()}


def qwen_omni(given: argparse.Namespace, question: np.ndarray) -> Made:
    from transformers import AutoProcessor

    model, processor = opened("Qwen2_5OmniForConditionalGeneration", given), AutoProcessor.from_pretrained(given.model)
    inputs = processed(given, question, model, processor, SYSTEM)
    end = processor.tokenizer.convert_tokens_to_ids(END)
    return qwen_parts(model, inputs, end, given.speaker or "Chelsie", given)


def qwen3_omni(given: argparse.Namespace, question: np.ndarray) -> Made:
    from transformers import AutoProcessor

    model, processor = opened("Qwen3OmniMoeForConditionalGeneration", given), AutoProcessor.from_pretrained(given.model)
    inputs = processed(given, question, model, processor, "")
    end = processor.tokenizer.convert_tokens_to_ids(END)
    return qwen3_parts(model, inputs, end, given.speaker or "Ethan", given)


def generated(
    model: Any, inputs: Inputs, end: int, speaker: str, steps: int, codecs: list[Any], **more: Any
) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """The reply [T] with its logits, and the codes of the vocoder's first piece [K, F]: greedy; `codecs` are hooks of heads."""
    words: list[torch.Tensor] = []
    spoken: list[torch.Tensor] = []
    vocoder = model.token2wav if hasattr(model, "token2wav") else model.code2wav
    hooks = [
        model.thinker.lm_head.register_forward_hook(last_rows(words)),
        vocoder.register_forward_hook(lambda _, inputs, __: spoken.append(inputs[0])),
        *(head.register_forward_hook(hook) for head, hook in codecs),
    ]
    texts, _ = model.generate(
        **inputs, speaker=speaker, thinker_max_new_tokens=steps, talker_max_new_tokens=steps, thinker_do_sample=False,
        talker_do_sample=False, talker_repetition_penalty=1.0, thinker_eos_token_id=end, thinker_pad_token_id=end,
        **more,
    )  # fmt: skip
    for hook in hooks:
        hook.remove()
    reply = texts[0, inputs["input_ids"].shape[1] :]
    return reply, as_array(torch.stack(words))[: len(reply)], spoken[0][0].cpu().numpy()


def text_parts(model: Any, inputs: Inputs, reply: torch.Tensor, words: np.ndarray, audio: int) -> Parts:
    """Prompt and reply; padding before the prompt is left out."""
    ids = inputs["input_ids"][0][inputs["attention_mask"][0].bool()].cpu().numpy()
    features = model.thinker.model.get_audio_features(inputs["input_features"], inputs["feature_attention_mask"])
    return {
        "prompt.text": ids,
        "prompt.audio": np.zeros((len(ids), 0), dtype=np.int64),
        "prompt.continuous": (ids == audio).astype(np.uint8),
        "features": as_array(features.last_hidden_state),
        "greedy.tokens": reply.cpu().numpy()[:, None],
        "greedy.sampled": np.ones((len(reply), 1), dtype=np.uint8),
        "logits.text": words,
        "sound.tokens": np.full((1, 1), int(reply[-1])),
        "sound.sampled": np.ones((1, 1), dtype=np.uint8),
    }


@torch.inference_mode()
def qwen_parts(model: Any, inputs: Inputs, end: int, speaker: str, given: argparse.Namespace) -> Made:
    """One position of padding, since transformers reads the codec's first two embeddings only in a padded batch."""
    padded = {
        "input_ids": torch.nn.functional.pad(inputs["input_ids"], (1, 0), value=end),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (1, 0)),
    }
    config, talker = model.config, model.talker.config
    codes = int(config.token2wav_config.dit_config.num_embeds) - 1
    ends = [talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id]

    def no_code(ids: int) -> torch.Tensor:
        forbidden = torch.arange(ids) >= codes
        forbidden[ends] = False
        return forbidden

    rows: list[torch.Tensor] = []
    codecs = [(model.talker.codec_head, last_rows(rows, no_code))]
    reply, words, made = generated(model, {**inputs, **padded}, end, speaker, given.steps, codecs, talker_eos_token_id=ends)
    # With the end, or with what was drawn at the limit.
    logits = as_array(torch.stack(rows))[: made.shape[-1] + 1]
    tokens = np.where(no_code(logits.shape[1]).numpy(), -np.inf, logits).argmax(1)[:, None]
    spoken = np.resize(tokens[tokens < codes] if len(tokens) > 1 else np.arange(codes), (given.sound_codes, 1))
    voice = model.speaker_map[speaker]
    torch.manual_seed(given.seed)
    sound = model.token2wav.float()(
        torch.from_numpy(spoken.T.copy()).to(model.device),
        conditioning=voice["cond"].to(model.device).float(), reference_mel=voice["ref_mel"].to(model.device).float(),
    )  # fmt: skip
    parts = text_parts(model, {**inputs, **padded}, reply, words, config.thinker_config.audio_token_id) | {
        "greedy1.tokens": tokens,
        "greedy1.sampled": np.ones(tokens.shape, dtype=np.uint8),
        "logits.audio0": logits,
        "sound1.tokens": spoken,
        "sound1.sampled": np.ones(spoken.shape, dtype=np.uint8),
        "sound": as_array(sound).reshape(-1),
    }
    return Made(parts, [["text"], ["audio0"]], model.thinker.dtype, {"sound_hz": 24_000})


@torch.inference_mode()
def qwen3_parts(model: Any, inputs: Inputs, end: int, speaker: str, given: argparse.Namespace) -> Made:
    """Alone in its batch, where transformers does not speak the reply's end."""
    config, talker = model.config, model.config.talker_config
    count, codes, last = int(talker.num_code_groups), int(config.code2wav_config.codebook_size), int(talker.codec_eos_token_id)

    forbidden = np.arange(int(talker.text_config.vocab_size)) >= codes
    forbidden[last] = False
    firsts: list[torch.Tensor] = []
    laters: list[torch.Tensor] = []
    codecs = [(model.talker.codec_head, last_rows(firsts))]
    codecs += [(head, last_rows(laters)) for head in model.talker.code_predictor.lm_head]
    suppressed = {"talker_suppress_tokens": np.flatnonzero(forbidden).tolist()}
    reply, words, made = generated(model, inputs, end, speaker, given.steps, codecs, **suppressed)
    frames = made.T[:, :count]
    leading = as_array(torch.stack(firsts))
    later = as_array(torch.stack(laters)).reshape(-1, count - 1, laters[0].shape[-1])
    # Nothing but an end follows the frames in what is compared: transformers draws no later codes of the frame at the limit.
    steps = len(frames)
    ended = len(leading) > steps and int(np.where(forbidden, -np.inf, leading[steps]).argmax()) == last
    logits = np.full((steps + ended, count - 1, later.shape[-1]), np.nan, dtype=later.dtype)
    logits[:steps] = later[:steps]
    tokens = np.concatenate([frames, np.array([[last, *[0] * (count - 1)]] * ended, dtype=np.int64).reshape(-1, count)])
    sampled = np.ones(tokens.shape, dtype=np.uint8)
    sampled[steps:, 1:] = 0
    spoken = np.resize(frames, (given.sound_codes, count))
    held = torch.from_numpy(spoken.T.copy()).to(model.device)[None]
    parts = text_parts(model, inputs, reply, words, config.thinker_config.audio_token_id) | {
        "greedy1.tokens": tokens,
        "greedy1.sampled": sampled,
        "logits.audio0": leading[: len(tokens)],
        **{f"logits.audio{1 + k}": logits[:, k] for k in range(count - 1)},
        "sound1.tokens": spoken,
        "sound1.sampled": np.ones(spoken.shape, dtype=np.uint8),
        "sound": as_array(model.code2wav.float().chunked_decode(held, 300, 25)).reshape(-1),
    }
    return Made(parts, [["text"], slots_of(count, text=False)], model.thinker.dtype, {"sound_hz": 24_000})
