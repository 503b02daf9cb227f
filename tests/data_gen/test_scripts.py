"""The scripts and answers that ship, and who gets which: counts, disjoint topics and sentences, deterministic roles.

Not covered: whether the sentences sound natural and are neutral in their words; they were written by hand.
"""

from __future__ import annotations

from collections import Counter

import pytest

from paras2s.audio.asr import normalise_words, word_error_rate
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.scripted import scripts
from paras2s.data_gen.scripted.scripts import (
    TEST_TOPICS,
    VALIDATION_TOPICS,
    Contrast,
    assign_roles,
    load_calibration,
    load_cascade,
    load_contrasts,
    load_families,
    load_prompts,
    take_balanced,
)
from paras2s.data_gen.tts.piper_world import AGENT_TONES, USER_STYLES
from paras2s.errors import ConfigError, DataError
from paras2s.types import CATEGORIES

ROLES = assign_roles(load_contrasts(), DataConfig(), seed=0)


def ids(contrasts: list[Contrast]) -> set[str]:
    return {contrast.id for contrast in contrasts}


def test_there_are_enough_contrasts() -> None:
    train = [contrast for role in ("demonstration", "preference", "rl") for contrast in ROLES[role]]
    assert len(train) >= 60
    assert len(ROLES["test"]) >= 24
    assert len(ROLES["demonstration"]) >= 60
    for category in CATEGORIES:
        assert sum(contrast.category == category for contrast in train) == 98
        assert sum(contrast.category == category for contrast in ROLES["validation"]) == 8
        assert sum(contrast.category == category for contrast in ROLES["test"]) == 12


def test_a_world_of_one_category_is_that_part_of_the_full_one() -> None:
    part = assign_roles(load_contrasts(), DataConfig(categories=("age",)), seed=0)
    for role, contrasts in part.items():
        assert contrasts == [contrast for contrast in ROLES[role] if contrast.category == "age"]


@pytest.mark.parametrize(("role", "topics_of"), [("test", TEST_TOPICS), ("validation", VALIDATION_TOPICS)])
def test_held_out_topics_are_nobody_elses_in_their_category(role: str, topics_of: dict[str, frozenset[str]]) -> None:
    held_out = {(contrast.category, contrast.topic) for contrast in ROLES[role]}
    others = {(c.category, c.topic) for name, contrasts in ROLES.items() if name != role for c in contrasts}
    assert held_out == {(category, topic) for category, topics in topics_of.items() for topic in topics}
    assert not held_out & others


def test_topics_of_the_test_are_nobody_elses_in_any_category() -> None:
    test = {topic for topics in TEST_TOPICS.values() for topic in topics}
    assert not test & {c.topic for c in load_contrasts() if c.topic not in TEST_TOPICS[c.category]}


def test_scripts_have_one_role() -> None:
    assigned = [contrast.id for contrasts in ROLES.values() for contrast in contrasts]
    assert len(set(assigned)) == len(assigned)
    assert not ids(ROLES["demonstration"]) & (ids(ROLES["rl"]) | ids(ROLES["preference"]))
    assert not ids(ROLES["rl"]) & ids(ROLES["preference"])


def test_no_words_come_twice() -> None:
    words = [normalise_words(contrast.text) for contrast in load_contrasts()]
    words += [normalise_words(text) for text in load_calibration()]
    words += [normalise_words(text) for family in load_families().values() for text in family.answers]
    assert len(set(words)) == len(words)
    assert len({contrast.id for contrast in load_contrasts()}) == len(load_contrasts())


@pytest.mark.parametrize("role", ["demonstration", "rl"])
def test_test_scripts_are_no_rewordings(role: str) -> None:
    """No test sentence shares nine words in ten with one that was trained on."""
    for contrast in ROLES["test"]:
        near = [other.text for other in ROLES[role] if word_error_rate(contrast.text, other.text) < 0.1]
        assert not near, f"{contrast.text!r} is nearly {near}"


def test_there_are_thousands_of_prompts_and_none_is_a_script() -> None:
    prompts = load_prompts()
    assert len(prompts) >= 3000
    assert min(Counter(prompt.category for prompt in prompts).values()) >= 700
    words = [normalise_words(contrast.text) for contrast in (*prompts, *load_contrasts())]
    assert len(set(words)) == len(words)
    assert len({contrast.id for contrast in (*prompts, *load_contrasts())}) == len(words)
    assert max(len(text.split()) for text in words[: len(prompts)]) <= 13
    assert not any("{" in prompt.text for prompt in prompts)


def test_no_prompt_is_nearly_a_validation_or_test_question() -> None:
    """No prompt has a held-out topic, or shares three words in five with a held-out question of its category."""
    for category in CATEGORIES:
        topics = TEST_TOPICS[category] | VALIDATION_TOPICS[category]
        own = [prompt for prompt in load_prompts() if prompt.category == category]
        assert not topics & {prompt.topic for prompt in own}
        held_out = [
            frozenset(normalise_words(c.text).split()) for c in load_contrasts() if c.topic in topics and c.category == category
        ]
        for prompt in own:
            words = frozenset(normalise_words(prompt.text).split())
            assert max(len(words & other) / len(words | other) for other in held_out) < 0.6, prompt.text


def test_prompts_are_drawn_when_the_scripts_are_used_up() -> None:
    """98 training scripts a category: 20 and 40 are labelled, 38 are left for reinforcement, and the 62 others are prompts."""
    more = assign_roles(load_contrasts(), DataConfig(rl_contrasts=100), seed=0)
    for role in ("demonstration", "preference", "validation", "test"):
        assert more[role] == ROLES[role]
    for category in CATEGORIES:
        own = [contrast.id for contrast in more["rl"] if contrast.category == category]
        assert own[:38] == [contrast.id for contrast in ROLES["rl"] if contrast.category == category]
        assert len(set(own)) == 100
        assert set(own[38:]) < ids(list(load_prompts()))


def test_every_style_has_answers_in_a_known_tone() -> None:
    families = load_families()
    assert families.keys() == USER_STYLES.keys()
    for style, family in families.items():
        assert family.style == style
        assert len(set(family.answers)) >= 2
        assert family.tone in AGENT_TONES
    assert load_cascade().keys() == set(CATEGORIES)


@pytest.mark.parametrize("seed", range(3))
def test_every_style_is_demonstrated_and_tested(seed: int) -> None:
    roles = assign_roles(load_contrasts(), DataConfig(), seed)
    first = [c for n, c in enumerate(roles["demonstration"]) if n % DataConfig().demonstration_contrasts < 8]
    for role, contrasts in ((role, roles[role]) for role in ("demonstration", "preference", "test")):
        seen = Counter(style for contrast in contrasts for style in contrast.styles)
        assert seen.keys() == USER_STYLES.keys(), role
        assert min(seen.values()) >= 2
    assert {style for contrast in first for style in contrast.styles} == USER_STYLES.keys()


def test_balanced_by_hand() -> None:
    """After happy/sad the next is the pair of two new styles; then sad/happy and happy/fear are equal: the earlier one."""
    pairs = [("happy", "sad"), ("sad", "happy"), ("happy", "fear"), ("angry", "fear")]
    contrasts = [Contrast(str(n), "emotion", "food", str(n), styles) for n, styles in enumerate(pairs)]
    left = list(contrasts)
    assert take_balanced(left, 3) == [contrasts[0], contrasts[3], contrasts[1]]
    assert left == [contrasts[2]]


def test_roles_depend_on_the_seed_alone() -> None:
    again = assign_roles(load_contrasts(), DataConfig(), seed=0)
    other = assign_roles(load_contrasts(), DataConfig(), seed=1)
    assert again == ROLES
    assert ids(other["demonstration"]) != ids(ROLES["demonstration"])
    assert ids(other["test"]) != ids(ROLES["test"])


def test_counts_by_hand() -> None:
    config = DataConfig(
        demonstration_contrasts=2, rl_contrasts=5, preference_contrasts=3, validation_contrasts=2, test_contrasts=1
    )
    roles = assign_roles(load_contrasts(), config, seed=3)
    found = {role: len(contrasts) for role, contrasts in roles.items()}
    assert found == {"demonstration": 8, "preference": 12, "rl": 20, "validation": 8, "test": 4}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rl_contrasts": 765}, r"with the prompts of reinforcement 822 and 825; lower data\.\*"),
        ({"preference_contrasts": 79}, "98 training, 14 validation and 28 test scripts, 99, 8 and 12 are requested"),
        ({"test_contrasts": 21}, "60, 8 and 21 are requested"),
        ({"validation_contrasts": 11}, "60, 11 and 12 are requested"),
    ],
)
def test_requesting_too_much_is_refused(values: dict[str, int], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        assign_roles(load_contrasts(), DataConfig(**values), seed=0)


@pytest.mark.parametrize(
    ("styles", "texts", "complaint"),
    [
        (["happy", "bored"], ["One.", "Two."], r"scripts/emotion\.yaml, entry 0.*bored"),
        (["sad", "sad"], ["One.", "Two."], r"scripts/emotion\.yaml, entry 0"),
        (["happy", "sad"], ["So it is.", "so, it is"], "the same words occur twice"),
    ],
)
def test_bad_scripts_are_refused(monkeypatch: pytest.MonkeyPatch, styles: list[str], texts: list[str], complaint: str) -> None:
    rows = [{"topic": "food", "styles": styles, "text": text} for text in texts]
    monkeypatch.setattr(scripts, "_read", lambda name: {"contrasts": rows if "emotion" in name else []})
    with pytest.raises(DataError, match=complaint):
        load_contrasts.__wrapped__()
