"""`judge pair`, `judge clip` and `bench systems` with an audio judge, on real speech and a scripted endpoint.

Not covered: what a real audio model says; the scripted one prefers the longer answer, which it decodes to know.
"""

import base64
import csv
import io
import json

import pytest
import soundfile
from outside import LIBRISPEECH
from tiny.endpoint import Fail, Say, ScriptedEndpoint
from tiny.program import program

from paras2s.audio.asr import normalise_words, transcribe
from paras2s.audio.clip import read_clip


def paras2s(*words, cwd, status=0):
    done = program(*words, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done


def lengths_s(sent):
    sounds = [part["input_audio"] for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"]
    decoded = [soundfile.read(io.BytesIO(base64.b64decode(one["data"]))) for one in sounds]
    return [len(samples) / rate_hz for samples, rate_hz in decoded]


def prefers_longer(sent, number):
    first, second = lengths_s(sent)[-2:]
    return Say(json.dumps({"reasoning": "longer", "label": "1" if first > second else "2"}))


@pytest.fixture
def speech(tmp_path):
    """Four clips of growing length, cut from real speech."""
    samples, rate_hz = soundfile.read(sorted(LIBRISPEECH.glob("*.flac"))[0])
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", samples[: rate_hz * (number + 1)], rate_hz)
    return tmp_path


def endpoint(server):
    return ("-s", f"llm.base_url={server.base_url}", "-s", "llm.max_attempts=1", "-s", "cache_dir=cache")


def test_a_pair_by_the_ensemble_and_by_one_task(speech):
    with ScriptedEndpoint(prefers_longer) as server:
        words = ("judge", "pair", "3.wav", "1.wav", "--judge", "audiojudge", *endpoint(server))
        found = json.loads(paras2s(*words, "--instruction", "0.wav", "--json", cwd=speech).stdout)["verdicts"]
        assert {task: one["label"] for task, one in found.items()} == dict.fromkeys(
            ("lexical", "paralinguistic", "speech_quality", "ensemble"), "1"
        )
        assert found["ensemble"]["order_labels"] == ["1", "2"]
        assert len(server.requests) == 6
        assert sorted(lengths_s(one) for one in server.requests[:2]) == [[1.0, 2.0, 4.0], [1.0, 4.0, 2.0]]
        shown = paras2s(*words, "--instruction", "0.wav", cwd=speech).stdout
        assert len(server.requests) == 6
        assert "ensemble: 1 (3.wav); judged in both orders, which agree\nlexical: 1; paralinguistic: 1" in shown
        assert shown.count("heard first 3.wav, second 1.wav:\nlonger\nheard first 1.wav, second 3.wav:\nlonger\n") == 3
        alone = paras2s(*words, "--task", "speaking_rate", "-s", "both_orders=false", "--json", cwd=speech)
        assert json.loads(alone.stdout)["verdicts"]["speaking_rate"]["label"] == "1"
        missing = paras2s(*words, "--json", cwd=speech, status=1)
    assert "needs the instruction" in json.loads(missing.stdout)["verdicts"]["lexical"]["reason"]


def test_a_dump_holds_what_would_be_sent_with_spoken_signals_and_no_call_is_made(speech):
    (speech / "examples.jsonl").write_text(json.dumps({"first": "1.wav", "second": "2.wav", "label": "2"}) + "\n")
    with ScriptedEndpoint(prefers_longer) as server:
        words = ("judge", "pair", "3.wav", "1.wav", "--judge", "audiojudge", "--task", "speaking_rate", *endpoint(server))
        more = ("-s", "strategy=examples_and_test", "-s", "examples=examples.jsonl", "--dump", "dump", "--estimate", "--json")
        said = json.loads(paras2s(*words, *more, cwd=speech).stdout)
        assert server.requests == []
    assert (said["dump"], said["calls"]) == ("dump", 2)
    messages = json.loads((speech / "dump/speaking_rate/order-1/messages.json").read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    shown, tested = (next(part for part in messages[place]["content"] if isinstance(part, dict)) for place in (1, 3))
    assert [mark["name"] for mark in shown["segments"]] == [
        "signal:example 1", "signal:first", "first", "signal:second", "second",
    ]  # fmt: skip
    assert [mark["name"] for mark in tested["segments"]] == [
        "signal:test", "signal:first", "first", "signal:second", "second",
    ]  # fmt: skip
    clip = read_clip(speech / "dump/speaking_rate/order-1" / tested["audio"])
    assert clip.duration_s == pytest.approx(tested["duration_s"], abs=1e-3)
    first = tested["segments"][2]
    assert first["end_s"] - first["start_s"] == pytest.approx(4.0)
    # A recogniser hears the signals that this project's voice speaks.
    transcript = normalise_words(transcribe([clip])[0].text)
    assert "first audio" in transcript
    assert "second audio" in transcript


def test_one_clip_is_scored_by_five_samples(speech):
    scores = iter([4, 5, 4, 4, 3] * 3)
    with ScriptedEndpoint(lambda sent, number: Say(f"Breathy. Final score: [[{next(scores)}]]")) as server:
        inputs = (
            "--task",
            "style_following",
            "--input",
            "text=They are nearly as large as we.",
            "--input",
            "style=in a whisper",
        )
        words = ("judge", "clip", "2.wav", *inputs, *endpoint(server))
        found = json.loads(paras2s(*words, "--json", cwd=speech).stdout)["verdict"]
        assert (found["score"], sorted(found["votes"])) == (4.0, [3, 4, 4, 4, 5])
        lines = paras2s(*words, cwd=speech).stdout.splitlines()
        assert lines[0] == "score 4, the mean of 5 votes, spread 0.71"
        assert lines[1] == f"of the first vote ({found['votes'][0]:g}); --json has all replies:"
        assert lines[2].startswith("Breathy.")
        assert len(server.requests) == 5
        wrong = paras2s("judge", "clip", "2.wav", "--task", "style_following", cwd=speech, status=2)
        # An input is the text as typed: no YAML's No, no mapping.
        paras2s("judge", "clip", "2.wav", "--task", "style_following", "--input", "text=No", "--input", "style=Stop: now",
                *endpoint(server), cwd=speech)  # fmt: skip
        assert all(f'"{one}"' in json.dumps(server.requests[-1]).replace("\\", "") for one in ("No", "Stop: now"))
    assert "style_following takes text and style; got nothing" in wrong.stderr


def test_systems_meet_a_reference_and_their_verdicts_can_be_ranked(speech):
    for system, numbers in (("long", (3, 2)), ("short", (0, 0)), ("middle", (1, 1))):
        (speech / system).mkdir()
        for name, number in zip("ab", numbers, strict=True):
            (speech / system / f"{name}.wav").write_bytes((speech / f"{number}.wav").read_bytes())
    (speech / "short/b.wav").unlink()
    (speech / "asked").mkdir()
    for name in "ab":
        (speech / f"asked/{name}.wav").write_bytes((speech / "0.wav").read_bytes())
    systems = [word for name in ("long", "short", "middle") for word in ("--system", f"{name}={name}")]

    def answer(sent, number):
        # Of the longest clips the endpoint wants nothing.
        return Fail(400, "clip longer than 3.5 s") if max(lengths_s(sent)) > 3.5 else prefers_longer(sent, number)

    with ScriptedEndpoint(answer) as server:
        words = ("bench", "systems", "asked", *systems, "--reference", "middle", "--out", "v.csv", "--cache-dir", "cache")
        more = ("-s", f"llm.base_url={server.base_url}", "-s", "llm.max_attempts=1", "-s", "tasks=[standard]")
        found = json.loads(paras2s(*words, *more, "--json", cwd=speech, status=1).stdout)
        assert (found["judged"], found["unscored"], found["asked"]) == (4, 2, 4)
        other = paras2s(*words, *more, "-s", "llm.model=another", cwd=speech, status=2)
        assert "holds verdicts of listens:gpt-audio" in other.stderr
        asks = len(server.requests)
        estimate = ("bench", "systems", "asked", *systems[:4], "--system", "chat=chat.yaml", "--reference", "long", *more)
        (speech / "chat.yaml").write_text(json.dumps({"base_url": server.base_url, "model": "speaks"}))
        cost = paras2s(*estimate, "--estimate", "--out", "w.csv", cwd=speech)
        assert "chat: 2 answers are missing, no price is known" in cost.stdout
        assert len(server.requests) == asks
        alone = ("bench", "systems", "asked", "--system", "long=long", "--reference", "long", *more)
        assert "at least one system that meets long" in paras2s(*alone, cwd=speech, status=2).stderr
    rows = list(csv.DictReader((speech / "v.csv").open()))
    assert [(row["system"], row["instruction_id"], row["system_first"], row["system_second"]) for row in rows] == [
        ("long", "a", "unscored", "unscored"),
        ("long", "b", "1", "2"),
        ("short", "a", "2", "1"),
        ("short", "b", "unscored", "unscored"),
    ]
    assert {(row["aspect"], row["reference"]) for row in rows} == {("standard", "middle")}
    reasons = [json.loads(line)["verdict"].get("reason", "") for line in (speech / "v.jsonl").read_text().splitlines()]
    assert "clip longer than 3.5 s" in reasons[0]
    assert "short/b.wav is missing" in reasons[3]
    ranked = json.loads(paras2s("rank", "v.csv", "--json", cwd=speech).stdout)
    assert ranked["problems"]["unscored"]["count"] == 2
