"""Win rates by category of instruction, by hand, over the verb `rank`, and with files that cannot be meant.

Not covered: SpeakBench's own four categories; its release says of no instruction which it is of.
"""

import csv
import json
from pathlib import Path

import pytest
from outside import VERDICTS
from typer.testing import CliRunner

from paras2s.bench.ranking.data import COLUMNS, load_recorded
from paras2s.bench.ranking.metrics import rank_systems
from paras2s.bench.ranking.run import load_categories, rank_categories
from paras2s.cli.app import app
from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, EnsembleRule, find_ensemble

WORDS = EnsembleRule(says="words alone", aspects=("words",), decide="vote")
# Instruction, system, label with the system first, label with the reference first: 1, 0.5; 0.75, 0.5; 0.5, 0.
ROWS = [("1", "a", "1", "2"), ("2", "a", "1", "1"), ("1", "b", "tie", "2"), ("2", "b", "2", "2"), ("3", "a", "tie", "tie")]


@pytest.fixture
def verdicts(tmp_path: Path) -> Path:
    lines = [",".join(COLUMNS), *(f"words,{one},{system},ref,{first},{second}" for one, system, first, second in ROWS)]
    (tmp_path / "verdicts.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "verdicts.csv"


def categories(folder: Path, text: str) -> Path:
    (folder / "categories.csv").write_text(text)
    return folder / "categories.csv"


def test_win_rates_of_each_category_by_hand(verdicts: Path, tmp_path: Path) -> None:
    path = categories(tmp_path, "instruction_id,category\n1,prosody\n2,sounds\n3,sounds\n9,accents\n")
    result = CliRunner().invoke(app, ["rank", str(verdicts), "--categories", str(path), "--out", str(tmp_path / "o"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["categories"]) == ["prosody", "sounds"]
    rates = {
        category: {name: one["win_rate"] for name, one in aspects["words"]["systems"].items()}
        for category, aspects in found["categories"].items()
    }
    assert {name: one["value"] for name, one in rates["prosody"].items()} == {"a": 1.0, "b": 0.75, "ref": 0.5}
    assert {name: one["value"] for name, one in rates["sounds"].items()} == {"a": 0.5, "b": 0.5, "ref": 0.5}
    # b has not met the reference on the third instruction.
    assert [(one["n"], one["n_asked"]) for one in rates["sounds"].values()] == [(2, 2), (1, 2), (0, 0)]
    assert found["problems"]["category without verdicts"] == {"count": 1, "first": ["instruction 9"]}
    text = (tmp_path / "o/ranking.md").read_text()
    assert "## words: by category of instruction" in text
    assert "| b | 75.00 (1 of 1) | 50.00 (1 of 2) |" in text


def test_an_instruction_without_a_category_is_named_and_counts_overall_alone(verdicts: Path) -> None:
    recorded = load_recorded(verdicts)
    ranking = rank_systems(recorded, WORDS)
    found, problems = rank_categories(ranking, recorded, WORDS, {"1": "prosody", "2": "sounds"})
    assert [tuple(one) for one in problems] == [("no category", "instruction 3")]
    assert found["sounds"]["words"].systems["a"].win_rate.value == 0.5
    assert ranking.aspects["words"].systems["a"].win_rate.value == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_one_category_of_all_is_the_ranking_itself() -> None:
    """On the recorded verdicts of SpeakBench, ensemble and intervals included."""
    recorded, rule = load_recorded(VERDICTS), find_ensemble("majority", None)
    ranking = rank_systems(recorded, rule)
    found, problems = rank_categories(ranking, recorded, rule, dict.fromkeys(recorded.instructions, "all"))
    assert (found["all"], problems) == (ranking.aspects, [])
    halves = {one: str(place % 2) for place, one in enumerate(recorded.instructions)}
    parts, _ = rank_categories(ranking, recorded, rule, halves)
    one = ranking.aspects[ENSEMBLE].systems["moshi"].win_rate
    own = [part[ENSEMBLE].systems["moshi"].win_rate for part in parts.values()]
    assert sum(part.n for part in own) == one.n
    assert sum(part.value * part.n for part in own) / one.n == pytest.approx(one.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("instruction,category\n1,a\n", r"categories\.csv:2: instruction_id: no such column or value"),
        ("instruction_id,category\n1,\n", r"categories\.csv:2: category: no such column or value"),
        ("instruction_id,category\n1,a\n1,b\n", r"categories\.csv:3: category: 1 is 'a' above, 'b' here"),
        ("instruction_id,category\n", "holds no row"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        load_categories(categories(tmp_path, text))


def test_categories_of_other_instructions_are_refused(verdicts: Path) -> None:
    recorded = load_recorded(verdicts)
    with pytest.raises(DataError, match="names none of the instructions"):
        rank_categories(rank_systems(recorded, WORDS), recorded, WORDS, {"q1": "prosody"})


def test_meetings_of_any_two_systems_take_no_categories(tmp_path: Path) -> None:
    path = tmp_path / "meetings.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*COLUMNS, "human"], ["words", "1", "a", "b", "1", "2", "1"]])
    result = CliRunner().invoke(app, ["rank", str(path), "--categories", str(path)])
    assert isinstance(result.exception, ConfigError)
