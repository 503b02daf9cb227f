"""The pages of figures, from tables made by hand; no figure is run.

Not covered: the figures, which take hours; `docs/paper.md` and `docs/ablations.md` hold those that were measured.
"""

import json
from pathlib import Path

import pytest
from tiny.ablation import result

from paras2s.experiments import paper


def test_the_page_has_what_was_run_beside_the_papers_claims_and_names_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = paper.paper_config("fig3c")
    rows = [
        result("beta = 0", 3.5, x=0.0), result("beta = 0.2", 3.4, x=0.2, commit="abcdef0123"),
        result("beta = 0.8", 2.9, x=0.8, commit=None),
    ]  # fmt: skip
    folder = config.run_dir / "fig3c"
    folder.mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps({"rows": rows}))
    text = paper.write_page(tmp_path / "docs", "paper.md").read_text()
    assert "| Too strong a KL penalty keeps the policy from learning | agrees: +0.50 ± 0.14 |" in text
    assert "| Without a KL penalty something is forgotten | not measured: beta = 0.2 |" in text
    assert "3 of 4 rows, 6 minutes to align and bench, commit abcdef0." in text
    assert "(paper/fig3c-score.svg)" in text
    assert (tmp_path / "docs/paper/fig3c-score.svg").is_file()
    assert text.count("Not run yet: `paras2s ablate") == len(paper.PAGES["paper.md"][1]) - 1


def test_a_claim_of_ours_is_not_called_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for page, name, head in (
        ("paper.md", "fig3c", "| the paper's claim | ours |"),
        ("ablations.md", "staleness", "| claim | ours |"),
    ):
        config = paper.paper_config(name)
        (config.run_dir / name).mkdir(parents=True)
        rows = [result(row.name, 3.0, x=row.x) for row in config.rows]
        (config.run_dir / name / "table.json").write_text(json.dumps({"rows": rows}))
        section = paper.write_page(tmp_path / "docs", page).read_text().split(f"## {config.title}")[1].split("\n## ")[0]
        assert head in section


def test_every_figure_that_is_shipped_is_on_a_page() -> None:
    from paras2s.configs.schema.base import preset_path

    shipped = {path.stem for path in preset_path("fig2a", "paper").parent.glob("*.yaml")}
    assert set(paper.FIGURES) == shipped
