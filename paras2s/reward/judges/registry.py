"""Open a judge by name or path: the one factory behind every verb and reward source.

A judge is "rubric", "independent", the name of a shipped config (`configs/judges`), a YAML file, a folder with a distilled
reward model or a UniSRM, the name that an installed package gives it (entry point `paras2s.judges`), or `module:Class`. A YAML
says its `kind:`; `find_judge` reads it once, and every function below takes its result in place of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.judges import (
    INDEPENDENT,
    JUDGE_GROUP,
    ContrastConfig,
    JudgingConfig,
    NamedJudge,
    OwnJudgeConfig,
    find_judge,
)
from paras2s.configs.schema.unisrm import UniSRMJudgeConfig
from paras2s.configs.schema.unisrm_data import DimensionBenchConfig, PairTask
from paras2s.errors import ConfigError, one_line
from paras2s.reward.judges.base import Judge
from paras2s.utils.plugins import find_part

if TYPE_CHECKING:
    from paras2s.configs.schema.endpoints import ExtractorConfig
    from paras2s.reward.judges.audio_judge.concatenation import Speak
    from paras2s.reward.judges.audio_judge.judge import AudioJudge
    from paras2s.reward.judges.contrast import ContrastJudge
    from paras2s.reward.judges.llm_judge import LLMJudge
    from paras2s.reward.judges.reward_model_judge import ClipEncoder
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.unisrm.reward.dimensions import DimensionJudge
    from paras2s.unisrm.reward.judge import TaskInputs, UniSRMJudge

WEIGHTS = "reward_model.safetensors"
# Ours that are opened as those of other packages are: by their class and its options.
BY_CLASS = {"sdiareward": "paras2s.reward.judges.sdiareward:SDiaRewardJudge"}
# Makes the encoder from the folder of a run.
MakeEncoder = Callable[[Path], "ClipEncoder"]
Name = str | Path | NamedJudge
Overrides = Mapping[str, Any] | None


def refuse_to_teach(name: str | Path, key: str) -> None:
    """Keep the independent judge out of training: a teacher cannot examine. Raises ConfigError: names the config's key."""
    if str(name) == INDEPENDENT:
        raise ConfigError(f"{key}: the independent judge examines what is trained, so nothing may learn from it")


def open_judge(
    name: Name,
    overrides: Overrides = None,
    *,
    tasks: Sequence[str] | None = None,
    both_orders: bool | None = None,
    tone: ToneClassifier | Path | str | None = None,
    voice: Speak | None = None,
    encoder: MakeEncoder | None = None,
    calls: bool = True,
) -> Judge:
    """Open a judge. An audio judge with several tasks is opened as their ensemble.

    Args:
        name: "rubric", "independent", a shipped config such as "trace", a YAML, a folder, `module:Class`.
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
    name: Name,
    overrides: Overrides = None,
    *,
    tasks: Sequence[str] | None = None,
    both_orders: bool | None = None,
    tone: ToneClassifier | Path | str | None = None,
    voice: Speak | None = None,
    encoder: MakeEncoder | None = None,
    calls: bool = True,
) -> list[Judge]:
    """Open one judge for each task of an audio judge, and a list of one for every other judge; arguments as `open_judge`."""
    named = find_judge(name)
    if named.kind == "audio":
        return list(open_audio_judges(named, overrides, tasks=tasks, both_orders=both_orders, voice=voice, calls=calls))
    if tasks is not None:
        raise ConfigError(f"tasks: only an audio judge has tasks, and {named.name} is not one")
    if named.kind == "dimensions":
        # Raises: it judges no pair of answers.
        named.config(JudgingConfig)
    if named.kind == "unisrm":
        return [open_unisrm_judge(named, overrides, both_orders=both_orders, calls=calls)]
    if named.kind == "llm":
        return [open_llm_judge(named, overrides, both_orders=both_orders, tone=tone, calls=calls)]
    if named.kind == "contrast":
        return [open_contrast_judge(named, overrides, tone=tone, calls=calls)]
    if named.is_own:
        return [_open_own(named, overrides)]
    if overrides:
        raise ConfigError(f"{named.name}: this judge has no config; leave {next(iter(overrides))} out")
    if named.kind == "rubric":
        return [_open_rubric(named, tone)]
    if named.kind == INDEPENDENT:
        from paras2s.reward.judges.independent.judge import IndependentJudge

        return [IndependentJudge()]
    return [_open_reward_model(named.source or Path(named.name), encoder)]


def open_llm_judge(
    name: Name,
    overrides: Overrides = None,
    *,
    both_orders: bool | None = None,
    tone: ToneClassifier | Path | str | None = None,
    calls: bool = True,
) -> LLMJudge:
    """Open a judge of blueprints or transcripts, or the baseline "audio". Raises ConfigError: another kind, or a setting."""
    from paras2s.clients.chat import LLMClient
    from paras2s.reward.judges.llm_judge import LLMJudge
    from paras2s.reward.judges.overall_judge import OverallJudge
    from paras2s.utils.cache import JsonCache

    orders = {} if both_orders is None else {"judge.both_orders": both_orders}
    config = find_judge(name).config(JudgingConfig, {**(overrides or {}), **orders})
    cache = JsonCache(config.cache_dir / "judging.sqlite")
    kind = OverallJudge if config.judge.asks == "overall" else LLMJudge
    return kind(config, LLMClient(config.llm, cache, calls=calls), cache, _fitted(tone, config.extractors))


def _fitted(tone: ToneClassifier | Path | str | None, extractors: Sequence[ExtractorConfig]) -> ToneClassifier | None:
    """Return a tone classifier that the extractors need, read from its file; a run without them may have no such file."""
    from paras2s.reward.tone_classifier import ToneClassifier

    if isinstance(tone, str | Path):
        return ToneClassifier.load(Path(tone)) if any(extractor.name == "tone" for extractor in extractors) else None
    return tone


def open_scoring_judge(
    name: Name, key: str, overrides: Overrides = None, tone: ToneClassifier | Path | str | None = None
) -> Judge:
    """Open a judge whose scores are learned or paid for: an LLM or contrast judge, or one of the user's own.

    `key` is the config's.

    Raises:
        ConfigError: another kind of judge, the independent judge, or a wrong setting.
    """
    named = find_judge(name)
    refuse_to_teach(named.name, key)
    judge: Judge
    if named.kind == "contrast":
        judge = open_contrast_judge(named, overrides, tone=tone)
    else:
        judge = open_judge(named) if named.is_own else open_llm_judge(named, overrides, tone=tone)
    refuse_to_teach(judge.name, key)
    if type(judge).score_batch is Judge.score_batch:
        raise ConfigError(f"{key}: {judge.name} compares answers, and cannot score a single one")
    return judge


def open_contrast_judge(
    name: Name, overrides: Overrides = None, *, tone: ToneClassifier | Path | str | None = None, calls: bool = True
) -> ContrastJudge:
    """Open a judge by likelihood ratios. Raises ConfigError: another kind, a wrong setting, no such model, or no tones."""
    from paras2s.clients.chat import LLMClient
    from paras2s.reward.judges.contrast import ContrastJudge
    from paras2s.utils.cache import JsonCache

    config = find_judge(name).config(ContrastConfig, overrides)
    cache = JsonCache(config.cache_dir / "judging.sqlite")
    client = LLMClient(config.llm, cache, calls=calls) if config.engine == "completions" else None
    return ContrastJudge(config, client, cache, _fitted(tone, config.extractors))


def open_audio_judges(
    name: Name,
    overrides: Overrides = None,
    *,
    tasks: Sequence[str] | None = None,
    both_orders: bool | None = None,
    voice: Speak | None = None,
    calls: bool = True,
) -> list[AudioJudge]:
    """Open one audio judge for each task; they share endpoint, budget and cache.

    Raises:
        ConfigError: it is another kind of judge, a wrong setting, or a voice is missing. DataError: examples that do not fit.
    """
    from paras2s.reward.judges.audio_judge.judge import make_judges

    changed = dict(overrides or {})
    changed |= {} if tasks is None else {"tasks": list(tasks)}
    changed |= {} if both_orders is None else {"both_orders": both_orders}
    return make_judges(find_judge(name).config(AudioJudgeConfig, changed), voice, calls)


def open_unisrm_judge(
    name: Name,
    overrides: Overrides = None,
    *,
    both_orders: bool | None = None,
    inputs: TaskInputs | None = None,
    calls: bool = True,
) -> UniSRMJudge:
    """Open a UniSRM; `inputs` name the task that pairs are judged by, and what it takes beside them.

    Without `calls` an endpoint's key is not needed, and only the cost can be estimated.

    Raises:
        ConfigError: a wrong setting. JudgeError: there is no such model.
    """
    from paras2s.unisrm.reward.judge import TaskInputs, UniSRMJudge

    orders = {} if both_orders is None else {"both_orders": both_orders}
    config = find_judge(name).config(UniSRMJudgeConfig, {**(overrides or {}), **orders})
    return UniSRMJudge(config, inputs or TaskInputs(), calls)


def open_dimension_judges(name: Name, overrides: Overrides = None, calls: bool = True) -> dict[PairTask, DimensionJudge]:
    """Open a judge of dimensions for each comparing task; they share endpoint, budget and cache. Raises ConfigError."""
    from paras2s.clients.chat import LLMClient
    from paras2s.unisrm.reward.dimensions import DimensionJudge
    from paras2s.utils.cache import JsonCache

    config = find_judge(name).config(DimensionBenchConfig, overrides)
    client = LLMClient(config.llm, JsonCache(config.cache_dir / "judging.sqlite"), calls=calls)
    return {task_id: DimensionJudge(config, task_id, client) for task_id in get_args(PairTask)}


def _open_own(named: NamedJudge, overrides: Overrides) -> Judge:
    options = named.config(OwnJudgeConfig, overrides).options
    try:
        judge = find_part("judge", JUDGE_GROUP, named.kind, BY_CLASS)(**options)
    except TypeError as error:
        raise ConfigError(f"{named.name}: options {options} do not fit {named.kind} ({one_line(error)})") from error
    if not isinstance(judge, Judge):
        raise ConfigError(f"{named.name}: {named.kind} is no subclass of paras2s.Judge")
    return judge


def _open_rubric(named: NamedJudge, tone: ToneClassifier | Path | str | None) -> Judge:
    from paras2s.reward.judges.rubric import RubricJudge
    from paras2s.reward.tone_classifier import ToneClassifier

    if tone is None:
        raise ConfigError("--tone: the rubric needs a fitted tone classifier, RUN/data/tone_agent.json (tone=... in Python)")
    fitted = tone if isinstance(tone, ToneClassifier) else ToneClassifier.load(Path(tone))
    return RubricJudge(named.source, fitted)


def _open_reward_model(folder: Path, encoder: MakeEncoder | None) -> Judge:
    own = next((path for path in (folder, folder / "reward") if (path / WEIGHTS).is_file()), None)
    if own is None:
        raise ConfigError(f"{folder}: holds no reward model ({WEIGHTS}); give the folder of a run that has distilled one")
    if encoder is None:
        raise ConfigError(f"{folder}: a reward model reads codes; give an encoder of clips")
    from paras2s.reward.judges.reward_model_judge import RewardModelJudge

    return RewardModelJudge(own, encoder(own.parent))
