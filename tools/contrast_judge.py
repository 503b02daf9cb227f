"""A contrast judge on the text of a finished run's answers, beside the scores of the run's rubric.

python tools/contrast_judge.py runs/quick MODEL [--answers N]     # MODEL: a GGUF file, or a folder of transformers

Different answers to a question in a style count once; intervals are bootstraps over contrasts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.bench.results import load_rows
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.reward.judges.registry import open_judge
from paras2s.statistics.correlation import correlations
from paras2s.types import Verdict

# Pairs of one question whose scores by the rubric are closer say little.
LEAST_APART = 2.0
NO_SOUND = Clip(np.zeros(1, dtype=np.float32), 16_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, help="the first N only")
    parser.add_argument("--cache", default="runs/cache")
    options = parser.parse_args()
    scores, contrast_of = defaultdict(list), {}
    for path in sorted((options.run / "bench").glob("*.jsonl")):
        for row in load_rows(path):
            if row.score is not None and row.text_stream.strip():
                key = (row.question_text, row.style, row.text_stream)
                scores[key].append(row.score)
                contrast_of[key] = row.contrast_id
    keys = sorted(scores)[: options.answers]
    judge = open_judge("contrast", {"model": str(options.model), "cache_dir": options.cache})
    started = time.perf_counter()
    verdicts = judge.score_batch([Exchange(Utterance(text=text, style=style), NO_SOUND, words) for text, style, words in keys])
    seconds = (time.perf_counter() - started) / len(keys)
    known = [(key, verdict.score) for key, verdict in zip(keys, verdicts, strict=True) if isinstance(verdict, Verdict)]
    print(f"{judge.label}: {len(known)} of {len(keys)} answers, {seconds:.2f} s an answer")
    rubric = {key: float(np.mean(scores[key])) for key in keys}
    groups = {
        "all": known,
        **{style: [pair for pair in known if pair[0][1] == style] for style in sorted({key[1] for key in keys})},
    }
    for name, pairs in groups.items():
        pearson = correlations([(score, rubric[key]) for key, score in pairs], [contrast_of[key] for key, _ in pairs])[0]
        by_question = defaultdict(list)
        for key, score in pairs:
            by_question[key[:2]].append((score, rubric[key]))
        apart = [
            (first[0] - second[0]) * (first[1] - second[1]) > 0
            for answers in by_question.values()
            for first, second in itertools.combinations(answers, 2)
            if abs(first[1] - second[1]) >= LEAST_APART
        ]
        ends = "" if pearson.low is None else f" ({pearson.low:.2f} to {pearson.high:.2f})"
        value = pearson.why_none or f"{pearson.value:.2f}{ends}"
        print(f"{name}: n {len(pairs)}, Pearson {value}, pairs ordered rightly {sum(apart)} of {len(apart)}")


if __name__ == "__main__":
    main()
