"""A judge's agreement with people as one JSON object, and as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from paras2s.bench.speakbench.data import Suite, SuitePair, label_counts
from paras2s.bench.speakbench.metrics import (
    Labels,
    accuracy,
    cohen_kappa,
    coherence,
    compare,
    confusion,
    content_controlled,
    flip_rates,
    majority_class,
    winner_on_bad,
    winner_slice,
)
from paras2s.bench.speakbench.verdicts import VerdictRow
from paras2s.reward.fusion import FusionRule
from paras2s.types import DIMENSIONS, Label
from paras2s.utils.tables import Table, number_text, p_value, percent, span

Report = dict[str, Any]


def oracle_report(suite: Suite, pairs: Sequence[SuitePair], rules: Mapping[str, FusionRule]) -> Report:
    """Score fusion rules on people's own dimension labels: how often each gives their overall label, without a judge."""
    overall: list[Label] = [pair.label.overall for pair in pairs]
    clusters = [pair.instruction_id for pair in pairs]
    rows: list[Labels] = [pair.label.dimensions() for pair in pairs]
    fused = {name: [rule.fuse(labels) for labels in rows] for name, rule in rules.items()}
    return {
        **_of_labels(suite, pairs),
        "rules": {
            name: {
                "says": rules[name].says,
                "accuracy": asdict(accuracy(overall, guess)),
                "accuracy_clustered": asdict(accuracy(overall, guess, clusters)),
                "kappa": asdict(cohen_kappa(overall, guess, clusters)),
                "against_default": asdict(compare(overall, guess, fused[suite.rule], clusters))
                if suite.rule in fused
                else None,
            }
            for name, guess in fused.items()
        },
        "coherence": coherence(rows, overall, clusters) if len(set(overall)) > 1 else None,
    }


def _of_labels(suite: Suite, pairs: Sequence[SuitePair]) -> Report:
    truths = {name: [getattr(pair.label, name) for pair in pairs] for name in (*DIMENSIONS, "overall")}
    majorities = {name: majority_class(labels) for name, labels in truths.items()}
    return {
        "suite": suite.name,
        "n_pairs": len(pairs),
        "n_instructions": len({pair.instruction_id for pair in pairs}),
        "label_counts": label_counts(pairs),
        "majority": {name: {"label": label, "accuracy": share} for name, (label, share) in majorities.items()},
        "human_human": suite.human_agreement,
    }


def fused_labels(pairs: Sequence[SuitePair], verdicts: Mapping[int, VerdictRow], rule: FusionRule) -> list[Label | None]:
    """Return the judge's overall label of each pair; None if it has no verdict."""
    rows = [verdicts.get(pair.index) for pair in pairs]
    return [rule.fuse(row.labels) if row is not None and row.labels is not None else None for row in rows]


def judge_report(
    suite: Suite, pairs: Sequence[SuitePair], verdicts: Mapping[int, VerdictRow], rule_name: str, rule: FusionRule
) -> Report:
    """Return all figures of a judge. Pairs without a verdict count as asked and not scored."""
    rows = [verdicts.get(pair.index) for pair in pairs]
    guess: list[Labels | None] = [row.labels if row else None for row in rows]
    clusters = [pair.instruction_id for pair in pairs]
    truth: list[Label] = [pair.label.overall for pair in pairs]
    overall = fused_labels(pairs, verdicts, rule)
    resolved, right = content_controlled(guess, truth, rule, clusters)
    dimensions = {
        name: asdict(
            accuracy(
                [getattr(p.label, name) for p in pairs],
                [None if labels is None else labels[name] for labels in guess],
                clusters,
            )
        )
        for name in DIMENSIONS
    }
    known = [row for row in rows if row is not None]
    consistent = [row.consistent for row in known if row.consistent is not None]
    return {
        **_of_labels(suite, pairs),
        "judge": sorted({f"{row.judge}/{row.version}/{row.prompt_hash}" for row in known if row.labels}),
        "rule": rule_name,
        "n_scored": sum(label is not None for label in guess),
        "unscored": dict(Counter(row.unscored if row else "no verdict recorded" for row in rows if not row or row.unscored)),
        "dimensions": dimensions,
        "overall": {
            "accuracy_4": asdict(accuracy(truth, overall)),
            "accuracy_4_clustered": asdict(accuracy(truth, overall, clusters)),
            "accuracy_3_clustered": asdict(accuracy(truth, overall, clusters, 3)),
            "accuracy_2_clustered": asdict(accuracy(truth, overall, clusters, 2)),
            "kappa_clustered": asdict(cohen_kappa(truth, overall, clusters)),
        },
        "confusion": asdict(confusion(truth, overall)),
        "probes": {
            "p1_resolved_by": {name: asdict(share) for name, share in resolved.items()},
            "p1_accuracy_of": {name: asdict(share) for name, share in right.items()},
            "p2_flip_rate": {name: asdict(share) for name, share in flip_rates(guess, rule, clusters).items()},
            "p3_winner_on_bad": asdict(winner_on_bad(truth, overall, clusters)),
            "p3_winner_slice": asdict(winner_slice(truth, overall, clusters)),
        },
        "order_consistency": {"share": sum(consistent) / len(consistent), "n": len(consistent)} if consistent else None,
        "cost": cost(known),
    }


def cost(rows: Sequence[VerdictRow]) -> Report:
    """Return tokens, USD and hours of local measuring over verdicts with labels (TRACE, Table 13); None if one is unknown.

    The hours are those of measuring now: none for clips whose measurements the cache had.

    What unscored pairs cost is not recorded with them; `paras2s bench` prints what a command spent in all.
    """

    def total(key: str) -> Any:
        values = [getattr(row, key) for row in rows if row.labels is not None]
        return sum(values) if values and all(value is not None for value in values) else None

    keys = ("text_in_tokens", "audio_in_tokens", "text_out_tokens")
    local_s = total("local_s")
    hours = None if local_s is None else local_s / 3600
    return {**{key: total(key) for key in keys}, "api_usd": total("cost_usd"), "local_hours": hours}


def comparison_report(
    pairs: Sequence[SuitePair], first: Mapping[int, VerdictRow], second: Mapping[int, VerdictRow], rule: FusionRule
) -> Report:
    """Compare two judges on the pairs that both scored."""
    truth: list[Label] = [pair.label.overall for pair in pairs]
    labels, other = fused_labels(pairs, first, rule), fused_labels(pairs, second, rule)
    return asdict(compare(truth, labels, other, [pair.instruction_id for pair in pairs]))


# For a terminal.


def share_text(share: Mapping[str, Any]) -> str:
    """Return a share with its interval and numbers, such as "62.1 % (58.0 to 66.1; 480 of 497)"."""
    n = f"{share['n']} of {share['n_asked']}"
    if share["value"] is None:
        return f"none ({n})"
    # One instruction says nothing of others.
    return f"{percent(share['value'])} ({span(share['low'], share['high'], 1, scale=100.0) or 'no interval'}; {n})"


def show_labels(console: Console, report: Report) -> None:
    """Show label counts, the majority class and people's own agreement, which every judge is compared with."""
    rows = []
    for name, counts in report["label_counts"].items():
        majority = report["majority"][name]
        kinds = (counts[kind] for kind in ("both_bad", "winner", "both_good"))
        most = f"{majority['label']} {percent(majority['accuracy'])}"
        rows.append((name, *kinds, most, percent(report["human_human"][name])))
    title = f"{report['suite']}: {report['n_pairs']} pairs, {report['n_instructions']} instructions"
    Table(("label", "both bad", "winner", "both good", "majority class", "human-human"), rows, title).show(console)


def show_oracle(console: Console, report: Report) -> None:
    """Show each rule against people's overall label."""
    show_labels(console, report)
    head = ("rule", "4-way, 95 % by instruction", "kappa", "right where the default is not", "reverse", "McNemar p")
    rows = []
    for name, row in report["rules"].items():
        other = row["against_default"]
        tested = (other["first_only"], other["second_only"], p_value(other["p_value"])) if other else ()
        rows.append((name, share_text(row["accuracy_clustered"]), number_text(row["kappa"]["value"], 3, none="none"), *tested))
    Table(head, rows, "people's dimension labels, fused, against their overall label").show(console)
    if (coherent := report["coherence"]) is not None:
        held_out = percent(coherent["held_out"], none="none")
        console.print(
            f"coherence: a multinomial logistic model of the three labels rebuilds {percent(coherent['fitted'])} of the "
            f"overall labels it was fitted on, {held_out} of held-out instructions (n = {coherent['n']})"
        )


def show_judge(console: Console, name: str, report: Report) -> None:
    """Show a judge's figures."""
    overall, probes = report["overall"], report["probes"]
    labels = {**report["dimensions"], f"overall ({report['rule']})": overall["accuracy_4_clustered"]}
    rows: list[tuple[str, ...]] = []
    for label, share in labels.items():
        key = label.partition(" ")[0]
        beside = percent(report["majority"][key]["accuracy"]), percent(report["human_human"][key])
        rows.append((label, share_text(share), *beside))
    rows.append(("overall, plain bootstrap", share_text(overall["accuracy_4"])))
    rows.append(("overall, ties as one", share_text(overall["accuracy_3_clustered"])))
    rows.append(("overall, winners only", share_text(overall["accuracy_2_clustered"])))
    if (kappa := overall["kappa_clustered"])["value"] is not None:
        ends = span(kappa["low"], kappa["high"], 3) or "no interval"
        rows.append(("kappa", f"{kappa['value']:.3f} ({ends}; {kappa['n']} of {kappa['n_asked']})"))
    for by in ("paralinguistics", "voice_quality"):
        rows.append((f"P1 ties broken by {by}", share_text(probes["p1_resolved_by"][by])))
        rows.append((f"P1 of these, right with {by}", share_text(probes["p1_accuracy_of"][by])))
    rows += [(f"P2 flips with {dimension}", share_text(share)) for dimension, share in probes["p2_flip_rate"].items()]
    if (orders := report["order_consistency"]) is not None:
        rows.append(("both orders agree", f"{percent(orders['share'])} ({orders['n']} pairs)"))
    rows.append(("P3 winner on bad pairs (low is good)", share_text(probes["p3_winner_on_bad"])))
    rows.append(("P3 winner slice", share_text(probes["p3_winner_slice"])))
    head = ("against people", "accuracy, 95 % by instruction", "majority class", "human-human")
    Table(head, rows, f"{name}: {report['n_scored']} of {report['n_pairs']} pairs scored").show(console)
    _show_confusion(console, report["confusion"])
    for reason, count in sorted(report["unscored"].items(), key=lambda item: -item[1])[:5]:
        console.print(f"  unscored, {count}: {reason}")
    spent = ", ".join(f"{key} {_figure(value)}" for key, value in report["cost"].items())
    console.print(f"  cost: {spent}")


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _show_confusion(console: Console, confusion: Report) -> None:
    rows = [(label, *counts) for label, counts in zip(confusion["labels"], confusion["counts"], strict=True)]
    Table(("", *confusion["labels"]), rows, "people (rows) and judge (columns)").show(console)
    if (precision := confusion["weighted_precision"]) is not None:
        console.print(f"  weighted precision {percent(precision)}, recall {percent(confusion['weighted_recall'])}")


def show_comparison(console: Console, first: str, second: str, comparison: Report) -> None:
    """Show the difference of two judges."""
    console.print(
        f"{first} less {second}: {share_text(comparison['difference'])}; right alone: {comparison['first_only']} and "
        f"{comparison['second_only']}; McNemar p = {comparison['p_value']:.3g} ({comparison['test']})"
    )
