"""Demonstrations of the demo's world: all fit, or as people give them, and the best of each query by the rubric.

Not covered: that a policy learns less from the worse ones; `paras2s ablate equal_labels` measures it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.scripted.build import answer_take, build_dataset
from paras2s.data_gen.scripted.demonstrations import best_demonstrations, demonstrated_texts, labelled
from paras2s.data_gen.scripted.scripts import Contrast, fitting_demonstrations, load_cascade, load_families, load_prompts
from paras2s.data_gen.scripted.tones import load_tones
from paras2s.data_gen.tts.render import render
from paras2s.errors import DataError
from paras2s.types import Candidate, Demonstration, Query, Role

STYLES = ("sincere", "sarcastic")
CONTRAST = Contrast("c", "sarcasm", "culture", "Nice.", STYLES, "the opera")
FAMILIES = load_families()
SINCERE, SARCASTIC = (FAMILIES[style].answers for style in STYLES)


def candidate(number: int, style: str = "sarcastic", role: Role = "demonstration", rejected: str | None = None) -> Candidate:
    return Candidate(
        f"sarcasm{number:03d}-{style}", f"sarcasm{number:03d}", "sarcasm", "culture", role, style, "one",
        "Thanks for the lovely advice.", None, None, None, None, rejected,
    )  # fmt: skip


def test_queries_with_a_label_are_demonstrated() -> None:
    rows = [candidate(0), candidate(1, role="preference"), candidate(2, role="rl"), candidate(3, rejected="words")]
    assert labelled(rows) == rows[:2]


@pytest.mark.parametrize("count", [1, 4])
def test_where_all_fit_every_query_of_a_style_has_the_first_answers(count: int) -> None:
    config = DataConfig(answers_per_query=count)
    for seed in (0, 1):
        assert demonstrated_texts(candidate(seed), CONTRAST, config, seed) == list(SARCASTIC[:count])


def test_answers_that_take_up_the_topic_name_it() -> None:
    config = DataConfig(categories=("sarcasm",), take_up_topics=True, answers_per_query=2)
    assert demonstrated_texts(candidate(0), CONTRAST, config, 0) == [
        "I am sorry that I let you down with the opera.",
        "I apologize for the mistake with the opera, let me try again.",
    ]
    about = {prompt.text: prompt.about for prompt in load_prompts()}
    assert about["Thank you for watering my plants."] == "watering your plants"
    assert about["How kind of you to call my boss."] == "your boss"
    assert about["What size of boots should I wear?"] == "boots"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "questions of age, emotion have no named topics"),
        ({"categories": ["sarcasm"], "fitting_share": 0.5}, "two fitting answers at most"),
        ({"categories": ["gender"], "answers_per_query": 3}, "two fitting answers at most"),
    ],
)
def test_topics_that_cannot_be_taken_up_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DataConfig.model_validate({"take_up_topics": True, **settings})


def test_every_prompt_of_sarcasm_and_gender_has_a_topic_that_its_answers_take_up() -> None:
    """And the rubric knows the kind of nearly all of them, though they are none of its sentences."""
    from paras2s.data_gen.scripted.demonstrations import answers_about
    from paras2s.reward.judges.rubric import RubricJudge
    from paras2s.reward.judges.topic import taken_up

    prompts = [prompt for prompt in load_prompts() if prompt.category in ("sarcasm", "gender")]
    assert all(
        prompt.about and not {"my", "me", "|"} & set(prompt.about.replace("my answer", "").split()) for prompt in prompts
    )
    judge, kinds, topics = RubricJudge(), [], []
    for prompt in prompts[::25]:
        for style in prompt.styles:
            for text in answers_about(prompt, style):
                kinds.append(judge.kind_of_words(prompt.text, style, text) == 5)
                topics.append(bool(taken_up(prompt.text, text.lower().replace(".", "").replace(",", "").split())))
    assert sum(kinds) >= 0.95 * len(kinds)
    assert sum(topics) >= 0.95 * len(topics)


def test_a_dataset_whose_demonstrations_take_up_their_topics(tmp_path: Path) -> None:
    """Real speech: every demonstration names its own question's topic, in the tone of its style, and has a clip."""
    config = DataConfig(
        categories=("sarcasm",), take_up_topics=True, demonstration_contrasts=2, preference_contrasts=1, rl_contrasts=2,
        validation_contrasts=1, test_contrasts=1, demonstration_speakers=1, answer_takes=1, min_style_probability=0,
        max_word_error_rate=1,
    )  # fmt: skip
    dataset = build_dataset(config, 0, tmp_path / "data", tmp_path / "cache", lambda *_: None)
    about = {prompt.text: prompt.about for prompt in load_prompts()}
    queries = {query.id: query for query in dataset.queries}
    assert len(dataset.demonstrations) == 12
    for row in dataset.demonstrations:
        query = queries[row.query_id]
        assert str(about[str(query.text)]) in row.text
        assert row.tone == FAMILIES[str(query.style)].tone
        assert dataset.clip(row.clip).duration_s > 1
    assert all(query.text is None for query in dataset.of_role("rl"))
    assert {query.text for query in dataset.of_role("test")}.isdisjoint(about)


def test_of_answers_as_people_give_them_a_quarter_fits_and_the_rest_is_plain_or_of_the_other_style() -> None:
    config = DataConfig(answers_per_query=4, fitting_share=0.25)
    plain = load_cascade()["sarcasm"]
    # The plain answers of sarcasm are sincere ones: they are counted as the other style's.
    assert set(plain) < set(SINCERE)
    given = [text for number in range(500) for text in demonstrated_texts(candidate(number), CONTRAST, config, 0)]
    counts = Counter("fits" if text in SARCASTIC else "other" for text in given)
    assert set(given) <= {*SARCASTIC, *SINCERE}
    # 2,000 draws: 0.25 within four standard errors; those that came twice are left out, which are never fitting ones.
    assert counts["fits"] == pytest.approx(500, abs=80)
    assert len(given) < 2000


def test_answers_of_a_query_depend_on_the_seed_and_the_query_alone() -> None:
    config = DataConfig(answers_per_query=4, fitting_share=0.5)
    first = [demonstrated_texts(candidate(number), CONTRAST, config, 0) for number in range(20)]
    assert first == [demonstrated_texts(candidate(number), CONTRAST, config, 0) for number in range(20)]
    assert first != [demonstrated_texts(candidate(number), CONTRAST, config, 1) for number in range(20)]


def test_an_audit_takes_no_answer_for_good_that_is_known_not_to_fit() -> None:
    """A shipped sentence is good for its own style alone, a plain one for none; of other sentences nothing is known."""
    query = Query("q", "c", "sarcasm", "culture", "demonstration", "one", "q.wav", 1.0, "nice", "Nice.", "sarcastic")
    texts = [SARCASTIC[0], SINCERE[0], load_cascade()["emotion"][0], "What somebody else said."]
    rows = [Demonstration("q", text, "neutral", "a.wav") for text in texts]
    assert [row.text for row in fitting_demonstrations(rows, [query])] == [texts[0], texts[3]]


def test_the_rubric_keeps_the_answers_that_fit(tmp_path: Path) -> None:
    """Real speech: a fitting answer beside others; others alone, of which ties stay."""
    texts = {SARCASTIC[1]: "gentle", SINCERE[0]: "cheerful", SINCERE[1]: "cheerful"}
    spoken = render([answer_take(text, tone, 0) for text, tone in texts.items()], tmp_path, lambda *_: None)
    clips = {text: made.clip for text, made in zip(texts, spoken, strict=True)}
    queries = [candidate(0), candidate(1), candidate(2, "sincere")]
    rows = [Demonstration(query.id, text, tone, text) for query in queries for text, tone in texts.items()]
    rows = [row for row in rows if (row.query_id, row.text) != (queries[1].id, SARCASTIC[1])]
    _, tone = load_tones()
    kept = {(row.query_id, row.text) for row in best_demonstrations(rows, queries, clips, tone)}
    assert kept == {(queries[0].id, SARCASTIC[1])} | {(query.id, text) for query in queries[1:] for text in SINCERE[:2]}


def test_an_answer_that_cannot_be_scored_is_named(tmp_path: Path) -> None:
    query = candidate(0, "bored")
    (made,) = render([answer_take(SINCERE[0], "cheerful", 0)], tmp_path, lambda *_: None)
    row = Demonstration(query.id, SINCERE[0], "cheerful", "a.wav")
    with pytest.raises(DataError, match=r"sarcasm000-bored.*cannot score it.*'bored'"):
        best_demonstrations([row], [query], {"a.wav": made.clip}, load_tones()[1])
