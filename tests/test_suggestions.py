"""A mistyped key, choice or path is answered with the nearest one, and a missing choice with those that there are.

Not covered: names that are near to several others; the first is suggested.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import world
from typer.testing import CliRunner

from paras2s.audio.clip import read_clip
from paras2s.cli.app import app
from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.judges import JudgingConfig, find_judge
from paras2s.configs.schema.run import load_config
from paras2s.errors import AudioError, ConfigError, ParaS2SError
from paras2s.pipeline.export import export_checkpoint
from paras2s.planning.cluster import cluster_path
from paras2s.run import kind_in_run, open_run


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"align.stepz": 3}, "--set align.stepz: unknown key; did you mean steps?"),
        ({"steps": 3}, "--set steps: unknown key; did you mean align.steps?"),
        ({"group_size": 3}, "--set group_size: unknown key; did you mean align.sampling.group_size?"),
        ({"align.sampling.grp_size": 3}, "--set align.sampling.grp_size: unknown key; did you mean group_size?"),
        ({"align.steps": "many"}, "--set align.steps: input should be a valid integer"),
    ],
)
def test_a_wrong_override_is_not_blamed_on_the_file(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(preset_path("quick"), overrides)
    assert said in str(refused.value)
    assert "quick.yaml" not in str(refused.value)


def test_a_rule_between_sections_is_quoted_alone_and_the_override_is_named() -> None:
    with pytest.raises(ConfigError, match=r"quick.yaml with --set: distill.refresh_every 20: alignment") as refused:
        load_config(preset_path("quick"), {"distill.refresh_every": 20})
    assert "alue error" not in str(refused.value)


def test_a_wrong_key_of_a_file_is_said_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("align: {stpes: 3}\n")
    with pytest.raises(ConfigError, match=r"mine.yaml: align.stpes: unknown key; did you mean steps\?"):
        load_config(tmp_path / "mine.yaml", {"seed": 1})


def test_a_judges_override_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--set llm.modle: unknown key; did you mean model\?"):
        find_judge("trace").config(JudgingConfig, {"llm.modle": "x"})


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: open_run("quik"), "no preset 'quik'; did you mean quick?; there are demo, full"),
        (lambda: open_run("runs/quik"), "runs/quik: no such folder; did you mean runs/quick?; give runs/quick"),
        (lambda: open_run("runs"), "runs: no run is in it (no config.resolved.yaml); give runs/quick"),
        (lambda: open_run("nowhere/quick"), "there is no folder nowhere"),
        (lambda: load_config(Path("mien.yaml")), "mien.yaml: no such config; did you mean mine.yaml?"),
        (lambda: read_clip("qestion.wav"), "qestion.wav: no such file; did you mean question.wav?"),
        (lambda: read_clip("talk.mp4"), "(ffmpeg -i talk.mp4 talk.wav)"),
        (lambda: find_judge("independant"), "no judge 'independant'; did you mean independent?; there are"),
        (lambda: cluster_path("h100x9"), "no cluster 'h100x9'; did you mean h100x8?; there are gpu64"),
        (lambda: export_checkpoint(Path("runs/quick")), "give runs/quick/checkpoints/align/step_000002 or runs/quick/sft or"),
    ],
)
def test_the_nearest_name_is_suggested(refused: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for made in ("runs/quick/config.resolved.yaml", "runs/quick/sft/policy.json", "runs/quick/aligned/policy.json"):
        Path(made).parent.mkdir(parents=True, exist_ok=True)
        Path(made).write_text("{}")
    Path("runs/quick/checkpoints/align/step_000002").mkdir(parents=True)
    Path("runs/quick/checkpoints/align/step_000002/trainer.json").write_text("{}")
    Path("mine.yaml").write_text("")
    Path("question.wav").write_bytes(b"")
    Path("talk.mp4").write_bytes(b"no sound" * 100)
    with pytest.raises((ParaS2SError, AudioError)) as error:
        refused()  # type: ignore[operator]
    assert said in str(error.value)


def test_a_plan_is_for_this_machine_by_default() -> None:
    done = CliRunner().invoke(app, ["plan", "quick", "--json"])
    assert done.exit_code in (0, 1), done.output
    assert '"this_machine"' in done.stdout


def test_a_checkpoint_of_a_run_is_checked_as_the_runs_kind(tmp_path: Path) -> None:
    world.write_run(tmp_path, run_dir=str(tmp_path / "run"))
    run = open_run(tmp_path / "run.yaml")
    run.open()
    assert kind_in_run(tmp_path / "run/aligned") == run.config.policy.kind
    assert kind_in_run(tmp_path / "elsewhere") is None
    done = CliRunner().invoke(app, ["check-policy", str(tmp_path / "run")])
    assert "holds no policy; give RUN/aligned or RUN/sft" in str(done.exception)
