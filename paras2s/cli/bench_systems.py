"""The verb `bench systems`: compare systems' spoken answers with a reference system's, by an audio judge."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import (
    Curation,
    Estimate,
    Json,
    RetryUnscored,
    Set,
    Systems,
    exit_if_unscored,
    parse_overrides,
    parse_systems,
    print_json,
)


def bench_systems(
    instructions: Annotated[Path, typer.Argument(help="Folder of spoken instructions, ID.wav.")],
    system: Systems,
    reference: Annotated[str, typer.Option(help="The system to compare all others with.")],
    judge: Annotated[str, typer.Option("--judge", help="audiojudge, or an audio judge's YAML.")] = "audiojudge",
    out: Annotated[
        Path,
        typer.Option(
            help="File for verdicts, for `paras2s rank` (CSV); beside it reasons (.jsonl) and new answers (-answers/)."
        ),
    ] = Path("runs/verdicts.csv"),
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N instructions.")] = None,
    retry_unscored: RetryUnscored = False,
    estimate: Estimate = False,
    curation: Curation = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Folder of cached replies and answers. Default: the judge's own.")
    ] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Compare systems' spoken answers with a reference system's by an audio judge, each pair in both orders (AudioJudge)."""
    from paras2s.bench.display import show_estimate
    from paras2s.bench.ranking.run import RankingOptions, comparisons, estimate_systems, judge_systems
    from paras2s.data_gen.tts.signal_voice import signal_voice
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.audio_judge.ensemble import require_preferences
    from paras2s.reward.judges.registry import open_audio_judges
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    cache = {} if cache_dir is None else {"cache_dir": str(cache_dir)}
    judges = open_audio_judges(judge, cache | parse_overrides(set_), voice=signal_voice(), calls=not estimate)
    require_preferences(judges)
    if not judges[0].config.both_orders:
        raise ConfigError("both_orders: systems are ranked from both orders; leave it true")
    if out.suffix != ".csv":
        raise ConfigError(f"--out {out}: give a .csv, beside which the reasons are written as .jsonl")
    folder = judges[0].config.cache_dir
    options = RankingOptions(instructions, parse_systems(system), reference, out, curation, folder, limit, retry_unscored)
    if estimate:
        bill, known = estimate_systems(judges, options)
        if as_json:
            print_json({"systems": known, **asdict(bill)})
        else:
            _show_systems(console, known)
            show_estimate(console, judges[0].config.llm.model, bill)
        return
    compared = comparisons(options, console, as_json)
    done, stopped = judge_systems(judges, options, compared, console, as_json)
    spent_usd = judges[0].client.spent_usd
    if as_json:
        print_json({"verdicts": str(out), **asdict(done), "asked": len(compared) * len(judges), "spent_usd": spent_usd})
    else:
        console.print(
            f"{out}: {done.judged} verdicts of {len(compared) * len(judges)}, {done.unscored} unscored, {spent_usd:.4f} USD "
            f"spent now; next: paras2s rank {out}"
        )
    if stopped:
        raise stopped
    exit_if_unscored(done.unscored)


def _show_systems(console: Any, known: dict[str, dict[str, Any]]) -> None:
    for name, counts in known.items():
        if counts["to_answer"]:
            usd = counts["answer_usd"]
            price = "no price is known" if usd is None else f"at most {usd:.4f} USD"
            console.print(
                f"{name}: {counts['to_answer']} answers are missing, {price}; judging counts each at its maximum length"
            )
