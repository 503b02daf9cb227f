"""The verbs that measure and judge: `blueprint`, `judge pair`, `judge answer`, `bench speakbench`, `bench s2sarena`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.judge_audio import listen
from paras2s.cli.options import Dump, Estimate, Json, Limit, Set, Task, Tone, parse_overrides, print_json
from paras2s.errors import AudioError

judge_app = typer.Typer(help="A verdict on two answers, or on one.", no_args_is_help=True)
bench_app = typer.Typer(help="What is measured: a run's held-out contrasts, or a judge against people.", no_args_is_help=True)

Judge = Annotated[
    str, typer.Option("--judge", help="trace, trace_paper, transcript, audio, a judge that listens (audiojudge), or a YAML.")
]
Both = Annotated[bool, typer.Option("--both-orders", help="Ask twice, the answers exchanged, and give one symmetric verdict.")]


class SuiteName(StrEnum):
    """Suites with people's labels."""

    speakbench = "speakbench"
    s2sarena = "s2sarena"


SUITE_TITLES = {SuiteName.speakbench: "SpeakBench", SuiteName.s2sarena: "S2S-Arena"}


def blueprint(
    clips: Annotated[list[Path], typer.Argument(help="Audio files of any format, up to 10 minutes each.")],
    extractors: Annotated[str | None, typer.Option(help="Comma-separated names; else those of --judge.")] = None,
    judge: Judge = "trace",
    tone: Tone = None,
    cache: Annotated[bool, typer.Option(help="Keep what was measured, by content and extractor version.")] = True,
    ray: Annotated[bool, typer.Option("--ray", help="Spread the files over Ray.")] = False,
    ray_address: Annotated[str | None, typer.Option(help="Of a running cluster; else Ray starts here.")] = None,
    set_: Set = None,
) -> None:
    """Measure clips: words, pitch, loudness, rates, quality and more; JSON to standard output."""
    from paras2s.bench.judges import measure_files, open_config
    from paras2s.configs.schema.run import ExtractorConfig
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.types import Blueprint, to_json
    from paras2s.utils.progress import open_console, progress_bar

    config = open_config(judge, parse_overrides(set_))
    wanted = [ExtractorConfig(name=one.strip()) for one in extractors.split(",")] if extractors else config.extractors
    classifier = ToneClassifier.load(tone) if tone else None
    kept = config.cache_dir / "judging.sqlite" if cache else None
    with progress_bar(open_console(to_stderr=True), "clips measured", len(clips), quiet=len(clips) == 1) as bar:
        found = measure_files(clips, wanted, classifier, kept, bar.at, ray_address, ray or ray_address is not None)
    rows = [to_json(one) if isinstance(one, Blueprint) else {"error": one} for one in found]
    unread = [one for one in found if isinstance(one, str)]
    if len(unread) < len(clips):
        print_json(dict(zip(map(str, clips), rows, strict=True)))
    if unread:
        raise AudioError(
            unread[0] if len(clips) == 1 else f"{len(unread)} of {len(clips)} clips could not be read: {unread[0]}"
        )


@judge_app.command("pair")
def judge_pair(
    first: Annotated[Path, typer.Argument(help="The first spoken answer.")],
    second: Annotated[Path, typer.Argument(help="The second spoken answer.")],
    instruction: Annotated[str | None, typer.Option(help="What was asked: an audio file, or the text.")] = None,
    judge: Judge = "trace",
    task: Task = None,
    both_orders: Both = False,
    dump: Dump = None,
    estimate: Estimate = False,
    tone: Tone = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Compare two clips: answers in content, voice and manner (TRACE), or whatever a listening judge is asked (AudioJudge)."""
    from paras2s.audio.clip import read_clip
    from paras2s.bench.audio_judges import is_listening
    from paras2s.bench.judges import MAX_CLIP_S, utterance
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.llm_judge import Pair, Utterance

    answers = [read_clip(path, max_duration_s=MAX_CLIP_S) for path in (first, second)]
    pair = Pair(Utterance() if instruction is None else utterance(instruction), answers[0], answers[1])
    if is_listening(judge):
        if tone is not None:
            raise ConfigError(f"--tone: {judge} listens, and is told no tone; leave it out")
        overrides = parse_overrides(set_) | ({"both_orders": True} if both_orders else {})
        listen(judge, overrides, task, pair, dump, estimate, as_json)
        return
    if task is not None or dump is not None:
        raise ConfigError(f"--task and --dump are of judges that listen, whose YAML names 'tasks'; {judge} does not")
    if instruction is None:
        raise ConfigError("--instruction: give what was asked, as text or as an audio file")
    made, rule = _open(judge, set_, tone, both_orders)
    if estimate:
        asked = made.pair_requests([pair])[0]
        if isinstance(asked, list):
            _estimate(made, asked, as_json)
            return
    found = made.pairs([pair])[0]
    _show(made, {"answer 1": answers[0], "answer 2": answers[1]}, found, rule, as_json)


@judge_app.command("answer")
def judge_answer(
    question: Annotated[str, typer.Argument(help="What was asked: an audio file, or the text.")],
    answer: Annotated[Path, typer.Argument(help="The spoken answer.")],
    judge: Annotated[str, typer.Option("--judge", help="As for `judge pair`, or rubric: offline, by rules.")] = "trace",
    style: Annotated[str | None, typer.Option(help="How it was asked: happy, sad, sarcastic, child, female ...")] = None,
    estimate: Estimate = False,
    tone: Tone = None,
    rubric: Annotated[Path | None, typer.Option(help="Another rubric (YAML), for --judge rubric.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score one spoken answer from 1 to 5 by how well it fits what was asked, and how it was asked (ParaS2S)."""
    from paras2s.audio.clip import read_clip
    from paras2s.bench.judges import MAX_CLIP_S, utterance
    from paras2s.clients.chat import Request
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.llm_judge import Exchange

    clip = read_clip(answer, max_duration_s=MAX_CLIP_S)
    if judge == "rubric":
        if estimate or set_:
            raise ConfigError("--judge rubric makes no call and has no config: leave --estimate and --set out")
        _judge_by_rubric(question, clip, style, tone, rubric, as_json)
        return
    made, rule = _open(judge, set_, tone, False)
    exchange = Exchange(utterance(question, style), clip)
    if estimate:
        asked = made.answer_requests([exchange])[0]
        if isinstance(asked, Request):
            _estimate(made, [asked], as_json)
            return
    _show(made, {"answer": clip}, made.answers([exchange])[0], rule, as_json)


def _judge_by_rubric(
    question: str, answer: Any, style: str | None, tone: Path | None, rubric: Path | None, as_json: bool
) -> None:
    from paras2s.bench.judges import require_tone, show_blueprints, show_verdict
    from paras2s.errors import ConfigError
    from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
    from paras2s.reward.blueprint.parallel import JUDGE_EXTRACTORS
    from paras2s.reward.judges.rubric import Question, RubricJudge
    from paras2s.types import to_json
    from paras2s.utils.progress import open_console

    if style is None:
        raise ConfigError("--style: the rubric must be told how the question was asked")
    shown = build_blueprints([answer], make_extractors(JUDGE_EXTRACTORS, require_tone(tone)))[0]
    found = RubricJudge(rubric).judge(Question(question, style), shown)
    if as_json:
        print_json({"verdict": to_json(found), "blueprints": {"answer": to_json(shown)}})
        return
    show_blueprints(open_console(), {"answer": shown})
    show_verdict(open_console(), found)


def _open(judge: str, items: list[str] | None, tone: Path | None, both_orders: bool) -> Any:
    from paras2s.bench.judges import open_config
    from paras2s.reward.judges.llm_judge import open_judge
    from paras2s.reward.tone_classifier import ToneClassifier

    overrides = parse_overrides(items) | ({"judge.both_orders": True} if both_orders else {})
    return open_judge(open_config(judge, overrides), ToneClassifier.load(tone) if tone else None)


def _estimate(judge: Any, requests: list[Any], as_json: bool) -> None:
    from dataclasses import asdict

    from paras2s.bench.judges import show_estimate
    from paras2s.utils.progress import open_console

    bill = judge.client.estimate(requests)
    if as_json:
        print_json(asdict(bill))
    else:
        show_estimate(open_console(), judge.config.llm.model, bill)


def _show(judge: Any, clips: dict[str, Any], found: Any, rule: Any, as_json: bool) -> None:
    from paras2s.bench.judges import or_stop, show_blueprints, show_verdict
    from paras2s.reward.blueprint.extract import build_blueprints
    from paras2s.types import PairVerdict, to_json
    from paras2s.utils.progress import open_console

    verdict = or_stop(found)
    made = build_blueprints(list(clips.values()), judge.extractors, judge.kept) if judge.extractors else []
    blueprints = dict(zip(clips, made, strict=False))
    overall = rule.fuse(verdict.labels) if isinstance(verdict, PairVerdict) else None
    if as_json:
        shown = {name: to_json(one) for name, one in blueprints.items()}
        print_json({"verdict": to_json(verdict), **({"overall": overall} if overall else {}), "blueprints": shown})
        return
    if blueprints:
        show_blueprints(open_console(), blueprints)
    show_verdict(open_console(), verdict, overall)


Labels = Annotated[Path, typer.Option(help="People's labels, in the form of TRACE's release (JSON).")]
Audio = Annotated[Path | None, typer.Option(help="Folder under which the labels' audio lies.")]
Verdicts = Annotated[list[Path] | None, typer.Option(help="Recorded verdicts (JSONL); no call is made. Repeatable: compared.")]
Oracle = Annotated[bool, typer.Option("--oracle", help="Fuse people's own dimension labels: what each rule could reach.")]
Rule = Annotated[str | None, typer.Option(help="Fusion rule; else the suite's own.")]
Rules = Annotated[Path | None, typer.Option(help="YAML with fusion rules of your own.")]
Out = Annotated[Path | None, typer.Option(help="Where verdicts are written; else runs/SUITE/JUDGE-VERSION.jsonl.")]


def _suite_command(name: SuiteName) -> Callable[..., None]:
    def command(
        labels: Labels, audio: Audio = None, judge: Judge = "trace", verdicts: Verdicts = None, oracle: Oracle = False,
        rule: Rule = None, rules: Rules = None, both_orders: Both = False, estimate: Estimate = False, out: Out = None,
        limit: Limit = None, tone: Tone = None, set_: Set = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        asked = _Asked(name, labels, audio, judge, verdicts, oracle, rule, rules, both_orders, estimate, out, limit, tone, set_)
        _bench(asked, as_json)

    command.__doc__ = f"A judge, or its recorded verdicts, against people's labels of {SUITE_TITLES[name]}."
    return command


@dataclass(frozen=True)
class _Asked:
    """What `bench SUITE` was asked for; see its options."""

    name: SuiteName
    labels: Path
    audio: Path | None
    judge: str
    verdicts: list[Path] | None
    oracle: bool
    rule: str | None
    rules: Path | None
    both_orders: bool
    estimate: bool
    out: Path | None
    limit: int | None
    tone: Path | None
    overrides: list[str] | None


for _name in SuiteName:
    bench_app.command(_name.value)(_suite_command(_name))


def _bench(asked: _Asked, as_json: bool) -> None:
    from paras2s.bench.speakbench.data import SUITES, load_pairs
    from paras2s.bench.speakbench.report import oracle_report, show_oracle
    from paras2s.reward.fusion import find_rule, load_rules
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    suite, pairs = SUITES[asked.name], load_pairs(asked.labels)[: asked.limit]
    if asked.oracle:
        report = oracle_report(suite, pairs, load_rules(asked.rules))
        print_json(report) if as_json else show_oracle(console, report)
        return
    rule_name = asked.rule or suite.rule
    rule = find_rule(rule_name, asked.rules)
    paths, stopped = list(asked.verdicts or []), None
    if not paths:
        if asked.estimate:
            _estimate_suite(asked, pairs, console, as_json)
            return
        path, stopped = _judge_suite(asked, pairs, console, as_json)
        paths = [path]
    _report_verdicts(suite, pairs, paths, rule_name, rule, console, as_json)
    if stopped:
        raise stopped


def _audio_root(asked: _Asked) -> Path:
    from paras2s.errors import ConfigError

    if asked.audio is None or not asked.audio.is_dir():
        raise ConfigError("--audio: give the folder that holds the labels' audio, or --verdicts, or --oracle")
    return asked.audio


def _estimate_suite(asked: _Asked, pairs: Any, console: Any, as_json: bool) -> None:
    from dataclasses import asdict

    from paras2s.bench.judges import show_estimate
    from paras2s.bench.speakbench.run import estimate_suite
    from paras2s.utils.progress import progress_bar

    root = _audio_root(asked)
    judge, _ = _open(asked.judge, asked.overrides, asked.tone, asked.both_orders)
    with progress_bar(console, "pairs read", len(pairs), quiet=as_json) as bar:
        bill, unscored = estimate_suite(judge, pairs, root, bar.at)
    if as_json:
        print_json({**asdict(bill), "unscored": unscored})
        return
    show_estimate(console, judge.config.llm.model, bill)
    console.print(f"{unscored} of {len(pairs)} pairs cannot be judged")


def _judge_suite(asked: _Asked, pairs: Any, console: Any, as_json: bool) -> Any:
    """Path of the verdicts, and the error that stopped it before its end, if any."""
    from paras2s.bench.speakbench.run import judge_suite
    from paras2s.utils.progress import progress_bar

    root = _audio_root(asked)
    judge, _ = _open(asked.judge, asked.overrides, asked.tone, asked.both_orders)
    own_name = f"{judge.name}-{judge.version}".replace(":", "-").replace("/", "-")
    path = asked.out or Path("runs") / asked.name / f"{own_name}.jsonl"
    with progress_bar(console, "pairs judged", len(pairs), quiet=as_json) as bar:
        took_s, stopped = judge_suite(judge, pairs, root, path, bar.at)
    spent_usd = judge.client.spent_usd
    console.print(
        f"{judge.client.calls} calls in {took_s:.0f} s, {spent_usd:.4f} USD spent now; verdicts in {path}", highlight=False
    )
    return path, stopped


def _report_verdicts(suite: Any, pairs: Any, paths: list[Path], rule_name: str, rule: Any, console: Any, as_json: bool) -> None:
    from itertools import combinations

    from paras2s.bench.speakbench.report import comparison_report, judge_report, show_comparison, show_judge, show_labels
    from paras2s.bench.speakbench.verdicts import load_verdicts

    loaded = {str(path): load_verdicts(path) for path in paths}
    reports = {name: judge_report(suite, pairs, found, rule_name, rule) for name, found in loaded.items()}
    pairwise = {
        f"{one} - {other}": comparison_report(pairs, loaded[one], loaded[other], rule) for one, other in combinations(loaded, 2)
    }
    if as_json:
        print_json({"judges": reports, "comparisons": pairwise})
        return
    show_labels(console, next(iter(reports.values())))
    for name, report in reports.items():
        show_judge(console, name, report)
    for (one, other), found in zip(combinations(loaded, 2), pairwise.values(), strict=True):
        show_comparison(console, one, other, found)
