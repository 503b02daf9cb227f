"""Runs `paras2s probe`: reads the pairs, makes each comparison once, and writes the report (AudioJudge, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from paras2s.audio.clip import Clip, make_clip, read_clip
from paras2s.audio.synthesis import Speaker, Style, Voice, analyse, synthesise
from paras2s.bench.bias import perturbations
from paras2s.bench.bias.examples import pick_examples
from paras2s.bench.bias.judges import CachedScores, Probed, ProbeOptions, open_probed
from paras2s.bench.bias.metrics import (
    PROBES,
    Change,
    ProbeResult,
    TrialOutcome,
    against_control,
    gap_correlation,
    mean_change,
    noise_order,
    place_of,
    retest_margin,
    tell_parts,
)
from paras2s.bench.bias.perturbations import OneClip, ProbedPair, ProbePair, Trial
from paras2s.bench.bias.report import JudgeProbes, ProbeReport, write_probes
from paras2s.bench.made_from import MadeFrom, clip_names, sent
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.verdict_file import judge_in_chunks, judge_readable
from paras2s.clients.chat import Bill, LLMClient, Request
from paras2s.errors import AudioError, BudgetError, ConfigError, DataError
from paras2s.reward.judges.base import Judge, Pair, Preferred, Progress, sides_of
from paras2s.reward.judges.votes import swapped
from paras2s.statistics.correlation import Correlation
from paras2s.statistics.resampling import RESAMPLES
from paras2s.types import PAIR_LABELS, PairLabel, Preference, Unscored, Verdict
from paras2s.unisrm.reward.judge import UniSRMJudge
from paras2s.utils.io import append_jsonl, write_jsonl

Made = TypeVar("Made")
# The default number of pairs of a run.
RUN_PAIRS = 120
# Pairs in memory at once; a chunk's calls all run together.
CHUNK_COMPARISONS = 64
VOICES = {
    perturbations.OWN_VOICE: Speaker(perturbations.OWN_VOICE, 1.0, 1.0),
    "lower": Speaker("lower", 0.8, 0.93),
    "higher": Speaker("higher", 1.5, 1.14),
}
OTHER_VOICES = tuple(name for name in VOICES if name != perturbations.OWN_VOICE)
# Probes of a clip against itself, and what the changed one of the two is called there.
CHANGED_SIDE = {"loudness": "louder", "speaker": "other"}
NOT_REACHED = "not asked: the budget ended before it"


# Where pairs come from.


def source_pairs(options: ProbeOptions) -> tuple[list[ProbePair], int]:
    """Return the pairs to probe, and the number they were drawn from. Raises ConfigError: no such source. DataError: empty."""
    if not options.source.exists():
        raise ConfigError(f"{options.source}: no such manifest or run")
    if options.source.is_dir():
        pairs = run_pairs(options.source, options.seed)
        return perturbations.pick_pairs(pairs, options.pairs or RUN_PAIRS, options.seed), len(pairs)
    pairs = perturbations.load_probe_pairs(options.source)
    return perturbations.pick_pairs(pairs, options.pairs, options.seed), len(pairs)


def run_pairs(run_dir: Path, seed: int) -> list[ProbePair]:
    """Return every two different answers to a held-out question of a run, in random order. Raises DataError: there are none."""
    rows = [row for path in sorted((run_dir / "bench").glob("*.jsonl")) for row in load_rows(path)]
    by_query: dict[str, dict[str, AnswerRow]] = {}
    for row in rows:
        # Policies often give the same answer twice, and two equal clips are no pair.
        by_query.setdefault(row.query_id, {}).setdefault(perturbations.digest_of(run_dir / row.answer_clip), row)
    rng = np.random.default_rng([seed, 1])
    pairs = []
    for answers in by_query.values():
        for two in combinations(answers.values(), 2):
            first, second = two if rng.random() < 0.5 else two[::-1]
            pairs.append(_run_pair(run_dir, first, second))
    if not pairs:
        raise DataError(f"{run_dir}: no two different benched answers to one question; run `paras2s bench` first")
    return pairs


def _run_pair(run_dir: Path, first: AnswerRow, second: AnswerRow) -> ProbePair:
    # Scores of two judges are on no common scale.
    alike = first.score is not None and (first.score, first.judge) == (second.score, second.judge)
    names = [f"{row.system}-{row.answer_index}" for row in (first, second)]
    return ProbePair(
        id=f"{first.query_id}:{names[0]}:{names[1]}",
        first=run_dir / first.answer_clip,
        second=run_dir / second.answer_clip,
        instruction=run_dir / first.question_clip,
        text=first.question_text,
        style=first.style or None,
        # An empty transcript comes from a recogniser that recognised nothing; it does not tell how long an answer is.
        words=(first.transcript or None, second.transcript or None),
        tied_by=first.judge.partition("/")[0] if alike else None,
        aspect=first.category,
        # Both styles of a contrast are asked with the same words, and answered by the same few sentences.
        cluster=first.contrast_id,
    )


class Revoicer:
    """A clip in another voice: taken apart and put together by WORLD, with another pitch and other formants."""

    def __init__(self) -> None:
        self._last: tuple[str, Voice] | None = None

    def __call__(self, clip: Clip, voice: str) -> Clip:
        """Return the clip at 16 kHz in another voice; its voices share pace and level. Raises AudioError: nothing sounds."""
        at_rate = clip.at(16_000)
        name = at_rate.digest
        if self._last is None or self._last[0] != name:
            self._last = (name, analyse(at_rate))
        made = synthesise(self._last[1], VOICES[voice], Style(), int(name[:8], 16))
        return make_clip(made.samples, made.sample_rate_hz, f"voice {voice}", perturbations.MAX_CLIP_S)


# The comparisons and their outcomes.


@dataclass(frozen=True)
class ProbePlan:
    """The pairs of a run of probes, their distinct clips, and the word counts of tied pairs (`wordless`: why one has none)."""

    pairs: Sequence[ProbePair]
    clips: Sequence[OneClip]
    tokens: Mapping[str, tuple[int, int]]
    wordless: Mapping[str, str]
    only: tuple[str, ...]
    seed: int


def make_plan(pairs: Sequence[ProbePair], only: Sequence[str], seed: int) -> ProbePlan:
    """Make the plan for all judges; transcripts that a manifest lacks are the recogniser's."""
    names = tuple(name for name in PROBES if not only or name in only)
    tokens, wordless = count_words([pair for pair in pairs if pair.tied_by]) if "verbosity" in names else ({}, {})
    return ProbePlan(pairs, perturbations.distinct_clips(pairs), tokens, wordless, names, seed)


def count_words(pairs: Sequence[ProbePair]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Count the words of both answers of each pair, as given or by ASR; also return why a count is missing."""
    from paras2s.audio.asr import transcribe

    def count(path: Path, words: str | None) -> int:
        if words is not None:
            return perturbations.count_tokens(words)
        count = perturbations.count_tokens(transcribe([read_clip(path, max_duration_s=perturbations.MAX_CLIP_S)])[0].text)
        if not count:
            raise AudioError(f"{path}: the recogniser heard no words")
        return count

    tokens: dict[str, tuple[int, int]] = {}
    wordless: dict[str, str] = {}
    for pair in pairs:
        try:
            first, second = map(count, (pair.first, pair.second), pair.words)
        except AudioError as error:
            wordless[pair.id] = f"no transcript: {error}"
            continue
        tokens[pair.id] = (first, second)
    return tokens, wordless


# The trials of a probe, or why there are none.
Planned = list[Trial] | ProbeResult


def plan_trials(name: str, plan: ProbePlan, probed: Probed) -> Planned:
    """Return the trials of a probe, or why there are none for this judge."""
    alone = probed.judge.scores_alone
    if name == "position":
        why = "each answer is scored without hearing the other, so that no order can move a verdict; no call was spent"
        return ProbeResult(name, "by construction", why) if alone else perturbations.position(plan.pairs)
    if name == "identical":
        why = "each answer is scored by itself and each clip once, so that it ties with itself; no call was spent"
        return ProbeResult(name, "by construction", why) if alone else perturbations.identical(plan.clips)
    if name == "noise":
        return perturbations.noise(plan.pairs, plan.seed)
    if name == "loudness":
        return perturbations.loudness(plan.clips)
    if name == "speaker":
        return perturbations.speaker(plan.clips, Revoicer(), OTHER_VOICES)
    if name == "mos_gap":
        trials = perturbations.mos_gap(plan.pairs)
        return trials or ProbeResult(name, "absent", "no pair has first_mos and second_mos")
    return _plan_verbosity(plan, probed)


def _plan_verbosity(plan: ProbePlan, probed: Probed) -> Planned:
    tied = [pair for pair in plan.pairs if pair.tied_by]
    if not tied:
        return ProbeResult("verbosity", "absent", "no pair is rated a tie")
    if all(pair.tied_by == probed.key for pair in tied):
        return ProbeResult("verbosity", "absent", f"it was {probed.key} itself that rated pairs a tie")
    trials = perturbations.verbosity([pair for pair in tied if pair.id in plan.tokens], plan.tokens)
    if not trials and not plan.wordless:
        gap = perturbations.MIN_TOKEN_GAP
        return ProbeResult("verbosity", "absent", f"none of the {len(tied)} pairs rated a tie differs by {gap} words or more")
    return trials


@dataclass(frozen=True)
class Judged:
    """The outcome of one comparison; `scores` are those of a judge of single answers, whose costs are not a comparison's."""

    label: PairLabel | Unscored
    scores: tuple[float, float] | None = None
    cost_usd: float | None = None
    reason: str = ""
    reply: str = ""
    prompts: tuple[str, ...] | None = ()


def run_comparisons(
    probed: Probed,
    comparisons: Sequence[ProbedPair],
    on_progress: Progress,
    save: Callable[[Mapping[ProbedPair, Judged]], None] = lambda judged: None,
) -> tuple[dict[ProbedPair, Judged], BudgetError | None]:
    """Return every comparison's outcome, and the error if the budget ended: the rest is unscored. `save` gets every chunk."""
    judge = probed.judge
    judged: dict[ProbedPair, Judged] = {}

    def judge_chunk(chunk: Sequence[ProbedPair], at: Progress) -> list[tuple[ProbedPair, Judged] | BudgetError]:
        def of_pairs(pairs: list[Pair]) -> Iterable[tuple[Preferred, tuple[float, float] | None, tuple[str, ...] | None]]:
            return zip(judge.compare_batch(pairs, at), _scores(judge, pairs), _prompts(probed, pairs), strict=True)

        results = judge_readable([_make(comparison) for comparison in chunk], of_pairs)
        outcomes: list[tuple[ProbedPair, Judged] | BudgetError] = []
        for comparison, result in zip(chunk, results, strict=True):
            preferred, scores, prompts = (result, None, ()) if isinstance(result, Unscored) else result
            if isinstance(preferred, BudgetError):
                outcomes.append(preferred)
            else:
                outcomes.append((comparison, replace(_judged(preferred, scores), prompts=prompts)))
        return outcomes

    def keep(rows: Sequence[tuple[ProbedPair, Judged]]) -> None:
        judged.update(rows)
        save(dict(rows))

    stopped = judge_in_chunks(comparisons, CHUNK_COMPARISONS, judge_chunk, on_progress, keep)
    missing = Judged(Unscored(judge.name, NOT_REACHED))
    return {comparison: judged.get(comparison, missing) for comparison in comparisons}, stopped


def _make(comparison: ProbedPair) -> Pair | Unscored:
    try:
        return comparison.make()
    except AudioError as error:
        return Unscored("audio", str(error))


def _judged(preferred: Preferred, scores: tuple[float, float] | None) -> Judged:
    if not isinstance(preferred, Preference):
        assert isinstance(preferred, Unscored)
        return Judged(preferred, reply=preferred.reply)
    label = next((label for label in PAIR_LABELS if label == preferred.label), None)
    cost_usd = preferred.cost_usd if scores is None else None
    known = label or Unscored(preferred.judge, f"{preferred.label!r} is no preference")
    return Judged(known, scores, cost_usd, preferred.reason, preferred.reply)


def _prompts(probed: Probed, pairs: Sequence[Pair]) -> Sequence[tuple[str, ...] | None]:
    """Return the prompts of every pair: () of a judge without calls, None of a UniSRM, which is prompted in this process."""
    if isinstance(probed.judge, UniSRMJudge) and probed.requests is None:
        return [None] * len(pairs)
    if probed.requests is None:
        return [()] * len(pairs)
    requests = [sent(request) for request in probed.requests(pairs)]
    return [sum(of_pair, ()) for of_pair in _of_each_pair(requests, pairs)]


def _of_each_pair(requests: Sequence[Made], pairs: Sequence[Pair]) -> list[Sequence[Made]]:
    """Return the requests by pair: a judge of single clips has two for each."""
    each = len(requests) // max(len(pairs), 1)
    return [requests[index * each : (index + 1) * each] for index in range(len(pairs))]


def _scores(judge: Judge, pairs: Sequence[Pair]) -> list[tuple[float, float] | None]:
    """Return the cached scores of both sides of each pair; None for a judge that gives none."""
    if not isinstance(judge, CachedScores):
        return [None] * len(pairs)
    scores = judge.score_batch([side for pair in pairs for side in sides_of(pair)])
    values = [scored.score if isinstance(scored, Verdict) else None for scored in scores]
    return [
        None if first is None or second is None else (first, second)
        for first, second in zip(values[::2], values[1::2], strict=True)
    ]


def probe_judge(
    probed: Probed,
    plan: ProbePlan,
    on_progress: Progress,
    save: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    out: Path = Path(),
) -> tuple[JudgeProbes, list[dict[str, Any]], BudgetError | None]:
    """Return a judge's probes, a row a comparison with clips relative to `out`, and the error if the budget ended first."""
    planned = {name: plan_trials(name, plan, probed) for name in plan.only}
    comparisons = _comparisons(planned.values(), probed.judge.scores_alone)
    spent = _Spending(probed)
    judged, stopped = run_comparisons(
        probed, comparisons, on_progress, lambda now: save([_row(probed, *entry, out) for entry in now.items()])
    )
    margin = _margin(planned, judged)
    if probed.judge.scores_alone:
        judged = {comparison: _within(verdict, margin or 0.0) for comparison, verdict in judged.items()}
        judged |= _derived(planned.values(), judged)
    results = tuple(
        trials if isinstance(trials, ProbeResult) else _result(name, trials, judged, plan) for name, trials in planned.items()
    )
    verdicts = {comparison: (verdict.label, verdict.scores) for comparison, verdict in judged.items()}
    examples = {
        name: pick_examples(trials, verdicts, probed.judge.scores_alone)
        for name, trials in planned.items()
        if not isinstance(trials, ProbeResult)
    }
    judge = JudgeProbes(
        probed.judge.name, probed.version, probed.task, probed.judge.scores_alone, len(comparisons),
        spent.now_usd([judged[comparison] for comparison in comparisons]), str(stopped) if stopped else None, results, margin,
        examples,
    )  # fmt: skip
    rows = [_row(probed, comparison, judged[comparison], out) for comparison in comparisons]
    return judge, rows, stopped


def _margin(planned: Mapping[str, Planned], judged: Mapping[ProbedPair, Judged]) -> float | None:
    """Return the spread of a judge's own scores: what inaudible noise changes. None without scores, or without that probe."""
    trials = planned.get("noise", [])
    control = (perturbations.level_name(perturbations.CONTROL_DB),)
    changes = [] if isinstance(trials, ProbeResult) else _score_changes("noise", trials, judged)
    return retest_margin([change for level, change, _ in changes if level == control])


def _within(judged: Judged, margin: float) -> Judged:
    """Return the comparison with a tie for scores that are no further apart than `margin`."""
    if judged.scores is None or isinstance(judged.label, Unscored):
        return judged
    first, second = judged.scores
    return replace(judged, label="tie") if abs(first - second) <= margin else judged


class _Spending:
    """Measures what a judge's endpoint is paid from here on, unusable replies included."""

    def __init__(self, probed: Probed) -> None:
        self._judge, self._client = probed.judge, probed.client
        self._before = (self._client.spent_usd, self._client.calls) if self._client else (0.0, 0)

    def now_usd(self, judged: Sequence[Judged]) -> float | None:
        """Return the USD spent now; 0 if no call was made, None if calls were made that have no price."""
        if self._client is None or self._client.calls == self._before[1]:
            return 0.0
        now_usd = self._client.spent_usd - self._before[0]
        if isinstance(self._judge, CachedScores):
            priced = self._judge.priced
        else:
            priced = all(verdict.cost_usd is not None for verdict in judged if not isinstance(verdict.label, Unscored))
        # A wallet takes a call without a price for a free call.
        return now_usd if priced and self._client.price is not None and now_usd > 0 else None


def _comparisons(planned: Iterable[Planned], alone: bool) -> list[ProbedPair]:
    """Return the comparisons of all trials, each once; a judge of single answers is not asked in the other order."""
    every = [
        comparison
        for trials in planned
        if not isinstance(trials, ProbeResult)
        for trial in trials
        for comparison in trial.comparisons
    ]
    return [comparison for comparison in dict.fromkeys(every) if not (alone and comparison.change == perturbations.TURNED)]


def _derived(planned: Iterable[Planned], judged: Mapping[ProbedPair, Judged]) -> dict[ProbedPair, Judged]:
    derived: dict[ProbedPair, Judged] = {}
    for trials in planned:
        for trial in [] if isinstance(trials, ProbeResult) else trials:
            for comparison in trial.comparisons:
                if comparison.change == perturbations.TURNED:
                    given = judged[replace(comparison, change=perturbations.GIVEN)].label
                    derived[comparison] = Judged(given if isinstance(given, Unscored) else swapped(given))  # type: ignore[arg-type]
    return derived


def _row(probed: Probed, comparison: ProbedPair, judged: Judged, out: Path) -> dict[str, Any]:
    unscored = isinstance(judged.label, Unscored)
    return {
        "judge": probed.judge.name,
        "version": probed.version,
        "task": probed.task,
        "about": comparison.about,
        "change": comparison.change,
        "label": None if unscored else judged.label,
        "unscored": judged.label.reason if isinstance(judged.label, Unscored) else None,
        "scores": judged.scores,
        "cost_usd": judged.cost_usd,
        "reason": judged.reason,
        "reply": judged.reply,
        "made_from": MadeFrom(clips=clip_names(comparison.clips, out), prompts=judged.prompts).to_json(),
    }


def _result(name: str, trials: Sequence[Trial], judged: Mapping[ProbedPair, Judged], plan: ProbePlan) -> ProbeResult:
    outcomes: list[TrialOutcome] = []
    # Each pair of this probe would have been two trials.
    unscored: Counter[str] = Counter(2 * list(plan.wordless.values()) if name == "verbosity" else ())
    total = len(trials) + unscored.total()
    for trial in trials:
        labels = [judged[comparison].label for comparison in trial.comparisons]
        counted = trial.read([None if isinstance(label, Unscored) else label for label in labels])
        outcomes += [TrialOutcome(trial.cluster, group, label, trial.comparisons[0].about) for group, label in counted]
        if failed := [label for label in labels if isinstance(label, Unscored)]:
            unscored[failed[0].reason] += 1
    spec = PROBES[name]
    parts = tell_parts(outcomes, spec.labels_of, spec.compared, plan.seed)
    if name == "noise":
        control = perturbations.level_name(perturbations.CONTROL_DB)
        parts = against_control(sorted(parts, key=noise_order), outcomes, control, plan.seed)
    return ProbeResult(
        name, "measured", "", total, total - unscored.total(), dict(unscored), parts,
        _changes(name, trials, judged, plan.seed),
        _gap_link(plan, judged) if name == "mos_gap" else None, _notes(name, plan),
    )  # fmt: skip


def _gap_link(plan: ProbePlan, judged: Mapping[ProbedPair, Judged]) -> Correlation:
    gaps, stable, clusters = [], [], []
    for pair in plan.pairs:
        if pair.mos is None:
            continue
        given, exchanged = (judged[order(pair)].label for order in (perturbations.as_given, perturbations.turned_round))
        if not isinstance(given, Unscored) and not isinstance(exchanged, Unscored):
            gaps.append(abs(pair.mos[0] - pair.mos[1]))
            stable.append(place_of(given, exchanged) == "stable")
            clusters.append(pair.cluster)
    return gap_correlation(gaps, stable, clusters, plan.seed)


def _changes(name: str, trials: Sequence[Trial], judged: Mapping[ProbedPair, Judged], seed: int) -> tuple[Change, ...]:
    """By how much a change of the clip changes its score, a group each; none of a judge that gives no scores."""
    groups: dict[tuple[str, ...], list[tuple[float, str]]] = {}
    for group, change, cluster in _score_changes(name, trials, judged):
        groups.setdefault(group, []).append((change, cluster))
    return tuple(
        mean_change(group, [change for change, _ in rows], [cluster for _, cluster in rows], seed)
        for group, rows in groups.items()
    )


def _score_changes(
    name: str, trials: Sequence[Trial], judged: Mapping[ProbedPair, Judged]
) -> list[tuple[tuple[str, ...], float, str]]:
    """Group, change and cluster of scores: a noisy answer's less the clean one's, or CHANGED_SIDE's less the other clip's."""
    changes: list[tuple[tuple[str, ...], float, str]] = []
    for trial in trials if name in ("noise", *CHANGED_SIDE) else ():
        scores = [judged[comparison].scores for comparison in trial.comparisons]
        if name == "noise":
            clean, noisy = scores
            if clean is not None and noisy is not None:
                level = trial.read([None, None])[0][0]
                changes += [(level, after - before, trial.cluster) for before, after in zip(clean, noisy, strict=True)]
        elif scores[0] is not None:
            first, second = scores[0]
            # The first label's meaning says which of the two clips is the changed one.
            changes += [
                (group, first - second if side == CHANGED_SIDE[name] else second - first, trial.cluster)
                for group, side in trial.read(["1"])
            ]
    return changes


def _notes(name: str, plan: ProbePlan) -> tuple[str, ...]:
    if name == "verbosity":
        raters = sorted({pair.tied_by for pair in plan.pairs if pair.tied_by})
        return (f"Ties rated by: {', '.join(raters)}.",)
    if name == "loudness":
        count = perturbations.turned_down(plan.clips)
        return (f"For {count} of {len(plan.clips)} clips more gain would clip: there the original was turned down instead.",)
    return ()


def report_of(options: ProbeOptions, plan: ProbePlan, available: int, judges: Sequence[JudgeProbes]) -> ProbeReport:
    """Return the report of all judges, with the settings."""
    settings = {
        "seed": plan.seed,
        "resamples": RESAMPLES,
        "snrs_db": list(perturbations.SNRS_DB),
        "control_db": perturbations.CONTROL_DB,
        "gain_db": perturbations.GAIN_DB,
        "min_token_gap": perturbations.MIN_TOKEN_GAP,
        "voices": {name: asdict(voice) for name, voice in VOICES.items()},
        "probes": list(plan.only),
    }
    clusters = len({pair.cluster for pair in plan.pairs})
    return ProbeReport(str(options.source), len(plan.pairs), available, clusters, settings, tuple(judges))


def run_probes(options: ProbeOptions, out: Path, bar_of: Callable[[str], Any]) -> tuple[ProbeReport, BudgetError | None]:
    """Probe every judge and write probe.json and probe.html again after each judge, comparisons.jsonl after every chunk.

    Where a budget ends, what was judged until then is written, and the error is given back.

    Raises:
        ConfigError, DataError: as `source_pairs` and `open_probed`. StorageError: the disk refused.
    """
    pairs, available = source_pairs(options)
    opened = [probed for name in options.judges for probed in open_probed(name, options)]
    plan = make_plan(pairs, options.only, options.seed)
    judges: list[JudgeProbes] = []
    rows: list[dict[str, Any]] = []
    report = report_of(options, plan, available, judges)

    def save(now: list[dict[str, Any]]) -> None:
        # Added, since to write all rows again with every chunk grows with their square.
        for row in now:
            append_jsonl(out / "comparisons.jsonl", row)

    write_jsonl(out / "comparisons.jsonl", [])
    for probed in opened:
        with bar_of(f"{probed.judge.name} {probed.task}".strip()) as bar:
            probes, more, stopped = probe_judge(probed, plan, bar.at, save, out)
        judges.append(probes)
        rows += more
        report = report_of(options, plan, available, judges)
        write_jsonl(out / "comparisons.jsonl", rows)
        write_probes(out, report)
        if stopped:
            return report, stopped
    return report, None


def estimate_probes(options: ProbeOptions, bar_of: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return every judge's comparisons, calls, tokens and USD at most, without a call; a local judge is free."""
    pairs, _ = source_pairs(options)
    plan = make_plan(pairs, options.only, options.seed)
    rows = []
    for probed in (probed for name in options.judges for probed in open_probed(name, options, calls=False)):
        planned = [plan_trials(name, plan, probed) for name in plan.only]
        comparisons = _comparisons(planned, probed.judge.scores_alone)
        row: dict[str, Any] = {"judge": probed.judge.name, "task": probed.task, "comparisons": len(comparisons)}
        if probed.requests is None or probed.client is None:
            rows.append(row | asdict(Bill()) | {"unscored": 0})
            continue
        with bar_of(f"{probed.judge.name} {probed.task}".strip()) as bar:
            rows.append(row | _estimate(probed.requests, probed.client, comparisons, bar.at))
    return rows


def _estimate(
    requests_of: Callable[[Sequence[Pair]], Sequence[list[Request] | Unscored]],
    client: LLMClient,
    comparisons: Sequence[ProbedPair],
    on_progress: Progress,
) -> dict[str, Any]:
    bill, usable = Bill(), 0
    for start in range(0, len(comparisons), CHUNK_COMPARISONS):
        made = [_make(comparison) for comparison in comparisons[start : start + CHUNK_COMPARISONS]]
        pairs = [pair for pair in made if isinstance(pair, Pair)]
        requests = requests_of(pairs)
        bill = bill + client.estimate(requests)
        usable += sum(all(isinstance(request, list) for request in of_pair) for of_pair in _of_each_pair(requests, pairs))
        on_progress(min(start + CHUNK_COMPARISONS, len(comparisons)), len(comparisons))
    return {**asdict(bill), "unscored": len(comparisons) - usable}
