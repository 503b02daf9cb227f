"""How often a judge is told the right style of a prompt: a guess by its words and its sound, and by its sound alone.

    paras2s data quick
    python benchmarks/style_guesses.py runs/quick/data

The labels that prompts were made for (candidates.parquet) are read here, and by nothing in a run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from figures import Figure, add_json_option, write_figures

from paras2s.data_gen.candidates import ledger_of_prompts
from paras2s.data_gen.dataset import load_dataset
from paras2s.data_gen.policy_inputs import CODEC
from paras2s.pipeline.question_styles import StyleGuesses


def main() -> None:
    """Print both shares of the RL prompts of a dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    add_json_option(parser)
    options = parser.parse_args()
    dataset = load_dataset(options.data)
    ledger, prompts = ledger_of_prompts(dataset.candidates), dataset.of_role("rl")
    styles = [ledger[query.id].style for query in prompts]
    by_sound = dataset.user_tone.predict(np.stack([dataset.clip_features(query.clip, CODEC).utterance for query in prompts]))
    guesses = {"words and sound": list(map(StyleGuesses(dataset).of, prompts)), "sound alone, of all styles": by_sound}
    shares = {
        name: float(np.mean([guess == style for guess, style in zip(guessed, styles, strict=True)]))
        for name, guessed in guesses.items()
    }
    for name, share in shares.items():
        print(f"{name}: {100 * share:.1f} % of {len(prompts)} prompts")
    ours, other = shares.values()
    write_figures(options.json, [Figure("right style", "share", (ours,), (other,), "sound alone", more_is_better=True)])


if __name__ == "__main__":
    main()
