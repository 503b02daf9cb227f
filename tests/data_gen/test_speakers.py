"""Voices: who speaks in training, who in validation and test, and which voice says which style.

Not covered: whether the voices sound like men, women and children; the hearing check of a run says how well they differ.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from paras2s.audio.synthesis import Speaker
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.scripted.build import plan_queries
from paras2s.data_gen.scripted.scripts import assign_roles, load_contrasts
from paras2s.data_gen.tts.piper_world import AGENT, SPEAKERS, USER_STYLES

CONFIG = DataConfig(rl_speakers=2)
SPEAKERS_OF = {"demonstration": CONFIG.demonstration_speakers, "rl": CONFIG.rl_speakers}
ROLES = assign_roles(load_contrasts(), CONFIG, seed=0)
PLANS = plan_queries(ROLES, CONFIG, seed=0)


def voices(split: str) -> list[Speaker]:
    return [speaker for group in SPEAKERS[split].values() for speaker in group]


def test_speakers_of_the_test_are_nobody_else() -> None:
    everyone = [*voices("train"), *voices("validation"), *voices("test"), AGENT]
    assert len({speaker.name for speaker in everyone}) == len(everyone)
    assert len({(speaker.f0_factor, speaker.formant_warp) for speaker in everyone}) == len(everyone)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_held_out_voice_lies_within_the_range_of_its_kind(split: str) -> None:
    """New voices, but no new kinds of voices."""
    for kind, group in SPEAKERS[split].items():
        pitches = [speaker.f0_factor for speaker in SPEAKERS["train"][kind]]
        assert all(min(pitches) < speaker.f0_factor < max(pitches) for speaker in group)


def test_held_out_queries_are_spoken_by_voices_of_their_own() -> None:
    names = {split: {speaker.name for speaker in voices(split)} for split in ("train", "validation", "test")}
    for plan in PLANS:
        assert plan.take.speaker.name in names[plan.role if plan.role in names else "train"]


def test_every_contrast_is_planned_in_both_styles() -> None:
    planned = defaultdict(list)
    for plan in PLANS:
        assert plan.take.text == plan.contrast.text
        assert plan.take.style == USER_STYLES[plan.style]
        assert not plan.take.coded
        planned[plan.role, plan.contrast.id].append(plan.style)
    for role, contrasts in ROLES.items():
        repeats = SPEAKERS_OF.get(role, 1)
        for contrast in contrasts:
            assert planned[role, contrast.id] == list(contrast.styles) * repeats


@pytest.mark.parametrize("category", ["emotion", "sarcasm"])
def test_both_styles_of_a_contrast_come_from_one_voice(category: str) -> None:
    """Else a policy could tell the styles of training clips by the speaker."""
    voices_of = defaultdict(list)
    for plan in PLANS:
        if plan.contrast.category == category:
            voices_of[plan.role, plan.contrast.id].append(plan.take.speaker)
    for (role, _), spoken_by in voices_of.items():
        pairs = list(zip(spoken_by[::2], spoken_by[1::2], strict=True))
        assert all(first == second for first, second in pairs)
        assert len(set(pairs)) == SPEAKERS_OF.get(role, 1)


def test_age_and_gender_are_the_voices() -> None:
    kind_of = {speaker.name: kind for split in SPEAKERS.values() for kind, group in split.items() for speaker in group}
    for plan in PLANS:
        kind = kind_of[plan.take.speaker.name]
        if plan.contrast.category == "gender":
            assert kind == plan.style
        elif plan.contrast.category == "age":
            assert (kind == "child") == (plan.style == "child")
        else:
            assert kind != "child"


def test_plans_depend_on_the_seed_alone_and_ids_are_unique() -> None:
    assert plan_queries(ROLES, CONFIG, seed=0) == PLANS
    assert plan_queries(ROLES, CONFIG, seed=1) != PLANS
    assert len({plan.id for plan in PLANS}) == len(PLANS)
    assert len({plan.take.seed for plan in PLANS}) == len(PLANS)
