"""Memory of hosts, which no device has: the driver's, Ray's object store in a step, and the encoded prompts on disk.

The driver loads no weights (`grpo.py`). It holds the records of all prompts, and the contents of those that are under way.
Bytes are those of the arrays that `rollout/` sends and keeps; `tests/planning/test_host.py` holds them to real ones.
"""

from __future__ import annotations

from paras2s.planning.cost import PolicySizes

# Of a query: its record, the name of its encoded prompt and its line in the ledger of candidates (test_host.py measures them).
RECORD_BYTES = 2_000
# A process with Python, numpy, torch and Ray, and nothing of a run: it takes less (test_host.py starts one).
PROCESS_BYTES = 0.5 * 2**30
# Of a token of an answer: its id and its log-prob in 8 bytes, and whether it was sampled.
TOKEN_BYTES = 17
# Of a second of sound: float32 at 24 kHz, which every released policy speaks at.
SOUND_BYTES_PER_S = 4 * 24_000


def prompt_bytes(sizes: PolicySizes, prompt_steps: int, speech_steps: int, feature_bytes: int) -> tuple[float, float]:
    """Return the bytes of one encoded prompt: in memory, and in its file (4 bytes an id, features for speech alone)."""
    ids = prompt_steps * (1 + sizes.codebooks)
    in_memory = 8 * ids + prompt_steps + feature_bytes * sizes.continuous * prompt_steps
    on_disk = 4 * ids + prompt_steps + feature_bytes * sizes.continuous * speech_steps
    return in_memory, on_disk


def answer_bytes(sizes: PolicySizes, steps: float) -> float:
    """Return the bytes of one answer without its sound: tokens of all streams, and codes."""
    return TOKEN_BYTES * steps * (1 + sizes.codebooks) + 8 * steps * sizes.codebooks


def host_memory(
    prompts: int,
    batches: int,
    queries: int,
    group: int,
    prompt: tuple[float, float],
    answer: float,
    sound_s: float,
    weights: float,
) -> dict[str, dict[str, float]]:
    """Return bytes by host and part; `batches` are pending at once; `sound_s` is an answer's, 0 if sound is not sent.

    The object store holds everything sent to samplers and learners, once each; sound is sent to the judges alone.
    """
    in_memory, on_disk = prompt
    answers = queries * group * answer
    return {
        "driver": {
            "process": PROCESS_BYTES,
            "records of all prompts": float(RECORD_BYTES * prompts),
            "prompts under way": batches * queries * in_memory,
            "answers of a step": answers,
        },
        "object store": {
            "new weights": weights,
            "prompts": (batches + 1) * queries * in_memory,
            "answers": (batches + 1) * answers,
            "sound": batches * queries * group * SOUND_BYTES_PER_S * sound_s,
        },
        "disk": {"encoded prompts": on_disk * prompts},
    }
