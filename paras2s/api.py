"""The nouns of the public API that need a line or two of wiring; `paras2s/__init__.py` exports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from paras2s.audio.clip import Clip
    from paras2s.policy.base import Policy
    from paras2s.policy.subject import Finding
    from paras2s.policy.types import Answer
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.run import Run
    from paras2s.types import Blueprint, Reward, Unscored, Verdict


def blueprint(
    clip: Clip | str | Path,
    extractors: Sequence[str] = ("words", "quality", "pitch", "loudness", "voicing"),
    tone: ToneClassifier | None = None,
) -> Blueprint:
    """Measure a clip (TRACE, section 3.1): each field has a value with its unit, or the reason why it is absent.

    `extractors` are names of those in reward/blueprint/extract.py (words, quality, pitch, loudness, voicing ...) or of a
    plug-in; "tone" needs a fitted classifier.

    Raises:
        AudioError: the file cannot be read. ConfigError: an unknown extractor.
    """
    from paras2s.audio.clip import read_clip
    from paras2s.reward.blueprint.extract import build_blueprints, make_extractors

    sound = read_clip(Path(clip)) if isinstance(clip, str | Path) else clip
    return build_blueprints([sound], make_extractors(extractors, tone))[0]


def open_policy(folder: str | Path, kind: str | None = None, device: str = "auto") -> Policy:
    """Load a policy from a checkpoint: of a run (`runs/demo/aligned`), or a released model's folder.

    `kind` is what `policy.kind` names (kimi, moshi ..., or module:Class); None: what the checkpoint calls itself.

    Raises:
        PolicyError: no checkpoint, or tensors that do not fit.
    """
    from paras2s.policy.registry import load_policy

    return load_policy(Path(folder), kind, device)


def check_policy(policy: Policy) -> Iterator[Finding]:
    """Yield the findings of the contract of every policy, as `paras2s check-policy` does."""
    from paras2s.policy.contract import check_policy
    from paras2s.policy.subject import subject_of

    return check_policy(subject_of(policy))


class Rows(list[dict[str, Any]]):
    """The rows of a table; each row is a dict from columns to values."""

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Raises:
            AssetError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            from paras2s.errors import AssetError

            raise AssetError("a DataFrame needs pandas: pip install pandas; the rows themselves are a list of dicts") from error
        return pandas.DataFrame(self)


def read_table(run: Run | str | Path, name: Literal["answers", "metrics", "queries", "rollouts"]) -> Rows:
    """Read a table of a run, which is given by its folder.

    `answers`: benched answers with their scores, a row for each judge; `metrics`: the steps of GRPO; `queries`: spoken
    questions; `rollouts`: the kept answers of training, without tokens.

    Raises:
        ConfigError: another name. DataError: the run has no such table, or a broken one.
    """
    from paras2s.errors import ConfigError, DataError

    folder = Path(run) if isinstance(run, str | Path) else run.folder
    if name == "metrics":
        from paras2s.utils.io import read_jsonl

        return Rows(read_jsonl(folder / "metrics.jsonl"))
    if name == "queries":
        from paras2s.data_gen.dataset import data_folder, load_manifest

        return Rows(asdict(query) for query in load_manifest(data_folder(folder)).queries)
    if name == "rollouts":
        from paras2s.rollout.export import read_rollouts

        return Rows(read_rollouts(folder))
    if name != "answers":
        raise ConfigError(f"table {name!r}: there are answers, metrics, queries and rollouts")
    from paras2s.bench.results import load_rows

    files = [*sorted((folder / "bench").glob("*.jsonl")), *sorted((folder / "bench/independent").glob("*.jsonl"))]
    if not files:
        raise DataError(f"{folder / 'bench'}: holds no answers; run `paras2s bench contrasts {folder}`")
    return Rows(asdict(row) for file in files for row in load_rows(file))


@dataclass(frozen=True)
class GRPOStep:
    """A step of GRPO: the G answers to each of B questions, their rewards, the learner's metrics, and the policy after it.

    `policy` is the same object in every step: let it answer before the next step begins.
    """

    answers: list[list[Answer]]
    rewards: list[list[Reward | Unscored]]
    metrics: dict[str, Any]
    policy: Policy


def grpo_steps(
    checkpoint: str | Path,
    questions: Sequence[Clip],
    reward: Callable[[int, list[Answer]], Sequence[float | Verdict | Unscored]],
    steps: int,
    group: int = 4,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[GRPOStep]:
    """Train a copy of a checkpoint by GRPO in this process, and yield each step; `paras2s align` trains a run.

    `reward(number, answers)` scores the answers to a question, given by its number: a number from 1 to 5, a verdict of a
    judge, or `Unscored`, for each. `settings` are of the section `align`, by dotted keys: {"optimizer.lr": 1e-4}.

    Raises:
        ConfigError: a wrong setting, or not one score for each answer. PolicyError: no checkpoint, or too many unscored.
    """
    from paras2s.audio.asr import transcribe
    from paras2s.audio.clip import Clip
    from paras2s.configs.schema.align import AlignConfig
    from paras2s.configs.schema.base import parse_config, with_overrides
    from paras2s.policy.types import Answer, SampleRequest, Turn
    from paras2s.rollout.engine import NativeEngine, answer_seeds
    from paras2s.train.learner import Learner

    sampling = {"queries_per_step": len(questions), "group_size": group}
    values = {"sampling": sampling, "objective": {"groups_per_update": len(questions)}}
    config = parse_config(with_overrides(values, dict(settings or {})), "settings", AlignConfig, settings or ())
    trained, sampler = open_policy(checkpoint), open_policy(checkpoint)
    learner, engine = Learner(trained, config, trained.sampling.max_steps), NativeEngine(sampler)
    if config.lora is not None:
        sampler.add_lora(config.lora.rank, config.lora.alpha)
    engine.set_weights(learner.weights(), 0)
    transcripts = transcribe(questions)
    prompts = [
        sampler.encode_prompt([Turn("user", words.text, clip)]) for words, clip in zip(transcripts, questions, strict=True)
    ]
    names = [str(number) for number in range(len(questions))]
    for step in range(steps):
        request = SampleRequest(prompts, answer_seeds(seed, step, range(len(questions)), group), learner.sampling)
        rollouts = engine.generate(names, request)
        answers = [
            [Answer(text, Clip(wave, rollout.sample_rate_hz)) for text, wave in zip(rollout.texts, rollout.waves, strict=True)]
            for rollout in rollouts
        ]
        rewards = [_rewards_of(reward(number, row), row) for number, row in enumerate(answers)]
        metrics = learner.step(prompts, rollouts, rewards)
        engine.set_weights(learner.weights(), step + 1)
        yield GRPOStep(answers, rewards, dict(metrics), sampler)


def _rewards_of(scores: Sequence[float | Verdict | Unscored], answers: Sequence[Answer]) -> list[Reward | Unscored]:
    from paras2s.errors import ConfigError
    from paras2s.types import Reward, Unscored, Verdict

    if len(scores) != len(answers):
        raise ConfigError(f"the reward gave {len(scores)} scores to {len(answers)} answers; give one for each")
    values = [score.score if isinstance(score, Verdict) else score for score in scores]
    return [value if isinstance(value, Unscored) else Reward(float(value), {}) for value in values]
