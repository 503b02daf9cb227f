"""UniSRM's data from published corpora, from the command line: import, estimate, and people's verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paras2s.configs.schema.unisrm_data import load_unisrm_data
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen.builders.build import BUILDERS, build_corpus, estimate_corpus
from paras2s.unisrm.data_gen.builders.plans import sizes_of
from paras2s.unisrm.data_gen.import_layout import import_layout, keys_of
from paras2s.unisrm.data_gen.shortcuts import measure_shortcuts
from paras2s.unisrm.data_gen.verify import read_gold, read_ratings, verify
from paras2s.unisrm.reward.items import ITEMS, read_items

Counts = Mapping[tuple[str, str], int]


def import_corpus(
    name: str, source: Path, out: Path, config: str | None, overrides: dict[str, Any], dry_run: bool,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:  # fmt: skip
    """Import or build a data set, and return what came of it. Raises ConfigError: a missing or surplus config. DataError."""
    if name in BUILDERS:
        if dry_run:
            return estimate_import(name, source, out, config, overrides)
        built = build_corpus(name, load_unisrm_data(_named(name, config), overrides), source, out, progress)
        shortcuts = measure_shortcuts(out, [item for item in read_items(out) if item.factors.get("corpus") == name])
        return {
            "items": dict(built.items), "tried": dict(built.tried), "missing": dict(built.missing),
            "dropped": _counts(built.dropped), "spent_usd": built.spent_usd,
            "shortcuts": [asdict(shortcut) for shortcut in shortcuts],
        }  # fmt: skip
    sizes = None
    if config is not None or overrides:
        # Of the data sets with labels Table 9 has QualiSpeech alone.
        if name != "qualispeech":
            raise ConfigError(f"--config: {name} is read as it is; leave --config and --set out")
        sizes = sizes_of(load_unisrm_data(_named(name, config), overrides), "T2")
    report = import_layout(name, source, out, dry_run=dry_run, sizes=sizes, progress=progress)
    return {"items": dict(report.items), "dropped": _counts(report.dropped)}


def estimate_import(name: str, source: Path, out: Path, config: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return what building a corpus would make, call and cost at most. Raises ConfigError: nothing to build. DataError."""
    if name not in BUILDERS:
        raise ConfigError(f"--estimate: {name} has labels by people, and importing it calls nothing; leave it out")
    others = [] if not (out / ITEMS).is_file() else [item for item in read_items(out) if item.factors.get("corpus") != name]
    taken = {key: item.split for item in others for key in keys_of(item)}
    estimate = estimate_corpus(name, load_unisrm_data(_named(name, config), overrides), source, taken)
    models = {
        model: {"calls": bill.calls, **asdict(bill.tokens), "at_most_usd": bill.at_most_usd}
        for model, bill in estimate.models.items()
    }
    return {
        "pairs": _counts(estimate.pairs), "missing": dict(estimate.missing), "dropped": _counts(estimate.dropped),
        "models": models,
        "voices": {voice: asdict(bill) for voice, bill in estimate.voices.items()},
    }  # fmt: skip


def verify_folder(
    data: Path, ratings: Path, gold: Path | None, config: str, overrides: dict[str, Any], dry_run: bool
) -> dict[str, Any]:
    """Verify a data folder by a file of ratings; return what came of it. Raises DataError: a wrong file, or no raters."""
    settings = load_unisrm_data(config, overrides).verification
    verification = verify(data, read_ratings(ratings), {} if gold is None else read_gold(gold), settings, dry_run)
    return {
        "verified": verification.verified, "items": dict(verification.items), "dropped": _counts(verification.dropped),
        "excluded": dict(verification.excluded), "unanimous": verification.unanimous,
    }  # fmt: skip


def report_lines(report: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield a report line by line."""
    for key, title in (("pairs", "pairs at most"), ("items", "items"), ("tried", "pairs tried"), ("missing", "too few by"),
                       ("dropped", "dropped"), ("excluded", "raters excluded")):  # fmt: skip
        if key in report:
            yield f"{title}: " + (", ".join(f"{name} {count}" for name, count in report[key].items()) or "none")
    if "verified" in report:
        yield f"verified: {report['verified']} pairs, on {report['unanimous']} of them all raters agree"
    for model, bill in report.get("models", {}).items():
        usd = "no price is known" if bill["at_most_usd"] is None else f"at most {bill['at_most_usd']:.2f} USD"
        tokens = f"{bill['text_in']} tokens of text and {bill['audio_in']} of audio in, at most {bill['text_out']} out"
        yield f"{model}: {bill['calls']} calls, {tokens}: {usd}"
    for voice, bill in report.get("voices", {}).items():
        usd = "no price is known" if bill["at_most_usd"] is None else f"at most {bill['at_most_usd']:.2f} USD"
        yield f"voice, {voice}: {bill['lines']} lines, at most {bill['seconds'] / 3600:.2f} h: {usd}"
    if "spent_usd" in report:
        yield f"spent now: {report['spent_usd']:.4f} USD"
    for shortcut in report.get("shortcuts", []):
        value = "none" if shortcut["value"] is None else f"{shortcut['value']:.3f} +- {shortcut['error'] or 0:.3f}"
        yield f"{shortcut['task']} by {shortcut['name']}: {value} (n = {shortcut['n']})"
    yield where


def _named(name: str, config: str | None) -> str:
    if config is None:
        raise ConfigError(f"--config: {name} is made by its settings; give paper, local, or a YAML")
    return config


def _counts(counts: Counts) -> dict[str, int]:
    return {f"{split}: {why}" if split else why: count for (split, why), count in counts.items()}
