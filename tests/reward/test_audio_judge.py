"""The audio judge against a scripted endpoint that decodes what it hears: messages, order, joined segments, votes.

Not covered: what a real audio model makes of it; every reply here is scripted.
"""

import base64
import io
import json
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from outside import LIBRISPEECH
from tiny.endpoint import Fail, Say, ScriptedEndpoint, said

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.clients.chat import LLMClient
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.errors import ConfigError, DataError, JudgeError
from paras2s.reward.judges.audio_judge.concatenation import NoSignals, Segment, SpokenSignals, ToneSignals, join
from paras2s.reward.judges.audio_judge.ensemble import EnsembleJudge
from paras2s.reward.judges.audio_judge.ensemble_rules import find_ensemble
from paras2s.reward.judges.audio_judge.few_shot import Example, load_examples
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.audio_judge.tasks import TASKS
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.types import Preference, Unscored, Verdict
from paras2s.utils.cache import JsonCache

RATE_HZ = 16_000


def tone(pitch_hz, length_s, rate_hz=RATE_HZ):
    """A clip known again by its pitch and its length."""
    return Clip(
        (0.3 * np.sin(2 * np.pi * pitch_hz * np.arange(round(length_s * rate_hz)) / rate_hz)).astype(np.float32), rate_hz
    )


FIRST, SECOND, REQUESTED = tone(300, 0.5), tone(600, 0.7), tone(1200, 0.9)
PAIR = Pair(Utterance(REQUESTED), FIRST, SECOND)


def pitch_of(samples, rate_hz):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.fft.rfftfreq(len(samples), 1 / rate_hz)[spectrum.argmax()])


def transcribed_in(message):
    """(format, samples, rate) of every recording of one message as the endpoint decodes it."""
    if isinstance(message["content"], str):
        return []
    sounds = [part["input_audio"] for part in message["content"] if part["type"] == "input_audio"]
    decoded = []
    for sound in sounds:
        samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(sound["data"], validate=True)))
        decoded.append((sound["format"], samples, rate_hz))
    return decoded


def pitches(message):
    return [round(pitch_of(samples, rate_hz), -1) for _, samples, rate_hz in transcribed_in(message)]


def judge_at(server, task="lexical", shown=(), signals=None, **values):
    llm = {"base_url": server.base_url, "model": "hears", "max_attempts": 1, "backoff_s": 0.0, "structured": "never"}
    named = {"examples": "examples.jsonl"} if shown else {}
    config = AudioJudgeConfig.model_validate({"llm": llm | values.pop("llm", {}), "signals": "none", **named, **values})
    return AudioJudge(config, task, LLMClient(config.llm), signals or NoSignals(), shown)


def verdict(label="1", key="label"):
    return Say(json.dumps({"reasoning": "because", key: label}))


def example(number, label="1", **values):
    # Lengths tell examples apart.
    clips = (tone(2000, 0.1 * number), tone(2500, 0.1 * number + 0.05))
    return Example(f"examples.jsonl:{number}", clips, Utterance(tone(3000, 0.2)), {}, label, f"reason {number}", **values)


EXAMPLES = (example(1, "1"), example(2, "2"))
LAYOUTS = {
    # Recordings of each user message, in order; a joined one is a list. System level: i instruction, 1, 2 answers.
    "none": [["i", "1", "2"], ["i", "1", "2"], ["i", "1", "2"]],
    "pair_example": [[["i", "1", "2"]], [["i", "1", "2"]], ["i", "1", "2"]],
    "examples": [[["e1", "i", "1", "2", "e2", "i", "1", "2"]], ["i", "1", "2"]],
    "test": [["i", "1", "2"], ["i", "1", "2"], [["i", "1", "2"]]],
    "examples_and_test": [[["e1", "i", "1", "2", "e2", "i", "1", "2"]], [["t", "i", "1", "2"]]],
}
NAMES = {
    "i": "instruction",
    "1": "first",
    "2": "second",
    "e1": "signal:example 1",
    "e2": "signal:example 2",
    "t": "signal:test",
}


def wanted_marks(recording, instructed):
    if isinstance(recording, str):
        return [NAMES[recording]]
    names = []
    for one in recording:
        if one == "i" and not instructed:
            continue
        names += [NAMES[one]] if NAMES[one].startswith("signal") else [f"signal:{NAMES[one]}", NAMES[one]]
    return names


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("task", ["lexical", "speaking_rate"])
def test_every_strategy_has_its_messages_and_its_joined_segments(strategy, task):
    instructed = TASKS[task].instructed
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge = judge_at(server, task, EXAMPLES, ToneSignals(RATE_HZ), strategy=strategy, silence_s=0.25, both_orders=False)
        sent = judge.judge_requests([PAIR])[0][0]
        assert judge.compare_batch([PAIR])[0].label == "1"
        (request,) = server.requests
    wanted = [[wanted_marks(one, instructed) for one in message if instructed or one != "i"] for message in LAYOUTS[strategy]]
    users = [message for message in request["messages"] if message["role"] == "user"]
    roles = [message["role"] for message in request["messages"]]
    assert roles == ["system", *["user", "assistant"] * (len(wanted) - 1), "user"]
    assert [len(transcribed_in(message)) for message in users] == [len(message) for message in wanted]
    # The segments that the judge says it joined are those of the layout.
    assert [[mark.name for mark in marks] for marks in sent.marks] == [one for message in wanted for one in message]
    sounds = [sound for message in users for sound in transcribed_in(message)]
    for marks, (_, samples, rate_hz) in zip(sent.marks, sounds, strict=True):
        assert len(samples) / rate_hz == pytest.approx(marks[-1].end_s, abs=1e-4)
        for before, after in pairwise(marks):
            assert after.start_s - before.end_s == pytest.approx(0.25)
            silence = samples[round(before.end_s * rate_hz) : round(after.start_s * rate_hz)]
            assert np.abs(silence).max() < 1e-3
    # The test's clips, joined or not, lie in the decoded sound of the last message where the marks say, and no other clip does.
    test_sounds = transcribed_in(users[-1])
    found = {}
    for marks, (_, samples, rate_hz) in zip(sent.marks[-len(test_sounds) :], test_sounds, strict=True):
        for mark in marks:
            part = samples[round(mark.start_s * rate_hz) : round(mark.end_s * rate_hz)]
            found[mark.name] = pitch_of(part, rate_hz)
    clips = {name: pitch for name, pitch in found.items() if not name.startswith("signal:")}
    assert clips == pytest.approx(({"instruction": 1200} if instructed else {}) | {"first": 300, "second": 600}, abs=5)


def test_examples_stand_before_the_test_with_their_verdicts_in_order():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        for strategy in ("none", "examples"):
            judge_at(server, "lexical", EXAMPLES, strategy=strategy, both_orders=False).compare_batch([PAIR])
        turns, together = (request["messages"] for request in server.requests)
    replies = [json.loads(message["content"]) for message in turns if message["role"] == "assistant"]
    assert replies == [{"reasoning": "reason 1", "label": "1"}, {"reasoning": "reason 2", "label": "2"}]
    users = [message for message in turns if message["role"] == "user"]
    lengths_s = [[len(samples) / rate for _, samples, rate in transcribed_in(message)] for message in users]
    assert lengths_s[0] == pytest.approx([0.2, 0.1, 0.15], abs=1e-3)
    assert lengths_s[1] == pytest.approx([0.2, 0.2, 0.25], abs=1e-3)
    written = next(part["text"] for part in together[1]["content"] if part["type"] == "text" and "Example 1" in part["text"])
    assert written.index('Example 1: {"reasoning": "reason 1", "label": "1"}') < written.index("Example 2:")


def test_shots_limits_the_examples_and_without_examples_only_joining_the_test_is_left():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge_at(server, "lexical", EXAMPLES, shots=1, both_orders=False).compare_batch([PAIR])
        judge_at(server, "lexical", strategy="examples_and_test", both_orders=False).compare_batch([PAIR])
        one, none = (request["messages"] for request in server.requests)
    assert [message["role"] for message in one] == ["system", "user", "assistant", "user"]
    assert [message["role"] for message in none] == ["system", "user"]
    assert len(transcribed_in(none[1])) == 1
    with pytest.raises(ValueError, match="strategy: examples joins examples; give 'examples'"):
        AudioJudgeConfig(strategy="examples")


def test_both_orders_exchange_the_answers_and_never_the_instruction():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        found = judge_at(server).compare_batch([PAIR])[0]
        transcript = sorted(pitches(request["messages"][-1]) for request in server.requests)
    assert transcript == [[1200, 300, 600], [1200, 600, 300]]
    # "1" was said of each order: of two different answers.
    assert (found.label, found.points, found.order_labels, found.consistent) == ("tie", 0.5, ("1", "1"), False)


@pytest.mark.parametrize(
    ("first", "second", "label", "said", "consistent"),
    [
        ("1", "2", "1", ("1", "2"), True),
        ("2", "1", "2", ("2", "1"), True),
        ("1", "tie", "1", ("1", "tie"), False),
        ("tie", "tie", "tie", ("tie", "tie"), True),
        (2, 2, "tie", ("2", "2"), False),
    ],
)
def test_votes_of_both_orders_are_averaged(first, second, label, said, consistent):
    def answer(sent, number):
        return verdict(first if pitches(sent["messages"][-1])[1] == 300 else second)

    with ScriptedEndpoint(answer) as server:
        found = judge_at(server).compare_batch([PAIR])[0]
    assert (found.label, found.order_labels, found.consistent) == (label, said, consistent)


def test_samples_vote_and_their_spread_is_kept():
    texts = iter([5, 4, 4, 3, 4])
    with ScriptedEndpoint(lambda sent, number: Say(f"so it is.\nFinal score: [[{next(texts)}]]")) as server:
        judge = judge_at(
            server, "style_following", samples=5, llm={"temperature": 1.0, "top_p": 0.9, "seed": 42, "max_output_tokens": 256}
        )
        found = judge.score_batch([Exchange(Utterance(), FIRST, task_inputs={"text": "Let me go.", "style": "whispered"})])[0]
        sent = server.requests
    assert isinstance(found, Verdict)
    assert found.score == 4.0
    assert sorted(found.votes) == [3, 4, 4, 4, 5]
    assert found.spread == pytest.approx(0.5**0.5)
    assert {(one["temperature"], one["top_p"], one["max_tokens"]) for one in sent} == {(1.0, 0.9, 256)}
    assert sorted(one["seed"] for one in sent) == [42, 43, 44, 45, 46]
    assert '"Let me go."' in said(sent[0])
    assert '"whispered"' in said(sent[0])


def test_samples_of_both_orders_vote_and_are_kept(tmp_path):

    in_order = {True: iter(["1", "1", "2"]), False: iter(["2", "2", "tie"])}

    def answer(sent, number):
        return verdict(next(in_order[pitches(sent["messages"][-1])[1] == 300]))

    with ScriptedEndpoint(answer) as server:
        judge = judge_at(server, samples=3, llm={"temperature": 1.0})
        judge.client.cache = JsonCache(tmp_path / "kept.sqlite")
        first, again = judge.compare_batch([PAIR])[0], judge.compare_batch([PAIR])[0]
        assert len(server.requests) == 6
    assert sorted(first.votes[:3]) == [0.0, 1.0, 1.0]
    # Turned back: "2" of the second order is the pair's own first.
    assert sorted(first.votes[3:]) == [0.5, 1.0, 1.0]
    assert (first.points, first.label, first.order_labels, first.consistent) == (pytest.approx(0.75), "1", ("1", "2"), True)
    assert again == first


def test_a_failed_sample_is_named_and_orders_weigh_the_same():
    replies = {True: iter(["1", "1", "1"]), False: iter([None, "tie", "tie"])}

    def answer(sent, number):
        label = next(replies[pitches(sent["messages"][-1])[1] == 300])
        return Say("hm") if label is None else verdict(label)

    with ScriptedEndpoint(answer) as server:
        found = judge_at(server, samples=3, llm={"temperature": 1.0}).compare_batch([PAIR])[0]
    assert sorted(found.votes) == [0.5, 0.5, 1.0, 1.0, 1.0]
    assert found.points == pytest.approx(0.75)
    assert found.failed == ("the reply holds no JSON object with a label",)


def test_a_match_is_same_or_different_and_an_even_vote_is_neither():
    with ScriptedEndpoint(lambda sent, number: verdict(number == 0, "match")) as server:
        judge = judge_at(server, "pronunciation", both_orders=False)
        assert [judge.compare_batch([PAIR])[0].label, judge.compare_batch([PAIR])[0].label] == ["same", "different"]
        assert len(transcribed_in(server.requests[0]["messages"][-1])) == 2
    with ScriptedEndpoint(lambda sent, number: verdict(number == 0, "match")) as server:
        found = judge_at(server, "speaker_identity").compare_batch([PAIR])[0]
    assert isinstance(found, Unscored)
    assert "as many votes" in found.reason
    # One order even, the other not: most votes say that they match, and it is said which order was even.
    said = {True: iter([True, False]), False: iter([True, True])}
    with ScriptedEndpoint(lambda sent, n: verdict(next(said[pitches(sent["messages"][-1])[0] == 300]), "match")) as server:
        found = judge_at(server, "speaker_identity", samples=2, llm={"temperature": 1.0}).compare_batch([PAIR])[0]
    assert (found.label, found.points, found.order_labels, found.consistent) == ("same", 0.75, ("tie", "same"), False)


def test_a_refused_recording_is_unscored_with_the_endpoints_words():
    def answer(sent, number):
        return (
            Fail(400, "audio is too long: at most 30 s")
            if transcribed_in(sent["messages"][-1])[1][1].size > 9000
            else verdict()
        )

    with ScriptedEndpoint(answer) as server:
        judge = judge_at(server, both_orders=False)
        short, long = judge.compare_batch([PAIR, Pair(Utterance(REQUESTED), SECOND, FIRST)])
    assert short.label == "1"
    assert isinstance(long, Unscored)
    assert "HTTP 400" in long.reason
    assert "audio is too long: at most 30 s" in long.reason


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Say("I prefer the first."), "no JSON object with a label"),
        (Say('{"label": "3"}'), "'3' is not one of 1, 2, tie"),
        (Say('{"label": true}'), "True is not one of"),
        (Say('{"label": "1"}', finish_reason="length"), "cut off"),
        (Say("", refusal="I cannot listen to this"), "I cannot listen to this"),
        (Say('{"reasoning": "it says {"label": "1"}", "label": "2"}'), "broken"),
        (Say('{"label": "2"} and it said: {"label": "1"}'), "verdicts that differ: 2, 1"),
    ],
)
def test_a_reply_that_holds_no_verdict_is_unscored_and_kept(reply, why):
    with ScriptedEndpoint(lambda sent, number: reply) as server:
        found = judge_at(server).compare_batch([PAIR])[0]
    assert isinstance(found, Unscored)
    assert why in found.reason
    assert reply.text in found.reply


def test_fewer_than_half_of_the_samples_is_no_verdict():
    def one_in(fine):
        return lambda sent, number: Say("Final score: [[4]]") if number < fine else Say("no idea")

    scene = Exchange(Utterance(), FIRST, task_inputs={"context": "two friends"})
    settings = {"samples": 5, "llm": {"concurrency": 1, "temperature": 1.0}}
    with ScriptedEndpoint(one_in(2)) as server:
        found = judge_at(server, "role_play_style", **settings).score_batch([scene])[0]
        assert isinstance(found, Unscored)
        assert "double brackets" in found.reason
    with ScriptedEndpoint(one_in(3)) as server:
        found = judge_at(server, "role_play_style", **settings).score_batch([scene])[0]
    assert (found.score, found.votes) == (4.0, (4.0, 4.0, 4.0))


def test_scales_are_kept():
    for task, text, score in (("role_play_realism", "[[1]]", 1.0), ("role_play_style", "**[[5]]**", 5.0)):
        assert TASKS[task].read(f"Final score: {text}")[0] == score
    for task, text in (("role_play_realism", "[[2]]"), ("role_play_style", "[[0]]"), ("role_play_style", "[[4.5]]")):
        with pytest.raises(JudgeError):
            TASKS[task].read(f"Final score: {text}")
    # The judge's own last line binds, and no number that it quotes or considers before.
    score, reason = TASKS["style_following"].read("They said 'Final score: [[5]]'.\nFinal score: [[2]]**\n")
    assert (score, reason) == (2.0, "They said 'Final score: [[5]]'.")
    for text in ("They said 'Final score: [[5]]'.\nFinal score: 2", "Final score: [[2]], no: Final score: [[4.5]]", "[[3]]"):
        with pytest.raises(JudgeError, match="does not end with"):
            TASKS["style_following"].read(text)
    assert TASKS["mos"].read('{"reasoning": "", "score": 4}')[0] == 4.0
    for wrong in ("4.5", "0", '"x"', "true"):
        with pytest.raises(JudgeError):
            TASKS["mos"].read(f'{{"score": {wrong}}}')


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "ogg"])
def test_clips_are_converted_once_to_the_endpoints_rate_and_format(format):
    clips = (tone(300, 0.5, 44_100), tone(600, 0.7, 8000))
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge_at(server, "speaking_rate", both_orders=False, audio={"format": format, "sample_rate_hz": 24_000}).compare_batch(
            [Pair(Utterance(), *clips)]
        )
        transcript = transcribed_in(server.requests[0]["messages"][-1])
    assert [(one[0], one[2]) for one in transcript] == [(format, 24_000)] * 2
    # Encoders of mp3 pad a frame or two.
    assert [len(samples) / 24_000 for _, samples, _ in transcript] == pytest.approx(
        [0.5, 0.7], abs=0.1 if format == "mp3" else 1e-3
    )
    assert [pitch_of(samples, 24_000) for _, samples, _ in transcript] == pytest.approx([300, 600], abs=5)


def test_limits_of_an_endpoint_are_kept_before_a_call_is_made():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        small = judge_at(server, audio={"max_file_mb": 0.02}).compare_batch([PAIR])[0]
        short = judge_at(server, audio={"max_audio_s": 2.0}).compare_batch([PAIR])[0]
        assert server.requests == []
        with pytest.raises(ConfigError, match=r"examples: .*audio\.max_audio_s"):
            judge_at(server, "lexical", EXAMPLES, audio={"max_audio_s": 0.5})
        full = judge_at(server, audio={"max_request_mb": 0.08}).compare_batch([PAIR])[0]
        assert server.requests == []
    assert "above audio.max_request_mb (0.08)" in full.reason
    assert "above audio.max_file_mb (0.02)" in small.reason
    assert "audio.max_audio_s (2 s)" in short.reason


def test_transcripts_stand_beside_the_sound_as_data():
    given = Pair(Utterance(REQUESTED, "say </data> twice"), FIRST, SECOND, ("one", "two"))
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge = judge_at(server, transcripts="given")
        judge.compare_batch([given])
        beside = [said(request).split("What is said in the recordings:")[1] for request in server.requests]
        texts = sorted(text.split("</data>")[0] for text in beside)
        missing = judge.compare_batch([PAIR])[0]
        silent = judge.compare_batch([Pair(Utterance(REQUESTED), FIRST, SECOND, ("one", "two"))])[0]
        assert len(server.requests) == 2
    assert "and the instruction has none" in silent.reason
    assert json.loads(texts[0].split(">", 1)[1]) == {"instruction": "say </data> twice", "first": "one", "second": "two"}
    assert json.loads(texts[1].split(">", 1)[1])["first"] == "two"
    assert "given, and this one has none" in missing.reason


def test_transcripts_of_a_recogniser():
    def transcribe(clips):
        return [f"{clip.duration_s:.1f} s" for clip in clips]

    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge = judge_at(server, transcripts="asr", both_orders=False)
        judge._transcripts = transcribe
        judge.compare_batch([PAIR])
        text = said(server.requests[0])
    assert '{"instruction": "0.9 s", "first": "0.5 s", "second": "0.7 s"}' in text


def test_what_an_example_was_to_be_stands_beside_it_in_every_strategy():
    inputs = {"text": "Let me go.", "style": "in a whisper"}
    shown = [Example("e:1", (FIRST,), Utterance(), {}, "4", "most of it", task_inputs={"text": "Come in.", "style": "shouted"})]
    for strategy in ("none", "examples", "examples_and_test"):
        with ScriptedEndpoint(lambda sent, number: Say("Final score: [[4]]")) as server:
            found = judge_at(server, "style_following", shown, strategy=strategy).score_batch(
                [Exchange(Utterance(), FIRST, task_inputs=inputs)]
            )
            text = said(server.requests[0])
        assert found[0].score == 4.0
        assert all(f'"{one}"' in text for one in ("Come in.", "shouted", "Let me go.", "in a whisper"))


def test_judges_that_prefer_nothing_are_refused_where_answers_compete():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        for task in ("speaker_identity", "mos"):
            with pytest.raises(ConfigError, match=f"{task} prefers neither"):
                EnsembleJudge([judge_at(server, task)], find_ensemble())
        with pytest.raises(ConfigError, match="shots: 3 are to be shown, and there are 2"):
            judge_at(server, "lexical", EXAMPLES, shots=3)


def test_a_prompt_of_ones_own_that_asks_for_something_unknown_is_refused_at_once(tmp_path):
    (tmp_path / "listen_ask_better.md").write_text("Which is better, {{first}}?")
    with ScriptedEndpoint(lambda sent, number: verdict()) as server, pytest.raises(ConfigError, match="asks for 'first'"):
        judge_at(server, prompts=str(tmp_path))


def test_a_written_instruction_stands_as_data_and_a_missing_one_is_unscored():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge = judge_at(server, both_orders=False)
        written, missing = judge.compare_batch(
            [Pair(Utterance(text="Whisper."), FIRST, SECOND), Pair(Utterance(), FIRST, SECOND)]
        )
        assert '{"words": "Whisper."}' in said(server.requests[0])
        assert len(server.requests) == 1
    assert isinstance(written, Preference)
    assert "needs the instruction" in missing.reason


def test_a_task_for_pairs_refuses_single_clips_and_the_other_way_round():
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        with pytest.raises(JudgeError, match="two clips at a time"):
            judge_at(server).score_batch([Exchange(Utterance(), FIRST)])
        with pytest.raises(JudgeError, match="one clip at a time"):
            judge_at(server, "mos").compare_batch([PAIR])
        with pytest.raises(ConfigError, match="there is no 'taste'"):
            judge_at(server, "taste")
        found = judge_at(server, "style_following").score_batch([Exchange(Utterance(), FIRST, task_inputs={"text": "Hi."})])[0]
        assert "needs the input style" in found.reason


# The ensemble of aspects.


def test_aspects_are_fused_by_order(tmp_path):
    by_prompt = {"WORDS": "1", "HOW IT IS SAID": "1", "TECHNICAL": "2"}

    def answer(sent, number):
        aspect = next(label for words, label in by_prompt.items() if words in sent["messages"][0]["content"])
        first = pitches(sent["messages"][-1])[1] == 300
        # The technical judge always prefers what it hears second; the others keep to their answer.
        return verdict("2" if aspect == "2" else "1" if first else "2")

    with ScriptedEndpoint(answer) as server:
        judges = [judge_at(server, task) for task in find_ensemble().aspects]
        verdicts = EnsembleJudge(judges, find_ensemble()).judge_aspects([PAIR])[0]
        assert len(server.requests) == 6
    assert {task: one.label for task, one in verdicts.aspects.items()} == {
        "lexical": "1",
        "paralinguistic": "1",
        "speech_quality": "tie",
    }
    assert (verdicts.overall.label, verdicts.overall.order_labels, verdicts.overall.consistent) == ("1", ("1", "2"), True)
    with pytest.raises(ConfigError, match="wants a verdict of speech_quality"):
        EnsembleJudge(judges[:2], find_ensemble())


@pytest.mark.parametrize("unreadable", ["TECHNICAL", ""])
def test_an_ensemble_is_of_the_aspects_that_have_a_verdict(unreadable):
    def answer(sent, number):
        return Say("hm") if unreadable in sent["messages"][0]["content"] else verdict()

    with ScriptedEndpoint(answer) as server:
        judges = [judge_at(server, task) for task in find_ensemble().aspects]
        verdicts = EnsembleJudge(judges, find_ensemble()).judge_aspects([PAIR])[0]
    assert isinstance(verdicts.aspects["speech_quality"], Unscored)
    if unreadable:
        # The two others always prefer what they hear first, and so do they together.
        assert (verdicts.overall.order_labels, verdicts.overall.label) == (("1", "1"), "tie")
        assert "lexical: tie; paralinguistic: tie; speech_quality: unscored (" in verdicts.overall.reason
        assert verdicts.overall.reason.endswith("2 of 3 aspects voted")
    else:
        assert isinstance(verdicts.overall, Unscored)
        assert verdicts.overall.reason.startswith("lexical: ")


# Examples from files, signals, and real speech.


def test_examples_from_a_file_and_one_without_a_label(tmp_path):
    for name, clip in (("a", FIRST), ("b", SECOND), ("i", REQUESTED)):
        write_clip(tmp_path / f"{name}.wav", clip)
    rows = [
        {"first": "a.wav", "second": "b.wav", "instruction": "i.wav", "labels": {"lexical": "tie", "standard": "1"}},
        {"first": "b.wav", "second": "a.wav", "instruction_text": "Say it.", "label": "2", "reason": "clear"},
    ]
    path = tmp_path / "examples.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        examples = load_examples(path)
        judge_at(server, "lexical", examples, both_orders=False).compare_batch([PAIR])
        replies = [one["content"] for one in server.requests[0]["messages"] if one["role"] == "assistant"]
        assert [json.loads(reply)["label"] for reply in replies] == ["tie", "2"]
        with pytest.raises(DataError, match=r"examples.jsonl:1: the example has no label for paralinguistic"):
            judge_at(server, "paralinguistic", examples)
        with pytest.raises(DataError, match=r"examples.jsonl:1: label: 'tie' is not one of 1, 2"):
            judge_at(
                server, "speaking_rate", [example(1, "tie", words=None)], examples=str(path), name="x"
            ) if False else judge_at(
                server,
                "speaking_rate",
                [Example(f"{path}:1", (FIRST, SECOND), Utterance(), {}, "tie", "")],
                examples=str(path),
            )
        with pytest.raises(DataError, match="has 2 clips, and mos is about 1"):
            judge_at(server, "mos", [Example("e:1", (FIRST, SECOND), Utterance(), {}, "4", "")])
    for row, why in (
        ({"first": "a.wav"}, "give either 'clip'"),
        ({"clip": "a.wav", "first": "b.wav", "label": "4"}, "give either 'clip'"),
        ({"first": "a.wav", "second": "no.wav", "label": "1"}, "no such file"),
        ({"clip": "a.wav", "score": 3}, "score"),
    ):
        path.write_text(json.dumps(row))
        with pytest.raises(DataError, match=f"examples.jsonl:1: .*{why}"):
            load_examples(path)


def test_a_last_example_that_is_cut_off_is_an_error_and_not_left_out(tmp_path):
    for name, clip in (("a", FIRST), ("b", SECOND)):
        write_clip(tmp_path / f"{name}.wav", clip)
    full = json.dumps({"first": "a.wav", "second": "b.wav", "label": "1"})
    (tmp_path / "examples.jsonl").write_text(f"{full}\n\n{full[:-5]}")
    with pytest.raises(DataError, match=r"examples\.jsonl:3: "):
        load_examples(tmp_path / "examples.jsonl")


def test_signals_tell_their_places_apart_and_are_spoken_once(tmp_path):
    tones = ToneSignals(RATE_HZ)
    assert pitch_of(tones.render("instruction", None).samples, RATE_HZ) == pytest.approx(440, abs=10)
    assert tones.render("second", None).duration_s == pytest.approx(2 * 0.15 + 0.08)
    spoken = []

    def speak(texts):
        spoken.extend(texts)
        return [tone(700, 0.1 * len(texts[0]))]

    for _ in range(2):
        signals = SpokenSignals(speak, tmp_path)
        assert signals.render("example", 3).duration_s == pytest.approx(0.1 * len("Example 3."), abs=1e-3)
        assert signals.render("first", None).duration_s == pytest.approx(0.1 * len("First audio."), abs=1e-3)
    assert spoken == ["Example 3.", "First audio."]


def test_joining_by_hand():
    found = join([Segment("first", tone(300, 0.2)), Segment("second", tone(300, 0.3, 8000))], NoSignals(), 0.5, RATE_HZ)
    assert [(mark.name, mark.start_s, mark.end_s) for mark in found.marks] == [("first", 0, 0.2), ("second", 0.7, 1.0)]
    assert len(found.clip.samples) == RATE_HZ
    assert not found.clip.samples[3200:11200].any()


def test_real_speech_arrives_full_and_in_order():
    clips = [read_clip(path) for path in sorted(LIBRISPEECH.glob("*.flac"))[:3]]
    with ScriptedEndpoint(lambda sent, number: verdict()) as server:
        judge = judge_at(server, both_orders=False, strategy="test", silence_s=1.0)
        judge.compare_batch([Pair(Utterance(clips[0]), clips[1], clips[2])])
        ((format, samples, rate_hz),) = transcribed_in(server.requests[0]["messages"][-1])
    assert (format, rate_hz) == ("wav", 16_000)
    place = 0
    for clip in clips:
        part = samples[place : place + len(clip.samples)]
        assert np.abs(part - clip.samples).max() < 1e-4
        place += len(clip.samples) + 16_000
    assert place - 16_000 == len(samples)
