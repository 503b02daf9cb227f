"""Fixtures that several files of the interleaved policies' tests share."""

from __future__ import annotations

import pytest
from tiny.interleaved import MAKERS, tiny_turns

from paras2s.policy.interleaved.base import InterleavedPolicy
from paras2s.policy.types import Prompt


@pytest.fixture(scope="module", params=MAKERS)
def case(request: pytest.FixtureRequest) -> tuple[InterleavedPolicy, list[Prompt]]:
    """A policy that no test changes, and three prompts, the second of two clips."""
    policy = MAKERS[request.param]()
    return policy, [policy.encode_prompt(turns) for turns in tiny_turns()]
