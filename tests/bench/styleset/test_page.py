"""The page of StyleSet: intervals by hand, and what is said of outputs whose clips are not there.

Not covered: the look of the page, and players, which `tests/integration/test_styleset_cli.py` counts.
"""

from pathlib import Path

import pytest

from paras2s.bench.styleset.metrics import HumanRow, StyleRow
from paras2s.bench.styleset.page import mean_interval, write_page


@pytest.mark.parametrize(
    ("scores", "scale", "interval"),
    [
        ([3.0], (1, 5), None),
        # Mean 3, deviation 1, t of 2 degrees of freedom 4.303: 3 +- 2.484.
        ([2.0, 3.0, 4.0], (1, 5), (1, 5)),
        ([2.0, 3.0, 4.0, 3.0, 3.0, 3.0], (1, 5), (3 - 2.5706 * 0.6325 / 6**0.5, 3 + 2.5706 * 0.6325 / 6**0.5)),
        ([4.0, 4.0], (1, 5), None),
        # Wilson's of 10 in 10: z^2 = 3.8415; 10 / (10 + z^2) to 1.
        ([1.0] * 10, (0, 1), (10 / 13.8415, 1)),
        ([0.0] * 10, (0, 1), (0, 3.8415 / 13.8415)),
    ],
)
def test_the_interval_of_a_mean(scores, scale, interval):
    found = mean_interval(scores, *scale)
    assert found == (None if interval is None else pytest.approx(interval, abs=1e-3))


def test_recorded_verdicts_have_scores_replies_and_reasons_but_no_sound(tmp_path: Path):
    rows = [
        StyleRow(
            item="f1", system="<a>", task="style_following", judge="j", score=4, votes=(3, 5), spread=1.41, reply="4 & so"
        ),
        StyleRow(item="f2", system="<a>", task="style_following", judge="j", unscored="no reply"),
    ]
    people = [HumanRow(item="f1", system="<a>", task="style_following", rater="ann", score=2)]
    write_page(tmp_path / "page.html", rows, people, {}, None)
    page = (tmp_path / "page.html").read_text()
    for text in (
        "&lt;a&gt;",
        "4 of 2 votes, spread 1.41",
        "4 &amp; so",
        "unscored: no reply",
        "<td>1 of 2</td>",
        "<td>people</td>",
    ):
        assert text in page
    assert page.count("Recorded verdicts") == 2
    assert "<audio" not in page
    assert "<a>" not in page
