"""An ensemble of audio judges, one for each aspect, and the rule that makes one preference of theirs (AudioJudge, 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

from paras2s.clients.chat import Request
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, EnsembleRule, find_ensemble
from paras2s.reward.judges.audio_judge.judge import AudioJudge, at_rate
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Progress
from paras2s.reward.judges.votes import POINTS, label_of, spread_of, swapped
from paras2s.types import PairLabel, Preference, Unscored
from paras2s.utils.cache import key_of

# 2: aspects without a verdict are left out; before, they left the pair without one.
RULE_VERSION = 2


def require_preferences(judges: Sequence[AudioJudge]) -> Sequence[AudioJudge]:
    """Return the judges if each prefers one of two answers. Raises ConfigError: single clips, or matches (no win)."""
    for judge in judges:
        if judge.task.kind not in ("winner", "winner_or_tie"):
            raise ConfigError(f"tasks: {judge.task.name} prefers neither of two answers; choose others, such as standard")
    return judges


def combine_tasks(judges: Sequence[AudioJudge]) -> Judge:
    """Return the judges of one config as one judge: by the config's rule where there are several."""
    if len(judges) == 1:
        return judges[0]
    config = judges[0].config
    return EnsembleJudge(judges, find_ensemble(config.ensemble, config.ensemble_rules))


@dataclass(frozen=True)
class AspectVerdicts:
    """The verdicts on one pair, by aspect, and those combined; `overall` is Unscored where there is none."""

    aspects: Mapping[str, Preference | Unscored]
    overall: Preference | Unscored


class EnsembleJudge(Judge):
    """Several audio judges of one model, combined by a rule."""

    def __init__(self, judges: Sequence[AudioJudge], rule: EnsembleRule) -> None:
        self.judges, self.rule = tuple(require_preferences(judges)), rule
        self.name = f"{judges[0].name}:{ENSEMBLE}"
        self.client = judges[0].client
        self.needs = max((judge.needs for judge in judges), key=len)
        tasks = [judge.task.name for judge in judges]
        if missing := [aspect for aspect in rule.aspects if aspect not in tasks]:
            raise ConfigError(f"ensemble: the rule wants a verdict of {missing[0]}; add it to 'tasks', or choose another rule")
        self.version = key_of([RULE_VERSION, rule.model_dump(), [[judge.version, judge.prompt.hash] for judge in judges]])[:8]

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """Return the calls of all aspects for each item."""
        made: list[list[Request] | Unscored] = []
        for by_aspect in zip(*(judge.requests(items) for judge in self.judges), strict=True):
            calls = [call for request in by_aspect if isinstance(request, list) for call in request]
            failed = [request for request in by_aspect if isinstance(request, Unscored)]
            made.append(failed[0] if failed and not calls else calls)
        return made

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs by the combined verdict."""
        return [
            verdicts if isinstance(verdicts, BudgetError) else verdicts.overall
            for verdicts in self.judge_aspects(pairs, on_progress)
        ]

    def judge_aspects(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[AspectVerdicts | BudgetError]:
        """Judge pairs in every aspect, in order."""
        rate_hz = self.judges[0].config.audio.sample_rate_hz
        pairs = [cast(Pair, at_rate(pair, rate_hz)) for pair in pairs]
        total, by_judge = len(pairs) * len(self.judges), []
        for number, judge in enumerate(self.judges):
            done = number * len(pairs)

            def at(now: int, of: int, done: int = done) -> None:
                # A judge counts calls, and several of them are one pair.
                if on_progress:
                    on_progress(done + (now * len(pairs) // of if of else 0), total)

            by_judge.append(judge.compare_batch(pairs, at))
        return [self._aspect_verdicts(verdicts) for verdicts in zip(*by_judge, strict=True)]

    def _aspect_verdicts(self, verdicts: Sequence[Preferred]) -> AspectVerdicts | BudgetError:
        aspects: dict[str, Preference | Unscored] = {}
        for judge, verdict in zip(self.judges, verdicts, strict=True):
            if isinstance(verdict, BudgetError):
                return verdict
            aspects[judge.task.name] = verdict
        return AspectVerdicts(aspects, self._overall(aspects))

    def _overall(self, aspects: Mapping[str, Preference | Unscored]) -> Preference | Unscored:
        used: dict[str, Preference] = {}
        lacking: dict[str, Unscored] = {}
        for name in self.rule.aspects:
            verdict = aspects[name]
            if isinstance(verdict, Unscored):
                lacking[name] = verdict
            else:
                used[name] = verdict
        if not used:
            name, first = next(iter(lacking.items()))
            return Unscored(self.name, f"{name}: {first.reason}", first.reply)
        orders = range(len(next(iter(used.values())).order_labels))
        # The aspects' labels of one order at a time, as in the paper: the other order is another vote.
        by_order = tuple(
            self.rule.fuse({name: cast(PairLabel, verdict.order_labels[order]) for name, verdict in used.items()})
            for order in orders
        )
        labels = [label if order == 0 else cast(PairLabel, swapped(label)) for order, label in enumerate(by_order)]
        votes = tuple(POINTS[label] for label in labels)
        every = list(aspects.values())
        paid = [verdict for verdict in every if isinstance(verdict, Preference)]
        costs = [verdict.cost_usd for verdict in paid if verdict.cost_usd is not None]
        return Preference(
            judge=self.name,
            version=self.version,
            prompt_hash=key_of([verdict.prompt_hash for verdict in used.values()])[:16],
            task=ENSEMBLE,
            label=label_of(fmean(votes)),
            points=fmean(votes),
            order_labels=by_order,
            votes=votes,
            spread=spread_of(votes),
            consistent=labels[0] == labels[1] if len(labels) == 2 else None,
            reason=_reason(used, lacking),
            reply="",
            text_in_tokens=sum(verdict.text_in_tokens for verdict in paid),
            audio_in_tokens=sum(verdict.audio_in_tokens for verdict in paid),
            text_out_tokens=sum(verdict.text_out_tokens for verdict in paid),
            cost_usd=sum(costs) if len(costs) == len(every) else None,
            latency_s=sum(verdict.latency_s for verdict in paid),
            cost_estimated=any(verdict.cost_estimated for verdict in paid),
        )


def _reason(used: Mapping[str, Preference], lacking: Mapping[str, Unscored]) -> str:
    """Return the aspects' labels, and where one has no verdict how many voted and why it did not."""
    labels = "; ".join(f"{name}: {verdict.label}" for name, verdict in used.items())
    if not lacking:
        return labels
    why = "; ".join(f"{name}: unscored ({verdict.reason})" for name, verdict in lacking.items())
    return f"{labels}; {why}; {len(used)} of {len(used) + len(lacking)} aspects voted"
