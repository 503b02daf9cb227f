"""How far the blueprint is from the extraction of TRACE's authors, field by field: median, p90 and largest difference.

Both measure the same files: the given clips, each also in pieces, at other sample rates and as stereo. What their extraction
needs weights for is not compared, and their two rates are worked out on the words that we recognised. Where the two differ
by design, a further row measures our data in their way. Their code is not ours to ship: see blueprint.py.

    python benchmarks/blueprint_fields.py CLIP... --trace CHECKOUT --trace-python PYTHON
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyloudnorm
import soundfile
from blueprint import THEIR_EXTRACTION, theirs
from figures import Figure, add_json_option, write_figures

from paras2s.audio.asr import Transcript, transcribe
from paras2s.audio.clip import Clip, read_clip
from paras2s.audio.pitch import track_pitch
from paras2s.reward.blueprint import loudness
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.schema import ACCENT, CONTOUR_POINTS, EMOTION, FIELDS, RESPONSE
from paras2s.types import Blueprint, Measured

PIECES = 3
RATES_HZ = (8_000, 24_000, 48_000)
# Of the right channel under the left one.
RIGHT_GAIN_DB = -6.0
NOT_COMPARED = {
    RESPONSE: "their transcript is Whisper large-v3's, whose weights are not on the machine; ours here is Whisper tiny's",
    EMOTION: "the weights of emotion2vec+ large are not on the machine; ours runs the same model",
    ACCENT: "the weights of CommonAccent's ECAPA are not on the machine; ours runs the same model",
}
# Their settings of aubio's YIN. It compares half a window with itself one period later, so a frame lies where the middle of
# these is, well before the window's end.
THEIR_RATE_HZ, THEIR_WINDOW, THEIR_HOP = 24_000, 2048, 512
THEIR_PITCH_HZ, THEIR_CONFIDENCE = (80.0, 300.0), 0.8
KEYS = {one.trace_name: key for key, one in FIELDS.items()}
# Each part of their extraction alone, since one may stop where another does not; and the frames that their pitch is made of.
PARTS = (
    THEIR_EXTRACTION
    + """
import numpy
frames, Tracker = [], extraction.aubio.pitch
class Recorded:
    def __init__(self, *words):
        self.tracker = Tracker(*words)
        frames.clear()
    def __getattr__(self, name):
        return getattr(self.tracker, name)
    def __call__(self, samples):
        found = self.tracker(samples)
        frames.append([float(found[0]), float(self.tracker.get_confidence())])
        return found
extraction.aubio = types.SimpleNamespace(pitch=Recorded)
def quality(path, words):
    found = scorer(path, sampling_rate=SAMPLING_RATE)
    return [found[key] for key in ("P_SIG", "P_BAK", "P_OVRL", "P808_MOS")]
def pitch(path, words):
    return Extraction._pitch_stats_aubio(None, path)
def loudness(path, words):
    return Extraction._loudness_stats_lufs(None, path)
def rates(path, words):
    return [Extraction._calculate_speech_rate(None, words, path), Extraction._calculate_articulation_rate(None, words)]
parts = {
    quality: ("DNSMOS_Personalized_Signal_Quality", "DNSMOS_Personalized_Background_Quality",
              "DNSMOS_Personalized_Overall_Quality", "P808_Overall_Quality"),
    pitch: ("Mean_Pitch_Hz", "Std_Dev_Pitch_Hz", "Full_Pitch_Contour_Hz"),
    loudness: ("Integrated_Loudness_LUFS", "Std_Dev_Loudness_LUFS", "Full_Loudness_Contour_LUFS"),
    rates: ("Speech_Rate_WPM", "Articulation_Rate_WPM"),
}
rows = []
for path, words in zip(sys.argv[2:], json.load(sys.stdin)):
    values, failed = {}, {}
    for part, names in parts.items():
        try:
            values |= {name: [float(one) for one in numpy.ravel(found)] for name, found in zip(names, part(path, words))}
        except Exception as error:
            failed |= {name: type(error).__name__ for name in names}
    rows.append({"values": values, "failed": failed, "frames": list(frames)})
print(json.dumps({"rows": rows}))
"""
)


@dataclass
class Differences:
    """Absolute differences by row of the table, the clip with the largest, and why some are left out."""

    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    largest: dict[str, tuple[float, str]] = field(default_factory=dict)
    left_out: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, row: str, clip: str, ours: Any, other: Any) -> None:
        """Adds a clip's difference, of a contour that of each point."""
        apart = np.abs(np.ravel(ours) - np.ravel(other))
        if not np.isfinite(apart).all():
            self.left_out[row]["theirs is no number"] += 1
            return
        self.values[row] += [float(f"{one:.3g}") for one in apart]
        if row not in self.largest or apart.max() > self.largest[row][0]:
            self.largest[row] = float(apart.max()), clip


# -- clips --------------------------------------------------------------------------------------------------------------


def variants(clip: Clip) -> Iterator[tuple[str, Clip]]:
    """A clip as it is, in pieces, at other rates and as stereo, by name."""
    yield "whole", clip
    for number, piece in enumerate(np.array_split(clip.samples, PIECES), 1):
        yield f"piece {number}", Clip(piece, clip.sample_rate_hz)
    for rate_hz in RATES_HZ:
        yield f"{rate_hz // 1000} kHz", clip.at(rate_hz)
    right = clip.samples * np.float32(10 ** (RIGHT_GAIN_DB / 20))
    yield "stereo", Clip(clip.samples, clip.sample_rate_hz, np.stack([clip.samples, right], axis=1))


def write_variants(paths: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Writes every variant of every clip as WAV; returns them by name."""
    written: dict[str, Path] = {}
    for path in paths:
        for name, clip in variants(read_clip(path)):
            written[f"{path.stem}, {name}"] = wave = folder / f"{len(written)}.wav"
            soundfile.write(wave, clip.samples if clip.channels is None else clip.channels, clip.sample_rate_hz)
    return written


# -- our data in their way ----------------------------------------------------------------------------------------------


def their_contour(values: np.ndarray) -> np.ndarray:
    """20 points of a list of frames."""
    return np.interp(np.linspace(0, 1, CONTOUR_POINTS), np.linspace(0, 1, len(values)), values)


def add_shared_pitch(found: Differences, name: str, clip: Clip, frames: np.ndarray) -> None:
    """Compares pitch over the frames [n, 2] (Hz, confidence) that their rules keep and in which ours hears a voice, too."""
    f0_hz, confidence = frames.T
    kept = (confidence >= THEIR_CONFIDENCE) & (f0_hz >= THEIR_PITCH_HZ[0]) & (f0_hz <= THEIR_PITCH_HZ[1])
    begins = np.flatnonzero(kept) * THEIR_HOP + THEIR_HOP - THEIR_WINDOW
    middles = begins + (THEIR_WINDOW / 2 + THEIR_RATE_HZ / f0_hz[kept]) / 2
    ours_hz = track_pitch(clip).at(np.maximum(middles / THEIR_RATE_HZ, 0.0))
    both = ours_hz > 0
    ours_hz, their_hz = ours_hz[both], f0_hz[kept][both]
    if not len(ours_hz):
        found.left_out["Mean_Pitch_Hz, where both hear a voice"]["no such frame"] += 1
        return
    found.add("Mean_Pitch_Hz, where both hear a voice", name, ours_hz.mean(), their_hz.mean())
    found.add("Std_Dev_Pitch_Hz, where both hear a voice", name, ours_hz.std(), their_hz.std())
    found.add("Full_Pitch_Contour_Hz, the same, 20 of these frames", name, their_contour(ours_hz), their_contour(their_hz))


def add_block_contour(found: Differences, name: str, clip: Clip, their_lufs: Sequence[float]) -> None:
    """Compares the contour made of our blocks as they make theirs."""
    meter = pyloudnorm.Meter(clip.sample_rate_hz)
    meter.integrated_loudness((clip.samples if clip.channels is None else clip.channels).astype(np.float64))
    blocks = np.asarray(meter.blockwise_loudness)
    gated = blocks[blocks > loudness._gate(blocks)]
    found.add("Full_Loudness_Contour_LUFS, 20 of our blocks", name, their_contour(gated), their_lufs)


# -- the comparison -----------------------------------------------------------------------------------------------------


def timed_words(transcript: Transcript) -> list[tuple[str, float, float]]:
    """Words as their rates take them."""
    return [(word.text, word.start_s, word.end_s) for word in transcript.words]


def compare(found: Differences, name: str, clip: Clip, blueprint: Blueprint, row: dict[str, Any]) -> None:
    """Adds one clip's differences."""
    for trace_name, reason in row["failed"].items():
        found.left_out[trace_name][f"theirs stops: {reason}"] += 1
    for trace_name, other in row["values"].items():
        ours = blueprint.fields[KEYS[trace_name]]
        if isinstance(ours, Measured):
            found.add(trace_name, name, ours.value, other)
        else:
            found.left_out[trace_name][f"ours: {ours.reason}"] += 1
    if "Mean_Pitch_Hz" in row["values"]:
        add_shared_pitch(found, name, clip, np.asarray(row["frames"]).reshape(-1, 2))
    if "Full_Loudness_Contour_LUFS" in row["values"]:
        add_block_contour(found, name, clip, row["values"]["Full_Loudness_Contour_LUFS"])


def figures_of(found: Differences) -> list[Figure]:
    """A figure for each row, a field's control behind the field."""
    order = list(KEYS)
    rows = sorted({*found.values, *found.left_out}, key=lambda row: (order.index(row.partition(",")[0]), row))
    units = {row: FIELDS[KEYS[row.partition(",")[0]]].unit or "" for row in rows}
    return [Figure(row, "MOS" if units[row].startswith("MOS") else units[row], found.values[row]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, nargs="+")
    parser.add_argument("--trace", type=Path, required=True, help="a checkout of the authors' release")
    parser.add_argument("--trace-python", required=True, help="a Python with what it needs")
    add_json_option(parser)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found = Differences()
    with tempfile.TemporaryDirectory() as folder:
        waves = write_variants(options.clips, Path(folder))
        clips = [read_clip(wave) for wave in waves.values()]
        words = [timed_words(one) for one in transcribe(clips, timed=True)]
        rows = theirs(options.trace_python, options.trace, list(waves.values()), PARTS, words)["rows"]
    blueprints = build_blueprints(clips, make_extractors(("quality", "pitch", "loudness", "words")))
    for name, clip, blueprint, row in zip(waves, clips, blueprints, rows, strict=True):
        compare(found, name, clip, blueprint, row)
    figures = figures_of(found)
    for one in figures:
        median, p90 = (float(np.quantile(one.ours, share)) if one.ours else math.nan for share in (0.5, 0.9))
        most, clip_name = found.largest.get(one.name, (math.nan, ""))
        why = "; ".join(f"{count} left out, {reason}" for reason, count in found.left_out[one.name].items())
        print(f"{one.name}: {median:.4f}, p90 {p90:.4f}, max {most:.4f} {one.unit} ({clip_name}), n {len(one.ours)} {why}")
    write_figures(
        options.json, figures, clips=len(clips), largest={row: clip for row, (_, clip) in found.largest.items()},
        left_out={row: dict(reasons) for row, reasons in found.left_out.items()}, not_compared=NOT_COMPARED,
    )  # fmt: skip


if __name__ == "__main__":
    main()
