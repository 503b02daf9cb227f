"""An RL algorithm is one file that is found by its name, and has a row in the docs.

Not covered: the values of the losses (test_losses.py) and of the advantages (test_advantages.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paras2s.configs.schema import align
from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig, algorithm_names
from paras2s.errors import ConfigError
from paras2s.train import algorithms
from paras2s.train.advantages import ADVANTAGES
from paras2s.train.algorithm import check_algorithm, load_algorithm, rule_of
from paras2s.train.losses import LogProbBatch, grpo_loss

DOCS = Path(__file__).parents[2] / "docs" / "concepts.md"
REINFORCE = """
from paras2s.train.algorithm import Algorithm


def likelihood(ratio, advantages, logp, objective):
    return -advantages * logp


ALGORITHM = Algorithm(
    likelihood,
    average="batch",
    rule="best",
    check=lambda config: None if config.objective.kl_weight else "needs a kl_weight",
)
"""


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_is_complete_and_in_the_docs(name: str) -> None:
    algorithm = load_algorithm(name)
    assert (algorithm.term is None) != (algorithm.pair_term is None)
    assert algorithm.rule is None or algorithm.rule in ADVANTAGES
    assert f"\n| `{name}` |" in DOCS.read_text()
    check_algorithm(AlignConfig(objective=ObjectiveConfig(loss_type=name)))


def test_a_new_algorithm_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no such algorithm; there are 'bnpo'"):
        ObjectiveConfig(loss_type="reinforce")
    (tmp_path / "reinforce.py").write_text(REINFORCE)
    monkeypatch.setattr(align, "ALGORITHMS", tmp_path)
    monkeypatch.setattr(algorithms, "__path__", [str(tmp_path)])
    objective = ObjectiveConfig(loss_type="reinforce", average="joint", kl_weight=0.0)
    assert rule_of(objective) == "best"
    with pytest.raises(ConfigError, match=r"align\.objective: loss_type reinforce: needs a kl_weight"):
        check_algorithm(AlignConfig(objective=objective))
    logp, one = torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2)
    batch = LogProbBatch(logp, logp, logp, one, torch.tensor([[0, 1]]), torch.zeros(1, 2, dtype=torch.long))
    assert grpo_loss(batch, torch.tensor([1.0]), objective, 2).loss.item() == 2.0
