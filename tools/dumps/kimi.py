"""Kimi-Audio by its makers' package `kimia_infer` (https://github.com/MoonshotAI/Kimi-Audio), which needs a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dumps.files import Made, Parts, as_array


def sound_hz(folder: Path) -> int:
    """Sample rate of the vocoder: 24 kHz in the release, which is known without its folder."""
    path = folder / "vocoder" / "config.json"
    return int(json.loads(path.read_text())["sampling_rate"]) if path.is_file() else 24_000


@torch.inference_mode()
def greedy_path(model: Any, prompt: tuple[torch.Tensor, ...], features: list[torch.Tensor], steps: int) -> Parts:
    """Logits of both streams along the most probable answer, and its tokens.

    The rules are those of the makers' `_generate_loop`, whose own greedy answer must begin with the same tokens.
    """
    special, delay = model.extra_tokens, model.kimia_text_audiodelaytokens
    audio, text, continuous = prompt
    positions = torch.arange(audio.shape[1], device=audio.device)[None]
    feed: dict[str, Any] = {
        "input_ids": audio,
        "text_input_ids": text,
        "whisper_input_feature": features,
        "is_continuous_mask": continuous,
        "position_ids": positions,
        "past_key_values": None,
    }
    logits: dict[str, list[np.ndarray]] = {"text": [], "audio": []}
    tokens, sampled, over = [], [], False
    for step in range(steps):
        # Their forward names its two results the other way round; its callers unpack them as here.
        audio_row, text_row, past = model.alm.forward(**feed, return_dict=False)
        audio_row, text_row = (row.reshape(-1, row.shape[-1])[-1] for row in (audio_row, text_row))
        logits["text"].append(as_array(text_row))
        logits["audio"].append(as_array(audio_row))
        drawn = (not over, step >= delay)
        word = int(text_row.argmax()) if drawn[0] else special.kimia_text_blank
        code = int(audio_row.argmax()) if drawn[1] else special.kimia_text_blank
        tokens.append((word, code))
        sampled.append(drawn)
        over = over or word == special.kimia_text_eos
        if code in model.eod_ids:
            break
        feed = {
            "input_ids": torch.tensor([[code]], device=audio.device),
            "text_input_ids": torch.tensor([[word]], device=audio.device),
            "whisper_input_feature": None,
            "is_continuous_mask": None,
            "position_ids": torch.tensor([[audio.shape[1] + step]], device=audio.device),
            "past_key_values": past,
        }
    answer = np.array(tokens, dtype=np.int64)
    codes, words = model._generate_loop(
        audio_input_ids=audio, text_input_ids=text, max_new_tokens=len(answer), is_continuous_mask=continuous,
        continous_feature=features, output_type="both",
    )  # fmt: skip
    for name, theirs, ours in (("audio", codes, answer[delay:, 1]), ("text", words, answer[: len(words), 0])):
        if list(theirs)[: len(ours)] != ours.tolist():
            raise SystemExit(f"the greedy {name} tokens of this tool are not those of the makers' loop; nothing is written")
    return {
        "greedy.tokens": answer,
        "greedy.sampled": np.array(sampled, dtype=np.uint8),
        "logits.text": np.stack(logits["text"]),
        "logits.audio0": np.stack(logits["audio"]),
    }


def dump(given: argparse.Namespace, question: np.ndarray) -> Made:
    from kimia_infer.api.kimia import KimiAudio  # type: ignore[import-not-answer]

    model = KimiAudio(model_path=given.model, load_detokenizer=True)
    weights = next(model.alm.parameters())
    message = {"role": "user", "message_type": "audio", "content": str(given.clip)}
    content = model.prompt_manager.get_prompt([message], output_type="both")
    # Some releases of the package give more than audio, text and the mask of continuous features.
    prompt = tuple(part.to(weights.device) for part in content.to_tensor()[:3])
    features = [part.to(weights.device) for part in content.continuous_feature]
    audio, text, continuous = (part[0].cpu().numpy() for part in prompt)
    codes = audio[continuous] - model.kimia_token_offset
    parts: Parts = greedy_path(model, prompt, features, given.steps)
    # More than one chunk of the detokenizer, so that prefix and cross-fade take part.
    spoken = np.resize(codes, given.sound_codes)
    torch.manual_seed(given.seed)
    sound = model.detokenize_audio(torch.from_numpy(spoken)[None])
    blank = model.extra_tokens.kimia_text_blank
    parts |= {
        "codes": codes,
        "features": np.concatenate([as_array(part)[0] for part in features]),
        "prompt.audio": audio,
        "prompt.text": text,
        "prompt.continuous": continuous.astype(np.uint8),
        "sound.tokens": np.stack([np.full(len(spoken), blank), spoken + model.kimia_token_offset], 1),
        "sound.sampled": np.stack([np.zeros(len(spoken)), np.ones(len(spoken))], 1).astype(np.uint8),
        "sound": as_array(sound).reshape(-1),
    }
    return Made(parts, [["text", "audio0"]], weights.dtype, {"sound_hz": sound_hz(Path(given.model))})
