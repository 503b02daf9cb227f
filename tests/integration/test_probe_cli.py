"""Probes of judges from end to end: judges with a known bias, the embedded ones of a run, and LLMs behind a scripted endpoint.

Not covered: what a trained judge makes of these probes; the embedded ones here have learned nothing.
"""

import json
import shutil
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import typer
from tiny.endpoint import Say, ScriptedEndpoint, said
from tiny.reward_model import random_reward_model
from typer.testing import CliRunner

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.bias import run as probe_run
from paras2s.bench.bias.judges import CachedScores, Probed
from paras2s.bench.bias.perturbations import CONTROL_DB, SNRS_DB, ProbePair
from paras2s.bench.bias.report import margin_text, sentence
from paras2s.bench.bias.run import Revoicer, count_words, make_plan, probe_judge, run_pairs
from paras2s.bench.results import AnswerRow, save_rows
from paras2s.cli.probe import probe
from paras2s.errors import BudgetError, ConfigError, DataError
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.reward.judges.votes import POINTS, prefer
from paras2s.types import Preference, Unscored, Verdict

RATE_HZ = 16_000
LEVELS_DB = (*SNRS_DB, CONTROL_DB)


def tone(hz, duration_s, peak=0.3):
    return Clip((peak * np.sin(2 * np.pi * hz * np.arange(int(RATE_HZ * duration_s)) / RATE_HZ)).astype(np.float32), RATE_HZ)


@dataclass
class ScriptedJudge:
    """Judges by a known rule; None from it is a pair that it cannot judge."""

    rule: object
    name: str = "scripted"
    scores_alone: bool = False
    calls: int = 0
    budget: int | None = None

    def compare_batch(self, pairs, on_progress=None):
        found = []
        for pair in pairs:
            self.calls += 1
            if self.budget is not None and self.calls > self.budget:
                found.append(BudgetError("the budget of 1 USD is spent"))
                continue
            label = self.rule(pair)
            if label is None:
                found.append(Unscored(self.name, "it would not say"))
                continue
            points = POINTS[label]
            found.append(
                Preference(self.name, "1", "", "", label, points, (label,), (points,), None, None, "", "", cost_usd=0.5)
            )
        return found


def scored(value):
    return Verdict("scorer", "1", "", value, "", "", 0.0, 0.0)


def length(clip):
    return round(clip.duration_s, 2)


def snr_db(clip):
    """Of a pure tone in white noise: its line against the rest."""
    power = np.abs(np.fft.rfft(clip.samples)) ** 2
    peak = int(np.argmax(power))
    line = power[max(0, peak - 2) : peak + 3].sum()
    return 10 * np.log10(line / max(power.sum() - line, 1e-12))


@pytest.fixture
def pairs(tmp_path):
    """Twelve pairs of tones, of which the second is longer every other time; people rate every third one a tie."""
    found = []
    for number in range(12):
        long_first = number % 2 == 0
        names = [tmp_path / f"{number}-{side}.wav" for side in "ab"]
        for path, is_long in zip(names, (long_first, not long_first), strict=True):
            write_clip(path, tone(200 + 20 * number, 0.8 if is_long else 0.5))
        texts = ["one two three four five six seven", "one"]
        human = "tie" if number % 3 == 0 else "1"
        mos = (4.0, 4.0 - 0.2 * number)
        found.append(
            ProbePair(
                f"p{number}", *names, words=tuple(texts if long_first else texts[::-1]), human=human,
                tied_by="people" if human == "tie" else None, aspect="a" if number < 6 else "b", cluster=f"p{number}", mos=mos,
            )
        )  # fmt: skip
    return found


def probed_by(judge, pairs, *only):
    found, rows, stopped = probe_judge(Probed("scripted", judge, "1"), make_plan(pairs, only, 0), lambda done, total: None)
    return {one.name: one for one in found.probes}, found, rows, stopped


def shares(result, *group):
    return {name: share.value for name, share in result.part(*group).shares.items() if share.value}


def test_a_judge_that_likes_the_first_place_is_found_out(pairs):
    found, judge, rows, _ = probed_by(ScriptedJudge(lambda pair: "1"), pairs, "position", "identical", "loudness")
    assert shares(found["position"], "all") == {"first": 1.0}
    # Twelve pairs that all say the same: 2 of 2 ** 12 ways.
    assert found["position"].part("all").p_value < 0.003
    assert shares(found["position"], "aspect a") == {"first": 1.0}
    assert "towards the first place" in sentence(found["position"])
    assert shares(found["identical"], "all") == {"first": 1.0}
    # A bias of place alone is none of loudness.
    assert shares(found["loudness"], "all") == {"louder": 0.5, "quieter": 0.5}
    assert judge.comparisons == len(rows) == 24 + 24 + 48
    # The second row is the first pair in the other order; a judge of this machine is sent no prompt.
    turned = [list(row["made_from"]["clips"].values())[-2:] for row in rows[:2]]
    assert turned[0] == turned[1][::-1]
    assert all(row["made_from"]["prompts"] == [] for row in rows)
    # It calls nobody.
    assert judge.cost_usd == 0.0


def test_a_judge_that_likes_length_is_stable_and_verbose(pairs):
    judge = ScriptedJudge(lambda pair: prefer(length(pair.first), length(pair.second)))
    found, *_ = probed_by(judge, pairs, "position", "identical", "verbosity")
    assert shares(found["position"], "all") == {"stable": 1.0}
    assert found["position"].part("all").p_value == 1.0
    assert shares(found["identical"], "all") == {"tie": 1.0}
    assert found["verbosity"].n_asked == 2 * 4
    assert shares(found["verbosity"], "all") == {"longer": 1.0}
    # Four pairs prove little: 2 of 2 ** 4 ways.
    assert found["verbosity"].part("all").p_value == pytest.approx(0.125, abs=0.015)
    assert found["verbosity"].notes == ("Ties rated by: people.",)
    # A clip is as long in one voice as in another.
    voices = probed_by(judge, pairs[:1], "speaker")[0]["speaker"]
    assert shares(voices, "lower") == shares(voices, "higher") == {"tie": 1.0}


def test_a_judge_that_likes_the_first_place_does_not_look_fond_of_length(pairs):
    long_first = [pair for pair in pairs if len(pair.words[0]) > len(pair.words[1])]
    tied = [replace(pair, tied_by="people") for pair in long_first]
    found, judge, *_ = probed_by(ScriptedJudge(lambda pair: "1"), tied, "verbosity")
    part = found["verbosity"].part("all")
    assert shares(found["verbosity"], "all") == {"longer": 0.5, "shorter": 0.5}
    assert (part.p_value, part.clusters, part.shares["tie"].n) == (1.0, 6, 12)
    assert judge.comparisons == 12
    # Both orders are those of the place, and asked once.
    assert probed_by(ScriptedJudge(lambda pair: "1"), tied, "verbosity", "position")[1].comparisons == 12


def test_a_judge_of_single_answers_needs_no_second_score_to_be_requested_in_both_orders(pairs):
    transcripts = []

    def score(exchanges):
        transcripts.extend(exchanges)
        return [scored(length(one.answer)) for one in exchanges]

    found, given, *_ = probed_by(CachedScores("scorer", score), pairs, "verbosity")
    assert shares(found["verbosity"], "all") == {"longer": 1.0}
    assert (given.comparisons, len(transcripts), found["verbosity"].n_scored) == (4, 8, 8)
    # The words of each side go with it.
    assert {one.words for one in transcripts} == {"one two three four five six seven", "one"}


def test_words_are_part_of_what_a_score_is_kept_by():
    calls = []
    judge = CachedScores("scorer", lambda exchanges: [scored(float(len(calls.append(one) or one.words))) for one in exchanges])
    clip = tone(200, 0.5)
    assert judge.score_batch([Exchange(Utterance(), clip, "a"), Exchange(Utterance(), clip, "bc")]) == [
        scored(1.0),
        scored(2.0),
    ]
    assert judge.score_batch([Exchange(Utterance(), clip, "a")]) == [scored(1.0)]
    assert len(calls) == 2


def test_an_answer_in_which_nothing_is_transcribed_has_no_words_to_count(pairs, monkeypatch):
    from paras2s.audio import asr

    monkeypatch.setattr(asr, "transcribe", lambda clips: [Namespace(text="")])
    tokens, wordless = count_words([replace(pairs[0], words=(None, "one")), pairs[3]])
    assert tokens == {"p3": (1, 7)}
    assert list(wordless) == ["p0"]
    assert "0-a.wav: the recogniser heard no words" in wordless["p0"]
    tied = [replace(pairs[0], words=(None, "one"))]
    found, *_ = probed_by(ScriptedJudge(lambda pair: "1"), tied, "verbosity")
    assert (found["verbosity"].n_asked, found["verbosity"].n_scored) == (2, 0)
    assert set(found["verbosity"].unscored.values()) == {2}


def test_a_judge_that_noise_breaks_is_unchanged_above_it_only(pairs):
    def rule(pair):
        if min(snr_db(pair.first), snr_db(pair.second)) < 8:
            return "2"
        return "1"

    found, *_ = probed_by(ScriptedJudge(rule), pairs, "noise")
    given = {level: shares(found["noise"], f"{level:g} dB") for level in LEVELS_DB}
    assert given == {level: {"changed": 1.0} if level < 10 else {"unchanged": 1.0} for level in LEVELS_DB}
    groups = [part.group for part in found["noise"].parts[:3]]
    assert groups == [("1 dB",), ("1 dB", "chosen"), ("1 dB", "people's tie")]
    assert found["noise"].part("1 dB", "chosen").shares["changed"].n == 8
    assert found["noise"].changes == ()
    # Twelve pairs that all change at 1 dB and none at 80 dB: 2 of 2 ** 12 ways.
    part = found["noise"].part("1 dB")
    assert (part.against, part.p_value < 0.003) == ("80 dB", True)
    assert found["noise"].part("20 dB").p_value == 1.0
    assert found["noise"].part("80 dB").p_value is None
    assert "(p < 0.001 against 80 dB)" in sentence(found["noise"]) or "(p = 0.00" in sentence(found["noise"])


def test_a_judge_that_opinion_moves_only_when_it_is_clear(pairs):
    def rule(pair):
        number = round((np.argmax(np.abs(np.fft.rfft(pair.first.samples))) / length(pair.first) - 200) / 20)
        first_is_a = (length(pair.first) > 0.6) == (number % 2 == 0)
        return "1" if number < 4 else ("1" if first_is_a else "2")

    found, *_ = probed_by(ScriptedJudge(rule), pairs, "mos_gap")
    gap = found["mos_gap"]
    # Gaps of 0, 0.2 ... 2.2; the first four pairs go to the first place.
    assert shares(gap, "0 to 0.5", "order") == {"first": 1.0}
    assert shares(gap, "0.5 to 1", "order") == {"stable": 0.5, "first": 0.5}
    assert shares(gap, "2 and more", "order") == {"stable": 1.0}
    assert gap.part("0 to 0.5", "verdict").shares["right"].n == 2
    assert gap.correlation.value > 0.8
    assert "correlate" in sentence(gap)


def test_what_cannot_be_judged_is_counted_with_its_reason(pairs):
    pairs[3].first.unlink()
    pairs[4].second.write_bytes(b"no sound")
    judge = ScriptedJudge(lambda pair: None if length(pair.first) > 0.6 else "tie")
    found, _, rows, _ = probed_by(judge, pairs, "position", "verbosity")
    place = found["position"]
    assert (place.n_asked, place.n_scored) == (12, 0)
    assert place.unscored["it would not say"] == 10
    assert sum("3-a.wav: no such file" in reason for reason in place.unscored) == 1
    assert sum("4-b.wav: cannot be decoded" in reason for reason in place.unscored) == 1
    assert place.part("all").shares["stable"].n_asked == 12
    assert sentence(place) == "None of 12 could be judged."
    # Of four tied pairs three have a long clip first in one order; the fourth is broken.
    assert (found["verbosity"].n_asked, found["verbosity"].n_scored) == (8, 3)
    assert {row["label"] for row in rows} == {None, "tie"}
    assert all((row["label"] is None) == bool(row["unscored"]) for row in rows)


def test_a_budget_that_ends_leaves_what_was_judged(pairs):
    found, judge, _, stopped = probed_by(ScriptedJudge(lambda pair: "1", budget=5), pairs, "position")
    assert isinstance(stopped, BudgetError)
    assert judge.stopped == "the budget of 1 USD is spent"
    assert (found["position"].n_asked, found["position"].n_scored) == (12, 2)
    assert found["position"].unscored == {"not asked: the budget ended before it": 10}


def test_a_probe_that_is_killed_leaves_what_was_judged(pairs, monkeypatch):
    class Killed(ScriptedJudge):
        def compare_batch(self, batch, on_progress=None):
            if len(saved) == 2:
                raise KeyboardInterrupt
            return super().compare_batch(batch, on_progress)

    saved = []
    monkeypatch.setattr(probe_run, "CHUNK_COMPARISONS", 5)
    plan = make_plan(pairs, ["position"], 0)
    with pytest.raises(KeyboardInterrupt):
        probe_judge(Probed("scripted", Killed(lambda pair: "1"), "1"), plan, lambda done, total: None, saved.append)
    assert [len(rows) for rows in saved] == [5, 5]
    assert all(row["label"] == "1" for rows in saved for row in rows)
    assert len({(row["about"], row["change"]) for rows in saved for row in rows}) == 10


def test_a_judge_of_single_answers_is_stable_by_construction_and_remembers(pairs):
    transcripts = []

    def score(exchanges):
        transcripts.extend(exchanges)
        return [scored(float(np.clip(snr_db(one.answer), 0, 30))) for one in exchanges]

    judge = CachedScores("scorer", score)
    found, given, rows, _ = probed_by(judge, pairs, "position", "identical", "noise", "mos_gap")
    assert {found[name].status for name in ("position", "identical")} == {"by construction"}
    assert "no call was spent" in sentence(found["position"])
    # 24 clips: clean, and at seven levels; each once, though the clean pair serves eight trials.
    assert len(transcripts) == 24 * 8
    assert given.comparisons == len(rows) == 12 * 8
    assert [one.group for one in found["noise"].changes] == [(f"{level:g} dB",) for level in LEVELS_DB]
    assert found["noise"].changes[0].mean == pytest.approx(1 - 30, abs=1.0)
    assert found["noise"].changes[0].n == 24
    assert shares(found["mos_gap"], "all", "order") == {"stable": 1.0}
    assert found["mos_gap"].correlation.why_none == "the verdicts' stabilities are all the same"
    same = judge.compare_batch([probes_pair(pairs[0])])[0]
    assert same.label == "tie"


def test_a_continuous_judge_is_measured_by_its_own_spread(pairs):
    def wobble(clip):
        # Up to a tenth either way, by chance, whenever anything in the clip differs.
        return int(clip.digest[:6], 16) / 0xFFFFFF / 5 - 0.1

    def score(exchanges):
        return [scored(3 + wobble(one.answer)) for one in exchanges]

    found, judge, *_ = probed_by(CachedScores("scorer", score), pairs, "noise", "loudness")
    assert 0 < judge.margin <= 0.2
    # Its answers to 6 dB are its answers to nothing: nearly all within the margin, and no change on average.
    assert shares(found["loudness"], "all")["tie"] > 0.8
    change = found["loudness"].changes[0]
    assert (change.group, change.n) == (("all",), 48)
    assert change.low < change.mean < change.high
    assert abs(change.mean) < 0.05
    assert "scores change by" in sentence(found["loudness"])
    assert f"scores within {judge.margin:.3g} count as a tie" in margin_text(judge)
    # Without the control there is no margin, and any difference is a preference.
    found, judge, *_ = probed_by(CachedScores("scorer", score), pairs, "loudness")
    assert (judge.margin, shares(found["loudness"], "all").get("tie")) == (None, None)
    assert "any difference of scores counts" in margin_text(judge)


def test_a_louder_clip_that_scores_higher_changes_the_mean(pairs):
    def score(exchanges):
        return [scored(2.0 + 10 * float(np.abs(one.answer.samples).max())) for one in exchanges]

    found, *_ = probed_by(CachedScores("scorer", score), pairs, "loudness")
    # A peak of 0.3 against half of it (6 dB), or twice of it: at least 1.5 more for the louder one, in either place.
    assert shares(found["loudness"], "all") == {"louder": 1.0}
    assert found["loudness"].changes[0].mean > 1.4


def probes_pair(pair):
    from paras2s.bench.bias.perturbations import distinct_clips, identical

    return identical(distinct_clips([pair]))[0].comparisons[0].make()


def test_who_rated_the_ties_is_not_probed_with_them(pairs):
    tied = [ProbePair(**{**vars(pair), "tied_by": "scripted"}) for pair in pairs]
    judge = ScriptedJudge(lambda pair: "1")
    assert probed_by(judge, tied, "verbosity")[0]["verbosity"].why == "it was scripted itself that rated pairs a tie"
    untied = [ProbePair(**{**vars(pair), "tied_by": None}) for pair in pairs]
    assert probed_by(judge, untied, "verbosity")[0]["verbosity"].why == "no pair is rated a tie"
    short = [ProbePair(**{**vars(pair), "words": ("a", "b")}) for pair in pairs]
    assert "none of the 4 pairs rated a tie differs by 5 words" in probed_by(judge, short, "verbosity")[0]["verbosity"].why
    plain = [ProbePair(**{**vars(pair), "mos": None}) for pair in pairs]
    assert probed_by(judge, plain, "mos_gap")[0]["mos_gap"].status == "absent"


def test_another_voice_keeps_length_and_level_and_moves_the_pitch():
    from paras2s.audio.pitch import track_pitch

    buzz = np.sign(np.sin(2 * np.pi * 140 * np.arange(RATE_HZ) / RATE_HZ)) * 0.1
    clip = Clip(buzz.astype(np.float32), RATE_HZ)
    revoice = Revoicer()
    voices = {name: revoice(clip, name) for name in ("own", "lower", "higher")}
    pitch = {name: float(np.median([hz for hz in track_pitch(one).f0_hz if hz])) for name, one in voices.items()}
    assert pitch["lower"] / pitch["own"] == pytest.approx(0.8, rel=0.03)
    assert pitch["higher"] / pitch["own"] == pytest.approx(1.5, rel=0.03)
    assert len({one.duration_s for one in voices.values()}) == 1
    levels = [float(np.sqrt(np.mean(one.samples**2))) for one in voices.values()]
    assert max(levels) / min(levels) < 1.02


# The command.

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(probe)


def invoke(*words, status=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def manifest(tmp_path, pairs):
    rows = [
        {
            "id": pair.id, "first": pair.first.name, "second": pair.second.name, "instruction_text": "say it",
            "style": "happy", "human": pair.human, "first_text": pair.words[0], "second_text": pair.words[1],
        }
        for pair in pairs
    ]  # fmt: skip
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(server, folder):
    words = {"llm.base_url": server.base_url, "llm.backoff_s": 0.01, "cache_dir": folder / "cache"}
    return [word for key, value in words.items() for word in ("-s", f"{key}={value}")]


TRACE_FIRST = json.dumps({"reasoning": "r", "content": "1", "voice_quality": "1", "paralinguistics": "1"})


def test_an_llm_that_likes_the_first_place_costs_once_what_was_estimated(manifest, tmp_path):
    words = (manifest, "--judge", "audio", "--only", "position", "--only", "identical", "--out", tmp_path / "out", "--json")
    with ScriptedEndpoint(lambda sent, number: Say(TRACE_FIRST)) as server:
        estimate = json.loads(invoke(*words, "--estimate", *settings(server, tmp_path)).stdout)["judges"][0]
        assert len(server.requests) == 0
        found = json.loads(invoke(*words, *settings(server, tmp_path)).stdout)
        # Equal pairs are asked once: every clip against itself is its own pair, none is asked twice.
        assert estimate["calls"] == estimate["comparisons"] == len(server.requests) == 24 + 24
        again = json.loads(invoke(*words, *settings(server, tmp_path)).stdout)
        assert len(server.requests) == 48
    # What is kept costs nothing again.
    assert again["judges"] == [found["judges"][0] | {"cost_usd": 0.0}]
    assert found["schema"] == "paras2s.probe/1"
    place, same = found["judges"][0]["probes"]
    assert place["parts"][0]["shares"]["first"]["value"] == 1.0
    assert same["parts"][0]["shares"]["first"]["value"] == 1.0
    assert 0 < found["judges"][0]["cost_usd"] <= estimate["at_most_usd"]
    rows = [json.loads(line) for line in (tmp_path / "out/comparisons.jsonl").read_text().splitlines()]
    assert len(rows) == 48
    assert "towards the first place" in (tmp_path / "out/probe.html").read_text()
    assert json.loads((tmp_path / "out/probe.json").read_text()) == again
    assert sum(row["cost_usd"] for row in rows) == pytest.approx(found["judges"][0]["cost_usd"])


def test_replies_of_no_use_are_paid_for_and_unpriced_ones_have_no_cost(manifest, tmp_path):
    words = (manifest, "--judge", "audio", "--only", "position", "--json")
    with ScriptedEndpoint(lambda sent, number: Say("I would rather not say.")) as server:
        done = invoke(*words, "--out", tmp_path / "a", *settings(server, tmp_path / "a"), status=1)
        found = json.loads(done.stdout)["judges"][0]
        assert found["probes"][0]["n_scored"] == 0
        assert found["cost_usd"] > 0
        unknown = ("-s", "llm.model=nobody-knows", *settings(server, tmp_path / "b"))
        assert json.loads(invoke(*words, "--out", tmp_path / "b", *unknown, status=1).stdout)["judges"][0]["cost_usd"] is None
    with ScriptedEndpoint(lambda sent, number: Say(TRACE_FIRST)) as server:
        unknown = ("-s", "llm.model=nobody-knows", *settings(server, tmp_path / "c"))
        found = json.loads(invoke(*words, "--out", tmp_path / "c", *unknown).stdout)["judges"][0]
        assert (found["probes"][0]["n_scored"], found["cost_usd"]) == (12, None)


def test_an_audio_judge_is_probed_a_task_at_a_time(manifest, tmp_path):
    config = tmp_path / "audio.yaml"
    config.write_text("tasks: [clip_quality, mos]\nllm: {model: gpt-audio, structured: never}\n")

    def answer(sent, number):
        # A single clip has a score; of two the second is better.
        clips = sum(
            part["type"] == "input_audio"
            for message in sent["messages"]
            for part in message["content"]
            if part != "" and isinstance(part, dict)
        )
        return Say(json.dumps({"reasoning": "r", "score": 3} if clips == 1 else {"reasoning": "r", "label": "2"}))

    with ScriptedEndpoint(answer) as server:
        words = (manifest, "--judge", config, "--only", "position", "--only", "loudness", "--out", tmp_path / "out", "--json")
        found = json.loads(invoke(*words, *settings(server, tmp_path)).stdout)["judges"]
    assert [one["task"] for one in found] == ["clip_quality", "mos"]
    pair_judge, scorer = (dict((one["name"], one) for one in judge["probes"]) for judge in found)
    assert pair_judge["position"]["parts"][0]["shares"]["second"]["value"] == 1.0
    assert scorer["position"]["status"] == "by construction"
    assert scorer["loudness"]["parts"][0]["shares"]["tie"]["value"] == 1.0
    assert all(one["cost_usd"] > 0 for one in found)


def test_a_judge_of_single_clips_reads_the_words_of_each(manifest, tmp_path):
    config = tmp_path / "audio.yaml"
    config.write_text("tasks: [mos]\ntranscripts: given\nllm: {model: gpt-audio, structured: never}\n")
    words = (manifest, "--judge", config, "--only", "verbosity", "--out", tmp_path / "out", "--json")
    with ScriptedEndpoint(lambda sent, number: Say(json.dumps({"reasoning": "r", "score": 3}))) as server:
        # Four tied pairs of two answers each.
        estimate = json.loads(invoke(*words, "--estimate", *settings(server, tmp_path)).stdout)["judges"][0]
        assert (estimate["comparisons"], estimate["calls"], estimate["unscored"]) == (4, 8, 0)
        found = json.loads(invoke(*words, *settings(server, tmp_path)).stdout)["judges"][0]
        sent = list(map(said, server.requests))
    assert (found["probes"][0]["n_scored"], len(sent)) == (8, 8)
    assert sum("one two three four five six seven" in text for text in sent) == 4


def test_a_budget_is_raised_after_everything_is_written(manifest, tmp_path):
    words = (manifest, "--judge", "audio", "--only", "position", "--out", tmp_path / "out", "-s", "llm.budget_usd=0.003")
    with ScriptedEndpoint(lambda sent, number: Say(TRACE_FIRST)) as server, pytest.raises(BudgetError):
        invoke(*words, *settings(server, tmp_path))
    found = json.loads((tmp_path / "out/probe.json").read_text())["judges"][0]
    assert found["stopped"]
    assert 0 <= found["probes"][0]["n_scored"] < 12


def test_wrong_words_are_named(manifest, tmp_path):
    for words, message in (
        ((manifest, "--judge", "reward_model"), "--run"),
        ((manifest,), "--tone"),
        ((manifest, "--only", "colour", "--judge", "audio"), "--only colour: no such probe"),
        ((tmp_path / "none.csv",), "no such manifest or run"),
        ((manifest, "-s", "llm.model=x"), "--set"),
        (
            (manifest, "--judge", "audiojudge", "-s", "tasks=[speaker_identity]", "-s", "llm.base_url=http://127.0.0.1:9"),
            "speaker_identity",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            invoke(*words)
    with pytest.raises(DataError, match="no two different benched answers"):
        invoke(tmp_path)


# A run's own judges.


@pytest.fixture(scope="module")
def benched(tiny_run, tmp_path_factory):
    """The tiny run with four answers to its first question, of which two are equal, and a reward model of chance."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.policy.embedded.codec2 import Codec2Pairs
    from paras2s.policy.embedded.features import FEATURE_DIM
    from paras2s.reward.reward_model.model import RewardModelConfig

    run = tmp_path_factory.mktemp("benched") / "run"
    shutil.copytree(tiny_run / "run", run)
    dataset = load_dataset(run / "data")
    query = dataset.of_role("test")[0]
    sizes = RewardModelConfig(
        codebook_sizes=Codec2Pairs.cardinality, code_dim=46, feature_dim=FEATURE_DIM, styles=("happy", "sad"),
        hidden_size=16, layers=1,
    )  # fmt: skip
    random_reward_model(sizes, Codec2Pairs().code_vectors).save(run / "reward")
    clips = sorted({one.clip for one in dataset.demonstrations})
    rows = []
    for number, (name, words) in enumerate([(clips[0], "a b c d e f g"), (clips[1], "a b"), (clips[1], "a b")]):
        place = Path("samples") / f"{number}.wav"
        write_clip(run / place, dataset.clip(name))
        rows.append(AnswerRow(
            system="sft", query_id=query.id, contrast_id=query.contrast_id, category=query.category, style=query.style,
            question_text=query.text, question_clip=f"data/{query.clip}", answer_index=number, text_stream=words,
            transcript=words, tone=None, tone_scores={}, score=3.0, unscored=None, reason="", family=None, fitting=False,
            answer_clip=str(place), duration_s=1.0, word_error_rate=None, judge="rubric/2/x", model_score=None,
        ))  # fmt: skip
    save_rows(run / "bench" / "sft.jsonl", rows)
    return run


def test_scores_of_two_judges_are_no_tie(benched, tmp_path):
    shutil.copytree(benched, tmp_path / "run")
    path = tmp_path / "run/bench/sft.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0] |= {"judge": "rubric/1/y", "transcript": ""}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (pair,) = run_pairs(tmp_path / "run", 0)
    assert pair.tied_by is None
    # What a recogniser heard nothing in is not taken for an answer without words.
    assert None in pair.words


def test_equal_answers_are_no_pair_of_a_run(benched):
    (pair,) = run_pairs(benched, 0)
    assert pair.tied_by == "rubric"
    assert {pair.first.name, pair.second.name} == {"0.wav", "1.wav"}
    assert pair.human is None


def test_a_runs_own_judges_are_probed_through_recogniser_and_codec(benched):
    model = json.loads(invoke(benched, "--judge", "reward_model", "--out", benched / "model", "--json").stdout)["judges"][0]
    # The recogniser takes its time: of the rubric only what is told by few clips.
    only = [word for name in ("position", "identical", "verbosity", "loudness") for word in ("--only", name)]
    rubric = json.loads(invoke(benched, *only, "--json").stdout)["judges"][0]
    assert (rubric["judge"], model["judge"]) == ("rubric", "reward_model")
    assert (rubric["cost_usd"], model["cost_usd"]) == (0.0, 0)
    by_rubric, by_model = ({one["name"]: one for one in judge["probes"]} for judge in (rubric, model))
    for found in (by_rubric, by_model):
        assert {found[name]["status"] for name in ("position", "identical")} == {"by construction"}
        assert found["loudness"]["n_scored"] == found["loudness"]["n_asked"] == 4
    assert by_rubric["verbosity"]["why"] == "it was rubric itself that rated pairs a tie"
    assert by_model["verbosity"]["notes"] == ["Ties rated by: rubric."]
    assert {name: by_model[name]["n_scored"] for name in ("verbosity", "noise", "speaker", "mos_gap")} == {
        "verbosity": 2, "noise": 7, "speaker": 4, "mos_gap": 0,
    }  # fmt: skip
    assert len(by_model["noise"]["changes"]) == len(LEVELS_DB)
    assert list(by_rubric) == ["position", "identical", "verbosity", "loudness"]
    assert (benched / "probe/probe.html").is_file()
    rows = [json.loads(line) for line in (benched / "probe/comparisons.jsonl").read_text().splitlines()]
    assert all(1 <= score <= 5 for row in rows for score in row["scores"])


def test_an_estimate_of_a_runs_own_judge_is_free(benched):
    assert "free: it runs on this machine" in invoke(benched, "--estimate").stdout
