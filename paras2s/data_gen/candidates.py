"""From candidates to queries: held-out contrasts are complete, and RL prompts lose their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paras2s.types import Candidate, Query, Role
from paras2s.utils.seeds import seed_of

HELD_OUT: tuple[Role, ...] = ("validation", "test")


def reject_broken_contrasts(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Reject the other style of every held-out contrast that lost one: it is tested with both styles or not at all."""
    broken = {c.contrast_id for c in candidates if c.role in HELD_OUT and c.rejected_by is not None}
    return [
        replace(c, rejected_by="contrast", rejected="the contrast's other style was rejected")
        if c.role in HELD_OUT and c.rejected_by is None and c.contrast_id in broken
        else c
        for c in candidates
    ]


def make_query(candidate: Candidate, role: Role, name: str, duration_s: float) -> Query:
    """Make a query of an accepted candidate. Prompts for RL lose their labels here (ParaS2S, appendix C)."""
    labelled = role != "rl"
    return Query(
        id=name,
        contrast_id=candidate.contrast_id if labelled else "",
        category=candidate.category if labelled else None,
        topic=candidate.topic if labelled else None,
        role=role,
        speaker=candidate.speaker if labelled else "",
        clip=f"queries/{name}.wav",
        duration_s=duration_s,
        transcript=candidate.transcript or "",
        text=candidate.text if labelled else None,
        style=candidate.style if labelled else None,
    )


def prompt_name(plain: str, words: int) -> str:
    """Return the name of an RL prompt, which shows no label: `words` hashes of its plain one, 32 bits each."""
    return "rl-" + "".join(f"{seed_of(plain, *([word] if word else [])):08x}" for word in range(words))


def ledger_of_prompts(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    """Return the ledger's line of each RL prompt by id; names are one word of shipped scripts, two of a curated dataset."""
    prompts = [candidate for candidate in candidates if candidate.role == "rl"]
    return {prompt_name(candidate.id, words): candidate for words in (1, 2) for candidate in prompts}
