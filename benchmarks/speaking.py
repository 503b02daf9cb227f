"""Counts what Kimi-Audio's detokenizer does for a second of sound: parameters, and FLOPs of its products, at released sizes.

Nothing is computed: the networks are made on torch's meta device. Every chunk's pass is counted once and taken as often as the
streaming decoder makes it. `planning/rates.yaml` holds the results, and `tests/test_speaking.py` holds it to them.

--batch speaks 16 answers of 1.6 to 3.5 s by small random networks of the same architecture (0.8 M and 1.0 M parameters), so
many together, and counts operations and seconds an answer.

    python benchmarks/speaking.py [--batch 1 4 16]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from operations import OperationCount
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny.detokenizer import RELEASED_DIT, RELEASED_FLOW, RELEASED_VOCODER

from paras2s.policy.kimi import detokenizer
from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig
from paras2s.policy.kimi.detokenizer import ANSWERS_AT_ONCE, KimiDetokenizer, Streaming, WaveStreams
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
    waves = WaveStreams(vocoder, vocoder.config.hop_size)

    def all_chunks() -> None:
        for number, frames in enumerate(gives):
            waves.push([torch.zeros(frames, vocoder.config.num_mels, device="meta")], [number + 1 == len(gives)])

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


def prefix_gib(answers: int = ANSWERS_AT_ONCE) -> float:
    """GiB of the flow model's keys and values of so many answers, in half precision, at released sizes."""
    return answers * Streaming().prefix_frames * 2 * RELEASED_DIT["hidden_size"] * RELEASED_DIT["depth"] * 2 / 2**30


def small_detokenizer() -> KimiDetokenizer:
    """A random one of the released architecture, small enough for a processor."""
    torch.manual_seed(0)
    sizes = {**RELEASED_DIT, "hidden_size": 96, "depth": 4, "num_heads": 6, "semantic_vocab_size": 512}
    flow = FlowModel(FlowConfig.from_released({**RELEASED_FLOW, "model": {"dit": sizes}}))
    vocoder = BigVGAN(BigVGANConfig.from_released({**RELEASED_VOCODER, "upsample_initial_channel": 128}))
    return KimiDetokenizer(flow, vocoder)


def time_batches(batches: list[int], repeats: int = 2) -> None:
    """Prints operations and median seconds an answer for each size of batch, in turns."""
    speaker, rng = small_detokenizer(), np.random.default_rng(0)
    rows = [rng.integers(0, 512, count) for count in np.linspace(20, 44, 16).round().astype(int)]
    seconds: dict[int, list[float]] = {batch: [] for batch in batches}
    operations = {}
    for turn in range(repeats + 1):
        for batch in batches:
            detokenizer.ANSWERS_AT_ONCE = batch
            started = time.perf_counter()
            if turn:
                speaker.decode_all(rows, range(len(rows)))
                seconds[batch].append((time.perf_counter() - started) / len(rows))
            else:
                with OperationCount() as counted:
                    speaker.decode_all(rows, range(len(rows)))
                operations[batch] = counted.count / len(rows)
    for batch in batches:
        took = statistics.median(seconds[batch])
        print(f"{batch:3d} together: {operations[batch]:,.0f} operations an answer, {took:.3f} s an answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[], help="answers together: measure these instead of counting")
    options = parser.parse_args()
    if options.batch:
        torch.set_num_threads(1)
        time_batches(options.batch)
        return
    for answer_s in (10.0, ANSWER_S):
        found = count_speaking(answer_s)
        print(
            f"answer of {answer_s:.0f} s: flow {found.parameters[0] / 1e9:.3f} B, {found.gflop_per_s[0]:.0f} GFLOP a second; "
            f"vocoder {found.parameters[1] / 1e9:.3f} B, {found.gflop_per_s[1]:.0f}"
        )
    print(f"keys and values of {ANSWERS_AT_ONCE} answers at once: {prefix_gib():.2f} GiB")


if __name__ == "__main__":
    main()
