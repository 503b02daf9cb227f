"""Does the embedded policy speak, or recall? A warm-up on composed answers: three openings and three follow-ups to a style.

Each opening goes with each follow-up, so a style has nine answers. Six are demonstrated, three are kept out: a policy that
speaks would say them as well. Takes the folder of a finished run for its questions and voices; test queries are not touched.

    paras2s demo
    python benchmarks/composed.py runs/demo [--steps 400]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import yaml
from figures import Figure, add_json_option, write_figures

from paras2s.audio import asr
from paras2s.audio.asr import normalise_words, transcribe, word_error_rate
from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import Dataset, load_dataset
from paras2s.data_gen.policy_inputs import prepare_prompts
from paras2s.data_gen.scripted.build import answer_take
from paras2s.data_gen.scripted.scripts import load_families
from paras2s.data_gen.tts.render import render
from paras2s.pipeline.demonstrations import demonstrated_queries
from paras2s.policy.answers import answer_settings_of
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import SampleRequest
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.train.sft import Example, Warmup
from paras2s.utils.process_pool import cores, end_workers

# Of each style: openings, then follow-ups.
CLAUSES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def composed(style: str) -> tuple[list[str], list[str]]:
    """The demonstrated answers to a style, and those that are kept out: no two of a round share a clause."""
    openings, follow_ups = CLAUSES[style]
    rounds = [
        [f"{openings[n]}, {follow_ups[(n + turn) % len(follow_ups)]}." for n in range(len(openings))]
        for turn in range(len(follow_ups))
    ]
    return rounds[0] + rounds[1], rounds[2]


def warmed_up(dataset: Dataset, folder: Path, steps: int, report: bool) -> EmbeddedPolicy:
    """A new policy of the run's sizes after a warm-up on composed answers, two to a question in turn."""
    config = load_config(folder / "config.resolved.yaml")
    queries = demonstrated_queries(dataset, config.warmup)
    rows = []
    for number, query in enumerate(queries):
        shown, _ = composed(query.style or "")
        rows += [(query, shown[(2 * number + n) % len(shown)]) for n in range(2)]
    takes = [answer_take(text, load_families()[query.style or ""].tone, 0) for query, text in rows]
    rendered = render(takes, config.cache_dir)
    policy = EmbeddedPolicy.create(config.policy, dataset, [query.clip for query in queries], config.seed)
    prompts = dict(zip([query.id for query in queries], prepare_prompts(policy, dataset, queries), strict=True))
    examples = [
        Example(prompts[query.id], (policy.target_block(one.features.codes, policy.pieces.encode(text)),))
        for (query, text), one in zip(rows, rendered, strict=True)
    ]
    learner = Warmup(policy, examples, config.warmup.model_copy(update={"steps": steps}), config.seed)
    for step in range(steps):
        losses = learner.step(step)
        if report and step % 50 == 0:
            print(f"step {step}: text {losses['loss_text']:.2f}, audio {losses['loss_audio']:.2f}", flush=True)
    return policy


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a finished run")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--answers", type=int, default=4, help="to a validation query")
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    dataset = load_dataset(options.folder / "data")
    policy = warmed_up(dataset, options.folder, options.steps, report=True)
    queries = dataset.of_role("validation")
    seeds = answer_seeds(0, 0, range(len(queries)), options.answers)
    prompts = prepare_prompts(policy, dataset, queries)
    sampling = answer_settings_of(load_config(options.folder / "config.resolved.yaml")).sampling
    rollouts = NativeEngine(policy).generate([q.id for q in queries], SampleRequest(prompts, seeds, sampling), True)
    texts = [normalise_words(text) for rollout in rollouts for text in rollout.texts]
    clips = [Clip(wave, rollout.sample_rate_hz) for rollout in rollouts for wave in rollout.waves]
    transcripts = [one.text for one in transcribe(clips, asr.SECOND)]
    errors = [min(1.0, word_error_rate(text, said)) for text, said in zip(texts, transcripts, strict=True) if text]
    shown, kept_out = ({normalise_words(text) for style in CLAUSES for text in composed(style)[part]} for part in (0, 1))
    share = {
        "demonstrated sentences": np.mean([text in shown for text in texts]),
        "composed anew": np.mean([text in kept_out for text in texts]),
        "other words": np.mean([text not in shown | kept_out for text in texts]),
        "word errors, by an ear that taught nothing": np.mean(errors),
    }
    for name, value in share.items():
        print(f"{name}: {value:.0%} (n = {len(texts)})", flush=True)
    write_figures(options.json, [Figure(name, "share", [float(value)]) for name, value in share.items()])
    end_workers()


if __name__ == "__main__":
    main()
