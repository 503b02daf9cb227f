"""The demo's dataset: scripts to filtered speech, splits, demonstrations, tone classifiers and the style check.

Of the paper's pipeline it leaves out the LLM's part (generation, and the tests of neutrality, reasonability and relevance: the
scripts are written by hand under those rules) and the human check.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.audio.asr import VERSION as ASR_VERSION
from paras2s.audio.asr import transcribe, word_error_rate
from paras2s.audio.clip import read_clip
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.candidates import make_query, prompt_name, reject_broken_contrasts
from paras2s.data_gen.dataset import Dataset, save_dataset
from paras2s.data_gen.scripted.demonstrations import (
    LABELLED,
    PLAIN_TONE,
    answers_about,
    best_demonstrations,
    demonstrated_texts,
    labelled,
)
from paras2s.data_gen.scripted.scripts import Contrast, assign_roles, load_cascade, load_contrasts, load_families
from paras2s.data_gen.scripted.tones import KIND_OF_STYLE, load_tones
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.data_gen.tts.render import Rendered, Take, render
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Candidate, Demonstration, Role
from paras2s.utils.cache import JsonCache, key_of
from paras2s.utils.process_pool import map_chunks
from paras2s.utils.seeds import seed_of

Progress = Callable[[str, int, int], None]
# File in the cache folder: the recognised text of every clip.
TRANSCRIPTS = "transcripts.sqlite"
CHUNK_CLIPS = 64


@dataclass(frozen=True)
class _Plan:
    """A query to render: contrast, role, style and take."""

    contrast: Contrast
    role: Role
    style: str
    take: Take

    @property
    def id(self) -> str:
        """Names the contrast, the style and the speaker."""
        return f"{self.contrast.id}-{self.style}-{self.take.speaker.name}"


def plan_queries(roles: dict[Role, list[Contrast]], config: DataConfig, seed: int) -> list[_Plan]:
    """Assign voices to contrasts. Both styles of an emotion or of sarcasm come from one voice."""
    plans = []
    speakers: dict[Role, int] = {"demonstration": config.demonstration_speakers, "rl": config.rl_speakers}
    for role, contrasts in roles.items():
        voices = SPEAKERS[role if role in SPEAKERS else "train"]
        for contrast in contrasts:
            rng = np.random.default_rng([seed, seed_of(contrast.id)])
            adult = ("male", "female")[int(rng.integers(2))]
            order = [int(i) for i in rng.permutation(len(voices["male"]))]
            for repeat in range(speakers.get(role, 1)):
                for style in contrast.styles:
                    speaker = voices[KIND_OF_STYLE.get(style, adult)][order[repeat]]
                    take_seed = seed_of(seed, contrast.id, style, speaker.name)
                    take = Take(contrast.text, speaker, USER_STYLES[style], take_seed)
                    plans.append(_Plan(contrast, role, style, take))
    return plans


def filter_candidate(
    plan: _Plan, transcript: str, utterance: np.ndarray, classifier: ToneClassifier, config: DataConfig
) -> Candidate:
    """Apply the paper's two speech filters to a clip; the reason of a rejection stays in the ledger."""
    error_rate = word_error_rate(plan.contrast.text, transcript)
    scores = dict(zip(classifier.labels, classifier.probabilities(utterance[None])[0], strict=True))
    pair = [float(scores[style]) for style in plan.contrast.styles]
    probability = float(scores[plan.style]) / max(sum(pair), 1e-12)
    rejected_by, rejected = None, None
    if error_rate > config.max_word_error_rate:
        rejected_by = "words"
        rejected = f"word error rate {error_rate:.2f} above {config.max_word_error_rate:.2f} (transcript: {transcript!r})"
    elif probability < config.min_style_probability:
        rejected_by = "style"
        rejected = f"the tone classifier gives {plan.style} only {probability:.2f} against the other style"
    return Candidate(
        id=plan.id,
        contrast_id=plan.contrast.id,
        category=plan.contrast.category,
        topic=plan.contrast.topic,
        role=plan.role,
        style=plan.style,
        speaker=plan.take.speaker.name,
        text=plan.contrast.text,
        transcript=transcript,
        word_error_rate=error_rate,
        style_probability=probability,
        rejected_by=rejected_by,
        rejected=rejected,
    )


def style_audibility(
    rows: Sequence[tuple[Candidate, np.ndarray]], styles_of: Mapping[str, tuple[str, ...]]
) -> dict[str, object]:
    """Compute how often a prosody classifier tells a contrast's styles apart on held-out scripts and speakers (chance: 0.5)."""
    train = [(c, u) for c, u in rows if c.role in ("demonstration", "preference") and c.rejected is None]
    test = [(c, u) for c, u in rows if c.role == "test" and c.rejected is None]
    plain = ToneClassifier.fit(np.stack([u for _, u in train]), [c.style for c, _ in train], [c.speaker for c, _ in train], ())
    hits_of: dict[str, list[bool]] = {}
    for candidate, utterance in test:
        scores = dict(zip(plain.labels, plain.probabilities(utterance[None])[0], strict=True))
        best = max(styles_of[candidate.contrast_id], key=lambda style: scores.get(style, 0.0))
        hits_of.setdefault(candidate.category, []).append(best == candidate.style)
    all_hits = [hit for hits in hits_of.values() for hit in hits]
    return {
        "accuracy": float(np.mean(all_hits)),
        "by_category": {category: float(np.mean(hits)) for category, hits in sorted(hits_of.items())},
        "clips": len(all_hits),
        "chance": 0.5,
    }


def answer_take(text: str, tone: str, number: int) -> Take:
    """Render one take of an answer in the agent's voice, as the policy is to speak: through the codec."""
    return Take(text, AGENT, AGENT_TONES[tone], seed_of("answer", text, number), True)


def build_dataset(
    config: DataConfig, seed: int, folder: Path, cache: Path, progress: Progress, beside: Sequence[Take] = ()
) -> Dataset:
    """Build the dataset in `folder`; a second call with the same config takes every clip from the cache.

    `beside` are takes that later stages want: spoken now, a sentence is read and analysed once for all of its takes.

    Raises:
        ConfigError: too few scripts. DataError: Piper failed. StorageError: the disk refused.
    """
    roles = assign_roles(load_contrasts(), config, seed)
    plans = plan_queries(roles, config, seed)
    styles = {style for contrasts in roles.values() for contrast in contrasts for style in contrast.styles}
    tone_of = {text: family.tone for style, family in load_families().items() if style in styles for text in family.answers}
    if config.take_up_topics:
        shown = [(contrast, style) for role in LABELLED for contrast in roles[role] for style in contrast.styles]
        tone_of = {
            text: load_families()[style].tone
            for contrast, style in shown
            for text in answers_about(contrast, style)[: config.answers_per_query]
        } | tone_of
    if config.fitting_share < 1:
        plain = [text for category in config.categories for text in load_cascade()[category]]
        tone_of = dict.fromkeys(plain, PLAIN_TONE) | tone_of
    answer_takes = [answer_take(text, tone, number) for text, tone in tone_of.items() for number in range(config.answer_takes)]
    spoken = [plan.take for plan in plans] + answer_takes
    rendered = render([*spoken, *beside], cache, lambda done, total: progress("speech", done, total))
    user_tone, agent_tone = load_tones()
    queries, answers = rendered[: len(plans)], rendered[len(plans) : len(spoken)]
    transcripts = _transcribe(queries, cache, progress)
    filtered = [
        filter_candidate(plan, transcript, clip.features.utterance, user_tone, config)
        for plan, clip, transcript in zip(plans, queries, transcripts, strict=True)
    ]
    rows = [(candidate, clip.features.utterance) for candidate, clip in zip(filtered, queries, strict=True)]
    contrasts = {contrast.id: contrast for group in roles.values() for contrast in group}
    styles_of = {contrast.id: contrast.styles for contrast in contrasts.values()}
    candidates = reject_broken_contrasts(filtered)
    accepted = [(c, clip) for c, clip in zip(candidates, queries, strict=True) if c.rejected is None]
    clips = {f"queries/{_query_id(c)}": clip for c, clip in accepted}
    spoken_answers = _best_takes(answer_takes, answers, agent_tone, tone_of, cache, progress)
    demonstrations = [
        Demonstration(candidate.id, text, tone_of[text], f"{_answer_clip(text)}.wav")
        for candidate in labelled(candidates)
        for text in demonstrated_texts(candidate, contrasts[candidate.contrast_id], config, seed)
    ]
    if config.keep_answers == "best":
        said = {f"{name}.wav": answer.clip for name, answer in spoken_answers.items()}
        demonstrations = best_demonstrations(demonstrations, candidates, said, agent_tone)
    return save_dataset(
        folder,
        queries=[make_query(c, c.role, _query_id(c), clip.clip.duration_s) for c, clip in accepted],
        demonstrations=demonstrations,
        candidates=candidates,
        clips=clips | spoken_answers,
        user_tone=user_tone,
        agent_tone=agent_tone,
        audibility=style_audibility(rows, styles_of),
    )


def _transcribe(clips: Sequence[Rendered], cache: Path, progress: Progress) -> list[str]:
    """Return transcripts; those of earlier runs, of any preset and seed, are read from the cache."""
    keys = [key_of(["transcript", ASR_VERSION, hashlib.sha256(clip.wav).hexdigest()]) for clip in clips]
    stored = JsonCache(cache / TRANSCRIPTS)
    known = stored.get_many(keys)
    missing = {key: clip.wav for key, clip in zip(keys, clips, strict=True) if key not in known}
    # Clips of one length share a batch of the recogniser.
    by_length = sorted(missing.items(), key=lambda item: len(item[1]))
    work = functools.partial(_transcribe_chunk, cache / TRANSCRIPTS)
    texts = map_chunks(work, by_length, CHUNK_CLIPS, lambda done, total: progress("words", done, total))
    known |= dict(zip([key for key, _ in by_length], texts, strict=True))
    stored.close()
    return [str(known[key]) for key in keys]


def _transcribe_chunk(cache: Path, wavs: Sequence[tuple[str, bytes]]) -> list[str]:
    texts = [transcript.text for transcript in transcribe([read_clip(wav) for _, wav in wavs])]
    stored = JsonCache(cache)
    stored.put_many(dict(zip([key for key, _ in wavs], texts, strict=True)))
    stored.close()
    return texts


def _best_takes(
    takes: Sequence[Take],
    rendered: Sequence[Rendered],
    tone: ToneClassifier,
    tone_of: Mapping[str, str],
    cache: Path,
    progress: Progress,
) -> dict[str, Rendered]:
    """Pick of each answer's takes the one with the fewest word errors, then the clearest tone (ParaS2S, section 4.1)."""
    transcripts = _transcribe(rendered, cache, progress)
    best: dict[str, tuple[float, Rendered]] = {}
    for take, clip, transcript in zip(takes, rendered, transcripts, strict=True):
        scores = dict(zip(tone.labels, tone.probabilities(clip.features.utterance[None])[0], strict=True))
        cost = word_error_rate(take.text, transcript) - 0.5 * float(scores[tone_of[take.text]])
        if take.text not in best or cost < best[take.text][0]:
            best[take.text] = (cost, clip)
    return {_answer_clip(text): clip for text, (_, clip) in best.items()}


def _answer_clip(text: str) -> str:
    return f"answers/{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _query_id(candidate: Candidate) -> str:
    # RL prompts lose their labels, so an id or a file name must not reveal them either.
    return prompt_name(candidate.id, 1) if candidate.role == "rl" else candidate.id
