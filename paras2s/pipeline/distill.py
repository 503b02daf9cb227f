"""`paras2s distill`: the SFT policy's own answers, judged, to a reward model (ParaS2S, section 4.2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC, code_clips, encode_questions
from paras2s.errors import JudgeError
from paras2s.pipeline.audit import MODEL, MORE_LABELS, audit_teacher, keep_audit, reward_model_record
from paras2s.pipeline.demonstrations import first_contrasts, shown_queries
from paras2s.pipeline.distill_omni import distill_omni
from paras2s.pipeline.learned_answers import (
    DEGENERATE,
    KEPT_OUT,
    KEPT_OUT_AGAIN,
    LEARNED,
    LEARNED_FILE,
    AnswerRow,
    write_answers,
)
from paras2s.pipeline.other_answers import JudgedSpoken, judge_spoken
from paras2s.pipeline.people import PeopleTeacher, require_people
from paras2s.pipeline.preference_set import (
    JudgedAnswers,
    SampleJob,
    degenerate_answers,
    judge_sampled,
    open_teacher,
    sample_answers,
    save_preferences,
    study_answers,
)
from paras2s.pipeline.preflight import check_decoder, check_samplers
from paras2s.pipeline.reward_agreement import agreement_report
from paras2s.pipeline.reward_probes import (
    JudgedDegenerate,
    JudgedDisorder,
    disorder_report,
    judge_degenerate,
    judge_disorder,
    probe,
    spoken_report,
)
from paras2s.reward.reward_model.model import MAX_STEPS, RewardModel
from paras2s.reward.reward_model.teachers import Teacher
from paras2s.reward.reward_model.train import PreferenceSet, ScoredAnswer, agreement, learned_codes, train_reward_model
from paras2s.run import Run
from paras2s.types import Query, Unscored
from paras2s.utils.device import use_threads
from paras2s.utils.io import read_json, write_json
from paras2s.utils.process_pool import cores
from paras2s.utils.seeds import FirstStep


def run_distill(run: Run, dataset: Dataset) -> RewardModel:
    """Make the preference set and train the reward models, or load the small one where all is whole already."""
    config, teacher = run.config.distill, open_teacher(run, dataset)
    if (run.reward_dir / "agreement.json").is_file() and not _has_new_scores(run, teacher) and not _lacks_learned(run):
        try:
            model = RewardModel.load(run.reward_dir)
        except JudgeError as error:
            # Of an earlier version, or broken. The advice of this error is to run what runs now.
            run.say(f"  the existing reward model cannot be used, so a new one is trained: {error}")
        else:
            run.headline("distill: cached")
            return model
    check_decoder(run)
    check_samplers(run.config)
    use_threads(cores())
    with run.stage("distill"):
        audit_teacher(run, dataset, teacher)
        queries = dataset.of_role("preference")
        if config.preference_contrasts is not None:
            queries = first_contrasts(queries, config.preference_contrasts)
        # Test queries are for the benchmark alone; a dataset of one's own may have no others.
        held_out = dataset.of_role("validation") or dataset.of_role("test")
        requests = (
            SampleJob(queries, config.answers_per_query, stream=FirstStep.PREFERENCES),
            SampleJob(held_out, 2, stream=FirstStep.PREFERENCES_HELD_OUT),
        )
        sampled, held_sampled = sample_answers(run, dataset, requests)
        if isinstance(teacher, PeopleTeacher):
            answers = [study_answers(dataset, *pair) for pair in ((queries, sampled), (held_out, held_sampled))]
            require_people(teacher, [*answers[0], *answers[1]], run.reward_dir / "people")
        later = len(run.config.refreshes) * run.config.refresh_answers
        judged = judge_sampled(run, dataset, teacher, queries, sampled, later=later)
        save_preferences(run, judged)
        _announce_cuts(run, judged)
        # An LLM would be paid for them, people have not scored them, and a curated dataset has no scripted answers.
        scripted = teacher.free and run.config.data.curated is None
        styles = sorted({query.style or "" for query in queries})
        spoken = judge_spoken(run, teacher, styles) if scripted else []
        demonstrated = shown_queries(dataset, run.config.warmup)

        def judge_held_out() -> tuple[JudgedAnswers, JudgedDegenerate, JudgedDisorder]:
            held = judge_sampled(run, dataset, teacher, held_out, held_sampled, with_bar=False)
            known = {query.style or "" for query in (*queries, *demonstrated)}
            return held, judge_degenerate(teacher, held, dataset), judge_disorder(teacher, held, known)

        # The judge works in other processes while this one trains.
        with ThreadPoolExecutor(1) as beside:
            judging = beside.submit(judge_held_out)
            preferences = _gather(run, dataset, judged, demonstrated, spoken)
            model = train_small(run, preferences)
            if not judging.done():
                run.say("  the judge still scores the held-out answers")
            held, degenerate, disorder = judging.result()
        model.learned_from(learned_codes(preferences, run.config.seed), [*held.codes, *held.coded_again])
        model.save(run.reward_dir)
        _save_learned(run, [query.id for query in (*queries, *demonstrated)], preferences, held)
        if not any(map(len, held.codes)):
            run.say("  no answers to held-out questions: the reward model takes every answer for known")
        report = held_out_report(model, judged, held)
        report["teacher"] = teacher.name
        report["preference_answers"] = len(judged.scores)
        report["preference_unscored"] = sum(isinstance(score, Unscored) for score in judged.scores)
        report["held_out_unscored"] = sum(isinstance(score, Unscored) for score in held.scores)
        report["probes"] = probe(model, held, degenerate)
        report["disorder"] = disorder_report(model, disorder)
        report["spoken"] = spoken_report(model, spoken)
        if config.omni is not None:
            report["omni"] = distill_omni(run, dataset, config.omni, judged, held)
        spent = teacher.spent
        report["cost_usd"], report["calls_now"] = spent.usd, spent.calls
        if spent.calls or spent.usd:
            usd = "an unknown price" if spent.usd is None else f"{spent.usd:.4f} USD"
            run.say(f"  the teacher's verdicts cost {usd}, earlier runs' included; {spent.calls} calls now")
        # It does not pay before this, and `align` refuses it; the labels are kept.
        if (record := reward_model_record(run, dataset, model)) is not None:
            keep_audit(run, MODEL, record, MORE_LABELS, stop=False)
        write_json(run.reward_dir / "agreement.json", report)
    describe_reward(run)
    return model


def _announce_cuts(run: Run, judged: JudgedAnswers) -> None:
    """Say where the small reward model does not read answers to their end; in GRPO it leaves those without a score."""
    if long := sum(len(codes) > MAX_STEPS for codes in judged.codes):
        run.say(
            f"  {long} of {len(judged.codes)} answers are longer than the {MAX_STEPS / CODEC.frame_rate_hz:.1f} s that "
            "the small reward model reads: it learns from their beginning, and scores none of that length"
        )


def _has_new_scores(run: Run, teacher: Teacher) -> bool:
    """Return whether people scored more answers since the reward model was trained, study by study."""
    if not isinstance(teacher, PeopleTeacher) or read_json(run.reward_dir / "agreement.json").get("teacher") == teacher.name:
        return False
    run.say(f"  {teacher.path} has changed since the reward model was trained: it is trained again")
    return True


def _lacks_learned(run: Run) -> bool:
    """Return whether the reward model will be trained again on more answers but its own are not stored."""
    lacks = bool(run.config.refreshes) and not (run.reward_dir / LEARNED_FILE).is_file()
    if lacks:
        run.say("  an earlier version stored the reward model without its training answers: it is trained again")
    return lacks


def _gather(
    run: Run, dataset: Dataset, judged: JudgedAnswers, demonstrated: Sequence[Query], spoken: Sequence[JudgedSpoken]
) -> PreferenceSet:
    """Gather all answers that the small reward model learns from.

    Demonstrated questions are asked in crossed pairs only: the policy memorised their own answers, but their styles can be
    heard. They are those that the warm-up learned from, so that a run's labels are these and the preference queries.
    """
    degenerate = degenerate_answers(dataset, run.config.distill.degenerate_answers, seed=run.config.seed)
    return PreferenceSet(
        questions=(*judged.encoded, *encode_questions(dataset, demonstrated)),
        styles=tuple(query.style or "" for query in (*judged.queries, *demonstrated)),
        answers=(
            *(ScoredAnswer(None, answer.codes, answer.scores) for answer in spoken if not answer.spoken.group),
            *(
                ScoredAnswer(owner, codes, scores if isinstance(scores, dict) else {})
                # Also coded again from sound, if that differs: degenerate answers are coded from sound, and else all answers
                # coded from sound, such as other systems', would be taken for degenerate.
                for kind in ([judged.codes] if judged.coded_again is judged.codes else [judged.codes, judged.coded_again])
                for owner, codes, scores in zip(judged.owners, kind, judged.scores, strict=True)
            ),
        ),
        degenerate=tuple(code_clips([clip for clips in degenerate.values() for clip in clips])),
    )


def train_small(run: Run, preferences: PreferenceSet) -> RewardModel:
    """Train the small reward model from random weights; its `known` range is not measured yet."""
    config = run.config.distill
    with run.bar("reward model steps", config.steps) as bar:
        return train_reward_model(
            preferences,
            CODEC.cardinality,
            CODEC.code_vectors,
            config,
            run.config.seed,
            lambda step, loss: bar.at(step + 1, config.steps, f"loss {loss:.2f}"),
        )


def _save_learned(run: Run, queries: Sequence[str], preferences: PreferenceSet, held: JudgedAnswers) -> None:
    """Store what the reward model learned from and the held-out answers, to be trained again with more."""
    rows = [
        AnswerRow(LEARNED, None if answer.question is None else queries[answer.question], answer.codes, answer.scores)
        for answer in preferences.answers
    ]
    nothing = Unscored("degenerate", "worth 1 without being judged")
    rows += [AnswerRow(DEGENERATE, None, codes, nothing) for codes in preferences.degenerate]
    for part, codes in ((KEPT_OUT, held.codes), (KEPT_OUT_AGAIN, held.coded_again)):
        names = [held.queries[owner].id for owner in held.owners]
        rows += [AnswerRow(part, *row) for row in zip(names, codes, held.scores, strict=True)]
    write_answers(run.reward_dir / LEARNED_FILE, rows, queries)


def held_out_report(model: RewardModel, judged: JudgedAnswers, held: JudgedAnswers) -> dict[str, Any]:
    """Measure agreement with the teacher on held-out queries, per category, and of baselines that do not hear the question."""
    scored = held.scored()
    encoded = [held.encoded[held.owners[index]] for index, _ in scored]
    started = time.perf_counter()
    predicted = model.score(encoded, [held.codes[index] for index, _ in scored])
    took_s = time.perf_counter() - started
    again = model.score(encoded, [held.coded_again[index] for index, _ in scored])
    return agreement_report(predicted, judged, held) | {
        "held_out_coded_again": agreement(again, [score for _, score in scored]),
        "judge_answers_per_s": judged.per_s,
        "model_answers_per_s": len(scored) / took_s if scored else None,
    }


def describe_reward(run: Run) -> None:
    """Log agreement and probes in a few lines."""
    report = read_json(run.reward_dir / "agreement.json")
    held = report["held_out"]
    pearson, again = (
        "unknown (a side is constant)" if part["pearson"] is None else f"{part['pearson']:.3f}"
        for part in (held, report["held_out_coded_again"])
    )
    run.say(
        f"  reward model on held-out queries: Pearson {pearson} with the judge over {held['n']} answers, {again} where they "
        "are coded again from their sound"
    )
    if report["model_answers_per_s"] is not None:
        speeds = f"{report['model_answers_per_s']:.0f} answers/s against the judge's {report['judge_answers_per_s']:.1f}"
        run.say(f"  {speeds} (cached scores included)")
    worst = max(row["model_max"] for row in report["probes"].values())
    run.say(f"  degenerate answers score at most {worst:.2f} with the reward model")
    for kind, row in report.get("disorder", {}).items():
        judged = "" if row["judge_mean"] is None else f", the judge {row['judge_mean']:.2f}"
        run.say(f"  {kind}{'' if row['taught'] else ' (not taught)'}: {row['model_mean']:.2f}{judged}{_unknown(row)}")
    for name, row in report.get("spoken", {}).items():
        if name != "right_tone_above":
            run.say(f"  scripted answers, {name}: {row['model_mean']:.2f}, the judge {row['judge_mean']:.2f}{_unknown(row)}")


def _unknown(row: dict[str, Any]) -> str:
    """Say how many answers of a row would get no score."""
    unknown = 1.0 - row["known"]
    return f"; {unknown:.0%} unlike its training answers" if unknown else ""
