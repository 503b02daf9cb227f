"""Bytes of the driver, the object store and the disk: by hand, and against real arrays, files and records.

Not covered: what Ray itself keeps beside the objects.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny.plans import TINY, kimi_plan

from paras2s.planning.host import PROCESS_BYTES, RECORD_BYTES, SOUND_BYTES_PER_S, answer_bytes, host_memory, prompt_bytes
from paras2s.policy.types import Prompt
from paras2s.rollout.prompts import read_prompt, write_prompt
from paras2s.types import Block, Candidate, Query

# Kimi-Audio's inputs and streams.
KIMI = replace(TINY, continuous=5120, codebooks=1)


def held(prompt: Prompt) -> int:
    assert prompt.features is not None
    return prompt.audio_ids.nbytes + prompt.text_ids.nbytes + prompt.features.nbytes + prompt.continuous.nbytes


def test_a_prompts_bytes_are_those_of_its_arrays_and_its_file(tmp_path: Path) -> None:
    """68 steps, 62 of speech, one codebook; the file has a header for each of its arrays."""
    speech = np.zeros(68, dtype=bool)
    speech[2:64] = True
    features = np.ones((68, 5120), dtype=np.float32) * speech[:, None]
    write_prompt(tmp_path / "a.npz", Prompt(np.zeros((68, 1), np.int64), np.zeros(68, np.int64), features, speech), half=True)
    in_memory, on_disk = prompt_bytes(KIMI, 68, 62, 2)
    assert in_memory == 8 * 2 * 68 + 68 + 2 * 5120 * 68 == held(read_prompt(tmp_path / "a.npz"))
    assert on_disk == 4 * 2 * 68 + 68 + 2 * 5120 * 62
    assert on_disk == pytest.approx((tmp_path / "a.npz").stat().st_size, rel=0.01)


def test_an_answers_bytes_are_those_of_its_block_and_codes() -> None:
    shape = (1, 394, 2)
    block = Block(("text", "audio0"), np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape))
    codes = np.zeros((394, 1), np.int64)
    real = block.tokens.nbytes + block.sampled.nbytes + block.behaviour_logp.nbytes + codes.nbytes
    assert answer_bytes(KIMI, 394) == real


def test_a_querys_records_take_no_more_than_is_planned() -> None:
    def record(number: int) -> tuple[Query, Candidate, str]:
        name, words = f"contrast-{number:06d}-sad", f"I have been waiting {number} days for an answer to my letter now"
        clip, voice = f"queries/{name}.wav", f"speaker-{number:06d}"
        query = Query(name, name[:-4], "emotion", f"topic {number}", "rl", voice, clip, 5.0, words, None, None)
        line = Candidate(name + "-0", name[:-4], "emotion", f"topic {number}", "rl", "sad", voice, words + ".", words, 0.0, 1.0,
                         None, None)  # fmt: skip
        return query, line, f"{number % 256:02x}/{number:064x}.npz"

    tracemalloc.start()
    records = [record(number) for number in range(2000)]
    taken = tracemalloc.get_traced_memory()[0] / len(records)
    tracemalloc.stop()
    assert 0.4 * RECORD_BYTES < taken < RECORD_BYTES


def test_hosts_by_hand() -> None:
    """10 prompts, 2 batches of 3 queries x 4 answers under way; a prompt of 100 bytes (60 on disk), answers of 7 and 2 s."""
    found = host_memory(10, 2, 3, 4, (100.0, 60.0), 7.0, 2.0, 1000.0)
    driver = found["driver"]
    assert (driver["records of all prompts"], driver["prompts under way"], driver["answers of a step"]) == (20_000, 600, 84)
    sound = 2 * 12 * 2 * SOUND_BYTES_PER_S
    assert found["object store"] == {"new weights": 1000, "prompts": 900, "answers": 252, "sound": sound}
    assert found["disk"] == {"encoded prompts": 600}


def test_the_papers_run_needs_a_driver_of_a_few_hundred_megabytes() -> None:
    """For 100,000 prompts; 139 GB of them as float32 used to stand in the driver, beside the policy."""
    few, many = (kimi_plan(prompts=count).hosts for count in (1_000, 100_000))
    assert many["driver"]["records of all prompts"] - few["driver"]["records of all prompts"] == 99_000 * RECORD_BYTES
    assert sum(many["driver"].values()) < 2**30
    assert {part for part in many["driver"] if many["driver"][part] != few["driver"][part]} == {"records of all prompts"}
    # 31 s of answer, the delay of 6 steps and the end.
    assert many["object store"]["sound"] == pytest.approx(256 * (31 + 7 / 12.5) * 96_000)
    assert many["object store"] == few["object store"]


def test_a_drivers_process_takes_no_more_than_is_planned() -> None:
    # Not getrusage's: a new process is given the peak of the one that started it, here pytest with torch and models.
    code = "import ray, paras2s.grpo; print(*[l for l in open('/proc/self/status') if l.startswith('VmHWM')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    used = int(found.split()[1]) * 1024
    assert PROCESS_BYTES / 3 < used <= PROCESS_BYTES
