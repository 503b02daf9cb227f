"""Measure what one GPU tells in about nine minutes, with random weights of true size made on it.

    python tools/gpu_check.py --out gpu.jsonl          (make gpu-check)
    python tools/gpu_check.py --tiny                   (the same code on a processor, small)

It needs torch, transformers, peft, safetensors, pydantic and soundfile: no Ray and no released files. Each part prints a
line of JSON; a part that fails prints its error, and the next goes on. docs/gpu.md says what to compare.
"""

from __future__ import annotations

import argparse
import copy
import json
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gpu_bench import GIB, GROUP, PROMPT, QUERIES, Bench
from torch import Tensor
from torch.nn import functional as fn

from paras2s.configs.schema.align import AlignConfig
from paras2s.configs.schema.base import preset_path, read_values
from paras2s.policy.dual_stream.captured import CapturedDecoder, graph_recorder
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import ModelDecoder, sample
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.train.fsdp import Sharded
from paras2s.train.learner import Learner
from paras2s.types import Block, Reward

LORA = {"rank": 16, "alpha": 32}
REPOSITORY = Path(__file__).resolve().parents[1]


def versions(bench: Bench) -> None:
    """Name device, libraries, commit and command."""
    from importlib.metadata import version

    commit = subprocess.run(
        ["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    bench.say(
        "versions",
        device="processor" if bench.tiny else torch.cuda.get_device_name(),
        commit=commit.stdout.strip() or "unknown",
        command=" ".join(["tools/gpu_check.py", *sys.argv[1:]]),
        **{name: version(name) for name in ("torch", "transformers", "peft")},
    )


def attention(bench: Bench) -> None:
    """Measure attention behind prompts, with keys of their own for each head and grouped: back-ends, memory, seconds."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rows, heads, groups, size = 8, 28, 4, 128
    steps, width = (16, 24) if bench.tiny else (bench.steps, bench.steps + PROMPT)
    q, k, v = (torch.randn(rows, count, length, size, device=bench.device, dtype=bench.dtype)
               for count, length in ((heads, steps), (groups, width), (groups, width)))  # fmt: skip
    mask = torch.zeros(rows, 1, steps, width, device=bench.device, dtype=bench.dtype)
    every = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)
    for name, repeats in (("grouped", 1), ("own keys", heads // groups)):
        own_k, own_v, backends = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1), []

        def attend(k: Tensor = own_k, v: Tensor = own_v) -> Tensor:
            return fn.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=k.shape[1] < heads)

        for backend in every:
            try:
                with warnings.catch_warnings(), sdpa_kernel(backend):
                    warnings.simplefilter("ignore")
                    attend()
                backends.append(backend.name)
            except RuntimeError:
                continue
        bench.peak_gib()
        held = 0.0 if bench.tiny else torch.cuda.memory_allocated() / GIB
        _, seconds = bench.clock(attend)
        bench.say("attention", keys=name, seconds=seconds, extra_gib=bench.peak_gib() - held, backends=backends)


def sampling(bench: Bench) -> None:
    """Sample 32 rows: milliseconds a step plain and recorded, waits of the host, memory of the graphs, and the same answers."""
    policy, seconds = bench.clock(bench.kimi)
    bench.kept["sampler"] = policy
    bench.say("build", seconds=seconds, parameters=sum(p.numel() for p in policy.model.parameters()), peak_gib=bench.peak_gib())
    request, plain = bench.request(policy, bench.short), ModelDecoder(policy.model)
    sample(policy.model, request, decoder=plain)
    with bench.counted_waits() as waits:
        expected = sample(policy.model, request, decoder=plain)
    expected, seconds = bench.clock(lambda: sample(policy.model, request, decoder=plain))
    ms = 1e3 / bench.short
    bench.say("sample plain", ms_a_step=ms * seconds, waits_a_step=len(waits) / bench.short, peak_gib=bench.peak_gib())
    record = (lambda work: lambda: work()) if bench.tiny else graph_recorder(policy.device)
    decoder, before = CapturedDecoder(policy.model, record), bench.used_gib()
    before_that: list[Generation] = []
    for run in range(3):
        found, seconds = bench.clock(lambda: sample(policy.model, request, decoder=decoder))
        bench.say(
            "sample recorded", run=run, ms_a_step=ms * seconds, graphs=len(decoder._recorded), records=decoder.records,
            same_as_plain=_same_share(found, expected), same_as_before=_same_share(found, before_that) if before_that else None,
            gib_of_graphs_and_cache=bench.used_gib() - before, peak_gib=bench.peak_gib(),
        )  # fmt: skip
        before_that = found


def _same_share(first: list[Generation], second: list[Generation]) -> float:
    """Return the share of answers whose tokens are equal. Products of other sizes have other last bits, in half precision."""
    pairs = [(a.blocks[0].tokens, b.blocks[0].tokens) for a, b in zip(first, second, strict=True)]
    return float(np.mean([np.array_equal(a[row], b[row]) for a, b in pairs for row in range(len(a))]))


def parity(bench: Bench) -> None:
    """Compare sampler and learner, with scores that have a constant part of 0 and more."""
    for bias in (0.0, 5.0, 10.0):
        _parity(bench, bias)
        bench.free()


def _parity(bench: Bench, bias: float) -> None:
    policy = bench.kimi(1, bias)
    request = bench.request(policy, 10 if bench.tiny else 96)
    found = policy.generate(request)
    with torch.no_grad():
        blocks = [one.blocks for one in found]
        (scored,), seconds = bench.clock(lambda: policy.logprobs(request.prompts, blocks, request.sampling))
    values = scored.double().cpu().numpy().reshape(len(found), -1, *scored.shape[1:])
    numbers = {}
    for slot, name in enumerate(("text", "audio")):
        gaps = [
            np.abs(logp[:, : block.tokens.shape[1], slot] - block.behaviour_logp[..., slot])[block.sampled[..., slot]]
            for (block,), logp in zip(blocks, values, strict=True)
        ]
        gap = np.concatenate(gaps)
        numbers |= {f"{name}_mean": float(gap.mean()), f"{name}_max": float(gap.max())}
    bench.say("parity", bias=bias, seconds=seconds, **numbers)


def learning(bench: Bench) -> None:
    """Make five steps of GRPO with adapters and recomputed layers, sampler and learner on one device; save and restore.

    Eight answers a pass, and 32 in the last two steps.
    """
    policy, sampler = bench.kimi(), bench.kept.pop("sampler", None) or bench.kimi()
    torch.manual_seed(0)
    config = AlignConfig.model_validate(
        {
            "steps": 10, "lora": LORA, "sampling": {"queries_per_step": QUERIES, "group_size": GROUP},
            "objective": {"groups_per_update": QUERIES, "max_logprob_gap": 9.0},
            "optimizer": {
                "lr": 5e-4, "adaptor_lr": 5e-4, "warmup_steps": 1, "micro_batch_size": 8, "gradient_checkpointing": True,
            },
        }
    )  # fmt: skip
    learner, engine = Learner(policy, config, bench.steps), NativeEngine(sampler)
    sampler.add_lora(**LORA)
    bench.peak_gib()
    for step in range(5):
        rows = 8 if step < 3 else QUERIES * GROUP
        learner.config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"micro_batch_size": rows})})
        weights = learner.weights()
        _, weights_s = bench.clock(lambda: engine.set_weights(weights, step))  # noqa: B023 - called at once
        request, ids = bench.request(sampler, bench.steps, step), [str(number) for number in range(QUERIES)]
        rollouts, sample_s = bench.clock(lambda: engine.generate(ids, request, False))  # noqa: B023 - called at once
        sampling_gib = bench.peak_gib()
        rewards = [[Reward(float((7 * row + 3 * column) % 5), {}) for column in range(GROUP)] for row in range(QUERIES)]
        metrics, update_s = bench.clock(lambda: learner.step(request.prompts, rollouts, rewards))  # noqa: B023 - at once
        numbers = {name: float(metrics[name]) for name in ("loss", "kl", "grad_norm")}
        numbers |= {name: float(value) for name, value in metrics.items() if name.startswith("parity_")}
        bench.say(
            "step", number=step, answers_a_pass=rows, new_weights_s=weights_s, new_weights_gib=engine.moved_bytes / GIB,
            sample_s=sample_s, update_s=update_s, peak_sampling_gib=sampling_gib, peak_update_gib=bench.peak_gib(), **numbers,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        _, save_s = bench.clock(lambda: learner.save(Path(folder) / "checkpoint"))
        _, restore_s = bench.clock(lambda: learner.restore(Path(folder) / "checkpoint"))
    bench.say("checkpoint", save_s=save_s, restore_s=restore_s, next_step=learner.next_step)
    bench.free()


def sound(bench: Bench) -> None:
    """Speak 16 answers together: seconds, memory, and whether an answer is the same alone and again."""
    from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig
    from paras2s.policy.kimi.detokenizer import KimiDetokenizer
    from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel

    sizes, vocoder = (json.loads(json.dumps(self)) for self in (bench.released["audio_detokenizer"], bench.released["vocoder"]))
    if bench.tiny:
        sizes["model"]["dit"].update(hidden_size=32, depth=1, num_heads=2)
        vocoder["upsample_initial_channel"] = 128
    flow = FlowModel(FlowConfig.from_released(sizes)).to(bench.device, bench.dtype)
    detokenizer = KimiDetokenizer(flow, BigVGAN(BigVGANConfig.from_released(vocoder)).to(bench.device))
    rng, count = np.random.default_rng(0), 2 if bench.tiny else 16
    codes = [rng.integers(0, 16_384, 3 if bench.tiny else 388) for _ in range(count)]
    detokenizer.decode_all([row[:60] for row in codes], range(count))
    bench.peak_gib()
    with bench.seconds_inside(flow, detokenizer.vocoder) as inside:
        together, seconds = bench.clock(lambda: detokenizer.decode_all(codes, range(count)))
    peak = bench.peak_gib()
    alone, again = (detokenizer.decode_all(codes[:1], [0])[0].samples for _ in range(2))
    size = float(np.linalg.norm(alone)) or 1.0
    bench.say(
        "sound", answers=count, seconds=seconds, flow_s=inside[0], vocoder_s=inside[1], peak_gib=peak,
        sound_s=sum(clip.duration_s for clip in together),
        batch_apart=float(np.linalg.norm(together[0].samples - alone)) / size, same_again=bool(np.array_equal(alone, again)),
    )  # fmt: skip
    bench.free()


def sharded(bench: Bench) -> None:
    """Spread a learner over one rank in mixed precision."""
    policy = bench.kimi()
    policy.add_lora(**LORA)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = int(held.getsockname()[1])
    devices = Sharded(0, 1, "127.0.0.1", port, str(bench.device), True)
    try:
        _, seconds = bench.clock(lambda: devices.spread(policy))
        bench.say("one rank", seconds=seconds, peak_gib=bench.peak_gib())
    finally:
        devices.close()
    bench.free()


def omni(bench: Bench) -> None:
    """Qwen2.5-Omni's thinker and talker: sampling, and a pass with its gradient at 400 and 1,550 codes."""
    from transformers import Qwen2_5OmniConfig

    from paras2s.policy.qwen_omni import OmniIds, Qwen25Network, QwenOmniPolicy

    if bench.tiny:
        sys.path.insert(0, str(REPOSITORY / "tests"))
        from tiny.qwen_omni import tiny_config, tiny_tokenizer

        config = tiny_config(tiny_tokenizer())
    else:
        held = dict(read_values(preset_path("qwen2.5-omni-7b", "released")))
        config = Qwen2_5OmniConfig.from_dict({**held, "enable_audio_output": True})
    text = config.thinker_config.text_config
    words = text.vocab_size
    with bench.device:
        released = QwenOmniPolicy.empty_model(config, bench.dtype)
        network = Qwen25Network(released, OmniIds.read(config, words - 2, words - 3), False)
    _measure(bench, "omni", network, _question(text.hidden_size, words), words, 1, (400, 1550))
    bench.free()


def qwen3_omni(bench: Bench) -> None:
    """Qwen3-Omni's talker and code predictor behind 2 of its thinker's 48 layers: sampling, and passes as for Qwen2.5-Omni."""
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    from paras2s.policy.qwen3_omni import Qwen3Ids, Qwen3Network

    if bench.tiny:
        sys.path.insert(0, str(REPOSITORY / "tests"))
        from tiny.qwen3_omni import tiny_config, tiny_tokenizer

        config = tiny_config(tiny_tokenizer())
    else:
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "interleaved": True}
        sparse = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "rope_parameters": rope}
        sparse |= {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
        talker_text = {"num_experts": 128, "shared_expert_intermediate_size": 768, "head_dim": 128, "rope_parameters": rope}
        talker = {
            "num_code_groups": 16, "accept_hidden_layer": 1, "speaker_id": {"ethan": 2302}, "codec_pad_id": 2148,
            "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_nothink_id": 2155, "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157, "text_config": talker_text, "spatial_merge_size": 2,
            "code_predictor_config": {"num_code_groups": 16},
        }  # fmt: skip
        thinker = {"text_config": {"hidden_size": 2048, "num_hidden_layers": 2, "vocab_size": 152_064, **sparse}}
        config = Qwen3OmniMoeConfig(thinker_config=thinker, talker_config=talker, enable_audio_output=True)
    words = config.thinker_config.text_config.vocab_size
    ids = Qwen3Ids.read(config, "ethan")
    with bench.device:
        torch.set_default_dtype(bench.dtype)
        try:
            network = Qwen3Network(Qwen3OmniMoeForConditionalGeneration(config), ids, False, int(config.im_end_token_id))
        finally:
            torch.set_default_dtype(torch.float32)
    prompt = _question(config.thinker_config.text_config.hidden_size, words)
    # The user's turn, which the talker reads, and then its own.
    prompt.text_ids[:2], prompt.text_ids[-3:] = (ids.start, ids.user), (ids.start, 1, 2)
    _measure(bench, "qwen3 omni", network, prompt, words, network.codebooks, (100, 388))
    bench.free()


class _NoWords:
    """Word pieces of an answer that nobody reads."""

    def __len__(self) -> int:
        return 0

    def decode(self, ids: list[int]) -> str:
        """Return no word."""
        return ""


def embedded(bench: Bench) -> None:
    """The embedded policy of `quick`: 128 answers on the device and on the processor, and a step of GRPO."""
    from paras2s.configs.schema.run import PolicyConfig
    from paras2s.pipeline.skeletons import policy_skeleton
    from paras2s.policy.embedded.policy import EmbeddedPolicy

    skeleton, words = policy_skeleton(PolicyConfig(), "embedded").policy, cast(Any, _NoWords())
    assert isinstance(skeleton, EmbeddedPolicy)
    device, policies = str(bench.device), {}
    for where in dict.fromkeys(("cpu", device)):
        policy = EmbeddedPolicy(DualStreamLM(skeleton.config), words, skeleton.codec, words)
        policy.model.initialise(0)
        policy.model.to(where)
        policies[where] = policy
    policy, config = policies[device], policies[device].config
    rng, prompts = np.random.default_rng(0), []
    for length in (30, 36, 42, 48):
        audio = np.stack([rng.integers(*bounds, length) for bounds in config.audio_ranges], 1)
        features = rng.standard_normal((length, config.continuous_dim)).astype(np.float32)
        text = rng.integers(0, config.text_eos_id, length)
        prompts.append(Prompt(audio, text, features, np.ones(length, bool), code_offsets=config.codebook_offsets))
    steps, group = (6, 2) if bench.tiny else (52, 32)
    request = SampleRequest(prompts, answer_seeds(0, 0, range(4), group), Sampling(max_steps=steps))
    found = {where: bench.clock(lambda: one.generate(request)) for where, one in policies.items()}  # noqa: B023 - called at once
    answers = [[one.blocks[0].tokens for one in result] for result, _ in found.values()]
    same = np.mean([np.array_equal(a, b) for a, b in zip(*(answers * 2)[:2], strict=True)])
    bench.say("embedded sample", seconds=found[device][1], seconds_of_a_processor=found["cpu"][1], same_groups=float(same))
    optimizer = {"lr": 3e-4, "adaptor_lr": 3e-4, "warmup_steps": 1}
    objective, groups = {"groups_per_update": 4}, {"queries_per_step": 4, "group_size": group}
    align = AlignConfig.model_validate({"sampling": groups, "objective": objective, "optimizer": optimizer})
    learner, engine = Learner(policy, align, steps), NativeEngine(copy.deepcopy(policy))
    engine.set_weights(learner.weights(), 0)
    rollouts = engine.generate([str(number) for number in range(4)], replace(request, sampling=learner.sampling), False)
    rewards = [[Reward(float((7 * row + 3 * column) % 5), {}) for column in range(group)] for row in range(4)]
    metrics, seconds = bench.clock(lambda: learner.step(prompts, rollouts, rewards))
    numbers = {name: float(metrics[name]) for name in ("loss", "kl", "grad_norm")}
    bench.say("embedded step", seconds=seconds, peak_gib=bench.peak_gib(), **numbers)
    bench.free()


def families(bench: Bench) -> None:
    """Check the contract of every family on the device, each tiny and random: what `check-policy` checks."""
    from paras2s.policy.contract import check_policy

    sys.path.insert(0, str(REPOSITORY / "tests"))
    from tiny.families import FAMILIES, subject_of_family

    broken = []
    for name in FAMILIES[:2] if bench.tiny else FAMILIES:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                subject = subject_of_family(name, Path(folder), str(bench.device))
                findings = list(check_policy(subject))
            except ModuleNotFoundError as missing:
                bench.say("family", family=name, not_run=str(missing))
                continue
            except Exception as error:
                where = traceback.format_exc().splitlines()[-3].strip()
                bench.say("family", family=name, failed=f"{type(error).__name__}: {error}"[:400], at=where[:160])
                broken.append(name)
                continue
        failed = {finding.name: finding.detail[:300] for finding in findings if finding.ok is False}
        broken += [name] * bool(failed)
        bench.say("family", family=name, passed=sum(finding.ok is True for finding in findings), failed_checks=failed,
                  seconds=time.perf_counter() - started)  # fmt: skip
    if broken:
        raise RuntimeError(f"the contract is broken by {', '.join(broken)}")


def _question(width: int, words: int) -> Prompt:
    """Make a spoken question of 5 s for an Omni model."""
    rng, length, count = np.random.default_rng(0), 160, 125
    speech = np.zeros(length, dtype=bool)
    speech[20 : 20 + count] = True
    features = np.zeros((length, width), np.float32)
    features[speech] = rng.standard_normal((count, width))
    return Prompt(np.zeros((length, 0), np.int64), rng.integers(0, min(words, 250), length), features, speech)


def _measure(bench: Bench, name: str, network: Any, prompt: Prompt, words: int, slots: int, lengths: tuple[int, ...]) -> None:
    """Give a network random weights, sample eight answers with it and make passes of given lengths."""
    from paras2s.policy.dual_stream.sampler import uniforms_of

    for parameter, weight in network.named_parameters():
        if weight.ndim > 1:
            weight.data.normal_(0, 0.5 / weight.shape[-1] ** 0.5)
        else:
            weight.data.fill_(1.0 if "norm" in parameter and parameter.endswith("weight") else 0.0)
    bench.say(f"{name} build", parameters=sum(weight.numel() for weight in network.parameters()), peak_gib=bench.peak_gib())
    steps, seeds = 4 if bench.tiny else 64, [[0, 1, 2, 3], [4, 5, 6, 7]]
    request, uniforms = SampleRequest([prompt, prompt], seeds, Sampling(max_steps=steps)), uniforms_of(seeds, steps, 1 + slots)
    uniforms = uniforms.to(bench.device)
    network.sample(SampleRequest([prompt, prompt], seeds, Sampling(max_steps=4)), uniforms[:, :4])
    with bench.seconds_inside(network.thinker.model.language_model, network.talker.model) as inside:
        (_, audio), seconds = bench.clock(lambda: network.sample(request, uniforms))
    codes = audio.counts.float().mean().item()
    bench.say(
        f"{name} sample", ms_a_step=1e3 * seconds / (2 * steps), ms_a_word_inside=1e3 * inside[0] / steps,
        ms_a_code_inside=1e3 * inside[1] / steps, codes=codes, peak_gib=bench.peak_gib(),
    )  # fmt: skip
    _omni_passes(bench, name, network, prompt, words, slots, (5,) if bench.tiny else lengths)


def _omni_passes(
    bench: Bench, name: str, network: Any, prompt: Prompt, words: int, slots: int, lengths: tuple[int, ...]
) -> None:
    """Measure a pass of eight answers with its gradient, with and without recomputed layers."""
    rng = np.random.default_rng(1)

    def block(names: tuple[str, ...], steps: int, stop: int) -> Block:
        shape = (8, steps, len(names))
        return Block(names, rng.integers(0, stop, shape), np.ones(shape, bool), np.zeros(shape))

    network.requires_grad_(False)
    for parameter, weight in network.named_parameters():
        learns = "talker.model" in parameter or "language_model" in parameter
        weight.requires_grad_(learns and parameter.endswith("q_proj.weight"))
    audio = tuple(f"audio{number}" for number in range(slots))
    for codes in lengths:
        blocks = (block(("text",), min(codes, 150), min(words - 4, 250)), block(audio, codes, network.ids.codes))
        for recomputed in (True, False):
            network.gradient_checkpointing = recomputed
            for part in (network.thinker, network.talker):
                part.gradient_checkpointing_enable(
                    {"use_reentrant": False}
                ) if recomputed else part.gradient_checkpointing_disable()

            def backward(blocks: tuple[Block, ...] = blocks) -> None:
                sum(part.sum() for part in network([prompt], [blocks], Sampling())).backward()

            backward()
            bench.peak_gib()
            _, seconds = bench.clock(backward)
            bench.say(f"{name} pass", codes=codes, recomputed=recomputed, seconds=seconds, peak_gib=bench.peak_gib())
            network.zero_grad()


PARTS = (versions, attention, sampling, parity, learning, sound, sharded, omni, qwen3_omni, embedded, families)


def main() -> int:
    """Run the parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *(part.__name__ for part in PARTS)], help="default: all")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a processor")
    parser.add_argument("--out", type=Path, help="file to add the lines to")
    given = parser.parse_args()
    bench, failed = Bench(given.tiny, given.out), 0
    for part in PARTS:
        if given.parts and part.__name__ not in given.parts:
            continue
        try:
            part(bench)
        except Exception as error:
            failed += 1
            where = traceback.format_exc().splitlines()[-3].strip()
            bench.say(part.__name__, failed=f"{type(error).__name__}: {error}"[:400], at=where[:160])
            del error
            bench.free("sampler")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
