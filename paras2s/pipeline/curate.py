"""The curation stage: run, estimate and report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.curation.categories import load_categories
from paras2s.data_gen.curation.pipeline import CurationResult, Pipeline, check_config
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
from paras2s.utils.tables import Styled, Table, number_text

# These settings do not change the data, so a run that they stopped may go on with other values.
_ENDPOINT_KEYS = ("budget_usd", "concurrency", "requests_per_minute", "timeout_s", "max_attempts", "backoff_s", "prices")
MAY_CHANGE = frozenset(
    {f"{name}.{key}" for name in ("writer", "tester", "openai", "cosyvoice") for key in (*_ENDPOINT_KEYS, "max_output_tokens")}
    | {"max_lists", "max_failed_share", "texts_at_once"}
    | {f"human_check.{key}" for key in ("roles", "annotators", "required")}
)


def run_curation(
    config: CurationConfig, console: Console, quiet: bool, limit: int | None, ray_address: str | None
) -> CurationResult:
    """Run the pipeline, with a bar a stage. `ray_address`: "" measures clips here, None or an address over Ray Data."""
    claim_folder(config.folder, config, MAY_CHANGE)
    with _bars(console, quiet) as progress:
        return Pipeline(config, progress, limit, ray_address).run()


@contextlib.contextmanager
def _bars(console: Console, quiet: bool) -> Iterator[Any]:
    """Show one bar at a time, that of the current stage."""
    with contextlib.ExitStack() as stack:
        shown: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if total and stage not in shown:
                stack.pop_all().close()
                shown.clear()
                shown[stage] = stack.enter_context(progress_bar(console, stage, total, quiet))
            if total:
                shown[stage].at(done, total)

        yield progress


def estimate_curation(config: CurationConfig, limit: int | None) -> tuple[dict[str, StageEstimate], int]:
    """Estimate each stage; also returns on how many sentences its rates were measured (0: usual rates)."""
    check_config(config, load_categories(config.category_file))
    rates = measured_rates(config.folder)
    tables = (config.writer.prices, config.tester.prices, config.openai.prices)
    prices = {name: price for table in tables for name, price in load_prices(table).models.items()}
    return estimate(config, rates, prices, limit), rates.measured_on


def show_estimate(console: Console, stages: dict[str, StageEstimate], measured_on: int) -> None:
    """Print the estimate as a table, and its basis."""
    rows: list[tuple[str | int, ...]] = [
        (name, stage.requests, stage.text_in_tokens, stage.text_out_tokens, number_text(stage.usd, 4, none="unknown"))
        for name, stage in stages.items()
    ]
    *counts, total = totals(stages)
    rows.append(tuple(map(Styled, ("all", *map(str, counts), number_text(total, 4, none="unknown")))))
    Table(("stage", "requests", "tokens in", "tokens out", "USD"), rows).show(console)
    basis = (
        f"rates measured on {measured_on} sentences" if measured_on else "usual rates; a run with --limit 100 measures yours"
    )
    console.print(f"{basis}; corpora come on top")


def show_result(console: Console, result: CurationResult) -> None:
    """Print what was made, what it cost, and what is missing."""
    rows = [
        (stage, spend.requests, spend.cached, spend.failed, spend.text_in_tokens, spend.text_out_tokens,
         number_text(spend.usd, 4, none="unknown"), number_text(spend.seconds, 1))
        for stage, spend in result.spends.items()
    ]  # fmt: skip
    head = ("stage", "requests", "from cache", "failed", "tokens in", "tokens out", "USD now", "seconds")
    Table(head, rows).show(console)
    console.print(
        f"{result.written} sentences, {result.queries} queries, {result.demonstrations} demonstrations in {result.folder}"
    )
    for name, count in result.missing.items():
        console.print(f"{name}: {count} contrasts are missing; raise max_lists, or see --report", style="yellow")
    for name, overlap in result.overlaps.items():
        console.print(f"{name}: {overlap}, by the corpus's own splits")


def show_funnel(console: Console, funnel: Funnel) -> None:
    """Print counts by category and filter, sentences first, then clips, and the commonest reasons."""
    for title, counts, order in (("sentences", funnel.texts, TEXT_FILTERS), ("clips", funnel.clips, CLIP_FILTERS)):
        if not counts:
            continue
        columns = ["in", *filters_seen(counts, order), "kept"]
        rows = [(category, *(row[column] for column in columns)) for category, row in counts.items()]
        Table(("category", *columns), rows, title).show(console)
    for by, reasons in funnel.reasons.items():
        for reason, count in reasons:
            console.print(f"{by} {count}x: {reason}")


def funnel_json(funnel: Funnel) -> dict[str, Any]:
    """Return the funnel as plain JSON."""
    return {"texts": funnel.texts, "clips": funnel.clips, "reasons": funnel.reasons}
