"""Writes what the makers' own code of a model gives for one clip: codes, prompt, features, logits, greedy tokens, sound.

Run it where their code runs: for `kimi`, `glm4_voice`, `step_audio2` and `minimind_o` in a clone of their repository with its
requirements, for `moshi`, `csm`, `qwen_omni` and `qwen3_omni` with transformers, whose classes are the makers'. It imports
nothing of paras2s, only numpy, torch and safetensors (and soxr for codecs of 24 kHz). Then, where paras2s runs:

python tools/dump_official.py models/Kimi-Audio-7B-Instruct --family kimi --clip question.wav --out kimi.safetensors
paras2s check-policy kimi --weights models/Kimi-Audio-7B-Instruct --against kimi.safetensors

The clip is WAV, 16 kHz, mono, 16 bit, so that nobody resamples it. The file has 4 bytes for each id of a step: 1.3 MB a step
of Kimi-Audio. docs/tutorials/first-hour-on-a-gpu.md says what each family's code needs besides.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from dumps.files import read_wav, write

# The module of each family, and its function.
FAMILIES = {
    "kimi": "kimi:dump", "glm4_voice": "interleaved:glm4_voice", "step_audio2": "interleaved:step_audio2",
    "moshi": "frames:moshi", "csm": "frames:csm", "qwen_omni": "omni:qwen_omni", "qwen3_omni": "omni:qwen3_omni",
    "minimind_o": "minimind_o:dump",
}  # fmt: skip


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the released checkpoint, or its name on the hub")
    parser.add_argument("--family", required=True, choices=FAMILIES, help="policy.kind")
    parser.add_argument("--clip", type=Path, required=True, help="a spoken question: WAV, 16 kHz, mono, 16 bit")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=48, help="longest greedy answer")
    parser.add_argument("--seed", type=int, default=0, help="of a vocoder's noise")
    parser.add_argument("--sound-codes", type=int, default=75, help="steps of codes that are made to sound")
    parser.add_argument("--dtype", default="float32", help="precision of transformers' models: float32, bfloat16")
    parser.add_argument("--device", default="cpu", help="of transformers' models and of GLM-4-Voice")
    parser.add_argument("--text", default="", help="csm: words of the clip")
    parser.add_argument("--reply", default="Hello there.", help="csm: words to be said")
    parser.add_argument("--speaker", default="", help="qwen_omni, qwen3_omni: voice; default: that of the policy")
    parser.add_argument("--tokenizer", default="glm-4-voice-tokenizer", help="glm4_voice: folder of the speech tokenizer")
    parser.add_argument("--decoder", default="", help="glm4_voice, step_audio2: folder of the vocoder; default: no sound")
    parser.add_argument("--voice", default="assets/default_female.wav", help="step_audio2: recording of the vocoder's voice")
    parser.add_argument("--encoder", default="model/SenseVoiceSmall", help="minimind_o: folder of SenseVoice-Small")
    parser.add_argument("--codec", default="model/mimi", help="minimind_o: folder of Mimi")
    return parser.parse_args(arguments)


def dump(given: argparse.Namespace) -> None:
    # The clone in which it runs.
    sys.path.append(".")
    module, function = FAMILIES[given.family].split(":")
    question = read_wav(given.clip)
    made = getattr(importlib.import_module(f"dumps.{module}"), function)(given, question)
    write(made, given.out, given.model, question, given.seed)


if __name__ == "__main__":
    dump(parsed())
