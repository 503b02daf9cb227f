"""Writes what the makers' own code of Kimi-Audio gives for one clip: codes, prompt, features, logits, greedy tokens, sound.

Run it where their package `kimia_infer` runs (https://github.com/MoonshotAI/Kimi-Audio; it needs a GPU and their versions of
torch and transformers). It imports nothing of paras2s, only numpy, torch and safetensors. Then, where paras2s runs:

python tools/dump_official.py models/Kimi-Audio-7B-Instruct --clip question.wav --out kimi.safetensors
paras2s check-policy kimi --weights models/Kimi-Audio-7B-Instruct --against kimi.safetensors

The clip is WAV, 16 kHz, mono, 16 bit, so that nobody resamples it. The file is about 1.3 MB a step.
"""

from __future__ import annotations

import argparse
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

# The layout that paras2s/policy/official.py reads.
VERSION = 1
RATE_HZ = 16_000


def read_wav(path: Path) -> np.ndarray:
    """Samples [n] between -1 and 1."""
    with wave.open(str(path)) as held:
        shape = held.getframerate(), held.getnchannels(), held.getsampwidth()
        if shape != (RATE_HZ, 1, 2):
            raise SystemExit(f"{path}: {shape[0]} Hz, {shape[1]} channels, {8 * shape[2]} bit; give 16 kHz, mono, 16 bit")
        return np.frombuffer(held.readframes(held.getnframes()), dtype="<i2").astype(np.float32) / 32768


def sound_hz(folder: Path) -> int:
    """Sample rate of the vocoder: 24 kHz in the release, which is known without its folder."""
    path = folder / "vocoder" / "config.json"
    return int(json.loads(path.read_text())["sampling_rate"]) if path.is_file() else 24_000


def as_array(row: torch.Tensor) -> np.ndarray:
    """On the CPU, in float32 where it is narrower, since numpy has no bfloat16."""
    return row.detach().to(torch.promote_types(row.dtype, torch.float32)).cpu().numpy()


@torch.inference_mode()
def greedy_path(
    model: Any, prompt: tuple[torch.Tensor, ...], features: list[torch.Tensor], steps: int
) -> dict[str, np.ndarray]:
    """Logits of both streams along the most probable answer, and its tokens.

    The rules are those of the makers' `_generate_loop`, whose own greedy answer must begin with the same tokens.
    """
    special, delay = model.extra_tokens, model.kimia_text_audiodelaytokens
    audio, text, continuous = prompt
    place = torch.arange(audio.shape[1], device=audio.device)[None]
    feed: dict[str, Any] = {
        "input_ids": audio,
        "text_input_ids": text,
        "whisper_input_feature": features,
        "is_continuous_mask": continuous,
        "position_ids": place,
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
    found = np.array(tokens, dtype=np.int64)
    codes, words = model._generate_loop(
        audio_input_ids=audio, text_input_ids=text, max_new_tokens=len(found), is_continuous_mask=continuous,
        continous_feature=features, output_type="both",
    )  # fmt: skip
    for name, theirs, ours in (("audio", codes, found[delay:, 1]), ("text", words, found[: len(words), 0])):
        if list(theirs)[: len(ours)] != ours.tolist():
            raise SystemExit(f"the greedy {name} tokens of this tool are not those of the makers' loop; nothing is written")
    return {
        "greedy.tokens": found,
        "greedy.sampled": np.array(sampled, dtype=np.uint8),
        "logits.text": np.stack(logits["text"]),
        "logits.audio0": np.stack(logits["audio"]),
    }


def dump(model_path: str, clip: Path, out: Path, steps: int, seed: int, sound_codes: int) -> None:
    from kimia_infer.api.kimia import KimiAudio  # type: ignore[import-not-found]

    samples = read_wav(clip)
    model = KimiAudio(model_path=model_path, load_detokenizer=True)
    weights = next(model.alm.parameters())
    message = {"role": "user", "message_type": "audio", "content": str(clip)}
    content = model.prompt_manager.get_prompt([message], output_type="both")
    # Some releases of the package give more than audio, text and the mask of continuous features.
    prompt = tuple(part.to(weights.device) for part in content.to_tensor()[:3])
    features = [part.to(weights.device) for part in content.continuous_feature]
    audio, text, continuous = (part[0].cpu().numpy() for part in prompt)
    codes = audio[continuous] - model.kimia_token_offset
    parts = greedy_path(model, prompt, features, steps)
    # More than one chunk of the detokenizer, so that prefix and cross-fade take part.
    spoken = np.resize(codes, sound_codes)
    torch.manual_seed(seed)
    noise = torch.randn(32).tolist()
    torch.manual_seed(seed)
    sound = model.detokenize_audio(torch.from_numpy(spoken)[None])
    blank = model.extra_tokens.kimia_text_blank
    parts |= {
        "question": samples,
        "codes": codes,
        "features": np.concatenate([as_array(part)[0] for part in features]),
        "prompt.audio": audio,
        "prompt.text": text,
        "prompt.continuous": continuous.astype(np.uint8),
        "sound.tokens": np.stack([np.full(len(spoken), blank), spoken + model.kimia_token_offset], 1),
        "sound.sampled": np.stack([np.zeros(len(spoken)), np.ones(len(spoken))], 1).astype(np.uint8),
        "sound": as_array(sound).reshape(-1),
    }
    said = {
        "version": VERSION,
        "model": model_path,
        "dtype": str(weights.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "slots": ["text", "audio0"],
        "question_hz": RATE_HZ,
        "sound_hz": sound_hz(Path(model_path)),
        "seed": seed,
        "noise": noise,
    }
    held = {name: np.ascontiguousarray(part) for name, part in parts.items()}
    save_file(held, str(out), metadata={"dump_official": json.dumps(said)})
    print(f"{out}: {len(codes)} codes, {len(parts['greedy.tokens'])} steps, {len(parts['sound'])} samples of sound")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of Kimi-Audio-7B-Instruct, or its name on the hub")
    parser.add_argument("--clip", type=Path, required=True, help="a spoken question: WAV, 16 kHz, mono, 16 bit")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24, help="longest greedy answer")
    parser.add_argument("--seed", type=int, default=0, help="of the detokenizer's noise")
    parser.add_argument("--sound-codes", type=int, default=75, help="codes that are made to sound, 12.5 a second")
    given = parser.parse_args()
    dump(given.model, given.clip, given.out, given.steps, given.seed, given.sound_codes)


if __name__ == "__main__":
    main()
