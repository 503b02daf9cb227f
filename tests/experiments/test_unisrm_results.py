"""`unisrm run` on a thinker with a few thousand random weights and clips of noise.

Not covered: the speech of the embedded data (tests/data_gen/test_unisrm_data.py), and
what training leads to (docs/experiments/unisrm.md).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tiny.unisrm import short_prompts, tiny_items

pytest.importorskip("trl", reason="training is with trl==1.16.0")

from paras2s.configs.schema.unisrm import UniSRMConfig
from paras2s.errors import ConfigError, DataError
from paras2s.experiments import unisrm_results
from paras2s.experiments.unisrm_results import ACCURACY, CONSISTENT, MODELS, SFT, collect, rendered, run_seeds, write_results
from paras2s.types import Absent
from paras2s.unisrm.bench.data import BenchData
from paras2s.unisrm.reward.grpo_trainer import RewardTerms
from paras2s.unisrm.reward.items import write_items
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.tasks import TASKS, PairRecord
from paras2s.unisrm.reward.train import MetricsWriter
from paras2s.utils.io import read_json, read_jsonl

ROOT = Path(__file__).parents[2]
REWARDS = RewardTerms.functions


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def tiny_data(monkeypatch):
    """Four items of noise in each split in place of the embedded speech, and rewards of random replies."""

    def build(folder, size, on_progress):
        items = tiny_items(folder)
        splits = ("sft", "rl", "bench")
        write_items(folder, [replace(item, split=split, id=item.id + split) for split in splits for item in items])

    def functions(_):
        """Rewards that differ within a group, as those of random replies do not."""

        def format(prompts, completion_ids, **_):
            return [float(ids[0] % 5) for ids in completion_ids]

        def accuracy(prompts, completion_ids, **_):
            return [float(ids[-1] % 3) for ids in completion_ids]

        def consistency(prompts, completion_ids, **_):
            return [float(sum(ids) % 7) for ids in completion_ids]

        return [format, accuracy, consistency]

    monkeypatch.setattr(unisrm_results, "build_embedded", build)
    monkeypatch.setattr(RewardTerms, "functions", functions)


def config(folder):
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    scratch = {"vocabulary": 400, "hidden_size": 32, "layers": 1, "audio_size": 16, "audio_layers": 1}
    stage = {"batch_size": 4, "micro_batch_size": 4, "lr": 1e-3, "checkpoint_every": 2}
    return UniSRMConfig.model_validate({
        "thinker": {"trains": "all", "scratch": scratch, "prompts": short_prompts(folder / "prompts")},
        "sft": {**stage, "epochs": 3},
        "grpo": {**stage, "group_size": 2, "max_steps": 3, "max_completion_tokens": 4},
    })  # fmt: skip


def run(folder, settings):
    run_seeds(settings, [0], folder, Console(), quiet=True)
    return collect(settings, "paras2s unisrm run", [0], folder)


def weights(folder):
    return {name: (folder / "seed0" / name / "model.safetensors").read_bytes() for name in MODELS}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        tiny_data.__wrapped__(patch)
        return folder, config(folder), run(folder, config(folder))


@pytest.mark.parametrize(("stage", "step"), [("sft", 3), ("grpo", 3)])
def test_a_run_that_was_killed_goes_on_to_the_same_weights_and_figures(uninterrupted, monkeypatch, stage, step):
    folder, settings, expected = uninterrupted
    log = MetricsWriter.on_log

    def killed(self, args, state, control, logs=None, **others):
        if self.stage == stage and state.global_step == step:
            raise KeyboardInterrupt
        log(self, args, state, control, logs, **others)

    other = folder.parent / f"{folder.name}-{stage}"
    with monkeypatch.context() as patch:
        patch.setattr(MetricsWriter, "on_log", killed)
        with pytest.raises(KeyboardInterrupt):
            run(other, settings)
    stopped = other / "seed0" / (SFT if stage == "sft" else ACCURACY)
    assert (stopped / "checkpoint-2").is_dir()
    found = run(other, settings)
    assert weights(other) == weights(folder)
    assert not list(other.glob("seed0/*/checkpoint-*"))
    for name in MODELS:
        rows, wanted = (list(read_jsonl(place / "seed0" / name / "metrics.jsonl")) for place in (other, folder))
        assert rows == wanted
    for key in ("right_of_asked", "dimensions_of_asked", "gains", "curves", "majority"):
        assert found["seeds"][0][key] == expected["seeds"][0][key]


def test_both_kinds_of_grpo_differ_from_sft_and_from_each_other_by_the_reward_alone(uninterrupted):
    folder, _, found = uninterrupted
    rows = {name: list(read_jsonl(folder / "seed0" / name / "metrics.jsonl")) for name in MODELS}
    assert len(set(weights(folder).values())) == 3
    assert [row["step"] for row in rows[SFT]] == [1, 2, 3]
    assert rows[ACCURACY][0]["reward_format"] == rows[CONSISTENT][0]["reward_format"]
    (seed,) = found["seeds"]
    assert set(seed["curves"]) == set(MODELS)
    assert len(seed["gains"]) == 12
    assert found["items"]["bench"] == dict.fromkeys(TASKS, 1)
    assert found["missing"] == []


def test_two_processes_train_and_bench_the_same_as_one(uninterrupted, monkeypatch):
    folder, settings, _ = uninterrupted
    # A process of its own has the true rewards, so the first of these has them too. Random replies all get the same of them:
    # that both kinds of GRPO differ is tested above.
    monkeypatch.setattr(RewardTerms, "functions", REWARDS)
    places = [folder.parent / f"{folder.name}-{processes}" for processes in (1, 2)]
    found = []
    for processes, place in enumerate(places, 1):
        run_seeds(settings, [0], place, Console(), quiet=True, processes=processes)
        found.append(collect(settings, "paras2s unisrm run", [0], place)["seeds"][0])
    assert weights(places[0]) == weights(places[1])
    for name in MODELS:
        assert found[1]["minutes"][name] > 0
        rows, wanted = (list(read_jsonl(place / "seed0" / name / "metrics.jsonl")) for place in places)
        assert rows == wanted
    for key in ("right_of_asked", "dimensions_of_asked", "gains", "curves", "majority"):
        assert found[0][key] == found[1][key]


def test_a_finished_run_trains_nothing_again(uninterrupted, monkeypatch):
    folder, settings, _ = uninterrupted

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(unisrm_results, "run_sft", never)
    monkeypatch.setattr(unisrm_results, "run_grpo", never)
    run(folder, settings)
    with pytest.raises(ConfigError, match="a run of another config"):
        run(folder, settings.model_copy(update={"name": "other"}))
    assert settings.grpo is not None
    weights = settings.grpo.weights.model_copy(update={"consistency": 0.0})
    deaf = settings.model_copy(update={"grpo": settings.grpo.model_copy(update={"weights": weights})})
    with pytest.raises(ConfigError, match=r"grpo\.weights\.consistency"):
        run(folder, deaf)


def test_the_page_gets_the_tables_and_a_seed_that_is_missing_is_named(uninterrupted, tmp_path):
    folder, settings, _ = uninterrupted
    found = collect(settings, "paras2s unisrm run", [0, 7], folder)
    assert found["missing"] == [7]
    page = tmp_path / "experiments/unisrm.md"
    page.parent.mkdir()
    page.write_text(f"before\n{unisrm_results.BEGIN}\nold\n{unisrm_results.END}\nafter")
    assert write_results(found, tmp_path) == [tmp_path / "unisrm.json", page]
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after")
    assert "old" not in text
    assert "Not finished: seeds 7" in text
    assert all(title in text for title in MODELS.values())
    assert json.loads((tmp_path / "unisrm.json").read_text()) == found
    page.write_text("nothing to write between")
    with pytest.raises(DataError, match=r"unisrm\.md"):
        write_results(found, tmp_path)


def test_a_model_that_a_later_commit_trained_is_named_with_it(monkeypatch, tmp_path):
    def head():
        seed = {"seed": 0, "minutes": {}, "models": MODELS, "origin": read_json(tmp_path / "origin.json")}
        return unisrm_results._head({"data_minutes": 1, "items": {}}, seed)[0]

    for commit, name in (("a", SFT), ("a", ACCURACY), ("b", SFT)):
        monkeypatch.setattr(unisrm_results, "source_commit", lambda commit=commit: 40 * commit)
        unisrm_results._note_origin(tmp_path, name)
    assert head().startswith("Seed 0, commit aaaaaaa, ")
    unisrm_results._note_origin(tmp_path, CONSISTENT)
    assert head().startswith(f"Seed 0, commits SFT aaaaaaa, {MODELS[ACCURACY]} aaaaaaa, {MODELS[CONSISTENT]} bbbbbbb, ")


def test_what_is_wrong_is_counted_by_itself_and_a_reply_that_cannot_be_parsed_is_not_right(tmp_path):
    first = tiny_items(tmp_path)[0]
    faults = ("voice", "voice", "voice", "words")
    items = [replace(first, id=str(number), factors={"fault": fault}) for number, fault in enumerate(faults)]
    rows = {
        str(number): SimpleNamespace(better=better, unscored=None if better else "no reply")
        for number, better in enumerate(["A", "tie", None, "B"])
    }
    data = BenchData(tmp_path, (*items, replace(first, id="unknown")), "")
    assert first.record.better == "A"
    assert unisrm_results._by_fault(data, rows) == {
        "T1": {"voice": {"value": 0.5, "decided": 2 / 3, "n": 3}, "words": {"value": 0.0, "decided": 1.0, "n": 1}}
    }


def test_whoever_merely_decides_gains_over_a_tie_but_not_over_a_coin(tmp_path):
    first = tiny_items(tmp_path)[0]
    data = BenchData(tmp_path, tuple(replace(first, id=str(number), text_id=str(number)) for number in range(4)), "")
    keys = TASKS["T1"].keys
    scored = dict.fromkeys(keys, 1)

    def rows(*better):
        made = [
            SimpleNamespace(better=one, unscored=None if one else "ties", dimensions=scored if one else {}) for one in better
        ]
        return dict(zip("0123", made, strict=True))

    silent, guessing = rows("A", "A", None, None), rows("A", "A", "A", "B")
    gain = {name: unisrm_results._gain(data, [(silent, guessing)], value) for name, value in unisrm_results.MEASURES.items()}
    assert (gain["decision"].value, gain["decision_or_coin"].value) == (0.25, 0.0)
    assert gain["dimensions"].value > 0
    both = gain["dimensions_if_parsed"]
    assert (both.value, both.n, both.n_asked) == (0.0, 2, 4)
    assert unisrm_results._gain(data, [(rows(*4 * [None]), guessing)], unisrm_results._dimensions_if_parsed) == Absent(
        "no verdicts of both"
    )


def test_replies_without_a_verdict_are_counted_by_task_and_reason():
    rows = {
        str(number): SimpleNamespace(task=task, unscored=unscored, malformed=malformed)
        for number, (task, unscored, malformed) in enumerate(
            [("T1", None, ""), ("T1", "breaks a rule", "equal_totals"), ("T1", "breaks a rule", "equal_totals"),
             ("T4", "no clip", ""), ("T4", "breaks a rule", "wrong_total")]
        )
    }  # fmt: skip
    assert unisrm_results._undecided(rows) == {"T1": {"equal_totals": 2}, "T4": {"no clip": 1, "wrong_total": 1}}


def test_a_score_and_its_reason_are_right_each_by_itself(tmp_path):
    first = tiny_items(tmp_path)[2]
    sides = first.record.sides
    wrong_score = replace(sides[0], scores=(4, 2, 9))
    wrong_reason = replace(sides[1], explanations=("x", "x", "noisy"))
    replies = [PairRecord("B", (wrong_score, wrong_reason), "z"), first.record]
    rows = {
        str(number): SimpleNamespace(unscored=None, reply=write_reply("T3", record)) for number, record in enumerate(replies)
    } | {"2": SimpleNamespace(unscored="no reply", reply="")}
    data = BenchData(tmp_path, tuple(replace(first, id=str(number)) for number in range(3)), "")
    assert unisrm_results._scores_and_reasons(data, rows) == {
        "T3": {
            "text_fidelity": {"score": 0.75, "reason": 1.0, "n": 4},
            "scenario_match": {"score": 1.0, "reason": 1.0, "n": 4},
            "naturalness": {"score": 1.0, "reason": 0.75, "n": 4},
        }
    }


def test_the_shipped_tables_are_those_of_the_file_beside_them():
    docs = ROOT / "docs"
    page = docs / "experiments/unisrm.md"
    assert rendered(read_json(docs / "unisrm.json"), page) == page.read_text(), (
        "renew it: paras2s unisrm run --no-run --docs docs"
    )
