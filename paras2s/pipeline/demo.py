"""`paras2s demo`: every stage in turn, on this machine, offline, and what its report says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paras2s import __version__
from paras2s.bench.audit import audit_warnings
from paras2s.bench.paras2s.second_judge import describe_agreement
from paras2s.data_gen.dataset import Dataset
from paras2s.run import REPORT, STAGES, Run
from paras2s.utils.io import read_json, write_json
from paras2s.utils.process_memory import MemoryWatch

if TYPE_CHECKING:
    from paras2s.bench.paras2s.contrasts import BenchedRun


# The systems whose answers the page plays; those of the other baselines are the topline's, to other questions.
PLAYED = ("cascade", "sft", "aligned", "topline")


def announce(run: Run) -> str:
    """Return a line on the run's stages, and how long the last run of its name took here."""
    config = run.config
    answers = config.align.steps * config.align.sampling.queries_per_step * config.align.sampling.group_size
    plan = (
        f"{config.name}: speak and filter scripts, warm up {config.warmup.steps} steps, "
        f"{'distil a reward model, ' if config.reward.needs_distillation else ''}"
        f"GRPO over {config.align.steps} steps ({answers} answers), bench, and write {run.folder / 'report.html'}."
    )
    last = run.last_time()
    if not last:
        return f"{plan} First run of this name here: no time to go by."
    return f"{plan} Last time here: {sum(last.values()) / 60:.1f} min ({_shares(last)})."


def _shares(timings: dict[str, float]) -> str:
    total = sum(timings.values()) or 1.0
    parts = [(name, timings[name]) for name in STAGES if name in timings]
    return ", ".join(f"{name} {took_s:.0f} s = {100 * took_s / total:.0f} %" for name, took_s in parts)


def run_demo(run: Run, resume: bool, wait: bool = False) -> dict[str, Any]:
    """Run all stages and return the summary; a stage whose output is complete is not run again."""
    from paras2s.bench.paras2s.contrasts import describe_bench, run_bench
    from paras2s.pipeline.align import run_align
    from paras2s.pipeline.data import run_data
    from paras2s.pipeline.distill import run_distill
    from paras2s.pipeline.preflight import check_decoder, check_run
    from paras2s.pipeline.warmup import run_warmup

    started = time.perf_counter()
    check_run(run)
    check_decoder(run)
    run.open(wait)
    run.say(announce(run))
    with MemoryWatch() as memory:
        dataset = run_data(run)
        run_warmup(run, dataset)
        model = run_distill(run, dataset) if run.config.reward.needs_distillation else None
        run_align(run, dataset, resume)
        benched = run_bench(run, dataset, model, "test")
    describe_bench(run, benched)
    wall_s = time.perf_counter() - started
    write_json(run.folder / "resources.json", {"wall_s": wall_s, "peak_gib": memory.peak_gib})
    write_json(run.folder / REPORT, report(run, dataset, benched))
    peak = "unknown" if memory.peak_gib is None else f"{memory.peak_gib:.1f} GiB"
    run.say(f"{wall_s / 60:.1f} min ({_shares(run.timings())}); memory of all processes at most {peak}")
    return benched.to_json()


def refresh_facts(run: Run) -> list[tuple[str, str]]:
    """Return the page's facts on refreshes of the reward model, with the labels spent (RL prompts come without them)."""
    from paras2s.pipeline.refresh import labels_spent

    models = run.refreshed_models()
    if not models:
        return []
    report = read_json(list(models.values())[-1] / "agreement.json")
    values = (report["newest"][name]["pearson"] for name in ("before", "after"))
    before, after = ("-" if value is None else f"{value:.3f}" for value in values)
    stayed = "; the one before stayed" if report["used"] == "before" else ""
    known = f"Pearson {before} before, {after} after{stayed}"
    return [
        ("reward model refreshed", f"after {', '.join(map(str, models))} steps; newest answers kept out of the last: {known}"),
        ("labels of RL prompts spent", str(labels_spent(run))),
    ]


def _pearson(run: Run) -> str:
    pearson = read_json(run.reward_dir / "agreement.json")["held_out"]["pearson"]
    return f"Pearson {'-' if pearson is None else format(pearson, '.3f')} with the judge, held out"


def report(run: Run, dataset: Dataset, benched: BenchedRun) -> dict[str, Any]:
    """Return what the run's report says beside figures and answers: facts, notes, and the systems to show and to play."""
    from paras2s.pipeline.demonstrations import shown_queries

    shown = shown_queries(dataset, run.config.warmup)
    shown_ids = {query.id for query in shown}
    demonstrations = sum(demonstration.query_id in shown_ids for demonstration in dataset.demonstrations)
    timings = run.timings()
    facts = [
        ("preset, seed", f"{run.config.name}, {run.config.seed}"),
        ("queries", f"{len(dataset.of_role('rl'))} RL prompts, {len(dataset.of_role('test'))} held out"),
        ("demonstrations", f"{demonstrations} for {len(shown)} queries"),
        ("styles audible", f"{dataset.audibility['accuracy']:.3f} (chance 0.5)"),
        ("agent's tone classifier", f"{dataset.agent_tone.report['accuracy']:.3f} on held-out speakers"),
        *([("reward model", _pearson(run))] if run.config.reward.needs_distillation else []),
        *refresh_facts(run),
        ("time", f"{sum(timings.values()) / 60:.1f} min: {_shares(timings)}"),
        ("paras2s", __version__),
    ]
    sources = " and ".join(source.kind for source in run.config.reward.sources)
    notes = [
        *audit_warnings(run.folder),
        "The questions are spoken by a synthesiser through a vocoder; no human voice is among them.",
        "The judge is a rubric over transcript and tone. Whether an answer takes up the topic is counted, for no points.",
        f"The reward on RL prompts is by {sources}; the table is the judge's, on queries never trained on.",
        "The independent judge shares with that judge what is asked, and nothing by which it hears: another recogniser, other "
        "tone features fitted on other voices, other sentences. Nothing learned from it.",
        *(line.strip() for line in describe_agreement(benched.comparison)),
    ]
    return {
        "subtitle": f"{run.config.align.steps} GRPO steps from {demonstrations} demonstrations",
        "facts": facts,
        "notes": notes,
        "systems": list(benched.rows),
        "played": PLAYED,
    }
