"""Each kind of bad input is refused before a stage begins, with the file or key and what to do.

The GPUs and NCCL are named fakes. Not covered: a file that is complete and wrong inside, which is found when it is loaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny.kimi import write_kimi
from tiny.plans import KIMI_CONFIG

from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError, ParaS2SError, PolicyError
from paras2s.pipeline import dry_run, preflight
from paras2s.pipeline.demo import run_demo
from paras2s.pipeline.preflight import check_devices, check_models, check_weights
from paras2s.policy.adapters import save_adapters
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.registry import load_policy
from paras2s.run import Run, open_run
from paras2s.train.checkpoint import Position, fill_trained, write_position
from paras2s.train.fsdp import Sharded

GIB = 2**30
LFS = "version https://git-lfs.github.com/spec/v1\n"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kimi(tmp_path_factory.mktemp("preflight") / "kimi", dtype=torch.float32)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def wider(folder: Path) -> None:
    sizes = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(sizes | {"hidden_size": 32}))


def other_words(folder: Path) -> None:
    ranks = (folder / "tiktoken.model").read_bytes().splitlines()
    # 20 words more than the release has.
    (folder / "tiktoken.model").write_bytes(b"\n".join([*ranks, *(b"AAA%dA== %d" % (n, 256 + n) for n in range(10, 30))]))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: cut(folder / "model-2.safetensors"), ["model-2.safetensors", "cannot be read", "copy the"]),
        (lambda folder: (folder / "model-1.safetensors").unlink(), ["model-1.safetensors", "copy the checkpoint again"]),
        (lambda folder: (folder / "model-1.safetensors").write_text(LFS), ["model-1.safetensors", "copy the checkpoint again"]),
        (lambda folder: cut(folder / "whisper-large-v3/model.safetensors"), ["whisper-large-v3", "copy the checkpoint again"]),
        (lambda folder: (folder / "audio_detokenizer/model.pt").write_text(LFS), ["audio_detokenizer/model.pt", "copy the"]),
        (lambda folder: shutil.rmtree(folder / "vocoder"), ["there is no vocoder in it or beside it"]),
        (wider, ["tensors do not fit", "the config wants"]),
        (other_words, ["tiktoken.model", "another model's tokenizer", "from the release again"]),
    ],
    ids=["cut", "missing shard", "pointer in place of a shard", "cut component", "pointer in place of a component",
         "missing component", "another size", "another tokenizer"],
)  # fmt: skip
def test_a_folder_that_is_half_there_is_refused(
    released: Path, tmp_path: Path, damage: Callable[[Path], object], named: list[str]
) -> None:
    check_weights(released, "kimi")
    folder = shutil.copytree(released, tmp_path / "kimi")
    damage(folder)
    with pytest.raises(ParaS2SError) as refused:
        check_weights(folder, "kimi")
    for text in named:
        assert text in str(refused.value)


def test_another_family_is_refused_by_both_names(released: Path) -> None:
    with pytest.raises(PolicyError, match=r"holds weights of kimi, and policy.kind is glm4_voice; set policy.kind: kimi"):
        check_weights(released, "glm4_voice")
    with pytest.raises(PolicyError, match=r"policy.kind is moshi"):
        load_policy(released, "moshi", "cpu")


def test_a_hubs_name_is_refused_with_the_command_that_fetches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=r"hf download NAME --local-dir moonshotai/Kimi-Audio-7B-Instruct"):
        check_weights(Path("moonshotai/Kimi-Audio-7B-Instruct"), "kimi")
    paper = load_config(KIMI_CONFIG)
    with pytest.raises(
        ConfigError, match=r"distill.omni.model: Qwen/Qwen2.5-Omni-7B is neither .* `hf download Qwen/Qwen2.5-Omni-7B`"
    ):
        check_models(paper)
    source = [{"kind": "omni", "options": {"model": "no/such"}}]
    with pytest.raises(ConfigError, match="omni: model: no/such is neither a folder nor in the hub's cache"):
        check_models(load_config(KIMI_CONFIG, {"distill.omni": None, "reward.sources": source}))
    (tmp_path / "no/such").mkdir(parents=True)
    check_models(load_config(KIMI_CONFIG, {"distill.omni": None, "reward.sources": source}))
    served = [{"kind": "omni", "options": {"base_url": "http://127.0.0.1:1/v1"}}]
    check_models(load_config(KIMI_CONFIG, {"distill.omni": None, "reward.sources": served}))


def run_at(folder: Path, **policy: Any) -> Run:
    config = {
        "run_dir": str(folder / "run"),
        "policy": {"kind": "kimi", "max_answer_steps": 6, **policy},
        "warmup": {"steps": 0},
    }
    config["align"] = {"optimizer": {"lr": 1e-4}}
    (folder / "run.yaml").write_text(json.dumps(config))
    return open_run(folder / "run.yaml", quiet=True)


def test_nothing_is_done_or_written_before_it_is_refused(tmp_path: Path) -> None:
    run = run_at(tmp_path, weights=str(tmp_path / "nowhere"))
    with pytest.raises(PolicyError, match="is no folder here"):
        run_demo(run, resume=False)
    assert not run.folder.exists()


def test_a_checkpoint_of_a_newer_version_is_refused_before_workers_start(tmp_path: Path) -> None:
    run = run_at(tmp_path, weights=str(tmp_path / "nowhere"))
    checkpoint = run.folder / "checkpoints/align/step_000004"
    write_position(checkpoint, Position(4))
    preflight.check_align(run, resume=True)
    (checkpoint / "trainer.json").write_text(json.dumps({"version": 2, "next_step": 4}))
    with pytest.raises(PolicyError, match=r"is of version 2 of checkpoints, this program reads 1; install a newer one"):
        preflight.check_align(run, resume=True)
    preflight.check_align(run, resume=False)


def test_gpus_that_are_too_small_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight named fakes of 24 GiB in place of this machine's GPUs."""
    paper = load_config(KIMI_CONFIG)
    check_devices(paper)
    for module in (dry_run, preflight):
        monkeypatch.setattr(module, "devices_here", lambda: [24.0 * GIB] * 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    with pytest.raises(ConfigError, match=r"devices 0 to 7: shared by learner, rollout, reward, needs .* and has .*--meta"):
        check_devices(paper)
    for module in (dry_run, preflight):
        monkeypatch.setattr(module, "devices_here", lambda: [80.0 * GIB] * 8)
    check_devices(paper)
    # A cluster's GPUs are not looked at from here.
    check_devices(load_config(KIMI_CONFIG, {"align.workers.ray_address": "127.0.0.1:1", "policy.max_answer_steps": 10**6}))
    check_devices(RunConfig())


def test_a_torch_without_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "devices_here", lambda: [80.0 * GIB] * 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match=r"built without it; install .* or set align.workers.learner.count to 1"):
        check_devices(load_config(KIMI_CONFIG))
    with pytest.raises(ConfigError, match="built without it"):
        # Refused before it waits for others at the address.
        Sharded(0, 2, "127.0.0.1", 1, "cuda", True)


def test_adapters_of_another_rank_are_refused_with_theirs(released: Path, tmp_path: Path) -> None:
    policy = KimiPolicy.load(released)
    policy.add_lora(2, 4)
    save_file(
        {name: value.detach().contiguous() for name, value in policy.trainable().items()}, tmp_path / "trained.safetensors"
    )
    save_adapters(policy, tmp_path / "adapters", released, 2, 4)
    load_policy(tmp_path / "adapters", device="cpu")
    path = tmp_path / "adapters/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 4}))
    with pytest.raises(PolicyError, match=r"adapter_model.safetensors: holds adapters of rank 2, and rank 4 is wanted"):
        load_policy(tmp_path / "adapters", device="cpu")
    other = KimiPolicy.load(released)
    other.add_lora(3, 4)
    with pytest.raises(
        PolicyError, match=r"trained.safetensors: holds adapters of rank 2, and rank 3 is wanted; set lora: {rank: 2}"
    ):
        fill_trained(tmp_path, other)
