"""Systems that need no model: folders, specs, missing answers; and the refusal to replace another judge's verdicts.

Not covered: endpoints, policies and baselines, which tests/integration/test_bench_paras2s.py benches end to end.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paras2s.audio.clip import Clip, make_clip, write_clip
from paras2s.bench.paras2s.judges import behind_history
from paras2s.bench.results import require_new
from paras2s.bench.systems import (
    FolderSystem,
    LLMBaseline,
    PolicySystem,
    Response,
    SpokenQuestion,
    _chat_turns,
    _prompts_from_clips,
    blind_name,
    open_system,
    question_of_query,
)
from paras2s.configs.schema.curation import CurationConfig
from paras2s.errors import ConfigError, StorageError
from paras2s.policy.types import SampleRequest, Sampling
from paras2s.reward.judges.base import Judge, Utterance
from paras2s.types import PastTurn, Query, Rollout

QUESTIONS = [SpokenQuestion(name, Path(f"{name}.wav"), "words") for name in ("a", "b")]


def nothing(*_: int) -> None:
    pass


def test_a_folder_answers_by_the_names_of_its_files(tmp_path: Path) -> None:
    write_clip(tmp_path / "a-0.wav", make_clip(np.zeros(1000), 8000))
    write_clip(tmp_path / "b-1.flac", make_clip(np.zeros(2000), 8000))
    rows = FolderSystem(tmp_path).answer(QUESTIONS, 2, nothing)
    assert [[one.missing is None for one in row] for row in rows] == [[True, False], [False, True]]
    assert rows[0][1].missing == f"no answer: {tmp_path / 'a-1'}.wav is missing"


def test_a_missing_file_is_named_as_the_others_of_its_folder(tmp_path: Path) -> None:
    """One blind name, as `bench template` gives: a name that says nothing of the style is expected of the others too."""
    write_clip(tmp_path / f"{blind_name('a')}.wav", make_clip(np.zeros(1000), 8000))
    rows = FolderSystem(tmp_path).answer(QUESTIONS, 1, nothing)
    assert [row[0].missing for row in rows] == [None, f"no answer: {tmp_path / blind_name('b')}.wav is missing"]


def test_an_answer_is_missing_without_a_clip_or_with_a_reason() -> None:
    clip = Clip(np.zeros(0, dtype=np.float32), 8000)
    assert Response().missing == "no answer"
    assert Response(clip=clip, failed="it is empty").missing == "it is empty"
    assert Response(clip=clip).missing is None


@pytest.mark.parametrize("spec", ["cascade", "topline"])
def test_a_baseline_needs_a_curation(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the {spec} needs a curation"):
        open_system(spec, None, tmp_path)


def test_a_policy_that_ends_at_once_gives_an_empty_clip_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Engine:
        def __init__(self, policy: object) -> None:
            pass

        def generate(self, ids: list[str], request: SampleRequest) -> list:
            seen.append((ids, request.prompts, request.seeds, request.sampling))
            waves = tuple(np.zeros(n, dtype=np.float32) for n in (0, 10))
            return [Rollout(one, 0, (), (), (), ("", "hi"), (), waves, 8000, "") for one in ids]

    monkeypatch.setattr("paras2s.rollout.engine.NativeEngine", Engine)
    monkeypatch.setattr("paras2s.audio.text_embedding.embed_sentences", lambda texts: None)
    policy = SimpleNamespace(sampling=Sampling(1.0, 0.8, 600, text_top_k=1))
    system = PolicySystem(policy, seed=3, prompts=lambda policy, questions: [one.id for one in questions])  # type: ignore[arg-type]
    rows = system.answer(QUESTIONS, 2, nothing)
    assert [one.missing for one in rows[0]] == ["the policy ended its answer before it began", None]
    assert rows[0][0].clip is not None
    assert (seen[0][0], seen[0][1], len(seen[0][2])) == (["a", "b"], ["a", "b"], 2)
    assert seen[0][3] is policy.sampling


def question_behind(folder: Path, *history: PastTurn) -> SpokenQuestion:
    for name in ("q", "u"):
        write_clip(folder / f"{name}.wav", make_clip(np.full(800, 0.1 if name == "q" else 0.2), 8000))
    query = Query("q", "", None, None, "test", "", "q.wav", 0.1, "what now", None, None, history)
    return question_of_query(query, folder)


def test_policies_endpoints_and_judges_are_given_the_turns_before_a_question(tmp_path: Path) -> None:
    question = question_behind(tmp_path, PastTurn("user", "hi", "u.wav"), PastTurn("assistant", "yes"))
    seen = _prompts_from_clips(SimpleNamespace(encode_prompt=list), [question])[0]  # type: ignore[arg-type]
    assert [(turn.role, turn.text, turn.clip is not None) for turn in seen] == [  # type: ignore[attr-defined]
        ("user", "hi", True), ("assistant", "yes", False), ("user", "what now", True),
    ]  # fmt: skip
    first, second, last = _chat_turns(question)
    assert isinstance(first, Clip)
    assert isinstance(last, Clip)
    assert (round(float(first.samples[0]), 1), second, round(float(last.samples[0]), 1)) == (0.2, "yes", 0.1)
    judge, last = Judge(), Utterance(None, "what now")
    assert behind_history(judge, question.history, last) is last
    judge.reads_history = True
    history = behind_history(judge, question.history, last).history
    assert [(speaker, said.text, said.clip is not None) for speaker, said in history] == [
        ("user", "hi", True), ("assistant", "yes", False),
    ]  # fmt: skip
    assert behind_history(judge, (), last) is last


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (PastTurn("user", "hi"), "question q: turns.0 of its history is the user's and has no clip"),
        (PastTurn("assistant", "", "u.wav"), "question q: turns.0 of its history is the assistant's and has no words"),
    ],
)
def test_a_turn_that_an_endpoint_cannot_be_given_is_named(turn: PastTurn, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        _chat_turns(question_behind(tmp_path, turn))
    with pytest.raises(ConfigError, match="topline: answers one question, and q has turns before it"):
        LLMBaseline(CurationConfig(kind="curation", name="x"), True).answer([question_behind(tmp_path, turn)], 1, nothing)


def test_verdicts_of_another_judge_are_not_replaced() -> None:
    require_new(Path("v.jsonl"), ["j/1/a"], ["j/1/a", "j/2/b"])
    with pytest.raises(StorageError, match=r"v\.jsonl holds verdicts of j/1/a; give another --out"):
        require_new(Path("v.jsonl"), ["j/1/a"], ["j/2/a"])
