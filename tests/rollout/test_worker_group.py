"""Results of calls that are lost with their machine, by a scripted Ray: who is called again, and who is not.

Not covered: real machines that are lost (tests/integration/test_cluster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from paras2s.errors import DataError, PolicyError
from paras2s.rollout import worker_group
from paras2s.rollout.worker_group import Call, results


class Group:
    """Workers of one role that are never lost for good; counts those that were dropped."""

    name = "scripted"

    def __init__(self) -> None:
        self.dropped = 0

    def next(self) -> Any:
        return SimpleNamespace(actor=None)

    def drop(self, worker: Any) -> None:
        self.dropped += 1


def call(group: Group, *names: str, reads: Sequence[Call] = ()) -> Call:
    """A call whose references are its names with a number of the try."""
    tries = iter(range(9))

    def make(_: Any) -> list[str]:
        number = next(tries)
        return [f"{name}{number}" for name in names]

    return Call(group, make, reads)  # type: ignore[arg-type]


def scripted(monkeypatch: pytest.MonkeyPatch, lost: dict[str, Exception]) -> Callable[..., list[str]]:
    """`ray.get` gives a reference's own name, or raises."""

    def get(ref: Any) -> Any:
        if isinstance(ref, list):
            return [get(one) for one in ref]
        if ref in lost:
            raise lost[ref]
        return ref

    monkeypatch.setattr(worker_group.ray, "get", get)
    return results


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("score", "somewhere", cause)


def test_each_result_of_a_call_is_read_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    read, sampled = scripted(monkeypatch, {}), call(Group(), "rollouts", "waves")
    assert (read([sampled]), read([sampled], 1)) == (["rollouts0"], ["waves0"])


def test_a_lost_worker_is_dropped_and_its_readers_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers, judges = Group(), Group()
    sampled = call(samplers, "rollouts", "waves")
    scored = call(judges, "rewards", reads=[sampled])
    read = scripted(monkeypatch, {"rollouts0": RayActorError()})
    assert (read([sampled]), read([scored])) == (["rollouts1"], ["rewards1"])
    assert (samplers.dropped, judges.dropped) == (1, 0)


def test_sound_that_is_lost_before_it_was_judged_is_sampled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollouts have come, and the machine that held their sound is gone."""
    samplers, judges = Group(), Group()
    sampled = call(samplers, "rollouts", "waves")
    scored = [call(judges, f"rewards{part}-", reads=[sampled]) for part in "ab"]
    lost = task_error(ObjectLostError("", "", ""))
    read = scripted(monkeypatch, {"rewardsa-0": lost, "rewardsb-0": lost})
    assert (read([sampled]), read(scored)) == (["rollouts0"], ["rewardsa-1", "rewardsb-1"])
    assert (samplers.dropped, judges.dropped) == (1, 0)


def test_of_several_that_a_call_reads_what_is_lost_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two batches of sound went with its machine."""
    speakers, judges = Group(), Group()
    spoken = [call(speakers, f"waves{part}-", f"spans{part}-") for part in "ab"]
    scored = call(judges, "rewards", reads=spoken)
    gone = ObjectLostError("", "", "")
    read = scripted(monkeypatch, {"rewards0": task_error(gone), "wavesb-0": gone})
    assert read([scored]) == ["rewards1"]
    assert [one.refs[0] for one in spoken] == ["wavesa-0", "wavesb-1"]
    assert (speakers.dropped, judges.dropped) == (1, 0)


def test_a_result_that_stays_lost_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what was read can be found lost, again and again."""
    spoken = [call(Group(), f"waves{part}-") for part in "ab"]
    scored = call(Group(), "rewards", reads=spoken)
    lost = task_error(ObjectLostError("", "", ""))
    read = scripted(monkeypatch, {f"rewards{number}": lost for number in range(9)})
    with pytest.raises(PolicyError, match="5 scripted workers were lost over the same prompts"):
        read([scored])


def test_a_worker_ten_times_as_slow_is_waited_for_and_its_work_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a loss sends a call again, however long it takes; the clock is a scripted one."""
    group, now_s = Group(), [0.0]
    read, calls = scripted(monkeypatch, {}), [call(group, f"part{number}-") for number in range(4)]
    get = worker_group.ray.get

    def slow(ref: str) -> str:
        now_s[0] += 1_000.0 if ref.startswith("part2") else 100.0
        return str(get(ref))

    monkeypatch.setattr(worker_group.ray, "get", slow)
    monkeypatch.setattr(worker_group.time, "monotonic", lambda: now_s[0])
    assert read(calls) == [f"part{number}-0" for number in range(4)]
    assert (group.dropped, now_s[0]) == (0, 1_300.0)


def test_what_a_worker_refuses_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = call(Group(), "rollouts")
    scored = call(Group(), "rewards", reads=[sampled])
    read = scripted(monkeypatch, {"rewards0": task_error(DataError("broken"))})
    with pytest.raises(RayTaskError):
        read([scored])
