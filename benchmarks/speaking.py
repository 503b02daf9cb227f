"""Counts what Kimi-Audio's detokenizer does for a second of sound: parameters, and FLOPs of its products, at released sizes.

Nothing is computed: the networks are made on torch's meta device. Every chunk's pass is counted once and taken as often as the
streaming decoder makes it. `planning/rates.yaml` holds the results, and `tests/test_speaking.py` holds it to them.

    python benchmarks/speaking.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny.detokenizer import RELEASED_FLOW, RELEASED_VOCODER

from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig
from paras2s.policy.kimi.detokenizer import Streaming, WaveStream
from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel

# The answer that the plan counts with.
ANSWER_S = 31.0
CODES_HZ = 12.5


@dataclass(frozen=True)
class Speaking:
    """Parameters of both networks, and GFLOP a second of sound of both."""

    parameters: tuple[int, int]
    gflop_per_s: tuple[float, float]


def flops_of(work: Callable[[], object]) -> int:
    """FLOPs of the products of one call."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def count_flow(flow: FlowModel, codes: int, streaming: Streaming) -> tuple[int, list[int]]:
    """FLOPs of the flow model for `codes`, and the frames of mel that each chunk gives."""
    frames_per_code, held, prefix = streaming.frames_per_code, streaming.look_ahead_codes * streaming.frames_per_code, 0
    total, gives, previewed, heads = 0, [], 0, flow.config.num_heads

    def one_pass(frames: int, past: int) -> int:
        pairs = torch.zeros(past, heads, flow.config.hidden_size // heads, device="meta")
        before = [(pairs, pairs)] * flow.config.depth if past else []
        mel, ids = torch.zeros(frames, flow.config.input_size, device="meta"), torch.zeros(frames, device="meta").long()
        return flops_of(lambda: flow(mel, ids, 0, 0, before))

    for start in range(0, codes, streaming.chunk_codes):
        frames = previewed + frames_per_code * min(streaming.chunk_codes, codes - start)
        final = start + streaming.chunk_codes >= codes
        total += (streaming.ode_points - 1) * one_pass(frames, prefix)
        gives.append(frames if final else frames - held)
        if not final:
            # Finished mel is shown once more, for its keys and values.
            total += one_pass(gives[-1], prefix)
            previewed, prefix = held, min(prefix + gives[-1], streaming.prefix_frames)
    return total, gives


def count_vocoder(vocoder: BigVGAN, gives: list[int]) -> int:
    """FLOPs of the vocoder for mel that comes in chunks of these lengths."""
    waves = WaveStream(vocoder, vocoder.config.hop_size)

    def all_chunks() -> None:
        for number, frames in enumerate(gives):
            waves.push(torch.zeros(frames, vocoder.config.num_mels, device="meta"), number + 1 == len(gives))

    return flops_of(all_chunks)


def count_speaking(answer_s: float = ANSWER_S) -> Speaking:
    """The counts of one answer at released sizes."""
    with torch.device("meta"):
        flow = FlowModel(FlowConfig.from_released(RELEASED_FLOW))
        vocoder = BigVGAN(BigVGANConfig.from_released(RELEASED_VOCODER))
    work, gives = count_flow(flow, round(answer_s * CODES_HZ), Streaming())
    flow_size, vocoder_size = (sum(one.numel() for one in model.parameters()) for model in (flow, vocoder))
    each = work / answer_s / 1e9, count_vocoder(vocoder, gives) / answer_s / 1e9
    return Speaking((flow_size, vocoder_size), each)


def main() -> None:
    for answer_s in (10.0, ANSWER_S):
        found = count_speaking(answer_s)
        print(
            f"answer of {answer_s:.0f} s: flow {found.parameters[0] / 1e9:.3f} B, {found.gflop_per_s[0]:.0f} GFLOP a second; "
            f"vocoder {found.parameters[1] / 1e9:.3f} B, {found.gflop_per_s[1]:.0f}"
        )


if __name__ == "__main__":
    main()
