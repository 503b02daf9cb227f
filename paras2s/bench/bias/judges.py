"""The judges that `paras2s probe` can ask, by name: embedded ones of a run, LLMs, and judges that listen.

Each sees one order of a pair at a time, whatever its config says. An embedded judge costs nothing and hears what it hears in
training: the rubric what a recogniser makes of the sound, the distilled reward model its codes, made anew by the codec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.bench.bias.metrics import PROBES
from paras2s.clients.chat import LLMClient, Request
from paras2s.errors import AudioError, BudgetError, ConfigError
from paras2s.reward.judges.llm_judge import Exchange, Pair
from paras2s.reward.judges.pairwise import LabellingJudge, PairJudge, Score, ScoringJudge, sides_of
from paras2s.types import Unscored, Verdict

RUBRIC, REWARD_MODEL = "rubric", "reward_model"


@dataclass(frozen=True)
class ProbeOptions:
    """What `probe` was asked for; see its options. `source` is a manifest or a run's folder; `only` names probes.

    Raises:
        ConfigError: there is no such probe.
    """

    source: Path
    judges: tuple[str, ...]
    run: Path | None
    tone: Path | None
    only: tuple[str, ...]
    pairs: int | None
    seed: int
    overrides: Mapping[str, Any]

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.only) - set(PROBES)):
            raise ConfigError(f"--only {unknown[0]}: no such probe; there are {', '.join(PROBES)}")

    @property
    def run_dir(self) -> Path | None:
        """The run that embedded judges come from."""
        return self.run or (self.source if self.source.is_dir() else None)


@dataclass(frozen=True)
class Probed:
    """A judge under probe. `key` is how it was named; `requests` and `client` are None of a judge that calls nobody."""

    key: str
    judge: PairJudge
    version: str
    task: str = ""
    requests: Callable[[Sequence[Pair]], Sequence[list[Request] | Unscored]] | None = None
    client: LLMClient | None = None


def open_probed(name: str, asked: ProbeOptions) -> list[Probed]:
    """The judges that a name stands for: one, or one for every task of a listening judge; each sees one order at a time.

    Raises:
        ConfigError: no such judge, or it lacks a run or a tone classifier.
    """
    from paras2s.bench.audio_judges import is_listening

    if name == RUBRIC:
        return [_open_rubric(asked)]
    if name == REWARD_MODEL:
        if asked.run_dir is None:
            raise ConfigError("--run: the reward model needs a run's folder that holds one")
        scorer = ModelScorer(asked.run_dir)
        return [Probed(name, ScoringJudge(name, Memory(scorer)), scorer.version)]
    if is_listening(name):
        return _open_listening(name, asked)
    from paras2s.bench.judges import open_config
    from paras2s.reward.judges.llm_judge import open_judge

    tone = _tone(asked)
    made, rule = open_judge(open_config(name, {**asked.overrides, "judge.both_orders": False}), tone)
    version = f"{made.version}/{made.pair_prompt.hash}"
    return [Probed(name, LabellingJudge(made, rule), version, "", made.pair_requests, made.client)]


def _tone(asked: ProbeOptions) -> Any:
    from paras2s.reward.tone_classifier import ToneClassifier

    path = asked.tone or (asked.run_dir / "data" / "tone_agent.json" if asked.run_dir else None)
    return ToneClassifier.load(path) if path else None


def _open_rubric(asked: ProbeOptions) -> Probed:
    from paras2s.reward.blueprint.parallel import measure_answers
    from paras2s.reward.judges.rubric import Question, RubricJudge

    tone = _tone(asked)
    if tone is None:
        raise ConfigError("--tone: the rubric needs a fitted tone classifier, RUN/data/tone_agent.json; or give --run")
    judge = RubricJudge()

    def score(exchanges: Sequence[Exchange]) -> list[Score]:
        found: list[Score] = []
        # Alone: in a shared window one clip's noise would be heard in its neighbours.
        blueprints = measure_answers([one.answer for one in exchanges], tone, alone=True)
        for one, blueprint in zip(exchanges, blueprints, strict=True):
            text, style = one.question.text, one.question.style
            if text is None or style is None:
                found.append(Unscored(RUBRIC, "the rubric must be told the instruction's words and style"))
            else:
                found.append(judge.judge(Question(text, style), blueprint))
        return found

    return Probed(RUBRIC, ScoringJudge(RUBRIC, Memory(score)), f"{judge.version}/{judge.prompt_hash}/{tone.version}")


def _open_listening(name: str, asked: ProbeOptions) -> list[Probed]:
    from paras2s.bench.audio_judges import open_audio_judges

    found = []
    for one in open_audio_judges(name, {**asked.overrides, "both_orders": False}):
        if one.task.kind == "match":
            raise ConfigError(f"tasks: {one.task.name} says whether clips match and prefers none; probe it without this task")
        version = f"{one.version}/{one.prompt.hash}"
        if one.task.clips == 2:
            found.append(Probed(name, one, version, one.task.name, one.requests, one.client))
            continue

        def score(exchanges: Sequence[Exchange], rate: Any = one.rate) -> list[Score]:
            return list(rate([_told(exchange) for exchange in exchanges]))

        def requests(pairs: Sequence[Pair], ask: Any = one.requests) -> list[list[Request] | Unscored]:
            return list(ask([_told(side) for pair in pairs for side in sides_of(pair)]))

        judge = ScoringJudge(one.name, Memory(score))
        found.append(Probed(name, judge, version, one.task.name, requests, one.client))
    return found


def _told(exchange: Exchange) -> Exchange:
    """With what prompts about single clips name: the words asked for, their style, and the scene they belong to."""
    text, style = exchange.question.text or "", exchange.question.style or ""
    return replace(exchange, told={"text": text, "style": style, "context": text})


class ModelScorer:
    """The reward model of a run: it hears the question as in training, and an answer through the codec."""

    def __init__(self, run_dir: Path) -> None:
        from paras2s.data_gen.dataset import load_dataset
        from paras2s.data_gen.policy_inputs import fit_normalizer
        from paras2s.reward.reward_model.model import RewardModel

        self._model, self._dataset = RewardModel.load(run_dir / "reward"), load_dataset(run_dir / "data")
        self._listener = fit_normalizer(self._dataset)
        weights = (run_dir / "reward" / "reward_model.safetensors").read_bytes()
        self.version = hashlib.sha256(weights).hexdigest()[:12]
        # What was heard in a run's own questions is in its manifest.
        held_out = (query for role in ("test", "validation") for query in self._dataset.of_role(role))
        self._queries = {self._dataset.clip(query.clip).digest: query for query in held_out}
        self._heard: dict[str, Any] = {}

    def __call__(self, exchanges: Sequence[Exchange]) -> list[Score]:
        """A score each; Unscored where there is no question to hear."""
        from paras2s.data_gen.policy_inputs import CODEC

        questions = [self._question(one.question.clip) for one in exchanges]
        asked = [place for place, one in enumerate(questions) if not isinstance(one, Unscored)]
        codes = [CODEC.encode(exchanges[place].answer) for place in asked]
        scores = dict(zip(asked, self._model.score([questions[place] for place in asked], codes), strict=True))
        return [self._checked(scores[place]) if place in scores else one for place, one in enumerate(questions)]

    def _checked(self, value: float) -> Score:
        return value if np.isfinite(value) else Unscored(REWARD_MODEL, f"the score is {value}")

    def _question(self, clip: Clip | None) -> Any:
        if clip is None:
            return Unscored(REWARD_MODEL, "the reward model hears the instruction, and the pair has no clip of it")
        name = clip.digest
        if name not in self._heard:
            try:
                self._heard[name] = self._hear(clip, self._queries.get(name))
            except AudioError as error:
                self._heard[name] = Unscored(REWARD_MODEL, f"the instruction: {error}")
        return self._heard[name]

    def _hear(self, clip: Clip, query: Any) -> Any:
        from paras2s.audio.asr import transcribe
        from paras2s.audio.text_embedding import SENTENCE_DIM
        from paras2s.data_gen.policy_inputs import CODEC
        from paras2s.policy.embedded.frontend import extract_features
        from paras2s.reward.reward_model.model import EncodedQuestion

        percept = extract_features(clip, CODEC) if query is None else self._dataset.clip_features(query.clip, CODEC)
        words = transcribe([clip])[0].text if query is None else query.transcript
        return EncodedQuestion(percept.codes, self._listener.features(percept, words), SENTENCE_DIM)


class Memory:
    """Scores of single answers, each asked once: one answer to one question has one score, in however many pairs it stands."""

    def __init__(self, score: Callable[[Sequence[Exchange]], Sequence[Score]]) -> None:
        self._score = score
        self._known: dict[tuple[Any, ...], Score] = {}

    def __call__(self, exchanges: Sequence[Exchange]) -> list[Score]:
        """From memory, or now."""
        keys = [self._key(one) for one in exchanges]
        new = {name: one for name, one in zip(keys, exchanges, strict=True) if name not in self._known}
        fresh = dict(zip(new, self._score(list(new.values())) if new else [], strict=True))
        # A budget may be raised: what it did not reach is no score.
        self._known.update({name: one for name, one in fresh.items() if not isinstance(one, BudgetError)})
        return [fresh[name] if name in fresh else self._known[name] for name in keys]

    @property
    def priced(self) -> bool:
        """Whether the cost of every verdict is known."""
        return all(one.cost_usd is not None for one in self._known.values() if isinstance(one, Verdict))

    def _key(self, exchange: Exchange) -> tuple[Any, ...]:
        asked = exchange.question
        heard = None if asked.clip is None else asked.clip.digest
        return (heard, asked.text, asked.style, exchange.answer.digest, exchange.words)
