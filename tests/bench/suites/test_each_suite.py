"""Each outside suite on a made folder of its layout: the items, the question to the judge, and a table computed by hand.

Words are not recognised here: a scripted recogniser says what the answer's length stands for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from outside import LIBRISPEECH
from test_suites import QUIET, figures, judge_at, options
from tiny import suites as made
from tiny.endpoint import Say, ScriptedEndpoint, said

from paras2s.audio.asr import Transcript, Word
from paras2s.bench.suites import fullduplex, measures, uro, vocalbench
from paras2s.bench.suites.run import SuiteOptions, run_suite
from paras2s.errors import AssetError
from paras2s.reward.judges.audio_judge import judge as audio_judge

WORDS = "right words here now"


@pytest.fixture(autouse=True)
def recogniser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hears the four words, of which a clip of n tenths of a second holds the first n - 2."""

    def transcribe(clips: Any, *_: Any, **__: Any) -> list[Transcript]:
        texts = [" ".join(WORDS.split()[: round(10 * clip.duration_s) - 2]) for clip in clips]
        words = [tuple(Word(w, 0.3 * n, 0.3 * n + 0.2, None) for n, w in enumerate(one.split())) for one in texts]
        return [Transcript(one, timed) for one, timed in zip(texts, words, strict=True)]

    monkeypatch.setattr(audio_judge, "transcribe", transcribe)
    monkeypatch.setattr(fullduplex, "transcribe", transcribe)


def bench(name: str, tmp_path: Path, answer: Any, **more: Any) -> Any:
    """A run on tmp_path/data and tmp_path/mine by the scripted judge; its requests are in `tmp_path.requests`."""
    with ScriptedEndpoint(answer) as server:
        result = run_suite(options(name, tmp_path, judge_at(tmp_path, server), **more), QUIET, True)
        return result, server.requests


# VStyle.


def vstyle(data: Path) -> None:
    made.text(data / "lalm_eval/eval_prompts/en/empathy.txt", "{instruction_type} of {input_instruction}")
    made.text(data / "lalm_eval/eval_prompts/en/acoustic_attributes.txt", "{instruction_type} {not_ours}")
    made.text(data / "lalm_eval/eval_prompts/zh/empathy.txt", "{input_instruction}")
    made.rows(
        data / "en/metadata.jsonl",
        {"instruct_id": 1, "ability": "empathy/anger", "instruct_text": "I am angry {instruction_type}"},
        {"instruct_id": 2, "ability": "acoustic_attributes/age", "instruct_text": "as a child"},
        {"instruct_id": 2, "ability": "acoustic_attributes/age", "instruct_text": "as a child"},
        {"instruct_id": 3, "ability": "empathy/envy", "instruct_text": "no such ability"},
    )
    made.rows(
        data / "zh/metadata.jsonl",
        {"instruct_id": 1, "ability": "empathy/anger", "instruct_text": "我很生气", "file_name": "wav/愤怒.mp3"},
    )
    for name in ("en/wav/1.wav", "en/wav/2.wav", "zh/wav/愤怒.mp3"):
        made.sound(data / name)


def test_vstyle_reads_both_languages_its_last_bracket_and_mp3_answers_by_the_makers_list(tmp_path: Path) -> None:
    vstyle(tmp_path / "data")
    for number in (1, 2):
        made.sound(tmp_path / f"mine/wav/a{number}.mp3")
    made.sound(tmp_path / "mine/wav/中文.wav")
    made.rows(
        tmp_path / "mine/metadata.jsonl",
        *({"instruct_id": n, "instruct_text": "x", "response_audio_path": f"a{n}.mp3"} for n in (1, 2)),
        {"instruct_id": 1, "instruct_text": "我很生气", "response_audio_path": "中文.wav"},
    )
    scores = {"empathy/anger of I am angry {instruction_type}": 5, "acoustic_attributes/age {not_ours}": 2, "我很生气": 4}
    result, sent = bench("vstyle", tmp_path, lambda s, n: Say(f"[[1]] at first, then [[{scores[said(s)]}]]"))
    assert {said(one) for one in sent} == set(scores)
    assert [row.score for row in result.rows] == [5.0, 2.0, 4.0]
    # Overall needs all sixteen abilities.
    assert figures(result)["en overall"] is None
    assert sorted(problem.rpartition(": ")[2] for problem in result.report["problems"]) == [
        "'empathy/envy' is unknown)",
        "this id occurs twice; the first counts",
    ]


def test_vstyles_own_files_of_results_give_its_weighted_table_and_peoples_agreement(tmp_path: Path) -> None:
    from paras2s.bench.suites.vstyle import WEIGHTS

    rows = [
        {
            "id": number,
            "instruct_id": number,
            "ability": ability,
            "model_name": "m",
            "instruct_text": "x",
            "gemini_score": str(score),
        }
        for number, (ability, score) in enumerate(zip(WEIGHTS, [1, 1, 1, 1, 1, 1, 5, 3, 3, 3, 2, 4, 5, 4, 3, 4], strict=True))
    ]
    rows.append({**rows[0], "id": 99, "gemini_score": "API failed: no"})
    judged = made.rows(tmp_path / "model_eval_res/en_res.jsonl", *rows)
    people = made.rows(
        tmp_path / "human_eval_res/en/anna.jsonl",
        *({key: row[key] for key in ("id", "instruct_id", "ability")} | {"mos": row["gemini_score"]} for row in rows[:16]),
    )
    result = run_suite(SuiteOptions("vstyle", tmp_path / "run", tmp_path / "cache", verdicts=(judged, people)), QUIET, True)
    (gemini, anna) = result.report["tables"]
    values = {name: figure["value"] for name, figure in result.report["tables"][gemini]["m"].items()}
    # Composite properties (5) are half of the acoustic attributes, whose others have 1.
    assert values == pytest.approx(
        {"overall": (3 + 3 + 3 + 4) / 4, "acoustic_attributes": 3, "instruction": 3, "role_play": 3, "empathy": 4}
    )
    assert (gemini, anna) == ("gemini/recorded", "anna/recorded")
    (compared,) = result.report["agreement"]
    assert compared["measures"]["style"]["value"] == pytest.approx(1.0)
    assert "API failed: no" in result.report["unscored"][0]["reason"]


# EchoMind.


def test_echomind_scores_words_and_voice_and_tells_contrasts_apart(tmp_path: Path) -> None:
    data = tmp_path / "data/dataset/data_synthesis"
    prompt = '(f"""{spoken_info}|{topic}|{speak_a}|{response_transcript}""")'
    made.python(tmp_path / "data/src/eval-result/evaluation_metric.py", prompt_template=prompt, system_prompt='"""Voice."""')
    cases = []
    for case in ("c1", "c2"):
        deliveries = ("target", "neutral", "alternative")
        infos = {f"{ty}_audio_info": {f"{ty}_input_audio_file": f"{case}/{ty}.wav"} for ty in deliveries}
        cases.append({"case_id": case, "topic": "work", "spoken_info": "tired", "speak_A": "so late", **infos})
        for ty in deliveries:
            made.sound(data / f"audio/{case}/{ty}.wav")
            made.sound(tmp_path / f"mine/{case}/{case}_{ty}_out.wav", 0.4)
    made.table(data / "script_info_synthesis.json", cases)
    outputs = [
        {
            **case,
            "output_content": {
                ty: {"file": f"{case['case_id']}_{ty}_out.wav", "response_text": "x"}
                for ty in ("target", "neutral", "alternative")
            },
        }
        for case in cases
    ]
    made.table(tmp_path / "mine/m_no_output_responses.json", outputs)

    def answer(sent: dict[str, Any], _: int) -> Say:
        if sent["messages"][0] == {"role": "system", "content": "Voice."}:
            return Say('{"VES_score": 2, "explanation": ""}')
        # The answers fit in two deliveries, and not in the neutral one.
        scores = {"context_fit": 4, "response_naturalness": 3, "colloquialism_degree": 5}
        scores["speech_information_relevance"] = 2 if "neutral" in said(sent) else 4
        return Say(json.dumps({f"{name}_score": score for name, score in scores.items()}))

    result, sent = bench("echomind", tmp_path, answer)
    assert "tired|work|so late|right words" in {said(one) for one in sent}
    # Both cases have equal words and tones, so that their questions are shared.
    assert len(sent) == 3 + 3
    values = figures(result)
    assert values["context_fit"] == 4
    assert values["speech_information_relevance"] == pytest.approx(10 / 3)
    assert values["speech_information_relevance, neutral"] == 2
    assert values["vocal empathy"] == 2
    assert values["contrasts told apart"] == 0


# SD-Eval.


def test_sd_eval_rates_texts_and_spoken_answers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made.text(data / "prompts.py", 'emotion_sys = """Judge."""\nemotion_user_input = """{statement}/{info}/{response}"""\n')
    utterances = [{"wav_path": f"RAVDESS/{n}.wav", "transcript": f"s{n}", "utt_id": f"u{n}", "info": "sad"} for n in range(4)]
    made.table(data / "data/test-emo.json", [*utterances, {"utt_id": "broken"}])
    for n in range(4):
        made.sound(data / f"audio_data/RAVDESS/{n}.wav")
    made.table(tmp_path / "mine/test-emo.json", {"u0": "poor you", "u1": "well"})
    made.sound(tmp_path / "mine/u2.wav", 0.4)
    ratings = {"s0/Sad/poor you": "Rating: [[9]]", "s1/Sad/well": "Rating: [[11]]", "s2/Sad/right words": "Rating: [4]"}
    result, sent = bench("sdeval", tmp_path, lambda s, n: Say(ratings[s["messages"][-1]["content"]]))
    assert len(sent) == 3
    assert [row.score for row in result.rows] == [9, None, 4, None]
    assert [row.unscored for row in result.rows][1::2] == [
        "score: 11 is not between 1 and 10",
        "no answer: test-emo/u3.wav is missing",
    ]
    assert figures(result) == {"test-emo": 6.5, "overall": 6.5}
    assert "no item of the suite (KeyError" in result.report["problems"][0]


# VocalBench.


def test_vocalbench_scores_each_set_by_its_rule_and_adds_up_to_a_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for name in (
        "emotion",
        "single_round",
        "multi_round",
        "reasoning",
        "safety",
        "robust",
        "creativity/poem",
        "instruction/paralinguistic",
    ):
        made.text(data / f"prompts/{name}.txt", f"rule {name}")

    def add(file: str, name: str, *values: dict[str, Any]) -> None:
        table = []
        for value in values:
            qid = value.pop("Qid", f"{name}-000")
            audio = f"{file}/{qid}.wav"
            made.sound(data / "audio" / audio, 0.6)
            made.sound(tmp_path / f"mine/wav/{name}/{qid}.wav", 0.6)
            table.append({"Qid": qid, "Audio": audio, "Question": "why", "Answer": "words here", **value})
        made.table(data / f"json/{file}.json", table)

    add("emotion", "emotion", {"Question_emo": "sad", "Score": [1, 2, 3, 5, 4]})
    add("single_round", "single_round", {})
    add("multi_round", "multi_round", {"Context": [{"from": "user", "value": "hi"}, {"from": "assistant", "value": "ho"}]})
    add("instruction_following", "instruction", {"Question": f"Repeat it. {WORDS}", "Category": "Paralinguistic"},
        {"Qid": "instruction-120", "Question": f"Repeat it twice as fast. {WORDS}", "Category": "Paralinguistic"})  # fmt: skip
    add("knowledge", "knowledge", {})
    add("reasoning", "reasoning", {})
    add("creativity", "creativity", {"Category": "Poem"})
    add("safety", "safety", {})
    add(
        "robust",
        "robust",
        *(
            {"Qid": f"robust-{n}", "Category": one.partition("/")[0], "Level": one.partition("/")[2]}
            for n, one in enumerate(vocalbench.HARDEST)
        ),
    )
    made.table(tmp_path / "mine/json/single_round.json", [{"question_id": "single_round-000", "prediction": WORDS}])
    monkeypatch.setattr(
        vocalbench, "emotions", lambda clip: {**dict.fromkeys(measures_emotions(), 0.0), "sad": 0.3, "happy": 0.1, "other": 0.6}
    )
    monkeypatch.setattr(vocalbench, "utmos", lambda clip: {"score": 4.0})
    replies = {
        "rule safety": "[Succeed Refusal] and well",
        "rule instruction/paralinguistic": "[Yes]. Exactly.",
        "rule robust": "Score: [2]",
    }
    result, sent = bench("vocalbench", tmp_path, lambda s, n: Say(replies.get(s["messages"][0]["content"], "Score: [4]")))
    questions = {one["messages"][0]["content"]: one["messages"][1]["content"] for one in sent}
    assert (
        questions["rule multi_round"]
        == f"Context: \n User: hi\nModel: ho\n\n\n  Question: why\n\n  Standard Answer: words here\n\n  Response: {WORDS}"
    )
    values = figures(result)
    # 5 * 0.75 + 2 * 0.25: the shares are of the five emotions alone.
    assert values["emotion, voice"] == pytest.approx(4.25)
    assert (values["knowledge"], values["safety"], values["word errors, %"]) == (100, 1, 0)
    # 0.6 s are no half of the question's 0.6 s.
    assert values["instruction, %"] == 50
    assert values["robustness"] == pytest.approx(6 * 2.5 * 0.5)
    assert values["overall"] == pytest.approx(10 + 8 + 8 + 10 + 4 + 8 + 5 + 4.25 + 4 + 10 + 7.5)


def measures_emotions() -> tuple[str, ...]:
    return ("angry", "disgusted", "fearful", "happy", "neutral", "other", "sad", "surprised", "unknown")


# URO-Bench.


def test_uro_bench_scores_sets_of_one_and_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, mine = tmp_path / "data", tmp_path / "mine"
    prompts = {
        "prompt_ue": "{question}/{emotion}/{answer}/{reference}",
        "prompt_qa": "qa {answer}",
        "prompt_multi2": "{answer1},{answer2},{reference2}",
    }
    made.python(data / "metrics/mark_gpt.py", **{name: f'"""{text}""".strip()' for name, text in prompts.items()})
    made.python(data / "metrics/mark_gemini.py", template='"""sing {question}"""')

    def add(subset: str, **more: Any) -> None:
        made.sound(data / subset / "wav/0.wav")
        made.rows(data / subset / "test.jsonl", {"source_wav": "wav/0.wav", "source_text": "q", "target_text": WORDS, **more})
        made.sound(mine / subset / "audio/0000.wav", 0.6)

    add("pro/UnderEmotion-en", emotion="sad", target_text=["a", "b"])
    add("pro/GenEmotion-en", emotion="happy")
    add("pro/SRT-en")
    add("basic/Repeat")
    add("basic/MLC-zh")
    made.rows(mine / "basic/MLC-zh/pred_text.jsonl", {"0000": "答"})
    rounds = [{"round": n, "source_wav": f"{n}.wav", "source_text": "q", "target_text": f"t{n}"} for n in range(2)]
    made.rows(data / "pro/MtBenchEval-en/test.jsonl", {"id": 7, "dialogue": rounds})
    for n in range(2):
        made.sound(data / f"pro/MtBenchEval-en/{n}.wav")
        made.sound(mine / f"pro/MtBenchEval-en/7/chat_{n}.wav", 0.3 + n / 10)
    # Repeat: three of four words.
    made.sound(mine / "basic/Repeat/audio/0000.wav", 0.5)
    monkeypatch.setattr(uro, "emotions", lambda clip: {"happy": 0.5})
    scores = {f"q/sad/{WORDS}/a\nb": "4", "qa 答": "No.", "right,right words,t1": "3", "sing q": " 5 "}

    def answer(sent: dict[str, Any], _: int) -> Say:
        return Say(scores[sent["messages"][-1]["content"] if isinstance(sent["messages"][-1]["content"], str) else said(sent)])

    result, sent = bench("uro", tmp_path, answer)
    # Three samples of all but SRT.
    assert len(sent) == 3 + 3 + 3 + 1
    values = figures(result)
    sets = {"UnderEmotion-en": 80, "GenEmotion-en": 50, "SRT-en": 100, "Repeat": 75, "MLC-zh": 0, "MtBenchEval-en": 60}
    assert {name: values[name] for name in sets} == pytest.approx(sets)
    assert values["overall"] == pytest.approx(sum(sets.values()) / 6)
    # UTMOS needs weights, which are not here.
    assert values["UTMOS"] is None
    assert all("UTMOS: its weights are missing" in one["reason"] for one in result.report["unscored"])


def test_weights_that_are_missing_are_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    measures._utmos_model.cache_clear()
    with pytest.raises(AssetError, match="UTMOS: its weights are missing"):
        measures.utmos(made.read(made.sound(tmp_path / "a.wav")))


# Full-Duplex-Bench.


def test_full_duplex_bench_times_take_overs_and_overlaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, mine = tmp_path / "data", tmp_path / "mine"

    def add(task: str, name: str, words: list[list[float | None]] | None, **files: Any) -> None:
        made.sound(data / f"v1_0/{task}/{name}/input.wav", 2.0)
        for file, value in files.items():
            made.table(data / f"v1_0/{task}/{name}/{file}.json", value)
        made.sound(mine / f"{task}/{name}/output.wav", 2.0)
        if words is not None:
            made.table(
                mine / f"{task}/{name}/output.json", {"text": "", "chunks": [{"text": "w", "timestamp": one} for one in words]}
            )

    add("candor_pause_handling", "1", [])
    add("candor_pause_handling", "2", [[0.1, 0.3], [0.4, 1.3]])
    add("candor_turn_taking", "1", [[1.5, 1.6], [1.7, None], [1.8, 1.9], [1.9, 2.0]], turn_taking=[{"timestamp": [1.0, 1.2]}])
    add("candor_turn_taking", "2", [[0.5, 0.6]], turn_taking=[{"timestamp": [1.0, 1.2]}])
    add("synthetic_user_interruption", "1", [[0.2, 1.1], [1.4, 2.5]], interrupt=[{"timestamp": [0.8, 1.2]}])
    add("icc_backchannel", "0", [[0.5, 0.7]])
    made.table(data / "evaluation/icc_gt_distribution.json", {"0": [1.0, 0.0]})
    made.sound(data / "v1_5/user_backchannel/1/input.wav", 2.2)
    made.table(data / "v1_5/user_backchannel/1/metadata.json", {"timestamps": [0.5, 1.0]})
    made.sound(mine / "user_backchannel/1/output.wav", 2.4)
    spans = {2.0: [(0.5, 0.7)], 2.2: [(0.0, 0.4), (0.5, 1.0)], 2.4: [(0.8, 0.9), (1.5, 2.0)]}
    monkeypatch.setattr(fullduplex, "speech", lambda clip: spans[round(clip.duration_s, 1)])
    opts = options("fullduplex", tmp_path, None)
    result = run_suite(opts, QUIET, True)
    values = figures(result)
    assert values["candor_pause_handling: take-over rate"] == 0.5
    assert (values["candor_turn_taking: take-over rate"], values["candor_turn_taking: latency, s"]) == (0.5, pytest.approx(0.5))
    assert values["synthetic_user_interruption: latency, s"] == pytest.approx(0.2)
    assert values["icc_backchannel: take-over rate"] == 0
    assert values["icc_backchannel: backchannels a second"] == pytest.approx(0.5)
    # The user speaks until 1.0 s, as a gap of 0.1 s is none; the model over it for 0.1 s, and again from 1.5 s.
    assert values["user_backchannel: stop latency, s"] == pytest.approx(0.1)
    assert values["user_backchannel: response latency, s"] == pytest.approx(0.5)
    assert list(result.report["tables"]) == ["rules"]


def test_speech_is_found_in_a_recording() -> None:
    clip = made.read(sorted(LIBRISPEECH.glob("*.flac"))[0])
    spans = fullduplex.speech(clip)
    assert spans[0][0] == pytest.approx(0.5, abs=0.2)
    assert all(0 <= start < end <= clip.duration_s for start, end in spans)
    assert 4 < sum(end - start for start, end in spans) < clip.duration_s


# MTalk-Bench.


def test_mtalk_bench_joins_dialogues_for_rubrics_and_the_arena(tmp_path: Path) -> None:
    data = tmp_path / "data"
    rows = []
    for turn in (1, 2):
        for source in ("question", "GPT-4o"):
            path = f"audio/{source}-{turn}.wav"
            made.sound(data / path, 0.5)
            prompts = (
                {"rubric_prompt_general": "general", "rubric_prompt_specific": "", "arena_prompt": "arena"}
                if source == "question"
                else {}
            )
            rows.append(
                {
                    "type": "para",
                    "number": "1-1",
                    "turn": f"turn{turn}",
                    "source": source,
                    "audio_path": path,
                    "transcription": "hm",
                    **prompts,
                }
            )
        made.sound(tmp_path / f"mine/para/1-1/turn-{turn}.wav", 0.4)
    made.rows(data / "records.jsonl", *rows, {"type": "para"}, {**rows[1], "number": "1-2"})
    made.sound(data / "asset/turn_1.wav", 0.2)
    replies = {
        "general": '{"a": {"met": "Yes"}, "b": 0, "c": true, "d": "because"}',
        "arena": '{"winner": "Model A", "reason": ""}',
    }
    result, sent = bench("mtalk", tmp_path, lambda s, n: Say(replies[said(s)]))
    seconds = {said(one): len(one["messages"][-1]["content"][1]["input_audio"]["data"]) * 3 / 4 / 32_000 for one in sent}
    # Two questions, two answers, and an announcement, each with a second behind; in the arena both dialogues.
    assert seconds["general"] == pytest.approx(2 * 0.5 + 2 * 0.4 + 0.2 + 5, abs=0.01)
    assert seconds["arena"] == pytest.approx(4 * 0.5 + 2 * 0.4 + 2 * 0.5 + 2 * 0.2 + 10, abs=0.01)
    assert [(row.metric, row.score) for row in result.rows] == [
        ("rubric, general", pytest.approx(2 / 3)),
        ("arena", float(result.rows[1].position == 1)),
    ]
    assert ["no item of the suite (KeyError: 'number')" in result.report["problems"][0], *result.report["problems"][1:]] == [
        True,
        "para/1-2: a turn has no question",
    ]
