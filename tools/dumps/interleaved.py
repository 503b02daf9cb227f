"""GLM-4-Voice and Step-Audio 2 by their makers' code: one stream of words and codes.

Run it in a clone of github.com/zai-org/GLM-4-Voice or github.com/stepfun-ai/Step-Audio2, with its requirements.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import wave
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dumps.files import RATE_HZ, Made, Parts, as_array, slots_of

# Of the makers' web_demo.py.
GLM_INSTRUCTION = (
    "User will provide you with a speech instruction. Do it step by step. First, think about the instruction and respond in a "
    "interleaved manner, with 13 text token followed by 26 audio tokens. "
)
GREEDY: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.0, "return_dict_in_generate": True, "output_logits": True}


def stream_parts(ids: np.ndarray, result: Any, codes: Sequence[int] | None, first_audio: int, sound_codes: int) -> Parts:
    """Prompt [L], and what `generate` gave behind it; codes for the sound are those of the clip, else of the answer."""
    answer = result.sequences[0, len(ids) :].cpu().numpy()
    spoken = np.array(codes if codes else answer[answer >= first_audio] - first_audio)
    parts = {
        "prompt.text": ids,
        "prompt.audio": np.zeros((len(ids), 0), dtype=np.int64),
        "prompt.continuous": np.zeros(len(ids), dtype=np.uint8),
        "prompt.coded": (ids >= first_audio).astype(np.uint8),
        "greedy.tokens": answer[:, None],
        "greedy.sampled": np.ones((len(answer), 1), dtype=np.uint8),
        "logits.text": np.stack([as_array(row[0]) for row in result.logits]),
        "sound.tokens": np.resize(spoken, (sound_codes, 1)) + first_audio,
        "sound.sampled": np.ones((sound_codes, 1), dtype=np.uint8),
    }
    return parts if codes is None else parts | {"codes": np.array(codes)}


@torch.inference_mode()
def glm4_voice(given: argparse.Namespace, question: np.ndarray) -> Made:
    sys.path[:0] = ["cosyvoice", "third_party/Matcha-TTS"]
    from speech_tokenizer.modeling_whisper import WhisperVQEncoder  # type: ignore[import-not-found]
    from speech_tokenizer.utils import extract_speech_token  # type: ignore[import-not-found]
    from transformers import AutoModel, AutoTokenizer, WhisperFeatureExtractor

    device, dtype = given.device, getattr(torch, given.dtype)
    encoder = WhisperVQEncoder.from_pretrained(given.tokenizer).eval().to(device)
    extractor = WhisperFeatureExtractor.from_pretrained(given.tokenizer)
    (codes,) = extract_speech_token(encoder, extractor, [(torch.from_numpy(question.copy())[None], RATE_HZ)])
    tokenizer = AutoTokenizer.from_pretrained(given.model, trust_remote_code=True)
    model = AutoModel.from_pretrained(given.model, trust_remote_code=True, torch_dtype=dtype).eval().to(device)
    spoken_question = "".join(f"<|audio_{code}|>" for code in codes)
    prompt = f"<|system|>\n{GLM_INSTRUCTION}<|user|>\n<|begin_of_audio|>{spoken_question}<|end_of_audio|>"
    ids = tokenizer([prompt + "<|assistant|>streaming_transcription\n"], return_tensors="pt")["input_ids"].to(device)
    user, first = (tokenizer.convert_tokens_to_ids(name) for name in ("<|user|>", "<|audio_0|>"))
    listed = model.config.eos_token_id
    ends = sorted({user, *(listed if isinstance(listed, list) else [listed])})
    mask = torch.ones_like(ids)
    result = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=given.steps, eos_token_id=ends, **GREEDY)
    parts, said = stream_parts(ids[0].cpu().numpy(), result, codes, first, given.sound_codes), {}
    if given.decoder:
        from flow_inference import AudioDecoder  # type: ignore[import-not-found]

        files = (os.path.join(given.decoder, name) for name in ("config.yaml", "flow.pt", "hift.pt"))
        decoder = AudioDecoder(*files, device=device)
        torch.manual_seed(given.seed)
        spoken = torch.from_numpy(parts["sound.tokens"].T - first)
        parts["sound"], said = as_array(decoder.offline_inference(spoken)).reshape(-1), {"sound_hz": 22_050}
    return Made(parts, [slots_of(0)], model.dtype, said)


@torch.inference_mode()
def step_audio2(given: argparse.Namespace, question: np.ndarray) -> Made:
    from stepaudio2 import StepAudio2  # type: ignore[import-not-found]

    model = StepAudio2(given.model)
    ids_of = model.llm_tokenizer.convert_tokens_to_ids
    begin, patch, first = (ids_of(name) for name in ("<audio_start>", "<audio_patch>", "<audio_0>"))
    states: list[torch.Tensor] = []
    kept_inputs: dict[str, Any] = {}
    hook = model.llm.adapter.register_forward_hook(lambda _, __, made: states.append(made.detach()))
    generate = model.llm.generate

    def kept(**more: Any) -> torch.Tensor:
        for name, value in GREEDY.items():
            setattr(more["generation_config"], name, value)
        result = generate(**more)
        kept_inputs.update(more, result=result)
        return result.sequences

    model.llm.generate = kept
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "human", "content": [{"type": "audio", "audio": str(given.clip)}]},
        {"role": "assistant", "content": "<tts_start>", "eot": False},
    ]
    model(messages, max_new_tokens=given.steps)
    hook.remove()
    model.llm.generate = generate
    ids = kept_inputs["input_ids"][0].cpu().numpy()
    # Pieces of 25 s, each behind its own begin; what is longer than its patches is padding.
    pieces = np.split(ids == patch, np.flatnonzero(ids == begin))[1:]
    features = [as_array(row[: int(places.sum())]) for row, places in zip(states[0], pieces, strict=True)]
    codes, said = None, {}
    if given.decoder:
        from token2wav import Token2wav  # type: ignore[import-not-found]

        vocoder = Token2wav(given.decoder)
        codes = codes_of(vocoder, question)
    parts = stream_parts(ids, kept_inputs["result"], codes, first, given.sound_codes) | {
        "features": np.concatenate(features),
        "prompt.continuous": (ids == patch).astype(np.uint8),
    }
    del parts["prompt.coded"]
    if given.decoder:
        torch.manual_seed(given.seed)
        made = vocoder((parts["sound.tokens"][:, 0] - first).tolist(), given.voice)
        with wave.open(io.BytesIO(made)) as held:
            said["sound_hz"] = held.getframerate()
            parts["sound"] = np.frombuffer(held.readframes(held.getnframes()), dtype="<i2").astype(np.float32) / 32768
    return Made(parts, [slots_of(0)], model.llm.dtype, said)


def codes_of(vocoder: Any, question: np.ndarray) -> list[int]:
    """The clip's codes by the S3 tokenizer, as the vocoder codes the recording of its voice."""
    import s3tokenizer

    mels, counts = s3tokenizer.padding([s3tokenizer.log_mel_spectrogram(torch.from_numpy(question.copy()))])
    device = next(vocoder.audio_tokenizer.parameters()).device
    codes, counts = vocoder.audio_tokenizer.quantize(mels.to(device), counts.to(device))
    return codes[0, : int(counts[0])].tolist()
