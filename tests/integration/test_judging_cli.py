"""`judge`, `blueprint --ray` and `bench SUITE`, with clips on disk and a scripted endpoint over HTTP.

Not covered: a judge that judges well; the scripted one knows the answer because the test tells it.
"""

import json
import re

import numpy as np
import pytest
import ray
import soundfile
from outside import HCOT, LIBRISPEECH, needs_hcot
from tiny.endpoint import Fail, Say, ScriptedEndpoint, said
from tiny.program import program

WORDS = re.compile(r'"words": "(\d+)"')


@pytest.fixture(scope="module", autouse=True)
def _no_ray_left():
    yield
    ray.shutdown()


def paras2s(*words, cwd, status=0):
    done = program(*words, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done


def verdict_of(labels):
    return json.dumps({"reasoning": "as told", **{key: labels[key] for key in ("content", "voice_quality", "paralinguistics")}})


LABELS = [
    ("1", "both_good", "2", "1"),
    ("both_bad", "both_good", "both_bad", "both_bad"),
    ("both_good", "1", "both_good", "1"),
    ("2", "2", "2", "2"),
    ("both_good", "both_good", "both_good", "both_good"),
    ("1", "1", "1", "1"),
]


@pytest.fixture
def suite(tmp_path):
    """Six pairs of two instructions; the fifth has no audio, and the text of each instruction is its number."""
    rows, rng = [], np.random.default_rng(0)
    for index, labels in enumerate(LABELS):
        names = [f"{index}/{name}.wav" for name in ("instruction", "a", "b")]
        (tmp_path / f"audio/{index}").mkdir(parents=True)
        for name in names[1:] if index != 4 else []:
            soundfile.write(tmp_path / "audio" / name, 0.1 * rng.standard_normal(8000), 16_000)
        label = dict(zip(("content", "voice_quality", "paralinguistics", "overall"), labels, strict=True))
        row = {"index": index, "instruction_path": names[0], "audio1_path": names[1], "audio2_path": names[2]}
        rows.append(row | {"instruction_text": str(index), "model_a": "x", "model_b": "y", "label": label})
        rows[-1]["instruction_id"] = index % 2
    (tmp_path / "labels.json").write_text(json.dumps(rows))
    return tmp_path, rows


def oracle_for(rows):
    return lambda sent, _: Say(verdict_of(rows[int(WORDS.search(said(sent)).group(1))]["label"]))


def bench(folder, server, *more, status=0):
    words = ("bench", "speakbench", "--labels", "labels.json", "--audio", "audio", "--judge", "audio")
    endpoint = ("-s", f"llm.base_url={server.base_url}", "-s", "llm.backoff_s=0.01")
    return paras2s(*words, *endpoint, *more, cwd=folder, status=status)


def test_a_judge_that_says_what_people_say_is_right_on_all_it_could_hear(suite):
    folder, rows = suite
    with ScriptedEndpoint(oracle_for(rows)) as server:
        found = json.loads(bench(folder, server, "--json", status=1).stdout)["judges"]
        assert len(server.requests) == 5
        again = json.loads(bench(folder, server, "--json", status=1).stdout)["judges"]
        assert len(server.requests) == 5
    kept = [json.loads(line) for line in (folder / next(iter(found))).read_text().splitlines()]
    assert list(kept[0]["made_from"]["clips"].values()) == [f"../../audio/0/{name}.wav" for name in "ab"]
    # The fifth has no audio, so nothing was sent.
    assert [len(row["made_from"]["prompts"]) for row in kept] == [1, 1, 1, 1, 0, 1]
    assert "[a clip of 0.5 s]" in kept[0]["made_from"]["prompts"][0]
    assert [row["made_from"]["fusion"][0]["steps"][-1][1] for row in kept if row.get("labels")] == [
        row["label"]["overall"] for row in rows if row["index"] != 4
    ]
    for reports in (found, again):
        assert all(report["cost"].pop("local_hours") < 0.01 for report in reports.values())
    assert found == again
    (path, report), *_ = found.items()
    assert re.fullmatch(r"runs/speakbench/audio-gpt-audio-3-[0-9a-f]{8}\.jsonl", path)
    assert (report["n_scored"], report["n_pairs"]) == (5, 6)
    assert report["overall"]["accuracy_4"]["value"] == 1.0
    assert report["dimensions"]["content"] | {"low": 1, "high": 1} == {"value": 1, "low": 1, "high": 1, "n": 5, "n_asked": 6}
    assert list(report["unscored"].values()) == [1]
    assert "4/a.wav: no such file" in next(iter(report["unscored"]))
    assert report["majority"]["overall"] == {"label": "1", "accuracy": 0.5}
    # The endpoint does not count audio: two clips of half a second are 10 of the 100 tokens.
    assert (report["cost"]["text_in_tokens"], report["cost"]["audio_in_tokens"]) == (450, 50)
    assert report["cost"]["api_usd"] == pytest.approx(5 * (90 * 2.5 + 10 * 32 + 20 * 10) / 1e6)


def test_recorded_verdicts_are_scored_and_compared_without_a_call(suite):
    folder, rows = suite
    for name, wrong in (("good", 0), ("poor", 3)):
        lines = []
        for row in rows:
            labels = {key: row["label"][key] for key in ("content", "voice_quality", "paralinguistics")}
            lines.append(
                {"index": row["index"], "labels": dict.fromkeys(labels, "both_bad") if row["index"] < wrong else labels}
            )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("bench", "speakbench", "--labels", "labels.json", "--verdicts", "good.jsonl", "--verdicts", "poor.jsonl")
    found = json.loads(paras2s(*words, "--json", cwd=folder).stdout)
    assert found["judges"]["good.jsonl"]["overall"]["accuracy_4"]["value"] == 1.0
    assert found["judges"]["poor.jsonl"]["overall"]["accuracy_4"]["value"] == pytest.approx(4 / 6)
    comparison = found["comparisons"]["good.jsonl - poor.jsonl"]
    assert (comparison["first_only"], comparison["second_only"], comparison["p_value"]) == (2, 0, 0.5)
    text = paras2s(*words, cwd=folder).stdout
    assert "good.jsonl: 6 of 6 pairs scored" in text
    assert "McNemar p = 0.5 (exact)" in text
    (folder / "poor.jsonl").write_text('{"index": 0, "labels": {"content": "1"}}\n')
    assert "poor.jsonl:1: row: labels" in paras2s(*words, cwd=folder, status=2).stderr


def test_an_estimate_makes_no_call_and_a_budget_stops_and_goes_on(suite):
    folder, rows = suite
    with ScriptedEndpoint(oracle_for(rows)) as server:
        estimate = json.loads(bench(folder, server, "--estimate", "--json").stdout)
        assert (estimate["calls"], estimate["unscored"], server.requests) == (5, 1, [])
        assert estimate["tokens"]["audio_in"] == 5 * 10
        # A call may cost much more than these short replies do: the budget holds one such call, and the change of a few.
        some = ("-s", f"llm.budget_usd={1.03 * estimate['at_most_usd'] / 5}", "-s", "llm.concurrency=1")
        stopped = bench(folder, server, *some, status=2)
        assert "the budget of" in stopped.stderr
        paid = len(server.requests)
        assert 0 < paid < 5
        full = json.loads(bench(folder, server, "--json", status=1).stdout)["judges"]
        assert len(server.requests) == 5
    assert next(iter(full.values()))["n_scored"] == 5


def test_a_limit_keeps_other_verdicts_and_a_retry_judges_the_unscored_alone(suite):
    folder, rows = suite
    readable = oracle_for(rows)
    with ScriptedEndpoint(lambda sent, n: Say("Hm.") if '"words": "3"' in said(sent) else readable(sent, n)) as server:
        bench(folder, server, "--out", "v.jsonl", status=1)
        bench(folder, server, "--out", "v.jsonl", "--limit", "2")
        there = [json.loads(line) for line in (folder / "v.jsonl").read_text().splitlines()]
        assert [(row["index"], row.get("labels") is not None) for row in there] == [
            (index, index not in (3, 4)) for index in range(6)
        ]
        server.answer = readable
        (folder / "runs").rename(folder / "elsewhere")
        before = len(server.requests)
        found = json.loads(bench(folder, server, "--out", "v.jsonl", "--retry-unscored", "--json", status=1).stdout)
        # Without the replies that were kept, every pair would be a call again.
        assert len(server.requests) == before + 1
    assert found["judges"]["v.jsonl"]["n_scored"] == 5


def test_another_judges_verdicts_are_not_overwritten(suite):
    folder, rows = suite
    (folder / "v.jsonl").write_text(
        json.dumps({"index": 0, "judge": "else:1", "labels": {k: "1" for k in ("content", "voice_quality", "paralinguistics")}})
    )
    with ScriptedEndpoint(oracle_for(rows)) as server:
        assert "v.jsonl holds verdicts of else:1//" in bench(folder, server, "--out", "v.jsonl", status=2).stderr


def test_a_label_file_cannot_lead_out_of_the_audio_folder(suite):
    folder, rows = suite
    rows[0]["audio1_path"] = "../labels.json"
    (folder / "labels.json").write_text(json.dumps(rows))
    with ScriptedEndpoint(oracle_for(rows)) as server:
        assert "../labels.json: leaves the audio folder" in bench(folder, server, status=2).stderr


def test_failing_calls_are_unscored_with_their_reason(suite):
    folder, rows = suite
    answer = oracle_for(rows)
    with ScriptedEndpoint(lambda sent, n: Fail(400, "too loud") if '"0"' in said(sent) else answer(sent, n)) as server:
        report = next(iter(json.loads(bench(folder, server, "--json", status=1).stdout)["judges"].values()))
    assert report["n_scored"] == 4
    assert any("too loud" in reason for reason in report["unscored"])


@needs_hcot
def test_the_oracle_prints_counts_majorities_and_each_rule(tmp_path):
    words = ("bench", "speakbench", "--labels", HCOT, "--oracle")
    found = json.loads(paras2s(*words, "--json", cwd=tmp_path).stdout)
    # TRACE, Table 6.
    assert found["label_counts"] == {
        "content": {"both_bad": 86, "winner": 293, "both_good": 118},
        "voice_quality": {"both_bad": 71, "winner": 282, "both_good": 144},
        "paralinguistics": {"both_bad": 383, "winner": 99, "both_good": 15},
        "overall": {"both_bad": 85, "winner": 366, "both_good": 46},
    }
    accuracy = {name: row["accuracy"]["value"] for name, row in found["rules"].items()}
    assert accuracy["speakbench"] == pytest.approx(450 / 497)
    assert accuracy["speakbench_dominant_bad"] == pytest.approx(485 / 497)
    text = paras2s(*words, cwd=tmp_path).stdout
    assert "speakbench_dominant_bad" in text
    assert "both_bad 77.1 %" in text


def test_a_verdict_for_people_and_as_json(tmp_path):
    first, second = sorted(LIBRISPEECH.glob("*.flac"))[:2]
    labels = {"content": "both_good", "voice_quality": "1", "paralinguistics": "both_good"}

    def answer(sent, _):
        return Say(verdict_of(labels) if "compare two" in said(sent) else '{"reasoning": "warm", "score": 4}')

    with ScriptedEndpoint(answer) as server:
        endpoint = ("-s", f"llm.base_url={server.base_url}")
        words = ("judge", "pair", first, second, "--instruction", "Read to me.", *endpoint)
        people = paras2s(*words, cwd=tmp_path).stdout
        machine = json.loads(paras2s(*words, "--json", "--out", "kept", cwd=tmp_path).stdout)
        assert len(server.requests) == 1
        answer_words = ("judge", "answer", first, second, *endpoint, "--out", "kept")
        scored = json.loads(paras2s(*answer_words, "--json", cwd=tmp_path).stdout)
        warm = paras2s("judge", "answer", first, second, *endpoint, cwd=tmp_path).stdout
        spoken = json.loads(re.search(r"<data question>\n(.*)\n</data>", said(server.requests[1])).group(1))
    assert "overall 1\nas told\nblueprint:" in people
    assert "score 4 of 5\nwarm\nblueprint:" in warm
    assert "▁" in people
    assert "nearly as large" in people.lower().replace("\n", " ")
    assert machine["overall"] == "1"
    assert machine["verdict"]["labels"] == labels
    assert machine["blueprints"]["answer 1"]["fields"]["agent_audio_quality.p808_overall"]["unit"] == "MOS 1-5"
    assert scored["verdict"]["score"] == 4.0
    assert "nearly as large" in spoken["words"].lower()
    pair, answer = map(json.loads, (tmp_path / "kept/verdicts.jsonl").read_text().splitlines())
    assert pair["verdict"] == machine["verdict"]
    assert pair["made_from"]["words"] == "Read to me."
    # What was kept is what the endpoint was sent, word for word.
    messages = server.requests[0]["messages"]
    assert pair["made_from"]["prompts"] == ["\n\n".join(f"{one['role']}:\n{said({'messages': [one]})}" for one in messages)]
    (fusion,) = pair["made_from"]["fusion"]
    assert [label for _, label in fusion["steps"]][-1] == "1"
    assert answer["kind"] == "answer"
    for clip in (*pair["made_from"]["clips"].values(), *answer["made_from"]["clips"].values()):
        assert (tmp_path / "kept" / clip).read_bytes() in (first.read_bytes(), second.read_bytes())


def test_blueprints_over_workers_and_over_ray_are_those_of_one_process(tmp_path):
    clips = sorted(LIBRISPEECH.glob("*.flac"))
    broken = tmp_path / "broken.wav"
    broken.write_text("no sound")
    words = ("blueprint", *clips, broken, "--extractors", "pitch,loudness", "--no-cache")
    ways = ((), ("--workers", "2"), ("--ray",))
    alone, workers, spread = (paras2s(*words, *more, cwd=tmp_path, status=2) for more in ways)
    assert json.loads(alone.stdout) == json.loads(spread.stdout)
    assert alone.stdout == workers.stdout
    assert f"1 of 5 clips could not be read: {broken}" in alone.stderr
    assert "cannot be decoded" in json.loads(alone.stdout)[str(broken)]["error"]


PLACES = [(".", "a folder"), ("/dev/zero", "not a regular file"), ("no.wav", "no such file")]


@pytest.mark.parametrize(("clip", "complaint"), PLACES)
def test_what_is_no_clip_is_named_and_costs_nothing(clip, complaint, tmp_path):
    for words in (("blueprint", clip), ("judge", "clip", clip)):
        said_so = paras2s(*words, cwd=tmp_path, status=2)
        assert f"{clip}: {complaint}" in said_so.stderr
        assert "Traceback" not in said_so.stderr
