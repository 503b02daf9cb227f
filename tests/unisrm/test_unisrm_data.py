"""The embedded edition of UniSRM's data, and its shortcuts.

Not covered: whether people agree with the labels.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tiny.unisrm import pair_record

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.audio.synthesis import Speaker, Style
from paras2s.data_gen.tts.piper_world import AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen import embedded
from paras2s.unisrm.data_gen.embedded import ANSWERS, DRIVE_DB, SPLITS, build_embedded, load_scenes, sentences, speakers
from paras2s.unisrm.data_gen.shortcuts import measure_shortcuts
from paras2s.unisrm.data_gen.takes import Faults, Take, driven, echoing, in_words, noisy, traits, with_gaps
from paras2s.unisrm.reward.items import TAKES, read_items
from paras2s.unisrm.reward.reply import parse_reply, write_reply
from paras2s.unisrm.reward.tasks import TASKS, Item
from paras2s.utils.io import read_jsonl

# Fewer sessions than pairs, so that clips serve more than one.
SIZE = embedded.Size(sft=6, sft_clips=4, sessions=2, rl=1, bench=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unisrm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded.SIZES, "ci", SIZE)
        report = build_embedded(folder, "ci")
    return folder, report, read_items(folder)


def test_every_task_has_its_items_and_clips(built):
    folder, report, items = built
    assert report.items == {(task, split): SIZE.items(split, task) for task in TASKS for split in SPLITS}
    assert report.items["T2", "sft"] == 4
    assert {path.name for path in (folder / "clips").iterdir()} == {
        name.removeprefix("clips/") for item in items for name in item.clips.values()
    }
    for item in items:
        assert parse_reply(item.task, write_reply(item.task, item.record)) is not None
        clips = [read_clip(folder / path) for path in item.clips.values()]
        assert all(0.5 < clip.duration_s < 12 for clip in clips)


def test_every_clip_says_what_it_was_made_with(built):
    folder, _, items = built
    rows = {row["clip"]: row for row in read_jsonl(folder / TAKES)}
    assert rows.keys() == {path for item in items for path in item.clips.values()}
    for item in items:
        assert {rows[path]["split"] for path in item.clips.values()} == {item.split}
        if item.task == "T2":
            (row,) = (rows[path] for path in item.clips.values())
            noise, distortion, *_ = item.record.scores
            assert row["traits"]["noise"] == dict(zip((5, 4, 3, 2, 1), (0, 6, 14, 22, 30), strict=True))[noise]
            assert row["traits"]["drive"] == DRIVE_DB[5 - int(distortion)]
            assert row["text"] == item.factors["spoken"]
        else:
            assert rows[item.clips["speech_a"]]["text"] == item.factors["spoken_a"]


def test_traits_grow_with_what_one_hears():
    plain = Take("x", Speaker("s", 2.0, 1.0), Style(), Faults(), 0)
    other = Take(
        "x", Speaker("s", 1.0, 2.0), Style(f0_level=0.5, rate=2.0, gain=0.25),
        Faults(snr_db=30.0, gaps=2, coded=True, echo_s=0.7), 0,
    )  # fmt: skip
    assert traits(plain) == dict.fromkeys(traits(plain), 0.0) | {"pitch": 1.0, "f0_range": 1.0}
    assert traits(other) == traits(plain) | {
        "pitch": -1.0, "formants": 1.0, "pace": 1.0, "level": -2.0, "noise": 10.0, "gaps": 2.0, "coded": 1.0,
        "echo": 3.0,
    }  # fmt: skip


def test_a_take_is_described_by_manner_voice_and_signal():
    male, child = SPEAKERS["train"]["male"][0], SPEAKERS["test"]["child"][1]
    plain = Take("x", male, Style(), Faults(), 0)
    assert in_words(plain) == "neutral, male, clean"
    assert in_words(replace(plain, style=USER_STYLES["fear"], speaker=child)) == "fear, child, clean"
    assert in_words(replace(plain, style=AGENT_TONES["calm"], faults=Faults(coded=True))) == "calm, male, coded"
    assert (
        in_words(replace(plain, style=Style(f0_range=0.2), faults=Faults(snr_db=6.0, gaps=3))) == "flat, male, noisy and broken"
    )
    assert in_words(replace(plain, faults=Faults(drive_db=18.0))) == "neutral, male, clipped"
    assert in_words(replace(plain, faults=Faults(echo_s=0.6, snr_db=18.0))) == "neutral, male, noisy and echoing"
    assert in_words(replace(plain, style=Style(rate=1.5, tilt_db_octave=-6.0))) == "fast and muffled, male, clean"
    assert in_words(replace(plain, style=Style(rate=0.66, f0_range=0.22))) == "slow and flat, male, clean"
    assert in_words(replace(plain, style=Style(rate=1.25, f0_range=0.7), faults=Faults(echo_s=0.25))) == "neutral, male, clean"


def test_all_clips_have_descriptions_and_those_of_quality_agree_with_its_reasons(built):
    folder, _, items = built
    rows = {row["clip"]: row["in_words"] for row in read_jsonl(folder / TAKES)}
    for item in items:
        assert all(rows[path].count(", ") == 2 for path in item.clips.values())
        if item.task == "T2":
            said, voice = rows[item.clips["speech"]], item.record.descriptions[3]
            assert ("echoing" in said, "muffled" in said) == ("echoing" in voice, "muffled" in voice)
            assert ("fast" in said, "slow" in said) == ("fast" in item.record.description, "slow" in item.record.description)
            assert ("fast" in said or "slow" in said) is (item.record.scores[2] < 4)


def test_a_reason_says_which_voice_or_manner_it_is_before_the_score_of_it(built):
    folder, _, items = built
    rows = {row["clip"]: row["in_words"].split(", ") for row in read_jsonl(folder / TAKES)}
    turns = set()
    for item in items:
        for letter, side in zip("ab", item.record.sides if item.task != "T2" else (), strict=False):
            manner, voice, _ = rows[item.clips[f"speech_{letter}"]]
            first, second, third, *_ = (reason.partition(", ")[2] for reason in side.explanations)
            if item.task == "T1":
                assert (first, second) == (f"a {voice} voice after {rows[item.clips['prompt_speech']][1]}", "")
            elif item.task == "T3":
                assert (first, second) == (f"{manner} where {item.texts['target_emotion']} is wanted", "")
            else:
                *earlier, question = sorted(name for name in item.clips if name.startswith("history"))
                after = "".join(f" after {rows[item.clips[name]][1]}" for name in earlier)
                assert (first, second) == (f"a {voice} voice{after}", "")
                assert third == f"{manner} after {rows[item.clips[question]][0]}"
                turns.add(len(earlier))
    assert turns == {0, 1}


def test_scenes_of_sft_do_not_always_tell_the_target(built):
    _, _, items = built
    plain = load_scenes()["plain_scenes"]
    scenes = [(item.split, item.texts["scenario_description"] in plain) for item in items if item.task == "T3"]
    assert {("sft", True), ("sft", False)} <= set(scenes)
    assert {one for split, one in scenes if split != "sft"} == {False}


def test_tone_is_told_by_nothing_but_tone_where_the_answer_fits_every_question(built):
    _, _, items = built
    shown = load_scenes()["acknowledgements"]
    for item in items:
        if item.task == "T4" and item.factors["spoken_a"] in shown[item.split]:
            assert item.factors["fault"] in ("tone", "voice")
            assert item.factors["spoken_a"] == item.factors["spoken_b"]


def test_pairs_for_sft_share_clips_and_no_two_others_do(built):
    folder, _, items = built
    rows = {row["clip"]: row for row in read_jsonl(folder / TAKES)}
    for task in ("T1", "T3", "T4"):
        for split in SPLITS:
            paths = [path for item in items if (item.task, item.split) == (task, split) for path in item.clips.values()]
            assert (len(set(paths)) < len(paths)) is (split == "sft")
    taught = [item for item in items if (item.task, item.split) == ("T3", "sft")]
    assert {item.record.better for item in taught} == {"A", "B"}
    for item in taught:
        spoken = [rows[item.clips[name]] for name in ("speech_a", "speech_b")]
        match = [side.scores[1] for side in item.record.sides]
        if match[0] != match[1]:
            assert spoken[0]["traits"] != spoken[1]["traits"]
        assert (spoken[0]["text"] == item.texts["target_text"]) is (item.record.sides[0].scores[0] == 10)


def test_splits_share_no_text_and_no_speaker(built):
    _, _, items = built
    said, voices, ids = ({split: set() for split in SPLITS} for _ in range(3))
    for item in items:
        spoken = [value for name, value in item.factors.items() if name.startswith(("spoken", "history"))]
        said[item.split] |= {text for value in spoken for text in value.split(" | ")}
        voices[item.split] |= set(item.speakers)
        ids[item.split].add(item.text_id)
    for kind in (said, voices, ids):
        assert all(kind.values())
        assert sum(map(len, kind.values())) == len(set().union(*kind.values()))


def test_all_that_may_be_spoken_or_shown_belongs_to_one_split():
    texts = {split: [one.text for one in sentences(split)] for split in SPLITS}
    names = {split: [one.name for group in speakers(split).values() for one in group] for split in SPLITS}
    shown = load_scenes()
    lines = {
        split: [
            *shown["openers"][split],
            *shown["acknowledgements"][split],
            *(line for scene in shown["scenes"].values() for line in scene[split]),
            *(shown["plain_scenes"] if split == "sft" else ()),
        ]
        for split in SPLITS
    }
    for kind in (texts, names, lines, ANSWERS):
        everything = [one for split in SPLITS for one in kind[split]]
        assert len(everything) == len(set(everything))
        assert len(everything) > len(SPLITS)
    assert len(texts["sft"]) > len(texts["bench"]) > 10


def test_the_same_seed_gives_the_same_items_and_a_wrong_size_is_refused(built, tmp_path):
    _, _, items = built
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded.SIZES, "ci", SIZE)
        patch.setattr(embedded, "SPLITS", ("sft",))
        build_embedded(tmp_path, "ci", tasks=("T1",))
    assert read_items(tmp_path) == [item for item in items if (item.task, item.split) == ("T1", "sft")]
    with pytest.raises(ConfigError, match="there are ci, small, medium, full"):
        build_embedded(tmp_path, "huge")


def test_faults_are_what_they_say():
    rng = np.random.default_rng(0)
    speech = (0.1 * rng.standard_normal(16_000)).astype(np.float32)
    noise = noisy(speech, 10.0, seed=3) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(noise**2)) == pytest.approx(10, abs=0.01)
    clipped = driven(speech, 20.0)
    assert np.sqrt(np.mean(clipped**2)) == pytest.approx(np.sqrt(np.mean(speech**2)), rel=1e-4)
    assert np.mean(np.abs(clipped) > 0.999 * np.abs(clipped).max()) > 0.4
    assert driven(speech, 0.0) is speech
    cut = with_gaps(speech, 3, seed=1)
    assert len(cut) == len(speech) + 3 * 2_880
    assert (cut == 0).sum() == 3 * 2_880
    assert np.array_equal(cut[cut != 0], speech)
    assert np.array_equal(with_gaps(speech, 0, seed=1), speech)


def test_an_echo_is_as_strong_as_the_speech_and_falls_by_sixty_db_in_its_time():
    click = np.zeros(16_000, dtype=np.float32)
    click[0] = 1.0
    echoed = echoing(click, 0.5, seed=1).astype(np.float64) ** 2
    assert echoed[0] == pytest.approx(echoed[1:].sum(), rel=1e-4)
    assert echoed.sum() == pytest.approx(1.0, rel=1e-4)
    falls_db = 10 * np.log10(echoed[800:1_600].sum() / echoed[4_800:5_600].sum())
    assert falls_db == pytest.approx(60 * 0.25 / 0.5, abs=1.0)
    assert np.array_equal(echoing(click, 0.0, seed=1), click)


# Shortcuts.


def pairs(folder, shortcut):
    """Pairs of which the better clip is the longer one with probability `shortcut`."""
    rng = np.random.default_rng(1)
    items = []
    for number in range(60):
        better, longer_wins = rng.choice(["A", "B"]), rng.random() < shortcut
        clips = {}
        for side in "AB":
            long = (side == better) == longer_wins
            path = f"{number}{side}.wav"
            write_clip(folder / path, Clip((0.1 * rng.standard_normal(3_200 if long else 1_600)).astype(np.float32), 16_000))
            clips[f"speech_{side.lower()}"] = path
        record = pair_record(better, (9, 9, 9), (1, 1, 1)) if better == "A" else pair_record("B", (1, 1, 1), (9, 9, 9))
        texts = dict.fromkeys(TASKS["T3"].texts, f"word{better if shortcut == 1 else ''}")
        items.append(Item(str(number), "T3", ("sft", "bench")[number % 2], "t", ("x",), texts, clips, record))
    return items


@pytest.mark.parametrize(("shortcut", "low", "high"), [(1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.5, 0.25, 0.75)])
def test_a_shortcut_is_found_where_there_is_one(tmp_path, shortcut, low, high):
    found = {one.name: one for one in measure_shortcuts(tmp_path, pairs(tmp_path, shortcut))}
    assert low <= found["length"].value <= high
    assert found["engine"].value == 0.5
    assert (found["text alone"].value == 1.0) is (shortcut == 1.0)
    assert found["majority"].n == 30


def test_shortcuts_of_an_embedded_edition(built):
    folder, _, items = built
    found = measure_shortcuts(folder, items)
    assert Counter(one.task for one in found) == {"T1": 5, "T2": 2, "T3": 5, "T4": 5}
    assert next(one for one in found if one.task == "T4" and one.name == "text alone").value is None
    assert measure_shortcuts(folder, [replace(item, split="rl") for item in items]) == []
