"""StyleSet's items, dialogues, joined clips and tables against figures made by hand; models are scripted, clips are real.

Not covered: whether a real model follows a style, and whether a real judge hears it; both need a key or weights.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny.interleaved import tiny_glm

from paras2s.audio.clip import Clip
from paras2s.bench.styleset.data import ELEMENTS, FollowingItem, RoleContext, load_contexts, load_following
from paras2s.bench.styleset.dialogue import Dialogue, DialogueTurn, ModelTurn, follow, join, output_of, role_play, turn_seed
from paras2s.bench.styleset.metrics import (
    HumanRow,
    ScoreSummary,
    StyleRow,
    cell_of,
    load_human,
    load_rows,
    pearson,
    row_of,
    save_rows,
)
from paras2s.bench.styleset.report import build_report, markdown
from paras2s.bench.styleset.systems import PolicyDialogue, shortened
from paras2s.errors import DataError
from paras2s.policy.types import Turn
from paras2s.types import Unscored, Verdict

RATE = 16_000


def tone(value: float, duration_s: float = 0.1, rate_hz: int = RATE) -> Clip:
    """A clip that is told from others by its level."""
    return Clip(np.full(round(duration_s * rate_hz), value, dtype=np.float32), rate_hz)


def nothing(*_: Any) -> None:
    pass


# -- items ------------------------------------------------------------------------------------------------------------


def test_the_shipped_items_cover_every_element_and_as_many_scenes_as_the_paper() -> None:
    items, contexts = load_following(), load_contexts()
    assert (len(items), len(contexts)) == (20, 20)
    counts = Counter(element for item in items for element in item.elements)
    assert set(counts) == set(ELEMENTS)
    assert min(counts.values()) >= 2
    assert 5 <= sum(item.changes_within for item in items) <= 15
    # An id names a file of either task, so none may be of both.
    assert len({one.id for one in (*items, *contexts)}) == 40
    assert len({one.text for one in items} | {one.style for one in items}) == 40
    assert len({one.first_line for one in contexts}) == 20


def test_a_prompt_names_both_roles_the_right_way_round_and_ends_with_the_first_line() -> None:
    context = load_contexts()[0]
    first, second = context.prompts()
    assert first.endswith(context.first_line)
    assert second.endswith(context.first_line)
    assert f"you are {context.role_1}, and I am {context.role_2}" in first
    assert f"you are {context.role_2}, and I am {context.role_1}" in second
    item = load_following()[0]
    alone, styled = item.requests()
    assert item.text in alone
    assert item.style not in alone
    assert item.style in styled
    assert item.text not in styled


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("[]", "expected a list of items"),
        ("a: 1", "expected a list of items"),
        ("- {id: a, text: t, style: s, elements: [pace]}", "item 1: changes_within: Field required"),
        ("- {id: a, text: t, style: s, elements: [speed], changes_within: false}", "item 1: elements.0"),
        ("- {id: a/b, text: t, style: s, elements: [pace], changes_within: false}", "item 1: id"),
        ("- {id: a, text: t, style: s, elements: [], changes_within: false}", "item 1: elements"),
        ("- &x {id: a, text: t, style: s, elements: [pace], changes_within: false}\n- *x", "the id 'a' occurs twice"),
        ("- {id: a, text: t, style: s, elements: [pace], changes_within: false, more: 1}", "item 1: more"),
        ("{", "cannot be read"),
    ],
)
def test_items_of_ones_own_are_refused_by_name(tmp_path: Path, rows: str, says: str) -> None:
    path = tmp_path / "items.yaml"
    path.write_text(rows)
    with pytest.raises(DataError, match=says) as caught:
        load_following(path)
    assert str(path) in str(caught.value)


# -- dialogues --------------------------------------------------------------------------------------------------------


class ScriptedModel:
    """Says a tone of its own level each time, unless `fails` names the call; keeps what each dialogue was when it was asked."""

    at_once = 8

    def __init__(self, fails: dict[int, ModelTurn] | None = None) -> None:
        self.fails, self.sent, self.seeds = fails or {}, [], []
        self.said = 0

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[ModelTurn]:
        replies = []
        for turns, seed in zip(dialogues, seeds, strict=True):
            self.sent.append([(turn.role, round(float(turn.clip.samples[0]), 3)) for turn in turns])
            assert all(turn.text == "" for turn in turns if turn.role == "user"), "a user's words are not given away"
            self.seeds.append(seed)
            level = 0.5 + self.said / 100
            replies.append(self.fails.get(self.said, ModelTurn(f"reply {self.said}", tone(level))))
            self.said += 1
        return replies


def scene(name: str) -> RoleContext:
    return RoleContext(id=name, situation="S.", role_1="A", role_2="B", relationship="friends", first_line=f"Line of {name}.")


def test_each_instance_receives_the_other_and_remembers_what_it_said_itself() -> None:
    model, one = ScriptedModel(), scene("x")
    spoken = {one.prompts()[0]: tone(0.1), one.prompts()[1]: tone(0.2)}
    (dialogue,) = role_play(model, [one], spoken, 5, 42, nothing)
    # Levels: 0.1 and 0.2 are the prompts, 0.5 + n / 100 what was said in turn n.
    assert model.sent == [
        [("user", 0.1)],
        [("user", 0.2)],
        [("user", 0.1), ("assistant", 0.5), ("user", 0.51)],
        [("user", 0.2), ("assistant", 0.51), ("user", 0.52)],
        [("user", 0.1), ("assistant", 0.5), ("user", 0.51), ("assistant", 0.52), ("user", 0.53)],
    ]
    assert [turn.speaker for turn in dialogue.turns] == [1, 2, 1, 2, 1]
    assert [turn.text for turn in dialogue.turns] == [f"reply {n}" for n in range(5)]
    assert dialogue.ended is None
    assert model.seeds == [turn_seed(42, "x", n) for n in range(5)]
    assert len(set(model.seeds)) == 5


def test_scenes_side_by_side_do_not_mix_and_sample_as_each_would_alone() -> None:
    scenes = [scene("x"), scene("y")]
    spoken = {text: tone(0.1 * n) for n, text in enumerate((text for one in scenes for text in one.prompts()), 1)}
    model = ScriptedModel()
    role_play(model, scenes, spoken, 3, 42, nothing)
    assert model.sent[4] == [("user", 0.1), ("assistant", 0.5), ("user", 0.52)]
    assert model.sent[5] == [("user", 0.3), ("assistant", 0.51), ("user", 0.53)]
    alone = ScriptedModel()
    role_play(alone, scenes[1:], spoken, 3, 42, nothing)
    assert alone.seeds == model.seeds[1::2]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (ModelTurn(failed="HTTP 500"), "turn 3: HTTP 500"),
        (ModelTurn("words"), "turn 3: no answer"),
        (ModelTurn("words", tone(0.0, 0.5)), "turn 3: 0.5 s of silence"),
    ],
)
def test_a_failed_turn_ends_its_own_dialogue_with_the_reason(reply: ModelTurn, why: str) -> None:
    scenes = [scene("x"), scene("y")]
    spoken = {text: tone(0.1) for one in scenes for text in one.prompts()}
    # Calls go x, y, x, y: the fifth is the third turn of x.
    model = ScriptedModel({4: reply})
    first, second = role_play(model, scenes, spoken, 6, 42, nothing)
    assert (len(first.turns), first.ended) == (2, why)
    assert (len(second.turns), second.ended) == (6, None)
    output, clip = output_of(scenes[0], "s", "k", first)
    assert clip is None
    assert output.unscored == f"2 turns are no dialogue, at least 3 are ({why})"
    output, clip = output_of(scenes[1], "s", "k", second)
    assert output.unscored is None
    assert output.turns_in_clip == 6
    assert output.duration_s == pytest.approx(6 * 0.1 + 5 * 2.0)


def test_a_dialogue_that_ends_early_is_judged_by_what_it_has() -> None:
    one = scene("x")
    model = ScriptedModel({3: ModelTurn(failed="cut off")})
    (dialogue,) = role_play(model, [one], {text: tone(0.1) for text in one.prompts()}, 20, 42, nothing)
    output, clip = output_of(one, "s", "k", dialogue)
    assert (output.unscored, output.ended) == (None, "turn 4: cut off")
    assert clip is not None
    assert model.said == 4


def test_only_the_last_of_two_answers_to_a_style_instruction_is_judged() -> None:
    item = FollowingItem(id="x", text="T.", style="S.", elements=("pace",), changes_within=False)
    spoken = {item.requests()[0]: tone(0.1), item.requests()[1]: tone(0.2)}
    model = ScriptedModel()
    (dialogue,) = follow(model, [item], spoken, 42, nothing)
    assert model.sent == [[("user", 0.1)], [("user", 0.1), ("assistant", 0.5), ("user", 0.2)]]
    output, clip = output_of(item, "s", "k", dialogue)
    assert clip is not None
    assert clip.samples[0] == pytest.approx(0.51)
    assert [row.start_s for row in output.turns] == [None, 0.0]
    (dialogue,) = follow(ScriptedModel({0: ModelTurn(failed="no")}), [item], spoken, 42, nothing)
    output, clip = output_of(item, "s", "k", dialogue)
    assert (clip, output.unscored) == (None, "0 answers of 2 (turn 1: no)")


# -- joined clips -----------------------------------------------------------------------------------------------------


def test_turns_are_joined_with_two_seconds_of_silence_at_one_rate() -> None:
    joined = join([tone(0.5, 1.0), tone(0.25, 0.5, 8000), tone(0.5, 0.25)])
    # 16000 + 32000 + 8000 + 32000 + 4000 samples.
    assert joined.clip.sample_rate_hz == 16_000
    assert len(joined.clip.samples) == 92_000
    assert joined.places == ((0.0, 1.0), (3.0, 3.5), (5.5, 5.75))
    assert (joined.clip.samples[:16_000] == 0.5).all()
    assert (joined.clip.samples[16_000:48_000] == 0).all()
    assert joined.clip.samples[52_000] == pytest.approx(0.25, abs=1e-3)
    assert (joined.clip.samples[56_000:88_000] == 0).all()


@pytest.mark.parametrize(
    ("lengths_s", "places", "duration_s"),
    [
        ((30.0, 30.0, 5.0), ((0.0, 30.0), (32.0, 60.0), None), 60.0),
        ((58.0, 1.0), ((0.0, 58.0), None), 60.0),
        ((58.0,), ((0.0, 58.0),), 58.0),
        ((10.0, 10.0, 36.0), ((0.0, 10.0), (12.0, 22.0), (24.0, 60.0)), 60.0),
        ((70.0, 1.0), ((0.0, 60.0), None), 60.0),
    ],
)
def test_a_joined_dialogue_is_cropped_to_a_minute(lengths_s: Any, places: Any, duration_s: float) -> None:
    joined = join([tone(0.5, length_s, 8000) for length_s in lengths_s])
    assert joined.places == places
    assert len(joined.clip.samples) == round(8000 * duration_s)


def test_turns_that_the_crop_left_nothing_of_are_kept_as_text() -> None:
    said = tuple(DialogueTurn(1 + n % 2, f"turn {n}", tone(0.5, 20.0, 8000)) for n in range(5))
    output, clip = output_of(scene("x"), "s", "k", Dialogue(said, None))
    assert clip is not None
    assert clip.duration_s == 60.0
    assert [(row.text, row.start_s, row.stop_s) for row in output.turns] == [
        ("turn 0", 0.0, 20.0), ("turn 1", 22.0, 42.0), ("turn 2", 44.0, 60.0), ("turn 3", None, None), ("turn 4", None, None),
    ]  # fmt: skip
    assert output.turns_in_clip == 3


# -- what a policy is shown -------------------------------------------------------------------------------------------


def test_a_dialogue_is_shortened_from_its_oldest_turns_and_the_prompt_goes_last() -> None:
    turns = [Turn("user" if n % 2 == 0 else "assistant", str(n)) for n in range(7)]
    assert ["".join(turn.text for turn in one) for one in shortened(turns)] == ["0123456", "03456", "056", "6"]
    assert ["".join(turn.text for turn in one) for one in shortened(turns[:1])] == ["0"]
    assert ["".join(turn.text for turn in one) for one in shortened(turns[:3])] == ["012", "2"]


def test_a_policy_with_a_context_limit_is_shown_as_much_as_fits_and_says_how_much_was_left_out() -> None:
    policy = tiny_glm()
    limit = policy.spec.context_steps
    speaker = PolicyDialogue(policy, longest_answer_s=1.0)
    steps = math.ceil(policy.spec.step_rate_hz)
    rng = np.random.default_rng(0)

    def clip() -> Clip:
        return Clip((0.1 * rng.standard_normal(RATE)).astype(np.float32), RATE)

    turns = [Turn("user", "", clip())]
    left_out = []
    for _ in range(9):
        (reply,) = speaker.reply([turns], [1])
        # By hand: the fewest pairs behind the prompt whose absence makes it fit.
        fits = [
            gone
            for gone in range(0, len(turns) - 1 or 1, 2)
            if policy.encode_prompt([turns[0], *turns[1 + gone :]]).length + steps <= limit
        ]
        assert reply.left_out == (fits[0] if fits else len(turns) - 1)
        left_out.append(reply.left_out)
        turns = [*turns, Turn("assistant", "ab", clip()), Turn("user", "", clip())]
    assert left_out[0] == 0
    assert left_out == sorted(left_out)
    assert 0 < left_out[-1] < len(turns) - 3


def test_dialogues_of_which_none_fits_are_failed_replies_with_the_reason() -> None:
    policy = tiny_glm()
    rate_hz = policy.spec.step_rate_hz
    # An answer alone would fill the context.
    speaker = PolicyDialogue(policy, longest_answer_s=math.ceil(policy.spec.context_steps / rate_hz))
    turns = [Turn("user", "", Clip((0.1 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32), RATE))]
    replies = speaker.reply([turns, turns], [1, 2])
    assert [reply.clip for reply in replies] == [None, None]
    assert all("do not fit" in (reply.failed or "") for reply in replies)


# -- tables -----------------------------------------------------------------------------------------------------------


def human(rater: str, scores: Sequence[float], task: str = "style_following", system: str = "s") -> list[HumanRow]:
    return [HumanRow(item=f"i{n}", system=system, task=task, rater=rater, score=one) for n, one in enumerate(scores)]


def judged(judge: str, scores: Sequence[float | None], temperature: float | None = None, system: str = "s") -> list[StyleRow]:
    return [
        StyleRow(item=f"i{n}", system=system, task="style_following", judge=judge, temperature=temperature, score=one,
                 unscored="broken" if one is None else None)
        for n, one in enumerate(scores)
    ]  # fmt: skip


def test_mean_and_deviation_are_over_the_items_that_have_a_score() -> None:
    # Deviations from 7/3: -4/3, -1/3, 5/3; (16 + 1 + 25) / 9 / 2 = 7/3.
    assert cell_of([1, 2, None, 4]) == ScoreSummary(pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3, 4)
    assert cell_of([3]) == ScoreSummary(3, None, 1, 1)
    assert cell_of([None]) == ScoreSummary(None, None, 0, 1)
    report = build_report(judged("j", [1, 2, None, 4]), human("a", [1, 3]) + human("b", [3, 5]), [], [], {})
    cells = report["table_1"]["style_following"]["s"]
    assert cells["j"] == {"mean": pytest.approx(7 / 3), "sd": pytest.approx(math.sqrt(7 / 3)), "n_scored": 3, "n_asked": 4}
    # People: items of 2 and 4; two of the four judged items are rated.
    assert cells["people"] == {"mean": 3, "sd": pytest.approx(math.sqrt(2)), "n_scored": 2, "n_asked": 4}
    assert report["unscored"] == [{"task": "style_following", "system": "s", "judge": "j", "reason": "broken", "count": 1}]
    assert (report["only_rated"], report["only_judged"]) == (0, 2)
    assert "2.33 ± 1.53 (3 of 4)" in markdown(report)


def test_averages_of_pearsons_r_are_those_made_by_hand() -> None:
    # r(1 2 3, 1 2 4) = 3 / sqrt(2 * 14/3); the third falls as the first rises.
    r = 3 / math.sqrt(28 / 3)
    ratings = human("a", [1, 2, 3]) + human("b", [1, 2, 4]) + human("c", [3, 2, 1])
    table = build_report(judged("j", [1, 2, 3]), ratings, [], [], {})["table_2"]["style_following"]
    assert table["human_human"] == {"r": pytest.approx((r - 1 - r) / 3), "n_known": 3, "n_pairs": 3}
    assert table["judge_human"]["j"] == {"r": pytest.approx((1 + r - 1) / 3), "n_known": 3, "n_pairs": 3}


def test_the_average_over_judges_is_that_of_two_judges_and_not_of_two_temperatures() -> None:
    r = 3 / math.sqrt(28 / 3)
    rows = judged("j", [1, 2, 3]) + judged("k", [1, 2, 4]) + judged("l", [3, 2, 1])
    report = build_report(rows, [], [], [], {})
    # r(j k), r(j l) = -1, r(k l) = -r.
    expected = {"r": pytest.approx((r - 1 - r) / 3), "n_known": 3, "n_pairs": 3}
    assert report["table_2"]["style_following"]["judge_judge"] == expected
    text = markdown(report)
    assert "| judge - judge | -0.333 (3 of 3 pairs) |" in text
    # Nobody rated: no row of people.
    assert "| human -" not in text
    swept = build_report(judged("j", [1, 2, 3], 0.5) + judged("j", [3, 2, 1], 1.5), human("a", [1, 2, 3]), [], [], {})
    assert swept["table_2"]["style_following"]["judge_judge"] == {"r": None, "n_known": 0, "n_pairs": 0}
    text = markdown(swept)
    assert "| judge - judge" not in text
    assert "| human - human" not in text
    assert "| human - j T=0.5 | 1.000 (1 of 1 pairs) |" in text


def test_what_stopped_a_bench_is_in_both_reports() -> None:
    report = build_report(judged("j", [1, 2]), [], [], [], {}, "the budget\nis spent")
    assert report["stopped"] == "the budget\nis spent"
    assert "**Stopped before its end**: the budget is spent" in markdown(report)
    assert build_report(judged("j", [1, 2]), [], [], [], {})["stopped"] is None
    assert "Stopped" not in markdown(build_report(judged("j", [1, 2]), [], [], [], {}))


def test_pearsons_r_is_scipys_over_what_both_scored() -> None:
    rng = np.random.default_rng(3)
    first = {("s", str(n)): float(value) for n, value in enumerate(rng.normal(size=40))}
    second = {key: value + float(rng.normal()) for key, value in list(first.items())[5:]} | {("t", "0"): 9.0}
    found = pearson(("a", first), ("b", second))
    common = [key for key in first if key in second]
    assert found.n == 35
    assert found.r == pytest.approx(stats.pearsonr([first[k] for k in common], [second[k] for k in common]).statistic)


def test_a_correlation_that_is_not_defined_has_a_reason_and_is_no_part_of_an_average() -> None:
    few = build_report(judged("j", [1, 2]), human("a", [1, 2]), [], [], {})["table_2"]["style_following"]
    assert few["judge_human"]["j"] == {"r": None, "n_known": 0, "n_pairs": 1}
    assert few["pairs"][0]["why_none"] == "2 outputs in common, at least 3 are needed"
    ratings = human("a", [4, 4, 4]) + human("b", [1, 2, 3])
    report = build_report(judged("j", [1, 2, 3]), ratings, [], [], {})
    table = report["table_2"]["style_following"]
    assert table["judge_human"]["j"] == {"r": pytest.approx(1), "n_known": 1, "n_pairs": 2}
    assert {pair["why_none"] for pair in table["pairs"]} == {None, "all scores of a are the same"}
    text = json.dumps(report, allow_nan=False)
    assert "NaN" not in text
    assert "1.000 (1 of 2 pairs)" in markdown(report)


def test_recordings_of_people_are_scored_and_not_correlated() -> None:
    rows = judged("j", [1, 2, 3]) + judged("j", [5, 5, 4], system="tape")
    ratings = human("a", [1, 2, 3]) + human("a", [1, 1, 5], system="tape")
    with_tape = build_report(rows, ratings, [], [], {})["table_2"]["style_following"]["pairs"][0]
    without = build_report(rows, ratings, [], ["tape"], {})
    assert (with_tape["n"], without["table_2"]["style_following"]["pairs"][0]["n"]) == (6, 3)
    assert without["table_2"]["style_following"]["pairs"][0]["r"] == pytest.approx(1)
    assert without["table_1"]["style_following"]["tape"]["j"]["mean"] == pytest.approx(14 / 3)


def test_elements_are_means_over_the_sentences_that_ask_for_them() -> None:
    items = [
        FollowingItem(id=f"i{n}", text="T", style="S", elements=elements, changes_within=n == 2)
        for n, elements in enumerate((("pace",), ("pace", "pitch"), ("pitch",), ("sob",)))
    ]
    report = build_report(judged("j", [1, 2, 5, None]), human("a", [3, 3, 4, 2]), items, [], {})
    found = {name: (one["mean"], one["n_scored"], one["n_asked"]) for name, one in report["elements"]["s"]["j"].items()}
    assert found["pace"] == (1.5, 2, 2)
    assert found["pitch"] == (3.5, 2, 2)
    assert found["sob"] == (None, 0, 1)
    assert found["stress"] == (None, 0, 0)
    assert found["changes within"] == (5.0, 1, 1)
    assert report["elements"]["s"]["people"]["sob"]["mean"] == 2


def test_a_sweep_sets_the_same_outputs_at_every_temperature_against_people() -> None:
    rows = judged("j", [1, 2, 3], 0.5) + judged("j", [3, 2, 1], 1.5)
    report = build_report(rows, human("a", [1, 2, 3]), [], [], {})
    swept = {name: one["style_following"] for name, one in report["sweep"]["j"].items()}
    assert swept["0.5"]["r_with_people"]["r"] == pytest.approx(1)
    assert swept["1.5"]["r_with_people"]["r"] == pytest.approx(-1)
    assert swept["1.5"]["systems"]["s"] == {"mean": 2, "sd": 1, "n_scored": 3, "n_asked": 3}
    assert list(report["table_1"]["style_following"]["s"]) == ["j T=0.5", "j T=1.5", "people"]
    assert "| j | 0.5 | style_following | 1.000 (1 of 1 pairs) | s 2.00 ± 1.00 |" in markdown(report)


# -- files ------------------------------------------------------------------------------------------------------------


def test_verdicts_are_read_as_they_were_written(tmp_path: Path) -> None:
    verdict = Verdict("j", "1", "h", 3.4, "why", "reply", 0.1, 1.0, (3.0, 3.0, 3.0, 4.0, 4.0), 0.5477)
    rows = [
        row_of("i0", "s", "style_following", "j", None, verdict),
        row_of("i1", "s", "role_play_realism", "j", 0.5, Unscored("j", "no score", "Hm.")),
    ]
    save_rows(tmp_path / "v.jsonl", rows)
    assert load_rows([tmp_path / "v.jsonl"]) == rows
    assert rows[0].votes == verdict.votes
    assert (rows[1].unscored, rows[1].reply, rows[1].label) == ("no score", "Hm.", "j T=0.5")
    with pytest.raises(DataError, match=r"v\.jsonl:1: .*occurs more than once"):
        load_rows([tmp_path / "v.jsonl", tmp_path / "v.jsonl"])


ROW = {"item": "i", "system": "s", "task": "role_play_style", "judge": "j", "score": 3}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"score": 6}, "score: 6.0 of role_play_style is not between 1 and 5"),
        ({"task": "role_play_realism", "score": 3}, "not between 0 and 1"),
        ({"task": "mos"}, "'mos' is none of"),
        ({"score": None}, "give either a score or the reason"),
        ({"unscored": "why"}, "give either a score or the reason"),
        ({"score": "3"}, "score"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_verdict_is_refused_by_line_and_key(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"item": "k"} | changed) + "\n")
    with pytest.raises(DataError, match=says) as caught:
        load_rows([path])
    assert f"{path}:2:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("item,system,task,rater,score\n", "holds no scores"),
        ("item,system,task,rater,score\ni,s,style_following,r,7\n", ":2: row: .*not between"),
        ("item,system,task,rater,score\ni,s,style_following,r,x\n", ":2: score"),
        ("item,system,task,rater,score\ni,s,style_following,r\n", ":2: score"),
        ("item,system,task,rater,score\ni,s,style_following,r,3,4\n", ":2: .*more values than columns"),
        ("item,system,task,score\ni,s,style_following,3\n", ":2: rater"),
        ("item,system,task,rater,score\n" + 2 * "i,s,style_following,r,3\n", ":3: .*occurs more than once"),
    ],
)
def test_wrong_scores_of_people_are_refused_by_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "h.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        load_human(path)


def test_scores_of_people_are_read_whatever_a_spreadsheet_adds(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("\ufeffitem,system,task,rater,score\n i , s ,role_play_realism, r , 1 \n", encoding="utf-8")
    assert load_human(path) == [HumanRow(item="i", system="s", task="role_play_realism", rater="r", score=1)]
