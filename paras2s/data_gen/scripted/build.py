"""The data stage: scripts to filtered speech, splits, demonstrations, tone classifiers, and the hearing check.

Left out of the paper here: LLM generation and the neutrality, reasonability and relevance tests (the scripts are written
by hand under those rules), and the human check.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paras2s.audio.asr import VERSION as ASR_VERSION
from paras2s.audio.asr import transcribe, word_error_rate
from paras2s.audio.clip import read_clip
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.dataset import Dataset, save_dataset
from paras2s.data_gen.scripted.scripts import Contrast, assign_roles, load_calibration, load_contrasts, load_families
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES, SPEAKERS, USER_STYLES, Speaker
from paras2s.data_gen.tts.render import Rendered, Take, render
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Candidate, Demonstration, Query, Role
from paras2s.utils.io import read_json, write_json
from paras2s.utils.process_pool import map_chunks

HELD_OUT: tuple[Role, ...] = ("validation", "test")
Progress = Callable[[str, int, int], None]
# Adults of both sexes say everything but the child's lines.
_KIND_OF_STYLE = {"child": "child", "male": "male", "female": "female"}
# Voices on which the agent's tone classifier is fitted beside the agent's own, and those on which it is tested.
_TONE_VOICES = (Speaker("t1", 0.95, 0.99), Speaker("t2", 1.06, 1.01), Speaker("t3", 1.12, 1.0))
_TONE_HELD_OUT = (Speaker("t4", 0.98, 1.02), Speaker("t5", 1.03, 0.98), Speaker("t6", 1.09, 1.02))


@dataclass(frozen=True)
class _Plan:
    """A query to render: who says what, how, and for which stage."""

    contrast: Contrast
    role: Role
    style: str
    take: Take

    @property
    def id(self) -> str:
        """Names the contrast, the style and the speaker."""
        return f"{self.contrast.id}-{self.style}-{self.take.speaker.name}"


def _seed_of(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


def plan_queries(roles: dict[Role, list[Contrast]], config: DataConfig, seed: int) -> list[_Plan]:
    """Which voice says each contrast. Both styles of an emotion or of sarcasm come from one voice."""
    plans = []
    for role, contrasts in roles.items():
        voices = SPEAKERS[role if role in SPEAKERS else "train"]
        repeats = config.demonstration_speakers if role == "demonstration" else 1
        for contrast in contrasts:
            rng = np.random.default_rng([seed, _seed_of(contrast.id)])
            adult = ("male", "female")[int(rng.integers(2))]
            order = [int(i) for i in rng.permutation(len(voices["male"]))]
            for repeat in range(repeats):
                for style in contrast.styles:
                    speaker = voices[_KIND_OF_STYLE.get(style, adult)][order[repeat]]
                    take_seed = _seed_of(seed, contrast.id, style, speaker.name)
                    take = Take(contrast.text, speaker, USER_STYLES[style], take_seed)
                    plans.append(_Plan(contrast, role, style, take))
    return plans


def _calibrate_user(seed: int) -> tuple[list[Take], list[str], list[str]]:
    takes, labels, speakers = [], [], []
    for number, sentence in enumerate(load_calibration()):
        for style, shape in USER_STYLES.items():
            for split, offset in (("train", 0), ("test", 1)):
                kinds = (_KIND_OF_STYLE.get(style, ("male", "female")[(number + offset) % 2]),)
                voices = SPEAKERS[split][kinds[0]]
                speaker = voices[number % len(voices)]
                # Test voices read a third of the sentences: they are for the confusion matrix only.
                if split == "train" or number % 3 == 0:
                    takes.append(Take(sentence, speaker, shape, _seed_of(seed, "user", number, style, split)))
                    labels.append(style)
                    speakers.append(speaker.name)
    return takes, labels, speakers


def _calibrate_agent(seed: int) -> tuple[list[Take], list[str], list[str]]:
    takes, labels, speakers = [], [], []
    for number, sentence in enumerate(load_calibration()):
        for tone, shape in AGENT_TONES.items():
            held_out = _TONE_HELD_OUT[number % len(_TONE_HELD_OUT)]
            for speaker in (AGENT, _TONE_VOICES[number % len(_TONE_VOICES)], *([held_out] if number % 2 else [])):
                takes.append(Take(sentence, speaker, shape, _seed_of(seed, "agent", number, tone, speaker.name), True))
                labels.append(tone)
                speakers.append(speaker.name)
    return takes, labels, speakers


def _fit_tone(
    rendered: Sequence[Rendered], labels: Sequence[str], speakers: Sequence[str], held_out: set[str]
) -> ToneClassifier:
    features = np.stack([one.percept.utterance for one in rendered])
    return ToneClassifier.fit(features, labels, speakers, sorted(held_out))


def judge_candidate(
    plan: _Plan, heard: str, percept_row: np.ndarray, classifier: ToneClassifier, config: DataConfig
) -> Candidate:
    """Apply the paper's two speech filters to one clip; the reason of a rejection stays in the ledger."""
    error_rate = word_error_rate(plan.contrast.text, heard)
    scores = dict(zip(classifier.labels, classifier.probabilities(percept_row[None])[0], strict=True))
    pair = [float(scores[style]) for style in plan.contrast.styles]
    probability = float(scores[plan.style]) / max(sum(pair), 1e-12)
    rejected_by, rejected = None, None
    if error_rate > config.max_word_error_rate:
        rejected_by = "words"
        rejected = f"word error rate {error_rate:.2f} above {config.max_word_error_rate:.2f} (heard: {heard!r})"
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
        transcript=heard,
        word_error_rate=error_rate,
        style_probability=probability,
        rejected_by=rejected_by,
        rejected=rejected,
    )


def style_audibility(
    rows: Sequence[tuple[Candidate, np.ndarray]], styles_of: Mapping[str, tuple[str, ...]]
) -> dict[str, object]:
    """How often a plain classifier on prosody tells a contrast's two styles apart on held-out scripts and speakers.

    Fitted on the kept labelled training clips, asked about the kept test clips; chance is 0.5.
    """
    train = [(c, u) for c, u in rows if c.role in ("demonstration", "preference") and c.rejected is None]
    test = [(c, u) for c, u in rows if c.role == "test" and c.rejected is None]
    plain = ToneClassifier.fit(np.stack([u for _, u in train]), [c.style for c, _ in train], [c.speaker for c, _ in train], ())
    right: dict[str, list[bool]] = {}
    for candidate, utterance in test:
        scores = dict(zip(plain.labels, plain.probabilities(utterance[None])[0], strict=True))
        best = max(styles_of[candidate.contrast_id], key=lambda style: scores.get(style, 0.0))
        right.setdefault(candidate.category, []).append(best == candidate.style)
    every = [hit for hits in right.values() for hit in hits]
    return {
        "accuracy": float(np.mean(every)),
        "by_category": {category: float(np.mean(hits)) for category, hits in sorted(right.items())},
        "clips": len(every),
        "chance": 0.5,
    }


def speak_and_fit(
    takes: Sequence[Take], cache: Path, progress: Progress
) -> tuple[list[Rendered], tuple[ToneClassifier, ToneClassifier]]:
    """Takes rendered, together with the sentences on which the classifiers of users' styles and agent's tones are fitted."""
    user_takes, user_labels, user_speakers = _calibrate_user(0)
    agent_takes, agent_labels, agent_speakers = _calibrate_agent(0)
    every = [*takes, *user_takes, *agent_takes]
    rendered = render(every, cache, lambda done, total: progress("speech", done, total))
    first, second = len(takes), len(takes) + len(user_takes)
    test_voices = {speaker.name for voices in SPEAKERS["test"].values() for speaker in voices}
    user = _fit_tone(rendered[first:second], user_labels, user_speakers, test_voices)
    agent = _fit_tone(rendered[second:], agent_labels, agent_speakers, {speaker.name for speaker in _TONE_HELD_OUT})
    return rendered[:first], (user, agent)


def build_dataset(config: DataConfig, seed: int, folder: Path, cache: Path, progress: Progress) -> Dataset:
    """Make the whole dataset in `folder`; a second call with the same config finds everything in the cache.

    Raises:
        ConfigError: too few scripts. DataError: Piper failed. StorageError: the disk refused.
    """
    roles = assign_roles(load_contrasts(), config, seed)
    plans = plan_queries(roles, config, seed)
    families = load_families()
    answer_takes = [
        Take(text, AGENT, AGENT_TONES[family.tone], _seed_of("answer", text, number), True)
        for family in families.values()
        for text in family.answers
        for number in range(config.answer_takes)
    ]
    spoken = [plan.take for plan in plans] + answer_takes
    rendered, (user_tone, agent_tone) = speak_and_fit(spoken, cache, progress)
    queries, answers = rendered[: len(plans)], rendered[len(plans) :]
    heard = _hear(queries, cache, progress)
    candidates = [
        judge_candidate(plan, words, one.percept.utterance, user_tone, config)
        for plan, one, words in zip(plans, queries, heard, strict=True)
    ]
    rows = [(candidate, one.percept.utterance) for candidate, one in zip(candidates, queries, strict=True)]
    contrasts = [contrast for group in roles.values() for contrast in group]
    kept = _whole_held_out_contrasts(candidates)
    whole = [(c, one) for c, one in zip(kept, queries, strict=True) if c.rejected is None]
    rows_of_queries = [_as_query(c, one) for c, one in whole]
    # The labelled preference queries are prompts for RL too, like any other: without their labels.
    rows_of_queries += [_as_query(replace(c, role="rl"), one) for c, one in whole if c.role == "preference"]
    clips = {_query_clip(c): one for c, one in whole}
    clips |= {_query_clip(replace(c, role="rl")): one for c, one in whole if c.role == "preference"}
    clips |= _best_takes(answer_takes, answers, agent_tone, cache, progress)
    return save_dataset(
        folder,
        queries=rows_of_queries,
        demonstrations=_demonstrate(kept, config),
        candidates=kept,
        clips=clips,
        user_tone=user_tone,
        agent_tone=agent_tone,
        hearing=style_audibility(rows, {contrast.id: contrast.styles for contrast in contrasts}),
    )


def _hear(queries: Sequence[Rendered], cache: Path, progress: Progress) -> list[str]:
    """Transcripts, by as many recognisers as there are cores: Whisper tiny gains nothing from a second thread."""
    wavs = [one.wav for one in queries]
    return map_chunks(functools.partial(_hear_chunk, cache), wavs, 40, lambda done, total: progress("words", done, total))


def _hear_chunk(cache: Path, wavs: Sequence[bytes]) -> list[str]:
    # A clip's transcript may hang on its neighbours in the window, so what is kept is the chunk, not the clip.
    shaped = hashlib.sha256(ASR_VERSION.encode())
    for wav in wavs:
        shaped.update(hashlib.sha256(wav).digest())
    kept = cache / "heard" / f"{shaped.hexdigest()[:32]}.json"
    if kept.is_file():
        return [str(text) for text in read_json(kept)]
    heard = [transcript.text for transcript in transcribe([read_clip(wav) for wav in wavs])]
    write_json(kept, heard)
    return heard


def _whole_held_out_contrasts(candidates: Sequence[Candidate]) -> list[Candidate]:
    """A held-out contrast is only worth asking whole: where one style was rejected, so is the other, with that reason."""
    broken = {c.contrast_id for c in candidates if c.role in HELD_OUT and c.rejected is not None}
    return [
        replace(c, rejected_by="contrast", rejected="the contrast's other style was rejected")
        if c.role in HELD_OUT and c.rejected is None and c.contrast_id in broken
        else c
        for c in candidates
    ]


def _best_takes(
    takes: Sequence[Take], rendered: Sequence[Rendered], tone: ToneClassifier, cache: Path, progress: Progress
) -> dict[str, Rendered]:
    """Of each answer's takes the one with the fewest word errors, then the clearest tone (ParaS2S, section 4.1)."""
    heard = _hear(rendered, cache, progress)
    tone_of = {text: family.tone for family in load_families().values() for text in family.answers}
    best: dict[str, tuple[float, Rendered]] = {}
    for take, one, words in zip(takes, rendered, heard, strict=True):
        scores = dict(zip(tone.labels, tone.probabilities(one.percept.utterance[None])[0], strict=True))
        cost = word_error_rate(take.text, words) - 0.5 * float(scores[tone_of[take.text]])
        if take.text not in best or cost < best[take.text][0]:
            best[take.text] = (cost, one)
    return {_answer_clip(text): one for text, (_, one) in best.items()}


def _answer_clip(text: str) -> str:
    return f"answers/{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _query_id(candidate: Candidate) -> str:
    """RL prompts lose their labels, and an id or a file name must not tell them either."""
    return f"rl-{_seed_of(candidate.id):08x}" if candidate.role == "rl" else candidate.id


def prompt_categories(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Category of each RL prompt by its id: from the ledger, which people keep, since a prompt has no label."""
    prompts = (replace(c, role="rl") for c in candidates if c.role in ("rl", "preference"))
    return {_query_id(one): one.category for one in prompts}


def _query_clip(candidate: Candidate) -> str:
    return f"queries/{_query_id(candidate)}"


def _as_query(candidate: Candidate, one: Rendered) -> Query:
    """Prompts for RL lose their labels here, once and for all."""
    labelled = candidate.role != "rl"
    return Query(
        id=_query_id(candidate),
        contrast_id=candidate.contrast_id if labelled else "",
        category=candidate.category if labelled else None,
        topic=candidate.topic if labelled else None,
        role=candidate.role,
        speaker=candidate.speaker if labelled else "",
        clip=f"{_query_clip(candidate)}.wav",
        duration_s=one.clip.duration_s,
        transcript=candidate.transcript or "",
        text=candidate.text if labelled else None,
        style=candidate.style if labelled else None,
    )


def _demonstrate(candidates: Sequence[Candidate], config: DataConfig) -> list[Demonstration]:
    """The first `answers_per_query` answers of its style's family for every kept demonstration query.

    The same ones for every query of a style: which of them a query gets must not be one more thing to memorise.
    """
    families = load_families()
    found = []
    for candidate in candidates:
        if candidate.role != "demonstration" or candidate.rejected is not None:
            continue
        family = families[candidate.style]
        for text in family.answers[: config.answers_per_query]:
            found.append(Demonstration(candidate.id, text, family.tone, f"{_answer_clip(text)}.wav"))
    return found
