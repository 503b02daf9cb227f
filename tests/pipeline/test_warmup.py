"""Which demonstrated contrasts a warm-up learns from, by hand, and that one that was killed goes on.

Not covered: training itself (train/test_sft.py) and real demonstrations (integration/test_cli.py).
"""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt

from paras2s.configs.schema.run import RunConfig, WarmupConfig
from paras2s.data_gen.dataset import Dataset
from paras2s.errors import ConfigError, PolicyError
from paras2s.pipeline import warmup
from paras2s.pipeline.align import run_align
from paras2s.pipeline.demonstrations import first_contrasts
from paras2s.pipeline.warmup import run_warmup
from paras2s.policy.base import Policy
from paras2s.run import Run
from paras2s.train.sft import Example, Warmup
from paras2s.types import Query
from paras2s.utils.io import read_jsonl


def query(contrast: str, category: str, style: str) -> Query:
    return Query(f"{contrast}-{style}", contrast, category, "food", "demonstration", "m1", "x.wav", 1.0, "", "", style)  # type: ignore[arg-type]


QUERIES = [
    query("e0", "emotion", "happy"),
    query("e0", "emotion", "sad"),
    query("a0", "age", "adult"),
    query("e1", "emotion", "sad"),
    query("a1", "age", "child"),
    query("e1", "emotion", "fear"),
    query("e0", "emotion", "happy"),
]


@pytest.mark.parametrize(("count", "rows"), [(1, [0, 1, 2, 6]), (2, [0, 1, 2, 3, 4, 5, 6]), (9, [0, 1, 2, 3, 4, 5, 6])])
def test_by_hand(count: int, rows: list[int]) -> None:
    assert first_contrasts(QUERIES, count) == [QUERIES[row] for row in rows]


def test_a_number_for_each_category() -> None:
    assert first_contrasts(QUERIES, {"emotion": 2, "age": 1}) == [QUERIES[row] for row in (0, 1, 2, 3, 5, 6)]
    with pytest.raises(ConfigError, match=r"warmup\.demonstration_contrasts: has no number for age"):
        first_contrasts(QUERIES, {"emotion": 2})


@pytest.mark.parametrize("value", [0, {"emotion": 0}, {"emotion": "many"}])
def test_numbers_of_contrasts_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="demonstration_contrasts"):
        WarmupConfig.model_validate({"demonstration_contrasts": value})


def demonstrations(policy: Any, *_: Any) -> list[Example]:
    rng = torch.Generator().manual_seed(0)
    codes = [torch.randint(0, 4, (5, 2), generator=rng).numpy() for _ in range(3)]
    prompts = [small_prompt(small_config(), 1, 3, seed) for seed in range(3)]
    return [Example(prompt, (policy.target_block(one, [1, 2]),)) for prompt, one in zip(prompts, codes, strict=True)]


def test_a_killed_warm_up_goes_on_to_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy and demonstrations are the tests' own; the loop, its checkpoints and its log are real."""

    def policy_of(*_: Any) -> Policy:
        return small_policy(small_model(small_config()).float())

    monkeypatch.setattr(warmup, "first_policy", policy_of)
    monkeypatch.setattr(warmup, "make_examples", demonstrations)
    monkeypatch.setattr(warmup, "learned_demonstrations", lambda *_: [])
    monkeypatch.setattr(warmup, "CHECKPOINT_EVERY", 2)
    still = {"words_dropped": 0.0, "codes_dropped": 0.0, "prosody_noise": 0.0, "words_noise": 0.0}
    settings = {"steps": 5, "batch_size": 2, "augment": still}

    def run_of(name: str) -> Run:
        config = RunConfig(run_dir=tmp_path / name, cache_dir=tmp_path / "cache", warmup=settings)  # type: ignore[arg-type]
        return Run(config, Console(file=io.StringIO()), quiet=True)

    data: Dataset = None  # type: ignore[assignment] - nothing reads it here
    run_warmup(run_of("straight"), data)
    step = Warmup.step

    def killed_at_3(self: Warmup, number: int) -> dict[str, float]:
        if number == 3:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(Warmup, "step", killed_at_3)
    with pytest.raises(KeyboardInterrupt):
        run_warmup(run_of("killed"), data)
    monkeypatch.setattr(Warmup, "step", step)
    run_warmup(run_of("killed"), data)
    straight, killed = (list(read_jsonl(tmp_path / name / "warmup.jsonl")) for name in ("straight", "killed"))
    assert [row["step"] for row in killed] == [0, 1, 2, 3, 4]
    assert killed == straight


def test_words_that_questions_need_are_missed_before_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.model_validate({"policy": {"weights": tmp_path, "kind": "csm", "max_answer_steps": 9},
                                       "warmup": {"lr": 1e-5}, "align": {"optimizer": {"lr": 1e-5}},
                                       "run_dir": str(tmp_path / "run")})  # fmt: skip
    monkeypatch.setattr(warmup, "check_run", lambda _: None)
    dataset = SimpleNamespace(queries=QUERIES)
    with pytest.raises(PolicyError, match="CSM speaks given words"):
        run_warmup(Run(config, Console(file=io.StringIO())), dataset)  # type: ignore[arg-type]


def test_nothing_is_aligned_before_a_warm_up(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"run_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=r"there is no policy to align; run `paras2s warmup` first"):
        run_align(Run(config, Console(file=io.StringIO())), SimpleNamespace(), False)  # type: ignore[arg-type]
