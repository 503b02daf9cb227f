"""The fitted tone classifiers that ship: that they are of the present voices and features, and know fresh takes.

Not covered: that fitting again gives the same numbers; `python tools/fit_tones.py` shows it in two minutes.
"""

from pathlib import Path

import pytest

from paras2s.data_gen.scripted.scripts import Family, load_calibration, load_families
from paras2s.data_gen.scripted.tones import VERSION_FILE, load_tones, tones_version
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.data_gen.tts.render import Take, render
from paras2s.utils.io import read_json


def test_they_were_fitted_on_the_present_voices_styles_and_features() -> None:
    assert read_json(VERSION_FILE) == {"version": tones_version()}, "run: python tools/fit_tones.py"


def test_their_labels_are_all_styles_and_tones_and_their_reports_are_of_other_speakers() -> None:
    user, agent = load_tones()
    assert set(user.labels) == set(USER_STYLES)
    assert set(agent.labels) == set(AGENT_TONES)
    fitted = {voice.name for voices in SPEAKERS["train"].values() for voice in voices} | {AGENT.name}
    for classifier in (user, agent):
        assert not fitted & set(classifier.report["speakers"])
        assert classifier.report["accuracy"] > 0.8


@pytest.mark.parametrize(
    "family", {family.tone: family for family in load_families().values()}.values(), ids=lambda one: one.tone
)
def test_the_agents_tones_are_told_apart_in_answers_never_fitted(family: Family, tmp_path: Path) -> None:
    assert family.answers[0] not in load_calibration()
    (take,) = render([Take(family.answers[0], AGENT, AGENT_TONES[family.tone], 7, coded=True)], tmp_path)
    assert load_tones()[1].predict(take.features.utterance[None]) == [family.tone]
