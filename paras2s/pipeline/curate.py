"""`paras2s data` of a curation: run it, estimate it, report it, and let people check what came out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.run import CurationConfig, dump_config
from paras2s.data_gen.curation.categories import load_categories
from paras2s.data_gen.curation.pipeline import Curated, Pipeline, check_wanted
from paras2s.data_gen.curation.report import (
    CLIP_FILTERS,
    TEXT_FILTERS,
    Funnel,
    StageEstimate,
    estimate,
    filters_seen,
    measured_rates,
    totals,
)
from paras2s.run import claim_folder
from paras2s.utils.progress import progress_bar

# How an endpoint is called, and how far a run goes, do not shape what comes out; a run that ended for their sake goes on.
_CALLED = ("budget_usd", "concurrency", "requests_per_minute", "timeout_s", "max_attempts", "backoff_s", "prices")
MAY_CHANGE = frozenset(
    {f"{name}.{key}" for name in ("writer", "tester", "openai", "cosyvoice") for key in (*_CALLED, "max_output_tokens")}
    | {"max_lists", "max_failed_share", "texts_at_once"}
    | {f"human_check.{key}" for key in ("roles", "annotators", "required")}
)


def run_curation(config: CurationConfig, console: Console, quiet: bool, limit: int | None, ray_address: str | None) -> Curated:
    """The whole pipeline, with a bar a stage. `ray_address`: "" measures clips here, None or an address over Ray Data."""
    claim_folder(config.folder, dump_config(config), MAY_CHANGE)
    with _bars(console, quiet) as at:
        return Pipeline(config, at, limit, ray_address).run()


@contextlib.contextmanager
def _bars(console: Console, quiet: bool) -> Iterator[Any]:
    """One bar at a time: that of the stage which reports."""
    with contextlib.ExitStack() as stack:
        shown: dict[str, Any] = {}

        def at(stage: str, done: int, total: int) -> None:
            if total and stage not in shown:
                stack.pop_all().close()
                shown.clear()
                shown[stage] = stack.enter_context(progress_bar(console, stage, total, quiet))
            if total:
                shown[stage].at(done, total)

        yield at


def estimate_curation(config: CurationConfig, limit: int | None) -> tuple[dict[str, StageEstimate], int]:
    """What each text stage takes, and on how many sentences the shares behind it were measured (0: none, the usual ones)."""
    check_wanted(config, load_categories(config.category_file))
    rates = measured_rates(config.folder)
    tables = (config.writer.prices, config.tester.prices, config.openai.prices)
    prices = {name: price for table in tables for name, price in load_prices(table).models.items()}
    return estimate(config, rates, prices, limit), rates.measured_on


def show_estimate(console: Console, found: dict[str, StageEstimate], measured_on: int) -> None:
    """The estimate as a table, and what it rests on."""
    table = Table("stage", "requests", "tokens in", "tokens out", "USD")
    for stage, one in found.items():
        usd = "unknown" if one.usd is None else f"{one.usd:.4f}"
        table.add_row(stage, str(one.requests), str(one.text_in_tokens), str(one.text_out_tokens), usd)
    requests, tokens_in, tokens_out, total = totals(found)
    usd = "unknown" if total is None else f"{total:.4f}"
    table.add_row("all", str(requests), str(tokens_in), str(tokens_out), usd, style="bold")
    console.print(table)
    basis = (
        f"shares measured on {measured_on} sentences" if measured_on else "usual shares; a run with --limit 100 measures yours"
    )
    console.print(f"{basis}; corpora come on top", highlight=False)


def show_curated(console: Console, found: Curated) -> None:
    """What was made, what it took, and what is missing."""
    table = Table("stage", "requests", "from cache", "failed", "tokens in", "tokens out", "USD now", "seconds")
    for stage, one in found.spends.items():
        usd = "unknown" if one.usd is None else f"{one.usd:.4f}"
        counts = (one.requests, one.cached, one.failed, one.text_in_tokens, one.text_out_tokens)
        table.add_row(stage, *map(str, counts), usd, f"{one.seconds:.1f}")
    console.print(table)
    console.print(
        f"{found.written} sentences, {found.queries} queries, {found.demonstrations} demonstrations in {found.folder}",
        highlight=False,
    )
    for name, count in found.missing.items():
        console.print(
            f"[yellow]{name}: {count} contrasts are missing[/yellow]; raise max_lists, or see --report", highlight=False
        )
    for name, overlap in found.overlaps.items():
        console.print(f"{name}: {overlap}, by the corpus's own splits", highlight=False)


def show_funnel(console: Console, found: Funnel) -> None:
    """Counts by category and filter, sentences first, then clips, and the commonest reasons."""
    for title, counts, order in (("sentences", found.texts, TEXT_FILTERS), ("clips", found.clips, CLIP_FILTERS)):
        if not counts:
            continue
        columns = ["in", *filters_seen(counts, order), "kept"]
        table = Table("category", *columns, title=title, title_justify="left")
        for category, row in counts.items():
            table.add_row(category, *(str(row[column]) for column in columns))
        console.print(table)
    for by, reasons in found.reasons.items():
        for reason, count in reasons:
            console.print(f"{by} {count}x: {reason}", highlight=False, markup=False)


def funnel_json(found: Funnel) -> dict[str, Any]:
    """The funnel as plain JSON."""
    return {"texts": found.texts, "clips": found.clips, "reasons": found.reasons}


def check_clips(config: CurationConfig, annotator: str, port: int, console: Console) -> tuple[int, int]:
    """Serve the page until its person is done; decided and all."""
    from paras2s.data_gen.review.decisions import DECISIONS, items_to_check
    from paras2s.data_gen.review.server import CheckSession, serve

    session = CheckSession(items_to_check(config), Path(config.folder) / DECISIONS, annotator)
    serve(session, port, lambda url: console.print(f"Listen and decide: {url}", highlight=False))
    return session.progress()
