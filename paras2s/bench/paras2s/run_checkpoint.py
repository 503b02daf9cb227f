"""`paras2s bench`: held-out queries to every system, judged, with standard errors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from paras2s.audio.asr import normalise_words, word_error_rate
from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.paras2s.baseline_systems import SpokenAnswer, topline, words_only
from paras2s.bench.paras2s.table2 import cell, plain
from paras2s.bench.results import AnswerRow, load_rows, save_rows
from paras2s.bench.stats import contrast_metric, paired_difference, summarise
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC, encode_questions, prepare_prompts
from paras2s.policy.base import Policy
from paras2s.policy.registry import is_checkpoint
from paras2s.policy.types import Sampling
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.rubric import RESPONSE, TONE_PREFIX, Question, RubricJudge
from paras2s.reward.reward_model.model import RewardModel
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.run import Run
from paras2s.types import Blueprint, Measured, Query, Unscored
from paras2s.utils.io import write_json
from paras2s.utils.process_pool import cores

HeldOut = Literal["validation", "test"]
BATCH_QUERIES = 32
SYSTEMS = ("words_only", "sft", "aligned", "topline")


def policy_answers(run: Run, dataset: Dataset, queries: Sequence[Query], policy: Policy) -> list[SpokenAnswer]:
    """Answers of a policy to held-out queries; every policy gets the same seeds."""
    config = run.config.bench
    prompts = prepare_prompts(policy, dataset, queries)
    engine = NativeEngine(policy)
    sampling = Sampling(config.temperature, config.temperature, run.config.policy.max_answer_steps)
    found = []
    for start in range(0, len(queries), BATCH_QUERIES):
        part = slice(start, start + BATCH_QUERIES)
        ids = [query.id for query in queries[part]]
        seeds = answer_seeds(run.config.seed, 4_000_000 + start, range(len(ids)), config.answers_per_query)
        rollouts = engine.generate(ids, prompts[part], config.answers_per_query, sampling, seeds)
        for query, rollout in zip(queries[part], rollouts, strict=True):
            for index, (text, wave) in enumerate(zip(rollout.texts, rollout.waves, strict=True)):
                found.append(SpokenAnswer(query, index, text, Clip(wave, rollout.sample_rate_hz)))
    return found


def judge_answers(
    run: Run,
    dataset: Dataset,
    samples: Path,
    system: str,
    answers: Sequence[SpokenAnswer],
    model: RewardModel,
    judge: RubricJudge,
) -> list[AnswerRow]:
    """Rows of one system: written clips, transcripts, verdicts, and the reward model's opinion."""
    queries = list({answer.query.id: answer.query for answer in answers}.values())
    heard = dict(zip([q.id for q in queries], encode_questions(dataset, queries), strict=True))
    with run.bar(f"judging {system}", len(answers)) as bar:
        blueprints = measure_answers([answer.clip for answer in answers], dataset.agent_tone, bar.at)
    codes = [CODEC.encode(a.clip) if len(a.clip.samples) else a.clip.samples for a in answers]
    scores = model.score([heard[answer.query.id] for answer in answers], codes)
    rows = []
    for answer, blueprint, model_score in zip(answers, blueprints, scores, strict=True):
        relative = samples / system / f"{answer.query.id}-{answer.index}.wav"
        write_clip(run.folder / relative, answer.clip)
        rows.append(_row(system, answer, blueprint, judge, relative, model_score))
    return rows


def _row(
    system: str, answer: SpokenAnswer, blueprint: Blueprint, judge: RubricJudge, relative: Path, model_score: float
) -> AnswerRow:
    query = answer.query
    found = judge.find(Question(query.text or "", query.style or ""), blueprint)
    scored = None if isinstance(found, Unscored) else found
    transcript = blueprint.value(RESPONSE)
    tones = {
        key.removeprefix(TONE_PREFIX): float(field.value)
        for key, field in blueprint.fields.items()
        if key.startswith(TONE_PREFIX) and isinstance(field, Measured)
    }
    assert query.category is not None
    countable = transcript is not None and bool(normalise_words(answer.text))
    return AnswerRow(
        system=system,
        query_id=query.id,
        contrast_id=query.contrast_id,
        category=query.category,
        style=query.style or "",
        question_text=query.text or "",
        question_clip=str(Path("data") / query.clip),
        answer_index=answer.index,
        text_stream=answer.text,
        transcript=transcript,
        tone=scored.tone if scored else None,
        tone_scores=tones,
        score=scored.score if scored else None,
        unscored=found.reason if isinstance(found, Unscored) else None,
        reason=scored.reason if scored else "",
        family=scored.family if scored else None,
        fitting=bool(scored and scored.score >= 4),
        answer_clip=str(relative),
        duration_s=answer.clip.duration_s,
        word_error_rate=word_error_rate(answer.text, transcript or "") if countable else None,
        judge=f"{judge.name}/{judge.version}/{judge.prompt_hash}",
        model_score=model_score,
    )


def run_bench(
    run: Run, dataset: Dataset, model: RewardModel, role: HeldOut, wanted: Sequence[str] = SYSTEMS
) -> dict[str, list[AnswerRow]]:
    """Those systems that can be benched by now, on the queries of one role; the aligned policy where it is made already."""
    torch.set_num_threads(cores())
    config, cache, judge = run.config.bench, run.config.cache_dir, RubricJudge()
    queries = dataset.of_role(role)
    folder = run.folder / ("bench" if role == "test" else f"bench-{role}")
    samples = Path("samples") if role == "test" else Path(f"samples-{role}")
    paths = {system: folder / f"{system}.jsonl" for system in SYSTEMS}
    found = {system: load_rows(path) for system, path in paths.items() if system in wanted and path.is_file()}
    folders = {"sft": run.sft_dir, "aligned": run.aligned_dir}
    missing = [s for s in SYSTEMS if s in wanted and s not in found and (s not in folders or is_checkpoint(folders[s]))]
    with run.stage("bench") if missing else contextlib.nullcontext():
        for system in missing:
            if system == "words_only":
                answers = words_only(queries, config.answers_per_query, cache)
            elif system == "topline":
                answers = topline(queries, config.answers_per_query, cache)
            else:
                answers = policy_answers(run, dataset, queries, run.load_policy(folders[system]))
            found[system] = judge_answers(run, dataset, samples, system, answers, model, judge)
            save_rows(paths[system], found[system])
    found = {system: found[system] for system in SYSTEMS if system in found}
    write_json(folder / "summary.json", summary(found))
    return found


def summary(systems: dict[str, list[AnswerRow]]) -> dict[str, Any]:
    """Scores of every system as plain JSON, and the gain of the aligned policy over its warm-up."""
    table: dict[str, Any] = {}
    for system, rows in systems.items():
        scores = summarise(rows)
        contrast = contrast_metric(rows)
        table[system] = {
            "overall": plain(scores.overall),
            "categories": {name: plain(one) for name, one in scores.categories.items()},
            "word_error_rate": plain(scores.word_error_rate),
            "duration_s": scores.duration_s.mean,
            "contrast": plain(contrast),
            "judge": rows[0].judge if rows else None,
        }
    if "sft" in systems and "aligned" in systems:
        gain = paired_difference(systems["aligned"], systems["sft"])
        table["aligned_over_sft"] = {**plain(gain.difference), "relative_percent": gain.relative_percent}
    return table


def describe_bench(run: Run, systems: dict[str, list[AnswerRow]]) -> None:
    """The table, on the terminal."""
    from rich.table import Table

    table = Table("system", "emotion", "sarcasm", "age", "gender", "all", "contrast", "WER", "scored")
    for name, row in summary(systems).items():
        if name == "aligned_over_sft":
            continue
        cells = [*(row["categories"][c] for c in ("emotion", "sarcasm", "age", "gender")), row["overall"]]
        cells += [row["contrast"], row["word_error_rate"]]
        overall = row["overall"]
        table.add_row(name, *map(cell, cells), f"{overall['n_scored']}/{overall['n_asked']}")
    if not run.quiet:
        run.console.print(table)
