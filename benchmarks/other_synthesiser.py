"""A finished run's policies on questions that another synthesiser speaks: the test queries, read by espeak-ng instead of Piper.

The vocoder gives speaker and style as before, so what is new is the engine: its phonemes, durations and timbre. Contrasts of
which a clip is misread by the recogniser, as the data's filter has it, are left out and counted. espeak-ng (GPL-3.0) runs as a
program of its own: apt-get install espeak-ng.

    paras2s demo
    python benchmarks/other_synthesiser.py runs/demo
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from figures import Figure, add_json_option, write_figures
from rich.console import Console

from paras2s.audio.asr import transcribe, word_error_rate
from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.audio.synthesis import RATE_HZ, analyse, synthesise
from paras2s.bench.paras2s.contrasts import policy_system
from paras2s.bench.paras2s.judges import AnswerJudge, RunJudge
from paras2s.bench.paras2s.run import Runner
from paras2s.bench.paras2s.second_judge import judge_again
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.stats import contrast_metric, paired_difference, summarise
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import Dataset, load_dataset
from paras2s.data_gen.policy_inputs import CODEC
from paras2s.data_gen.tts.piper_world import SPEAKERS, USER_STYLES
from paras2s.policy.embedded.frontend import extract_features
from paras2s.reward.judges.independent.judge import IndependentJudge
from paras2s.reward.reward_model.model import RewardModel
from paras2s.run import Run
from paras2s.types import Query
from paras2s.utils.io import write_bytes
from paras2s.utils.process_pool import end_workers
from paras2s.utils.seeds import seed_of

VOICE, ESPEAK = "en-us", "espeak-ng"


def speak(text: str) -> Clip:
    """A text read by espeak-ng, 16 kHz."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "line.wav")
        subprocess.run([ESPEAK, "-v", VOICE, "-w", str(path), text], check=True, capture_output=True)
        return read_clip(path, RATE_HZ)


def respoken(dataset: Dataset, queries: Sequence[Query], folder: Path) -> Dataset:
    """A dataset of the queries whose contrasts are understood, spoken anew; its clips and features are in `folder`."""
    speakers = {one.name: one for voices in SPEAKERS.values() for kind in voices.values() for one in kind}
    voices = {text: analyse(speak(text)) for text in sorted({query.text or "" for query in queries})}
    clips = [
        synthesise(voices[query.text or ""], speakers[query.speaker], USER_STYLES[query.style or ""], seed_of(ESPEAK, query.id))
        for query in queries
    ]
    words = [one.text for one in transcribe(clips)]
    limit = load_config(dataset.folder.parent / "config.resolved.yaml").data.max_word_error_rate
    misread = {
        query.contrast_id for query, said in zip(queries, words, strict=True) if word_error_rate(query.text or "", said) > limit
    }
    kept = []
    for query, clip, said in zip(queries, clips, words, strict=True):
        if query.contrast_id not in misread:
            write_bytes(folder / query.clip, encode_clip(clip))
            features = extract_features(read_clip(folder / query.clip), CODEC)
            write_bytes((folder / query.clip).with_suffix(".npz"), features.to_bytes())
            kept.append(replace(query, transcript=said, duration_s=clip.duration_s))
    return replace(dataset, folder=folder, queries=tuple(kept))


def describe(name: str, rows: Sequence[AnswerRow]) -> list[Figure]:
    scores = summarise(rows)
    overall, apart = scores.overall.estimate, contrast_metric(rows).estimate
    if overall.mean is None or apart.mean is None:
        print(f"{name}: not scored in every category")
        return []
    print(
        f"{name}: {overall.mean:.2f} ± {overall.standard_error or 0:.2f}, told apart {apart.mean:.0%} (n = {overall.n})",
        flush=True,
    )
    return [Figure(f"{name}: score", "1 to 5", [overall.mean], more_is_better=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a finished run")
    add_json_option(parser)
    options = parser.parse_args()
    if shutil.which(ESPEAK) is None:
        parser.error(f"{ESPEAK} is not installed: apt-get install {ESPEAK}")
    config = load_config(options.folder / "config.resolved.yaml").model_copy(update={"run_dir": options.folder})
    dataset, run = load_dataset(options.folder / "data"), Run(config, Console(), quiet=True)
    model, out = RewardModel.load(options.folder / "reward"), options.folder / "other_synthesiser"
    queries = dataset.of_role("test")
    spoken = respoken(dataset, queries, out)
    kept = spoken.of_role("test")
    print(f"{len(kept)} of {len(queries)} test queries are understood as {ESPEAK} speaks them")
    judge = RunJudge(dataset, kept, model)
    runner = Runner(kept, out, config.bench.answers_per_query, judge, out, out / "bench", Path("samples"), run.console, True)
    figures, found = [], {}
    for name in ("sft", "aligned"):
        rows = runner.bench(name, policy_system(run, spoken, run.load_policy(options.folder / name)))
        again = judge_again(rows, out, AnswerJudge(IndependentJudge()), lambda done, total: None)
        same = {query.id for query in kept}
        piper = [row for row in load_rows(options.folder / "bench" / f"{name}.jsonl") if row.query_id in same]
        figures += describe(f"{name}, Piper's questions", piper)
        figures += describe(f"{name}, {ESPEAK}'s questions", rows)
        figures += describe(f"{name}, {ESPEAK}'s questions, independent judge", again)
        found[name] = rows
    gain = paired_difference(found["aligned"], found["sft"]).difference.estimate
    if gain.mean is not None:
        print(f"aligned over SFT on {ESPEAK}'s questions: {gain.mean:+.2f} ± {gain.standard_error or 0:.2f}")
    write_figures(options.json, figures)
    end_workers()


if __name__ == "__main__":
    main()
