"""No shipped sentence may rest on what women or men, old or young are said to like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "paras2s"
SCRIPTS = (
    *sorted((PACKAGE / "data_gen/scripted").rglob("*.yaml")),
    PACKAGE / "reward/judges/rubric.yaml",
    PACKAGE / "reward/judges/independent/kinds.yaml",
)
PEOPLE = (
    r"(women|men|ladies|gentlemen|girls|boys|kids|children|teenagers|seniors|(old|young)(er)? people|the (old|elderly|young))"
)
PERSON = r"(woman|man|lady|gentleman|girl|boy|grandmother|grandfather)"
LIKES = r"(like|likes|prefer|love|want|need|choose|enjoy|hate|wear|go for|are (good|bad|better) at)"
GENERALITIES = (
    rf"\b{PEOPLE}\b( \w+){{0,2}} {LIKES}\b",
    rf"\b{PEOPLE}'s (choices|section|kind|style)",
    rf"\b(choices|things|kind|style)\b.* for {PEOPLE}\b",
    rf"\bfor {PEOPLE}, ",
    rf"\bas a {PERSON}\b,? (you|let)\b",
    rf"\b(for )?a {PERSON} like you\b",
    rf"\bbest for a {PERSON}\b",
)
FOUND = re.compile("|".join(GENERALITIES), re.IGNORECASE)


def generalities(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if not line.lstrip().startswith("#") and FOUND.search(line)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_sentence_rests_on_what_people_of_a_kind_like(path: Path) -> None:
    assert not generalities(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Most women prefer the soft and light kind.", True),
        ("As a gentleman, you could choose the dark one.", True),
        ("I would look at the choices for men first.", True),
        ("Older people like it quiet.", True),
        ("A lady like you can wear the elegant one.", True),
        ("The woman at the next desk has quit her job.", False),
        ("Good morning, madam, your parcel is here.", False),
        ("A man in our meeting was cutting his toenails.", False),
    ],
)
def test_generalities_are_found_and_people_may_be_spoken_of(text: str, found: bool) -> None:
    assert bool(FOUND.search(text)) is found


if __name__ == "__main__":
    for script in SCRIPTS:
        for sentence in generalities(script):
            print(f"{script.relative_to(PACKAGE)}: {sentence}")
