"""The device, sizes and clocks of `gpu_check.py`, and Kimi-Audio with random weights."""

from __future__ import annotations

import gc
import json
import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.configs.schema.base import preset_path, read_values
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.kimi.policy import KimiPolicy, stream_config
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.rollout.engine import answer_seeds
from paras2s.utils.device import found_device

GIB = 2**30
QUERIES, GROUP, PROMPT = 4, 8, 68


class Bench:
    """The device, the sizes, and where lines go; `kept` has what later parts use again."""

    def __init__(self, tiny: bool, out: Path | None) -> None:
        self.tiny, self.out, self.kept = tiny, out, dict[str, Any]()
        self.device = torch.device(found_device("cpu" if tiny else "cuda"))
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.steps, self.short = (10, 10) if tiny else (395, 128)
        self.released = dict(read_values(preset_path("kimi", "released")))

    def say(self, part: str, **values: Any) -> None:
        """Print a line, and add it to the file."""
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
        line = json.dumps({"part": part} | rounded)
        print(line, flush=True)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(line + "\n")

    def clock(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """Return what the work gives, and its seconds on the device."""
        self._wait()
        started = time.perf_counter()
        result = work()
        self._wait()
        return result, time.perf_counter() - started

    def _wait(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize()

    def peak_gib(self) -> float:
        """Return the most memory since the last call."""
        if self.tiny:
            return 0.0
        peak = torch.cuda.max_memory_allocated() / GIB
        torch.cuda.reset_peak_memory_stats()
        return peak

    def used_gib(self) -> float:
        """Return the device's memory in use, recorded graphs and context included."""
        if self.tiny:
            return 0.0
        free, total = torch.cuda.mem_get_info()
        return (total - free) / GIB

    def free(self, *names: str) -> None:
        """Let go of kept things and give their memory back."""
        for name in names:
            self.kept.pop(name, None)
        gc.collect()
        if not self.tiny:
            torch.cuda.empty_cache()

    @contextmanager
    def seconds_inside(self, *modules: torch.nn.Module) -> Iterator[list[float]]:
        """Add up the seconds inside each module, into the list that is given; on the device, without a wait."""
        totals, spans = [0.0] * len(modules), list[tuple[int, Any, Any]]()

        def now() -> Any:
            if self.tiny:
                return time.perf_counter()
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event

        def started(number: int, *_: Any) -> None:
            spans.append((number, now(), None))

        def ended(number: int, *_: Any) -> None:
            spans[-1] = (number, spans[-1][1], now())

        hooks = [module.register_forward_pre_hook(partial(started, number)) for number, module in enumerate(modules)]
        hooks += [module.register_forward_hook(partial(ended, number)) for number, module in enumerate(modules)]
        try:
            yield totals
            self._wait()
            for number, begin, end in spans:
                totals[number] += end - begin if self.tiny else begin.elapsed_time(end) / 1e3
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def counted_waits(self) -> Iterator[list[Any]]:
        """Count the times that the host waits for the device; on a processor there are none."""
        if self.tiny:
            yield []
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield caught
            finally:
                torch.cuda.set_sync_debug_mode("default")

    def kimi(self, seed: int = 0, bias: float = 0.0) -> KimiPolicy:
        """Make Kimi-Audio with random weights; `bias` adds a constant part to scores, as Qwen2's biases do."""
        config, ids = dict(self.released["config"]), dict(self.released["special_ids"])
        if self.tiny:
            config |= {
                "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "kimia_mimo_layers": 1,
                "kimia_mimo_transformer_from_layer_index": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                "kimia_adaptor_input_dim": 16, "vocab_size": 700, "kimia_token_offset": 600, "pad_token_id": 599,
            }  # fmt: skip
            ids = {name: 580 + number for number, name in enumerate(ids)}
        text_only = ids.pop("text_only_id")
        with torch.device("meta"):
            model = DualStreamLM(stream_config(config, ids, "released"))
        model = model.to(self.dtype).to_empty(device=self.device)
        noise = torch.Generator(device=self.device).manual_seed(seed)
        half = model.dual_config.hidden_size // model.dual_config.num_heads // 2
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.data.normal_(0, 0.6 / weight.shape[-1] ** 0.5, generator=noise)
            else:
                weight.data.fill_(1.0 if name.endswith(("norm.weight", "layers.4.weight")) else 0.0)
            if bias and name.endswith(("q_proj.bias", "k_proj.bias")):
                # The slowest channels of the rotation, which turn little.
                heads = weight.data.view(-1, 2 * half)
                heads[:, half - 4 : half] = heads[:, -4:] = bias
        model.model.embed_tokens.weight.data.normal_(0, 0.7, generator=noise)
        words: Any = types.SimpleNamespace(decode=lambda _: "", encode=lambda _: [])
        return KimiPolicy(model, words, text_only, 8192, Path("/nowhere"))

    def prompts(self, policy: KimiPolicy) -> list[Prompt]:
        """Make spoken questions of 5 s, of nearly one length."""
        rng, config, made = np.random.default_rng(0), policy.config, []
        for number in range(QUERIES):
            length = (16 if self.tiny else PROMPT) - number % 3
            audio, text = np.full((length, 1), config.blank_id), np.full(length, config.blank_id)
            speech = np.zeros(length, dtype=bool)
            speech[2 : length - 4] = True
            count = int(speech.sum())
            audio[speech] = rng.integers(config.text_vocab, config.vocab_size, (count, 1))
            features = np.zeros((length, config.continuous_dim), np.float16)
            features[speech] = rng.standard_normal((count, config.continuous_dim))
            made.append(Prompt(audio, text, features, speech, code_offsets=config.codebook_offsets))
        return made

    def request(self, policy: KimiPolicy, steps: int, step: int = 0) -> SampleRequest:
        """Ask for G answers to each question."""
        return SampleRequest(self.prompts(policy), answer_seeds(0, step, range(QUERIES), GROUP), Sampling(max_steps=steps))
