"""A vLLM engine that samples for the learner, in an environment of its own.

vLLM wants an older transformers than the learner's, so the two cannot share an interpreter: Ray starts this class with
another one (`runtime_env={"py_executable": ".venv-vllm/bin/python", "env_vars": {"PYTHONPATH": repository}}`). Python's minor
version and Ray's version must be equal on both sides. Only plain values and arrays cross, and this module imports nothing
but numpy before an engine is made: torch and vLLM read their environment variables when they are imported.

`make vllm-env` makes that environment for the CPU.

Made for vLLM 0.32 on the CPU. Letters: B prompts, G answers each, T tokens of an answer.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# vLLM shares a prompt's cache in whole blocks. Its own 128 on the CPU would prefill every answer of a short prompt again;
# the CPU's kernels want a multiple of 32.
BLOCK_TOKENS = 32

# vLLM silently raises lower temperatures to this, and at 0 is greedy: neither is the policy that is trained.
LOWEST_TEMPERATURE = 0.01

# Files here are in memory (Linux).
MEMORY = Path("/dev/shm")

ENVIRONMENT = {
    # The engine in this process: weights then reach it as tensors. In a process of its own they would have to be pickled,
    # which vLLM refuses without VLLM_ALLOW_INSECURE_SERIALIZATION.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # `enforce_eager` leaves one function to torch.compile, which then wants a C++ compiler and up to 15 s.
    "TORCHDYNAMO_DISABLE": "1",
    # Waiting OpenMP threads otherwise spin, and with other workers on the cores 5,000 tokens/s become 300.
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # vLLM reports its use to its makers unless told not to.
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmWorker:
    """Samples answers with the weights it was handed last; `version` is theirs, and -1 those of the folder.

    `model_folder` holds a Hugging Face model as `save_pretrained` writes it (safetensors; no tokenizer needed), with an
    architecture that vLLM knows. On the CPU its attention heads must have 32, 64, 80, 96, 112, 128, 160, 192, 224, 256 or
    512 dimensions; others fail only when they sample. `gpu_memory_share` is the share of the device's memory (on the CPU,
    of the machine's) that the engine takes for everything: Python and torch (0.75 GB), weights, and the rest for its cache.
    Over several devices (tensor parallelism) vLLM has a process for each, which get new weights through a file in memory.
    """

    def __init__(
        self, model_folder: str, dtype: str, max_length: int, threads: int, gpu_memory_share: float, devices: int = 1
    ) -> None:
        os.environ.update(ENVIRONMENT)
        # Set by Ray to 1 for an actor; OpenMP reads it once, and on the CPU vLLM forbids torch.set_num_threads.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch
        from vllm import LLM

        self.max_length = max_length
        self.version = -1
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.shapes = checkpoint_shapes(Path(model_folder))
        self._handover = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) if devices > 1 else None
        self.llm = LLM(
            model=model_folder,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype=dtype,
            max_model_len=max_length,
            block_size=BLOCK_TOKENS,
            gpu_memory_utilization=gpu_memory_share,
            tensor_parallel_size=devices,
            # Inside a Ray actor vLLM would otherwise look for a placement group of its own.
            distributed_executor_backend="mp" if devices > 1 else None,
            # A prompt prefilled in parts kills a CPU engine that was given seeds ("CPU Generator does not use offset").
            enable_chunked_prefill=False,
            enable_prefix_caching=True,
            enable_prompt_embeds=True,
            # Raw ones, the default, are those of temperature 1.
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
        )

    def set_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Put all weights in by their names in the folder's safetensors, without a tied head and without a restart."""
        # vLLM only logs a warning about a weight it was not given, and samples on with the old one.
        given = {name: tuple(value.shape) for name, value in weights.items()}
        if given != self.shapes:
            wrong = sorted(name for name in given.keys() | self.shapes.keys() if given.get(name) != self.shapes.get(name))
            raise ValueError(f"not this model's weights: {', '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''}")
        import torch

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            for name, value in weights.items():
                # A copy: Ray's arrays are read-only, and its memory must not be kept. bfloat16 comes as the int16 of its bits.
                held = torch.from_numpy(np.array(value))
                yield name, held.view(torch.bfloat16) if held.dtype == torch.int16 else held

        # A failure half-way leaves a mixture, which is no version.
        self.version = -1
        # Not `model.load_weights`: on the CPU the weights were packed for its kernels and the originals dropped (shape [0]).
        # This unpacks, loads and packs again.
        self.llm.collective_rpc("reload_weights", kwargs=self._handed_over(tensors()))
        # Keys and values of the old weights would be taken for the new ones'.
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache was not reset: answers are still being sampled")
        self.version = version

    def _handed_over(self, tensors: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        """Return the weights as vLLM takes them: as they are in this process, by their folder in others."""
        if self._handover is None:
            return {"weights_iterator": tensors}
        from safetensors.torch import save_file

        save_file(dict(tensors), Path(self._handover.name) / "model.safetensors")
        return {"weights_path": self._handover.name}

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        temperature: float,
        max_steps: int,
        stop_ids: Sequence[int],
        seeds: Sequence[Sequence[int]],
        embeddings: Sequence[np.ndarray | None] | None = None,
    ) -> list[list[tuple[np.ndarray, np.ndarray, str]]]:
        """Return answers [B, G] as (tokens [T] int64, log-probs [T] float32 at this temperature, "eos" or "length").

        An answer that ends with one of `stop_ids` holds it, and its log-prob too. `seeds` [B, G]. Where `embeddings[b]`
        [L, H] is given it is read in place of `prompts[b]`.
        """
        if temperature < LOWEST_TEMPERATURE:
            raise ValueError(f"temperature {temperature} is below {LOWEST_TEMPERATURE}, the lowest that vLLM samples at")
        given = embeddings if embeddings is not None else [None] * len(prompts)
        requests, settings = [], []
        for prompt, embedding, row in zip(prompts, given, seeds, strict=True):
            request, length = self._request(prompt, embedding)
            if length + max_steps > self.max_length:
                # vLLM would end such answers early, as if they were done.
                raise ValueError(f"a prompt of {length} and {max_steps} steps are over the engine's {self.max_length}")
            requests += [request] * len(row)
            settings += [self._setting(temperature, max_steps, stop_ids, seed) for seed in row]
        outputs = self.llm.generate(requests, settings, use_tqdm=False)
        answers = (_answer(output.outputs[0]) for output in outputs)
        return [[next(answers) for _ in row] for row in seeds]

    def _request(self, prompt: Sequence[int], embedding: np.ndarray | None) -> tuple[dict[str, Any], int]:
        if embedding is None:
            return {"prompt_token_ids": [int(token) for token in prompt]}, len(prompt)
        import torch

        return {"prompt_embeds": torch.from_numpy(np.array(embedding, dtype=np.float32)).to(self.dtype)}, len(embedding)

    @staticmethod
    def _setting(temperature: float, max_steps: int, stop_ids: Sequence[int], seed: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            # One request an answer: with n > 1 vLLM makes the seeds itself.
            seed=seed,
            max_tokens=max_steps,
            stop_token_ids=list(stop_ids),
            # Else the terminators of the folder's generation_config.json end answers as well.
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the weights of a folder's safetensors, by name."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            shapes.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    return shapes


def _answer(completion: Any) -> tuple[np.ndarray, np.ndarray, str]:
    tokens = np.array(completion.token_ids, dtype=np.int64)
    logp = np.array(completion.logprobs.logprobs, dtype=np.float32)
    # `logprobs=0` is the sampled token's alone, one a step.
    assert list(completion.logprobs.token_ids) == list(completion.token_ids)
    return tokens, logp, "eos" if completion.finish_reason == "stop" else "length"
