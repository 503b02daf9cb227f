"""Judges of single aspects as one judge: each hears every pair, and a rule makes one preference of theirs (AudioJudge, 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

from paras2s.clients.chat import LLMClient
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.audio_judge.concatenation import NoSignals, Signals, Speak, SpokenSignals, ToneSignals
from paras2s.reward.judges.audio_judge.few_shot import load_examples
from paras2s.reward.judges.audio_judge.judge import AudioJudge, HeardWords, at_rate
from paras2s.reward.judges.llm_judge import Pair, Progress
from paras2s.reward.judges.pairwise import Preferred
from paras2s.reward.judges.votes import ENSEMBLE, POINTS, EnsembleRule, find_ensemble, label_of, spread_of, turned
from paras2s.types import PairLabel, Preference, Unscored
from paras2s.utils.cache import JsonCache, key_of


def open_judges(config: AudioJudgeConfig, speak: Speak | None = None) -> list[AudioJudge]:
    """One judge a task, that share endpoint, budget and cache; `speak` is the voice of spoken signals.

    Raises:
        ConfigError: spoken signals are wanted, and there is no voice. DataError: examples that do not fit.
    """
    client = LLMClient(config.llm, JsonCache(config.cache_dir / "judging.sqlite"))
    examples = load_examples(config.examples) if config.examples else []
    signals = make_signals(config, speak)
    hear = HeardWords()
    return [AudioJudge(config, task, client, signals, examples, hear) for task in config.tasks]


def require_preferences(judges: Sequence[AudioJudge]) -> Sequence[AudioJudge]:
    """The judges, each of which says which of two answers is better.

    Raises:
        ConfigError: one scores single clips, or says whether two match: that is no win of the one heard first.
    """
    for judge in judges:
        if judge.task.kind not in ("winner", "winner_or_tie"):
            raise ConfigError(f"tasks: {judge.task.name} prefers neither of two answers; choose others, such as standard")
    return judges


def as_one(judges: Sequence[AudioJudge]) -> AudioJudge | AspectJudge:
    """Judges of one config as one judge of pairs, by the config's rule where there are several."""
    if len(judges) == 1:
        return judges[0]
    config = judges[0].config
    return AspectJudge(judges, find_ensemble(config.ensemble, config.ensemble_rules))


def make_signals(config: AudioJudgeConfig, speak: Speak | None) -> Signals:
    """What announces the clips of a joined one.

    Raises:
        ConfigError: spoken signals are wanted, and there is no voice.
    """
    if config.signals == "none" or config.strategy == "none":
        return NoSignals()
    if config.signals == "tone":
        return ToneSignals(config.audio.sample_rate_hz)
    if speak is None:
        raise ConfigError("signals: spoken ones need a voice; run: pip install 'paras2s[offline]', or choose signals: tone")
    return SpokenSignals(speak, config.cache_dir / "signals")


@dataclass(frozen=True)
class Panel:
    """What the judges of one pair say, by task, and what it comes to; `whole` is Unscored where one of them is."""

    aspects: Mapping[str, Preference | Unscored]
    whole: Preference | Unscored


class AspectJudge:
    """Several listening judges of one model, and the rule that makes one verdict of theirs."""

    scores_alone = False

    def __init__(self, judges: Sequence[AudioJudge], rule: EnsembleRule) -> None:
        self.judges, self.rule = tuple(require_preferences(judges)), rule
        self.name = f"{judges[0].name}:{ENSEMBLE}"
        tasks = [judge.task.name for judge in judges]
        if missing := [aspect for aspect in rule.aspects if aspect not in tasks]:
            raise ConfigError(f"ensemble: the rule wants a verdict of {missing[0]}; add it to 'tasks', or choose another rule")
        self.version = key_of([rule.model_dump(), [[judge.version, judge.prompt.hash] for judge in judges]])[:8]

    def compare(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """The panel's whole verdict on each pair."""
        return [one if isinstance(one, BudgetError) else one.whole for one in self.panels(pairs, on_progress)]

    def panels(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Panel | BudgetError]:
        """What every judge says of each pair, and what it comes to."""
        rate_hz = self.judges[0].config.audio.sample_rate_hz
        pairs = [cast(Pair, at_rate(pair, rate_hz)) for pair in pairs]
        total, found = len(pairs) * len(self.judges), []
        for number, judge in enumerate(self.judges):
            done = number * len(pairs)

            def at(now: int, of: int, done: int = done) -> None:
                # A judge counts calls, and several of them are one pair.
                if on_progress:
                    on_progress(done + (now * len(pairs) // of if of else 0), total)

            found.append(judge.compare(pairs, at))
        return [self._panel(one) for one in zip(*found, strict=True)]

    def _panel(self, found: Sequence[Preferred]) -> Panel | BudgetError:
        aspects: dict[str, Preference | Unscored] = {}
        for judge, one in zip(self.judges, found, strict=True):
            if isinstance(one, BudgetError):
                return one
            aspects[judge.task.name] = one
        return Panel(aspects, self._whole(aspects))

    def _whole(self, aspects: Mapping[str, Preference | Unscored]) -> Preference | Unscored:
        heard: dict[str, Preference] = {}
        for name in self.rule.aspects:
            one = aspects[name]
            if isinstance(one, Unscored):
                return Unscored(self.name, f"{name}: {one.reason}", one.reply)
            heard[name] = one
        orders = range(len(next(iter(heard.values())).order_labels))
        # The aspects' labels of one order at a time, as in the paper: the other order is another vote.
        said = tuple(
            self.rule.fuse({name: cast(PairLabel, one.order_labels[order]) for name, one in heard.items()}) for order in orders
        )
        meant = [label if order == 0 else cast(PairLabel, turned(label)) for order, label in enumerate(said)]
        votes = tuple(POINTS[label] for label in meant)
        every = list(aspects.values())
        paid = [one for one in every if isinstance(one, Preference)]
        costs = [one.cost_usd for one in paid if one.cost_usd is not None]
        return Preference(
            judge=self.name,
            version=self.version,
            prompt_hash=key_of([one.prompt_hash for one in heard.values()])[:16],
            task=ENSEMBLE,
            label=label_of(fmean(votes)),
            points=fmean(votes),
            order_labels=said,
            votes=votes,
            spread=spread_of(votes),
            consistent=meant[0] == meant[1] if len(meant) == 2 else None,
            reason="; ".join(f"{name}: {one.label}" for name, one in heard.items()),
            reply="",
            text_in_tokens=sum(one.text_in_tokens for one in paid),
            audio_in_tokens=sum(one.audio_in_tokens for one in paid),
            text_out_tokens=sum(one.text_out_tokens for one in paid),
            cost_usd=sum(costs) if len(costs) == len(every) else None,
            latency_s=sum(one.latency_s for one in paid),
        )
