"""Checkpoints of the Omni families that cannot speak are refused. What else a checkpoint needs: the tests of each family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny.qwen_omni import tiny_qwen_omni

from paras2s.errors import PolicyError
from paras2s.policy.qwen_omni import QwenOmniPolicy


def test_a_checkpoint_without_a_talker_is_refused(tmp_path: Path) -> None:
    tiny_qwen_omni().save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"enable_audio_output": False}))
    with pytest.raises(PolicyError, match="no talker"):
        QwenOmniPolicy.load(tmp_path)
