"""A run's folder in miniature with its warm-up, made once for all tests that start from one."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; `run.yaml` in it is the config, `run/data` and `run/sft` are made."""
    from tiny.world import make_data, write_run
    from typer.testing import CliRunner

    from paras2s.cli.app import app

    folder = tmp_path_factory.mktemp("tiny")
    config = write_run(folder)
    make_data(config)
    result = CliRunner().invoke(app, ["warmup", str(config)])
    assert result.exit_code == 0, result.output
    return folder
