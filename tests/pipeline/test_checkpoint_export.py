"""A run's policy at any checkpoint as a released folder: it opens with the same log-probs, has a card, and refuses by name.

Not covered: released sizes, and families other than the embedded policy and Kimi-Audio.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tiny.dual_stream import small_prompt
from tiny.job import SIZES, save_tiny_policy
from tiny.kimi import write_kimi
from tiny.settings import align_config
from tiny.whisper_vq import noise
from tiny.world import invoke

import paras2s
from paras2s.bench.results import AnswerRow, save_rows
from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import RunConfig
from paras2s.errors import ConfigError, DataError, ParaS2SError, PolicyError, StorageError
from paras2s.pipeline.export import export_checkpoint
from paras2s.policy.base import Policy
from paras2s.policy.registry import kind_of, load_policy
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.policy.weights import fingerprint
from paras2s.train.learner import Learner
from paras2s.types import Block, Query
from paras2s.utils.io import write_json, write_jsonl

LORA = {"rank": 2, "alpha": 4}
SAMPLING = Sampling(max_steps=6)


@dataclass
class World:
    """A run with one checkpoint after three updates, and what the learner's own policy gives for an answer."""

    run: Path
    checkpoint: Path
    prompts: Sequence[Prompt]
    answers: Sequence[Sequence[Block]]
    expected: torch.Tensor

    def logprobs(self, policy: Policy) -> torch.Tensor:
        with torch.no_grad():
            return policy.logprobs(self.prompts, self.answers, SAMPLING)[0]


def make_world(folder: Path, family: str, lora: dict[str, int] | None) -> World:
    """Weights that a learner could have after three updates: the first, with noise on what is trained."""
    run = folder / "run"
    weights: dict[str, Any] = {}
    if family == "kimi":
        released = write_kimi(folder / "released", dtype=torch.float32)
        load_policy(released, device="cpu").save(run / "sft")
        weights = {"weights": str(released), "kind": "kimi"}
    else:
        save_tiny_policy(run / "sft")
    values = {"device": "cpu", "max_answer_steps": 6, **weights}
    align = align_config(lora=lora, lr=1e-3, steps=5)
    config = RunConfig(name="tiny", run_dir=run, policy=values, warmup={"steps": 0}, align=align)  # type: ignore[arg-type]
    (run / "config.resolved.yaml").write_text(dump_config(config))
    write_json(run / "origin.json", {"version": "0.10.0", "commit": "c0ffee"})
    policy = load_policy(run / "sft", device="cpu")
    learner = Learner(policy, config.align, 6, base=fingerprint(run / "sft"))
    torch.manual_seed(3)
    for parameter in policy.trainable().values():
        parameter.data += 0.05 * torch.randn_like(parameter)
    learner.next_step = 3
    checkpoint = run / "checkpoints/align/step_000003"
    learner.save(checkpoint)
    prompts = [policy.encode_prompt([Turn("user", clip=noise(16_000))])] if family == "kimi" else [small_prompt(SIZES, 1, 4, 0)]
    answers = [policy.generate(SampleRequest(prompts, [[1, 2]], SAMPLING))[0].blocks]
    policy.model.eval()
    world = World(run, checkpoint, prompts, answers, torch.empty(0))
    world.expected = world.logprobs(policy)
    return world


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The embedded policy with adapters; no test changes it."""
    return make_world(tmp_path_factory.mktemp("adapted"), "embedded", LORA)


@pytest.fixture
def own(adapted: World, tmp_path: Path) -> World:
    """A copy, to be spoilt."""
    shutil.copytree(adapted.run, tmp_path / "run")
    place = tmp_path / "run/checkpoints/align/step_000003"
    return World(tmp_path / "run", place, adapted.prompts, adapted.answers, adapted.expected)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapters", "all weights"])
@pytest.mark.parametrize("family", ["embedded", "kimi"])
def test_an_exported_policy_has_the_learners_log_probs(family: str, lora: dict[str, int] | None, tmp_path: Path) -> None:
    world = make_world(tmp_path, family, lora)
    found = export_checkpoint(world.checkpoint, tmp_path / "out")
    assert (found.folder, found.updates) == (tmp_path / "out", 3)
    policy = paras2s.open_policy(tmp_path / "out", device="cpu")
    assert not policy.adapters
    torch.testing.assert_close(world.logprobs(policy), world.expected, atol=0 if lora is None else 2e-5, rtol=0)
    before = paras2s.open_policy(world.run / "sft", device="cpu")
    assert not torch.allclose(world.logprobs(before), world.expected, atol=1e-2)
    # The same files as the family's own checkpoints have, and the card.
    names = {path.name for path in (world.run / "sft").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} - {"README.md", "answers.json"} == names - {"answers.json"}
    assert policy.sampling.max_steps == 6


def test_adapters_alone_open_on_the_weights_beneath(adapted: World, tmp_path: Path) -> None:
    export_checkpoint(adapted.checkpoint, tmp_path / "out", adapters=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "answers.json", "README.md",
    }  # fmt: skip
    assert kind_of(tmp_path / "out") == "embedded"
    policy = paras2s.open_policy(tmp_path / "out", device="cpu")
    torch.testing.assert_close(adapted.logprobs(policy), adapted.expected, atol=2e-5, rtol=0)
    assert "adapters alone" in (tmp_path / "out/README.md").read_text()


def test_kimis_frozen_components_are_pointed_at_or_copied(tmp_path: Path) -> None:
    world = make_world(tmp_path, "kimi", LORA)
    pointed = export_checkpoint(world.checkpoint, tmp_path / "pointed")
    assert set(pointed.missing) == {"whisper-large-v3", "glm-4-voice-tokenizer", "audio_detokenizer", "vocoder"}
    assert "Not in this folder: `" in (tmp_path / "pointed/README.md").read_text()
    copied = export_checkpoint(world.checkpoint, tmp_path / "copied", components=True)
    assert copied.missing == ()
    shutil.rmtree(tmp_path / "released")
    policy = paras2s.open_policy(tmp_path / "copied", device="cpu")
    assert policy.encode_prompt([Turn("user", clip=noise(16_000))]).length == world.prompts[0].length
    with pytest.raises(PolicyError, match="there is no glm-4-voice-tokenizer in it or beside it"):
        paras2s.open_policy(tmp_path / "pointed", device="cpu").encode_prompt([Turn("user", clip=noise(16_000))])


def test_the_runs_own_policies_are_exported_as_well(own: World, tmp_path: Path) -> None:
    """The aligned one, which a run leaves at its end, and the warm-up's."""
    load_policy(export_checkpoint(own.checkpoint).folder, device="cpu").save(own.run / "aligned")
    write_json(own.run / "aligned/trainer.json", {"next_step": 5})
    assert (own.run / "export/step_000003/README.md").is_file()
    found = export_checkpoint(own.run / "aligned")
    assert (found.folder, found.updates) == (own.run / "export/aligned", 5)
    torch.testing.assert_close(own.logprobs(load_policy(found.folder, device="cpu")), own.expected, atol=2e-5, rtol=0)
    assert export_checkpoint(own.run / "sft").updates == 0


def test_the_card_says_what_the_run_knows(own: World) -> None:
    """Two validation answers of two contrasts with rewards 1 and 3: mean 2, standard error 1."""
    queries = [Query(f"q{n}", f"c{n}", "age", None, "validation", "", "", 1.0, "", None, None) for n in range(3)]
    (own.run / "data").mkdir()
    pq.write_table(pa.Table.from_pylist([asdict(query) for query in queries]), own.run / "data/queries.parquet")
    answers = [{"query_id": "q0", "reward": 1.0}, {"query_id": "q1", "reward": 3.0}, {"query_id": "q2", "unscored": "silent"}]
    write_jsonl(own.run / "validation/step_000002/answers.jsonl", answers)
    text = (export_checkpoint(own.checkpoint).folder / "README.md").read_text()
    head = text.split("---\n")[1]
    assert "# license: choose one" in head
    assert yaml.safe_load(head) == {
        "library_name": "paras2s", "pipeline_tag": "audio-to-audio",
        "tags": ["speech-to-speech", "reinforcement-learning", "paras2s"],
    }  # fmt: skip
    assert "# tiny, after 3 of 5 updates" in text
    assert "| reward of answers to validation queries | 2.00 | 0.04 to 3.96 | 2 of 3 |" in text
    assert "| data | scripted questions: 3 validation |" in text
    assert "| reward | reward_model (reward_model), weight 1 |" in text
    assert "adapters of rank 2, alpha 4" in text
    assert "commit c0ffee" in text
    config = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert config["align"]["lora"] == LORA


def judged(number: int, score: float) -> AnswerRow:
    return AnswerRow(
        "aligned", f"q{number}", f"c{number}", "age", "child", "", "", 0, "hi", None, None, {}, score, None, "", None,
        score >= 4, "", 1.0, None, "rubric/1/x", None,
    )  # fmt: skip


def test_the_card_of_the_aligned_policy_has_the_benchs_scores(own: World) -> None:
    """Scores 4 and 2 of two contrasts: mean 3, standard error 1. Of one answer each no contrast can be told apart."""
    shutil.copytree(own.run / "sft", own.run / "aligned")
    write_json(own.run / "aligned/trainer.json", {"next_step": 5})
    save_rows(own.run / "bench/aligned.jsonl", [judged(0, 4.0), judged(1, 2.0)])
    text = (export_checkpoint(own.run / "aligned").folder / "README.md").read_text()
    assert "| score, 1 to 5, of held-out queries by rubric/1/x | 3.00 | 1.04 to 4.96 | 2 of 2 |" in text
    assert "| share of contrasts told apart | not measured: nothing was scored | | 0 of 2 |" in text.replace("|  |", "| |")


def test_a_card_names_what_was_not_measured(own: World) -> None:
    text = (export_checkpoint(own.checkpoint).folder / "README.md").read_text()
    assert "not measured: no validation queries were sampled after 3 updates" in text
    assert "| data | not in the run's folder any more |" in text


def test_by_command_line(own: World, tmp_path: Path) -> None:
    said = invoke("export", own.checkpoint, tmp_path / "out").output
    assert "the policy after 3 updates" in said
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(own.checkpoint, tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match=r"is in no run's folder .*--run"):
        invoke("export", moved, tmp_path / "again")
    found = json.loads(invoke("export", moved, tmp_path / "again", "--run", own.run, "--json").stdout)
    assert found == {"folder": str(tmp_path / "again"), "updates": 3, "missing": []}


def rewritten(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_cannot_be_exported_is_refused_by_name(own: World, tmp_path: Path) -> None:
    def refused(kind: type[ParaS2SError], said: str, checkpoint: Path = own.checkpoint, **options: Any) -> None:
        with pytest.raises(kind, match=said):
            export_checkpoint(checkpoint, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()

    (tmp_path / "empty").mkdir()
    refused(PolicyError, r"empty: is no complete checkpoint: .*; give RUN/checkpoints", tmp_path / "empty")
    refused(PolicyError, r"run: is no complete checkpoint: .*; give .*step_000003", own.run)
    refused(PolicyError, r"absent: is no complete checkpoint", tmp_path / "absent")
    refused(ConfigError, "--adapters: in .*sft adapters are folded in", own.run / "sft", adapters=True)
    refused(ConfigError, "--components: adapters use the components", adapters=True, components=True)
    warm = own.run / "checkpoints/sft/step_000100"
    shutil.copytree(own.checkpoint, warm)
    refused(PolicyError, "step_000100: is a checkpoint of the warm-up", warm)
    rewritten(own.checkpoint / "trainer.json", version=7)
    refused(PolicyError, r"trainer.json: is of version 7 of checkpoints, this program reads 1")
    rewritten(own.checkpoint / "trainer.json", version=1, base="0" * 32)
    refused(PolicyError, r"trainer.json: was trained from other weights")
    (own.checkpoint / "trainer.json").write_text("{")
    refused(DataError, "trainer.json: not valid JSON")


def test_a_folder_that_holds_something_is_left_alone(adapted: World, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(StorageError, match="exists already; give another folder"):
        export_checkpoint(adapted.checkpoint, tmp_path)
    with pytest.raises(StorageError, match="mine: exists already"):
        export_checkpoint(adapted.checkpoint, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "kept"


def test_adapters_of_another_rank_or_of_all_weights_are_refused(own: World, tmp_path: Path) -> None:
    config = own.run / "config.resolved.yaml"
    values = yaml.safe_load(config.read_text())
    values["align"]["lora"] = {"rank": 3, "alpha": 4}
    config.write_text(yaml.safe_dump(values))
    with pytest.raises(
        PolicyError, match=r"trained.safetensors: holds adapters of rank 2, and rank 3 is requested; set lora: \{rank: 2\}"
    ):
        export_checkpoint(own.checkpoint, tmp_path / "out")
    values["align"]["lora"] = None
    config.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match="--adapters: this run trained all weights"):
        export_checkpoint(own.checkpoint, tmp_path / "out", adapters=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base_model_name_or_path": "/nowhere"}, "adapter_config.json: the weights beneath the adapters are not at /nowhere"),
        ({"base_fingerprint": "0" * 32}, "adapter_config.json: the adapters were trained on other weights"),
        ({"r": 5}, r"adapter_model.safetensors: holds adapters of rank 2, and rank 5 is requested; set lora: \{rank: 2\}"),
        ({"r": "two"}, "adapter_config.json: r and lora_alpha must be whole numbers"),
    ],
    ids=["weights gone", "other weights", "another rank", "no number"],
)
def test_adapters_that_do_not_fit_are_refused(change: dict[str, Any], said: str, adapted: World, tmp_path: Path) -> None:
    export_checkpoint(adapted.checkpoint, tmp_path / "out", adapters=True)
    rewritten(tmp_path / "out/adapter_config.json", **change)
    with pytest.raises(PolicyError, match=said):
        paras2s.open_policy(tmp_path / "out", device="cpu")
