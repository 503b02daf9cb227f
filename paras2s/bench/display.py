"""Shows blueprints, verdicts and cost estimates on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from paras2s.clients.chat import Bill
from paras2s.types import Absent, Blueprint, Measured, PairVerdict, Preference, Unscored, Verdict
from paras2s.utils.tables import Styled, Table

Field = Measured | Absent
BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return a contour as one line of blocks, from the lowest to the highest of its own range."""
    low, high = min(values), max(values)
    if high == low:
        return BARS[4] * len(values)
    return "".join(BARS[1 + round((value - low) / (high - low) * (len(BARS) - 2))] for value in values)


def _cell(field: Field) -> str:
    if isinstance(field, Absent):
        return Styled(f"not measured: {field.reason}", "dim")
    value = field.value
    if isinstance(value, list):
        return f"{sparkline(value)}  {min(value):.0f} to {max(value):.0f}"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if field.confidence is None else f"{text}  (confidence {field.confidence:.2f})"


def show_blueprints(console: Console, blueprints: dict[str, Blueprint]) -> None:
    """Show blueprints side by side, contours as sparklines."""
    rows = []
    for key in dict.fromkeys(key for blueprint in blueprints.values() for key in blueprint.fields):
        short = key.removeprefix("agent_").removeprefix("audio_properties.").removeprefix("audio_quality.")
        rows.append((short, *(_cell(blueprint.fields[key]) for blueprint in blueprints.values())))
    Table(("field", *blueprints), rows).show(console)


ClipNames = tuple[str, str]
ORDERS_APART = "\n---\n"


def _show_reasons(console: Console, verdict: PairVerdict | Verdict | Preference, orders: int, names: ClipNames | None) -> None:
    """Show the reason of each order under the clips as they were heard in it: "first" is another clip in the second order.

    A judge that gave no reason beside its verdict may have reasoned in its reply. Of several votes the first one's reason is
    known, which need not be that of the mean.
    """
    votes, failed = ((), ()) if isinstance(verdict, PairVerdict) else (verdict.votes, verdict.failed)
    samples = max(1, (len(votes) + len(failed)) // orders)
    if samples > 1:
        # Votes on a pair are points of its first clip, which say nothing to a reader.
        score = f" ({votes[0]:g})" if isinstance(verdict, Verdict) else ""
        console.print(f"of the first vote{score}; --json has all replies:")
    reasons = _by_order(verdict.reason, verdict.reply, orders, 0 if failed else samples)
    for number, text in enumerate(reasons):
        # An ensemble's reason is of no order.
        if names is not None and orders > 1 and ORDERS_APART in verdict.reason:
            first, second = names if number == 0 else names[::-1]
            other = ", then the other way round" if len(reasons) == 1 else ""
            console.print(f"heard first {first}, second {second}{other}:")
        console.print(_in_lines(text) or "the judge gave no reason")
    if failed:
        console.print(f"votes missing, {len(failed)}: {failed[0]}")


def _by_order(reason: str, reply: str, orders: int, samples: int) -> list[str]:
    """Return the text that gives each order's reason, or one for all; `samples` is replies an order, 0 if some are missing."""
    reasons, replies = reason.split(ORDERS_APART), reply.split(ORDERS_APART)
    firsts = replies[::samples] if samples and len(replies) == orders * samples else None
    if not any(reason.strip() for reason in reasons):
        return firsts or [reply]
    if len(reasons) != orders:
        return [reason]
    return [reason if reason.strip() else other for reason, other in zip(reasons, firsts or [""] * orders, strict=True)]


def _in_lines(reason: str) -> str:
    """Return a reason for people to read: a JSON object, as of a judge that reasons by dimension, as a line for each key."""
    try:
        keyed = json.loads(reason)
    except (ValueError, RecursionError):
        return reason.strip()
    if not isinstance(keyed, dict) or not keyed:
        return reason.strip()
    return "\n".join(f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in keyed.items())


def show_verdict(
    console: Console, verdict: PairVerdict | Verdict | Unscored, overall: str | None = None, names: ClipNames | None = None
) -> None:
    """Show the labels or the score, the reason, the judge and the cost; `names` are those of the clips 1 and 2."""
    if isinstance(verdict, Unscored):
        console.print(f"[bold red]unscored[/bold red]: {escape(verdict.reason)}", markup=True)
        if verdict.reply:
            console.print("the judge's reply:", verdict.reply)
        return
    if isinstance(verdict, PairVerdict):
        labels = ", ".join(f"{name} [bold]{label}[/bold]" for name, label in verdict.labels.items())
        console.print(f"{labels}; overall [bold]{overall}[/bold]", markup=True)
        if verdict.consistent is not None:
            console.print("both orders agree" if verdict.consistent else "the two orders do not agree")
    else:
        votes = len(verdict.votes)
        voted = f", the mean of {votes} votes" if votes > 1 else ", of 1 vote" if votes else " of 5"
        spread = "" if verdict.spread is None else f", spread {verdict.spread:.2f}"
        console.print(f"score [bold]{verdict.score:.3g}[/bold]{voted}{spread}", markup=True)
    orders = 2 if isinstance(verdict, PairVerdict) and verdict.consistent is not None else 1
    _show_reasons(console, verdict, orders, names)
    _show_judge(console, verdict)


def show_preference(console: Console, task: str, preference: Preference | Unscored, names: ClipNames | None = None) -> None:
    """Show an audio judge's verdict on two clips for one task; `names` are those of the clips 1 and 2."""
    if isinstance(preference, Unscored):
        show_verdict(console, preference)
        return
    line = f"{escape(task)}: [bold]{escape(preference.label)}[/bold]"
    if names is not None and preference.label in ("1", "2"):
        line += f" ({escape(names[int(preference.label) - 1])})"
    if preference.consistent is not None:
        line += f"; judged in both orders, {'which agree' if preference.consistent else 'which do not agree'}"
    if preference.spread is not None and len(preference.votes) > len(preference.order_labels):
        line += f"; {len(preference.votes)} votes, {preference.points:.2f} for the first, spread {preference.spread:.2f}"
    console.print(line, markup=True)
    _show_reasons(console, preference, len(preference.order_labels), names)
    _show_judge(console, preference)


def _show_judge(console: Console, verdict: PairVerdict | Verdict | Preference) -> None:
    price = "unknown" if verdict.cost_usd is None else f"{verdict.cost_usd:.4f} USD"
    price += " (audio counted by its length)" if verdict.cost_estimated else ""
    by = f"{verdict.judge}/{verdict.version}, prompt {verdict.prompt_hash}"
    console.print(f"{by}, {verdict.latency_s:.1f} s, cost {price}", style="dim")


@dataclass(frozen=True)
class PairsEstimate:
    """The most that judging pairs can cost, for which model, and how many of the pairs cannot be judged."""

    model: str
    bill: Bill
    unscored: int
    n_pairs: int

    def to_json(self) -> dict[str, Any]:
        """Return the bill and the number of pairs that cannot be judged."""
        return {**asdict(self.bill), "unscored": self.unscored}

    def show(self, console: Console) -> None:
        """Show both."""
        show_estimate(console, self.model, self.bill)
        console.print(f"{self.unscored} of {self.n_pairs} pairs cannot be judged")


def show_estimate(console: Console, model: str, bill: Bill) -> None:
    """Show what calls would cost at most."""
    tokens, usd = bill.tokens, bill.at_most_usd
    price = f"no price is known for {model}" if usd is None else f"at most {usd:.4f} USD"
    console.print(
        f"{bill.calls} calls of {model}, {tokens.text_in} tokens of text and {tokens.audio_in} of audio in, at "
        f"most {tokens.text_out} out: {price}"
    )
