"""The shipped scripts and answers, and their split: topics separate train from test, contrasts the roles within train."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import yaml

from paras2s.audio.asr import normalise_words
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.tts.piper_world import AGENT_TONES, USER_STYLES
from paras2s.errors import ConfigError, DataError
from paras2s.types import CATEGORIES, Category, Demonstration, Query, Role

# Raised whenever the scripts or their roles change: models trained on other scripts do not compare.
SPLITS_VERSION = 4
# Topics that only test queries come from, in whatever category (ParaS2S, section 3.1, step 4).
TEST_TOPICS: dict[Category, frozenset[str]] = {
    "emotion": frozenset({"food", "entertainment", "sleep", "childhood"}),
    "sarcasm": frozenset({"food", "entertainment", "sleep", "childhood"}),
    "age": frozenset({"privacy", "vehicles"}),
    "gender": frozenset({"ceremony", "sports"}),
}
# Topics on which settings are chosen, so that the test set stays unseen.
VALIDATION_TOPICS: dict[Category, frozenset[str]] = {
    "emotion": frozenset({"culture", "news"}),
    "sarcasm": frozenset({"culture", "news"}),
    "age": frozenset({"money"}),
    "gender": frozenset({"fragrance"}),
}


@dataclass(frozen=True)
class Contrast:
    """A sentence and the two styles that call for different answers; `about`: what an answer may call its topic, if known."""

    id: str
    category: Category
    topic: str
    text: str
    styles: tuple[str, str]
    about: str | None = None


@dataclass(frozen=True)
class Family:
    """The fitting answers to a style, and the tone they are spoken in."""

    style: str
    tone: str
    answers: tuple[str, ...]


def _read(name: str) -> Any:
    return yaml.safe_load(resources.files("paras2s.data_gen.scripted").joinpath(name).read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=1)
def load_contrasts() -> tuple[Contrast, ...]:
    """Load all scripts, in the order of the files. Raises DataError: an unknown style, or the same words twice."""
    contrasts: list[Contrast] = []
    for category in CATEGORIES:
        for number, row in enumerate(_read(f"scripts/{category}.yaml")["contrasts"]):
            first, second = row["styles"]
            if first == second or not {first, second} <= USER_STYLES.keys():
                raise DataError(f"scripts/{category}.yaml, entry {number}: styles {row['styles']} are not two known ones")
            contrasts.append(Contrast(f"{category}{number:03d}", category, row["topic"], row["text"], (first, second)))
    words = [normalise_words(contrast.text) for contrast in contrasts]
    if len(set(words)) != len(words):
        raise DataError("scripts: the same words occur twice, which would leak between splits")
    return tuple(contrasts)


@functools.lru_cache(maxsize=1)
def load_prompts() -> tuple[Contrast, ...]:
    """Load the sentences for reinforcement, templates with their phrases. Raises DataError: a style, slot or test topic."""
    contrasts: list[Contrast] = []
    for category, entries in _read("prompts.yaml").items():
        held_out = TEST_TOPICS[category] | VALIDATION_TOPICS[category]
        numbers = itertools.count()
        for number, entry in enumerate(entries):
            styles, slots = entry["styles"], [key for key in entry if key not in ("topic", "styles", "say", "about")]
            if len(set(styles)) != 2 or not set(styles) <= USER_STYLES.keys() or entry["topic"] in held_out:
                raise DataError(f"prompts.yaml, {category}, entry {number}: styles {styles} or topic {entry['topic']!r}")
            for phrases in itertools.product(*(entry[slot] for slot in slots)):
                said = {slot: phrase.split(" | ")[0] for slot, phrase in zip(slots, phrases, strict=True)}
                called = {slot: _to_the_user(phrase.split(" | ")[-1]) for slot, phrase in zip(slots, phrases, strict=True)}
                text = entry["say"].format(**said)
                about = entry["about"].format(**called) if "about" in entry else None
                contrast_id = f"{category}p{next(numbers):04d}"
                text = text[0].upper() + text[1:]
                contrasts.append(Contrast(contrast_id, category, entry["topic"], text, (styles[0], styles[1]), about))
    return tuple(contrasts)


def _to_the_user(phrase: str) -> str:
    """Return what the agent calls what the user called so: "my plants" are "your plants"."""
    return " ".join({"my": "your", "our": "your", "me": "you"}.get(word, word) for word in phrase.split())


@functools.lru_cache(maxsize=1)
def load_families() -> dict[str, Family]:
    """Load the answer families by style."""
    families = {}
    for style, row in _read("answers.yaml")["families"].items():
        if style not in USER_STYLES or row["tone"] not in AGENT_TONES:
            raise DataError(f"answers.yaml: family {style!r} has an unknown style or tone {row['tone']!r}")
        families[style] = Family(style, row["tone"], tuple(row["answers"]))
    return families


@functools.lru_cache(maxsize=1)
def load_about() -> dict[str, tuple[str, ...]]:
    """Load the answers that take up a topic, by style, with "{about}" for the topic."""
    return {style: tuple(rows) for style, rows in _read("answers.yaml")["about"].items()}


@functools.lru_cache(maxsize=1)
def load_cascade() -> dict[Category, tuple[str, ...]]:
    """Load the cascade's answers by category."""
    return {category: tuple(rows) for category, rows in _read("answers.yaml")["cascade"].items()}


def fitting_demonstrations(demonstrations: Sequence[Demonstration], queries: Sequence[Query]) -> list[Demonstration]:
    """Leave out what is known not to fit: shipped sentences that are not of the query's own style (`data.fitting_share`).

    An audit and the hacks of a reward take the others for good answers.
    """
    styles_of: dict[str, set[str]] = {text: set() for plain in load_cascade().values() for text in plain}
    for style, family in load_families().items():
        for text in family.answers:
            styles_of.setdefault(text, set()).add(style)
    style_of = {query.id: query.style for query in queries}
    return [row for row in demonstrations if row.text not in styles_of or style_of.get(row.query_id) in styles_of[row.text]]


@functools.lru_cache(maxsize=1)
def load_calibration() -> tuple[str, ...]:
    """Load the sentences on which tone classifiers are fitted."""
    return tuple(_read("calibration.yaml")["sentences"])


def take_balanced(contrasts: list[Contrast], count: int) -> list[Contrast]:
    """Take `count` contrasts out of the list: always the first of those whose styles have been taken least.

    A plain draw of a dozen left some emotion without a single demonstration, and no policy finds an answer it never samples.
    """
    taken: Counter[str] = Counter()
    balanced = []
    for _ in range(count):
        best = min(contrasts, key=lambda contrast: sorted(taken[style] for style in contrast.styles))
        contrasts.remove(best)
        taken.update(best.styles)
        balanced.append(best)
    return balanced


def assign_roles(contrasts: Sequence[Contrast], config: DataConfig, seed: int) -> dict[Role, list[Contrast]]:
    """Assign contrasts to roles, equally many a category; a topic of the test or validation set has that role only.

    No contrast has two roles: RL prompts are not among the labelled contrasts that the reward model learned from. Where a
    category's scripts are used up, its other RL prompts are drawn from prompts.yaml. Where answers are to take up topics, all
    training contrasts are of prompts.yaml, which says what to call them.

    Raises:
        ConfigError: more contrasts are requested than there are scripts.
    """
    counts = config.demonstration_contrasts, config.preference_contrasts, config.rl_contrasts
    roles: dict[Role, list[Contrast]] = {"demonstration": [], "preference": [], "rl": [], "validation": [], "test": []}
    for category in config.categories:
        rng = np.random.default_rng([seed, CATEGORIES.index(category)])
        own = [contrast for contrast in contrasts if contrast.category == category]
        held_out = TEST_TOPICS[category] | VALIDATION_TOPICS[category]
        train = _shuffled([c for c in own if c.topic not in held_out], rng)
        validation = _shuffled([c for c in own if c.topic in VALIDATION_TOPICS[category]], rng)
        prompts = _shuffled([prompt for prompt in load_prompts() if prompt.category == category], rng)
        # Last: with more test scripts the other roles stay as they are.
        test = _shuffled([c for c in own if c.topic in TEST_TOPICS[category]], rng)
        if config.take_up_topics:
            train, prompts = [prompt for prompt in prompts if prompt.about], []
        requested = (sum(counts[:2]), sum(counts), config.validation_contrasts, config.test_contrasts)
        available = (len(train), len(train) + len(prompts), len(validation), len(test))
        if any(a > b for a, b in zip(requested, available, strict=True)):
            raise ConfigError(
                f"data: {category} has {available[0]} training, {available[2]} validation and {available[3]} test scripts, "
                f"{requested[0]}, {requested[2]} and {requested[3]} are requested; with the prompts of reinforcement "
                f"{available[1]} and {requested[1]}; lower data.*_contrasts"
            )
        roles["test"] += take_balanced(test, config.test_contrasts)
        roles["validation"] += take_balanced(validation, config.validation_contrasts)
        roles["demonstration"] += take_balanced(train, config.demonstration_contrasts)
        roles["preference"] += take_balanced(train, config.preference_contrasts)
        own_rl = take_balanced(train, min(config.rl_contrasts, len(train)))
        roles["rl"] += own_rl + take_balanced(prompts, config.rl_contrasts - len(own_rl))
    return roles


def _shuffled(contrasts: list[Contrast], rng: np.random.Generator) -> list[Contrast]:
    return [contrasts[i] for i in rng.permutation(len(contrasts))]
