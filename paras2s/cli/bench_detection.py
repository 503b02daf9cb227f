"""The verb of suites of one characteristic: `bench detect`."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import Estimate, Json, Limit, Set, parse_overrides, print_json


class DetectName(StrEnum):
    """Suites of one characteristic (AudioJudge, section 4)."""

    pronunciation = "pronunciation"
    speaking_rate = "speaking_rate"
    speaker_identity = "speaker_identity"
    somos = "somos"
    tmhintq = "tmhintq"
    thaimos = "thaimos"


def bench_detect(
    suite: Annotated[DetectName, typer.Argument(help="What is detected.")],
    manifest: Annotated[
        Path, typer.Argument(help="Pairs (JSON or CSV, as the authors prepare them), or a released table of ratings.")
    ],
    audio: Annotated[Path | None, typer.Option(help="Folder under which the clips lie.")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="An audio judge: detection, or a YAML.")] = None,
    baseline: Annotated[str | None, typer.Option(help="dnsmos, phonemes, syllables or speaker: a specialised judge.")] = None,
    verdicts: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded verdicts (JSONL, or the authors' CSV), the first of them the baseline. Repeatable."),
    ] = None,
    pointwise: Annotated[bool, typer.Option("--pointwise", help="Score each clip alone; the higher score wins.")] = False,
    limit: Limit = None,
    seed: Annotated[int | None, typer.Option(help="By which pairs are drawn from a table of ratings; else 0.")] = None,
    estimate: Estimate = False,
    out: Annotated[
        Path | None, typer.Option(help="Where verdicts are written; else runs/detect/SUITE/JUDGE-VERSION.jsonl.")
    ] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """How often a judge hears which clip is faster or better, or that two match (AudioJudge, Tables 1, 2, 9 and 10).

    The first of --verdicts, or else the judge, is the baseline that the others are tested against.
    """
    from dataclasses import replace

    from paras2s.bench.detection.data import SUITES, load_pairs, load_rows
    from paras2s.bench.detection.report import detection_report, show_detection
    from paras2s.errors import ConfigError
    from paras2s.utils.progress import open_console

    if judge is not None and baseline is not None:
        raise ConfigError("--judge and --baseline: give one of them; the verdicts of the other can be given by --verdicts")
    asks = judge is not None or baseline is not None or not verdicts
    if not asks and (pointwise or estimate or out is not None or set_):
        raise ConfigError("--verdicts alone asks nobody: leave --pointwise, --estimate, --out and --set out, or give --judge")
    if len(set(verdicts or [])) < len(verdicts or []):
        raise ConfigError("--verdicts: a file stands twice")
    console, chosen = open_console(to_stderr=as_json), SUITES[suite.value]
    loaded = load_pairs(manifest, chosen, seed)
    loaded = replace(loaded, pairs=loaded.pairs[:limit])
    recorded = {str(path): load_rows(path, chosen) for path in verdicts or []}
    stopped = None
    if asks:
        asked = _Asked(chosen, loaded.pairs, audio, pointwise, as_json, console)
        made = asked.open_baseline(baseline, set_) if baseline else asked.open_judge(judge or "detection", set_)
        if estimate:
            asked.estimate(made)
            return
        path, stopped = asked.ask(made, out)
        recorded[str(path)] = load_rows(path, chosen)
    report = detection_report(chosen, loaded, recorded)
    print_json(report) if as_json else show_detection(console, report)
    if stopped:
        raise stopped


@dataclass(frozen=True)
class _Asked:
    """What a judge is asked; see the options."""

    suite: Any
    pairs: Any
    audio: Path | None
    pointwise: bool
    as_json: bool
    console: Any

    def open_judge(self, name: str, set_: list[str] | None) -> Any:
        from paras2s.bench.detection.data import QUALITY
        from paras2s.data_gen.tts.signal_voice import signal_voice
        from paras2s.errors import ConfigError
        from paras2s.reward.judges.registry import open_audio_judges

        if self.pointwise and self.suite.task != QUALITY:
            raise ConfigError(f"--pointwise: {self.suite.name} asks for no score of a clip; it is for somos, tmhintq, thaimos")
        task = "mos" if self.pointwise else self.suite.task
        return open_audio_judges(name, parse_overrides(set_), tasks=[task], voice=signal_voice())[0]

    def open_baseline(self, name: str, set_: list[str] | None) -> Any:
        from paras2s.bench.detection.baselines import open_baseline
        from paras2s.errors import ConfigError

        made = open_baseline(name, self.suite, parse_overrides(set_))
        if self.pointwise and not made.rates:
            raise ConfigError(f"--pointwise: --baseline {name} gives single clips no score from 1 to 5")
        return made

    def root(self) -> Path:
        from paras2s.errors import ConfigError

        if self.audio is None or not self.audio.is_dir():
            raise ConfigError("--audio: give the folder that holds the clips, or recorded --verdicts")
        return self.audio

    def estimate(self, judge: Any) -> None:
        from paras2s.bench.detection.run import estimate_pairs
        from paras2s.bench.display import show_estimate
        from paras2s.errors import ConfigError
        from paras2s.reward.judges.audio_judge.judge import AudioJudge
        from paras2s.utils.progress import progress_bar

        if not isinstance(judge, AudioJudge):
            raise ConfigError("--estimate: a baseline calls nobody; leave it out")
        with progress_bar(self.console, "pairs read", len(self.pairs), quiet=self.as_json) as bar:
            bill, unscored = estimate_pairs(judge, self.pairs, self.root(), bar.at)
        if self.as_json:
            print_json({**asdict(bill), "unscored": unscored})
            return
        show_estimate(self.console, judge.config.llm.model, bill)
        self.console.print(f"{unscored} of {len(self.pairs)} pairs cannot be judged", highlight=False)

    def ask(self, judge: Any, out: Path | None) -> Any:
        """Path of the verdicts, and the error that stopped it before its end, if any."""
        from paras2s.bench.detection.run import by_clip, by_pair, judge_pairs, require_new
        from paras2s.reward.judges.audio_judge.judge import AudioJudge
        from paras2s.utils.progress import progress_bar

        root = self.root()
        own_name = re.sub(r"[^\w.+-]+", "-", f"{judge.name}-{judge.version}{'-pointwise' if self.pointwise else ''}")
        path = out or Path("runs/detect") / self.suite.name / f"{own_name}.jsonl"
        require_new(path, self.suite, judge, self.pairs)
        ask = by_clip(judge) if self.pointwise else by_pair(judge)
        with progress_bar(self.console, "pairs judged", len(self.pairs), quiet=self.as_json) as bar:
            took_s, stopped = judge_pairs(judge.name, ask, self.pairs, root, path, bar.at)
        called = ""
        if isinstance(judge, AudioJudge):
            called = f"{judge.client.calls} calls, {judge.client.caller.wallet.spent_usd:.4f} USD spent now; "
        self.console.print(f"{took_s:.0f} s; {called}verdicts in {path}", highlight=False)
        return path, stopped
