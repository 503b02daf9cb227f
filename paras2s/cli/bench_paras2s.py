"""The verbs that bench any system: `bench paras2s` on a dataset's held-out queries, `bench guard` on VoiceBench's questions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import Cache, Curation, Json, Set, Systems, Tone, parse_overrides, parse_systems, print_json


def bench_paras2s(
    data: Annotated[Path, typer.Argument(help="A dataset's folder: a curation's, or RUN/data.")],
    system: Systems,
    judge: Annotated[str, typer.Option("--judge", help="As for `judge answer`: trace, a YAML, or rubric.")] = "trace",
    on: Annotated[str, typer.Option(help="Role of the queries: test, or validation.")] = "test",
    answers: Annotated[int, typer.Option(min=1, help="Asked of each query.")] = 1,
    out: Annotated[Path, typer.Option(help="Rows, samples and tables; systems benched there earlier stand beside.")] = Path(
        "runs/paras2s"
    ),
    human: Annotated[Path | None, typer.Option(help="People's ratings (CSV: id, system, category, rater, score).")] = None,
    guard: Annotated[list[str] | None, typer.Option(help="NAME=ROWS of `bench guard`, to stand beside. Repeatable.")] = None,
    curation: Curation = None,
    cache_dir: Cache = Path("runs/cache"),
    tone: Tone = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score systems' spoken answers on held-out queries, by category and on average (ParaS2S, Table 2)."""
    from paras2s.bench.human_correlation import human_agreement, load_ratings
    from paras2s.bench.human_correlation import markdown_tables as human_tables
    from paras2s.bench.paras2s.run import BenchOptions, automatic_scores, bench_sets
    from paras2s.bench.paras2s.table2 import markdown, plain, table_2
    from paras2s.bench.voicebench.run import load_voicebench_rows, voicebench_summary
    from paras2s.errors import ConfigError
    from paras2s.utils.io import write_json, write_text
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    asked = BenchOptions(data, on, parse_systems(system), answers, out, curation, cache_dir)
    ratings = load_ratings(human) if human else None
    known = {
        name: voicebench_summary(load_voicebench_rows(Path(path)))
        for name, path in parse_systems(guard or [], "--guard").items()
    }
    if strange := sorted(set(known) - set(asked.systems)):
        raise ConfigError(f"--guard {strange[0]}: no --system is called that")
    systems = bench_sets(asked, _judge(judge, set_, tone, cache_dir), console, as_json)
    table = table_2(systems)
    for name, summary in known.items():
        table[name]["guard"] = plain(summary.overall)
    write_json(out / "table2.json", table)
    write_text(out / "table2.md", markdown(table))
    agreement = human_agreement(ratings, automatic_scores(systems)) if ratings else None
    if agreement:
        write_text(out / "human.md", human_tables(agreement))
    if as_json:
        shown = None if agreement is None else {name: asdict(one) for name, one in agreement.groups.items()}
        print_json({"systems": table, **({"human": shown} if shown else {})})
        return
    console.print(markdown(table), highlight=False, markup=False)
    if agreement:
        console.print(human_tables(agreement), highlight=False, markup=False)
    console.print(f"{out}: rows, samples, table2.md and table2.json", highlight=False)


def _judge(name: str, set_: list[str] | None, tone: Path | None, cache_dir: Path) -> Any:
    from paras2s.bench.paras2s.run import AnswerJudge
    from paras2s.reward.judges.registry import judge_kind, open_judge

    cache = {"cache_dir": str(cache_dir)} if judge_kind(name) == "llm" else {}
    return AnswerJudge(open_judge(name, cache | parse_overrides(set_), tone=tone))


def bench_voicebench(
    files: Annotated[list[Path], typer.Argument(help="VoiceBench's questions: a JSONL each subset, named after it.")],
    system: Annotated[str, typer.Option("--system", help="As for `bench paras2s`: what answers.")],
    questions: Annotated[Path | None, typer.Option(help="Folder of spoken questions, ID.wav, to ask.")] = None,
    subset: Annotated[str | None, typer.Option(help="The subset, where neither file name nor rows say it.")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="A judge's config, whose LLM scores open questions.")] = None,
    out: Annotated[Path, typer.Option(help="Where rows are written.")] = Path("runs/guard.jsonl"),
    curation: Curation = None,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score what a system still knows: the words of its spoken answers to VoiceBench's questions (ParaS2S, Fig. 3c and 4)."""
    from paras2s.bench.paras2s.run import BenchOptions, voicebench_json, voicebench_transcripts
    from paras2s.bench.paras2s.table2 import cell, plain
    from paras2s.bench.voicebench.run import load_voicebench, score_voicebench, voicebench_summary
    from paras2s.clients.chat import LLMClient
    from paras2s.reward.judges.registry import load_llm_judge_config
    from paras2s.utils.cache import Kept
    from paras2s.utils.io import write_jsonl
    from paras2s.utils.progress import open_console, progress_bar

    console = open_console(to_stderr=as_json)
    items = [item for path in files for item in load_voicebench(path, subset)]
    asked = BenchOptions(Path(), "test", {}, 1, out, curation, cache_dir)
    transcripts = voicebench_transcripts(system, [item.id for item in items], questions, asked, console, as_json)
    client = None
    if judge is not None:
        config = load_llm_judge_config(judge, parse_overrides(set_))
        client = LLMClient(config.llm, Kept(cache_dir / "judging.sqlite"))
    with progress_bar(console, "answers judged", None, as_json) as bar:
        rows = score_voicebench(items, transcripts, client, bar.at)
    write_jsonl(out, voicebench_json(rows))
    found = voicebench_summary(rows)
    shown = {name: plain(one) for name, one in {**found.subsets, "overall": found.overall}.items()}
    if as_json:
        print_json({"subsets": shown, "undecided": found.undecided})
        return
    for name, one in shown.items():
        console.print(f"{name:>18} {cell(one, digits=1)}", highlight=False)
    console.print(f"points of 100, the mean over subsets; rows in {out}", highlight=False)
