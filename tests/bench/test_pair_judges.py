"""Two recordings: what a listener notices as measured, who can decide between them, and a decision that says how close it is.

Not covered: whether what is called noticeable is noticed; the limits are about twice what psychoacoustics gives.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from outside import LIBRISPEECH
from studio.talking import JUDGE
from typer.testing import CliRunner

from paras2s.audio.clip import Clip
from paras2s.bench import differences, pair_judges
from paras2s.bench.differences import compare_clips
from paras2s.bench.pair_judges import better_judges, choose_judge, decide_by_label, decide_by_scores, missing_for_pair
from paras2s.cli.app import app
from paras2s.clients import endpoint
from paras2s.configs.schema.judges import find_judge
from paras2s.errors import AudioError
from paras2s.types import Absent, Blueprint, Measured, Preference, Verdict
from paras2s.utils import process_pool

NAMES = ("A.wav", "B.wav")
SHIPPED_TONE = Path(differences.__file__).parents[1] / "data_gen/scripted/fitted_tones/agent.json"


def verdict(score: float) -> Verdict:
    return Verdict("j", "1", "", score, "because", "", 0.0, 0.0)


def preference(label: str, votes: tuple[float, ...] = (1.0,), consistent: bool | None = None) -> Preference:
    points = sum(votes) / len(votes)
    return Preference("j", "1", "", "t", label, points, (label,), votes, None, consistent, "", "")  # type: ignore[arg-type]


# What is measured.


def blueprint(**changed: float | str) -> Blueprint:
    """A calm answer, with some values changed by the last part of their keys."""
    properties = {"pitch_mean_hz": 200.0, "pitch_std_hz": 20.0, "loudness_integrated_lufs": -23.0}
    properties |= {"speech_rate_syllables_per_s": 4.0, "articulation_rate_syllables_per_s": 5.0}
    fields = {f"agent_audio_properties.{key}": changed.get(key, value) for key, value in properties.items()}
    fields |= {"agent_response": changed.get("words", "Yes."), "agent_audio_quality.p808_overall": changed.get("mos", 3.5)}
    return Blueprint({key: Absent(value) if value == "not installed" else Measured(value) for key, value in fields.items()})


@pytest.mark.parametrize(
    ("changed", "noticed"),
    [
        ({}, "No difference in the voice that a listener would notice. They say the same words."),
        ({"pitch_mean_hz": 201.0}, "No difference in the voice"),
        # By hand: 12 log2(252 / 200) is 4 semitones.
        ({"pitch_mean_hz": 252.0}, "Beside B.wav, A.wav is higher."),
        ({"loudness_integrated_lufs": -26.0}, "A.wav is quieter."),
        ({"mos": 2.0, "loudness_integrated_lufs": -20.0, "pitch_std_hz": 5.0}, "A.wav is flatter, louder and noisier."),
        # Half of the time is silent; the other recording has a fifth.
        ({"articulation_rate_syllables_per_s": 8.0}, "A.wav speaks with more pauses."),
        ({"words": "No."}, "They say different words."),
    ],
)
def test_the_sentence_says_what_a_listener_notices(
    changed: dict[str, float | str], noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "build_blueprints", lambda *_: [blueprint(**changed), blueprint()])
    monkeypatch.setattr(differences, "_tone", lambda _: "calm")
    first, second = (Clip(np.full(16_000, level, np.float32), 16_000) for level in (0.1, 0.2))
    assert noticed in compare_clips(first, second, NAMES).sentence


def test_a_missing_part_leaves_its_row_empty_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "build_blueprints", lambda *_: [blueprint(mos="not installed"), blueprint()])
    monkeypatch.setattr(differences, "_tone", lambda clip: "calm" if clip.samples[0] > 0.15 else "cheerful")
    first, second = (Clip(np.full(16_000, level, np.float32), 16_000) for level in (0.1, 0.2))
    comparison = compare_clips(first, second, NAMES)
    quality = next(row for row in comparison.rows if row.name == "quality")
    assert (quality.first, quality.second, quality.why) == (None, 3.5, "quality: not installed")
    assert comparison.sentence.startswith("Beside B.wav, A.wav sounds cheerful where B.wav sounds calm.")


@pytest.mark.parametrize(("level", "said"), [(0.1, "Both files hold the same sound."), (0.0, "B.wav is silent: there is")])
def test_the_same_file_and_silence_are_said(level: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "build_blueprints", lambda *_: [blueprint(), blueprint()])
    monkeypatch.setattr(differences, "_tone", lambda _: "calm")
    first, second = (Clip(np.full(16_000, one, np.float32), 16_000) for one in (0.1, level))
    assert compare_clips(first, second, NAMES).sentence.startswith(said)


# Who can decide.


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("question", "style", "key", "chosen"),
    [
        (None, None, "", None),
        ("Hi", None, "", None),
        (None, "sad", "", None),
        ("Hi", "sad", "", "independent"),
        ("Hi", None, "sk", "trace"),
        (None, "sad", "sk", None),
    ],
)
def test_the_judge_is_one_that_can_decide(
    question: str | None, style: str | None, key: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert choose_judge(question, style) == chosen


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ("rubric", ["--question", "--style", "--tone"]),
        ("independent", ["--question", "--style"]),
        ("trace", ["--question", "OPENAI_API_KEY"]),
        ("reward_model", ["--question"]),
    ],
)
def test_all_that_is_missing_is_told_at_once(judge: str, said: list[str], keyless: None) -> None:
    missing = missing_for_pair(find_judge(judge), None, None)
    assert len(missing) == len(said)
    assert all(name in phrase for name, phrase in zip(said, missing, strict=True))


@pytest.mark.parametrize("judge", ["rubric", "independent"])
def test_a_style_without_rules_is_refused_with_the_nearest(judge: str, keyless: None) -> None:
    missing = missing_for_pair(find_judge(judge), "Hi", "sadd", SHIPPED_TONE)
    assert missing[0].startswith(f"--style sadd: the {judge} judge knows happy, surprised, sad,")
    assert missing[0].endswith("; did you mean sad?")
    assert choose_judge("Hi", "sadd") is None


def test_the_same_file_and_a_silent_question_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, level in (("A", 0.1), ("silent", 0.0)):
        soundfile.write(f"{name}.wav", level * np.sin(np.arange(16_000) / 9), 16_000)
    words = ["judge", "pair", "A.wav", "A.wav", "--judge", JUDGE, "--style", "sad", "--question"]
    same = CliRunner().invoke(app, [*words, "A.wav"], env={"COLUMNS": "200"})
    assert same.output.startswith("Too close to call: 4 and 4 of 5. Both files hold the same sound.")
    with pytest.raises(AudioError, match=r"--question silent\.wav: the recording is silent"):
        CliRunner().invoke(app, [*words, "silent.wav"], catch_exceptions=False)


def test_better_judges_say_what_they_need(keyless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert better_judges(find_judge("trace"), "Hi", None) == []
    trace, audio = better_judges(find_judge("independent"), "Hi", "sad")
    assert "set OPENAI_API_KEY" in trace
    assert trace.startswith("--judge trace (")
    assert audio.startswith("--judge audiojudge (")
    assert better_judges(find_judge("reward_model"), "Hi", "sad")[-1].endswith(": ready")
    monkeypatch.setattr(pair_judges.importlib.util, "find_spec", lambda _: None)
    assert "pip install 'paras2s[offline]'" in better_judges(None, "Hi", "sad")[-1]
    assert "pip install 'paras2s[judge]'" in better_judges(None, "Hi", "sad")[0]


# Decisions.


@pytest.mark.parametrize(
    ("scores", "error", "winner", "sentence"),
    [
        ((5.0, 3.0), None, "1", "A.wav answers better by 2 points: 5 and 3 of 5."),
        ((1.0, 2.0), None, "2", "B.wav answers better by 1 points: 1 and 2 of 5."),
        ((3.0, 3.0), None, None, "Too close to call: 3 and 3 of 5."),
        ((3.1, 3.0), None, None, "Too close to call: 3.1 and 3 of 5."),
        ((3.9, 3.0), 1.0, None, "Too close to call: 3.9 and 3 of 5, and this judge is off by 1 on average."),
        ((4.1, 3.0), 1.0, "1", "A.wav answers better by 1.1 points: 4.1 and 3 of 5."),
    ],
)
def test_scores_decide_beyond_the_judges_error(
    scores: tuple[float, float], error: float | None, winner: str | None, sentence: str
) -> None:
    won, margin, said = decide_by_scores(verdict(scores[0]), verdict(scores[1]), NAMES, error)
    assert (won, said) == (winner, sentence)
    assert margin == pytest.approx(abs(scores[0] - scores[1]))


@pytest.mark.parametrize(
    ("given", "label", "winner", "sentence"),
    [
        (preference("2", (0.0,)), "2", "2", "B.wav answers better."),
        (preference("1", (1.0, 1.0, 1.0, 0.0)), "1", "1", "A.wav answers better, by 75 % of the votes."),
        (preference("tie", (0.5,)), "tie", None, "Too close to call: a tie."),
        (preference("1", (1.0,), False), "1", None, "Too close to call: its two orders do not agree."),
        (preference("tie", (0.5,)), "both_bad", None, "Too close to call: both are bad."),
    ],
)
def test_labels_decide_where_their_orders_agree(given: Preference, label: str, winner: str | None, sentence: str) -> None:
    decided = decide_by_label(given, label, NAMES)
    assert decided is not None
    assert (decided[0], decided[2]) == (winner, sentence)


def test_a_match_has_no_winner() -> None:
    assert decide_by_label(preference("same"), "same", NAMES) is None


# As commands.


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two answers of unlike rates and channels, the second one quieter."""
    folder = tmp_path_factory.mktemp("pair")
    samples, rate_hz = soundfile.read(sorted(LIBRISPEECH.glob("*.flac"))[0])
    soundfile.write(folder / "A.wav", samples[: 2 * rate_hz], rate_hz)
    soundfile.write(folder / "B.wav", 0.3 * np.repeat(samples[: 2 * rate_hz : 2, None], 2, axis=1), rate_hz // 2)
    return folder


def run(*words: str | Path) -> str:
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_a_judge_the_differences_are_shown_and_what_a_judge_needs(clips: Path, keyless: None) -> None:
    said = json.loads(run("judge", "pair", clips / "A.wav", clips / "B.wav", "--json"))
    rows = {row["name"]: row for row in said["differences"]}
    assert list(rows) == ["words", "pitch", "pitch range", "loudness", "rate", "pauses", "quality", "tone"]
    assert (rows["loudness"]["noticed"], rows["pitch"]["noticed"]) == ("louder", "")
    assert "A.wav is louder" in said["sentence"]
    assert [line.split()[1] for line in said["judges"]] == ["trace", "audiojudge", "independent"]


def test_the_rubric_decides_on_a_pair_and_starts_no_process(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_held", [])
    monkeypatch.setattr(process_pool, "_workers", lambda: pytest.fail("a process for two clips"))
    inputs = ("--question", "The seats were truly special.", "--tone", SHIPPED_TONE, "--style", "sarcastic")
    said = json.loads(run("judge", "pair", clips / "A.wav", clips / "B.wav", "--judge", "rubric", *inputs, "--json"))
    assert said["decision"]["sentence"].startswith(("Too close to call: ", "A.wav answers better", "B.wav answers better"))
    assert {verdict["type"] for verdict in said["scores"].values()} == {"Verdict"}
    assert said["decision"]["cost_usd"] == 0.0
    assert len(said["decision"]["better_judges"]) == 3


def test_an_estimate_and_a_dump_need_no_extra_and_no_key(
    clips: Path, tmp_path: Path, keyless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = endpoint.importlib.util.find_spec
    missing = ("openai", "tenacity", "aiolimiter", "httpx2")
    monkeypatch.setattr(endpoint.importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    monkeypatch.chdir(tmp_path)
    words = ("judge", "pair", clips / "A.wav", clips / "B.wav", "--question", "Hi", "--judge", "audio")
    said = json.loads(run(*words, "--estimate", "--dump", "look", "--json"))
    assert (said["calls"], said["dump"]) == (1, "look")
    (messages,) = Path("look").rglob("messages.json")
    assert sum(isinstance(part, dict) for message in json.loads(messages.read_text()) for part in message["content"]) == 2
