"""Opens a judge by name or path: the one factory behind every verb and reward source.

A judge is "rubric", "independent", the name of a shipped config (`configs/judges`), a YAML file, or a folder with a distilled
reward model or a UniSRM. The keys of a YAML file tell whether it is an LLM judge, an audio judge, a UniSRM, a judge of
dimensions or a rubric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from paras2s.configs.schema.audio_judge import AudioJudgeConfig, is_audio_judge_config, load_audio_judge_config
from paras2s.configs.schema.base import load_section, preset_path, read_values, shipped_presets
from paras2s.configs.schema.judges import JudgingConfig, load_judging_config
from paras2s.configs.schema.unisrm import UniSRMJudgeConfig, is_unisrm_config, load_unisrm_judge
from paras2s.configs.schema.unisrm_data import DimensionBenchConfig, PairTask
from paras2s.errors import ConfigError
from paras2s.reward.judges.base import Judge

if TYPE_CHECKING:
    from paras2s.reward.judges.audio_judge.concatenation import Speak
    from paras2s.reward.judges.audio_judge.judge import AudioJudge
    from paras2s.reward.judges.llm_judge import LLMJudge
    from paras2s.reward.judges.reward_model_judge import ClipEncoder
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.unisrm.reward.dimensions import DimensionJudge
    from paras2s.unisrm.reward.judge import TaskInputs, UniSRMJudge

RUBRIC, INDEPENDENT, REWARD_MODEL, UNISRM = "rubric", "independent", "reward_model", "unisrm"
WEIGHTS, UNISRM_SETTINGS = "reward_model.safetensors", "unisrm.json"
NEEDS_ITEMS = "this judge needs the texts and clips of a UniSRM item; it is for `bench unisrm`"
# Makes the encoder from the folder of a run.
MakeEncoder = Callable[[Path], "ClipEncoder"]
Kind = Literal["rubric", "independent", "reward_model", "llm", "audio", "unisrm", "dimensions"]


def judge_path(name: str | Path) -> Path:
    """Returns the YAML file of a judge: a path as it is, or the shipped config of that name.

    Raises:
        ConfigError: no shipped config has this name.
    """
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else preset_path(str(name), "judges")


def judge_kind(name: str | Path) -> Kind:
    """Returns the kind of a judge, by its name, the keys of its YAML file, or its folder.

    Raises:
        ConfigError: there is no such judge.
    """
    if str(name) == RUBRIC:
        return "rubric"
    if str(name) == INDEPENDENT:
        return "independent"
    # A shipped name is not looked for on disk: a folder may be called "audio".
    if str(name) == REWARD_MODEL or (Path(name).is_dir() and str(name) not in shipped_judges()):
        return "unisrm" if (Path(name) / UNISRM_SETTINGS).is_file() else "reward_model"
    path = judge_path(name)
    if is_unisrm_config(path):
        return "unisrm"
    if is_audio_judge_config(path):
        return "audio"
    values = read_values(path)
    if isinstance(values, dict) and values.get("kind") == "dimensions":
        return "dimensions"
    return "rubric" if isinstance(values, dict) and "families" in values else "llm"


def refuse_to_teach(name: str | Path, key: str) -> None:
    """Keeps the independent judge out of training: what has taught cannot examine.

    Raises:
        ConfigError: it is the independent judge; names the key of the config.
    """
    if str(name) == INDEPENDENT:
        raise ConfigError(f"{key}: the independent judge examines what is trained, so nothing may learn from it")


def shipped_judges() -> list[str]:
    """Returns the names of the shipped configs."""
    return shipped_presets("judges")


def load_judge_config(name: str | Path, overrides: dict[str, Any] | None = None) -> JudgingConfig | AudioJudgeConfig:
    """Loads the settings of an LLM judge or of an audio judge.

    Raises:
        ConfigError: no such judge, a judge without a config, or a wrong key or value.
    """
    kind = judge_kind(name)
    if kind == "audio":
        return load_audio_judge_config(judge_path(name), overrides)
    if kind == "llm":
        return load_judging_config(judge_path(name), overrides)
    if kind == "dimensions":
        raise ConfigError(f"{name}: {NEEDS_ITEMS}")
    raise ConfigError(f"{name}: this judge makes no call, and has no config of an endpoint")


def load_llm_judge_config(name: str | Path, overrides: dict[str, Any] | None = None) -> JudgingConfig:
    """Loads the settings of a judge that reads blueprints or transcripts.

    Raises:
        ConfigError: as `load_judge_config`, or it is an audio judge.
    """
    config = load_judge_config(name, overrides)
    if isinstance(config, AudioJudgeConfig):
        raise ConfigError(f"{name}: this is an audio judge; it is for `judge pair`, `judge clip`, `bench systems` and `probe`")
    return config


def open_judge(
    name: str | Path,
    overrides: dict[str, Any] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    both_orders: bool | None = None,
    tone: ToneClassifier | Path | str | None = None,
    voice: Speak | None = None,
    encoder: MakeEncoder | None = None,
    calls: bool = True,
) -> Judge:
    """Opens a judge. An audio judge with several tasks is opened as their ensemble.

    Args:
        name: "rubric", "independent", a shipped config such as "trace", a YAML file, or a folder with a reward model.
        overrides: dotted keys laid over the config.
        tasks: an audio judge's tasks, in place of the config's.
        both_orders: whether a pair is judged in both orders; None leaves it to the config.
        tone: a fitted tone classifier, or its file; the rubric and the extractor "tone" need it.
        voice: speaks the signals between clips that an audio judge hears joined.
        encoder: makes the encoder of clips that the reward model of a run needs.
        calls: whether the judge is to judge; False for an estimate, which needs no key.

    Raises:
        ConfigError: no such judge, a wrong setting, or something that this judge needs is missing.
    """
    from paras2s.reward.judges.audio_judge.ensemble import combine_tasks
    from paras2s.reward.judges.audio_judge.judge import AudioJudge

    opened = open_judges(
        name, overrides, tasks=tasks, both_orders=both_orders, tone=tone, voice=voice, encoder=encoder, calls=calls
    )
    audio_judges = [judge for judge in opened if isinstance(judge, AudioJudge)]
    return combine_tasks(audio_judges) if audio_judges else opened[0]


def open_judges(
    name: str | Path,
    overrides: dict[str, Any] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    both_orders: bool | None = None,
    tone: ToneClassifier | Path | str | None = None,
    voice: Speak | None = None,
    encoder: MakeEncoder | None = None,
    calls: bool = True,
) -> list[Judge]:
    """Opens one judge for each task of an audio judge, and a list of one for every other judge; arguments as `open_judge`."""
    kind = judge_kind(name)
    if kind == "audio":
        return list(open_audio_judges(name, overrides, tasks=tasks, both_orders=both_orders, voice=voice, calls=calls))
    if tasks is not None:
        raise ConfigError(f"tasks: only an audio judge has tasks, and {name} is not one")
    if kind == "dimensions":
        raise ConfigError(f"{name}: {NEEDS_ITEMS}")
    if kind == "unisrm":
        return [open_unisrm_judge(name, overrides, both_orders=both_orders, calls=calls)]
    if kind == "llm":
        return [open_llm_judge(name, overrides, both_orders=both_orders, tone=tone, calls=calls)]
    if overrides:
        raise ConfigError(f"{name}: this judge has no config; leave {next(iter(overrides))} out")
    if kind == "rubric":
        return [_open_rubric(name, tone)]
    if kind == "independent":
        from paras2s.reward.judges.independent.judge import IndependentJudge

        return [IndependentJudge()]
    return [_open_reward_model(Path(name), encoder)]


def open_llm_judge(
    name: str | Path,
    overrides: dict[str, Any] | None = None,
    *,
    both_orders: bool | None = None,
    tone: ToneClassifier | Path | str | None = None,
    calls: bool = True,
) -> LLMJudge:
    """Opens a judge that reads blueprints or transcripts, or the shipped baseline "audio".

    Raises:
        ConfigError: it is another kind of judge, or a wrong setting.
    """
    from paras2s.clients.chat import LLMClient
    from paras2s.reward.judges.llm_judge import LLMJudge
    from paras2s.reward.judges.overall_judge import OverallJudge
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.utils.cache import JsonCache

    orders = {} if both_orders is None else {"judge.both_orders": both_orders}
    config = load_llm_judge_config(name, (overrides or {}) | orders)
    if isinstance(tone, str | Path):
        # A run without the extractor may have no such file.
        tone = ToneClassifier.load(Path(tone)) if any(one.name == "tone" for one in config.extractors) else None
    cache = JsonCache(config.cache_dir / "judging.sqlite")
    kind = OverallJudge if config.judge.asks == "overall" else LLMJudge
    return kind(config, LLMClient(config.llm, cache, calls=calls), cache, tone)


def open_audio_judges(
    name: str | Path,
    overrides: dict[str, Any] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    both_orders: bool | None = None,
    voice: Speak | None = None,
    calls: bool = True,
) -> list[AudioJudge]:
    """Opens one audio judge for each task; they share endpoint, budget and cache.

    Raises:
        ConfigError: it is another kind of judge, a wrong setting, or a voice is missing. DataError: examples that do not fit.
    """
    from paras2s.reward.judges.audio_judge.judge import make_judges

    changed = dict(overrides or {})
    changed |= {} if tasks is None else {"tasks": list(tasks)}
    changed |= {} if both_orders is None else {"both_orders": both_orders}
    return make_judges(load_audio_judge_config(judge_path(name), changed), voice, calls)


def load_unisrm_settings(
    name: str | Path, overrides: dict[str, Any] | None = None, both_orders: bool | None = None
) -> UniSRMJudgeConfig:
    """Loads the settings of a UniSRM as a judge; of a checkpoint's folder those of the shipped config.

    Raises:
        ConfigError: a wrong key or value.
    """
    own: dict[str, Any] = {} if both_orders is None else {"both_orders": both_orders}
    if str(name) not in shipped_judges() and (Path(name) / UNISRM_SETTINGS).is_file():
        return load_unisrm_judge(judge_path(UNISRM), (overrides or {}) | own | {"checkpoint": str(name)})
    return load_unisrm_judge(judge_path(name), (overrides or {}) | own)


def open_unisrm_judge(
    name: str | Path,
    overrides: dict[str, Any] | None = None,
    *,
    both_orders: bool | None = None,
    inputs: TaskInputs | None = None,
    calls: bool = True,
) -> UniSRMJudge:
    """Opens a UniSRM; `inputs` name the task that pairs are judged by, and what it takes beside them.

    Without `calls` an endpoint's key is not needed, and only the cost can be estimated.

    Raises:
        ConfigError: a wrong setting. JudgeError: there is no such model.
    """
    from paras2s.unisrm.reward.judge import TaskInputs, UniSRMJudge

    return UniSRMJudge(load_unisrm_settings(name, overrides, both_orders), inputs or TaskInputs(), calls)


def open_dimension_judges(name: str | Path, overrides: dict[str, Any] | None = None) -> dict[PairTask, DimensionJudge]:
    """Opens a judge of dimensions for each task that compares; they share endpoint, budget and cache.

    Raises:
        ConfigError: a wrong setting.
    """
    from paras2s.clients.chat import LLMClient
    from paras2s.unisrm.reward.dimensions import DimensionJudge
    from paras2s.utils.cache import JsonCache

    config = load_section(judge_path(name), overrides, DimensionBenchConfig)
    client = LLMClient(config.llm, JsonCache(config.cache_dir / "judging.sqlite"))
    return {task_id: DimensionJudge(config, task_id, client) for task_id in get_args(PairTask)}


def _open_rubric(name: str | Path, tone: ToneClassifier | Path | str | None) -> Judge:
    from paras2s.reward.judges.rubric import RubricJudge
    from paras2s.reward.tone_classifier import ToneClassifier

    if tone is None:
        raise ConfigError("--tone: the rubric needs a fitted tone classifier, RUN/data/tone_agent.json (tone=... in Python)")
    fitted = tone if isinstance(tone, ToneClassifier) else ToneClassifier.load(Path(tone))
    return RubricJudge(None if str(name) == RUBRIC else Path(name), fitted)


def _open_reward_model(folder: Path, encoder: MakeEncoder | None) -> Judge:
    own = next((place for place in (folder, folder / "reward") if (place / WEIGHTS).is_file()), None)
    if own is None:
        raise ConfigError(f"{folder}: holds no reward model ({WEIGHTS}); give the folder of a run that has distilled one")
    if encoder is None:
        raise ConfigError(f"{folder}: a reward model reads codes; give an encoder of clips")
    from paras2s.reward.judges.reward_model_judge import RewardModelJudge

    return RewardModelJudge(own, encoder(own.parent))
