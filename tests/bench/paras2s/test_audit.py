"""The audit of a judge on a run's answers: shares by hand, the sentence, and the map of a contrast judge."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_second_judge import row
from tiny.world import invoke

from paras2s.audio.clip import make_clip, write_clip
from paras2s.bench.paras2s.audit import audit_judge, load_answers
from paras2s.bench.paras2s.judges import AnswerJudge
from paras2s.bench.results import save_rows
from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.base import Judge
from paras2s.types import Unscored, Verdict

CONTRASTS, STYLES = [f"c{number}" for number in range(6)], ("sarcastic", "sincere")


def write_run(folder: Path) -> Path:
    """Answers to six contrasts of two styles: gold ones (5), wrong ones (1) and gold words in a neutral voice (4)."""
    write_clip(folder / "0.wav", make_clip(0.1 * np.ones(1600, dtype=np.float32), 16_000))
    write_clip(folder / "q.wav", make_clip(0.1 * np.ones(1600, dtype=np.float32), 16_000))
    for system, score in (("topline", 5), ("bad", 1), ("flat", 4)):
        rows = [
            replace(row(score, 0, system, contrast), query_id=f"{contrast}-{style}", style=style, text_stream=system)
            for contrast in CONTRASTS
            for style in STYLES
        ]
        save_rows(folder / "bench" / f"{system}.jsonl", rows)
    return folder


class Fixed(Judge):
    """Scores by a table of style and order: topline, bad and flat of each query follow each other in the rows of a system."""

    name, version, needs_question_audio = "fixed", "1", False

    def __init__(self, table):
        self.table, self.seen = table, []

    def score_batch(self, exchanges, on_progress=None):
        # Files of systems come by name: bad, flat, topline.
        systems = [name for name in ("bad", "flat", "topline") for _ in range(len(exchanges) // 3)]
        found = []
        for system, exchange in zip(systems, exchanges, strict=True):
            score = self.table[exchange.question.style, system]
            reason = f"{score - 3:+.2f} nats for the question's style"
            found.append(Verdict("fixed", "1", "", score, reason, "", 0.0, 0.0) if score else Unscored("fixed", "no words"))
        return found


def audit(run, table, limit=None):
    judge = Fixed({(style, system): value for style, row in table.items() for system, value in row.items()})
    return audit_judge(AnswerJudge(judge), run, limit, lambda done, total: None)


GOOD = {"topline": 5.0, "bad": 1.0, "flat": 5.0}
THANKS = {"topline": 1.0, "bad": 4.0, "flat": 1.0}


def test_a_judge_that_is_wrong_in_one_style_is_found_out(tmp_path):
    found, judged = audit(write_run(tmp_path), {"sincere": GOOD, "sarcastic": THANKS})
    shares = {style: (share.value, share.n, share.n_asked) for style, share in found.wrong_kind.items()}
    assert shares == {"sarcastic": (0.0, 6, 6), "sincere": (1.0, 6, 6), "all": (0.5, 12, 12)}
    # Equal scores are half a win.
    assert {share.value for share in found.wrong_tone.values()} == {0.5}
    assert found.at_chance == ["sarcastic"]
    assert found.sentence == "fixed/1/ is not told from chance in: sarcastic. Nothing should be trained on it there."
    assert (found.n_scored, found.n_answers, len(judged)) == (36, 36, 36)
    assert found.commonest == (1, 0.5)
    expected = np.corrcoef([5, 4, 1] * 12, [5, 5, 1] * 6 + [1, 1, 4] * 6)[0, 1]
    assert found.agreement.value == pytest.approx(expected)
    assert json.loads(json.dumps(found.to_json()))["sentence"] == found.sentence


def test_a_good_judge_a_constant_one_and_one_that_scores_nothing_have_their_sentences(tmp_path):
    run = write_run(tmp_path)
    assert "in every style" in audit(run, {"sincere": GOOD, "sarcastic": GOOD})[0].sentence
    same = dict.fromkeys(GOOD, 4.0)
    assert "says 4 to 100% of all answers: it tells nothing" in audit(run, {"sincere": same, "sarcastic": same})[0].sentence
    nothing, _ = audit(run, dict.fromkeys(STYLES, dict.fromkeys(GOOD, 0.0)))
    assert nothing.sentence == "fixed/1/ scored none of 36 answers: no words."
    assert nothing.wrong_kind["all"].value is None
    assert nothing.unscored == {"no words": 36}
    assert len(audit(run, {"sincere": GOOD, "sarcastic": GOOD}, 4)[1]) == 12


def test_the_verb_prints_it_and_refuses_a_map_of_another_judge(tmp_path, monkeypatch):
    run = write_run(tmp_path)
    monkeypatch.setitem(globals(), "Opened", lambda: Fixed({(style, name): GOOD[name] for style in STYLES for name in GOOD}))
    printed = invoke("judge", "audit", "test_audit:Opened", run).stdout
    assert "1.00 (0.61 to 1.00), 6 of 6" in printed
    assert "36 of 36 scored" in printed
    report = json.loads(invoke("judge", "audit", "test_audit:Opened", run, "--json").stdout)
    assert report["at_chance"] == []
    with pytest.raises(ConfigError, match="--map: it is fitted for a contrast judge"):
        invoke("judge", "audit", "test_audit:Opened", run, "--map", tmp_path / "map.json")
    with pytest.raises(DataError, match="no topline and bad answers; run paras2s bench contrasts"):
        load_answers(tmp_path / "nowhere")
