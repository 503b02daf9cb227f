"""A broken checkpoint is refused in one line that names the file and the key.

Not covered: whole files that hold the weights of a worse run, and writing to a full disk (tests/utils/test_io.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.dual_stream import FakeCodec, small_config, small_model, small_policy

from paras2s.errors import DataError, ParaS2SError, PolicyError
from paras2s.policy.embedded.policy import EmbeddedPolicy

CODEC = FakeCodec((5, 4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_policy(small_model(small_config())).save(tmp_path)
    return tmp_path


def edit_json(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return edit


def edit_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors")

    return edit


def edit_bytes(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def config_with(**values: Any) -> Callable[[Path], None]:
    return edit_json("policy.json", lambda held: {**held, "config": {**held["config"], **values}})


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def test_a_full_checkpoint_loads(folder: Path) -> None:
    loaded = EmbeddedPolicy.load(folder, codec=CODEC)
    assert loaded.model.dual_config == small_config()
    assert loaded.pieces.pieces == tuple("abcdef")
    torch.testing.assert_close(loaded.model.lm_head.weight, small_model(small_config()).lm_head.weight.float(), atol=0, rtol=0)


Q_PROJ, NORM = "model.mimo_layers.1.self_attn.q_proj.weight", "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "kind", "named"),
    [
        (edit_json("policy.json", lambda _: {"architecture": "Moshi", "config": {}}), PolicyError, ["Moshi"]),
        (edit_json("policy.json", lambda _: {}), PolicyError, ["not a DualStreamLM"]),
        (edit_json("policy.json", lambda held: {"architecture": held["architecture"]}), PolicyError, ["policy.json"]),
        (edit_json("policy.json", lambda _: []), PolicyError, ["not a DualStreamLM"]),
        (edit_json("policy.json", lambda held: {**held, "config": None}), PolicyError, ["policy.json"]),
        (config_with(tap_layer=9), PolicyError, ["policy.json", "tap_layer"]),
        (config_with(num_layers="many"), PolicyError, ["policy.json", "num_layers"]),
        (config_with(surprise=1), PolicyError, ["policy.json", "surprise"]),
        (config_with(hidden_size=32), PolicyError, ["lm_head.weight", "[24, 16]", "[24, 32]"]),
        (edit_bytes("policy.json", lambda data: data[:40]), DataError, ["policy.json", "JSON"]),
        (remove("policy.json"), DataError, ["policy.json"]),
        (edit_weights(lambda state: state.pop(Q_PROJ)), PolicyError, [Q_PROJ, "missing"]),
        (edit_weights(lambda state: state.update(extra=torch.zeros(2))), PolicyError, ["extra", "not expected"]),
        (edit_weights(lambda state: state.update({NORM: torch.ones(8)})), PolicyError, [NORM, "[8]", "[16]"]),
        (edit_bytes("model.safetensors", lambda data: data[:-64]), PolicyError, ["model.safetensors"]),
        (edit_bytes("model.safetensors", lambda data: data[:5]), PolicyError, ["model.safetensors"]),
        (edit_bytes("model.safetensors", lambda data: b""), PolicyError, ["model.safetensors"]),
        (edit_bytes("model.safetensors", lambda data: b"not weights" * 9), PolicyError, ["model.safetensors"]),
        (remove("model.safetensors"), PolicyError, ["model.safetensors"]),
        (edit_json("vocabulary.json", lambda held: held[:-1]), PolicyError, ["vocabulary.json"]),
        (edit_json("vocabulary.json", lambda held: {"pieces": held}), PolicyError, ["vocabulary.json"]),
        (remove("vocabulary.json"), DataError, ["vocabulary.json"]),
        (edit_json("listener.json", lambda held: {**held, "mean": [0.0]}), PolicyError, ["listener.json"]),
        (edit_json("listener.json", lambda held: {**held, "spread": [1.0]}), PolicyError, ["listener.json"]),
        (edit_json("listener.json", lambda held: {"mean": held["mean"]}), PolicyError, ["listener.json"]),
        (remove("listener.json"), DataError, ["listener.json"]),
    ],
    ids=["another architecture", "no architecture", "no config", "a list", "config is null", "tap outside",
         "not a number", "unknown key", "config of another size", "config cut off", "config missing", "tensor missing",
         "tensor too many", "wrong shape", "weights cut off", "weights nearly empty", "weights empty",
         "weights of another kind", "weights missing", "vocabulary too short", "vocabulary of another kind",
         "vocabulary missing", "listener of another size", "listener spread of another size", "listener cut",
         "listener missing"],
)  # fmt: skip
def test_a_broken_checkpoint_is_named(
    folder: Path, damage: Callable[[Path], None], kind: type[ParaS2SError], named: list[str]
) -> None:
    damage(folder)
    with pytest.raises(kind) as caught:
        EmbeddedPolicy.load(folder, codec=CODEC)
    message = str(caught.value)
    assert str(folder) in message
    assert [word for word in named if word not in message] == []
    assert "\n" not in message


def test_a_codec_that_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(PolicyError, match="do not fit the codec"):
        EmbeddedPolicy.load(folder, codec=FakeCodec((5, 5)))


def test_saving_again_replaces_what_was_there(folder: Path) -> None:
    other = small_policy(small_model(small_config(), seed=9))
    other.save(folder)
    loaded = EmbeddedPolicy.load(folder, codec=CODEC)
    np.testing.assert_array_equal(
        loaded.model.lm_head.weight.detach().numpy(), other.model.lm_head.weight.detach().float().numpy()
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "listener.json", "model.safetensors", "policy.json", "vocabulary.json",
    ]  # fmt: skip
