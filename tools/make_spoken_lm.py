"""Make the policy `spoken_lm` from a language model: it then hears prosody, and chooses its own.

make spoken-lm                                             # SmolLM2-135M-Instruct, to models/spoken_lm
python tools/make_spoken_lm.py /models/Qwen2.5-0.5B-Instruct models/spoken_qwen
python tools/make_spoken_lm.py FILE.gguf OUT --prosody-layer 12

MODEL is a name of tools/local_llm.py (smollm2, qwen), a GGUF file, or a folder of transformers with a chat template.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from local_llm import CACHE, MODELS, find_model

from paras2s.data_gen.scripted.tones import load_tones
from paras2s.policy.spoken_lm.make import make_spoken_lm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("out", nargs="?", type=Path, default=Path("models/spoken_lm"))
    parser.add_argument("--prosody-layer", type=int, help="layer that prosody is added to; those below it stay as they are")
    options = parser.parse_args()
    model = find_model(options.model, CACHE)[0] if options.model in MODELS else Path(options.model)
    tone = load_tones()[0]
    policy = make_spoken_lm(model, options.out, tone.mean, tone.scale, options.prosody_layer)
    total, learning = (
        sum(each.numel() for each in policy.model.parameters() if each.requires_grad or not only) for only in (False, True)
    )
    layers = policy.model.lm.config.num_hidden_layers
    print(f"{options.out}: {total / 1e6:.0f} M parameters, of {layers} layers those from {policy.model.prosody_layer} on learn "
          f"({learning / 1e6:.0f} M); paras2s check-policy spoken_lm --weights {options.out}")  # fmt: skip


if __name__ == "__main__":
    main()
