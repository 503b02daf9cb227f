"""The tone classifiers of the shipped scripts: of users' styles and of the agent's tones, and the independent judge's.

They are fitted on calibration sentences alone, so they are the same for every preset and seed, and ship fitted. To
change the voices, the styles or the features, fit them again: python tools/fit_tones.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from paras2s.audio.synthesis import Speaker
from paras2s.data_gen.scripted.scripts import load_calibration
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.data_gen.tts.render import Rendered, Take, render
from paras2s.reward.judges.independent.kinds import load_sentences
from paras2s.reward.judges.independent.tone import ToneDiscriminant, tone_features
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.utils.cache import key_of
from paras2s.utils.seeds import seed_of

# Adults of both sexes say everything but the child's lines.
KIND_OF_STYLE = {"child": "child", "male": "male", "female": "female"}
# Voices on which the agent's tone classifier is fitted beside the agent's own, and those on which it is tested.
_TONE_VOICES = (Speaker("t1", 0.95, 0.99), Speaker("t2", 1.06, 1.01), Speaker("t3", 1.12, 1.0))
_TONE_HELD_OUT = (Speaker("t4", 0.98, 1.02), Speaker("t5", 1.03, 0.98), Speaker("t6", 1.09, 1.02))
# Voices on which the independent judge's tones are fitted: no classifier of the teacher's has heard them, nor it the agent.
_INDEPENDENT_VOICES = (
    Speaker("i1", 0.92, 0.99), Speaker("i2", 1.09, 1.015), Speaker("i3", 1.15, 0.985), Speaker("i4", 0.96, 1.01),
)  # fmt: skip

FOLDER = Path(str(resources.files("paras2s.data_gen.scripted").joinpath("fitted_tones")))
USER_FILE, AGENT_FILE, VERSION_FILE = FOLDER / "user.json", FOLDER / "agent.json", FOLDER / "version.json"


def load_tones() -> tuple[ToneClassifier, ToneClassifier]:
    """Load the shipped classifiers of users' styles and of the agent's tones."""
    return ToneClassifier.load(USER_FILE), ToneClassifier.load(AGENT_FILE)


def tones_version() -> str:
    """Hash all that shapes the classifiers; `version.json` holds the hash of the shipped ones."""
    return key_of([take.key for take in (*_calibrate_user()[0], *_calibrate_agent()[0])])


def fit_tones(cache: Path, on_progress: Callable[[int, int], None]) -> tuple[ToneClassifier, ToneClassifier]:
    """Speak the calibration sentences, and fit both classifiers."""
    user_takes, user_labels, user_speakers = _calibrate_user()
    agent_takes, agent_labels, agent_speakers = _calibrate_agent()
    rendered = render([*user_takes, *agent_takes], cache, on_progress)
    test_voices = {speaker.name for voices in SPEAKERS["test"].values() for speaker in voices}
    user = _fit_tone(rendered[: len(user_takes)], user_labels, user_speakers, test_voices)
    agent = _fit_tone(rendered[len(user_takes) :], agent_labels, agent_speakers, {voice.name for voice in _TONE_HELD_OUT})
    return user, agent


def fit_independent_tone(cache: Path, on_progress: Callable[[int, int], None]) -> ToneDiscriminant:
    """Speak sentences of the independent judge in its own voices, and fit its tones; tried on the agent's voice."""
    sentences = [text for rows in load_sentences().values() for text in rows][::3]
    rows = [
        (Take(text, speaker, shape, seed_of(0, "independent", number, tone, speaker.name), True), tone)
        for number, text in enumerate(sentences)
        for tone, shape in AGENT_TONES.items()
        for speaker in (_INDEPENDENT_VOICES[number % 4], _INDEPENDENT_VOICES[(number + 1) % 4])
    ]
    agent, tones, speakers = _calibrate_agent()
    held_out = [(take, tone) for take, tone, who in zip(agent, tones, speakers, strict=True) if who == AGENT.name]
    rendered = render([take for take, _ in (*rows, *held_out)], cache, on_progress)
    features = np.stack([tone_features(take.clip) for take in rendered])
    fitted, tried = features[: len(rows)], features[len(rows) :]
    return ToneDiscriminant.fit(fitted, [tone for _, tone in rows], tried, [tone for _, tone in held_out])


def _calibrate_user() -> tuple[list[Take], list[str], list[str]]:
    takes, labels, speakers = [], [], []
    for number, sentence in enumerate(load_calibration()):
        for style, shape in USER_STYLES.items():
            for split, offset in (("train", 0), ("test", 1)):
                kinds = (KIND_OF_STYLE.get(style, ("male", "female")[(number + offset) % 2]),)
                voices = SPEAKERS[split][kinds[0]]
                speaker = voices[number % len(voices)]
                # Test voices read a third of the sentences: they are for the confusion matrix only.
                if split == "train" or number % 3 == 0:
                    takes.append(Take(sentence, speaker, shape, seed_of(0, "user", number, style, split)))
                    labels.append(style)
                    speakers.append(speaker.name)
    return takes, labels, speakers


def _calibrate_agent() -> tuple[list[Take], list[str], list[str]]:
    takes, labels, speakers = [], [], []
    for number, sentence in enumerate(load_calibration()):
        for tone, shape in AGENT_TONES.items():
            held_out = _TONE_HELD_OUT[number % len(_TONE_HELD_OUT)]
            for speaker in (AGENT, _TONE_VOICES[number % len(_TONE_VOICES)], *([held_out] if number % 2 else [])):
                takes.append(Take(sentence, speaker, shape, seed_of(0, "agent", number, tone, speaker.name), True))
                labels.append(tone)
                speakers.append(speaker.name)
    return takes, labels, speakers


def _fit_tone(
    rendered: Sequence[Rendered], labels: Sequence[str], speakers: Sequence[str], held_out: set[str]
) -> ToneClassifier:
    features = np.stack([take.features.utterance for take in rendered])
    return ToneClassifier.fit(features, labels, speakers, sorted(held_out))
