"""Settings: every shipped file parses, unknown keys and bad values are named, overrides, round trip, no torch.

Not covered: whether a setting has the effect its description says; the tests of each stage show that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from paras2s.configs.schema.ablation import load_ablation
from paras2s.configs.schema.align import (
    AlignConfig,
    LoraConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RolloutRoleConfig,
    SamplingConfig,
    WorkersConfig,
)
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.base import dump_config, parse_config, preset_path
from paras2s.configs.schema.curation import load_curation
from paras2s.configs.schema.judges import FILE_KINDS, ContrastConfig, JudgingConfig, find_judge
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.configs.schema.unisrm import UniSRMJudgeConfig, load_unisrm_config
from paras2s.configs.schema.unisrm_data import DimensionBenchConfig, load_unisrm_data
from paras2s.data_gen.curation.categories import load_categories
from paras2s.data_gen.curation.pipeline import check_config
from paras2s.data_gen.scripted.scripts import load_contrasts
from paras2s.errors import ConfigError
from paras2s.pipeline.ablate import row_config
from paras2s.policy.registry import POLICIES
from paras2s.reward.blueprint.extract import make_extractors
from paras2s.reward.fusion import find_rule
from paras2s.reward.judges.audio_judge.ensemble_rules import find_ensemble
from paras2s.reward.judges.audio_judge.tasks import find_task
from paras2s.reward.judges.registry import open_llm_judge
from paras2s.run import with_run_dir
from paras2s.utils.epochs import rows_of_step

CONFIGS = Path(str(resources.files("paras2s"))) / "configs"
SHIPPED = sorted(CONFIGS.glob("*.yaml"))
JUDGES = sorted(CONFIGS.glob("judges/*.yaml"))
PAPER = sorted(CONFIGS.glob("paper/*.yaml"))
DATA = sorted(CONFIGS.glob("data/*.yaml"))
CLUSTERS = sorted((CONFIGS / "clusters").glob("*.yaml"))
FAMILIES = sorted((CONFIGS / "policies").glob("*.yaml"))
UNISRM = sorted(CONFIGS.glob("unisrm/*.yaml"))
UNISRM_DATA = sorted(CONFIGS.glob("unisrm/data/*.yaml"))
# Sizes of released models, which tests/planning/test_dry_run.py builds.
RELEASED = sorted(CONFIGS.glob("released/*.yaml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_there_are_shipped_configs() -> None:
    assert len(SHIPPED) >= 3
    assert {"demo", "quick", "full"} <= {path.stem for path in SHIPPED}
    assert {"trace", "trace_paper", "transcript", "audio"} <= {path.stem for path in JUDGES}
    assert {"fig2a", "fig3a", "fig3b", "fig3c", "reward_sources"} <= {path.stem for path in PAPER}
    assert {"local", "paper"} <= {path.stem for path in DATA}
    assert {"paper", "without_grpo", "without_rcr", "no_reasoning"} <= {path.stem for path in UNISRM}
    known = (*SHIPPED, *JUDGES, *PAPER, *DATA, *CLUSTERS, *FAMILIES, *UNISRM, *UNISRM_DATA, *RELEASED)
    assert sorted(known) == sorted(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("path", UNISRM, ids=lambda path: path.stem)
def test_a_shipped_unisrm_parses(path: Path) -> None:
    assert load_unisrm_config(path.stem).name == path.stem


@pytest.mark.parametrize("path", UNISRM_DATA, ids=lambda path: path.stem)
def test_shipped_settings_of_unisrms_data_parse_and_speak_both_languages(path: Path) -> None:
    config = load_unisrm_data(path.stem)
    assert config.name == path.stem
    assert {language for voice in config.voices if voice.copies for language in voice.languages} == {"en", "zh"}


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_every_shipped_curation_resolves_and_has_the_voices_it_needs(path: Path) -> None:
    curation = load_curation(path)
    assert curation.name == path.stem
    check_config(curation, load_categories(curation.category_file))


def test_a_language_model_that_learns_to_hear_is_small_and_learns_as_a_whole() -> None:
    config = load_config(CONFIGS / "demo.yaml", {"policy.weights": "models/none", "policy.kind": "spoken_lm"})
    assert (config.policy.max_answer_steps, config.warmup.lora, config.align.lora) == (32, None, None)


@pytest.mark.parametrize("path", [path for path in FAMILIES if path.stem != "spoken_lm"], ids=lambda path: path.stem)
def test_a_released_model_starts_from_its_family(path: Path, tmp_path: Path) -> None:
    assert path.stem in POLICIES
    weights = {"policy.weights": "models/none", "policy.kind": path.stem}
    config = load_config(CONFIGS / "demo.yaml", weights)
    assert config.policy.max_answer_steps > 500
    assert config.warmup.lr == 1e-5
    assert config.warmup.lora == config.align.lora == LoraConfig(rank=16, alpha=32)
    own = load_config(CONFIGS / "demo.yaml", {**weights, "policy.max_answer_steps": 100, "align.lora": None})
    assert (own.policy.max_answer_steps, own.align.lora, own.warmup.lr) == (100, None, 1e-5)


def test_a_family_is_known_by_what_the_checkpoint_calls_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MoonshotKimiaForCausalLM"]}')
    config = load_config(CONFIGS / "demo.yaml", {"policy.weights": str(tmp_path)})
    assert (config.policy.max_answer_steps, config.bench.audio_top_k) == (600, 10)
    assert load_config(CONFIGS / "demo.yaml").policy.max_answer_steps == 52


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy.kind": "my:Policy"}, r"the demo's 52 steps would cut a released model's answers.*moshi"),
        ({"policy.kind": "kimi", "warmup.lora": None, "warmup.lr": 1.5e-3}, r"warmup.lr is 0.0015, .* more than 0.001 .*1e-05"),
        ({"policy.kind": "kimi", "align.lora": None, "align.optimizer.lr": 2e-3}, r"align.optimizer.lr is 0.002"),
        ({"policy.kind": "my:Policy", "policy.max_answer_steps": 9}, r"warmup.lr is 0.0015"),
    ],
    ids=["the demo's length", "the demo's warm-up", "GRPO", "the demo's rate by default"],
)
def test_what_would_ruin_a_released_model_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(CONFIGS / "demo.yaml", {"policy.weights": "models/none", **changes})


def test_the_papers_preset_reads_the_papers_data_once() -> None:
    """ParaS2S, appendix C: 10k demonstrations, 32 answers to each of 10k prompts, 100k RL prompts."""
    config = load_config(CONFIGS / "kimi_paper.yaml")
    omni, align = config.distill.omni, config.align
    assert omni is not None
    assert config.warmup.steps == -(-10_000 // config.warmup.batch_size)
    assert omni.steps * omni.batch_size == 10_000 * config.distill.answers_per_query == 320_000
    assert align.steps * align.sampling.queries_per_step == 100_000
    # By the order that the training goes in: every pair once, no demonstration left out.
    pairs = Counter(row for step in range(omni.steps) for row in rows_of_step(step, omni.batch_size, 320_000, [0, 11]))
    assert (len(pairs), set(pairs.values())) == (320_000, {1})
    shown = {row for step in range(config.warmup.steps) for row in rows_of_step(step, config.warmup.batch_size, 10_000, [0, 1])}
    assert len(shown) == 10_000
    # Every stage uses the eight devices; Ray fills a device before it takes the next, so each worker has all of one.
    for role in (config.warmup.learner, config.distill.rollout):
        assert role is not None
        assert (role.count, role.gpus) == (8, 1)
    assert config.policy.transcript_in_prompt


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_every_row_of_a_shipped_ablation_resolves(path: Path) -> None:
    ablation = load_ablation(path)
    assert ablation.name == path.stem
    configs = [row_config(ablation, row, 0) for row in ablation.rows]
    assert len({config.run_dir for config in configs}) == len(configs)
    assert [config.seed for config in configs] == [0] * len(configs)


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)
def test_a_shipped_judge_parses_and_its_extractors_exist(path: Path) -> None:
    named = find_judge(path)
    assert named.values["kind"] == named.kind in FILE_KINDS
    if named.kind == "unisrm":
        assert named.config(UniSRMJudgeConfig).kind == "unisrm"
        return
    if named.kind == "dimensions":
        assert named.config(DimensionBenchConfig).llm.model == "gpt-audio"
        return
    if named.kind == "contrast":
        styles = [style for category in named.config(ContrastConfig).styles.values() for style in category]
        assert set(styles) >= {style for contrast in load_contrasts() for style in contrast.styles}
        assert len(styles) == len(set(styles))
        return
    if named.kind == "audio":
        config = named.config(AudioJudgeConfig)
        assert preset_path(path.stem, "judges") == path
        assert all(find_task(task) for task in config.tasks)
        pairs = [task for task in config.tasks if find_task(task).clips == 2]
        assert len(pairs) < 2 or set(find_ensemble(config.ensemble).aspects) <= set(pairs)
        return
    config = named.config(JudgingConfig)
    assert config.name == path.stem
    assert preset_path(path.stem, "judges") == path
    assert len(make_extractors(config.extractors)) == len(config.extractors)
    assert find_rule(config.judge.fusion)


def test_the_audio_ensemble_is_the_defaults() -> None:
    assert find_judge("audiojudge").config(AudioJudgeConfig) == AudioJudgeConfig()


def test_a_judge_of_the_other_kind_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="audiojudge: this is an audio judge"):
        open_llm_judge("audiojudge")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"tasks": ["lexical", "lexical"]}, "twice"),
        ({"strategy": "pair_example"}, "joins examples"),
        ({"shots": 4}, "shots: needs 'examples'"),
        ({"audio": {"format": "aac"}}, "format"),
        ({"silence": 0.5}, "unknown key"),
        ({"silence_s": ".inf"}, "silence_s"),
        ({"samples": 5}, "temperature 0"),
        ({"audio": {"format": "mp3", "sample_rate_hz": 20_000}}, "mp3 has"),
    ],
)
def test_a_wrong_audio_judge_is_refused(tmp_path: Path, values: dict, why: str) -> None:
    (tmp_path / "j.yaml").write_text(json.dumps({"samples": 1} | values))
    with pytest.raises(ConfigError, match=why):
        find_judge(tmp_path / "j.yaml").config(AudioJudgeConfig)


def test_the_trace_judge_is_the_defaults() -> None:
    assert find_judge("trace").config(JudgingConfig) == JudgingConfig()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_config_parses_and_is_named_like_its_file(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert config.run_dir == Path("runs") / path.stem
    assert preset_path(path.stem) == path


def test_the_demo_is_the_defaults() -> None:
    assert load_config(preset_path("demo")) == RunConfig()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_dumped_config_loads_as_itself(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    text = dump_config(config)
    again = load_config(write(tmp_path, text))
    assert again == config
    assert dump_config(again) == text


def test_a_dump_holds_every_key() -> None:
    text = dump_config(RunConfig())
    sections = (AlignConfig, SamplingConfig, ObjectiveConfig, OptimizerConfig, WorkersConfig, RolloutRoleConfig)
    assert [key for section in sections for key in section.model_fields if f"  {key}:" not in text] == []


def test_a_section_has_few_keys_of_its_own() -> None:
    """57 flat keys of `align` were what nobody could read."""
    for section in (AlignConfig, SamplingConfig, ObjectiveConfig, OptimizerConfig, WorkersConfig):
        assert len(section.model_fields) <= 16


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("surprise: 1", r"run\.yaml: surprise: unknown key"),
        ("align: {stpes: 3}", r"run\.yaml: align\.stpes: unknown key"),
        ("align: {steps: many}", r"run\.yaml: align\.steps: .*\(got 'many'\)"),
        ("align: {steps: 0}", r"run\.yaml: align\.steps: .*greater than or equal to 1 \(got 0\)"),
        ("align: {objective: {loss_type: ppo}}", r"run\.yaml: align\.objective\.loss_type: .*'dr_grpo'.*\(got 'ppo'\)"),
        ("align: 3", r"run\.yaml: align: "),
        ("[1, 2]", r"run\.yaml: expected a mapping of sections, got list"),
        ("just words", r"run\.yaml: expected a mapping of sections, got str"),
        ("align: {steps: 3", r"run\.yaml: not valid YAML"),
        ("align:\n\t- steps", r"run\.yaml: not valid YAML"),
    ],
)
def test_a_wrong_config_is_named_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        load_config(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_every_wrong_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "surprise: 1\nalign: {steps: 0}"))
    assert "surprise" in str(caught.value)
    assert "align.steps" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such config"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match=r"binary\.yaml"):
        load_config(tmp_path / "binary.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.yaml"):
        load_config(tmp_path / "folder.yaml")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "# nothing\n")) == RunConfig()


def test_overrides_are_laid_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "name: mine\nalign: {steps: 7, sampling: {group_size: 3}}")
    config = load_config(path, {"align.steps": 9, "bench.answers_per_query": 5, "seed": 4})
    assert (config.align.steps, config.align.sampling.group_size, config.bench.answers_per_query) == (9, 3, 5)
    assert (config.seed, config.name) == (4, "mine")
    assert load_config(path).align.steps == 7


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        ("", {"align.stpes": 3}, r"align\.stpes: unknown key"),
        ("", {"alien.steps": 3}, "alien: unknown key"),
        ("seed: 3", {"seed.deep": 3}, r"seed\.deep: 'seed' is a value, not a section"),
        ("[1]", {"align.steps": 3}, "expected a mapping of sections, got list"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, text: str, overrides: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        load_config(write(tmp_path, text), overrides)
    assert "\n" not in str(caught.value)


def test_an_override_makes_a_section_that_is_null(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "align:"), {"align.steps": 3}).align.steps == 3


def test_configs_are_frozen() -> None:
    config = parse_config({}, "here", RunConfig)
    with pytest.raises(ValueError, match="frozen"):
        config.align.steps = 3  # type: ignore[misc]


def test_another_seed_has_a_folder_of_its_own() -> None:
    config = RunConfig()
    assert with_run_dir(config, None, None) == config
    assert with_run_dir(config, None, 2).run_dir == Path("runs/demo-seed2")
    assert with_run_dir(config, None, 2).seed == 2
    assert with_run_dir(config, Path("x"), 2).run_dir == Path("x")


@pytest.mark.parametrize("name", ["", "nonsense", "demo.yml"])
def test_an_unknown_preset_says_which_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match="there are demo, full, kimi_paper, quick"):
        preset_path(name)


def test_settings_and_commands_import_nothing_heavy() -> None:
    heavy = ("torch", "ray", "transformers", "numpy")
    code = f"import sys, paras2s.configs.schema.run, paras2s.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_a_rule_between_settings_is_said_without_all_of_them() -> None:
    changes = {"policy.weights": "models/none", "policy.kind": "my:P", "policy.max_answer_steps": 9}
    with pytest.raises(ConfigError, match=r"more than 0\.001") as refused:
        load_config(CONFIGS / "demo.yaml", changes)
    assert "(got" not in str(refused.value)
    assert len(str(refused.value)) < 400
