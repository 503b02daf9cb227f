"""Whether vLLM's answers are the model's: log-probs, seeds, weights put in without a restart, endings.

The engine runs as the learner would use it: a Ray actor in the interpreter of .venv-vllm (paras2s/rollout/vllm_worker.py
says how to make that). Not covered: GPUs, and models other than a tiny random Qwen2 and GLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

import paras2s
from paras2s.rollout.engine import answer_seeds
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.vllm_worker import BLOCK_TOKENS, VllmWorker

REPOSITORY = Path(paras2s.__file__).parents[1]
OTHER_PYTHON = REPOSITORY / ".venv-vllm" / "bin" / "python"
VOCAB, HIDDEN, MAX_LENGTH, STEPS, GROUP = 300, 128, 256, 24, 8
STOP_IDS = list(range(5, 45))
SECONDS = 80

pytestmark = pytest.mark.skipif(
    not OTHER_PYTHON.exists(), reason="no .venv-vllm beside the package: vLLM has its own environment"
)

Answers = list[list[tuple[np.ndarray, np.ndarray, str]]]


def tiny(family: str, seed: int) -> Any:
    """A random model. Its head dimension is 32: vLLM's CPU attention has nothing smaller."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 128,
        "vocab_size": VOCAB,
        "max_position_embeddings": MAX_LENGTH,
        "initializer_range": 0.1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    config, model = {
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "glm": (transformers.GlmConfig, transformers.GlmForCausalLM),
    }[family]
    return model(config(**sizes, eos_token_id=200)).float().eval()


def arrays(model: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in model.state_dict().items()}


def worst_gap(model: Any, prompts: list[list[int]], answers: Answers, temperature: float) -> float:
    """The largest distance of a log-prob from the model's own."""
    gaps = []
    for prompt, group in zip(prompts, answers, strict=True):
        for tokens, logp, _ in group:
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
            own = torch.log_softmax(logits / temperature, -1)[torch.arange(len(tokens)), torch.from_numpy(tokens.copy())]
            gaps.append(float((own - torch.from_numpy(logp.copy())).abs().max()))
    return max(gaps)


class Remote:
    """A worker in the other interpreter."""

    def __init__(self, folder: Path) -> None:
        environment = {"py_executable": str(OTHER_PYTHON), "env_vars": {"PYTHONPATH": str(REPOSITORY)}}
        actor = ray.remote(VllmWorker).options(runtime_env=environment)
        # Python and torch take 0.75 GB of it.
        share = 1.5e9 / machine_memory()
        self.actor = actor.remote(str(folder), "float32", MAX_LENGTH, 2, share)

    def __getattr__(self, method: str) -> Any:
        return lambda *args, **kwargs: ray.get(getattr(self.actor, method).remote(*args, **kwargs), timeout=SECONDS)

    def ask(self, question: Any) -> Any:
        """What the worker answers about itself."""
        return ray.get(self.actor.__ray_call__.remote(question), timeout=SECONDS)


def machine_memory() -> float:
    """The machine's memory in bytes."""
    kilobytes = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return 1024 * float(kilobytes.split()[1])


@pytest.fixture(scope="module")
def first() -> Any:
    return tiny("qwen2", 0)


@pytest.fixture(scope="module")
def worker(first: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("qwen2")
    first.save_pretrained(folder)
    # A terminator that the worker was not told of must end nothing.
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 200
    start_ray(None)
    remote = Remote(folder)
    yield remote
    ray.kill(remote.actor)


@pytest.fixture(autouse=True)
def first_weights(worker: Remote, first: Any) -> None:
    worker.set_weights(arrays(first), 0)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of one block less than, more than and exactly several blocks of the prefix cache."""
    rng = np.random.default_rng(1)
    return [rng.integers(5, VOCAB, length).tolist() for length in (7, 3 * BLOCK_TOKENS + 5, 2 * BLOCK_TOKENS, 100)]


def seeds_of(prompts: list[list[int]], step: int = 0) -> list[list[int]]:
    return answer_seeds(0, step, range(len(prompts)), GROUP)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_models(worker: Remote, first: Any, prompts: list[list[int]], temperature: float) -> None:
    answers = worker.sample(prompts, temperature, STEPS, [], seeds_of(prompts))
    assert worst_gap(first, prompts, answers, temperature) < 1e-4
    assert [len(group) for group in answers] == [GROUP] * len(prompts)


def test_answers_have_their_types_and_differ_within_a_group(worker: Remote, prompts: list[list[int]]) -> None:
    for group in worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts)):
        assert len({tuple(tokens.tolist()) for tokens, _, _ in group}) == GROUP
        assert all(tokens.dtype == np.int64 and logp.dtype == np.float32 for tokens, logp, _ in group)


def test_tokens_depend_on_the_seed_alone(worker: Remote, prompts: list[list[int]]) -> None:
    seeds = seeds_of(prompts)
    first, again = (worker.sample(prompts, 1.0, STEPS, [], seeds) for _ in range(2))
    alone = worker.sample(prompts[1:2], 1.0, STEPS, [], [seeds[1][3:4]])
    other = worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts, step=1))
    assert tokens_of(first) == tokens_of(again)
    assert tokens_of(alone)[0][0] == tokens_of(first)[1][3]
    assert tokens_of(first) != tokens_of(other)


def tokens_of(answers: Answers) -> list[list[list[int]]]:
    return [[tokens.tolist() for tokens, _, _ in group] for group in answers]


def test_an_answer_ends_with_its_stop_token_which_counts(worker: Remote, first: Any, prompts: list[list[int]]) -> None:
    answers = worker.sample(prompts, 1.0, STEPS, STOP_IDS, seeds_of(prompts))
    stopped = [tokens for group in answers for tokens, _, finish in group if finish == "eos"]
    assert len(stopped) > GROUP
    assert all(tokens[-1] in STOP_IDS and not np.isin(tokens[:-1], STOP_IDS).any() for tokens in stopped)
    assert all(len(tokens) == len(logp) for group in answers for tokens, logp, _ in group)
    assert worst_gap(first, prompts, answers, 1.0) < 1e-4


def test_without_stop_tokens_the_limit_ends_answers(worker: Remote, prompts: list[list[int]]) -> None:
    answers = worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts))
    assert {(len(tokens), finish) for group in answers for tokens, _, finish in group} == {(STEPS, "length")}
    # The folder's own terminator came up and ended nothing.
    assert any(200 in tokens[:-1] for group in answers for tokens, _, _ in group)


def test_new_weights_are_those_sampled_with_and_the_cache_forgets_the_old(
    worker: Remote, first: Any, prompts: list[list[int]]
) -> None:
    second = tiny("qwen2", 1)
    process = worker.ask(lambda self: __import__("os").getpid())
    before = worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts))
    worker.set_weights(arrays(second), 1)
    after = worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts))
    assert worst_gap(first, prompts, before, 1.0) < 1e-4
    assert worst_gap(second, prompts, after, 1.0) < 1e-4
    assert worst_gap(first, prompts, after, 1.0) > 0.1
    assert worker.ask(lambda self: (self.version, __import__("os").getpid())) == (1, process)


def test_without_the_reset_old_keys_and_values_would_be_used(worker: Remote, prompts: list[list[int]]) -> None:
    # That the test above can fail: these prompts are cached, and a cache that is kept falsifies.
    second = tiny("qwen2", 1)
    worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts))
    worker.ask(lambda self: setattr(self.llm, "reset_prefix_cache", lambda: True))
    try:
        worker.set_weights(arrays(second), 1)
        assert worst_gap(second, prompts, worker.sample(prompts, 1.0, STEPS, [], seeds_of(prompts)), 1.0) > 1e-3
    finally:
        worker.ask(lambda self: delattr(self.llm, "reset_prefix_cache"))


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_weights_of_another_model_are_refused(worker: Remote, first: Any, change: str) -> None:
    weights = arrays(first)
    if change == "missing":
        del weights["model.norm.weight"]
    elif change == "unknown":
        weights["model.norm.bias"] = np.zeros(HIDDEN, dtype=np.float32)
    else:
        weights["model.norm.weight"] = np.zeros(HIDDEN + 1, dtype=np.float32)
    with pytest.raises(ValueError, match=r"model\.norm"):
        worker.set_weights(weights, 1)
    assert worker.ask(lambda self: self.version) == 0


def test_embeddings_stand_in_for_token_ids(worker: Remote, first: Any, prompts: list[list[int]]) -> None:
    table = arrays(first)["model.embed_tokens.weight"]
    seeds = seeds_of(prompts)
    by_ids = worker.sample(prompts, 0.7, STEPS, [], seeds)
    embeddings = [table[prompt] if b % 2 else None for b, prompt in enumerate(prompts)]
    mixed = worker.sample([[] if b % 2 else p for b, p in enumerate(prompts)], 0.7, STEPS, [], seeds, embeddings)
    assert tokens_of(mixed) == tokens_of(by_ids)
    assert worst_gap(first, prompts, mixed, 0.7) < 1e-4
    moved = [None if e is None else e + 0.05 for e in embeddings]
    assert tokens_of(worker.sample(prompts, 0.7, STEPS, [], seeds, moved)) != tokens_of(by_ids)


def test_more_prompts_than_one_prefill_takes(worker: Remote, first: Any) -> None:
    # 8,000 tokens: vLLM takes 4,096 at once and would split a prompt there, which seeds do not survive on the CPU.
    prompts = np.random.default_rng(2).integers(5, VOCAB, (40, 200)).tolist()
    answers = worker.sample(prompts, 1.0, 4, [], [[b] for b in range(40)])
    assert worst_gap(first, prompts, answers, 1.0) < 1e-4


def test_what_vllm_would_bend_is_refused(worker: Remote, prompts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="temperature"):
        worker.sample(prompts, 0.0, STEPS, [], seeds_of(prompts))
    with pytest.raises(ValueError, match="over the engine's"):
        worker.sample(prompts, 1.0, MAX_LENGTH, [], seeds_of(prompts))


def test_the_worker_has_the_threads_requested(worker: Remote) -> None:
    assert worker.ask(lambda self: __import__("torch").get_num_threads()) == 2


def test_a_glm_runs_too(prompts: list[list[int]], tmp_path: Path) -> None:
    # No GLM of vLLM's own: it runs transformers' code, partly rotated, interleaved positions included.
    first, second = tiny("glm", 0), tiny("glm", 1)
    first.save_pretrained(tmp_path)
    remote = Remote(tmp_path)
    try:
        for version, model in enumerate((first, second)):
            if version:
                remote.set_weights(arrays(model), version)
            answers = remote.sample(prompts, 0.7, STEPS, STOP_IDS, seeds_of(prompts))
            assert worst_gap(model, prompts, answers, 0.7) < 1e-4
    finally:
        ray.kill(remote.actor)
