"""`paras2s data` of a curation, end to end: a scripted LLM over real HTTP, Piper's speech, Whisper's transcripts, tables.

Not covered: what a real LLM writes; speech by engines that need a key (see data_gen/test_tts).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny.endpoint import Fail, Raw, Say, ScriptedEndpoint, said
from tiny.studies import click
from tiny.world import tone, write_run
from typer.testing import CliRunner

from paras2s.audio.clip import Clip, encode_clip
from paras2s.audio.synthesis import speak_plain
from paras2s.cli.app import app
from paras2s.configs.schema.curation import load_curation
from paras2s.data_gen.curation.human_check import items_to_check, open_check
from paras2s.data_gen.curation.synthesis import ClipMeasurer
from paras2s.data_gen.dataset import Manifest, load_dataset, load_manifest, save_tables
from paras2s.data_gen.scripted.build import load_contrasts
from paras2s.errors import BudgetError, JudgeError
from paras2s.utils.io import read_json, read_jsonl

LINES = [one.text for one in load_contrasts() if one.category == "emotion"]
WANTED = {"demonstration": 1, "preference": 1, "rl": 2, "validation": 1, "test": 2}
ANSWERS = {"happy": ("That sounds wonderful!", "cheerful"), "sad": ("I am so sorry to hear that.", "gentle")}


class Writer:
    """An LLM that knows our own scripts: a list of five a topic, with a flaw or two in every list."""

    def __init__(self) -> None:
        self.broken: Any = lambda request: None
        self.topics: list[str] = []

    def __call__(self, request: dict[str, Any], _: int) -> Any:
        text = said(request)
        if (failure := self.broken(request)) is not None:
            return failure
        if "likelier" in text:
            # One in five leans to a style.
            leans = sum(map(ord, text)) % 5 == 0
            return Say(json.dumps({"reasoning": "r", "likelier": "first" if leans else "neutral"}))
        if "plausibly say" in text:
            return Say(json.dumps({"reasoning": "r", "first": True, "second": True}))
        if '"differ"' in text:
            return Say(json.dumps({"reasoning": "r", "differ": True}))
        if text.startswith("You write lines"):
            return Say(self._list(text))
        answer, tone = ANSWERS.get("happy" if '"happy"' in text else "sad")
        return Say(json.dumps({"answer": answer, "tone": tone}))

    def _list(self, text: str) -> str:
        # Which list it is, so that concurrent lists are always the same.
        number = sum(ord(letter) * (place + 1) for place, letter in enumerate(text)) % (len(LINES) - 5)
        items = [*LINES[number : number + 4], "ChatGPT said so again today.", LINES[number]]
        return "Here you are:\n" + "\n".join(f"{place}. {item}" for place, item in enumerate(items, 1))


def write_config(folder: Path, server: ScriptedEndpoint, **changes: Any) -> Path:
    base = yaml.safe_load((Path(__file__).parents[2] / "paras2s/configs/data/local.yaml").read_text())
    llm = {"base_url": server.base_url, "model": "gpt-4o", "backoff_s": 0.001, "max_attempts": 2}
    topics = {"train": ["Travel", "Education", "Work"], "validation": ["News"], "test": ["Food", "Sleep"]}
    category = {
        "prompt": "write_emotion",
        "engine": "piper",
        "styles": [["happy", "sad"]],
        "topics": topics,
        "forbidden": ["chatgpt"],
    }
    (folder / "categories.yaml").write_text(yaml.safe_dump({"moods": category}))
    values = base | {
        "name": "t", "folder": str(folder / "out"), "cache_dir": str(folder / "cache"), "categories": ["moods"],
        "category_file": str(folder / "categories.yaml"), "contrasts": WANTED, "list_size": 5,
        "writer": {**llm, "temperature": 1.0}, "tester": {**llm, "max_output_tokens": 100},
        "answer_takes": 2, "texts_at_once": 20,
        "max_word_error_rate": 0.4, "human_check": {"annotators": 1}, **changes,
    }  # fmt: skip
    path = folder / "curation.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["data", *map(str, arguments), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def ledger(folder: Path) -> dict[str, Any]:
    manifest: Manifest = load_manifest(folder)
    clips = {one.clip: (folder / one.clip).read_bytes() for one in (*manifest.queries, *manifest.demonstrations)}
    texts = list(read_jsonl(folder / "texts.jsonl"))
    return {"tables": (manifest.queries, manifest.demonstrations, manifest.candidates), "clips": clips, "texts": texts}


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("curated")
    writer = Writer()
    with ScriptedEndpoint(writer) as server:
        config = write_config(folder, server)
        yield folder, config, server, writer, run(config)


def test_every_role_has_what_it_wants_and_nothing_held_out_is_trained_on(curated: Any) -> None:
    folder, _, _, _, found = curated
    manifest = load_manifest(folder / "out")
    roles = Counter(query.role for query in manifest.queries)
    assert found["missing"] == {}
    assert (roles["test"], roles["validation"]) == (4, 2)
    assert roles["demonstration"] >= 1
    # Preference queries are prompts for RL too.
    assert roles["rl"] >= roles["preference"] + 2
    topics = {role: {query.topic for query in manifest.queries if query.role == role} for role in roles}
    assert topics["test"] <= {"Food", "Sleep"}
    assert topics["demonstration"] | topics["preference"] <= {"Travel", "Education", "Work"}
    assert topics["rl"] == {None}
    for query in manifest.of_role("rl"):
        assert (query.text, query.style, query.contrast_id, query.speaker, query.category) == (None, None, "", "", None)
    for query in manifest.of_role("test"):
        assert manifest.clip(query.clip).duration_s == pytest.approx(query.duration_s)
        assert query.transcript


def test_demonstrations_have_the_planned_words_and_tone(curated: Any) -> None:
    folder = curated[0]
    manifest = load_manifest(folder / "out")
    shown = {query.id: query for query in manifest.of_role("demonstration")}
    assert manifest.demonstrations
    for one in manifest.demonstrations:
        assert (one.text, one.tone) == ANSWERS[shown[one.query_id].style or ""]
    for row in read_jsonl(folder / "out/answers.jsonl"):
        rates = [take["word_error_rate"] for take in row["takes"]]
        assert len(rates) == 2
        assert row["picked"] is None or rates[row["picked"]] == min(rates)


def test_the_funnel_adds_up_and_every_rejected_sentence_has_its_reason(curated: Any) -> None:
    folder, config, *_ = curated
    found = run(config, "--report")
    for counts in (*found["texts"].values(), *found["clips"].values()):
        assert counts["in"] == sum(count for name, count in counts.items() if name != "in")
    texts = found["texts"]["moods"]
    assert texts["in"] == len(list(read_jsonl(folder / "out/texts.jsonl")))
    assert texts["in"] - texts["list"] == read_json(folder / "out/curated.json")["written"]
    # The fifth item of every list names ChatGPT, the sixth is one too many.
    assert texts["rules"] == texts["list"] == texts["in"] / 6
    assert texts["neutrality"] > 0
    assert all(row["rejected"] for row in read_jsonl(folder / "out/texts.jsonl") if row["rejected_by"])
    assert "6 items, 5 were requested" in (folder / "out/lists.jsonl").read_text()
    plain = CliRunner().invoke(app, ["data", str(config), "--report"])
    assert "neutrality" in plain.stdout


def test_the_same_command_again_pays_for_nothing_and_changes_nothing(curated: Any) -> None:
    folder, config, server, *_ = curated
    before, n_requests = ledger(folder / "out"), len(server.requests)
    found = run(config)
    assert len(server.requests) == n_requests
    assert all(spend["requests"] == spend["cached"] for stage, spend in found["spends"].items() if stage != "speech")
    assert ledger(folder / "out") == before


def test_a_run_that_is_stopped_by_its_budget_ends_as_an_unbroken_one(curated: Any, tmp_path: Path) -> None:
    folder, _, server, _, found = curated
    tester = [spend["usd"] for stage, spend in found["spends"].items() if stage not in ("lists", "speech")]
    config = write_config(tmp_path, server)
    stopped, n_requests = 0, len(server.requests)
    for attempt in range(9):
        try:
            # Another budget each time: it does not make another run.
            run(config, "-s", f"tester.budget_usd={0.4 * sum(tester) + 0.002 + attempt * 1e-6:.6f}")
            break
        except BudgetError:
            stopped += 1
            assert not (tmp_path / "out/queries.parquet").exists()
    assert stopped >= 1
    assert ledger(tmp_path / "out") == ledger(folder / "out")
    # No call was made twice.
    assert len(server.requests) - n_requests == sum(
        spend["requests"] - spend["cached"] for stage, spend in found["spends"].items() if stage != "speech"
    )


def test_a_pilot_measures_what_the_estimate_rests_on(tmp_path: Path) -> None:
    """Within a tenth of the ledger, on 200 sentences after a pilot of 60; `benchmarks/curation.py` does it for 500."""

    def usage(request: dict[str, Any], number: int) -> Any:
        found = writer(request, number)
        if said(request).startswith("You write lines"):
            # No two lines are alike, as our scripts would be after a while.
            rows = (" ".join(rng.choice(words, size=9, replace=False)) for _ in range(5))
            found = Say("\n".join(f"{place}. {row}" for place, row in enumerate(rows, 1)))
        if '"differ"' in said(request):
            # Nothing is spoken.
            found = Say(json.dumps({"reasoning": "r", "differ": False}))
        letters = sum(len(one["content"]) for one in request["messages"])
        return Say(found.text, usage={"prompt_tokens": letters // 4, "completion_tokens": len(found.text) // 4})

    writer, rng = Writer(), np.random.default_rng(0)
    words = sorted({word for line in LINES for word in line.lower().strip(".").split() if word.isalpha()})
    with ScriptedEndpoint(usage) as server:
        config = write_config(tmp_path, server, contrasts={"rl": 300}, max_lists=60)
        pilot = run(config, "--limit", 60)
        expected = run(config, "--dry-run", "--limit", 200)
        full = run(config, "--limit", 200)
    assert (pilot["written"], expected["measured_on"], full["written"]) == (60, 60, 200)
    requests = sum(one["requests"] for one in expected["stages"].values())
    usd = sum(one["usd"] for one in expected["stages"].values())
    paid = sum(row["usd"] for row in read_jsonl(tmp_path / "out/spend.jsonl"))
    assert requests == pytest.approx(sum(spend["requests"] for spend in full["spends"].values()), rel=0.1)
    assert usd == pytest.approx(paid, rel=0.1)


def test_people_have_the_last_word(curated: Any, tmp_path: Path) -> None:
    _, _, server, *_ = curated
    path = write_config(tmp_path, server, human_check={"annotators": 1, "roles": ["test", "demonstration"]})
    run(path)
    config = load_curation(path)
    items = items_to_check(config)
    queries = [one for one in items if one.category == "question" and "-sad" in one.id]
    answers = [one for one in items if one.category == "answer"]
    assert len(queries) >= 2
    assert answers
    assert all(len(one.answers) == 2 for one in answers)
    store, ann = open_check(config, "ann")
    picked = answers[0].picked
    assert picked is not None
    other = str(2 - picked)
    for number, clicks in (
        (items.index(queries[0]), [("comment", "", "sounds bored"), ("choose", "verdict", "reject"), ("submit", "", "")]),
        (items.index(answers[0]), [("play", other, ""), ("choose", "verdict", other), ("submit", "", "")]),
    ):
        for action, name, value in clicks:
            store.add_click(ann.name, click(number, action, name, value))
    run(path)
    manifest = load_manifest(config.folder)
    rejected = [one for one in manifest.candidates if one.rejected_by == "people"]
    assert [one.rejected for one in rejected] == ["by ann: sounds bored"]
    chosen = next(
        one for one in manifest.demonstrations if Path(one.clip).name == Path(answers[0].answers[1 - picked].clip).name
    )
    assert chosen.text == answers[0].question_text
    # The rejected one is still there, so that the decision can be undone.
    assert {one.id for one in items_to_check(config)} >= {one.id for one in queries}


def test_a_fifth_of_the_calls_failing_is_reported_and_the_rest_goes_on(curated: Any, tmp_path: Path) -> None:
    def failing(request: dict[str, Any], number: int) -> Any:
        text = said(request)
        return Fail(500, "down") if sum(map(ord, text)) % 5 == 1 and "likelier" in text else Writer()(request, number)

    with ScriptedEndpoint(failing) as server:
        found = run(write_config(tmp_path, server, contrasts={"test": 1}))
        funnel = run(tmp_path / "curation.yaml", "--report")
    assert found["spends"]["neutrality"]["failed"] > 0
    assert funnel["texts"]["moods"]["neutrality failed"] == found["spends"]["neutrality"]["failed"]
    assert found["missing"] == {}


def test_bad_use_is_named(curated: Any, tmp_path: Path) -> None:
    folder, config, server, *_ = curated
    result = CliRunner().invoke(app, ["data", "demo", "--limit", "3"])
    assert "are for a curation" in str(result.exception)
    result = CliRunner().invoke(app, ["data", str(config), "-s", "seed=7"])
    assert "holds a run with other settings" in str(result.exception)
    result = CliRunner().invoke(app, ["data", str(write_config(tmp_path, server, categories=["moods", "weather"]))])
    assert "'weather' is not known" in str(result.exception)
    result = CliRunner().invoke(app, ["data", str(tmp_path / "curation.yaml"), "--report"])
    assert "queries.parquet: no such table" in str(result.exception)
    result = CliRunner().invoke(app, ["data", str(folder / "categories.yaml"), "--report"])
    assert "moods: unknown key" in str(result.exception)


def test_measuring_over_ray_data_gives_the_same(curated: Any, tmp_path: Path) -> None:
    folder, config, *_ = curated
    manifest = load_manifest(folder / "out")
    clips = [manifest.clip(query.clip) for query in manifest.of_role("test")]
    loaded = load_curation(config, {"style_check": "tone", "tone": str(tmp_path / "tone.json")})
    tone(["happy", "sad"]).save(tmp_path / "tone.json")
    here = ClipMeasurer(loaded.model_copy(update={"cache_dir": tmp_path / "here"})).measure(clips)
    there = ClipMeasurer(loaded.model_copy(update={"cache_dir": tmp_path / "there"}), None).measure(clips)
    # Workers have other numbers of threads, which moves the last digits of confidences.
    words = [one.value("agent_response") for one in here]
    assert [one.value("agent_response") for one in there] == words
    assert all(words)
    assert [one.value("agent_emotion.sad") for one in there] == pytest.approx([one.value("agent_emotion.sad") for one in here])


def test_with_a_required_check_nothing_is_used_before_and_all_clips_are_there(curated: Any, tmp_path: Path) -> None:
    _, _, server, *_ = curated
    path = write_config(
        tmp_path, server, contrasts={"test": 2}, human_check={"annotators": 1, "roles": ["test"], "required": True}
    )
    first = run(path)
    # What waits is as good as there: no more is paid for in its place.
    assert (first["queries"], first["missing"]) == (0, {})
    config = load_curation(path)
    items = items_to_check(config)
    assert len(items) == 4
    store, ann = open_check(config, "ann")
    for number in range(len(items)):
        for one in (click(number, "play", "1"), click(number, "choose", "verdict", "1"), click(number, "submit")):
            store.add_click(ann.name, one)
    assert run(path)["queries"] == 4


def test_a_silent_engine_stops_the_run_before_more_is_paid_for(tmp_path: Path) -> None:
    silence = encode_clip(Clip(np.zeros(8_000, dtype=np.float32), 16_000))
    writer = Writer()

    def answer(request: dict[str, Any], number: int) -> Any:
        return Raw(silence) if request["route"] == "/v1/audio/speech" else writer(request, number)

    with ScriptedEndpoint(answer) as server:
        openai = {"base_url": server.base_url, "model": "gpt-4o-mini-tts", "max_attempts": 1}
        changes = {"speak_with": "openai", "openai": openai, "contrasts": {"test": 8}, "voices": speakers(tmp_path)}
        with pytest.raises(JudgeError, match=r"speech by openai: \d+ of \d+ failed.*silence"):
            run(write_config(tmp_path, server, **changes))
        # Ten clips are enough to see it; there would be 80 lists.
        assert sum(said(one).startswith("You write lines") for one in server.requests if "messages" in one) < 12
    spent = [row["stage"] for row in read_jsonl(tmp_path / "out/spend.jsonl")]
    assert {"lists", "neutrality", "speech"} <= set(spent)
    assert not (tmp_path / "out/queries.parquet").exists()


def speakers(folder: Path) -> list[dict[str, Any]]:
    """Voices of an engine that takes instructions in words."""
    names = (("ash", "male", "train"), ("coral", "female", "validation"), ("echo", "male", "test"))
    return [{"name": n, "engine": "openai", "kind": k, "split": s, "options": {"voice": n}} for n, k, s in names]


def test_an_unusable_reply_is_requested_again_by_the_next_run(tmp_path: Path) -> None:
    writer, broken = Writer(), True

    def answer(request: dict[str, Any], number: int) -> Any:
        cut = broken and "likelier" in said(request) and sum(map(ord, said(request))) % 3 == 0
        return Say("Neutral, I would say.") if cut else writer(request, number)

    with ScriptedEndpoint(answer) as server:
        path = write_config(tmp_path, server, contrasts={"test": 1})
        first = run(path)["spends"]["neutrality"]
        broken = False
        again = run(path)["spends"]["neutrality"]
    assert first["failed"] > 0
    assert (again["failed"], again["requests"] - again["cached"]) == (0, first["failed"])


def test_a_corpus_without_sound_is_spoken_and_its_answers_are_demonstrations(tmp_path: Path) -> None:
    corpus = tmp_path / "styletalk"
    corpus.mkdir()
    head = "diag_id,context,curr_audio_id,res_audio_id,curr_text,res_text,curr_emotion,curr_speed,curr_volume,"
    head += "res_emotion,res_speed,res_volume"
    rows = {
        "train": [f"d1,c,d1/c_0.wav,d1/r_0.wav,B: {TEXTS[0]},That sounds wonderful!,sad,n,n,cheerful,n,n",
                  f"d1,c,d1/c_1.wav,d1/r_1.wav,B: {TEXTS[0]},I see.,neutral,n,n,neutral,n,n"],
        "eval": ["d2,c,d2/c_0.wav,d2/r_0.wav,B: They are painting the house next door.,I am so sorry.,happy,n,n,gentle,n,n"],
    }  # fmt: skip
    for name, lines in rows.items():
        (corpus / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    clips = dict(zip(TEXTS, map(encode_clip, speak_plain(TEXTS)), strict=True))

    def answer(request: dict[str, Any], _: int) -> Any:
        return Raw(clips[request["input"]]) if request["route"] == "/v1/audio/speech" else Say("1. Slowly, low.\n2. Tired.")

    with ScriptedEndpoint(answer) as server:
        openai = {"base_url": server.base_url, "model": "gpt-4o-mini-tts", "concurrency": 4}
        changes = {
            "speak_with": None, "openai": openai, "contrasts": {}, "categories": [], "voices": speakers(tmp_path),
            "agent_tones": [],
            "agent": {"name": "agent", "engine": "openai", "kind": "female"}, "corpora": {"styletalk": str(corpus)},
        }  # fmt: skip
        found = run(write_config(tmp_path, server, **changes))
    manifest = load_manifest(tmp_path / "out")
    assert Counter(query.role for query in manifest.queries) == {"demonstration": 1, "test": 1}
    assert [(one.text, one.tone) for one in manifest.demonstrations] == [("That sounds wonderful!", "cheerful")]
    assert found["spends"]["speech"]["requests"] == 2 + 2
    instructions = {one["input"]: one.get("instructions") for one in server.requests if one["route"] == "/v1/audio/speech"}
    assert instructions["That sounds wonderful!"] == "cheerful"
    assert instructions["The bus leaves at nine in the morning."] in ("Slowly, low.", "Tired.")
    reasons = [row["reason"] for row in read_jsonl(tmp_path / "out/left_out.jsonl")]
    assert "its style is neutral" in reasons


TEXTS = ("The bus leaves at nine in the morning.", "They are painting the house next door.", "That sounds wonderful!")


def test_a_run_learns_from_a_curated_dataset(curated: Any, tmp_path: Path) -> None:
    folder = curated[0]
    path = write_run(tmp_path, data={"curated": str(folder / "out")})
    runner = CliRunner()
    for verb in ("data", "warmup"):
        result = runner.invoke(app, [verb, str(path)])
        assert result.exit_code == 0, result.exception
    dataset = load_dataset(tmp_path / "run/data")
    manifest = load_manifest(folder / "out")
    assert (dataset.queries, dataset.demonstrations) == (manifest.queries, manifest.demonstrations)
    assert dataset.audibility["clips"] == 4
    assert (tmp_path / "run/sft/policy.json").is_file()
    only = tmp_path / "few"
    only.mkdir()
    save_tables(only, [], manifest.demonstrations[:0], manifest.candidates)
    result = runner.invoke(app, ["data", str(write_run(tmp_path, run_dir=str(tmp_path / "r2"), data={"curated": str(only)}))])
    assert "no queries of role demonstration" in str(result.exception)
