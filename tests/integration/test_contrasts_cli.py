"""`paras2s bench contrasts` on a run in miniature: every baseline that its data allows, two judges, and a second call.

Not covered: that the scores mean anything; the policy and the reward model here have learned nothing.
"""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from tiny.reward_model import random_reward_model
from tiny.world import invoke, write_run

from paras2s.bench.results import load_rows
from paras2s.configs.schema.ablation import AblationRow
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.policy_inputs import CODEC
from paras2s.data_gen.tts.piper_world import USER_STYLES
from paras2s.errors import ConfigError, DataError
from paras2s.pipeline.ablate import run_row
from paras2s.policy.embedded.features import FEATURE_DIM
from paras2s.reward.judges.base import Judge
from paras2s.reward.judges.independent.judge import IndependentJudge
from paras2s.reward.reward_model.model import RewardModelConfig
from paras2s.run import Run
from paras2s.types import Unscored, Verdict
from paras2s.utils.io import read_json, write_jsonl

SYSTEMS = ["bad", "constant", "cascade", "style_deaf", "linear", "prosody", "sft", "flat", "topline"]


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """The config of a run of its own on the tiny run's data and warm-up, with a reward model of random weights."""
    path = write_run(tmp_path, bench={"answers_per_query": 1})
    (tmp_path / "run").mkdir()
    for part in ("data", "sft"):
        (tmp_path / "run" / part).symlink_to(tiny_run / "run" / part)
    sizes = RewardModelConfig(
        codebook_sizes=CODEC.cardinality,
        code_dim=46,
        feature_dim=FEATURE_DIM,
        styles=tuple(USER_STYLES),
        hidden_size=16,
        layers=1,
    )
    random_reward_model(sizes, CODEC.code_vectors).save(tmp_path / "run" / "reward")
    return path


class ByLength(Judge):
    """Scores the longer half of all answers; it has no words of the others."""

    name, version = "by_length", "1"

    def score_batch(self, exchanges, on_progress=None):
        def score(exchange):
            long = exchange.answer.duration_s > 1.5
            return Verdict("by_length", "1", "", 4.0, "long", "", 0.0, 0.0) if long else Unscored("by_length", "too short")

        return [score(exchange) for exchange in exchanges]


def check_by_another_judge(run: Path, found: dict) -> None:
    """The same answers, as few as requested, by a judge of one's own; what it does not score is counted by its reason."""
    called = invoke("bench", "contrasts", run, "--judge", "test_contrasts_cli:ByLength", "--limit", "4", "--json", status=1)
    report = json.loads(called.stdout)
    assert {name: row for name, row in report.items() if name != "judge"} == found
    assert {row["asked"] for row in report["judge"]["agreement"].values()} == {4}
    rows = {path.stem: load_rows(path) for path in (run.parent / "run/bench/judges").rglob("*.jsonl")}
    assert list(report["judge"]["summary"]) == SYSTEMS
    assert set(rows) == set(SYSTEMS)
    unscored = [row.unscored for own in rows.values() for row in own if row.score is None]
    assert report["judge"]["unscored"] == {"too short": len(unscored)}
    with pytest.raises(ConfigError, match="--limit: the answers of a run are judged already"):
        invoke("bench", "contrasts", run, "--limit", "4")


def test_every_system_is_judged_twice_and_nothing_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(invoke("bench", "contrasts", run, "--json").stdout)
    bench = run.parent / "run" / "bench"
    assert [name for name in SYSTEMS if name in found] == SYSTEMS
    assert {name: row["gap"]["n_asked"] for name, row in found["spoken_kinds"].items()} == {"sft": 8}
    assert json.loads((bench / "summary.json").read_text())["spoken_kinds"] == found["spoken_kinds"]
    independent = found["independent"]
    assert list(independent["summary"]) == SYSTEMS
    assert independent["only_teacher"] is None
    for name in SYSTEMS:
        first, second = (load_rows(folder / f"{name}.jsonl") for folder in (bench, bench / "independent"))
        assert len(first) == len(second) == 8
        assert {row.judge.split("/")[0] for row in first} == {"rubric"}
        assert {row.judge.split("/")[0] for row in second} == {"independent"}
        assert [row.answer_clip for row in first] == [row.answer_clip for row in second]
        assert independent["agreement"][name]["asked"] == 8
    # The topline's answers are good ones, and the judge that never measured this voice says so.
    # Of eight, which ones it mishears depends on the processor: int8 products of Whisper are not the same on all.
    assert independent["summary"]["topline"]["overall"]["mean"] > 3.5
    assert independent["summary"]["constant"]["overall"]["mean"] < 2.5
    # Table 1: the bad arm comes last among those that say words, the topline's words in a neutral voice between.
    means = {name: independent["summary"][name]["overall"]["mean"] for name in SYSTEMS}
    assert means["bad"] < means["flat"] < means["topline"]
    for scores in (found, independent["summary"]):
        assert scores["bad"]["parts"]["kind"]["mean"] < 2 < scores["flat"]["parts"]["kind"]["mean"]

    check_by_another_judge(run, found)
    measured = []
    monkeypatch.setattr(
        IndependentJudge, "measure", lambda self, clips, at=None: measured.append(len(clips)) or ["no"] * len(clips)
    )
    assert json.loads(invoke("bench", "contrasts", run, "--json").stdout) == found
    assert measured == []
    # Rows of other answers under the same name are judged again: those of a policy that was trained anew.
    rows = [json.loads(line) for line in (bench / "sft.jsonl").read_text().splitlines()]
    write_jsonl(bench / "sft.jsonl", [row | {"text_stream": f"{row['text_stream']} other"} for row in rows])
    invoke("bench", "contrasts", run, "--json")
    assert measured == [8]
    # So are answers that are made anew, whose words may be the same and whose sound is not.
    (bench / "sft.jsonl").unlink()
    took_s = read_json(bench.parent / "timings.json")["bench"]
    invoke("bench", "contrasts", run, "--json")
    assert measured == [8, 8]
    # A system that is benched later adds its time to that of the others.
    assert read_json(bench.parent / "timings.json")["bench"] > took_s


def test_an_ablations_row_of_the_warm_up_has_the_same_scores_without_a_reward_model(run: Path) -> None:
    invoke("bench", "contrasts", run, "--json")
    folder = run.parent / "run"
    with_model = load_rows(folder / "bench/sft.jsonl")
    assert all(row.model_score is not None for row in with_model)
    for made in ("bench", "reward"):
        shutil.rmtree(folder / made)
    row = Run(load_config(run), Console(), True)
    row.open()
    found = run_row(row, AblationRow(name="SFT", system="sft"), "test")
    without = load_rows(folder / "bench/sft.jsonl")
    assert [(row.score, row.unscored, row.text_stream) for row in without] == [
        (row.score, row.unscored, row.text_stream) for row in with_model
    ]
    assert [row.model_score for row in without] == [None] * 8
    assert found["scores"]["overall"]["n_asked"] == 8
    assert found["reward_model_pearson"] is None
    assert not (folder / "reward").exists()
    # So is a run whose judge pays; one that a reward model pays for says what to run.
    with pytest.raises(DataError, match=r"reward_model\.json: no such file"):
        invoke("bench", "contrasts", run, "--json")
    (folder / "config.resolved.yaml").unlink()
    assert json.loads(invoke("bench", "contrasts", run, "-s", "reward.sources=[{kind: rubric}]", "--json").stdout)
