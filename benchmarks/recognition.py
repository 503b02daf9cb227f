"""Word errors and clips a second of speech recognition on 1,000 clips: the demo's questions, coded answers, LibriSpeech.

Beside it, with --against, the recogniser of another checkout of this project in a process of its own, in turns; and always
faster-whisper itself, each clip in a window of 30 s. One thread, as in the program's worker processes. Also checked: a
clip's transcript is the same whatever its neighbours are.

    python benchmarks/recognition.py [--cache runs/cache] [--against CHECKOUT] [--clips 1000] [--repeats 3]
    python benchmarks/recognition.py --precision runs/quick/data --clips 40   # int8 beside float32, on a run's questions
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jiwer
import numpy as np
from figures import Figure, add_json_option, write_figures

from paras2s.audio import asr
from paras2s.audio.asr import normalise_words
from paras2s.audio.clip import Clip, read_clip
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.scripted.build import plan_queries
from paras2s.data_gen.scripted.scripts import assign_roles, load_calibration, load_contrasts, load_families
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES
from paras2s.data_gen.tts.render import Take, render
from paras2s.utils.seeds import seed_of

LIBRISPEECH = Path(__file__).parents[1] / "tests/fixtures/librispeech"
SPOKEN = {
    "0001": "they are nearly as large as we and relatively much lighter in weight",
    "0002": "and are capable of receiving regular instruction at the age of five months",
    "0004": "on this world of brief all vegetables mature in periods so short that",
    "0005": "early in the morning certain crops are planted and are harvested at night",
}
# Runs under the other checkout; its `transcribe` may know no keyword.
THEIRS = """
import pickle, sys, time
from paras2s.audio import asr
from paras2s.audio.clip import Clip
threads = 1
asr.native_threads = lambda most=2: threads
with open(sys.argv[1], "rb") as file:
    clips = [Clip(samples, rate_hz) for samples, rate_hz in pickle.load(file)]
asr.transcribe(clips[:2])
started = time.perf_counter()
texts = [one.text for one in asr.transcribe(clips)]
with open(sys.argv[2], "wb") as file:
    pickle.dump((time.perf_counter() - started, texts), file)
"""


def collect(cache: Path, count: int) -> list[tuple[str, str, Clip]]:
    """(group, words, clip): LibriSpeech pieces, a quarter of coded answers, and the demo's questions, rejected ones too."""
    found = []
    for number, words in SPOKEN.items():
        clip = read_clip(LIBRISPEECH / f"librispeech_1263-139804-{number}.flac", asr.RATE_HZ)
        found.append(("LibriSpeech", words, Clip(clip.samples[: 5 * asr.RATE_HZ], asr.RATE_HZ)))
    config = DataConfig()
    coded = [
        Take(text, AGENT, AGENT_TONES[family.tone], seed_of("answer", text, number), True)
        for family in load_families().values()
        for text in family.answers
        for number in range(config.answer_takes)
    ]
    coded += [
        Take(text, AGENT, shape, seed_of(0, "agent", number, tone, AGENT.name), True)
        for number, text in enumerate(load_calibration())
        for tone, shape in AGENT_TONES.items()
    ]
    coded = coded[: (count - len(found)) // 4]
    roles = assign_roles(load_contrasts(), config, 0)
    questions = [plan.take for plan in plan_queries(roles, config, 0)][: count - len(found) - len(coded)]
    for group, takes in (("coded answers", coded), ("questions", questions)):
        found += [(group, take.text, one.clip) for take, one in zip(takes, render(takes, cache), strict=True)]
    return found


def ours(clips: list[Clip]) -> tuple[float, list[asr.Transcript]]:
    """Seconds and transcripts."""
    asr.transcribe(clips[:2])
    started = time.perf_counter()
    found = asr.transcribe(clips)
    return time.perf_counter() - started, found


def theirs(checkout: Path, clips: list[Clip]) -> tuple[float, list[str]]:
    """Seconds and transcripts of another checkout."""
    with tempfile.TemporaryDirectory() as folder:
        sent, back = Path(folder, "clips"), Path(folder, "texts")
        sent.write_bytes(pickle.dumps([(clip.samples, clip.sample_rate_hz) for clip in clips]))
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        subprocess.run([sys.executable, "-c", THEIRS, str(sent), str(back)], check=True, env=environment, cwd=folder)
        return pickle.loads(back.read_bytes())  # type: ignore[no-any-return]


def full_windows(clips: list[Clip]) -> tuple[float, list[str]]:
    """Seconds and transcripts of faster-whisper, a window of 30 s for each clip."""
    recogniser = asr._recogniser(1, asr.EMBEDDED)
    started = time.perf_counter()
    texts = [recogniser.full(asr._levelled(clip.at(asr.RATE_HZ).samples), False).text for clip in clips]
    return time.perf_counter() - started, texts


def word_errors(rows: list[tuple[str, str, Clip]], texts: list[str]) -> dict[str, float]:
    """Word errors by group and of all."""
    found = {}
    for group in ("LibriSpeech", "coded answers", "questions", "all"):
        pairs = [
            (normalise_words(r[1]), normalise_words(t)) for r, t in zip(rows, texts, strict=True) if group in (r[0], "all")
        ]
        if not pairs:
            continue
        found[group] = float(jiwer.wer([one for one, _ in pairs], [other for _, other in pairs]))
    return found


def figures(count: int, took: dict[str, list[float]], errors: dict[str, dict[str, float]]) -> list[Figure]:
    """Clips a second beside each of the others, and word errors."""
    rates = {name: [count / one for one in seconds] for name, seconds in took.items() if seconds}
    found = [
        Figure(f"beside {name}", "clips/s", rates["ours"], rates[name], name, more_is_better=True)
        for name in rates
        if name != "ours"
    ]
    for group, share in errors["ours"].items():
        others = {name: of[group] for name, of in errors.items() if name != "ours"}
        for name, other in others.items():
            found.append(Figure(f"word errors, {group}", "%", [100 * share], [100 * other], name))
    return found


def precision(data: Path, count: int, repeats: int) -> None:
    """Print seconds of one processor and word errors of int8 and float32 on a run's labelled questions, in turns."""
    from faster_whisper import WhisperModel

    from paras2s.audio.assets import asset_path
    from paras2s.data_gen.dataset import load_manifest

    manifest = load_manifest(data)
    queries = [query for query in manifest.queries if query.text is not None][:count]
    rows = [("questions", str(query.text), manifest.clip(query.clip)) for query in queries]
    folder, clips = str(asset_path("whisper_tiny").parent), [clip for _, _, clip in rows]
    models = {kind: WhisperModel(folder, device="cpu", compute_type=kind, cpu_threads=1) for kind in ("int8", "float32")}
    took: dict[str, list[float]] = {kind: [] for kind in models}
    texts: dict[str, list[str]] = {}
    for _ in range(repeats):
        for kind, model in models.items():
            recogniser = asr._Recogniser(model)
            asr._recogniser = lambda name, own=recogniser: own  # type: ignore[assignment]
            asr.transcribe(clips[:1])
            started = time.process_time()
            texts[kind] = [found.text for found in asr.transcribe(clips)]
            took[kind].append(time.process_time() - started)
    print(f"{len(clips)} clips, {sum(clip.duration_s for clip in clips):.0f} s of sound, n = {repeats}\n")
    print("| precision | processor seconds | word errors | clips with other words than int8 |\n|---|---|---|---|")
    for kind, seconds in took.items():
        spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        other = sum(one != two for one, two in zip(texts[kind], texts["int8"], strict=True))
        print(f"| {kind} | {spread} | {100 * word_errors(rows, texts[kind])['all']:.1f} % | {other} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", type=Path, metavar="DATA", help="a run's data: compare int8 and float32 on it")
    add_json_option(parser)
    options = parser.parse_args()
    if options.precision:
        precision(options.precision, options.clips, options.repeats)
        return
    asr.native_threads = lambda most=2: 1  # type: ignore[attr-defined]
    rows = collect(options.cache, options.clips)
    clips = [clip for _, _, clip in rows]
    took: dict[str, list[float]] = {"ours": [], "other checkout": []}
    errors: dict[str, Any] = {}
    for _ in range(options.repeats):
        took_s, found = ours(clips)
        took["ours"].append(took_s)
        errors["ours"] = word_errors(rows, [one.text for one in found])
        if options.against:
            took_s, texts = theirs(options.against, clips)
            took["other checkout"].append(took_s)
            errors["other checkout"] = word_errors(rows, texts)
    order = np.random.default_rng(0).permutation(len(clips)).tolist()
    _, shuffled = ours([clips[place] for place in order])
    changed = sum(found[place].text != one.text for place, one in zip(order, shuffled, strict=True))
    alone = sum(found[place].text != asr.transcribe([clips[place]])[0].text for place in order[:100])
    full = sum(one.full_window for one in found)
    took_s, texts = full_windows(clips[:: max(1, len(clips) // 100)])
    took["faster-whisper"] = [took_s * len(clips) / len(texts)]
    errors["faster-whisper (every tenth clip)"] = word_errors(rows[:: max(1, len(clips) // 100)], texts)
    print(f"{len(clips)} clips, {sum(clip.duration_s for clip in clips):.0f} s of sound, one thread, n = {options.repeats}")
    for name, seconds in took.items():
        if seconds:
            middle = statistics.median(seconds)
            print(
                f"{name}: {middle:.1f} s ({min(seconds):.1f} to {max(seconds):.1f}), {len(clips) / middle:.1f} clips a second"
            )
    print(json.dumps(errors, indent=1))
    write_figures(options.json, figures(len(clips), took, errors))
    print(f"in the full window: {full}; changed by the order of clips: {changed}; by having no neighbours: {alone} of 100")


if __name__ == "__main__":
    main()
