"""Shows blueprints, verdicts and cost estimates on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paras2s.clients.chat import Bill
from paras2s.types import Absent, Blueprint, Measured, PairVerdict, Preference, Unscored, Verdict

Field = Measured | Absent
BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Returns a contour as one line of blocks, from the lowest to the highest of its own range."""
    low, high = min(values), max(values)
    if high == low:
        return BARS[4] * len(values)
    return "".join(BARS[1 + round((value - low) / (high - low) * (len(BARS) - 2))] for value in values)


def _cell(field: Field) -> str:
    if isinstance(field, Absent):
        return f"[dim]not measured: {escape(field.reason)}[/dim]"
    value = field.value
    if isinstance(value, list):
        return f"{sparkline(value)}  {min(value):.0f} to {max(value):.0f}"
    # The words of a clip may look like our markup.
    text = f"{value:.2f}" if isinstance(value, float) else escape(str(value))
    confidence = "" if field.confidence is None else f"  [dim](confidence {field.confidence:.2f})[/dim]"
    return f"{text}{confidence}"


def show_blueprints(console: Console, blueprints: dict[str, Blueprint]) -> None:
    """Shows blueprints side by side, contours as sparklines."""
    table = Table()
    table.add_column("field")
    for name in blueprints:
        table.add_column(name, overflow="fold")
    for key in dict.fromkeys(key for blueprint in blueprints.values() for key in blueprint.fields):
        short = key.removeprefix("agent_").removeprefix("audio_properties.").removeprefix("audio_quality.")
        table.add_row(short, *(_cell(blueprint.fields[key]) for blueprint in blueprints.values()))
    console.print(table)


ClipNames = tuple[str, str]
ORDERS_APART = "\n---\n"


def _show_reasons(console: Console, reason: str, reply: str, orders: int, names: ClipNames | None) -> None:
    """Shows the reason of each order under the clips as they were heard in it: "first" is another clip in the second order.

    A judge that gave no reason beside its verdict may have reasoned in its reply.
    """
    reasons = [one.strip() or said.strip() for one, said in _by_order(reason, reply, orders)]
    for number, text in enumerate(reasons):
        if names is not None and len(reasons) > 1:
            first, second = names if number == 0 else names[::-1]
            console.print(f"heard first {first}, second {second}:", highlight=False, markup=False)
        console.print(text or "the judge gave no reason", highlight=False, markup=False)


def _by_order(reason: str, reply: str, orders: int) -> list[tuple[str, str]]:
    """Reason and reply of each order, where both can be told apart; else of all orders together."""
    reasons, replies = reason.split(ORDERS_APART), reply.split(ORDERS_APART)
    if orders > 1 and len(reasons) == orders:
        return list(zip(reasons, replies if len(replies) == orders else [reply] * orders, strict=True))
    return [("" if not any(one.strip() for one in reasons) else reason, reply)]


def show_verdict(
    console: Console,
    verdict: PairVerdict | Verdict | Unscored,
    overall: str | None = None,
    names: ClipNames | None = None,
) -> None:
    """Shows the labels or the score, the reason, the judge and the cost; `names` are those of the clips 1 and 2."""
    if isinstance(verdict, Unscored):
        console.print(f"[bold red]unscored[/bold red]: {escape(verdict.reason)}", highlight=False)
        if verdict.reply:
            console.print("the judge's reply:", verdict.reply, highlight=False, markup=False)
        return
    if isinstance(verdict, PairVerdict):
        labels = ", ".join(f"{name} [bold]{label}[/bold]" for name, label in verdict.labels.items())
        console.print(f"{labels}; overall [bold]{overall}[/bold]", highlight=False)
        if verdict.consistent is not None:
            console.print("both orders agree" if verdict.consistent else "the two orders do not agree", highlight=False)
    else:
        votes = len(verdict.votes)
        voted = f", the mean of {votes} votes" if votes > 1 else ", of 1 vote" if votes else " of 5"
        spread = "" if verdict.spread is None else f", spread {verdict.spread:.2f}"
        console.print(f"score [bold]{verdict.score:.3g}[/bold]{voted}{spread}", highlight=False)
    orders = 2 if isinstance(verdict, PairVerdict) and verdict.consistent is not None else 1
    _show_reasons(console, verdict.reason, verdict.reply, orders, names)
    _show_judge(console, verdict)


def show_preference(console: Console, task: str, preference: Preference | Unscored, names: ClipNames | None = None) -> None:
    """Shows an audio judge's verdict on two clips for one task; `names` are those of the clips 1 and 2."""
    if isinstance(preference, Unscored):
        show_verdict(console, preference)
        return
    line = f"{task}: [bold]{escape(preference.label)}[/bold]"
    if names is not None and preference.label in ("1", "2"):
        line += f" ({escape(names[int(preference.label) - 1])})"
    if preference.consistent is not None:
        line += f"; judged in both orders, {'which agree' if preference.consistent else 'which do not agree'}"
    if preference.spread is not None and len(preference.votes) > len(preference.order_labels):
        line += f"; {len(preference.votes)} votes, {preference.points:.2f} for the first, spread {preference.spread:.2f}"
    console.print(line, highlight=False)
    _show_reasons(console, preference.reason, preference.reply, len(preference.order_labels), names)
    _show_judge(console, preference)


def _show_judge(console: Console, verdict: PairVerdict | Verdict | Preference) -> None:
    price = "unknown" if verdict.cost_usd is None else f"{verdict.cost_usd:.4f} USD"
    price += " (audio counted by its length)" if verdict.cost_estimated else ""
    by = f"{verdict.judge}/{verdict.version}, prompt {verdict.prompt_hash}"
    console.print(f"{by}, {verdict.latency_s:.1f} s, cost {price}", style="dim", markup=False)


def show_estimate(console: Console, model: str, bill: Bill) -> None:
    """Shows what calls would cost at most."""
    tokens, usd = bill.tokens, bill.at_most_usd
    price = f"no price is known for {model}" if usd is None else f"at most {usd:.4f} USD"
    console.print(
        f"{bill.calls} calls of {model}, {tokens.text_in} tokens of text and {tokens.audio_in} of audio in, at "
        f"most {tokens.text_out} out: {price}",
        highlight=False,
    )
