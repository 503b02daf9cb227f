"""Which answers are spoken together and by whom: tables by hand, and the batches of a share that is still sampled.

Not covered: Ray's workers (tests/integration/test_speak_workers.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny.job import Noise
from tiny.kimi import write_kimi

from paras2s.policy.dual_stream.sampler import sample, sample_in_parts
from paras2s.policy.kimi import detokenizer
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.registry import load_policy, load_speaker
from paras2s.policy.speaking import batches_by_length, complete_batches, report_every
from paras2s.policy.types import AnswersSoFar, PromptsRead, SampleRequest, Sampling, Turn
from paras2s.rollout.ended_answers import EndedAnswers, EndedBatches, waves_of
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.rollout.spoken_share import BATCHES_AT_ONCE, least_busy
from paras2s.rollout.timeline import SpanRecorder
from paras2s.types import Block, Rollout


@pytest.mark.parametrize(
    ("lengths", "at_once", "batches"),
    [
        ([], 2, []),
        ([0, 0], 2, []),
        # Equal lengths in order, the empty one left out.
        ([3, 5, 0, 5, 1], 2, [(1, 3), (0, 4)]),
        ([3, 5, 4], 2, [(1, 2), (0,)]),
        ([3, 5, 4], 1, [(1,), (2,), (0,)]),
    ],
)
def test_answers_of_like_length_are_spoken_together(lengths: list[int], at_once: int, batches: list[Any]) -> None:
    assert batches_by_length(lengths, at_once) == batches


@pytest.mark.parametrize(
    ("lengths", "ended", "at_once", "certain"),
    [
        # Two of five have ended below the others: which pair is last depends on how many there are, an odd one among five.
        ([2, 3, 4, 4, 4], "11000", 2, [(0,)]),
        ([2, 3, 4, 4, 4, 4], "110000", 2, [(1, 0)]),
        ([2, 3, 3, 4, 4], "11100", 2, [(0,), (1, 2)]),
        # As long as one that goes on: it may end there, and would come before.
        ([2, 3, 3, 3], "1110", 2, []),
        ([2, 3, 4, 3], "1110", 2, []),
        # One that goes on has no code yet, and may end without any.
        ([2, 3, 0, 0], "1101", 2, []),
        # Those that ended without a code are in no batch.
        ([0, 3, 4, 4], "1100", 2, [(1,)]),
        ([4, 3, 0, 2], "1111", 2, [(3,), (0, 1)]),
        # One by one there is nothing to wait for.
        ([9, 3, 0, 2], "1000", 1, [(0,)]),
    ],
)
def test_a_batch_is_certain_once_no_other_answer_can_come_into_it(
    lengths: list[int], ended: str, at_once: int, certain: list[Any]
) -> None:
    assert complete_batches(lengths, [one == "1" for one in ended], at_once) == certain


@pytest.mark.parametrize(("answers", "at_once", "every"), [(8, 1, 1), (32, 16, 4), (256, 16, 8), (1024, 1, 32)])
def test_a_sampler_reports_often_and_not_too_often(answers: int, at_once: int, every: int) -> None:
    assert report_every(answers, at_once) == every


def test_batches_of_answers_that_end_in_any_order_are_those_of_all_of_them() -> None:
    """Every order of growth of small shares: each certain batch is one of the last, and in the end all are there."""
    for final in itertools.product((0, 1, 2, 3), repeat=4):
        for at_once in (1, 2, 3):
            expected, seen = batches_by_length(final, at_once), set[tuple[int, ...]]()
            for step in range(5):
                lengths = [min(length, step) for length in final]
                certain = complete_batches(lengths, [length < step for length in final], at_once)
                assert seen <= set(certain) <= set(expected)
                seen |= set(certain)
            assert seen == set(expected)


@pytest.mark.parametrize(
    ("batches", "chosen"),
    [([], None), ([0], 0), ([1, 0], 1), ([1, 1], 0), ([2, 1, 0], 2), ([BATCHES_AT_ONCE] * 3, None)],
)
def test_a_batch_goes_to_the_least_busy_worker_or_waits(batches: list[int], chosen: int | None) -> None:
    assert least_busy(batches) == chosen


def rollout(*lengths: int) -> Rollout:
    codes = tuple(np.arange(length)[:, None] for length in lengths)
    return Rollout("q", 0, (), ("eos",) * len(codes), (7,) * len(codes), ("",) * len(codes), codes, (), 8000, "x")


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> KimiPolicy:
    policy = load_policy(write_kimi(tmp_path_factory.mktemp("kimi"), dtype=torch.float32), device="cpu")
    assert isinstance(policy, KimiPolicy)
    return policy


def test_answers_that_end_early_are_given_early_and_sound_as_if_all_were_spoken_together(
    kimi: KimiPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts and sound to the last bit, of 33 answers in batches of two."""
    monkeypatch.setattr(detokenizer, "ANSWERS_AT_ONCE", 2)
    monkeypatch.setattr(KimiPolicy, "spoken_at_once", 2)
    engine = NativeEngine(kimi)
    prompts = [kimi.encode_prompt([Turn("user", "", Noise().clip(name))]) for name in "012"]
    request = ["a", "b", "c"], SampleRequest(prompts, answer_seeds(0, 0, range(3), 11), Sampling(1.0, 1.0, 120))
    expected = engine.generate(*request)
    assert 4 < sum(reason == "eos" for one in expected for reason in one.finish_reason) < 17
    recorder, found = SpanRecorder("rollout"), list[EndedAnswers]()
    last_report = [0]

    def counted(reports: Generator[AnswersSoFar, None, list[Rollout]]) -> Generator[AnswersSoFar, None, list[Rollout]]:
        done = yield from reports
        last_report[0] = len(found)
        return done

    seeds = [seed for one in expected for seed in one.seeds]
    events = counted(recorder.sampling(engine.generate_in_parts(*request, report_every(33, kimi.spoken_at_once))))
    rollouts = yield_into(found, EndedBatches(kimi, seeds).as_they_end(events))
    with_sound = sum(len(wave) > 0 for one in expected for wave in one.waves)
    assert 0 < last_report[0] < len(found) == -(-with_sound // 2)
    assert {one.work for one in recorder.take()} == {"prefill", "decode"}
    speaker = load_speaker(kimi.folder, device="cpu")
    sounds = [[clip.samples for clip in speaker.speak(one.codes, one.seeds)] for one in found]
    waves = waves_of(rollouts, [one.numbers for one in found], sounds)
    for one, other, sounded in zip(rollouts, expected, waves, strict=True):
        assert (one.texts, one.finish_reason) == (other.texts, other.finish_reason)
        np.testing.assert_array_equal(one.blocks[0].tokens, other.blocks[0].tokens)
        np.testing.assert_array_equal(one.blocks[0].behaviour_logp, other.blocks[0].behaviour_logp)
        for wave, wanted in zip(sounded, other.waves, strict=True):
            np.testing.assert_array_equal(wave, wanted)


def test_prompts_that_wait_are_a_prefill_of_their_own_and_hold_back_what_may_still_be_shorter(kimi: KimiPolicy) -> None:
    prompts = [kimi.encode_prompt([Turn("user", "", Noise().clip(name))]) for name in "0123"]
    how, seeds = Sampling(1.0, 1.0, 40), answer_seeds(0, 0, range(4), 4)
    events = sample_in_parts(kimi.model, SampleRequest(prompts, seeds, how), 1, rows_at_once=8)
    seen = []
    while True:
        try:
            seen.append(next(events))
        except StopIteration as done:
            generations = done.value
            break
    assert sum(isinstance(one, PromptsRead) for one in seen) >= 2
    reports = [one for one in seen if isinstance(one, AnswersSoFar)]
    assert [len(one.ended) for one in reports] == [16] * len(reports)
    ended = [int(one.ended.sum()) for one in reports]
    assert ended == sorted(set(ended))
    # What has ended is as it is in the end.
    tokens = np.concatenate([np.pad(one.blocks[0].tokens, ((0, 0), (0, 40 - one.blocks[0].tokens.shape[1]), (0, 0)),
                             constant_values=kimi.config.pad_id) for one in generations])  # fmt: skip
    for one in reports:
        np.testing.assert_array_equal(one.blocks[0].tokens[one.ended], tokens[one.ended])
    assert sample(kimi.model, SampleRequest(prompts, seeds, how), rows_at_once=8)[3].seeds == tuple(seeds[3])


def yield_into(found: list[EndedAnswers], batches: Generator[EndedAnswers, None, list[Rollout]]) -> list[Rollout]:
    while True:
        try:
            found.append(next(batches))
        except StopIteration as done:
            return list(done.value)


def test_a_share_is_cut_into_batches_as_its_answers_end() -> None:
    """Two queries of three answers, of 1 to 4 codes; a policy that speaks two at once. The number of a code is its own."""
    final = [4, 1, 2, 0, 3, 3]

    def reports() -> Generator[AnswersSoFar, None, list[Rollout]]:
        for step in (2, 3):
            tokens = np.minimum(np.array(final), step)[:, None, None]
            block = Block(("audio0",), tokens, np.ones(tokens.shape, dtype=bool), np.zeros(tokens.shape))
            yield AnswersSoFar((block,), np.array([length < step for length in final]))
        return [rollout(*final[:3]), rollout(*final[3:])]

    def decode_codes(blocks: tuple[Block, ...], number: int) -> np.ndarray:
        return np.arange(blocks[0].tokens[number, 0, 0])[:, None]

    policy: Any = SimpleNamespace(spoken_at_once=2, decode_codes=decode_codes)
    batches = EndedBatches(policy, seeds=range(10, 16)).as_they_end(reports())
    found: list[EndedAnswers] = []
    rollouts = yield_into(found, batches)
    assert [one.numbers for one in found] == [(1,), (5, 2), (0, 4)]
    assert [one.seeds for one in found] == [(11,), (15, 12), (10, 14)]
    assert [[len(codes) for codes in one.codes] for one in found] == [[1], [3, 2], [4, 3]]
    sounds = [[np.full(3, number, dtype=np.float32) for number in one.numbers] for one in found]
    waves = waves_of(rollouts, [one.numbers for one in found], sounds)
    assert [[wave[0] if len(wave) else None for wave in row] for row in waves] == [[0, 1, 2], [None, 4, 5]]
