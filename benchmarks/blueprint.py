"""Seconds to measure real clips, ours beside the release of TRACE's authors, in turns; and whether the values agree.

Their code is not ours to ship (parts are GPL): give a checkout and a Python that has aubio, librosa, soundfile and
onnxruntime. It runs in a process of its own, with what it imports and does not need here left out.

    python benchmarks/blueprint.py CLIP... [--trace CHECKOUT --trace-python PYTHON] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import soundfile
from figures import Figure, add_json_option, write_figures

from paras2s.audio.clip import read_clip
from paras2s.audio.pitch import track_pitch
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.loudness import INTEGRATED
from paras2s.reward.blueprint.pitch import MEAN
from paras2s.reward.blueprint.quality import QualityExtractor

# Runs under the other Python: the authors' extraction without what it imports and does not need here.
THEIR_EXTRACTION = """
import importlib, json, sys, time, types
sys.path.insert(0, sys.argv[1])
import librosa, pyloudnorm, soundfile  # Before the stand-ins, which numeric libraries would ask for their types.
librosa.load(sys.argv[2])
for name in ("torch", "torchaudio", "transformers", "funasr", "speechbrain", "speechbrain.inference"):
    sys.modules[name] = types.ModuleType(name)
    for needed in ("AutoModelForSpeechSeq2Seq", "AutoProcessor", "pipeline", "EncoderClassifier", "AutoModel"):
        setattr(sys.modules[name], needed, None)
from DNSMOS.dnsmos_single import SAMPLING_RATE, ComputeScore
import extraction
Extraction = next(one for one in vars(extraction).values() if isinstance(one, type) and hasattr(one, "_pitch_stats_aubio"))
scorer = ComputeScore(*(f"{sys.argv[1]}/DNSMOS/models/{name}.onnx" for name in ("sig_bak_ovr", "p_sig_bak_ovr", "model_v8")))
"""
# DNSMOS, pitch and loudness exactly as their extraction does them, one clip after the other.
THEIRS = (
    THEIR_EXTRACTION
    + """
scorer(sys.argv[2], SAMPLING_RATE)
rows, quality_s, pitch_s, loudness_s, used_s = [], 0.0, 0.0, 0.0, time.process_time()
for path in sys.argv[2:]:
    started = time.perf_counter()
    mos = scorer(path, sampling_rate=SAMPLING_RATE)
    quality_s += time.perf_counter() - started
    started = time.perf_counter()
    pitch = Extraction._pitch_stats_aubio(None, path)[0]
    pitch_s += time.perf_counter() - started
    started = time.perf_counter()
    loudness = Extraction._loudness_stats_lufs(None, path)[0]
    loudness_s += time.perf_counter() - started
    rows.append([float(mos[key]) for key in ("P_SIG", "P_BAK", "P_OVRL", "P808_MOS")] + [float(loudness), float(pitch)])
used_s = time.process_time() - used_s
print(json.dumps({"quality_s": quality_s, "pitch_s": pitch_s, "loudness_s": loudness_s, "used_s": used_s, "rows": rows}))
"""
)


def ours(paths: list[Path], names: tuple[str, ...]) -> tuple[float, float, list[Any]]:
    """Seconds and those of the processor, files included, and the blueprints."""
    extractors = make_extractors(names)
    started, used = time.perf_counter(), time.process_time()
    blueprints = build_blueprints([read_clip(path) for path in paths], extractors)
    return time.perf_counter() - started, time.process_time() - used, blueprints


def theirs(python: str, checkout: Path, waves: list[Path], script: str = THEIRS, given: Any = None) -> dict[str, Any]:
    """What a script of theirs prints last; `given` is its standard input, as JSON."""
    command = [python, "-c", script, str(checkout / "src/TRACE"), *map(str, waves)]
    done = subprocess.run(command, capture_output=True, text=True, input=json.dumps(given))
    if done.returncode:
        raise SystemExit(f"the authors' code did not run under {python}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def other_trackers_hz(path: Path) -> tuple[float, float, float]:
    """Mean pitch by WORLD's Harvest and by librosa's pYIN; and how far ours is from pYIN where both hear a voice (share)."""
    import librosa
    import numpy as np
    import pyworld

    clip = read_clip(path, 16_000)
    harvest_hz, _ = pyworld.harvest(clip.samples.astype(float), 16_000, f0_floor=55, f0_ceil=600)
    pyin_hz, voiced, _ = librosa.pyin(clip.samples, fmin=55, fmax=600, sr=16_000, frame_length=1024, hop_length=256)
    track = track_pitch(clip)
    count = min(len(pyin_hz), len(track.f0_hz))
    both = voiced[:count] & track.voiced[:count]
    apart = float(np.mean(track.f0_hz[:count][both]) / np.mean(pyin_hz[:count][both]) - 1)
    return float(harvest_hz[harvest_hz > 0].mean()), float(pyin_hz[voiced].mean()), apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, nargs="+")
    parser.add_argument("--trace", type=Path, help="a checkout of the authors' release")
    parser.add_argument("--trace-python", default=sys.executable, help="a Python with what it needs")
    parser.add_argument("--repeats", type=int, default=3)
    add_json_option(parser)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    paths: list[Path] = options.clips
    audio_s = sum(read_clip(path).duration_s for path in paths)
    signals, full = ("pitch", "loudness", "quality"), ("pitch", "loudness", "quality", "words")
    ours(paths[:1], full)
    took: dict[str, list[float]] = {"signals": [], "full": [], "theirs": []}
    # Of the processor: other programs lengthen the clock's seconds, and these hardly.
    used: dict[str, list[float]] = {"ours": [], "theirs": []}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        waves = [Path(folder) / f"{path.stem}.wav" for path in paths]
        for path, wave in zip(paths, waves, strict=True):
            clip = read_clip(path)
            soundfile.write(wave, clip.samples, clip.sample_rate_hz)
        for _ in range(options.repeats):
            took_s, used_s, blueprints = ours(waves, signals)
            took["signals"].append(took_s)
            used["ours"].append(used_s)
            took["full"].append(ours(waves, full)[0])
            if options.trace:
                found = theirs(options.trace_python, options.trace, waves)
                took["theirs"].append(sum(found[key] for key in ("quality_s", "pitch_s", "loudness_s")))
                used["theirs"].append(found["used_s"])
    print(f"{len(paths)} clips, {audio_s:.1f} s of audio, {options.repeats} repeats; medians (range)")
    print(f"ours, pitch + loudness + quality: {spread(took['signals'])} s")
    print(
        f"ours, with Whisper tiny: {spread(took['full'])} s, real-time factor {statistics.median(took['full']) / audio_s:.3f}"
    )
    figures = [
        Figure("pitch, loudness and DNSMOS", "s", took["signals"], took["theirs"], "TRACE's release", least_ratio=8.0),
        Figure("the same, processor", "s", used["ours"], used["theirs"], "TRACE's release"),
        Figure("the same, with Whisper tiny", "s", took["full"]),
        Figure("real-time factor, with Whisper tiny", "", [one / audio_s for one in took["full"]]),
    ]
    if options.trace:
        ratio = statistics.median(took["theirs"]) / statistics.median(took["signals"])
        shares = ", ".join(f"{key[:-2]} {found[key]:.2f}" for key in ("quality_s", "pitch_s", "loudness_s"))
        print(f"theirs, the same: {spread(took['theirs'])} s, {ratio:.1f} times ours (last: {shares})")
        ratio = statistics.median(used["theirs"]) / statistics.median(used["ours"])
        print(f"of the processor: ours {spread(used['ours'])} s, theirs {spread(used['theirs'])} s, {ratio:.1f} times ours")
        for name, keys, at in (("a MOS", QualityExtractor.keys, slice(0, 4)), ("LUFS", (INTEGRATED,), slice(4, 5))):
            mine = [[blueprint.value(key) for key in keys] for blueprint in blueprints]
            pairs = [pair for row, its in zip(mine, found["rows"], strict=True) for pair in zip(row, its[at], strict=True)]
            apart = max(abs(one - other) for one, other in pairs)
            print(f"largest difference of {name}: {apart:.4f}")
            figures.append(Figure(f"largest difference of {name} from TRACE's release", "", [apart], at_most=0.01))
    for path, blueprint in zip(paths, blueprints, strict=True):
        mean_hz, (harvest_hz, pyin_hz, apart) = blueprint.value(MEAN), other_trackers_hz(path)
        print(
            f"{path.name}: mean pitch {mean_hz:.1f} Hz; Harvest {harvest_hz:.1f} ({100 * (mean_hz / harvest_hz - 1):+.1f} %), "
            f"pYIN {pyin_hz:.1f} ({100 * (mean_hz / pyin_hz - 1):+.1f} %; {100 * apart:+.1f} % where both hear a voice)"
        )
        figures.append(Figure(f"{path.stem}: mean pitch beside WORLD's Harvest", "%", [100 * (mean_hz / harvest_hz - 1)]))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
