"""Say in words whether reinforcement helped: the paired difference of the aligned policy over its SFT warm-up, by each judge.

Each question's answers are averaged, the difference is taken per question, and categories weigh the same, as in the scores
above it. Questions of one contrast share their words, so the 95 % interval is Student's over contrasts, whose number is small
in a short run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import contrast_metric, paired_difference

BEFORE, AFTER = "sft", "aligned"
ADVICE = "docs/tutorials/when-it-did-not-help.md says what to look at, and what to try."
# The other systems of a run's bench, by what they bound, with a line that says what each is.
BOUNDS: Mapping[str, Mapping[str, str]] = {
    "Baselines": {
        "bad": "knows the style and answers the other one: a judge that does not put it last is no judge",
        "constant": "hears nothing: one kind of answer to every question",
        "style_deaf": "hears nothing: the best guess over both styles of a contrast, by what the judge pays",
        "cascade": "reads the words and hears no voice: the same answer to both styles",
        "linear": "has scripted answers, chosen by a linear classifier on the question's words and prosody",
        "prosody": "knows the category, and takes the style from a linear classifier on the question's prosody",
    },
    "Ceilings": {
        "flat": "knows the true style: the topline's words, spoken neutrally",
        "topline": "knows the true style: words and tone as the judge wants them",
    },
}
Outcome = Literal["better", "no difference shown", "worse", "not measured"]
SENTENCES: Mapping[Outcome, str] = {
    "better": "Reinforcement helped.",
    "no difference shown": "No difference shown: these questions cannot tell the aligned policy from its SFT warm-up.",
    "worse": "Reinforcement made the policy worse.",
    "not measured": "Whether reinforcement helped was not measured.",
}


@dataclass(frozen=True)
class JudgedGain:
    """The gain by one judge: mean difference on the scale of 1 to 5, the ends of its 95 % interval, and what it rests on.

    `low` and `high` are None for fewer than two contrasts. `contrast_shares` are the shares told apart, before and after;
    `contrasts_needed` is the number of contrasts that would show a difference of this size; None if it is shown already.
    """

    judge: str
    difference: float | None
    low: float | None
    high: float | None
    questions: int
    contrasts: int
    contrast_shares: tuple[float | None, float | None]
    contrasts_needed: int | None

    @property
    def outcome(self) -> Outcome:
        """The verdict by this judge alone."""
        if self.difference is None or self.low is None or self.high is None:
            return "not measured"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no difference shown"

    def describe(self) -> str:
        """Return one line of figures."""
        if self.difference is None:
            return f"by the {self.judge}: no question is scored in both"
        interval = "no interval" if self.low is None else f"95 % interval {self.low:+.2f} to {self.high:+.2f}"
        apart = [f"{100 * share:.0f}" for share in self.contrast_shares if share is not None]
        ending = f"; contrasts told apart {apart[0]} to {apart[1]} %" if len(apart) == 2 else ""
        counts = f"{self.questions} questions of {self.contrasts} contrast{'' if self.contrasts == 1 else 's'}"
        return f"by the {self.judge}: {self.difference:+.2f} ({interval}; {counts}){ending}"


@dataclass(frozen=True)
class GainVerdict:
    """Whether reinforcement helped, over all judges."""

    gains: tuple[JudgedGain, ...]

    @property
    def outcome(self) -> Outcome:
        """Better if every judge says so; worse if one says so and none says better; else no difference is shown."""
        outcomes = {gain.outcome for gain in self.gains}
        if "not measured" in outcomes or not outcomes:
            return "not measured"
        if outcomes == {"better"}:
            return "better"
        return "worse" if "worse" in outcomes and "better" not in outcomes else "no difference shown"

    def lines(self) -> list[str]:
        """Return the sentence, the figures by each judge, and where to read on if it did not help."""
        lines = [SENTENCES[self.outcome], *(f"  {gain.describe()}" for gain in self.gains)]
        needed = [gain.contrasts_needed for gain in self.gains if gain.contrasts_needed is not None]
        if self.outcome == "no difference shown" and needed:
            lines.append(
                f"  A difference of this size would show over about {max(needed)} contrasts (bench more, or more seeds)."
            )
        return lines if self.outcome == "better" else [*lines, f"  {ADVICE}"]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"outcome": self.outcome, "judges": [{**asdict(gain), "outcome": gain.outcome} for gain in self.gains]}


def judge_gain(judge: str, before: Sequence[AnswerRow], after: Sequence[AnswerRow]) -> JudgedGain:
    """Return the gain of the rows `after` over those `before`, by the judge that scored both."""
    from scipy.stats import t

    paired = paired_difference(after, before)
    estimate = paired.difference.estimate
    shares = contrast_metric(before).estimate.mean, contrast_metric(after).estimate.mean
    if estimate.mean is None or estimate.standard_error is None:
        return JudgedGain(judge, estimate.mean, None, None, estimate.n, estimate.clusters, shares, None)
    # Each category's mean takes a degree of freedom.
    half = float(t.ppf(0.975, estimate.clusters - paired.categories)) * estimate.standard_error
    low, high = estimate.mean - half, estimate.mean + half
    needed = None
    if low <= 0 <= high and estimate.mean:
        # The error shrinks with the root of the number of contrasts.
        needed = math.ceil(estimate.clusters * (half / estimate.mean) ** 2)
    return JudgedGain(judge, estimate.mean, low, high, estimate.n, estimate.clusters, shares, needed)


def verdict_on_gain(by_judge: Mapping[str, Mapping[str, Sequence[AnswerRow]]]) -> GainVerdict | None:
    """Return whether the aligned policy is better than its warm-up, from the rows of systems by judge; None without both."""
    judged = {judge: rows for judge, rows in by_judge.items() if BEFORE in rows and AFTER in rows}
    gains = [judge_gain(judge, rows[BEFORE], rows[AFTER]) for judge, rows in judged.items()]
    return GainVerdict(tuple(gains)) if gains else None
