"""Each kind of bad input is refused before a stage begins, with the file or key and what to do.

The GPUs and NCCL are named fakes. Not covered: a file that is complete and wrong inside, which is found when it is loaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny.csm import write_csm
from tiny.interleaved import write_glm, write_step
from tiny.kimi import write_kimi
from tiny.plans import KIMI_CONFIG
from tiny.spoken_lm import write_spoken_lm
from tiny.whisper_vq import SMALL, encoder_of, save_tokenizer

from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.run import RunConfig, WarmupConfig, load_config
from paras2s.errors import ConfigError, ParaS2SError, PolicyError
from paras2s.pipeline import dry_run, preflight
from paras2s.pipeline.demo import run_demo
from paras2s.pipeline.preflight import (
    check_align,
    check_decoder,
    check_devices,
    check_models,
    check_run,
    check_warmup,
    check_weights,
)
from paras2s.policy.adapters import save_adapters
from paras2s.policy.interleaved.glm4_voice import Glm4VoicePolicy
from paras2s.policy.interleaved.step_audio2 import StepAudio2Policy
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.registry import load_policy
from paras2s.run import Run, open_run
from paras2s.train.checkpoint import Position, fill_trained, write_position
from paras2s.train.fsdp import Sharded

GIB = 2**30
LFS = "version https://git-lfs.github.com/spec/v1\n"


WRITERS: dict[str, Callable[[Path], object]] = {
    "kimi": lambda folder: write_kimi(folder, dtype=torch.float32),
    "glm4_voice": lambda folder: write_glm(folder, dtype=torch.float32, codes=Glm4VoicePolicy.codes),
    "step_audio2": lambda folder: write_step(folder, dtype=torch.float32, codes=StepAudio2Policy.codes),
    "csm": write_csm,
    "spoken_lm": write_spoken_lm,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole folder of each family."""
    found = {}
    for name, write in WRITERS.items():
        found[name] = tmp_path_factory.mktemp("preflight") / name
        write(found[name])
    return found


@pytest.fixture(scope="module")
def released(folders: dict[str, Path]) -> Path:
    return folders["kimi"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def sized(folder: Path, part: str | None = None, name: str = "config.json", **sizes: int) -> None:
    held = json.loads((folder / name).read_text())
    (held if part is None else held[part]).update(sizes)
    (folder / name).write_text(json.dumps(held))


def more_words(path: Path) -> None:
    """20 words more than the release has."""
    ranks = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*ranks, *(b"AAA%dA== %d" % (n, 256 + n) for n in range(10, 30))]))


def other_tokenizer(folder: Path) -> None:
    """Words of a model that has no audio."""
    described = json.loads((folder / "tokenizer.json").read_text())
    kept = [token for token in described["added_tokens"] if "audio" not in token["content"].lower()]
    (folder / "tokenizer.json").write_text(json.dumps(described | {"added_tokens": kept}))


HALF, AGAIN = "model-00001-of-00002.safetensors", "copy the checkpoint again"
DAMAGE: dict[tuple[str, str], tuple[Callable[[Path], object], list[str]]] = {
    ("kimi", "cut"): (lambda folder: cut(folder / "model-2.safetensors"), ["model-2.safetensors", "cannot be read", AGAIN]),
    ("kimi", "missing shard"): (lambda folder: (folder / "model-1.safetensors").unlink(), ["model-1.safetensors", AGAIN]),
    ("kimi", "pointer in place of a shard"): (
        lambda folder: (folder / "model-1.safetensors").write_text(LFS), ["model-1.safetensors", AGAIN]
    ),
    ("kimi", "cut component"): (
        lambda folder: cut(folder / "whisper-large-v3/model.safetensors"), ["whisper-large-v3", AGAIN]
    ),
    ("kimi", "pointer in place of a component"): (
        lambda folder: (folder / "audio_detokenizer/model.pt").write_text(LFS), ["audio_detokenizer/model.pt", "copy the"]
    ),
    ("kimi", "missing component"): (
        lambda folder: shutil.rmtree(folder / "vocoder"), ["there is no vocoder in it or beside it"]
    ),
    ("kimi", "another size"): (lambda folder: sized(folder, hidden_size=32), ["tensors do not fit", "the config wants"]),
    ("kimi", "another tokenizer"): (
        lambda folder: more_words(folder / "tiktoken.model"), ["tiktoken.model", "another model's tokenizer", "release again"]
    ),
    ("glm4_voice", "cut"): (lambda folder: cut(folder / HALF), [HALF, "cannot be read", AGAIN]),
    ("glm4_voice", "missing shard"): (lambda folder: (folder / HALF).unlink(), [HALF, AGAIN]),
    ("glm4_voice", "missing component"): (
        lambda folder: shutil.rmtree(folder / "glm-4-voice-tokenizer"), ["there is no glm-4-voice-tokenizer in it or beside it"]
    ),
    ("glm4_voice", "cut component"): (
        lambda folder: cut(folder / "glm-4-voice-tokenizer/model.safetensors"), ["glm-4-voice-tokenizer", AGAIN]
    ),
    ("glm4_voice", "another size"): (
        lambda folder: sized(folder, ffn_hidden_size=32), ["mlp.dense_h_to_4h.weight is [48, 16], the config wants [64, 16]"]
    ),
    ("glm4_voice", "another tokenizer"): (
        lambda folder: more_words(folder / "tokenizer.model"), ["tokenizer.model", "another model's tokenizer"]
    ),
    ("glm4_voice", "another speech tokenizer"): (
        lambda folder: sized(folder / "glm-4-voice-tokenizer", quantize_vocab_size=64), ["codebook.weight", "wants [64, 8]"]
    ),
    ("glm4_voice", "another model's codes"): (
        lambda folder: save_tokenizer(folder / "glm-4-voice-tokenizer", encoder_of(SMALL), SMALL),
        ["has 64 codes, and the model reads 16384", "of its release"],
    ),
    ("step_audio2", "cut"): (lambda folder: cut(folder / HALF), [HALF, "cannot be read", AGAIN]),
    ("step_audio2", "another size"): (
        lambda folder: sized(folder, "text_config", num_hidden_layers=3), ["model.layers.2.", "is missing"]
    ),
    ("step_audio2", "another size of the encoder"): (
        lambda folder: sized(folder, "audio_encoder_config", n_mels=16), ["encoder.conv1.weight is [8, 8, 3], the config wants"]
    ),
    ("step_audio2", "another tokenizer"): (other_tokenizer, ["tokenizer.json", "no token <audio_start>", "another model's"]),
    ("csm", "cut"): (lambda folder: cut(folder / "model.safetensors"), ["model.safetensors", "cannot be read", AGAIN]),
    ("csm", "missing shard"): (
        lambda folder: (folder / "model.safetensors").unlink(), ["holds neither model.safetensors nor"]
    ),
    ("csm", "another size"): (
        lambda folder: sized(folder, "depth_decoder_config", intermediate_size=32),
        ["depth_decoder.model.layers.0.mlp.down_proj.weight is [16, 24], the config wants [16, 32]"],
    ),
    ("csm", "no tokenizer"): (lambda folder: (folder / "tokenizer.json").unlink(), ["no tokenizer.json", AGAIN]),
    ("csm", "another tokenizer"): (lambda folder: sized(folder, text_vocab_size=100), ["is not CSM's", "has 100 words"]),
    ("csm", "replies of another form"): (
        lambda folder: (folder / "replies.jsonl").write_text('{"question": "Hi"}'), ["replies.jsonl", "lines must be"]
    ),
    ("spoken_lm", "cut"): (lambda folder: cut(folder / "model.safetensors"), ["model.safetensors", "cannot be read", AGAIN]),
    ("spoken_lm", "another size"): (
        lambda folder: sized(folder, "language_model", "policy.json", intermediate_size=16),
        ["mlp.down_proj.weight is [24, 32], the config"],
    ),
    ("spoken_lm", "no tokenizer"): (lambda folder: (folder / "tokenizer.json").unlink(), ["no tokenizer.json", AGAIN]),
    ("spoken_lm", "a layer it has not"): (
        lambda folder: sized(folder, None, "policy.json", prosody_layer=7), ["prosody_layer 7 is outside", "3 layers"]
    ),
}  # fmt: skip


def run_at(folder: Path, **policy: Any) -> Run:
    config = {
        "run_dir": str(folder / "run"),
        "policy": {"kind": "kimi", "max_answer_steps": 6, **policy},
        "warmup": {"steps": 0},
    }
    config["align"] = {"optimizer": {"lr": 1e-4}}
    (folder / "run.yaml").write_text(json.dumps(config))
    return open_run(folder / "run.yaml", quiet=True)


@pytest.mark.parametrize(("family", "kind"), DAMAGE, ids=lambda one: one.replace(" ", "_"))
def test_a_folder_that_is_half_there_or_of_two_models_is_refused(
    folders: dict[str, Path], tmp_path: Path, family: str, kind: str
) -> None:
    damage, named = DAMAGE[family, kind]
    folder = shutil.copytree(folders[family], tmp_path / family)
    damage(folder)
    with pytest.raises(ParaS2SError) as refused:
        check_weights(folder, family)
    for text in named:
        assert text in str(refused.value)


@pytest.mark.parametrize("family", WRITERS)
def test_a_whole_folder_passes_and_another_familys_does_not(folders: dict[str, Path], family: str) -> None:
    check_weights(folders[family], family)
    check_weights(folders[family], None)
    for other in folders.keys() - {family}:
        with pytest.raises(
            PolicyError, match=f"holds weights of {family}, and policy.kind is {other}; set policy.kind: {family}"
        ):
            check_weights(folders[family], other)


def test_a_warm_up_without_an_encoder_of_speech_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    for family in ("kimi", "glm4_voice", "csm"):
        check_warmup(folders[family], None)
    with pytest.raises(PolicyError, match=r"QwenOmniPolicy cannot learn from recorded speech: .* set warmup.steps to 0"):
        check_warmup(tmp_path, "qwen_omni")
    step = shutil.copytree(folders["step_audio2"], tmp_path / "step")
    with pytest.raises(PolicyError, match="there is no token2wav in it or beside it"):
        check_warmup(step, None)
    (step / "token2wav").mkdir()
    with pytest.raises(PolicyError, match=r"speech_tokenizer_v2_25hz.onnx: no such file; it is in the folder token2wav"):
        check_warmup(step, None)
    run = run_at(tmp_path, kind="step_audio2", weights=str(step))
    check_run(run)
    learning = run.config.model_copy(update={"warmup": WarmupConfig(steps=1)})
    with pytest.raises(PolicyError, match="no such file"):
        check_run(replace(run, config=learning))


def test_a_model_whose_decoder_is_no_package_wants_one_named(folders: dict[str, Path], tmp_path: Path) -> None:
    for family in ("kimi", "csm"):
        check_decoder(run_at(tmp_path, kind=family, weights=str(folders[family])))
    for family in ("glm4_voice", "step_audio2"):
        run = run_at(tmp_path, kind=family, weights=str(folders[family]))
        for check in (check_decoder, lambda run: run_demo(run, resume=False), lambda run: check_align(run, resume=False)):
            with pytest.raises(PolicyError, match=r"no decoder of codes: name one by policy.decoder, or .*github.com"):
                check(run)
        assert not run.folder.exists()
        check_decoder(run_at(tmp_path, kind=family, weights=str(folders[family]), decoder="tiny.interleaved:beeps_of_glm"))


def test_another_family_is_not_loaded(released: Path) -> None:
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


def test_nothing_is_done_or_written_before_it_is_refused(tmp_path: Path) -> None:
    run = run_at(tmp_path, weights=str(tmp_path / "nowhere"))
    with pytest.raises(PolicyError, match=r"is no folder here.*hf download"):
        run_demo(run, resume=False)
    assert not run.folder.exists()
    with pytest.raises(PolicyError, match=r"is no folder here.*make_spoken_lm.py MODEL"):
        check_weights(tmp_path / "nowhere", "spoken_lm")


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


def test_workers_for_a_gpu_that_reserve_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"align.workers.rollout.gpus: policy.device is cuda, and a worker without a share"):
        check_devices(RunConfig.model_validate({"policy": {"device": "cuda"}}))
    with pytest.raises(ConfigError, match=r"policy.device is cuda:1: a worker sees its own GPUs alone"):
        check_devices(RunConfig.model_validate({"policy": {"device": "cuda:1"}}))
    roles = {"rollout": {"gpus": 0.4}, "learner": {"gpus": 0.4}, "speak": {"count": 1}}
    with pytest.raises(ConfigError, match=r"align.workers.speak.gpus: policy.device is cuda"):
        check_devices(RunConfig.model_validate({"policy": {"device": "cuda"}, "align": {"workers": roles}}))


@pytest.mark.parametrize(("stage", "role"), [("warmup", "learner"), ("distill", "rollout")])
def test_workers_of_other_stages_need_a_gpu_too(stage: str, role: str, tmp_path: Path) -> None:
    """A stage in one process sees all GPUs."""
    run = open_run("quick", run_dir=tmp_path)

    def with_role(values: dict[str, Any] | None) -> Run:
        given = {f"{stage}.{role}": values, "policy.device": "cuda"}
        return replace(run, config=load_config(preset_path("quick"), {"run_dir": str(tmp_path), **given}))

    check_run(with_role(None))
    check_run(with_role({"count": 2, "gpus": 0.5}))
    with pytest.raises(ConfigError, match=rf"{stage}.{role}.gpus: policy.device is cuda, and a worker without"):
        check_run(with_role({"count": 2}))


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
    with pytest.raises(PolicyError, match=r"adapter_model.safetensors: holds adapters of rank 2, and rank 4 is requested"):
        load_policy(tmp_path / "adapters", device="cpu")
    other = KimiPolicy.load(released)
    other.add_lora(3, 4)
    with pytest.raises(
        PolicyError, match=r"trained.safetensors: holds adapters of rank 2, and rank 3 is requested; set lora: {rank: 2}"
    ):
        fill_trained(tmp_path, other)
