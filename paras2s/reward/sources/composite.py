"""Several sources as one reward. The combination is a pure function of the parts, so a stored run can be re-scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from paras2s.audio.clip import Clip
from paras2s.clients.rewards import RewardClient
from paras2s.configs.schema.endpoints import HttpRewardConfig, LLMConfig
from paras2s.configs.schema.judges import UNISRM, OmniServedConfig, find_judge
from paras2s.configs.schema.run import SOURCE_GROUP, OmniConfig, RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError, one_line
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.parallel import JUDGE_EXTRACTORS
from paras2s.reward.judges.audio_judge.ensemble import require_preferences
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Judge
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.registry import open_judge, open_scoring_judge, open_unisrm_judge, refuse_to_teach
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.reward_model.omni import OmniRewardModel, read_adapter_config
from paras2s.reward.reward_model.omni_vllm import ServedOmni
from paras2s.reward.sources.base import Group, RewardSource
from paras2s.reward.sources.http import HttpSource
from paras2s.reward.sources.judge import JudgeSource
from paras2s.reward.sources.local import LengthSource, ModelSource, OverlongSource, QualitySource, WordErrorSource
from paras2s.reward.sources.omni import InProcess, OmniSource
from paras2s.reward.sources.pairwise import PairwiseSource
from paras2s.reward.sources.self_contrast import AnswerReader, SelfContrastSource
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Reward, Unscored
from paras2s.utils.plugins import find_part

# Sources that are conditioned on the question's style; a classifier predicts it, since RL prompts have no labels.
STYLE_SOURCES = ("rubric", "llm", "pairwise", "http", SelfContrastSource.kind)


# These read a question and an answer, and no turn before them.
LAST_TURN_ALONE = (RewardModel.name, "omni", "rubric", SelfContrastSource.kind)


def check_scopes(config: RewardConfig, with_history: Sequence[str]) -> None:
    """Check that sources which judge the last turn alone are told so; `with_history` names the questions with a history.

    Raises:
        ConfigError: one is not.
    """
    for source in config.sources if with_history else ():
        if source.kind in LAST_TURN_ALONE and source.scope == "dialogue":
            raise _judges_last_turn(source, with_history[0])


def _judges_last_turn(source: RewardSourceConfig, question: str) -> ConfigError:
    return ConfigError(
        f"reward.sources: {source.key}: judges an answer to one question, and question {question} has turns before it; set its "
        "scope to last to judge the last turn alone, or take llm, pairwise or http with a judge that reads dialogues"
    )


def combine(parts: Mapping[str, float | Unscored], sources: Sequence[RewardSourceConfig]) -> Reward | Unscored:
    """Return the weighted mean of an answer's parts, each from 1 to 5.

    A required source that could not score leaves the answer unscored. An optional one is left out, and the weights of the
    others count alone; all left out is unscored too.
    """
    total, weight = 0.0, 0.0
    present: dict[str, float] = {}
    missing: list[Unscored] = []
    for source in sources:
        value = parts[source.key]
        if not isinstance(value, Unscored) and not math.isfinite(value):
            value = Unscored(source.key, f"the score is {value}")
        if isinstance(value, Unscored):
            if source.required:
                return value
            missing.append(value)
            continue
        present[source.key] = value
        total += source.weight * value
        weight += source.weight
    return Reward(total / weight, present) if weight else missing[0]


@dataclass(frozen=True)
class RewardSetup:
    """The config of the sources, and the folder and the file of the run that they read.

    `refreshed` is the folder of a reward model that has taken the place of the distilled one; None: none has. `open_reader`
    opens the frozen policy for `self_contrast`.
    """

    config: RewardConfig
    model_dir: Path
    agent_tone: Path
    refreshed: Path | None = None
    open_reader: Callable[[], AnswerReader] | None = None

    def needs(self, kind: str) -> bool:
        """Return whether a source of this kind is configured."""
        return any(source.kind == kind for source in self.config.sources)

    @property
    def needs_style(self) -> bool:
        """Whether a source reads the style of the question; a source of the user's own may."""
        return any(source.kind in STYLE_SOURCES or source.kind not in MAKERS for source in self.config.sources)


class CompositeReward:
    """Scores groups with all sources and combines the scores. All sources share one blueprint of an answer."""

    def __init__(self, setup: RewardSetup) -> None:
        self.setup = setup
        self.sources = [make_source(source, setup) for source in setup.config.sources]
        names = list(dict.fromkeys(name for source in self.sources for name in source.extractors))
        tone = ToneClassifier.load(setup.agent_tone) if "tone" in names else None
        self.extractors = make_extractors(names, tone)

    @property
    def needs_sound(self) -> bool:
        """Whether answers must come with their waveform."""
        return bool(self.extractors) or any(source.needs_sound for source in self.sources)

    @property
    def needs_codes(self) -> bool:
        """Whether answers must come with the embedded codec's codes."""
        return any(source.needs_codes for source in self.sources)

    def score(self, groups: Sequence[Group]) -> list[list[Reward | Unscored]]:
        """Return rewards [B, G]."""
        measured = self._measured(groups)
        named = zip(self.setup.config.sources, self.sources, strict=True)
        scores = {config.key: source.score(_in_scope(config, source, measured)) for config, source in named}
        return [
            [
                combine({key: rows[index][number] for key, rows in scores.items()}, self.setup.config.sources)
                for number in range(len(group.answers))
            ]
            for index, group in enumerate(groups)
        ]

    def _measured(self, groups: Sequence[Group]) -> list[Group]:
        if not self.extractors:
            return list(groups)
        silence = Clip(np.zeros(0, dtype=np.float32), 16_000)
        clips = [answer.clip or silence for group in groups for answer in group.answers]
        blueprints = iter(build_blueprints(clips, self.extractors))
        return [
            replace(group, answers=tuple(replace(answer, blueprint=next(blueprints)) for answer in group.answers))
            for group in groups
        ]


def _in_scope(config: RewardSourceConfig, source: RewardSource, groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups as a source is to judge them: with the turns before their questions, or without.

    Raises:
        ConfigError: there are such turns, and its judge does not read them.
    """
    question_id = next((group.question.id for group in groups if group.question.history), None)
    if question_id is None:
        return groups
    if config.scope == "last":
        return [replace(group, question=replace(group.question, history=())) for group in groups]
    if refuses_history(source):
        raise _judges_last_turn(config, question_id)
    return groups


def refuses_history(source: RewardSource | CompositeReward) -> bool:
    """Return whether a source, or one of a combined reward, judges an answer to one question alone."""
    if isinstance(source, CompositeReward):
        named = zip(source.setup.config.sources, source.sources, strict=True)
        return any(config.scope == "dialogue" and refuses_history(own) for config, own in named)
    judge: Judge | None = getattr(source, "judge", None)
    return source.kind in LAST_TURN_ALONE or (judge is not None and not judge.reads_history)


def make_source(config: RewardSourceConfig, setup: RewardSetup) -> RewardSource:
    """Make one source.

    Raises:
        ConfigError: options that its kind does not have, or a class that is no source.
    """
    options: dict[str, Any] = dict(config.options)
    refuse_to_teach(str(options.get("judge", "")), f"reward.sources: {config.kind}.judge")
    try:
        if config.kind in MAKERS:
            return MAKERS[config.kind](options, setup)
        own = find_part("reward source", SOURCE_GROUP, config.kind, {})(**options)
    except (TypeError, ValidationError) as error:
        raise ConfigError(
            f"reward.sources: {config.kind}: options {config.options} do not fit it ({one_line(error)})"
        ) from error
    needed = ("kind", "extractors", "needs_sound", "needs_codes", "score")
    if missing := [name for name in needed if not hasattr(own, name)]:
        raise ConfigError(f"reward.sources: {config.kind} is no reward source: it has no {missing[0]}")
    source: RewardSource = own
    return source


def _judge(options: dict[str, Any], setup: RewardSetup) -> RewardSource:
    judge = open_scoring_judge(str(options.pop("judge", "trace")), "reward.sources: llm.judge", tone=setup.agent_tone)
    _refuse(options)
    return JudgeSource(judge)


def _rubric(options: dict[str, Any], setup: RewardSetup) -> RewardSource:
    _refuse(options)
    return JudgeSource(RubricJudge(), "rubric", JUDGE_EXTRACTORS)


def _pairwise(options: dict[str, Any], setup: RewardSetup) -> RewardSource:
    judge = open_judge(str(options.pop("judge", "trace")), tone=setup.agent_tone)
    refuse_to_teach(judge.name, "reward.sources: pairwise.judge")
    if isinstance(judge, AudioJudge):
        require_preferences([judge])
    if isinstance(judge, LLMJudge) and judge.expects and judge.pair_scored is None:
        raise ConfigError(
            "reward.sources: pairwise: judge.read: expected reads one label of a pair, and this judge gives three; choose "
            "transcript_overall or audio_overall, or judge.read: reply"
        )
    return PairwiseSource(judge, **options)


def _unisrm(options: dict[str, Any], setup: RewardSetup) -> RewardSource:
    """Open a trained UniSRM: `judges` "pairs" compares a group's answers (T4), "single" scores each answer's quality (T2)."""
    name, judges = str(options.pop("judge", UNISRM)), options.pop("judges", "pairs")
    # Before a model of many gigabytes is read.
    try:
        named = find_judge(name)
    except ConfigError as error:
        raise ConfigError(f"reward.sources: unisrm: {error}; `paras2s unisrm run` trains one") from error
    if named.kind != UNISRM:
        raise ConfigError(f"reward.sources: unisrm: judge {name} is no UniSRM; give its folder or YAML")
    if judges not in ("pairs", "single"):
        raise ConfigError("reward.sources: unisrm: judges must be pairs or single")
    if judges == "pairs":
        return PairwiseSource(open_unisrm_judge(named), **options)
    _refuse(options)
    return JudgeSource(open_unisrm_judge(named), UNISRM)


def _reward_model(options: dict[str, Any], setup: RewardSetup) -> RewardSource:
    return ModelSource(RewardModel.load(setup.refreshed or setup.model_dir), **options)


def _self_contrast(options: dict[str, Any], setup: RewardSetup) -> RewardSource:
    if setup.open_reader is None:
        raise ConfigError("reward.sources: self_contrast reads answers with a run's warm-up, and there is no run")
    return SelfContrastSource(setup.open_reader(), **options)


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        raise TypeError(f"unexpected {next(iter(options))}")


def _omni(options: dict[str, Any], setup: RewardSetup) -> InProcess | ServedOmni:
    """Return the model behind a server if `base_url` is given, else one of this process with an adapter."""
    if "base_url" in options:
        called = {key: options.pop(key) for key in list(options) if key in LLMConfig.model_fields}
        return ServedOmni(
            OmniServedConfig.model_validate({"llm": {"model": OmniConfig().model, "concurrency": 16, **called}, **options})
        )
    own = setup.model_dir / "omni"
    adapter = options.pop("adapter", str(own) if (own / "omni.json").is_file() else None)
    if trained := sorted(set(options) - {"model", "batch_size", "max_audio_s", "prompts"}):
        raise TypeError(f"{trained[0]} is a setting of its training")
    # It rewards with the settings and the prompt of its training.
    trained_with: dict[str, Any] = read_adapter_config(Path(str(adapter))) if adapter is not None else {}
    settings = OmniConfig.model_validate({**trained_with, **options})
    return InProcess(OmniRewardModel.pretrained(settings, Path(str(adapter)) if adapter else None))


MAKERS: dict[str, Callable[[dict[str, Any], RewardSetup], RewardSource]] = {
    "reward_model": _reward_model,
    "omni": lambda options, setup: OmniSource(_omni(options, setup)),
    "unisrm": _unisrm,
    "rubric": _rubric,
    "llm": _judge,
    "pairwise": _pairwise,
    SelfContrastSource.kind: _self_contrast,
    "word_errors": lambda options, setup: WordErrorSource(**options),
    "quality": lambda options, setup: QualitySource(**options),
    "length": lambda options, setup: LengthSource(**options),
    "overlong": lambda options, setup: OverlongSource(**options),
    "http": lambda options, setup: HttpSource(RewardClient(HttpRewardConfig.model_validate(options))),
}
