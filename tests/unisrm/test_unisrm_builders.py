"""UniSRM-Data from LibriTTS-R, ESD and DailyTalk, in made folders of their layouts, with scripted judge, writer and TTS.

Not covered: the releases themselves, real TTS systems and judges, and whether their labels are right.
"""

import json
from collections import Counter
from contextlib import ExitStack

import pytest
from tiny.endpoint import Fail, Say, ScriptedEndpoint, said
from tiny.spoken import EMOTIONS, STYLES, clips_sent, code_of, listen, scores_reply, speaks, spoken, writes
from typer.testing import CliRunner

from paras2s.audio.clip import read_clip, write_clip
from paras2s.cli.app import app
from paras2s.configs.schema.unisrm_data import UniSRMDataConfig, load_unisrm_data
from paras2s.data_gen.tts.local import shape_of
from paras2s.errors import ConfigError, DataError, EndpointError, JudgeError
from paras2s.unisrm.data_gen.builders.build import BUILDERS, build_corpus, estimate_corpus
from paras2s.unisrm.data_gen.builders.dialogue import read_dailytalk
from paras2s.unisrm.data_gen.builders.plans import text_key
from paras2s.unisrm.data_gen.builders.preference import contradicting
from paras2s.unisrm.data_gen.builders.scenario import STYLES as ESD_STYLES
from paras2s.unisrm.data_gen.import_layout import keys_of
from paras2s.unisrm.reward.items import read_items, write_items
from paras2s.unisrm.reward.reply import parse_reply, write_reply
from paras2s.unisrm.reward.tasks import TASKS, Item, PairRecord

READERS, SENTENCES = 6, 4
SPLITS = ("sft", "rl", "bench")


class Servers:
    """A judge, a writer and two TTS systems; `score(request)` gives both candidates' scores, or a reply."""

    def __init__(self, stack, score):
        self.score, self.writes = score, writes
        self.broken_after = None
        self.llm = stack.enter_context(ScriptedEndpoint(self._answer))
        self.tts = [stack.enter_context(ScriptedEndpoint(speaks(system))) for system in (1, 2)]

    def _answer(self, sent, number):
        if self.broken_after is not None and number >= self.broken_after:
            return Fail(401, "no such key")
        if isinstance(sent["messages"][-1]["content"], str):
            return self.writes(sent)
        found = self.score(sent)
        return found if isinstance(found, Say) else Say(found)

    def config(self, folder, size=(4, 2, 2), **changes):
        llm = {"base_url": self.llm.base_url, "model": "m", "backoff_s": 0.0, "concurrency": 1}
        sizes = dict(zip(SPLITS, size, strict=True))
        voices = [
            {"name": f"s{number}", "engine": "cosyvoice", "languages": ["en", "zh"],
             "endpoint": {"base_url": one.base_url.removesuffix("/v1"), "model": f"s{number}", "backoff_s": 0.0}}
            for number, one in enumerate(self.tts, 1)
        ]  # fmt: skip
        values = {
            "kind": "unisrm_data", "name": "t", "cache_dir": str(folder / "cache"), "max_tries": 2.0, "voices": voices,
            "sizes": dict.fromkeys(("T1", "T3-en", "T3-zh", "T4"), sizes), "writer": llm,
            "judges": {task: {"llm": llm} for task in ("T1", "T3", "T4")},
        }  # fmt: skip
        return UniSRMDataConfig.model_validate(values | changes)

    def judged(self):
        return [one for one in self.llm.requests if not isinstance(one["messages"][-1]["content"], str)]


@pytest.fixture
def servers(request):
    with ExitStack() as stack:
        yield Servers(stack, request.param if hasattr(request, "param") else None)


def libritts(root):
    for reader in range(READERS):
        folder = root / "dev-clean" / str(100 + reader) / "7"
        for number in range(SENTENCES):
            text = f"Reader {reader} reads sentence {number}."
            name = f"{100 + reader}_7_{number:06d}_000000"
            write_clip(folder / f"{name}.wav", spoken(code_of(text), reader))
            (folder / f"{name}.normalized.txt").write_text(text)
    return root


def esd(root, sentences=6):
    """Four Chinese and four English speakers; words in the encodings of the release."""
    for number, encoding in zip(
        (1, 2, 3, 4, 11, 12, 13, 14), ("gb18030", "utf-16", "utf-8", "gb18030", *["latin-1"] * 4), strict=True
    ):
        speaker, lines = f"{number:04d}", []
        for place, emotion in enumerate(EMOTIONS):
            for sentence in range(sentences):
                text = f"第{sentence}句话，你好吗？" if number < 11 else f"Caf\u00e9 number {sentence} is closed."
                name = f"{speaker}_{place * 350 + sentence + 1:06d}"
                lines.append(f"{name}\t{text}\t{emotion}")
                folder = root / speaker / emotion / ("train" if number == 11 else "")
                write_clip(folder / f"{name}.wav", spoken(code_of(text), number, place))
        (root / speaker / f"{speaker}.txt").write_bytes("\n".join([*lines, "", "broken"]).encode(encoding))
    return root


def speaker_of(dialogue, turn):
    """In every other dialogue somebody speaks twice in a row."""
    return (0, 1, 1, 0, 1)[turn] if dialogue % 2 else turn % 2


def dailytalk(root, dialogues=9, turns=5):
    metadata = {}
    for dialogue in range(dialogues):
        metadata[str(dialogue)] = {}
        for turn in range(turns):
            text, speaker = f"Dialogue {dialogue} has turn {turn}.", speaker_of(dialogue, turn)
            emotion = ("no emotion", "happiness", "anger")[(dialogue + turn) % 3]
            metadata[str(dialogue)][str(turn)] = {"emotion": emotion, "text": text, "speaker": speaker}
            stem = root / "data" / str(dialogue) / f"{turn}_{speaker}_d{dialogue}"
            write_clip(stem.with_suffix(".wav"), spoken(code_of(text), speaker, (dialogue + turn) % 3))
            stem.with_suffix(".txt").write_text(text)
    (root / "metadata.json").write_text(json.dumps(metadata))
    return root


def prefers(better_than):
    """A judge of T1: whole points for what made a clip, by `better_than(system, other, words)`."""

    def score(sent):
        first, second = (clips_sent(sent)[f"[Speech {side}]"] for side in "AB")
        gap = better_than(first.system, second.system, first.words)
        return scores_reply(TASKS["T1"].keys, (9, 9, 9, 5 + gap), (9, 9, 9, 5))

    return score


def fits_scene(sent):
    """A judge of T3: it knows the wanted words and the wanted emotion from the texts, and those of a clip by listening."""
    content = sent["messages"][-1]["content"]
    text = "\n".join(part["text"] for part in content if part["type"] == "text")
    wanted = {name: json.loads(text.split(f"<data {name}>\n")[1].split("\n")[0]) for name in ("target_text", "target_emotion")}
    sides = []
    for side in "AB":
        clip = clips_sent(sent)[f"[Speech {side}]"]
        words, emotion = clip.words == code_of(wanted["target_text"]), STYLES[clip.emotion] == wanted["target_emotion"]
        sides.append((9 if words else 1, 9 if emotion else 1, 9))
    return scores_reply(TASKS["T3"].keys, *sides)


def test_cycles_are_found_wherever_they_lie():
    assert contradicting([("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"), ("e", "a")]) == [True, True, True, False, False]
    assert contradicting([("a", "b"), ("b", "c"), ("a", "c")]) == [False] * 3
    assert contradicting([]) == []
    two = [("a", "b"), ("b", "a"), ("b", "x"), ("x", "y"), ("y", "z"), ("z", "x")]
    assert contradicting(two) == [True, True, False, True, True, True]


def check_disjoint(items, shared=()):
    owners = {}
    for item in items:
        for key in keys_of(item):
            if key.partition(":")[2] not in shared:
                assert owners.setdefault(key, item.split) == item.split
    return owners


@pytest.mark.parametrize("servers", [prefers(lambda one, other, _: other - one)], indirect=True)
def test_t1_pairs_every_system_and_the_recording_and_splits_share_no_reader_and_no_sentence(servers, tmp_path):
    config = servers.config(tmp_path, (6, 3, 3))
    report = build_corpus("libritts-r", config, libritts(tmp_path / "in"), tmp_path / "out")
    assert (report.items, report.missing) == ({"sft": 6, "rl": 3, "bench": 3}, {})
    items = read_items(tmp_path / "out")
    check_disjoint(items)
    assert {name.partition(":")[0] for item in items for name in item.speakers} == {"libritts-r"}
    systems = {"recording": 0, "s1": 1, "s2": 2}
    for item in items:
        made = [systems[item.factors[f"engine_{side}"]] for side in "ab"]
        assert item.record.better == ("A" if made[0] < made[1] else "B")
        sounds = {name: listen(read_clip(tmp_path / "out" / path)) for name, path in item.clips.items()}
        assert [sounds["speech_a"].system, sounds["speech_b"].system] == made
        assert len({one.speaker for one in sounds.values()}) == 1
        assert sounds["prompt_speech"].words != sounds["speech_a"].words == code_of(item.texts["reference_text"])
        assert parse_reply("T1", write_reply("T1", item.record)) == item.record
    assert len({tuple(sorted((one.factors["engine_a"], one.factors["engine_b"]))) for one in items}) == 3
    # The order says nothing: the same pair of systems stands in both.
    assert {"A", "B"} == {item.record.better for item in items}


def test_t1_drops_cycles_and_equal_totals_and_counts_them(servers, tmp_path):
    root = libritts(tmp_path / "in")
    codes = sorted({code_of(path.read_text()) for path in root.rglob("*.txt")})
    cycle, equal = codes[0], codes[1]

    def better(one, other, words):
        if words == equal and {one, other} == {0, 1}:
            return 0
        # Each system beats the next one, and the last the first.
        return (1 if (one + 1) % 3 == other else -1) if words == cycle else other - one

    servers.score = prefers(better)
    config = servers.config(tmp_path, (300, 300, 300))
    report = build_corpus("libritts-r", config, root, tmp_path / "out")
    why = Counter()
    for (_, reason), count in report.dropped.items():
        why[reason] += count
    assert why == {"a cycle of preferences": 3, "equal totals": 1}
    assert sum(report.items.values()) == READERS * SENTENCES * 3 - 4
    assert sum(report.missing.values()) == 900 - sum(report.items.values())
    rows = [json.loads(line) for line in (tmp_path / "out" / "dropped-libritts-r.jsonl").read_text().splitlines()]
    assert Counter(row["reason"] for row in rows) == why


@pytest.mark.parametrize("servers", [fits_scene], indirect=True)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_t3_has_every_kind_of_hard_negative_and_labels_by_construction(servers, tmp_path, language):
    config = servers.config(tmp_path, (15, 5, 5))
    report = build_corpus(f"esd-{language}", config, esd(tmp_path / "in"), tmp_path / "out")
    assert (report.items, report.missing) == ({"sft": 15, "rl": 5, "bench": 5}, {})
    # Of 4 speakers, 6 sentences and 5 emotions: what is not of one split's speakers and sentences at once.
    assert report.dropped.pop(("", "a line of words that is not NAME, WORDS, EMOTION")) == 4
    ((reason, apart),) = report.dropped.items()
    assert reason == ("", "a recording whose speaker and sentence are in different splits")
    assert apart < 4 * 6 * 5
    items = read_items(tmp_path / "out")
    check_disjoint(items)
    for item in items:
        good, bad = "ab" if item.record.better == "A" else "ba"
        assert item.factors[f"engine_{good}"] == "recording"
        sounds = {side: listen(read_clip(tmp_path / "out" / item.clips[f"speech_{side}"])) for side in "ab"}
        assert STYLES[sounds[good].emotion] == item.texts["target_emotion"]
        same_words = sounds[bad].words == sounds[good].words
        same_emotion = sounds[bad].emotion == sounds[good].emotion
        assert (same_words, same_emotion) == {
            "emotion": (True, False), "words": (False, True), "words and emotion": (False, False),
            "synthetic emotion": (True, False), "synthetic words": (False, False),
        }[item.factors["fault"]]  # fmt: skip
        assert (sounds[bad].system > 0) == ("synthetic" in item.factors["fault"])
        assert item.texts["paragraph_context"]
        assert item.factors["language"] == language
    assert len({item.factors["fault"] for item in items}) == 5
    # A scene is written once for a sentence and an emotion, and for no judge's eyes alone.
    scenes = [one for one in servers.llm.requests if "Invent a situation" in json.dumps(one)]
    assert len(scenes) == len({json.dumps(one["messages"]) for one in scenes})


def test_texts_of_the_wrong_language_or_the_wanted_words_again_are_refused(servers, tmp_path):
    english = {"scenario_description": "At home.", "paragraph_context": "It rains."}
    servers.writes = lambda sent: Say(json.dumps(english))
    with pytest.raises(JudgeError, match=r"writer: .* failed.*no scene: scenario_description: is not Chinese"):
        build_corpus("esd-zh", servers.config(tmp_path), esd(tmp_path / "in"), tmp_path / "out")

    def repeats(sent):
        text = said(sent)
        found = text.partition("Caf\\u00e9 number ")[2] or text.partition("Caf\u00e9 number ")[2]
        again = {"sentence": f"CAF\u00c9 NUMBER {found[:1]} IS CLOSED"}
        return Say(json.dumps(again)) if "another sentence" in text else writes(sent)

    servers.writes, servers.score = repeats, fits_scene
    report = build_corpus("esd-en", servers.config(tmp_path, (20, 0, 0)), esd(tmp_path / "en"), tmp_path / "out")
    assert report.dropped["sft", "no wrong words: the LLM wrote the original words again"] > 0
    assert "synthetic words" not in {item.factors["fault"] for item in read_items(tmp_path / "out")}


def test_t3_may_take_prompts_of_libritts_from_the_same_splits_as_t1(servers, tmp_path):
    servers.score = prefers(lambda one, other, _: other - one)
    readers = libritts(tmp_path / "libri")
    config = servers.config(tmp_path, (20, 6, 6), prompt_corpus=str(readers))
    build_corpus("libritts-r", config, readers, tmp_path / "out")
    servers.score = fits_scene
    report = build_corpus("esd-en", config, esd(tmp_path / "in"), tmp_path / "out")
    items = read_items(tmp_path / "out")
    assert {item.factors["corpus"] for item in items} == {"libritts-r", "esd-en"}
    check_disjoint(items)
    copied = [item for item in items if item.task == "T3" and any("libritts" in name for name in item.speakers)]
    assert copied
    assert all(item.texts["target_emotion"] != "neutral" for item in copied)
    assert not any("its speaker is in" in reason for _, reason in report.dropped)


def follows(sent):
    """A judge of T4: it knows the corpus by the words of the last turn, and so words, voice and tone of the next one."""
    clips = clips_sent(sent)
    last = clips[f"[Turn {len(clips) - 2}]"].words
    dialogue, turn = next(
        (d, t + 1) for d in range(9) for t in range(5) if code_of(f"Dialogue {d} has turn {t}.") == last
    )  # fmt: skip
    sides = []
    for side in "AB":
        clip = clips[f"[Speech {side}]"]
        words = 9 if clip.words == code_of(f"Dialogue {dialogue} has turn {turn}.") else 1
        voice = 9 if clip.speaker == speaker_of(dialogue, turn) else 1
        # A copied voice brings the tone of its prompt along, also to a right turn with another fault in its negative.
        tone = 9 if clip.emotion == (dialogue + turn) % 3 else 8
        sides.append((words, voice, words, tone, 9))
    return scores_reply(TASKS["T4"].keys, *sides)


@pytest.mark.parametrize("servers", [follows], indirect=True)
def test_t4_judges_the_next_turn_of_a_spoken_history(servers, tmp_path):
    config = servers.config(tmp_path, (9, 3, 3), synthetic_positives=0.5, seed=2)
    report = build_corpus("dailytalk", config, dailytalk(tmp_path / "in"), tmp_path / "out")
    # No negative is as good as its positive, not even where somebody speaks twice in a row.
    assert report.dropped == {}
    items = read_items(tmp_path / "out")
    assert sum(report.items.values()) == len(items) > 9
    shared = {"dailytalk:0", "dailytalk:1"}
    owners = check_disjoint(items, shared)
    assert len(owners) == len({item.text_id for item in items}) == len(items)
    dialogues = {split: {item.factors["dialogue"] for item in items if item.split == split} for split in SPLITS}
    assert sum(map(len, dialogues.values())) == len(set().union(*dialogues.values()))
    kinds = Counter()
    for item in items:
        sounds = {name: listen(read_clip(tmp_path / "out" / path)) for name, path in item.clips.items()}
        turns = len(sounds) - 2
        number = item.factors["dialogue"]
        assert [sounds[f"history_{n + 1}"].words for n in range(turns)] == [
            code_of(f"Dialogue {number} has turn {n}.") for n in range(turns)
        ]
        good, bad = ("speech_a", "speech_b") if item.record.better == "A" else ("speech_b", "speech_a")
        assert sounds[good].words == code_of(f"Dialogue {number} has turn {turns}.")
        assert sounds[good].speaker == speaker_of(int(number), turns)
        assert (sounds[good].system > 0) == (item.factors["positive"] == "synthetic")
        fault = item.factors["fault"]
        assert (sounds[bad].words != sounds[good].words) == ("words" in fault)
        assert (sounds[bad].speaker != sounds[good].speaker) == ("voice" in fault)
        if item.factors["positive"] == "synthetic":
            assert item.factors["engine_a"] == item.factors["engine_b"]
        kinds[fault] += 1
        kinds[item.factors["positive"]] += 1
    assert {"words", "voice", "words and voice", "synthetic", "recording"} <= set(kinds)


@pytest.mark.parametrize("servers", [fits_scene], indirect=True)
def test_what_another_data_set_has_in_another_split_is_not_taken(servers, tmp_path):
    sentences = [f"Caf\u00e9 number {number} is closed." for number in range(6)]
    clips = {"prompt_speech": "p.wav", "speech_a": "a.wav", "speech_b": "b.wav"}
    others = [
        Item(
            f"x{number}", "T1", "sft", text_key(text), ("x",), {"reference_text": text}, clips, PairRecord("A"), {"corpus": "x"}
        )
        for number, text in enumerate(sentences)
    ]
    write_items(tmp_path / "out", others)
    report = build_corpus("esd-en", servers.config(tmp_path, (5, 5, 5)), esd(tmp_path / "in"), tmp_path / "out")
    assert report.items == {"sft": 5}
    assert report.missing == {"rl": 5, "bench": 5}
    assert report.dropped["bench", "its text is in sft"] > 0
    # They stay beside the new ones, and nothing was judged in vain.
    assert read_items(tmp_path / "out")[:6] == others
    assert len(servers.judged()) == 5


def test_a_judge_that_cannot_be_read_is_not_paid_on_and_on(servers, tmp_path):
    servers.score = lambda sent: "Both are fine."
    with pytest.raises(JudgeError, match=r"judge: 12 of 12 failed, more than max_failed_share allows"):
        build_corpus("esd-en", servers.config(tmp_path, (12, 0, 0)), esd(tmp_path / "in"), tmp_path / "out")
    assert not (tmp_path / "out" / "items.jsonl").exists()


def test_every_emotion_has_a_style_that_the_engines_of_this_machine_know():
    assert list(ESD_STYLES) == list(EMOTIONS)
    assert all(shape_of(style) for style in ESD_STYLES.values())


def test_an_incomplete_dialogue_is_counted(servers, tmp_path):
    root = dailytalk(tmp_path / "in", dialogues=7)
    data = root / "data"
    (data / "0" / "1_1_d0.wav").unlink()
    (data / "1" / "1_1_d1.txt").write_text(" ")
    (data / "2" / "0_1_d2.wav").write_bytes((data / "2" / "0_0_d2.wav").read_bytes())
    (data / "2" / "0_1_d2.txt").write_text("again")
    (data / "3" / "0_0_d3.wav").rename(data / "3" / "hello.wav")
    metadata = json.loads((root / "metadata.json").read_text())
    del metadata["4"]["2"]
    (root / "metadata.json").write_text(json.dumps(metadata))
    dialogues, dropped = read_dailytalk(root)
    assert [one.name for one in dialogues] == ["5", "6"]
    assert {one.id: one.reason for one in dropped} == {
        "0": "a turn is missing", "1": "a turn has no words", "2": "a turn occurs twice",
        "3": "a clip is not named TURN_SPEAKER_dDIALOGUE", "4": "a turn has no emotion in metadata.json",
    }  # fmt: skip
    # The first two turns are no targets: their speakers have not been heard.
    assert dialogues[0].targets == [2, 3, 4]


def test_a_judge_against_the_construction_loses_the_item_and_is_counted(servers, tmp_path):
    def contrary(sent):
        reply = json.loads(fits_scene(sent))
        if '"happy"' in json.dumps(sent).replace("\\", ""):
            reply["speech_a"], reply["speech_b"] = reply["speech_b"], reply["speech_a"]
            reply["better"] = "BA"["AB".index(reply["better"])]
        elif '"sad"' in json.dumps(sent).replace("\\", ""):
            reply["better"] = "BA"["AB".index(reply["better"])]
        return json.dumps(reply)

    servers.score = contrary
    report = build_corpus("esd-en", servers.config(tmp_path, (20, 0, 0)), esd(tmp_path / "in"), tmp_path / "out")
    assert report.dropped["sft", "the judge's totals are against the construction"] > 0
    assert report.dropped["sft", "the judge's answer is against its totals"] > 0
    emotions = {item.texts["target_emotion"] for item in read_items(tmp_path / "out")}
    assert emotions == {"neutral", "angry", "surprised"}


@pytest.mark.parametrize("servers", [fits_scene], indirect=True)
def test_a_build_that_is_stopped_goes_on_and_pays_nothing_twice(servers, tmp_path):
    root = esd(tmp_path / "in")
    build_corpus("esd-en", servers.config(tmp_path / "one"), root, tmp_path / "uninterrupted")
    calls = len(servers.llm.requests)
    config = servers.config(tmp_path / "other")
    servers.broken_after = calls + 7
    with pytest.raises(EndpointError):
        build_corpus("esd-en", config, root, tmp_path / "resumed")
    assert not (tmp_path / "resumed" / "items.jsonl").exists()
    refused, servers.broken_after = len(servers.llm.requests) - calls - 7, None
    spoken_before = [len(one.requests) for one in servers.tts]
    build_corpus("esd-en", config, root, tmp_path / "resumed")
    assert len(servers.llm.requests) - refused == 2 * calls
    assert refused > 0
    assert [len(one.requests) for one in servers.tts] >= spoken_before
    first, second = ((tmp_path / name / "items.jsonl").read_text() for name in ("uninterrupted", "resumed"))
    assert first == second
    build_corpus("esd-en", config, root, tmp_path / "resumed")
    assert len(servers.llm.requests) - refused == 2 * calls


@pytest.mark.parametrize(
    ("servers", "name", "make"),
    [
        (prefers(lambda one, other, _: other - one), "libritts-r", libritts), (fits_scene, "esd-zh", esd),
        (follows, "dailytalk", dailytalk),
    ],
    indirect=["servers"],
)  # fmt: skip
def test_an_estimate_counts_the_calls_and_makes_none(servers, name, make, tmp_path):
    root, config = make(tmp_path / "in"), servers.config(tmp_path, (3, 3, 3), max_tries=1.0, synthetic_positives=0.0)
    estimate = estimate_corpus(name, config, root, {})
    assert not servers.llm.requests
    report = build_corpus(name, config, root, tmp_path / "out")
    assert sum(bill.calls for bill in estimate.models.values()) == len(servers.llm.requests)
    assert sum(bill.lines for bill in estimate.voices.values()) == sum(len(one.requests) for one in servers.tts)
    assert sum(estimate.pairs.values()) == sum(report.tried.values())


@pytest.mark.parametrize("servers", [prefers(lambda one, other, _: other - one)], indirect=True)
def test_the_verb_estimates_builds_and_measures_shortcuts(servers, tmp_path):
    root = libritts(tmp_path / "in")
    path = tmp_path / "mine.yaml"
    path.write_text(servers.config(tmp_path, (3, 3, 3)).model_dump_json())
    call = ["unisrm", "import", "libritts-r", str(root), str(tmp_path / "out"), "--config", str(path)]
    for option in ("--dry-run", "--estimate"):
        said = CliRunner().invoke(app, [*call, option])
        assert said.exit_code == 0, said.exception
        assert "judge, m: 18 calls" in said.stdout
        # A server on this machine costs nothing.
        assert "at most 0.00 USD" in said.stdout
    assert not (tmp_path / "out").exists()
    assert not servers.llm.requests
    done = CliRunner().invoke(app, [*call, "--json"])
    report = json.loads(done.stdout)
    assert report["items"] == {"sft": 3, "rl": 3, "bench": 3}
    # The scripted judge prefers recordings: the shortcut is plain to see.
    assert {one["name"]: one["value"] for one in report["shortcuts"]}["recording"] > 0.8
    again = CliRunner().invoke(app, [*call, "--set", "sizes.T1={sft: 0, rl: 0, bench: 0}"])
    assert "no items of T1 are requested" in str(again.exception)


def test_another_layout_or_a_missing_voice_is_refused(servers, tmp_path):
    config = servers.config(tmp_path)
    (tmp_path / "in").mkdir()
    for name in BUILDERS:
        with pytest.raises(DataError, match=r"in: .*(expected|holds no)"):
            build_corpus(name, config, tmp_path / "in", tmp_path / "out")
    own = {"name": "p", "engine": "piper", "split": "sft"}
    alone = servers.config(tmp_path, voices=[own])
    with pytest.raises(ConfigError, match="none speaks English in rl"):
        build_corpus("libritts-r", alone, libritts(tmp_path / "libri"), tmp_path / "out")
    with pytest.raises(ConfigError, match="none copies a prompt's"):
        build_corpus("dailytalk", alone, dailytalk(tmp_path / "daily"), tmp_path / "out")
    path = tmp_path / "mine.yaml"
    for change, message in (
        ({"split": None}, "a voice of its own belongs to one"),
        ({"endpoint": {"model": "m"}}, "piper needs none"),
    ):
        path.write_text(json.dumps(json.loads(config.model_dump_json()) | {"voices": [own | change]}))
        with pytest.raises(ConfigError, match=message):
            load_unisrm_data(path)
    with pytest.raises(ConfigError, match="--config: libritts-r is made by its settings"):
        raise CliRunner().invoke(app, ["unisrm", "import", "libritts-r", "x", "y"]).exception


def test_the_papers_sizes_are_those_of_table_9():
    sizes = load_unisrm_data("paper").sizes
    total = {split: sum(getattr(one, split) for one in sizes.values()) for split in SPLITS}
    assert total == {"sft": 33061, "rl": 9674, "bench": 3524}
    assert sum(total.values()) == 46259
