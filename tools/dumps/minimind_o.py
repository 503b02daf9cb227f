"""MiniMind-O by its makers' code: run in a clone of jingyaogong/minimind-o, which has SenseVoice-Small and Mimi under `model/`.

Their loop runs as it is but for these: the most probable token is taken, without a repetition penalty, and what stops a
codebook is looked up in Mimi's config. After the words it feeds the tokenizer's line break, as their training does.
"""

from __future__ import annotations

import argparse
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from dumps.files import RATE_HZ, Made, Parts, as_array, resampled, slots_of

CODEBOOKS = 8
# Of `paras2s/policy/speech_tokenizers/sense_voice.py`: the filter bank's noise, with a seed.
DITHER, SEED = 2.0**-15, 0


def greedy_loop(module: Any, codes: int) -> Any:
    """Their `stream_generate` with the edits that the docstring names, each of which must be there."""
    source = textwrap.dedent(inspect.getsource(module.MiniMindOmni.stream_generate))
    edits = {"score / 1.05": "score", "score * 1.05": "score", "torch.multinomial(": "first_of(", ".topk(50)": ".topk(1)",
             ">= 2048": f">= {codes}"}  # fmt: skip
    for theirs, ours in edits.items():
        if theirs not in source:
            raise SystemExit(f"their stream_generate has no {theirs!r}; this tool was written for commit a10fa6c")
        source = source.replace(theirs, ours)
    names = {**vars(module), "first_of": lambda probabilities, _: probabilities.argmax(-1, keepdim=True)}
    exec(source, names)
    return names["stream_generate"]


def greedy_path(module: Any, model: Any, ids: list[int], sound: dict[str, Any], marks: dict[str, int], steps: int) -> Parts:
    """Logits of all streams along the most probable answer, and its tokens: what their loop fed to their forward."""
    fed: list[np.ndarray] = []
    logits: list[list[np.ndarray]] = []
    theirs = model.forward

    def forward(tokens: torch.Tensor, **more: Any) -> Any:
        result = theirs(tokens, **more)
        fed.append(tokens[0, :, -1].cpu().numpy())
        logits.append([as_array(row[0, -1]) for row in (result.logits, *result.audio_logits)])
        return result

    object.__setattr__(model, "forward", forward)
    loop = greedy_loop(module, marks["codes"])
    first = torch.tensor([ids], device=next(model.parameters()).device)
    with torch.inference_mode():
        for _ in loop(model, first, marks["end"], steps, 1.0, 1.0, 1.0, True, False, enter_token_id=marks["break"], **sound):
            pass
    object.__setattr__(model, "forward", theirs)
    # What step t draws is fed before step t + 1; the last is never fed.
    drawn = [*(np.roll(row, 1) for row in fed[1:]), np.array([row.argmax() for row in logits[-1]])]
    tokens, sampled = np.stack(drawn), np.zeros((len(drawn), 1 + CODEBOOKS), dtype=np.uint8)
    over, ended = np.zeros(1 + CODEBOOKS, dtype=bool), len(drawn)
    for step, row in enumerate(tokens):
        sampled[step] = [not over[0], *(step > k for k in range(CODEBOOKS))]
        if step == len(drawn) - 1:
            # As their loop would have fed it: forced where it draws nothing.
            row[1:] = np.where(sampled[step, 1:], row[1:], fed[0][0])
            row[0] = row[0] if sampled[step, 0] else marks["break"] if tokens[step - 1, 0] == marks["end"] else 0
        over |= sampled[step].astype(bool) & np.array([row[0] == marks["end"], *(row[1:] >= marks["codes"])])
        if over.all():
            ended = step + 1
            break
    names = slots_of(CODEBOOKS)
    return {
        "greedy.tokens": tokens[:ended],
        "greedy.sampled": sampled[:ended],
        **{f"logits.{name}": np.stack([row[slot] for row in logits[:ended]]) for slot, name in enumerate(names)},
    }


def laid_out(codes: np.ndarray, pad: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and sampled mask [T, 1 + K] of an answer of codes [F, K] without words, as their training lays it out."""
    tokens = np.full((len(codes) + 1 + CODEBOOKS, 1 + CODEBOOKS), pad)
    tokens[:, 0] = 0
    sampled = np.zeros(tokens.shape, dtype=np.uint8)
    for k in range(CODEBOOKS):
        tokens[k + 1 : k + 2 + len(codes), 1 + k] = [*codes[:, k], stop]
        sampled[k + 1 : k + 2 + len(codes), 1 + k] = 1
    return tokens, sampled


def parts_of(module: Any, model: Any, mimi: Any, tokenizer: Any, samples: np.ndarray, steps: int, sound_codes: int) -> Parts:
    """All parts of the dump but the words about it."""
    config, device = model.config, next(model.parameters()).device
    noise = DITHER * np.random.Generator(np.random.Philox(SEED)).normal(size=len(samples))
    held = model.audio_processor((samples + noise).astype(np.float32), sampling_rate=RATE_HZ)
    count = int(held.attention_mask.sum())
    mel, counts = held.input_features.to(device), torch.tensor([count], device=device)
    with torch.inference_mode():
        # Their encoder scales its input in place.
        features = as_array(model.audio_encoder(mel.clone(), counts)[0][0, :count])
        question = torch.from_numpy(resampled(samples, int(mimi.config.sampling_rate), float(mimi.config.frame_rate)))
        codes = mimi.encode(question[None, None], num_quantizers=CODEBOOKS).audio_codes[0].T.numpy()
        spoken = np.resize(codes, (sound_codes, CODEBOOKS))
        sound = mimi.decode(torch.from_numpy(spoken.T.copy())[None]).audio_values[0, 0]
    message = {"role": "user", "content": config.audio_special_token * count}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True, open_thinking=False)
    ids = tokenizer(text)["input_ids"]
    marks = {"end": tokenizer.eos_token_id, "break": tokenizer("\n")["input_ids"][0], "codes": int(mimi.config.codebook_size)}
    tokens, sampled = laid_out(spoken, config.audio_pad_token, config.audio_stop_token)
    return greedy_path(module, model, ids, {"audio_inputs": mel, "audio_lens": counts}, marks, steps) | {
        "codes": codes,
        "features": features,
        "prompt.audio": np.full((len(ids), CODEBOOKS), config.audio_pad_token),
        "prompt.text": np.array(ids),
        "prompt.continuous": (np.array(ids) == config.audio_ids[0]).astype(np.uint8),
        "sound.tokens": tokens,
        "sound.sampled": sampled,
        "sound": as_array(sound),
    }


def load(module: Any, folder: Path, encoder: str, dtype: torch.dtype) -> Any:
    """Their class with the weights of their release in transformers' format, or of what paras2s wrote."""
    model = module.MiniMindOmni(module.OmniConfig(**json.loads((folder / "config.json").read_text())), encoder, None)
    file = folder / "pytorch_model.bin"
    if file.is_file():
        state = torch.load(file, map_location="cpu", weights_only=True)
    else:
        state = {name: torch.from_numpy(value) for name, value in load_file(folder / "model.safetensors").items()}
    # The head is the embedding; pictures are not looked at.
    missing = [name for name in model.load_state_dict(state, strict=False).missing_keys if name != "lm_head.weight"]
    if lacking := [name for name in missing if not name.startswith("vision_proj.")]:
        raise SystemExit(f"{folder}: lacks {lacking[:5]}")
    return model.to(dtype).eval()


def dump(given: argparse.Namespace, question: np.ndarray) -> Made:
    import model.model_omni as module  # type: ignore[import-not-found]
    from transformers import AutoTokenizer, MimiModel

    model = load(module, Path(given.model), given.encoder, torch.float32)
    model.audio_processor.frontend.dither = 0.0
    mimi = MimiModel.from_pretrained(given.codec).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    parts = parts_of(module, model, mimi, tokenizer, question, given.steps, given.sound_codes)
    return Made(parts, [slots_of(CODEBOOKS)], torch.float32, {"sound_hz": int(mimi.config.sampling_rate)})
