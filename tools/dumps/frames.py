"""Moshi and CSM by transformers' classes: frames of K codes, the codec Mimi in float32."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from dumps.files import Made, Parts, as_array, last_rows, resampled, slots_of

# Of the makers' `LMModel`; and of paras2s/policy/moshi.py, "silence" and "pause".
MOSHI_PAD, PAUSE_FRAMES, SETTLE_FRAMES = 3, 2, 25


def mimi_codes(mimi: Any, samples: np.ndarray, codebooks: int) -> torch.Tensor:
    """Codes [F, K] of samples at Mimi's rate, whole frames."""
    wave = torch.from_numpy(samples)[None, None].to(mimi.device)
    return mimi.encode(wave, num_quantizers=codebooks).audio_codes[0].T


def sound_of(mimi: Any, codes: np.ndarray) -> np.ndarray:
    """Samples of codes [F, K]."""
    return as_array(mimi.decode(torch.from_numpy(codes.T.copy())[None].to(mimi.device)).audio_values[0, 0])


def opened(kind: str, given: argparse.Namespace) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(given.model, dtype=getattr(torch, given.dtype)).to(given.device).eval()


def moshi(given: argparse.Namespace, question: np.ndarray) -> Made:
    model = opened("MoshiForConditionalGeneration", given)
    return moshi_parts(model, question, given.steps, given.sound_codes)


@torch.inference_mode()
def moshi_parts(model: Any, question: np.ndarray, steps: int, sound_codes: int) -> Made:
    """The user's stream is the clip and silence, Moshi's own is silence; transformers lays them out and answers."""
    mimi, count = model.audio_encoder.float(), int(model.config.num_codebooks)
    rate_hz, frame_hz = int(mimi.config.sampling_rate), float(mimi.config.frame_rate)
    codes = mimi_codes(mimi, resampled(question, rate_hz, frame_hz), count)
    silence = mimi_codes(mimi, np.zeros(round(SETTLE_FRAMES * rate_hz / frame_hz), dtype=np.float32), count)[-1:]
    user = torch.cat([codes, silence.expand(PAUSE_FRAMES, -1)])
    words: list[torch.Tensor] = []
    sounds: list[torch.Tensor] = []
    laid: list[Any] = []
    lay_out = model._prepare_inputs_embeds_for_generation

    def kept(*given: Any, **more: Any) -> Any:
        made = lay_out(*given, **more)
        laid.append(made)
        return made

    # Its silence while it speaks would be one frame of zeros, before Mimi has settled.
    encode, model.audio_encoder.encode = model.audio_encoder.encode, lambda *_, **__: (silence.T[None],)
    model._prepare_inputs_embeds_for_generation = kept
    hooks = [
        model.decoder.lm_head.register_forward_hook(last_rows(words)),
        model.depth_decoder.lm_heads.register_forward_hook(last_rows(sounds)),
    ]
    result = model.generate(
        input_ids=torch.full((1, len(user)), MOSHI_PAD, device=model.device),
        moshi_audio_codes=silence.expand(len(user), -1).T[None], user_audio_codes=user.T[None], max_new_tokens=steps,
        do_sample=False, depth_decoder_do_sample=False, return_audio_codes=True, return_audio_waveforms=False,
    )  # fmt: skip
    for hook in hooks:
        hook.remove()
    model.audio_encoder.encode, model._prepare_inputs_embeds_for_generation = encode, lay_out
    _, text, theirs, own = laid[0][:4]
    drawn = model.generated_audio_codes[0].T[-steps:]
    tokens = torch.cat([result.sequences[0, -steps:, None], drawn], 1).cpu().numpy()
    sampled = np.ones(tokens.shape, dtype=np.uint8)
    sampled[0, 2:] = 0
    logits = as_array(torch.stack(sounds)).reshape(steps, count, -1)
    # The first frame's later codes belong to the prompt; transformers draws others there, and throws them away.
    logits[0, 1:] = np.nan
    length = text.shape[1]
    parts: Parts = {
        "codes": codes.cpu().numpy(),
        "prompt.text": text[0].cpu().numpy(),
        "prompt.audio": torch.cat([own[0], theirs[0]])[:, :length].T.cpu().numpy(),
        "prompt.continuous": np.zeros(length, dtype=np.uint8),
        # A step more than the clip has, for the delay, behind the first.
        "prompt.coded": (np.arange(length) - 1 <= len(codes)).astype(np.uint8),
        "greedy.tokens": tokens,
        "greedy.sampled": sampled,
        "logits.text": as_array(torch.stack(words)),
        **{f"logits.audio{k}": logits[:, k] for k in range(count)},
    }
    spoken = np.resize(parts["codes"], (sound_codes, count))
    delayed = np.full((sound_codes + 1, 1 + count), MOSHI_PAD)
    delayed[:-1, 1], delayed[1:, 2:] = spoken[:, 0], spoken[:, 1:]
    parts |= {"sound.tokens": delayed, "sound.sampled": np.ones(delayed.shape, dtype=np.uint8), "sound": sound_of(mimi, spoken)}
    return Made(parts, [slots_of(count)], model.dtype, {"sound_hz": rate_hz})


def csm(given: argparse.Namespace, question: np.ndarray) -> Made:
    from transformers import AutoProcessor

    model, processor = opened("CsmForConditionalGeneration", given), AutoProcessor.from_pretrained(given.model)
    codec = model.codec_model.config
    samples = resampled(question, int(codec.sampling_rate), float(codec.frame_rate))
    # The user is speaker 1, as paras2s has it.
    said = [{"role": "1", "content": [{"type": "text", "text": given.text}, {"type": "audio", "audio": samples}]},
            {"role": "0", "content": [{"type": "text", "text": given.reply}]}]  # fmt: skip
    inputs = processor.apply_chat_template(said, tokenize=True, return_dict=True).to(model.device)
    return csm_parts(model, inputs, samples, given)


@torch.inference_mode()
def csm_parts(model: Any, inputs: Any, samples: np.ndarray, given: argparse.Namespace) -> Made:
    """`inputs` are the processor's; ids that are no codes are forbidden, as in paras2s."""
    config, mimi = model.config, model.codec_model.float()
    count, codes = int(config.num_codebooks), int(mimi.config.codebook_size)
    firsts: list[torch.Tensor] = []
    laters: list[torch.Tensor] = []

    def no_code(ids: int) -> torch.Tensor:
        return torch.arange(ids) >= codes

    hooks = [
        model.lm_head.register_forward_hook(last_rows(firsts, no_code)),
        model.depth_decoder.codebooks_head.register_forward_hook(last_rows(laters, no_code)),
    ]
    frames = model.generate(**inputs, max_new_tokens=given.steps, do_sample=False, depth_decoder_do_sample=False)[0]
    for hook in hooks:
        hook.remove()
    ids = inputs["input_ids"][0].cpu().numpy()
    clip = mimi_codes(mimi, samples, count).cpu().numpy()
    sound = np.isin(ids, [config.audio_token_id, config.audio_eos_token_id])
    audio = np.zeros((len(ids), count), dtype=np.int64)
    audio[sound] = [*clip, [config.codebook_eos_token_id] * count]
    spoken = np.resize(clip, (given.sound_codes, count))
    logits = as_array(torch.stack(laters)).reshape(-1, count - 1, laters[0].shape[-1])[: len(frames)]
    parts: Parts = {
        "codes": clip,
        "prompt.text": ids,
        "prompt.audio": audio,
        "prompt.continuous": sound.astype(np.uint8),
        "greedy.tokens": frames.cpu().numpy(),
        "greedy.sampled": np.ones(frames.shape, dtype=np.uint8),
        "logits.audio0": as_array(torch.stack(firsts))[: len(frames)],
        **{f"logits.audio{1 + k}": logits[:, k] for k in range(count - 1)},
        "sound.tokens": spoken,
        "sound.sampled": np.ones(spoken.shape, dtype=np.uint8),
        "sound": sound_of(mimi, spoken),
    }
    said = {"sound_hz": int(mimi.config.sampling_rate), "text": given.text, "reply": given.reply}
    return Made(parts, [slots_of(count, text=False)], model.dtype, said)
