"""The decisions of an ablation: what rows share, what a table says, what a plot holds; no stage is run.

Not covered: the stages themselves, which the demo's preset goes through.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tiny.ablation import counted, result

from paras2s.bench.results import AnswerRow, save_rows
from paras2s.configs.schema.ablation import AblationConfig, AblationRow, Claim
from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.candidates import ledger_of_prompts
from paras2s.data_gen.dataset import Dataset
from paras2s.errors import ConfigError
from paras2s.pipeline import learned_answers as learned
from paras2s.pipeline.ablate import (
    cells,
    draw,
    hack_table,
    judge_claim,
    label_table,
    markdown,
    paired_claim,
    row_config,
    row_labels,
    value_of,
)
from paras2s.pipeline.align import rl_prompts
from paras2s.pipeline.source_hacks import HACKS, HackRow, count_hacks
from paras2s.types import Candidate, Query, Reward, Unscored
from paras2s.utils.io import write_json


def ablation(tmp_path: Path, *rows: AblationRow, **changes: Any) -> AblationConfig:
    return AblationConfig(name="grid", base="quick", run_dir=tmp_path, rows=rows, **changes)


def test_rows_lie_over_the_base_and_have_folders_of_their_own(tmp_path: Path) -> None:
    rows = [AblationRow(name="G = 2", set={"align.sampling.group_size": 2}), AblationRow(name="more", set={"align.steps": 9})]
    grid = ablation(tmp_path, *rows, set={"align.steps": 7})
    first, second = (row_config(grid, row, 3) for row in rows)
    assert (first.align.sampling.group_size, first.align.steps, first.seed) == (2, 7, 3)
    assert (second.align.steps, second.warmup.steps) == (9, load_config(preset_path("quick")).warmup.steps)
    assert first.run_dir == tmp_path / "grid/seed3/G_=_2"
    with pytest.raises(ConfigError, match=r"row 'bad': align\.stepps: unknown key|row 'bad': .*align\.stepps"):
        row_config(grid, AblationRow(name="bad", set={"align.stepps": 9}), 0)


def test_a_setting_laid_over_leaves_the_rest_of_its_section(tmp_path: Path) -> None:
    grid = ablation(tmp_path, AblationRow(name="a", set={"align": {"steps": 3}}), set={"align.sampling.group_size": 2})
    found = row_config(grid, grid.rows[0], 0).align
    untouched = load_config(preset_path("quick")).align.sampling.queries_per_step
    assert (found.steps, found.sampling.group_size, found.sampling.queries_per_step) == (3, 2, untouched)
    with pytest.raises(ConfigError, match="seed is the ablation's own"):
        row_config(grid, AblationRow(name="b", set={"seed": 4}), 0)


def test_a_row_with_more_contrasts_than_scripts_fails_before_any_row_runs(tmp_path: Path) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"), AblationRow(name="b", set={"data.validation_contrasts": 24}))
    row_config(grid, grid.rows[0], 0)
    with pytest.raises(ConfigError, match="row 'b': data: sarcasm has 98 training, 10 validation"):
        row_config(grid, grid.rows[1], 0)


def test_a_row_that_failed_says_so_in_the_table(tmp_path: Path) -> None:
    failed = {"row": "a", "line": "", "x": 1.0, "seed": 0, "failed": "step 3: the loss is nan"}
    assert cells(failed) == ["a", "0", "failed: step 3: the loss is nan", "-", "-", "-", "-", "-", "-"]
    assert draw(ablation(tmp_path, AblationRow(name="a")), [failed]) is None


def test_what_could_not_be_measured_is_a_dash() -> None:
    assert cells(result("a", 3.456)) == ["a", "0", "3.46 ± 0.10", "-", "50 ± 10 %", "- %", "0.125", "3 of 4", "2.0"]
    assert cells(result("a", None, kl=None))[2:7] == ["-", "-", "50 ± 10 %", "- %", "-"]
    assert cells(result("a", 3.0, independent=counted(2.5)))[2:4] == ["3.00 ± 0.10", "2.50 ± 0.10"]


def test_a_share_of_none_has_wilsons_interval_and_an_error() -> None:
    """Four contrasts: 0 to z^2 / (4 + z^2) = 0.49, so that an error of 0.49 / 1.96 = 0.25 stands in a claim, and not 0."""
    row = result("a", 3.0)
    row["scores"]["contrast"] = {"mean": 0.0, "standard_error": 0.0, "n_scored": 4, "n_asked": 4, "wilson": [0.0, 0.49]}
    assert cells(row)[4] == "0 (0 to 49) %"
    assert value_of(row, "told_apart") == (0.0, pytest.approx(0.25))


def test_the_table_stands_beside_what_the_paper_found(tmp_path: Path) -> None:
    text = markdown(ablation(tmp_path, AblationRow(name="a"), paper="More is better."), [result("a", 3.0)])
    assert "| a | 0 | 3.00 ± 0.10 |" in text
    assert text.endswith("The paper: More is better.\n")


def test_a_plot_has_a_curve_a_line_and_means_over_seeds(tmp_path: Path) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"), axis="contrasts <x>")
    rows = [
        result("a", 2.0, x=1.0, line="SFT"),
        result("b", 4.0, x=1.0, line="SFT", seed=1),
        result("c", 5.0, x=2.0, line="GRPO"),
    ]
    plot = draw(grid, rows)
    assert plot is not None
    assert plot.count("<svg") == plot.count("</svg>") == 1
    assert 'xmlns="http://www.w3.org/2000/svg"' in plot
    assert plot.count('class="line"') == 2
    texts = [one.text for one in ElementTree.fromstring(plot).iter("{http://www.w3.org/2000/svg}text")]
    assert {"SFT", "GRPO", "contrasts <x>"} <= set(texts)
    assert "contrasts &lt;x&gt;" in plot
    assert draw(grid, [result("a", 2.0), result("b", None, x=1.0)]) is None


def answer(score: float, contrast_id: str) -> AnswerRow:
    return AnswerRow(
        system="s", query_id=contrast_id, contrast_id=contrast_id, category="age", style="child", question_text="q",
        question_clip="q.wav", answer_index=0, text_stream="", transcript=None, tone=None, tone_scores={}, score=score,
        unscored=None, reason="", family=None, fitting=score >= 4, answer_clip="a.wav", duration_s=1.0, word_error_rate=None,
        judge="j", model_score=None,
    )  # fmt: skip


def candidate(number: int, category: str, role: str) -> Candidate:
    return Candidate(
        f"{category}{number}-x-m1", f"{category}{number}", category, "t", role, "x", "m1", "w", "w", 0.0, 1.0, None, None
    )


def test_prompts_of_one_domain_are_found_by_the_ledger_though_they_have_no_labels(tmp_path: Path) -> None:
    ledger = [candidate(n, category, role) for n, (category, role) in enumerate(
        [("emotion", "rl"), ("emotion", "preference"), ("age", "rl"), ("age", "test")]
    )]  # fmt: skip
    # Of either kind of dataset, which name their prompts differently.
    category = {name: line.category for name, line in ledger_of_prompts(ledger).items()}
    assert sorted(category.values()) == ["age", "age", "emotion", "emotion"]
    queries = [Query(one, "", None, None, "rl", "", "a.wav", 1.0, "w", None, None) for one in category]
    dataset = Dataset(tmp_path, tuple(queries), (), tuple(ledger), Any, Any, {})
    assert [category[one.id] for one in rl_prompts(dataset, ("emotion",))] == ["emotion"] * 2
    assert rl_prompts(dataset, ()) == queries
    with pytest.raises(ConfigError, match="no RL prompt is of 'gender'"):
        rl_prompts(dataset, ("emotion", "gender"))


@pytest.mark.parametrize(
    ("of", "above", "below", "verdict"),
    [
        ("score", result("a", 3.5), result("b", 3.0), "agrees: +0.50 ± 0.14"),
        ("score", result("a", 3.0), result("b", 3.5), "does not agree: -0.50 ± 0.14"),
        ("score", result("a", 3.2), result("b", 3.0), "leans that way, within the noise: +0.20 ± 0.14"),
        ("score", result("a", 3.0), result("b", 3.1), "leans the other way, within the noise: -0.10 ± 0.14"),
        ("told_apart", result("a", 1.0), result("b", 1.0), "no difference: +0.0 ± 14.1 points"),
        ("words_understood", result("a", 1.0), result("b", 1.0), "not measured: a"),
        ("score", {**result("a", 1.0), "failed": "nan"}, result("b", 1.0), "not measured: a"),
    ],
)
def test_a_claim_is_borne_out_by_two_standard_errors_or_not(of: Any, above: Any, below: Any, verdict: str) -> None:
    assert judge_claim(Claim(say="s", higher="a", lower="b", of=of), [above, below]) == verdict


def test_on_the_same_questions_a_difference_is_known_better(tmp_path: Path) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"), AblationRow(name="b", system="sft"))
    claim = Claim(say="s", higher="a", lower="b")
    assert paired_claim(grid, claim) is None
    for row, shift in (("a", 0.5), ("b", 0.0)):
        answers = [answer(score + shift, f"c{n}") for n, score in enumerate((1.0, 2.0, 4.0))]
        save_rows(tmp_path / f"grid/seed0/{row}/bench-validation/{'aligned' if row == 'a' else 'sft'}.jsonl", answers)
    assert paired_claim(grid, claim) == (0.5, 0.0)
    assert paired_claim(grid, claim.model_copy(update={"leave_out": ("age",)})) is None
    assert judge_claim(claim.model_copy(update={"leave_out": ("age",)}), []) == "not measured: the rows' answers are gone"
    assert judge_claim(claim, [result("a", 2.8), result("b", 2.3)], (0.5, 0.1)) == "agrees: +0.50 ± 0.10"


def test_seeds_count_together_and_a_claim_is_about_rows_there_are(tmp_path: Path) -> None:
    rows = [result("a", 3.0), result("a", 4.0, seed=1), result("b", 3.0), result("b", 3.0, seed=1)]
    assert judge_claim(Claim(say="s", higher="a", lower="b"), rows) == "agrees: +0.50 ± 0.10"
    with pytest.raises(ValueError, match="no row is called 'c'"):
        ablation(tmp_path, AblationRow(name="a"), claims=[{"say": "s", "higher": "a", "lower": "c"}])


@pytest.mark.parametrize(
    ("difference", "verdict"), [(0.5, "agrees"), (0.1, "not told apart"), (-0.1, "not told apart"), (-0.5, "does not agree")]
)
def test_a_claim_of_no_less_needs_no_difference(difference: float, verdict: str) -> None:
    claim = Claim(say="s", higher="a", lower="b", at_least=True)
    assert judge_claim(claim, [], (difference, 0.2)).startswith(f"{verdict}: ")


def test_without_an_error_nothing_is_known() -> None:
    lone = {**result("a", 3.01), "scores": {**result("a", 3.01)["scores"], "overall": counted(3.01, None)}}
    assert judge_claim(Claim(say="s", higher="a", lower="b"), [lone, result("b", 3.0)]) == "not known: a has no standard error"


def test_categories_weigh_the_same_in_a_claim_as_in_a_score(tmp_path: Path) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"), AblationRow(name="b", system="sft"))
    for row, gain in (("a", 1.0), ("b", 0.0)):
        answers = [replace(answer(2.0 + gain, f"c{n}"), category="age") for n in range(2)]
        answers += [replace(answer(2.0, f"d{n}"), category="gender") for n in range(8)]
        save_rows(tmp_path / f"grid/seed0/{row}/bench-validation/{'aligned' if row == 'a' else 'sft'}.jsonl", answers)
    claim = Claim(say="s", higher="a", lower="b")
    assert paired_claim(grid, claim) == (0.5, 0.0)
    assert paired_claim(grid, claim.model_copy(update={"leave_out": ("gender",)})) == (1.0, 0.0)


def test_a_hack_is_paid_where_it_gets_at_least_what_the_good_answer_gets() -> None:
    unscored = Unscored("judge", "no reply")

    def given(*values: float | None) -> list[Reward | Unscored]:
        rest = [1.0] * (1 + len(HACKS) - len(values))
        return [unscored if one is None else Reward(one, {}) for one in (*values, *rest)]

    # Three questions: the good answer, then `shuffled`, `reversed` and `half`.
    found = count_hacks([given(4.0, 4.0, 3.0, None), given(2.0, 1.0, 5.0, None), given(None, 5.0, None, None)])
    assert found["shuffled"] == HackRow(0.5, 10 / 3, 3.0, 2, 3)
    assert found["reversed"] == HackRow(0.5, 4.0, 3.0, 2, 3)
    assert found["half"] == HackRow(None, None, 3.0, 0, 3)
    assert tuple(found) == HACKS


def test_the_hack_table_has_the_rows_that_were_asked(tmp_path: Path) -> None:
    found = {kind: {"paid": 0.25, "mean": 1.0, "good_mean": 4.0, "n_scored": 8, "n_asked": 9} for kind in HACKS}
    found["half"] = {"paid": None, "mean": None, "good_mean": 4.0, "n_scored": 0, "n_asked": 9}
    rows = [{"row": "a", "seed": 0, "hacks": {}}, {"row": "b", "seed": 1, "hacks": found}, {"row": "old", "seed": 0}]
    table = hack_table(rows)
    assert table.texts() == [["b", "1", *("-" if kind == "half" else "25 % of 8" for kind in sorted(HACKS))]]
    assert table.head[2:] == tuple(sorted(HACKS))
    # A stored file has its keys in another order.
    assert hack_table([{**row, "hacks": dict(sorted(row.get("hacks", {}).items()))} for row in rows]) == table
    assert hack_table(rows[:1]) is None


def test_labels_of_a_row_are_counted_by_hand(tmp_path: Path) -> None:
    """Four answers to each of two demonstrated queries; three answers of the reward model, and two refreshes of 8."""
    queries = [Query(f"{n}", "c", "age", "t", role, "s", "a.wav", 1.0, "w", "w", "child")
               for n, role in enumerate(("demonstration", "demonstration", "preference"))]  # fmt: skip
    dataset = Dataset(tmp_path, tuple(queries), (), (), None, None, {})  # type: ignore[arg-type]
    run = SimpleNamespace(reward_dir=tmp_path, refreshed_models=lambda: {60: tmp_path / "a", 120: tmp_path / "b"})
    parts = (learned.LEARNED, learned.LEARNED, learned.KEPT_OUT, learned.DEGENERATE)
    answers = [learned.AnswerRow(part, "0", np.zeros((1, 1), int), {"child": 1.0}) for part in parts]
    learned.write_answers(tmp_path / learned.LEARNED_FILE, answers)
    for folder in ("a", "b"):
        write_json(tmp_path / folder / "agreement.json", {"answers": 8})
    found = {}
    for kept in ("all", "best"):
        changes = {"data.answers_per_query": 4, "data.keep_answers": kept}
        run.config = load_config(preset_path("quick"), changes)
        found[kept] = [row_labels(run, dataset, aligned) for aligned in (False, True)]  # type: ignore[arg-type]
    assert found["all"] == [{"demonstrations": 8, "verdicts": 0}, {"demonstrations": 8, "verdicts": 3 + 16}]
    assert found["best"] == [{"demonstrations": 8, "verdicts": 8}, {"demonstrations": 8, "verdicts": 8 + 3 + 16}]


def test_labels_are_priced_in_verdicts() -> None:
    rows: list[dict[str, Any]] = [
        {"row": "all", "seed": 0, "demonstrations": 600, "verdicts": 0},
        {"row": "GRPO", "seed": 0, "demonstrations": 600, "verdicts": 650},
        {"row": "broken", "seed": 0, "failed": "a reason"},
    ]
    assert label_table(rows, None) is None
    table = label_table(rows, 2.5)
    assert table is not None
    assert "a demonstration at 2.5" in table.head[-1]
    assert [list(row) for row in table.rows] == [["all", 0, 600, 0, "1500"], ["GRPO", 0, 600, 650, "2150"]]
