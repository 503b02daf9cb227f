"""`paras2s distill`: the SFT policy's own answers, judged, to a reward model (ParaS2S, section 4.2)."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from paras2s.audio import Clip, read_clip, write_clip
from paras2s.data_gen.manifest import Dataset, inside
from paras2s.data_gen.speech import USER_STYLES
from paras2s.errors import AudioError
from paras2s.parallel import cores, map_chunks
from paras2s.policy.base import Policy
from paras2s.policy.interface import Prompt, Sampling
from paras2s.records import Query, Unscored
from paras2s.reward.degenerate import KINDS, degenerate_clip
from paras2s.reward.distill import PreferenceSet, ScoredAnswer, agreement, fit_baseline, train_reward_model
from paras2s.reward.model import HeardQuestion, RewardModel
from paras2s.reward.teachers import LLMTeacher, RubricTeacher, Scores, Taught, Teacher
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.rollout.hearing import embedded_codes
from paras2s.stages.prompts import CODEC, heard_questions, prepare_prompts
from paras2s.stages.run import Run
from paras2s.storage import read_json, write_bytes, write_json, write_jsonl

BATCH_QUERIES = 16
CODED_AT_ONCE = 100
PROBES_OF_EACH = 8


@dataclass(frozen=True)
class Sampled:
    """Answers as the embedded codec's codes [T, K], and which query each was given to. Kept before anybody is paid to judge.

    `clips` is their sound where the policy has a codec of its own, None where the codes are all there is.
    """

    owners: list[int]
    codes: list[np.ndarray]
    clips: list[Clip] | None = None


def sample_answers(
    run: Run, policy: Policy, queries: Sequence[Query], prompts: Sequence[Prompt], count: int, stream: int
) -> Sampled:
    """`count` answers a query, at the distillation's temperature; those of an earlier try, where it was stopped."""
    path = run.reward_dir / f"sampled-{stream}.npz"
    asked = [query.id for query in queries]
    sounds = policy.spec.code_format != CODEC.version
    if (kept := _load_sampled(path, asked, count, sounds)) is not None:
        return kept
    engine = NativeEngine(policy)
    temperature = run.config.distill.temperature
    sampling = Sampling(temperature, temperature, run.config.policy.max_answer_steps)
    owners: list[int] = []
    codes: list[np.ndarray] = []
    clips: list[Clip] = []
    with run.bar("answers sampled", len(queries)) as bar:
        for start in range(0, len(queries), BATCH_QUERIES):
            part = slice(start, start + BATCH_QUERIES)
            seeds = answer_seeds(run.config.seed, stream + start, range(len(asked[part])), count)
            for number, rollout in enumerate(engine.generate(asked[part], prompts[part], count, sampling, seeds, sounds)):
                owners += [start + number] * count
                codes += embedded_codes(rollout, CODEC)
                clips += [Clip(wave, rollout.sample_rate_hz) for wave in rollout.waves] if sounds else []
            bar.at(min(start + BATCH_QUERIES, len(queries)), len(queries))
    buffer = io.BytesIO()
    width = CODEC.num_codebooks
    flat = np.concatenate([np.zeros((0, width), dtype=np.int16), *(one.astype(np.int16) for one in codes)])
    np.savez(buffer, asked=np.array(asked), owners=owners, steps=[len(one) for one in codes], codes=flat)
    for number, clip in enumerate(clips):
        if len(clip.samples):
            write_clip(_sound(path, number), clip)
    write_bytes(path, buffer.getvalue())
    return Sampled(owners, codes, clips if sounds else None)


def _sound(path: Path, number: int) -> Path:
    return path.with_suffix("") / f"{number:06d}.wav"


def _load_sampled(path: Path, asked: Sequence[str], count: int, sounds: bool) -> Sampled | None:
    """None where there are none, or of other queries."""
    try:
        with np.load(path) as held:
            if held["asked"].tolist() != list(asked) or len(held["owners"]) != count * len(asked):
                return None
            edges = np.cumsum(held["steps"])[:-1]
            codes = np.split(held["codes"].astype(np.int64), edges)
            if not sounds:
                return Sampled(held["owners"].tolist(), list(codes))
            clips = [read_clip(_sound(path, n)) if len(one) else CODEC.decode(one) for n, one in enumerate(codes)]
            return Sampled(held["owners"].tolist(), list(codes), clips)
    except (AudioError, OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def open_teacher(run: Run, dataset: Dataset) -> Teacher:
    """The teacher that the config names.

    Raises:
        ConfigError: no such judge, or it lacks its key.
    """
    from paras2s.reward.judges.llm_judge import open_judge
    from paras2s.stages.judging import open_config

    config = run.config.distill
    if config.teacher == "rubric":
        return RubricTeacher(dataset.agent_tone, tuple(USER_STYLES))
    judging = open_config(config.teacher, {"cache_dir": str(run.config.cache_dir)})
    return LLMTeacher(open_judge(judging, dataset.agent_tone)[0], config.max_unscored_share)


@dataclass(frozen=True)
class Judged:
    """Sampled answers to some queries and what the teacher says of each.

    `coded_again` are the codes that the answers' sound is coded into, where `codes` are the policy's own; else the same.
    """

    queries: Sequence[Query]
    heard: Sequence[HeardQuestion]
    owners: list[int]
    codes: list[np.ndarray]
    clips: list[Clip]
    scores: list[Scores | Unscored]
    per_s: float
    coded_again: list[np.ndarray]

    def only(self, places: Sequence[int]) -> Judged:
        """The same, of some answers alone."""
        fields: tuple[list[Any], ...] = (self.owners, self.codes, self.clips, self.scores, self.coded_again)
        owners, codes, clips, scores, again = ([field[place] for place in places] for field in fields)
        return Judged(self.queries, self.heard, owners, codes, clips, scores, self.per_s, again)

    def scored(self) -> list[tuple[int, float]]:
        """(answer, score for its own style) of those that have one."""
        return [
            (place, scores[style])
            for place, scores in enumerate(self.scores)
            if isinstance(scores, dict) and (style := self.queries[self.owners[place]].style or "") in scores
        ]


def judge_sampled(
    run: Run,
    dataset: Dataset,
    teacher: Teacher,
    queries: Sequence[Query],
    sampled: Sampled,
) -> Judged:
    """The teacher's scores of all answers; how many it scores a second, with all it measures for it."""
    owners, codes = sampled.owners, sampled.codes
    clips = sampled.clips if sampled.clips is not None else [CODEC.decode(one) for one in codes]
    asked = [
        Taught(queries[owner].text or "", queries[owner].style or "", inside(dataset.folder, queries[owner].clip), clip)
        for owner, clip in zip(owners, clips, strict=True)
    ]
    started = time.perf_counter()
    cost = teacher.cost(asked)
    if cost.calls:
        usd = "an unknown price" if cost.usd is None else f"at most {cost.usd:.2f} USD"
        run.say(f"  {teacher.name} will be asked about {cost.calls} answers, for {usd}; what it has said before costs nothing")
    with run.bar("answers judged", len(clips)) as bar:
        scores = teacher.scores(asked, bar.at)
    unscored = [one for one in scores if isinstance(one, Unscored)]
    if unscored:
        run.say(f"  {len(unscored)} of {len(scores)} answers have no score (the first: {unscored[0].reason})")
    per_s = len(clips) / (time.perf_counter() - started)
    again = codes if sampled.clips is not None else map_chunks(_code_chunk, clips, CODED_AT_ONCE)
    return Judged(queries, heard_questions(dataset, queries), owners, codes, clips, scores, per_s, again)


def _code_chunk(clips: Sequence[Clip]) -> list[np.ndarray]:
    return [CODEC.encode(clip) if len(clip.samples) else np.zeros((0, CODEC.num_codebooks), dtype=np.int64) for clip in clips]


def degenerate_answers(dataset: Dataset, per_kind: int, seed: int) -> dict[str, list[Clip]]:
    """Degenerate relatives of demonstrated answers, by kind."""
    demonstrated = sorted({one.clip for one in dataset.demonstrations})
    found: dict[str, list[Clip]] = {kind: [] for kind in KINDS}
    for number in range(per_kind):
        answer = dataset.clip(demonstrated[(seed + number) % len(demonstrated)])
        for kind in KINDS:
            found[kind].append(degenerate_clip(kind, answer, seed + number))
    return found


def probe(teacher: Teacher, model: RewardModel, held: Judged, dataset: Dataset) -> dict[str, Any]:
    """What teacher and reward model make of degenerate answers to held-out questions, by kind: their highest scores."""
    table, queries = {}, held.queries
    for kind, clips in degenerate_answers(dataset, PROBES_OF_EACH, seed=1000).items():
        rows = [n % len(queries) for n in range(len(clips))]
        asked = [
            Taught(queries[n].text or "", queries[n].style or "", inside(dataset.folder, queries[n].clip), clip)
            for n, clip in zip(rows, clips, strict=True)
        ]
        found = teacher.scores(asked, lambda done, total: None)
        scores = [one[each.style] for one, each in zip(found, asked, strict=True) if isinstance(one, dict)]
        predicted = model.score([held.heard[n] for n in rows], [CODEC.encode(clip) for clip in clips])
        table[kind] = {
            "judge_max": max(scores) if scores else None,
            "judge_unscored": len(found) - len(scores),
            "model_max": max(predicted),
            "model_mean": float(np.mean(predicted)),
            "n": len(clips),
        }
    return table


def run_distill(run: Run, dataset: Dataset, policy: Policy) -> RewardModel:
    """Make the preference set and train the reward models, or load the small one where all is whole already."""
    if (run.reward_dir / "agreement.json").is_file():
        run.say("  the reward model is there already")
        return RewardModel.load(run.reward_dir)
    torch.set_num_threads(cores())
    config, teacher = run.config.distill, open_teacher(run, dataset)
    with run.stage("distill"):
        queries, held_out = dataset.of_role("preference"), dataset.of_role("test")
        prompts, held_prompts = (prepare_prompts(policy, dataset, part) for part in (queries, held_out))
        sampled = sample_answers(run, policy, queries, prompts, config.answers_per_query, stream=1_000_000)
        judged = judge_sampled(run, dataset, teacher, queries, sampled)
        save_preferences(run, judged)
        model = _train_small(run, dataset, judged)
        held_sampled = sample_answers(run, policy, held_out, held_prompts, 2, stream=2_000_000)
        held = judge_sampled(run, dataset, teacher, held_out, held_sampled)
        report = held_out_report(model, judged, held)
        report["teacher"] = teacher.name
        report["preference_answers"] = len(judged.scores)
        report["preference_unscored"] = sum(isinstance(one, Unscored) for one in judged.scores)
        report["held_out_unscored"] = sum(isinstance(one, Unscored) for one in held.scores)
        report["probes"] = probe(teacher, model, held, dataset)
        if config.omni is not None:
            from paras2s.stages.distill_omni import distill_omni

            report["omni"] = distill_omni(run, dataset, config.omni, judged, held)
        spent = teacher.spent
        report["cost_usd"], report["calls_now"] = spent.usd, spent.calls
        if spent.calls or spent.usd:
            usd = "an unknown price" if spent.usd is None else f"{spent.usd:.4f} USD"
            run.say(f"  the teacher's verdicts cost {usd}, earlier runs' included; {spent.calls} calls were made now")
        write_json(run.reward_dir / "agreement.json", report)
    describe_reward(run)
    return model


def save_preferences(run: Run, judged: Judged) -> None:
    """The preference set, to be looked at: which answer to which query, its scores by style or why it has none."""
    rows = []
    for owner, codes, clip, scores in zip(judged.owners, judged.codes, judged.clips, judged.scores, strict=True):
        unscored = scores.reason if isinstance(scores, Unscored) else None
        row = {"query_id": judged.queries[owner].id, "style": judged.queries[owner].style, "steps": len(codes)}
        rows.append(row | {"duration_s": clip.duration_s, "scores": None if unscored else scores, "unscored": unscored})
    write_jsonl(run.reward_dir / "preferences.jsonl", rows)


def _train_small(run: Run, dataset: Dataset, judged: Judged) -> RewardModel:
    config = run.config.distill
    # Asked in crossed pairs only: their own answers are known by heart, but their styles are there to be heard.
    demonstrated = dataset.of_role("demonstration")
    degenerate = degenerate_answers(dataset, config.degenerate_answers, seed=run.config.seed)
    preferences = PreferenceSet(
        questions=(*judged.heard, *heard_questions(dataset, demonstrated)),
        styles=tuple(query.style or "" for query in (*judged.queries, *demonstrated)),
        answers=tuple(
            ScoredAnswer(owner, codes, scores if isinstance(scores, dict) else {})
            # Coded again as well, where that is another thing: degenerate answers are coded from sound, and what is coded
            # from sound would be taken for degenerate, other systems' answers among it.
            for kind in ([judged.codes] if judged.coded_again is judged.codes else [judged.codes, judged.coded_again])
            for owner, codes, scores in zip(judged.owners, kind, judged.scores, strict=True)
        ),
        degenerate=tuple(CODEC.encode(clip) for clips in degenerate.values() for clip in clips),
    )
    with run.bar("reward model steps", config.steps) as bar:
        model = train_reward_model(
            preferences,
            CODEC.cardinality,
            config,
            run.config.seed,
            lambda step, loss: bar.at(step + 1, config.steps, f"loss {loss:.2f}"),
        )
    model.save(run.reward_dir)
    return model


def held_out_report(model: RewardModel, judged: Judged, held: Judged) -> dict[str, Any]:
    """Agreement with the teacher on held-out queries, per category, and against baselines that do not hear the question."""
    scored = held.scored()
    heard = [held.heard[held.owners[place]] for place, _ in scored]
    started = time.perf_counter()
    predicted = model.score(heard, [held.codes[place] for place, _ in scored])
    took_s = time.perf_counter() - started
    again = model.score(heard, [held.coded_again[place] for place, _ in scored])
    return agreement_report(predicted, judged, held) | {
        "held_out_coded_again": agreement(again, [score for _, score in scored]),
        "judge_answers_per_s": held.per_s,
        "model_answers_per_s": len(scored) / took_s if scored else None,
    }


def agreement_report(predicted: Sequence[float], judged: Judged, held: Judged) -> dict[str, Any]:
    """Of predictions for `held.scored()`, in its order; baselines are fitted on what the reward model learned from."""
    scored = held.scored()
    wanted = [score for _, score in scored]
    categories = [held.queries[held.owners[place]].category or "" for place, _ in scored]
    taught = judged.scored()
    table = {
        name: fit_baseline(
            [measure(judged, p) for p, _ in taught], [s for _, s in taught], [measure(held, p) for p, _ in scored]
        )
        for name, measure in BASELINES.items()
    }
    return {
        "held_out": agreement(predicted, wanted),
        "held_out_by_category": {
            one: agreement(*([row[n] for n, c in enumerate(categories) if c == one] for row in (predicted, wanted)))
            for one in sorted(set(categories))
        },
        "baselines": {name: agreement(guessed, wanted) for name, guessed in table.items()},
    }


def _loudness_db(judged: Judged, place: int) -> float:
    samples = judged.clips[place].samples
    return float(10 * np.log10(np.mean(samples**2) + 1e-10)) if len(samples) else -100.0


# What a reward model would have learned if it had listened to nothing that matters.
BASELINES = {
    "majority": lambda judged, place: 0.0,
    "length": lambda judged, place: float(len(judged.codes[place])),
    "loudness": _loudness_db,
}


def describe_reward(run: Run) -> None:
    """Agreement and probes in a few lines."""
    report = read_json(run.reward_dir / "agreement.json")
    held = report["held_out"]
    pearson, again = (
        "unknown (a side is constant)" if one["pearson"] is None else f"{one['pearson']:.3f}"
        for one in (held, report["held_out_coded_again"])
    )
    run.say(
        f"  reward model on held-out queries: Pearson {pearson} with the judge over {held['n']} answers, {again} where they "
        "are coded again from their sound"
    )
    if report["model_answers_per_s"] is not None:
        speeds = f"{report['model_answers_per_s']:.0f} answers/s against the judge's {report['judge_answers_per_s']:.1f}"
        run.say(f"  {speeds} (what it has said before counts as said)")
    worst = max(row["model_max"] for row in report["probes"].values())
    run.say(f"  degenerate answers score at most {worst:.2f} with the reward model")
