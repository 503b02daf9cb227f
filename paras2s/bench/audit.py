"""The figures of an audit of a judge or of a reward model, and whether it is of any use on this data.

It counts, style by style, how often a gold answer is above one of a wrong kind. An overall share hides a judge that is always
wrong in one style: a small LLM put 0 of 7 gold answers to sarcastic questions above thanks, and 7 of 7 to sincere ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paras2s.statistics.correlation import Correlation
from paras2s.statistics.intervals import Interval, Share
from paras2s.statistics.resampling import mean_by_crossed_clusters
from paras2s.utils.io import read_json
from paras2s.utils.tables import span

CHANCE = 0.5
# With fewer contrasts even a judge that is always right has 0.5 in its interval (Wilson's, 95 %).
FEWEST_CONTRASTS = 4
# Halfway from chance to always right. A judge that is right nine times in ten errs in one of 4 contrasts in every third run,
# and its interval then reaches chance: refused for that in any of six styles, nine runs of ten would stop.
NEARER_RIGHT = 0.75
# Beside the shares of pairs a judge that gives nearly always the same score tells little.
MOST_EQUAL = 0.9
ALL = "all"
# In the folder of a run by role, in that of a reward model its own.
AUDITS = "audit.json"


@dataclass(frozen=True)
class Compared:
    """A gold answer beside a worse one, with contrasts and `points`: 1 above, 0.5 equal, 0 below, None without a score."""

    style: str
    contrasts: tuple[str, ...]
    points: float | None


def points_of(gold: float | None, worse: float | None) -> float | None:
    """Return the points of a gold answer beside a worse one."""
    return None if gold is None or worse is None else 0.5 * (1 + (gold > worse) - (gold < worse))


def shares_of(compared: Sequence[Compared]) -> dict[str, Share]:
    """Return the mean points by style, then of all, with intervals over contrasts."""
    styles = sorted({pair.style for pair in compared})
    parts = {style: [pair for pair in compared if pair.style == style] for style in styles}
    parts |= {ALL: list(compared)} if compared else {}
    return {
        name: mean_by_crossed_clusters([pair.points for pair in pairs], [pair.contrasts for pair in pairs])
        for name, pairs in parts.items()
    }


def contrasts_of(compared: Sequence[Compared]) -> dict[str, int]:
    """Return the number of contrasts that a style's scored pairs are of; of questions or answers, whichever has fewer."""
    counts: dict[str, int] = {pair.style: 0 for pair in compared}
    for style in counts:
        known = [pair.contrasts for pair in compared if pair.style == style and pair.points is not None]
        counts[style] = min((len(set(column)) for column in zip(*known, strict=True)), default=0)
    return counts


@dataclass(frozen=True)
class OrderFigures:
    """Pairs in both orders: the share of verdicts for the answer heard first, and of pairs with one verdict in both orders."""

    first: Share
    consistent: Share


@dataclass(frozen=True)
class Audit:
    """Shares of pairs ordered rightly, with 95 % intervals over contrasts, and what a verdict takes.

    `wrong_kind`, `other_topic` and `wrong_tone` are by style or "all"; `contrasts` is the number behind each style. `commonest`
    is the commonest whole score and its share. `hacks`: how often a hack is worth at least the good answer that it was made of.
    `repeated`: how often the same question gets the same score again. `seconds` and `cost_usd` are of one verdict. None, or
    empty, is what was not measured.
    """

    judge: str
    answers: str
    wrong_kind: dict[str, Share]
    contrasts: dict[str, int]
    n_scored: int
    n_answers: int
    unscored: dict[str, int] = field(default_factory=dict)
    other_topic: dict[str, Share] = field(default_factory=dict)
    wrong_tone: dict[str, Share] = field(default_factory=dict)
    agreement: Correlation | None = None
    commonest: tuple[int, Share] | None = None
    position: OrderFigures | None = None
    hacks: dict[str, Share] = field(default_factory=dict)
    repeated: Share | None = None
    seconds: Interval | None = None
    cost_usd: Interval | None = None
    total_usd: float | None = None

    @property
    def at_chance(self) -> list[str]:
        """The styles with enough contrasts where gold is not told from a wrong kind, or from an answer to another topic."""
        return [
            style
            for style, count in self.contrasts.items()
            if count >= FEWEST_CONTRASTS
            and any(_reaches_chance(share) and not _is_nearer_right(share) for share in self._known_shares(style))
        ]

    @property
    def unknown(self) -> list[str]:
        """The styles with too few contrasts to tell: below the fewest, or a good share whose interval reaches chance."""
        return [
            style
            for style, count in self.contrasts.items()
            if count < FEWEST_CONTRASTS
            or any(_reaches_chance(share) and _is_nearer_right(share) for share in self._known_shares(style))
        ]

    def _known_shares(self, style: str) -> list[Share]:
        """Return the shares of gold above worse answers of both sorts that have any scores."""
        parts = [part[style] for part in (self.wrong_kind, self.other_topic) if style in part]
        return [share for share in parts if share.value is not None]

    @property
    def refused(self) -> bool:
        """Whether nothing may be trained on it: it scores nothing, or is at chance in a style."""
        return not self.n_scored or bool(self.at_chance)

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        if not self.n_scored:
            return f"{self.judge} scored none of {self.n_answers} answers: {next(iter(self.unscored), 'no reason is known')}."
        if self.commonest is not None and (self.commonest[1].value or 0.0) >= MOST_EQUAL:
            return f"{self.judge} says {self.commonest[0]} to {self.commonest[1].value:.0%} of all answers: it tells nothing."
        few = f"too few contrasts to tell in: {', '.join(f'{style} ({self.contrasts[style]})' for style in self.unknown)}"
        if self.at_chance:
            named = ", ".join(f"{style} ({self._shares_text(style)})" for style in self.at_chance)
            return f"{self.judge} is not told from chance in: {named}. Nothing should be trained on it there."
        if len(self.unknown) == len(self.contrasts):
            return f"{self.judge}: {few}."
        if self.unknown:
            return f"{self.judge} puts gold answers above wrong ones in the other styles; {few}."
        return f"{self.judge} puts gold answers above wrong ones in every style of these answers."

    def _shares_text(self, style: str) -> str:
        off = f"; beside answers to another topic {share_text(self.other_topic[style])}" if style in self.other_topic else ""
        return share_text(self.wrong_kind[style]) + off

    def to_json(self) -> dict[str, Any]:
        """Return the audit as JSON."""
        findings = {"at_chance": self.at_chance, "unknown": self.unknown, "refused": self.refused, "sentence": self.sentence}
        return {**asdict(self), **findings}

    def table(self) -> list[tuple[str, ...]]:
        """Return rows of style, gold above wrong kind, above an answer to another topic, above wrong tone."""
        parts = (self.wrong_kind, self.other_topic, self.wrong_tone)
        return [
            (style, *(share_text(shares[style]) if style in shares else "" for shares in parts)) for style in self.wrong_kind
        ]

    def lines(self) -> list[str]:
        """Return all but the table and the sentence, a line each."""
        lines = [f"{self.n_scored} of {self.n_answers} scored"]
        lines += [f"unscored: {count} times {reason}" for reason, count in self.unscored.items()]
        if self.agreement is not None:
            agreed = self.agreement.why_none or _figure(self.agreement)
            lines.append(f"Pearson with the run's rubric: {agreed}")
        if self.commonest is not None:
            lines.append(f"commonest score: {self.commonest[0]}, {share_text(self.commonest[1])}")
        if self.position is not None:
            lines.append(f"verdicts for the answer heard first (0.50: no bias): {share_text(self.position.first)}")
            lines.append(f"pairs with one verdict in both orders: {share_text(self.position.consistent)}")
        lines += [f"worth at least the good answer, {kind}: {share_text(share)}" for kind, share in self.hacks.items()]
        if self.repeated is not None:
            lines.append(f"same score when asked again: {share_text(self.repeated)}")
        if self.seconds is not None:
            lines.append(f"seconds a verdict: {_figure(self.seconds)}")
        if self.cost_usd is not None:
            total = "an unknown price" if self.total_usd is None else f"{self.total_usd:.4f}"
            lines.append(f"USD a verdict: {_figure(self.cost_usd, 5)}; {total} for this audit")
        return lines


def _reaches_chance(share: Share) -> bool:
    return share.low is None or share.low <= CHANCE


def _is_nearer_right(share: Share) -> bool:
    return share.value is not None and share.value >= NEARER_RIGHT


def share_text(share: Share) -> str:
    """Return a share with its interval and its numbers."""
    return f"none of {share.n_asked}" if share.value is None else f"{_figure(share)}, {share.n} of {share.n_asked}"


def _figure(figure: Interval, digits: int = 2) -> str:
    if figure.value is None:
        return "unknown"
    ends = "" if figure.low is None or figure.high is None else f" ({span(figure.low, figure.high, digits)})"
    return f"{figure.value:.{digits}f}{ends}"


def run_audits(folder: Path) -> dict[str, Any]:
    """Return the audits of a run by role; {} for one of an earlier version."""
    path = folder / AUDITS
    return dict(read_json(path)) if path.is_file() else {}


def audit_warnings(folder: Path) -> list[str]:
    """Return what every report of a run says of a judge or a reward that was refused and used anyway."""
    audits = run_audits(folder).items()
    return [f"The audit refused its {role}: {record['sentence']}" for role, record in audits if record["refused"]]
