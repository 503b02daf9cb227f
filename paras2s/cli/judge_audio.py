"""The verbs of judges that hear the clips: `judge pair` with such a judge, `judge clip`, `bench systems`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import (
    Curation,
    Dump,
    Estimate,
    Json,
    Set,
    Systems,
    Task,
    parse_overrides,
    parse_pairs,
    parse_systems,
    print_json,
)


def judge_clip(
    clip: Annotated[Path, typer.Argument(help="The recording to score.")],
    task: Task = "mos",
    told: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE that the task is told: text=..., style=.... Repeatable.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="A listening judge's name or YAML; else styleset for styles, audiojudge for mos."),
    ] = None,
    dump: Dump = None,
    estimate: Estimate = False,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Let an audio model score one recording: its quality (mos), how it follows a style, a role-play."""
    from paras2s.audio.clip import read_clip
    from paras2s.bench.judges import MAX_CLIP_S
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.audio_judge.tasks import find_task
    from paras2s.reward.judges.llm_judge import Exchange, Utterance

    wanted = find_task(task or "mos")
    pairs = parse_pairs(told, "--told")
    if set(pairs) != set(wanted.told):
        raise ConfigError(
            f"--told: {wanted.name} is told {' and '.join(wanted.told) or 'nothing'}; got {', '.join(pairs) or 'nothing'}"
        )
    item = Exchange(Utterance(), read_clip(clip, max_duration_s=MAX_CLIP_S), told=pairs)
    listen(
        judge or ("styleset" if wanted.told else "audiojudge"),
        parse_overrides(set_),
        wanted.name,
        item,
        dump,
        estimate,
        as_json,
    )


def listen(
    name: str, overrides: dict[str, Any], task: str | None, item: Any, dump: Path | None, estimate: bool, as_json: bool
) -> None:
    """One pair or one clip, judged for each task of a listening judge, or written out, or its cost estimated."""
    from paras2s.bench.judges import judge_path
    from paras2s.configs.schema.audio_judge import load_audio_judge_config
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.audio_judge.tasks import find_task
    from paras2s.reward.judges.llm_judge import Pair, Utterance

    chosen = overrides | ({} if task is None else {"tasks": [task]})
    if isinstance(item, Pair) and item.instruction != Utterance():
        named = load_audio_judge_config(judge_path(name), chosen).tasks
        if not any(find_task(one).instructed for one in named):
            raise ConfigError(f"--instruction: {', '.join(named)} compares clips alone; leave it out")
    if dump is not None or estimate:
        _look_ahead(name, chosen, item, dump, estimate, as_json)
    elif isinstance(item, Pair):
        _compare(name, chosen, item, as_json)
    else:
        _rate(name, chosen, item, as_json)


def _look_ahead(name: str, overrides: dict[str, Any], item: Any, dump: Path | None, estimate: bool, as_json: bool) -> None:
    """What would be sent, and what it would cost; no call is made."""
    from paras2s.bench.audio_judges import open_audio_judges, write_dump
    from paras2s.bench.judges import show_estimate
    from paras2s.errors import JudgeError
    from paras2s.types import Unscored
    from paras2s.utils.progress import open_console

    judges = open_audio_judges(name, overrides)
    requests = []
    for judge in judges:
        orders = judge.asked([item])[0]
        if isinstance(orders, Unscored):
            raise JudgeError(f"{judge.task.name}: {orders.reason}")
        requests += judge.requests_of(orders)
        if dump is not None:
            write_dump(dump, judge, orders)
    bill = judges[0].client.estimate(requests)
    if as_json:
        written = {} if dump is None else {"dump": str(dump)}
        print_json({**written, **asdict(bill)})
        return
    if estimate:
        show_estimate(open_console(), judges[0].config.llm.model, bill)
    if dump is not None:
        typer.echo(f"{dump}: what the judge would hear and read; no call was made")


def _rate(name: str, overrides: dict[str, Any], exchange: Any, as_json: bool) -> None:
    from paras2s.bench.audio_judges import open_audio_judges
    from paras2s.bench.judges import show_verdict
    from paras2s.errors import BudgetError
    from paras2s.types import Unscored, to_json
    from paras2s.utils.progress import open_console

    found = open_audio_judges(name, overrides)[0].rate([exchange])[0]
    if isinstance(found, BudgetError):
        raise found
    if as_json:
        print_json({"verdict": to_json(found)})
    else:
        show_verdict(open_console(), found)
    if isinstance(found, Unscored):
        raise typer.Exit(1)


def _compare(name: str, overrides: dict[str, Any], pair: Any, as_json: bool) -> None:
    from paras2s.bench.audio_judges import open_pair_judge
    from paras2s.bench.judges import show_preference
    from paras2s.errors import BudgetError
    from paras2s.reward.judges.audio_judge.ensemble import AspectJudge, Panel
    from paras2s.reward.judges.votes import ENSEMBLE
    from paras2s.types import Preference, Unscored, to_json
    from paras2s.utils.progress import open_console

    judge = open_pair_judge(name, overrides)
    said = judge.panels([pair])[0] if isinstance(judge, AspectJudge) else judge.compare([pair])[0]
    if isinstance(said, BudgetError):
        raise said
    found: dict[str, Preference | Unscored] = {}
    if isinstance(said, Panel):
        found = {**said.aspects, ENSEMBLE: said.whole}
    elif not isinstance(judge, AspectJudge):
        found = {judge.task.name: said}
    if as_json:
        print_json({"verdicts": {key: to_json(one) for key, one in found.items()}})
    else:
        for key, one in found.items():
            show_preference(open_console(), key, one)
    if all(isinstance(one, Unscored) for one in found.values()):
        raise typer.Exit(1)


def bench_systems(
    instructions: Annotated[Path, typer.Argument(help="Folder of spoken instructions, ID.wav.")],
    system: Systems,
    reference: Annotated[str, typer.Option(help="The system that every other one meets.")],
    judge: Annotated[str, typer.Option("--judge", help="audiojudge, or a listening judge's YAML.")] = "audiojudge",
    out: Annotated[Path, typer.Option(help="Verdicts for `paras2s rank` (CSV); reasons beside it (JSONL).")] = Path(
        "runs/verdicts.csv"
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many instructions.")] = None,
    estimate: Estimate = False,
    curation: Curation = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Where replies and answers are kept; else the judge's own.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Let an audio model compare systems' spoken answers with a reference system's, each pair in both orders (AudioJudge)."""
    from paras2s.bench.audio_judges import open_audio_judges
    from paras2s.bench.judges import show_estimate
    from paras2s.bench.ranking.run import RankingOptions, comparisons, estimate_systems, judge_systems
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.audio_judge.ensemble import require_preferences
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    kept = {} if cache_dir is None else {"cache_dir": str(cache_dir)}
    judges = open_audio_judges(judge, kept | parse_overrides(set_))
    require_preferences(judges)
    if not judges[0].config.both_orders:
        raise ConfigError("both_orders: systems are ranked from both orders; leave it true")
    if out.suffix != ".csv":
        raise ConfigError(f"--out {out}: give a .csv, beside which the reasons are written as .jsonl")
    folder = judges[0].config.cache_dir
    asked = RankingOptions(instructions, parse_systems(system), reference, out, curation, folder, limit, not estimate)
    compared = comparisons(asked, console, as_json)
    if estimate:
        bill = estimate_systems(judges, compared)
        if as_json:
            print_json(asdict(bill))
        else:
            show_estimate(console, judges[0].config.llm.model, bill)
        return
    done, stopped = judge_systems(judges, asked, compared, console, as_json)
    spent_usd = judges[0].client.spent_usd
    if as_json:
        print_json({"verdicts": str(out), **asdict(done), "asked": len(compared) * len(judges), "spent_usd": spent_usd})
    else:
        console.print(
            f"{out}: {done.judged} verdicts of {len(compared) * len(judges)}, {done.unscored} unscored, {spent_usd:.4f} USD "
            f"spent now; next: paras2s rank {out}",
            highlight=False,
        )
    if stopped:
        raise stopped
