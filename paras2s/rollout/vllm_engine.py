"""Rollouts from a vLLM engine, for single-stream policies: prompts and answers are encoded and decoded here, sampled there.

The engine is an actor in another interpreter (see `vllm_worker.py`), started by the rollout worker on its own machine.
Weights go to it as arrays, without a restart; adapters are folded in on the way.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from paras2s.configs.schema.align import SamplingConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.base import CausalDecoder, Policy
from paras2s.policy.types import Generation, SampleRequest, SamplingEvent
from paras2s.policy.weights import fill, to_arrays
from paras2s.rollout.engine import check_lengths, decoded, spoken
from paras2s.rollout.vllm_worker import VllmWorker
from paras2s.types import AUDIO, TEXT, Block, Rollout

REPOSITORY = Path(__file__).resolve().parents[2]
# Of a GPU's memory, or of the machine's on the CPU; see VllmWorker.
MEMORY_SHARE = {"cuda": 0.85, "cpu": 0.12}
Answer = tuple[np.ndarray, np.ndarray, str]


def engine_python(config: SamplingConfig) -> Path:
    """Return the path of vLLM's own interpreter. Raises ConfigError: there is none."""
    beside = REPOSITORY / ".venv-vllm" / "bin" / "python"
    # Not resolved: an environment's interpreter is a link, and is its environment's only under its own name.
    python = (config.engine_python or beside).absolute()
    if not python.exists():
        raise ConfigError(
            f"align.sampling.engine: no vLLM at {python}; run `make vllm-env`, or set align.sampling.engine_python"
        )
    return python


def as_block(decoder: CausalDecoder, slot: str, answers: Sequence[Answer]) -> Block:
    """Return G answers of different length as one block; every token is sampled, the end too."""
    steps = max(len(tokens) for tokens, _, _ in answers)
    tokens = np.full((len(answers), steps, 1), decoder.pad_id, dtype=np.int64)
    sampled, logp = np.zeros(tokens.shape, dtype=bool), np.zeros(tokens.shape)
    for row, (ids, values, _) in enumerate(answers):
        tokens[row, : len(ids), 0], sampled[row, : len(ids)], logp[row, : len(ids), 0] = ids, True, values
    labels = np.where(tokens >= decoder.first_audio, AUDIO, TEXT)
    return Block((slot,), tokens, sampled, logp, labels)


class VllmEngine:
    """Samples a single-stream policy with vLLM. `version` is -1 until weights come."""

    def __init__(self, policy: Policy, config: SamplingConfig, max_steps: int, threads: int) -> None:
        decoder = policy.causal_decoder()
        if decoder is None:
            raise PolicyError(
                "align.sampling.engine: vllm samples single-stream policies (GLM-4-Voice, Step-Audio 2), and "
                f"{type(policy).__name__} is none; set align.sampling.engine to native"
            )
        self.policy, self.decoder, self.version = policy, decoder, -1
        self._python, self._threads, self._devices = engine_python(config), threads, config.tensor_parallel
        self._folder = tempfile.TemporaryDirectory(prefix="paras2s-vllm-")
        decoder.export_hf(Path(self._folder.name))
        self._weights: dict[str, np.ndarray] | None = None
        self._worker = self._start()

    def _start(self) -> Any:
        """Start the engine on this machine and this worker's own GPUs, if it has any."""
        on_gpu = torch.cuda.is_available()
        # A test or a user may be in another folder than the package's.
        variables = {"PYTHONPATH": str(REPOSITORY)}
        if on_gpu:
            variables["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            # It reserves none, and works on this worker's.
            variables["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        options = {
            "num_cpus": 0,
            "scheduling_strategy": strategy,
            "runtime_env": {"py_executable": str(self._python), "env_vars": variables},
        }
        dtype = str(self.decoder.dtype).removeprefix("torch.")
        context = self.policy.spec.context_steps or 8192
        share = MEMORY_SHARE["cuda" if on_gpu else "cpu"]
        made = ray.remote(VllmWorker).options(**options)
        if self.decoder.head_dim < 32 and not on_gpu:
            raise PolicyError("vLLM's CPU build wants attention heads of 32 dimensions or more")
        return made.remote(self._folder.name, dtype, context, self._threads, share, self._devices)

    def set_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Fill the policy in this process, and from it the engine."""
        fill(self.policy.trainable(), weights, "the learner's weights")
        self._weights = to_arrays(dict(self.decoder.hf_tensors()))
        self.version = version
        ray.get(self._worker.set_weights.remote(self._weights, version))

    def generate(self, query_ids: Sequence[str], request: SampleRequest, with_waves: bool = True) -> list[Rollout]:
        """Sample one rollout a query; a dead engine is started again, once. Raises PolicyError: vLLM has no such sampling."""
        prompts, sampling = request.prompts, request.sampling
        if sampling.truncated or sampling.text_temperature != sampling.audio_temperature:
            raise PolicyError(
                "vLLM samples both streams at one temperature, without top-k; set align.sampling.engine to native"
            )
        check_lengths(query_ids, prompts, sampling.max_steps, self.policy.spec.context_steps)
        arguments = (
            [prompt.text_ids.tolist() for prompt in prompts],
            sampling.text_temperature,
            sampling.max_steps,
            list(self.decoder.stop_ids),
            [list(row) for row in request.seeds],
            [self.decoder.embed_prompt(prompt) for prompt in prompts],
        )
        try:
            sampled = ray.get(self._worker.sample.remote(*arguments))
        except ray.exceptions.RayActorError as error:
            print(f"vLLM's engine died and is started again: {error}", file=sys.stderr)
            self._worker = self._start()
            if self._weights is not None:
                ray.get(self._worker.set_weights.remote(self._weights, self.version))
            sampled = ray.get(self._worker.sample.remote(*arguments))
        generations = [
            Generation(
                (as_block(self.decoder, self.policy.spec.slots[0].name, answers),),
                tuple(finish for _, _, finish in answers),
                tuple(row),
            )
            for answers, row in zip(sampled, request.seeds, strict=True)
        ]
        both = zip(query_ids, generations, strict=True)
        rollouts = [decoded(self.policy, query_id, self.version, generation) for query_id, generation in both]
        return spoken(self.policy, rollouts) if with_waves else rollouts

    def generate_in_parts(
        self, query_ids: Sequence[str], request: SampleRequest, report_every: int | None
    ) -> Generator[SamplingEvent, None, list[Rollout]]:
        """Sample rollouts without sound; the other process reports nothing before its answers."""
        yield from ()
        return self.generate(query_ids, request, with_waves=False)
