"""UniSRM-Bench: its figures by hand, its controls, judges that cannot do a task, and the verb on a scripted model.

Not covered: what a trained model would score, Chinese items, and the speaker model of SIM, whose weights come from a hub.
"""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from tiny.endpoint import Say, ScriptedEndpoint, said
from tiny.unisrm import pair_record, tone_clip
from typer.testing import CliRunner

from paras2s.audio.clip import Clip, write_clip
from paras2s.cli.app import app
from paras2s.clients.chat import LLMClient
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import BudgetError, ConfigError, DataError, StorageError
from paras2s.reward.judges.registry import open_judge
from paras2s.statistics.intervals import Share
from paras2s.types import Absent
from paras2s.unisrm.bench import judges as bench_judges
from paras2s.unisrm.bench import run as bench_run
from paras2s.unisrm.bench.data import CONDITIONS, column_of, load_bench
from paras2s.unisrm.bench.judges import NEEDS_STYLE, measure, open_bench_judge, utmos, word_errors
from paras2s.unisrm.bench.metrics import (
    accuracy,
    by_dimension,
    correlation,
    majority,
    mean_share,
    order_consistency,
    overall_correlation,
    parsed_share,
    rounded,
    sound_test,
)
from paras2s.unisrm.bench.report import control, load_published
from paras2s.unisrm.bench.results import BenchRow, Judgement, NoJudgement, load_rows, row_of
from paras2s.unisrm.bench.run import UniSRMBenchOptions, estimate_bench, groundedness, run_bench
from paras2s.unisrm.reward.items import read_items, write_items
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.tasks import TASKS, Item, QualityRecord
from paras2s.utils.io import write_jsonl
from paras2s.utils.progress import open_console

LOW_HZ, HIGH_HZ = 200.0, 800.0
SCENE = dict.fromkeys(TASKS["T3"].texts, "s")


def t3(number, better, folder=None):
    """A pair of which the better candidate is the higher tone."""
    clips = {}
    for side in "AB":
        path = f"{number}{side}.wav"
        clips[f"speech_{side.lower()}"] = path
        if folder:
            write_clip(folder / path, tone_clip(HIGH_HZ if side == better else LOW_HZ, 0.3))
    record = pair_record(better, (9, 9, 8), (9, 2, 8)) if better == "A" else pair_record("B", (9, 2, 8), (9, 9, 8))
    return Item(f"t3-{number}", "T3", "bench", f"text{number}", ("x",), SCENE, clips, record)


def t2(number, overall, folder=None):
    """A clip whose overall quality is its tone."""
    path = f"q{number}.wav"
    if folder:
        write_clip(folder / path, tone_clip(100 * overall, 0.3))
    record = QualityRecord((3, 3, 3, 3, 3, 3, overall), ("a", "b", "c", "d"), "e")
    return Item(f"t2-{number}", "T2", "bench", f"text{number}", ("x",), {}, {"speech": path}, record)


def row(item, condition="own", better=None, overall=None, dimensions=None, unscored=None, malformed=""):
    return BenchRow(
        item.id, item.task, condition, "j", "1", better, overall, dimensions or {}, unscored, malformed, ""
    )  # fmt: skip


def by_item(*rows):
    return {one.item: one for one in rows}


# Figures.


def test_accuracy_counts_a_tie_as_half_and_leaves_out_what_is_unscored():
    items = [t3(n, better) for n, better in enumerate("ABABA")]
    rows = by_item(
        row(items[0], better="A"), row(items[1], better="A"), row(items[2], better="tie"), row(items[3], unscored="why")
    )
    found = accuracy(items, rows)
    assert (found.value, found.n, found.n_asked) == (0.5, 3, 5)
    assert accuracy(items, {}) == Absent("nothing has a judgement")
    right = accuracy(items, by_item(*(row(item, better=item.record.better) for item in items)))
    # Wilson's interval of 5 in 5.
    assert (right.value, right.high) == (1.0, 1.0)
    assert right.low == pytest.approx(0.5655, abs=1e-3)


def test_quality_is_rounded_for_accuracy_and_kept_for_the_correlation():
    items = [t2(n, overall) for n, overall in enumerate((1.5, 2.4, 3.5, 4.6))]
    assert [rounded(one) for one in (1.5, 2.4, 2.5, 4.6)] == [2, 2, 3, 5]
    rows = by_item(*(row(item, overall=score) for item, score in zip(items, (2.0, 2.0, 3.0, 5.0), strict=True)))
    assert accuracy(items, rows).value == 0.75
    expected = np.corrcoef([1.5, 2.4, 3.5, 4.6], [2, 2, 3, 5])[0, 1]
    assert overall_correlation(items, rows).value == pytest.approx(expected)


def test_a_correlation_that_there_is_not_says_why():
    names = list("abcd")
    assert correlation([1.0, 2.0, None, None], [1, 2, 3, 4], names) == Absent("2 scores are too few to correlate")
    assert correlation([3.0] * 4, [1, 2, 3, 4], names) == Absent("all scores are alike")
    assert correlation([1.0, 2.0, 3.0, 4.0], [3] * 4, names) == Absent("all labels are alike")


def test_items_of_one_text_are_drawn_together():
    alone = mean_share([0.0, 1.0] * 20, [str(n) for n in range(40)])
    together = mean_share([0.0] * 20 + [1.0] * 20, ["a"] * 20 + ["b"] * 20)
    assert alone.value == together.value == 0.5
    assert alone.high - alone.low < 0.4
    assert (together.low, together.high) == (0.0, 1.0)
    assert mean_share([1.0, 0.0], ["a", "a"]) == Share(0.5, None, None, 2, 2)


def test_dimensions_have_the_sign_of_equation_10():
    items = [t3(0, "A"), t3(1, "B"), replace(t3(2, "A"), record=replace(t3(2, "A").record, sides=None))]
    rows = by_item(
        row(items[0], better="A", dimensions={"text_fidelity": 0.0, "scenario_match": 1.0, "naturalness": 1.0}),
        row(items[1], better="A", dimensions={"text_fidelity": 1.0, "scenario_match": -1.0, "naturalness": 0.0}),
        row(items[2], better="A"),
    )
    found = by_dimension(items, rows)
    assert {key: one.value for key, one in found.items()} == {
        "text_fidelity": 0.5, "scenario_match": 1.0, "naturalness": 0.5,
    }  # fmt: skip
    assert found["naturalness"].n_asked == 2
    bare = by_dimension(items, by_item(*(row(item, better="A") for item in items)))
    assert set(bare.values()) == {Absent("the judge gives no dimensions")}


def test_controls_by_hand():
    items = [t3(n, better) for n, better in enumerate("AAAB")]
    assert majority(items).value == 0.75
    assert majority([]) == Absent("there is no item")
    own = by_item(*(row(item, better="A") for item in items))
    swapped = by_item(*(row(item, "swapped", better=side) for item, side in zip(items, "AABB", strict=True)))
    assert order_consistency(items, own, swapped).value == 0.5
    broken = own | by_item(row(items[0], unscored="x", malformed="wrong_total"), row(items[1], unscored="unreadable"))
    assert (parsed_share(items, broken).value, parsed_share(items, broken).n) == (pytest.approx(2 / 3), 3)
    # A reply that no judge could read counts, whoever gave it; no reply does not.
    unread = broken | by_item(replace(row(items[1], unscored="unreadable"), reply="I cannot say"))
    assert (parsed_share(items, unread).value, parsed_share(items, unread).n) == (0.5, 4)


@pytest.mark.parametrize(("shuffled", "verdict"), [("opposite", "uses the sound"), ("same", "deaf"), ("missing", "not tested")])
def test_a_judge_that_does_not_beat_other_clips_is_deaf(shuffled, verdict):
    items = [t3(n, better) for n, better in enumerate("ABABABAB")]
    own = by_item(*(row(item, better=item.record.better) for item in items))
    others = {"opposite": {"A": "B", "B": "A"}, "same": {"A": "A", "B": "B"}}.get(shuffled)
    rows = {} if others is None else by_item(*(row(item, "shuffled", better=others[item.record.better]) for item in items))
    assert sound_test(items, own, rows).verdict == verdict
    one_text = [replace(item, text_id="one") for item in items]
    assert sound_test(one_text, own, rows).verdict == "not tested"


def test_a_constant_score_of_quality_is_deaf():
    items = [t2(n, 1 + n % 5) for n in range(20)]
    right = by_item(*(row(item, overall=item.record.scores[-1]) for item in items))
    constant = by_item(*(row(item, overall=3.0) for item in items))
    assert sound_test(items, right, constant).verdict == "uses the sound"
    assert sound_test(items, constant, constant).verdict == "deaf"


# Items and rows.


def test_no_item_gets_a_clip_of_its_own(tmp_path):
    # Four texts, of each the real recording against four others: a plain shift may give an item its own recording.
    items = []
    for n in range(16):
        one = t3(n, "AB"[n % 2], tmp_path)
        items.append(replace(one, text_id=f"text{n // 4}", clips={**one.clips, "speech_a": f"{n // 4 * 4}A.wav"}))
    write_items(tmp_path, items)
    bench = load_bench(tmp_path)
    own = {one.item.id: one for one in bench.samples("own")}
    shuffled = bench.samples("shuffled")
    assert len(shuffled) >= 12
    for one in shuffled:
        assert set(one.clips.values()).isdisjoint(own[one.item.id].clips.values())


def test_other_sound_under_the_same_name_is_other_data(data):
    before = load_bench(data).digest
    write_clip(data / "0A.wav", tone_clip(500.0, 0.3))
    assert load_bench(data).digest != before


def test_verdicts_hold_for_the_bench_whatever_is_trained_on_but_not_for_other_labels(data):
    items, before = read_items(data), load_bench(data).digest
    write_items(data, [*items, replace(items[0], id="one more", split="rl")])
    assert load_bench(data).digest == before
    write_items(data, [replace(items[0], factors={"fault": "another"}), *items[1:]])
    assert load_bench(data).digest != before


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    items = [t3(n, "AB"[n % 2], folder) for n in range(8)] + [t2(n, 1 + n % 5, folder) for n in range(10)]
    write_items(folder, items)
    return folder


def test_conditions_change_what_they_say(data):
    bench = load_bench(data)
    samples = {condition: {one.item.id: one for one in bench.samples(condition)} for condition in CONDITIONS}
    own, shuffled = samples["own"], samples["shuffled"]
    assert set(samples["swapped"]) == {item.id for item in bench.of_task("T3")}
    assert len(own) == len(shuffled) == len(samples["text_only"]) == 18
    for name, one in own.items():
        assert set(one.clips.values()).isdisjoint(shuffled[name].clips.values())
    assert samples["swapped"]["t3-0"].clips["speech_a"] == own["t3-0"].clips["speech_b"]
    silence = samples["text_only"]["t3-0"].read()["speech_a"]
    assert not silence.samples.any()
    assert [len(bench.samples("own", 3)), len(bench.samples("swapped", 3))] == [6, 3]
    # A limit changes no item's control.
    assert bench.samples("shuffled", 3)[0] == bench.samples("shuffled")[0]
    chinese = replace(t3(0, "A"), factors={"language": "zh"})
    assert [column_of(one) for one in (chinese, t3(0, "A"), t2(0, 3))] == ["T3-zh", "T3-en", "T2"]


def test_data_without_a_bench_or_with_an_id_twice_is_refused(data):
    write_items(data, [t3(0, "A"), t3(0, "B")])
    with pytest.raises(DataError, match="an id occurs twice"):
        load_bench(data)
    write_items(data, [replace(t3(0, "A"), split="rl")])
    with pytest.raises(DataError, match="no item is of the split 'bench'"):
        load_bench(data)
    assert [(one.id, one.split) for one in load_bench(data, "rl").items] == [("t3-0", "rl")]


def test_a_swapped_judgement_is_turned_back_and_rows_are_read_as_written(data, tmp_path):
    sample = load_bench(data).samples("swapped")[0]
    found = row_of(sample, "j", "1", Judgement("A", dimensions={"naturalness": 1.0}))
    assert (found.better, found.dimensions) == ("B", {"naturalness": -1.0})
    path = tmp_path / "rows.jsonl"
    rows = [found, row_of(sample, "j", "1", NoJudgement("why", "wrong_total", "text"))]
    write_jsonl(path, map(asdict, rows))
    assert load_rows(path) == rows
    path.write_text(path.read_text().replace('"B"', '"C"'))
    with pytest.raises(DataError, match=r"rows.jsonl:1:"):
        load_rows(path)


# Judges.


class ToneModel:
    """A scripted UniSRM, at the one seam where the model replies: it hears tones, or it replies from a list."""

    def __init__(self, deaf=False, broken=()):
        self.deaf, self.broken, self.calls = deaf, broken, 0

    def judge(self, task_id, samples, clips):
        replies = []
        for sample, sounds in zip(samples, clips, strict=True):
            self.calls += 1
            replies.append(self._reply(task_id, sample, sounds))
        return replies

    def _reply(self, task_id, sample, sounds):
        if sample.item.id in self.broken:
            return NoJudgement("both totals are 3", "equal_totals", "text")
        if task_id == "T2":
            return Judgement(None, 3.0 if self.deaf else round(hz(sounds["speech"]) / 100))
        a_wins = self.deaf or hz(sounds["speech_a"]) > hz(sounds["speech_b"])
        record = pair_record("A", (9, 9, 8), (9, 2, 8)) if a_wins else pair_record("B", (9, 2, 8), (9, 9, 8))
        return bench_judges.judgement_of(record, task_id, write_reply(task_id, record))


def hz(clip: Clip) -> float:
    """The loudest frequency."""
    return float(np.argmax(np.abs(np.fft.rfft(clip.samples))) * clip.sample_rate_hz / len(clip.samples))


def scripted(name, model, unfit=()):
    class Scripted:
        version = "1"
        inputs = dict.fromkeys(TASKS, "tones")
        judge = staticmethod(model.judge)

    Scripted.name, Scripted.unfit = name, dict(unfit)
    return Scripted()


def bench(data, tmp_path, judges, monkeypatch, **options):
    monkeypatch.setattr(bench_run, "find_judge", lambda name: judges[name])
    monkeypatch.setattr(bench_run, "open_bench_judge", lambda name, *_, **__: judges[name])
    chosen = {"objective": False} | options
    made = UniSRMBenchOptions(data, list(judges), tmp_path / "out", tmp_path / "cache", **chosen)
    return run_bench(made, open_console(to_stderr=True), True)


def test_a_control_of_few_replies_says_of_how_many():
    share = {"value": 1.0, "low": None, "high": None, "n": 3, "n_asked": 240}
    assert control(share) == "100.0, 3 of 240"
    assert control({**share, "n": 240, "low": 0.9, "high": 1.0}) == "100.0 [90.0, 100.0]"
    assert control({"absent": "no silence"}) == "none: no silence"


def test_a_judge_that_uses_the_sound_and_a_deaf_one(data, tmp_path, monkeypatch):
    judges = {"good": scripted("good", ToneModel()), "deaf": scripted("deaf", ToneModel(deaf=True))}
    judges["pairs"] = scripted("pairs", ToneModel(), {"T2": "scores no clip"})
    report = bench(data, tmp_path, judges, monkeypatch).report
    good, deaf, pairs = (report["judges"][name]["columns"] for name in judges)
    assert (good["T3-en"]["acc"]["value"], good["T3-en"]["controls"]["swapped"]["value"]) == (1.0, 1.0)
    assert good["T3-en"]["controls"]["shuffled"]["value"] == 0.5
    # Silence has no tone: B, in every pair.
    assert good["T3-en"]["controls"]["text_only"]["value"] == 0.5
    assert good["T3-en"]["sound"]["verdict"] == good["T2"]["sound"]["verdict"] == "uses the sound"
    assert good["T3-en"]["dimensions"]["scenario_match"]["value"] == 1.0
    assert (good["T2"]["acc"]["value"], good["T2"]["pcc"]["value"]) == (1.0, pytest.approx(1.0))
    assert deaf["T3-en"]["sound"]["verdict"] == deaf["T2"]["sound"]["verdict"] == "deaf"
    assert deaf["T3-en"]["order_consistency"]["value"] == 0.0
    assert deaf["T2"]["pcc"] == {"absent": "all scores are alike"}
    assert pairs["T2"] == {"absent": "scores no clip"}
    assert good["T1"] == {"absent": "the data has no item of it"}
    text = (tmp_path / "out" / "unisrm.md").read_text()
    assert "| UniSRM (paper) | 85.61 |" in text
    assert "absent: scores no clip" in text
    assert "The data has no item of it." in text


def test_a_second_run_judges_what_is_missing(data, tmp_path, monkeypatch):
    model = ToneModel(broken=("t3-0",))
    judges = {"one": scripted("one", model)}
    result = bench(data, tmp_path, judges, monkeypatch, limit=4)
    assert (model.calls, result.unscored) == (4 * 3 + 4 * 4, 1)
    assert result.report["judges"]["one"]["columns"]["T3-en"]["malformed"] == {"equal_totals": 1}
    bench(data, tmp_path, judges, monkeypatch)
    assert model.calls == 8 * 4 + 10 * 3
    model.broken = ()
    assert bench(data, tmp_path, judges, monkeypatch, retry_unscored=True).unscored == 0
    assert model.calls == 8 * 4 + 10 * 3 + 4
    judges["one"].version = "2"
    with pytest.raises(StorageError, match="holds verdicts of one/1"):
        bench(data, tmp_path, judges, monkeypatch)


def test_a_budget_that_ends_keeps_what_was_judged(data, tmp_path, monkeypatch):
    class Poor(ToneModel):
        def _reply(self, task_id, sample, sounds):
            return BudgetError("spent") if self.calls > 5 else super()._reply(task_id, sample, sounds)

    result = bench(data, tmp_path, {"one": scripted("one", Poor())}, monkeypatch)
    assert str(result.stopped) == "spent"
    assert len(load_rows(tmp_path / "out" / "verdicts-one.jsonl")) == 5


def test_judges_that_cannot_do_a_task_say_why(tmp_path):
    assert set(open_bench_judge("rubric").unfit.values()) == {NEEDS_STYLE}
    cache = {"llm.base_url": "http://127.0.0.1:1/v1", "cache_dir": str(tmp_path)}
    assert set(open_bench_judge("audio", cache).unfit) == {"T2"}
    assert set(open_bench_judge("audiojudge", cache).unfit) == set()
    styles = open_bench_judge("styleset", cache)
    assert set(styles.unfit) == {"T1", "T3", "T4"}
    assert set(utmos().unfit) == set(TASKS)
    assert set(word_errors().unfit) == {"T2", "T4"}


def test_judges_of_the_registry_get_pairs_and_clips(data, tmp_path):
    def reply(sent, number):
        return Say(json.dumps({"reasoning": "clear", "content": "2", "voice_quality": "2", "paralinguistics": "2"}))

    sample = load_bench(data).samples("own")[10]
    with ScriptedEndpoint(reply) as server:
        judge = open_bench_judge("audio", {"cache_dir": str(tmp_path), "llm.base_url": server.base_url})
        found = judge.judge("T3", [sample], [sample.read()])
    assert found[0].better == "B"


@pytest.mark.parametrize("name", ["audio", "audiojudge", "dimensions"])
def test_an_estimate_counts_the_calls_that_are_made_and_makes_none(data, tmp_path, name):
    def reply(sent, number):
        votes = dict.fromkeys(("content", "voice_quality", "paralinguistics", "label"), "2")
        return Say(json.dumps({"reasoning": "clear", **votes}))

    with ScriptedEndpoint(reply) as server:
        settings = {"cache_dir": str(tmp_path / "cache"), "llm.base_url": server.base_url, "llm.max_attempts": 1}
        options = UniSRMBenchOptions(data, [name], tmp_path / "out", tmp_path, objective=False, limit=3, overrides=settings)
        (bill,) = estimate_bench(options).values()
        assert server.requests == []
        run_bench(options, open_console(), True)
        # A call that stands in the cache is in the bill, and is not made.
        assert 0 < len(server.requests) <= bill.calls
        assert [left.calls for left in estimate_bench(options).values()] == [0]
        again = [left.calls for left in estimate_bench(replace(options, retry_unscored=True)).values()]
        assert 0 <= again[0] <= bill.calls
    with pytest.raises(ConfigError, match="--groundedness: its LLM rates replies"):
        estimate_bench(replace(options, llm=tmp_path / "llm.yaml"))


def test_the_verb_prints_an_estimate_without_a_key(data, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    call = ["bench", "unisrm", data, "--judge", "audiojudge", "--limit", "2", "--estimate", "--out", tmp_path / "out"]
    done = CliRunner().invoke(app, [*map(str, call), "--json"])
    bill = json.loads(done.stdout)["audiojudge"]
    assert (done.exit_code, bill["calls"] > 0, bill["at_most_usd"] > 0) == (0, True, True)
    assert f"{bill['calls']} calls of audiojudge" in CliRunner().invoke(app, [*map(str, call)]).output
    assert not (tmp_path / "out").exists()


def test_a_judge_of_dimensions_gets_all_inputs_and_gives_dimensions(data, tmp_path):
    def reply(sent, number):
        text = said(sent)
        side = {key: {"explanation": "x", "score": 5} for key in TASKS["T3"].keys}
        better = {**side, "scenario_match": {"explanation": "y", "score": 9}} if "calm" not in text else side
        return Say(json.dumps({"speech_a": side, "speech_b": better, "summary": "z", "better": "B"}))

    samples = load_bench(data).samples("own")[10:12]
    with ScriptedEndpoint(reply) as server:
        judge = open_bench_judge("dimensions", {"cache_dir": str(tmp_path), "llm.base_url": server.base_url})
        clear, tied = (
            judge.judge("T3", [replace(one, item=replace(one.item, texts={**one.item.texts, "target_emotion": emotion}))],
                        [one.read()])[0]
            for one, emotion in zip(samples, ("sad", "calm"), strict=True)
        )  # fmt: skip
    assert set(judge.unfit) == {"T2"}
    assert (clear.better, clear.dimensions) == ("B", {"text_fidelity": 0, "scenario_match": -1, "naturalness": 0})
    assert (tied.better, set(tied.dimensions.values())) == ("tie", {0})
    assert "target_text" in said(server.requests[0])
    changed = {"cache_dir": str(tmp_path), "llm.base_url": server.base_url, "llm.seed": 1}
    assert open_bench_judge("dimensions", changed).version != judge.version
    with pytest.raises(ConfigError, match="needs the texts and clips of a UniSRM item"):
        open_judge("dimensions")


def test_the_higher_measure_wins(data):
    samples = load_bench(data).samples("own")[10:12]
    clips = [one.read() for one in samples]
    pitch = measure("hz", "1", lambda sample, sounds, name: hz(sounds[name]), {}, {})
    assert [one.better for one in pitch.judge("T3", samples, clips)] == ["A", "B"]
    refusing = measure("no", "1", lambda *_: NoJudgement("too short"), {}, {})
    assert refusing.judge("T3", samples[:1], clips[:1]) == [NoJudgement("too short")]


# Groundedness, the paper's figures, the verb.


def test_groundedness_is_the_mean_of_readable_scores():
    scores = ['{"reasoning": "r", "score": 2}', '{"reasoning": "r", "score": 1}', '{"reasoning": "r", "score": 3}']
    rows = [replace(row(t3(n, "A"), better="A"), reply=f"<think>{n}</think>") for n in range(3)]

    def reply(sent, number):
        return Say(next(one for n, one in enumerate(scores) if f"{n}\\u003c/think" in json.dumps(sent).replace("\\\\", "\\")))

    with ScriptedEndpoint(reply) as server:
        client = LLMClient(LLMConfig(base_url=server.base_url, model="m"))
        found = groundedness(rows, {row.item: row.item for row in rows}, client)
    assert (found.value, found.n, found.n_asked) == (1.5, 2, 3)


def test_the_papers_figures_are_those_of_its_tables():
    published = load_published()
    assert published["table_1"]["UniSRM"] == {
        "T1": 65.06,
        "T2": 39.74,
        "T2_pcc": 0.551,
        "T3-en": 85.61,
        "T3-zh": 91.30,
        "T4": 88.89,
    }
    for column, figures in published["dimensions"].items():
        assert set(figures) == set(TASKS[column[:2]].keys)
    # Its averages (Tables 3, 5 and 6).
    averages = {"T1": 62.70, "T3-en": 84.69, "T3-zh": 88.67, "T4": 83.97}
    for column, average in averages.items():
        assert np.mean(list(published["dimensions"][column].values())) == pytest.approx(average, abs=0.006)
    # Table 4 rounds 0.5054 to 0.505.
    assert np.mean(list(published["dimensions"]["T2"].values())) == pytest.approx(0.505, abs=0.001)


def test_quality_of_other_data_sets_stands_in_columns_of_its_own(tmp_path, monkeypatch):
    items = [
        replace(t2(n, 1 + n % 5, tmp_path), record=QualityRecord((1 + n % 5,)), factors={"corpus": "somos-clean"})
        for n in range(10)
    ]
    write_items(tmp_path, items)
    report = bench(tmp_path, tmp_path, {"one": scripted("one", ToneModel())}, monkeypatch).report
    found = report["judges"]["one"]["columns"]
    assert found["T2"] == found["bvcc"] == {"absent": "the data has no item of it"}
    assert (found["somos-clean"]["pcc"]["value"], found["somos-clean"]["acc"]["value"]) == (pytest.approx(1.0), 1.0)
    assert all("value" not in figure for figure in found["somos-clean"]["dimensions"].values())
    text = (tmp_path / "out" / "unisrm.md").read_text()
    # Table 7 beside it, and nothing of the data sets that are not there.
    assert "## somos-clean" in text
    assert "| UniSRM (paper) | 41.70 | 0.261 |" in text
    assert "## bvcc" not in text


def test_the_verb_ends_with_1_where_something_is_unscored(data, tmp_path, monkeypatch):
    judges = {"one": scripted("one", ToneModel(broken=("t2-0",)))}
    monkeypatch.setattr(bench_run, "find_judge", lambda name: judges[name])
    monkeypatch.setattr(bench_run, "open_bench_judge", lambda name, *_, **__: judges[name])
    call = ["bench", "unisrm", str(data), "--judge", "one", "--no-objective", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["judges"]["one"]["columns"]["T2"]["acc"]["n"] == 9
    judges["one"] = scripted("one", ToneModel())
    assert CliRunner().invoke(app, [*call, "--retry-unscored"]).exit_code == 0


def test_the_verb_judges_the_split_that_is_asked_for(data, tmp_path, monkeypatch):
    items = read_items(data)
    write_items(data, [*items[:6], *[replace(item, split="rl") for item in items[6:8]], *items[8:]])
    judges = {"one": scripted("one", ToneModel())}
    monkeypatch.setattr(bench_run, "find_judge", lambda name: judges[name])
    monkeypatch.setattr(bench_run, "open_bench_judge", lambda name, *_, **__: judges[name])
    call = ["bench", "unisrm", str(data), "--judge", "one", "--no-objective", "--json"]
    for split, count in (("rl", 2), ("bench", 16)):
        out = tmp_path / split
        done = CliRunner().invoke(app, [*call, "--split", split, "--out", str(out)])
        assert sum(json.loads(done.stdout)["items"].values()) == count
        assert f"split {split}." in (out / "unisrm.md").read_text()


def test_options_that_contradict_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="name at least one"):
        UniSRMBenchOptions(tmp_path, [], tmp_path, tmp_path, objective=False)
    with pytest.raises(ConfigError, match="occurs twice"):
        UniSRMBenchOptions(tmp_path, ["a", "a"], tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="give one --judge"):
        UniSRMBenchOptions(tmp_path, ["a", "b"], tmp_path, tmp_path, overrides={"x": 1})
