"""The stages of `paras2s demo`: which of them a run needs. The stages themselves are scripted here; CI runs a real demo."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paras2s.configs.schema.run import RunConfig
from paras2s.pipeline import demo
from paras2s.run import Run
from paras2s.utils.progress import open_console

STAGES = {
    "paras2s.pipeline.data.run_data": "data",
    "paras2s.pipeline.warmup.run_warmup": "warmup",
    "paras2s.pipeline.distill.run_distill": "distill",
    "paras2s.pipeline.align.run_align": "align",
    "paras2s.bench.paras2s.contrasts.run_bench": "bench",
}


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("reward_model", ["data", "warmup", "distill", "align", "bench with distill"]),
        ("rubric", ["data", "warmup", "align", "bench with None"]),
    ],
)
def test_a_reward_model_is_distilled_where_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, stages: list[str]
) -> None:
    done: list[str] = []

    def script(name: str) -> Any:
        def stage(*given: Any) -> Any:
            done.append(f"bench with {given[2]}" if name == "bench" else name)
            return SimpleNamespace(to_json=lambda: {"scores": 1}) if name == "bench" else name

        return stage

    for path, name in STAGES.items():
        monkeypatch.setattr(path, script(name))
    for path in ("pipeline.preflight.check_run", "pipeline.preflight.check_decoder", "bench.paras2s.contrasts.describe_bench"):
        monkeypatch.setattr(f"paras2s.{path}", lambda *_: None)
    monkeypatch.setattr(demo, "report", lambda *_: {})
    config = RunConfig.model_validate({"run_dir": str(tmp_path / "run"), "reward": {"sources": [{"kind": kind}]}})
    assert demo.run_demo(Run(config, open_console(), quiet=True), resume=True) == {"scores": 1}
    assert done == stages
