"""`IndependentJudge`: scores by the rubric's rules what it hears with models of its own, so that no teacher examines.

What is asked is the same, or its scores would not compare: the table of kinds and tones in `rubric.yaml`. Nothing by which
it hears is: Whisper base in place of tiny, cepstrum and YIN in place of SwiftF0's prosody, n-grams over sentences of its own
in place of a sentence model. It is no reward source and no teacher, and must not become one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paras2s.audio import asr
from paras2s.audio.asr import normalise_words, transcribe
from paras2s.audio.clip import Clip
from paras2s.errors import AudioError
from paras2s.reward.blueprint.schema import is_silent
from paras2s.reward.blueprint.truncation import tail_level_db
from paras2s.reward.blueprint.words import count_syllables
from paras2s.reward.judges.base import Exchange, Judge, Progress, Scored, with_words
from paras2s.reward.judges.independent.kinds import load_kinds
from paras2s.reward.judges.independent.tone import ToneDiscriminant, tone_features
from paras2s.reward.judges.rubric_rules import Finding, load_rubric
from paras2s.types import Unscored, Verdict
from paras2s.utils.cache import key_of
from paras2s.utils.latest import Latest
from paras2s.utils.process_pool import FEW_CLIPS, map_chunks

NAME = "independent"
# Probabilities of the most probable of 14 kinds: below the first the words make no answer, below the second it is a guess.
MUMBLED, UNDERSTOOD = 0.25, 0.35
# Clips that a worker hears together.
CHUNK_CLIPS = 32
# A frame is voiced where its samples resemble those of one pitch period before (correlation).
VOICED_FROM, FRAME_S, PERIODS_HZ = 0.5, 0.04, (60.0, 400.0)


@dataclass(frozen=True)
class MeasuredAnswer:
    """An answer as measured: its words, tone, voiced share, rate in syllables a second, and the level of its last 60 ms."""

    transcript: str
    tone: str
    voiced_share: float
    syllables_per_s: float
    tail_db: float


class IndependentJudge(Judge):
    """Scores answers from 1 to 5; it needs the style in which the question was asked."""

    name = NAME
    version = "2"
    scores_alone = True
    needs_question_audio = False

    def __init__(self) -> None:
        self._rubric, rules = load_rubric()
        self._kinds, self._tone = load_kinds(), ToneDiscriminant.load()
        # The systems of a bench say the same sentences.
        self._latest: Latest[MeasuredAnswer | str] = Latest(4096)
        # Stored with every verdict, so it names all that shapes one.
        self.prompt_hash = key_of([rules, *self.parts.values()])[:16]

    @property
    def fingerprint(self) -> str:
        """The version, and the hash of rules, recogniser, tone classifier and kinds."""
        return f"{self.version}/{self.prompt_hash}"

    @property
    def parts(self) -> dict[str, str]:
        """Versions of what it hears by: none may be the teacher's."""
        return {"recogniser": asr.version(asr.SECOND), "tone": self._tone.version, "kinds": self._kinds.version}

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Hear and score answers, in order; questions without words are transcribed."""
        started = time.perf_counter()
        measured = self.measure([exchange.answer for exchange in exchanges], on_progress)
        latency_s = (time.perf_counter() - started) / max(1, len(exchanges))
        return [self._verdict(*case, latency_s) for case in zip(with_words(exchanges, asr.SECOND), measured, strict=True)]

    def _verdict(self, exchange: Exchange, measured: MeasuredAnswer | str, latency_s: float) -> Verdict | Unscored:
        question = exchange.question
        if not question.style:
            return Unscored(self.name, "the style of the question is not known")
        transcript = None if isinstance(measured, str) else measured.transcript
        finding = self.find(question.text or "", question.style, measured)
        if isinstance(finding, Unscored):
            return replace(finding, transcript=transcript)
        return finding.verdict(self, transcript, latency_s)

    def measure(self, clips: Sequence[Clip], on_progress: Progress | None = None) -> list[MeasuredAnswer | str]:
        """Measure each clip, or say why not; equal clips are measured once, and not again while they are held."""
        keys = [clip.digest for clip in clips]
        by_length = dict(sorted(zip(keys, clips, strict=True), key=lambda item: len(item[1].samples)))
        measured = self._latest.of(
            by_length, lambda missing: map_chunks(_measure_chunk, missing, CHUNK_CLIPS, on_progress, FEW_CLIPS)
        )
        return [measured[key] for key in keys]

    def find(self, question: str, style: str, measured: MeasuredAnswer | str) -> Finding | Unscored:
        """Apply the rubric's rules to what was measured; `question` are the question's words."""
        if style not in self._rubric.content:
            return Unscored(self.name, f"the rubric has no rules for style {style!r}")
        if isinstance(measured, str):
            return Unscored(self.name, measured)
        words = normalise_words(measured.transcript).split()
        if flaw := self._rubric.flaw(question, words, measured.voiced_share, measured.syllables_per_s, measured.tail_db):
            return Finding(None, None, 1.0, flaw, {"kind": 1.0})
        kind, share = self._kinds.recognise(" ".join(self._rubric.without_topic(question, words)))
        if share < MUMBLED:
            return Finding(None, None, 1.0, f"the words do not make an answer (probability {share:.2f})", {"kind": 1.0})
        unclear = f"probability {share:.2f}" if share < UNDERSTOOD else self._rubric.breaks_off(words)
        if unclear:
            return self._rubric.unsure(style, kind, measured.tone, unclear)
        return self._rubric.finding(style, kind, measured.tone, self._rubric.takes_up(question, kind, words))


def _measure_chunk(clips: Sequence[Clip]) -> list[MeasuredAnswer | str]:
    """Measure each clip's words, tone and delivery, in a worker."""
    tone = ToneDiscriminant.load()
    measured: list[MeasuredAnswer | str] = []
    audible = [index for index, clip in enumerate(clips) if not is_silent(clip)]
    # Given silence, Whisper makes words up.
    words = dict(zip(audible, transcribe([clips[index] for index in audible], asr.SECOND), strict=True))
    for index, clip in enumerate(clips):
        try:
            features = tone_features(clip)
        except AudioError as error:
            measured.append(str(error))
            continue
        transcript = words[index].text if index in words else ""
        syllables = sum(map(count_syllables, normalise_words(transcript).split()))
        rate = syllables / clip.duration_s
        measured.append(
            MeasuredAnswer(transcript, tone.predict(features[None])[0], voiced_share(clip), rate, tail_level_db(clip))
        )
    return measured


def voiced_share(clip: Clip) -> float:
    """Return the share of 40 ms frames that repeat themselves at a pitch of 60 to 400 Hz; quiet frames are not voiced."""
    samples, rate_hz = clip.samples.astype(np.float64), clip.sample_rate_hz
    size = int(FRAME_S * rate_hz)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    if not len(frames):
        return 0.0
    frames = frames - frames.mean(1, keepdims=True)
    power = (frames**2).sum(1)
    spectrum = np.fft.rfft(frames, 2 * size, axis=1)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :size]
    shortest, longest = int(rate_hz / PERIODS_HZ[1]), int(rate_hz / PERIODS_HZ[0])
    lags = np.arange(shortest, min(longest, size - 1))
    # A frame of n samples holds n - lag products, and the power of as many.
    best = (correlation[:, lags] / (1 - lags / size)).max(1) / np.maximum(power, 1e-12)
    return float(np.mean((best > VOICED_FROM) & (power > 1e-3 * power.max())))
