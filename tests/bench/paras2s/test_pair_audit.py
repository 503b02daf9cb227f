"""The audit of a judge that only compares: shares by hand, order, hacks, repetition, bill, and an audio judge by the verb."""

import base64
import io
import json

import numpy as np
import pytest
import soundfile
from test_audit import LEVELS, STYLES, write_run
from tiny.endpoint import Say, ScriptedEndpoint
from tiny.world import invoke

from paras2s.audio.clip import make_clip, write_clip
from paras2s.bench.paras2s.audit import HACKS
from paras2s.bench.paras2s.pair_audit import PairAudit, only_compares
from paras2s.configs.schema.judges import find_judge
from paras2s.data_gen.dataset import save_tables
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.base import Judge, preference_of
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.types import PastTurn, Query, Unscored


def level_of(samples):
    """The system that a clip is of, by its level; a hack is of none."""
    return next((name for name, level in LEVELS.items() if abs(np.median(samples) - level) < 0.01), "hack")


class Compares(Judge):
    """Prefers the answer of the system that it likes in a style; equal where it likes neither, or both."""

    name, version, needs_question_audio = "compares", "1", False

    def __init__(self, **liked):
        self.liked, self.calls = liked, 0

    def label(self, pair, count):
        liked = self.liked.get(pair.instruction.style, "topline")
        first, second = (level_of(clip.samples) == liked for clip in (pair.first, pair.second))
        return "tie" if first == second else "1" if first else "2"

    def compare_batch(self, pairs, on_progress=None):
        made = []
        for pair in pairs:
            self.calls += 1
            label = self.label(pair, self.calls)
            made.append(label if not isinstance(label, str) else preference_of("c", "1", "", "t", label, "so", 0.01, 0.5))
        return made


def audit(run, judge, limit=None):
    return PairAudit(judge, run, limit).run(lambda done, total: None)[0]


def test_a_judge_that_prefers_thanks_in_one_style_is_found_out(tmp_path):
    judge = Compares(sarcastic="bad")
    found = audit(write_run(tmp_path), judge)
    shares = {style: (share.value, share.n, share.n_asked) for style, share in found.wrong_kind.items()}
    assert shares == {"sarcastic": (0.0, 6, 6), "sincere": (1.0, 6, 6), "all": (0.5, 12, 12)}
    # Beside gold words in a neutral voice it likes neither when sarcastic: half a win.
    assert {style: share.value for style, share in found.wrong_tone.items()} == {"sarcastic": 0.5, "sincere": 1.0, "all": 0.75}
    assert (found.at_chance, found.refused) == (["sarcastic"], True)
    # 24 pairs and 30 hacks of six gold answers in both orders; twelve pairs are asked again.
    assert (found.n_scored, found.n_answers, judge.calls) == (108, 108, 120)
    assert (found.position.first.value, found.position.consistent.value, found.repeated.value) == (0.5, 1.0, 1.0)
    assert found.cost_usd.value == pytest.approx(0.01)
    # The gold answers that are made into hacks are one of each contrast, all sincere.
    assert {kind: (share.value, share.n) for kind, share in found.hacks.items()} == dict.fromkeys(HACKS, (0.0, 6))
    assert {share.value for share in audit(tmp_path, Compares(sincere="bad")).hacks.values()} == {1.0}


def test_the_place_alone_and_a_whim_are_found_out(tmp_path):
    class First(Compares):
        def label(self, pair, count):
            return "1"

    found = audit(write_run(tmp_path), First())
    assert {share.value for share in found.wrong_kind.values()} == {0.5}
    assert (found.position.first.value, found.position.consistent.value, found.refused) == (1.0, 0.0, True)

    class Whim(Compares):
        def label(self, pair, count):
            return "1" if count <= 108 else "2"

    assert audit(tmp_path, Whim()).repeated.value == 0.0


def test_a_missing_verdict_has_its_reason_and_a_spent_budget_stops(tmp_path):
    class Mute(Compares):
        def label(self, pair, count):
            return Unscored("c", "no words")

    found = audit(write_run(tmp_path), Mute())
    assert (found.n_scored, found.unscored, found.wrong_kind["all"].value) == (0, {"no words": 108}, None)

    class Half(Compares):
        def label(self, pair, count):
            # Of each pair of orders the second is lost: no half of a pair counts.
            return "1" if count % 2 else Unscored("c", "lost")

    found = audit(tmp_path, Half())
    assert (found.n_scored, found.wrong_kind["all"].n, found.position.first.n) == (54, 0, 0)

    class Spent(Compares):
        def label(self, pair, count):
            return BudgetError("spent")

    with pytest.raises(BudgetError, match="spent"):
        audit(tmp_path, Spent())


def test_questions_are_asked_behind_their_turns(tmp_path):
    run, seen = write_run(tmp_path), []
    before = (PastTurn("user", "I lost my job."), PastTurn("assistant", "I am sorry."))

    class Reads(Compares):
        reads_history = True

        def label(self, pair, count):
            seen.append(pair.instruction.said_before)
            return super().label(pair, count)

    chosen = PairAudit(Reads(), run, 1)
    chosen.histories = {row.query_id: before for row in chosen.given}
    chosen.run(lambda done, total: None)
    assert seen
    assert {len(turns) for turns in seen} == {2}
    # Read from the file beside the tables of the run's data.
    query = Query("c0-sincere", "c0", "sarcasm", None, "test", "", "q.wav", 0.1, "Hi", "Hi", "sincere", before)
    write_clip(run / "data/q.wav", make_clip(np.full(800, 0.1), 8000))
    save_tables(run / "data", [query], [], [])
    assert PairAudit(Reads(), run, 1).histories == {"c0-sincere": before}


def test_judges_of_pairs_are_known_by_their_kind_and_class():
    assert only_compares(find_judge("rubric"), Compares())
    assert not only_compares(find_judge("rubric"), RubricJudge())
    assert only_compares(find_judge("audiojudge"), RubricJudge())


def test_a_task_that_prefers_neither_answer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="its task style_following does not say which of two answers is better"):
        invoke("judge", "audit", "styleset", write_run(tmp_path), "--estimate")


def levels(sent):
    sounds = [part["input_audio"]["data"] for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"]
    return [level_of(soundfile.read(io.BytesIO(base64.b64decode(sound)))[0]) for sound in sounds]


def test_an_audio_judge_is_audited_by_the_verb_in_one_order_at_a_time(tmp_path):
    run = write_run(tmp_path / "run")
    with ScriptedEndpoint(
        lambda sent, _: Say(json.dumps({"reasoning": "", "label": "12"[levels(sent)[-1] == "topline"]}))
    ) as server:
        llm = {"base_url": server.base_url, "model": "hears", "max_attempts": 1, "structured": "never"}
        config = {"kind": "audio", "tasks": ["paralinguistic"], "llm": llm, "cache_dir": str(tmp_path / "cache")}
        (tmp_path / "hears.yaml").write_text(json.dumps(config))
        assert "120 calls" in invoke("judge", "audit", tmp_path / "hears.yaml", run, "--estimate").stdout
        assert server.requests == []
        report = json.loads(invoke("judge", "audit", tmp_path / "hears.yaml", run, "--json").stdout)
    # Equal requests are one call: answers of a system, and so its pairs, are all alike here. Asked again is a call of its own.
    assert 0 < len(server.requests) <= 120
    assert report["wrong_kind"]["all"]["value"] == 1.0
    assert (report["position"]["consistent"]["value"], report["repeated"]["value"], report["at_chance"]) == (1.0, 1.0, [])
    assert set(report["contrasts"]) == set(STYLES)
