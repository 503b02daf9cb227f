"""The gate: who passes and who is refused, by hand-made models, teachers and sources; what is kept, asked once and reported.

The figures themselves are those of `judge audit` (tests/bench/paras2s/test_audit.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paras2s.audio.clip import make_clip, write_clip
from paras2s.bench.audit import AUDITS, audit_warnings, run_audits
from paras2s.clients.rewards import RewardClient
from paras2s.configs.schema.endpoints import HttpRewardConfig
from paras2s.configs.schema.judges import OmniServedConfig
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig, RunConfig
from paras2s.data_gen.dataset import Manifest
from paras2s.errors import JudgeError
from paras2s.pipeline import audit
from paras2s.pipeline.learned_answers import KEPT_OUT, LEARNED_FILE, AnswerRow, write_answers
from paras2s.reward.reward_model.omni_vllm import ServedOmni
from paras2s.reward.reward_model.teachers import Cost
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.http import HttpSource
from paras2s.reward.sources.omni import OmniSource
from paras2s.run import Run
from paras2s.types import Demonstration, Query, Reward, Role, Unscored
from paras2s.utils.progress import open_console

STYLES = ("sincere", "sarcastic")
ENOUGH = 8


def queries(contrasts: int, role: Role = "validation") -> list[Query]:
    return [
        Query(f"c{n}-{style}", f"c{n}", "sarcasm", "t", role, "m1", "q.wav", 1.0, "Lovely.", "Lovely.", style)
        for n in range(contrasts)
        for style in STYLES
    ]


def dataset(folder: Path, contrasts: int = ENOUGH, role: Role = "validation") -> Manifest:
    write_clip(folder / "q.wav", make_clip(0.1 * np.ones(1600, dtype=np.float32), 16_000))
    own = queries(contrasts, role)
    # The text of each answer is the style that it fits.
    return Manifest(folder, tuple(own), tuple(Demonstration(query.id, query.style or "", "calm", "q.wav") for query in own), ())


def open_run(folder: Path, anyway: bool = False, **sections: Any) -> Run:
    config = RunConfig(name="x", run_dir=folder / "run", cache_dir=folder / "cache", **sections)
    return Run(config, open_console(), quiet=True, anyway=anyway)


# The reward model. An answer's first code is its kind: 0 sincere, 1 sarcastic, 2 neither.


def kinds_paid(style: str, kind: int) -> float:
    return 1.0 if kind == 2 else 5.0 if STYLES[kind] == style else 1.0


def keep_answers(run: Run, every_style: bool) -> None:
    """Of each question one answer of its kind, one of the other's, and one that is worth nothing."""
    rows = [
        AnswerRow(KEPT_OUT, query.id, np.full((4, 1), kind), {
            style: kinds_paid(style, kind) for style in STYLES if every_style or style == query.style})
        for query in queries(ENOUGH) for kind in (0, 1, 2)
    ]  # fmt: skip
    write_answers(run.reward_dir / LEARNED_FILE, rows)


class Model:
    """Scores by a function of the question's place, style, and the answer's kind."""

    config = SimpleNamespace(styles=STYLES)

    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def score_every(self, given: list[Query], answers: list[np.ndarray]) -> np.ndarray:
        return np.array([[self.scores(q.style, int(codes[0, 0]), n) for n, codes in enumerate(answers)] for q in given])

    def score_for(self, styles: list[str], answers: list[np.ndarray]) -> list[float]:
        return [float(len(codes)) for codes in answers]


RNG = np.random.default_rng(0).normal(size=10_000)
HALF_DEAF = {"sincere": "sincere", "sarcastic": "sincere"}


@pytest.mark.parametrize("every_style", [True, False])
@pytest.mark.parametrize(
    ("scores", "at_chance"),
    [
        (lambda style, kind, n: kinds_paid(style, kind), []),
        # Right on average over both styles, by the words alone; it knows what is no answer, too.
        (lambda style, kind, n: kinds_paid(HALF_DEAF[style], kind) + (kind < 2), ["sarcastic"]),
        (lambda style, kind, n: 3.0, ["sarcastic", "sincere"]),
        (lambda style, kind, n: RNG[n], ["sarcastic", "sincere"]),
    ],
    ids=["hears", "reads words alone", "constant", "shuffled labels"],
)
def test_a_reward_model_at_chance_in_a_style_is_found_out(
    scores: Any, at_chance: list[str], every_style: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(tmp_path)
    keep_answers(run, every_style)
    monkeypatch.setattr(audit, "encode_questions", lambda data, queries: list(queries))
    monkeypatch.setattr(audit, "code_clips", shown_codes)
    found = audit.audit_reward_model(run, dataset(tmp_path), Model(scores))  # type: ignore[arg-type]
    assert found is not None
    assert sorted(found.at_chance) == at_chance
    assert found.contrasts == dict.fromkeys(STYLES, ENOUGH)
    assert {kind: share.value for kind, share in found.hacks.items()} == {"shuffled": 1.0, "twice": 1.0, "reversed": 1.0}


def shown_codes(clips: list[Any]) -> list[np.ndarray]:
    """The demonstrations in the order of `queries`, each of its kind, then beside each that of the other style."""
    half = len(clips) // 2
    return [np.full((4, 1), (number + number // half) % 2) for number in range(2 * half)]


@pytest.mark.parametrize(("right", "at_chance"), [(True, []), (False, ["sarcastic", "sincere"])])
def test_a_teacher_of_noisy_scores_is_not_what_its_model_is_measured_by(
    right: bool, at_chance: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(tmp_path)
    # All answers are of their kind, and their scores differ by the teacher's noise alone.
    write_answers(run.reward_dir / LEARNED_FILE, [
        AnswerRow(KEPT_OUT, query.id, np.full((4, 1), STYLES.index(query.style)), {query.style: 3.5 + 0.1 * n})
        for n, query in enumerate(queries(ENOUGH))
    ])  # fmt: skip
    monkeypatch.setattr(audit, "encode_questions", lambda data, queries: list(queries))
    monkeypatch.setattr(audit, "code_clips", shown_codes)
    model = Model(lambda style, kind, n: kinds_paid(style, kind) if right else RNG[n])
    found = audit.audit_reward_model(run, dataset(tmp_path), model)  # type: ignore[arg-type]
    assert found is not None
    assert sorted(found.at_chance) == at_chance
    assert {style: found.wrong_kind[style].n for style in STYLES} == dict.fromkeys(STYLES, ENOUGH)


def test_the_audit_of_a_reward_model_is_kept_beside_it_and_needs_held_out_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, encoded = open_run(tmp_path), []
    data = dataset(tmp_path)
    assert audit.reward_model_record(run, data, Model(None)) is None  # type: ignore[arg-type]
    keep_answers(run, True)
    monkeypatch.setattr(audit, "encode_questions", lambda data, queries: encoded.append(1) or list(queries))
    model = Model(lambda style, kind, n: kinds_paid(style, kind))
    made = audit.reward_model_record(run, data, model)  # type: ignore[arg-type]
    assert made == audit.reward_model_record(run, data)
    assert made is not None
    assert (made["refused"], len(encoded)) == (False, 1)


# The gate.


def test_what_is_refused_stops_or_goes_on_and_every_report_says_so(tmp_path: Path) -> None:
    record = {"refused": True, "sentence": "m is not told from chance in: sad."}
    with pytest.raises(JudgeError, match=r"refuses the teacher: m is not told from chance in: sad\. To do: ask others; or add"):
        audit.keep_audit(open_run(tmp_path), "teacher", record, "ask others")
    audit.keep_audit(open_run(tmp_path), "reward model", record, "more labels", stop=False)
    audit.keep_audit(open_run(tmp_path, anyway=True), "llm", record, "another")
    audit.keep_audit(open_run(tmp_path), "fine", {"refused": False, "sentence": "good."}, "")
    assert list(run_audits(tmp_path / "run")) == ["fine", "llm", "reward model", "teacher"]
    said = audit_warnings(tmp_path / "run")
    assert said == [f"The audit refused its {role}: {record['sentence']}" for role in ("llm", "reward model", "teacher")]


class Teacher:
    """Gives a gold answer 5, a wrong one `wrong`; counts what it is asked."""

    name, free = "t/1/", False

    def __init__(self, wrong: float | None) -> None:
        self.wrong, self.requests = wrong, 0

    def scores(self, requests: Any, on_progress: Any) -> list[Any]:
        self.requests += len(requests)
        half = len(requests) // 2
        worse = [Unscored("t", "no") if self.wrong is None else {r.style: self.wrong} for r in requests[half:]]
        return [{request.style: 5.0} for request in requests[:half]] + worse

    def cost(self, requests: Any) -> Cost:
        return Cost(len(requests), 0.1)

    @property
    def spent(self) -> Cost:
        return Cost(self.requests, 0.01 * self.requests)


@pytest.mark.parametrize(("wrong", "refused"), [(1.0, False), (5.0, True), (None, False)])
def test_a_teacher_is_audited_once_for_its_data(wrong: float | None, refused: bool, tmp_path: Path) -> None:
    data, teacher, run = dataset(tmp_path), Teacher(wrong), open_run(tmp_path, anyway=True)
    for _ in range(2):
        audit.audit_teacher(run, data, teacher)  # type: ignore[arg-type]
    assert teacher.requests == 4 * ENOUGH
    found = run_audits(run.folder)["teacher"]
    assert (found["refused"], found["n_scored"]) == (refused, 2 * ENOUGH if wrong is None else 4 * ENOUGH)
    assert found["total_usd"] == pytest.approx(0.01 * 4 * ENOUGH)
    if refused:
        with pytest.raises(JudgeError, match="choose another judge"):
            audit.audit_teacher(open_run(tmp_path), data, teacher)  # type: ignore[arg-type]


class ByPlace(Teacher):
    """Gives each third of the answers (gold, wrong, to another topic) a score of its own."""

    def __init__(self, *thirds: float) -> None:
        super().__init__(None)
        self.thirds = thirds

    def scores(self, requests: Any, on_progress: Any) -> list[Any]:
        given = [(request.style, self.thirds[3 * number // len(requests)]) for number, request in enumerate(requests)]
        return [{style: score} if score else Unscored("t", "no") for style, score in given]


def two_categories(folder: Path) -> Manifest:
    """The dataset, and the same in another category with other styles."""
    data, named = dataset(folder), {"sincere": "male", "sarcastic": "female"}
    others = [
        replace(q, id=f"g-{q.id}", contrast_id=f"g-{q.contrast_id}", category="gender", style=named[q.style or ""])
        for q in data.queries
    ]
    shown = [Demonstration(query.id, query.style or "", "calm", "q.wav") for query in others]
    return replace(data, queries=(*data.queries, *others), demonstrations=(*data.demonstrations, *shown))


# 0: it leaves them without a score, which is no finding.
@pytest.mark.parametrize(("off_topic", "refused"), [(1.0, False), (5.0, True), (0.0, False)])
def test_a_teacher_that_minds_no_topic_is_refused(off_topic: float, refused: bool, tmp_path: Path) -> None:
    data = two_categories(tmp_path)
    run = open_run(tmp_path, anyway=True)
    audit.audit_teacher(run, data, ByPlace(5.0, 1.0, off_topic))  # type: ignore[arg-type]
    found = run_audits(run.folder)["teacher"]
    assert (found["refused"], found["n_scored"]) == (refused, (3 if off_topic else 2) * 4 * ENOUGH)
    assert sorted(found["at_chance"]) == (["female", "male", "sarcastic", "sincere"] if refused else [])
    assert found["other_topic"]["all"]["value"] == {1.0: 1.0, 5.0: 0.5, 0.0: None}[off_topic]
    assert ("beside answers to another topic 0.50 (0.50 to 0.50), 8 of 8" in found["sentence"]) == refused


def test_a_teacher_is_not_asked_where_the_data_can_tell_nothing(tmp_path: Path) -> None:
    teacher, run = Teacher(1.0), open_run(tmp_path)
    audit.audit_teacher(run, dataset(tmp_path, 3), teacher)  # type: ignore[arg-type]
    assert (teacher.requests, run_audits(run.folder)) == (0, {})


class Source:
    """A reward in the composite's place: each group's scores by `rule` of its places."""

    rule: Any = None
    part: Any = None
    groups = 0
    needs_codes = False

    def __init__(self, setup: Any) -> None:
        self.setup, self.sources = setup, [Source.part]

    def score(self, groups: Any) -> list[list[Reward | Unscored]]:
        Source.groups += len(groups)
        return [[Unscored(*value) if isinstance(value, tuple) else Reward(value, {}) for value in Source.rule(group)]
                for group in groups]  # fmt: skip


def first_wins(group: Any) -> list[float]:
    return [5.0, 1.0]


def gold_wins(group: Any) -> list[float]:
    return [5.0 if answer.text == group.question.style else 1.0 for answer in group.answers]


PARTS = {
    **dict.fromkeys(("llm", "rubric", "pairwise"), SimpleNamespace(judge=SimpleNamespace(label="judge/1"))),
    # A class of the user's own with a version is asked once, a server is by now another one perhaps.
    "mine:Judge": SimpleNamespace(version="1"),
    "mine:Meter": SimpleNamespace(judges=False),
}
IN_BOTH_ORDERS = ("pairwise", "http", "mine:Judge")


@pytest.mark.parametrize(
    ("kind", "rule", "refused"),
    [(kind, rule, rule is first_wins and kind in IN_BOTH_ORDERS)
     for kind in ("llm", "rubric", "pairwise", "omni", "http", "mine:Judge") for rule in (gold_wins, first_wins)]
    + [(kind, first_wins, None) for kind in (*audit.MEASURING, "mine:Meter")],
)  # fmt: skip
def test_whatever_judges_is_audited_and_what_may_compare_in_both_orders(
    kind: str, rule: Any, refused: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "CompositeReward", Source)
    monkeypatch.setattr(Source, "rule", staticmethod(rule))
    monkeypatch.setattr(Source, "part", PARTS.get(kind, SimpleNamespace()))
    monkeypatch.setattr(Source, "groups", 0)
    data = dataset(tmp_path)
    run = open_run(tmp_path, anyway=True, reward=RewardConfig(sources=(RewardSourceConfig(kind=kind),)))
    for _ in range(2):
        audit.audit_rewards(run, data, lambda given: [SimpleNamespace(style=query.style) for query in given])  # type: ignore[arg-type,misc]
    kept = run_audits(run.folder)
    assert (kept[kind]["refused"] if kept else None) == refused
    if kept:
        # What no client of ours counts is unknown, and not nothing.
        assert kept[kind]["total_usd"] == (None if kind in ("http", "mine:Judge") else 0.0)
    n_groups = 0 if refused is None else (4 if kind in IN_BOTH_ORDERS else 2) * (2 if kind == "http" else 1)
    assert Source.groups == n_groups * ENOUGH
    if refused:
        assert audit_warnings(run.folder) == [f"The audit refused its {kind}: {kept[kind]['sentence']}"]
        said = (
            "choose another reward"
            if kind == "pairwise"
            else "choose another reward; if it measures and judges nothing, say so"
        )
        with pytest.raises(JudgeError, match=said):
            audit.audit_rewards(open_run(tmp_path, reward=run.config.reward), data, lambda given: list(given))  # type: ignore[arg-type,misc]
    if kind == "pairwise":
        assert kept[kind]["position"]["first"]["value"] == (1.0 if rule is first_wins else 0.5)
        assert kept[kind]["position"]["consistent"]["value"] == (0.0 if rule is first_wins else 1.0)


@pytest.mark.parametrize("kind", ["llm", "http", "pairwise"])
@pytest.mark.parametrize(("rule", "refused"), [("topics", False), ("kinds", True)])
def test_a_source_that_minds_no_topic_is_refused_but_for_one_that_compares(
    kind: str, rule: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    category = {"sincere": "sarcasm", "sarcastic": "sarcasm", "male": "gender", "female": "gender"}

    def rewards(group: Any) -> list[float]:
        style = group.question.style
        off = 1.0 if rule == "topics" else 5.0
        return [5.0 if a.text == style else 1.0 if category[a.text] == category[style] else off for a in group.answers]

    monkeypatch.setattr(audit, "CompositeReward", Source)
    monkeypatch.setattr(Source, "rule", staticmethod(rewards))
    monkeypatch.setattr(Source, "part", PARTS.get(kind, SimpleNamespace()))
    run = open_run(tmp_path, anyway=True, reward=RewardConfig(sources=(RewardSourceConfig(kind=kind),)))
    data = two_categories(tmp_path)
    audit.audit_rewards(run, data, lambda given: [SimpleNamespace(style=query.style) for query in given])  # type: ignore[arg-type,misc]
    found = run_audits(run.folder)[kind]
    assert found["refused"] == (refused and kind != "pairwise")
    off = {} if kind == "pairwise" else {"all": 0.5 if refused else 1.0}
    assert {name: share["value"] for name, share in found["other_topic"].items() if name == "all"} == off


@pytest.mark.parametrize("kind", ["llm", "pairwise"])
def test_why_a_source_scores_nothing_is_said(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CompositeReward", Source)
    monkeypatch.setattr(Source, "rule", staticmethod(lambda group: [("j", "the reply is cut off"), 1.0]))
    monkeypatch.setattr(Source, "part", PARTS[kind])
    run = open_run(tmp_path, anyway=True, reward=RewardConfig(sources=(RewardSourceConfig(kind=kind),)))
    audit.audit_rewards(run, dataset(tmp_path), lambda given: [SimpleNamespace(style=query.style) for query in given])  # type: ignore[arg-type,misc]
    found = run_audits(run.folder)[kind]
    # In both orders every answer is once the first, and so has no score.
    missing = {"llm": 2, "pairwise": 4}[kind] * ENOUGH
    assert found["unscored"] == {"the reply is cut off": missing}
    assert found["n_scored"] == 4 * ENOUGH - missing


def test_an_align_of_an_earlier_run_audits_its_reward_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(tmp_path)
    keep_answers(run, True)
    monkeypatch.setattr(audit, "encode_questions", lambda data, queries: list(queries))
    monkeypatch.setattr(audit.RewardModel, "load", lambda folder: Model(lambda style, kind, n: 3.0))
    with pytest.raises(JudgeError, match=r"refuses the reward model: .*give it more labels .*--anyway"):
        audit.audit_rewards(run, dataset(tmp_path), list)  # type: ignore[arg-type]
    assert (run.reward_dir / AUDITS).is_file()
    # With recorded preferences it only evaluates.
    audit.audit_rewards(open_run(tmp_path, align={"preferences": {"file": "p.jsonl"}}), dataset(tmp_path), list)  # type: ignore[arg-type]


def test_what_an_audit_costs_at_most_is_known_of_whatever_is_asked(tmp_path: Path) -> None:
    clip = make_clip(0.1 * np.ones(1600, dtype=np.float32), 16_000)
    groups = [Group(RewardQuestion("q", None, "Lovely.", "sincere", clip), (GivenAnswer(1, "a", clip),) * 2)] * 9
    paid = HttpRewardConfig(url="http://127.0.0.1:9", batch_size=16, usd_per_answer=0.01)
    omni = OmniServedConfig.model_validate({"llm": {"model": "omni", "base_url": "http://127.0.0.1:9/v1"}})
    served, mine = OmniSource(ServedOmni(omni)), SimpleNamespace(judges=True)
    bills = [audit._bill(part, groups, False) for part in (HttpSource(RewardClient(paid)), served, mine)]  # type: ignore[arg-type]
    assert bills == [(2, pytest.approx(0.18)), (18, 0.0), (0, 0.0)]
    assert [HttpSource(RewardClient(paid.model_copy(update={"judges": judges}))).judges for judges in (True, False)] == [
        True,
        False,
    ]
