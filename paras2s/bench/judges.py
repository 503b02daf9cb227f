"""`paras2s blueprint` and `paras2s judge`: clips from files, a judge from its config, and verdicts for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paras2s.audio.clip import read_clip
from paras2s.clients.chat import Bill
from paras2s.configs.schema.audio_judge import listens
from paras2s.configs.schema.run import ExtractorConfig, JudgingConfig, load_judging_config, preset_path
from paras2s.errors import AudioError, BudgetError, ConfigError
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.judges.llm_judge import Utterance
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Absent, Blueprint, PairVerdict, Preference, Unscored, Verdict
from paras2s.utils.cache import JsonCache

MAX_CLIP_S = 600.0
CHUNK_FILES = 8
BARS = " ▁▂▃▄▅▆▇█"


def open_config(name: str, overrides: dict[str, Any] | None = None) -> JudgingConfig:
    """A judge's settings, by the name of a shipped one or by path.

    Raises:
        ConfigError: it is a judge of the other kind, that listens.
    """
    if listens(path := judge_path(name)):
        raise ConfigError(f"{name}: this judge listens; it is for `judge pair`, `judge clip`, `bench systems` and `probe`")
    return load_judging_config(path, overrides)


def judge_path(name: str) -> Path:
    """The file of a judge: a shipped one by name, or a path."""
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else preset_path(name, "judges")


def utterance(said: str, style: str | None = None) -> Utterance:
    """What was asked: a file of that name, or else the text itself.

    Raises:
        AudioError: it looks like a file of audio, and there is none.
    """
    path = Path(said)
    looks_like_audio = path.suffix.lower() in (".wav", ".flac", ".ogg", ".mp3", ".m4a", ".opus")
    if looks_like_audio or (len(said.encode()) < 250 and path.is_file()):
        return Utterance(clip=read_clip(path, max_duration_s=MAX_CLIP_S), style=style)
    return Utterance(text=said, style=style)


def measure_chunk(
    paths: Sequence[Path], wanted: Sequence[ExtractorConfig], tone: ToneClassifier | None, cache: Path | None
) -> list[Blueprint | str]:
    """Blueprints of files; of one that cannot be read, the reason."""
    read: list[Any] = []
    for path in paths:
        try:
            read.append(read_clip(path, max_duration_s=MAX_CLIP_S))
        except AudioError as error:
            read.append(str(error))
    clips = [one for one in read if not isinstance(one, str)]
    made = iter(build_blueprints(clips, make_extractors(wanted, tone), JsonCache(cache) if cache else None))
    return [one if isinstance(one, str) else next(made) for one in read]


def measure_files(
    paths: Sequence[Path],
    wanted: Sequence[ExtractorConfig],
    tone: ToneClassifier | None,
    cache: Path | None,
    on_progress: Callable[[int, int], None],
    ray_address: str | None = None,
    on_ray: bool = False,
) -> list[Blueprint | str]:
    """Blueprints of many files, a chunk after the other, or spread over Ray: over this machine's cores or a cluster."""
    chunks = [paths[start : start + CHUNK_FILES] for start in range(0, len(paths), CHUNK_FILES)]
    found: list[list[Blueprint | str]] = []
    if on_ray:
        import ray

        from paras2s.rollout.workers import start_ray

        start_ray(ray_address)
        remote = ray.remote(num_cpus=2)(measure_chunk)
        waiting = [remote.remote(chunk, wanted, tone, cache) for chunk in chunks]
        for done, task in enumerate(waiting, 1):
            found.append(ray.get(task))
            on_progress(min(done * CHUNK_FILES, len(paths)), len(paths))
    else:
        for chunk in chunks:
            found.append(measure_chunk(chunk, wanted, tone, cache))
            on_progress(sum(map(len, found)), len(paths))
    return [one for part in found for one in part]


# For people.


def sparkline(values: Sequence[float]) -> str:
    """A contour as one line of blocks, lowest to highest of its own range."""
    low, high = min(values), max(values)
    if high == low:
        return BARS[4] * len(values)
    return "".join(BARS[1 + round((value - low) / (high - low) * (len(BARS) - 2))] for value in values)


def _cell(found: Any) -> str:
    if isinstance(found, Absent):
        return f"[dim]not measured: {escape(found.reason)}[/dim]"
    value = found.value
    if isinstance(value, list):
        return f"{sparkline(value)}  {min(value):.0f} to {max(value):.0f}"
    # What a clip said may look like our markup.
    text = f"{value:.2f}" if isinstance(value, float) else escape(str(value))
    confidence = "" if found.confidence is None else f"  [dim](confidence {found.confidence:.2f})[/dim]"
    return f"{text}{confidence}"


def show_blueprints(console: Console, blueprints: dict[str, Blueprint]) -> None:
    """Blueprints side by side, contours as sparklines."""
    table = Table()
    table.add_column("field")
    for name in blueprints:
        table.add_column(name, overflow="fold")
    for key in dict.fromkeys(key for blueprint in blueprints.values() for key in blueprint.fields):
        short = key.removeprefix("agent_").removeprefix("audio_properties.").removeprefix("audio_quality.")
        table.add_row(short, *(_cell(blueprint.fields[key]) for blueprint in blueprints.values()))
    console.print(table)


def show_verdict(console: Console, found: PairVerdict | Verdict | Unscored, overall: str | None = None) -> None:
    """The labels or the score, why, who said so, and what it cost."""
    if isinstance(found, Unscored):
        console.print(f"[bold red]unscored[/bold red]: {escape(found.reason)}", highlight=False)
        if found.reply:
            console.print("the judge said:", found.reply, highlight=False, markup=False)
        return
    if isinstance(found, PairVerdict):
        labels = ", ".join(f"{name} [bold]{label}[/bold]" for name, label in found.labels.items())
        console.print(f"{labels}; overall [bold]{overall}[/bold]", highlight=False)
        if found.consistent is not None:
            console.print("both orders agree" if found.consistent else "the two orders do not agree", highlight=False)
    else:
        voted = f" of {len(found.votes)} votes" if found.votes else " of 5"
        spread = "" if found.spread is None else f", spread {found.spread:.2f}"
        console.print(f"score [bold]{found.score:.3g}[/bold]{voted}{spread}", highlight=False)
    _show_maker(console, found)


def show_preference(console: Console, task: str, found: Preference | Unscored) -> None:
    """What a listening judge makes of two clips for one task."""
    if isinstance(found, Unscored):
        show_verdict(console, found)
        return
    said = f"{task}: [bold]{escape(found.label)}[/bold]"
    if found.consistent is not None:
        said += f"; heard in both orders, {'which agree' if found.consistent else 'which do not agree'}"
    if found.spread is not None and len(found.votes) > len(found.order_labels):
        said += f"; {len(found.votes)} votes, {found.points:.2f} for the first, spread {found.spread:.2f}"
    console.print(said, highlight=False)
    console.print(found.reason, highlight=False, markup=False)
    _show_maker(console, found)


def _show_maker(console: Console, found: PairVerdict | Verdict | Preference) -> None:
    price = "unknown" if found.cost_usd is None else f"{found.cost_usd:.4f} USD"
    by = f"{found.judge}/{found.version}, prompt {found.prompt_hash}"
    console.print(f"{by}, {found.latency_s:.1f} s, cost {price}", style="dim", markup=False)


def show_estimate(console: Console, model: str, bill: Bill) -> None:
    """What calls would cost at most."""
    tokens, usd = bill.tokens, bill.at_most_usd
    price = f"no price is known for {model}" if usd is None else f"at most {usd:.4f} USD"
    console.print(
        f"{bill.calls} calls of {model}, {tokens.text_in} tokens of text and {tokens.audio_in} of audio in, at "
        f"most {tokens.text_out} out: {price}",
        highlight=False,
    )


def or_stop(found: PairVerdict | Verdict | Unscored | BudgetError) -> PairVerdict | Verdict | Unscored:
    """The verdict.

    Raises:
        BudgetError: it was not reached.
    """
    if isinstance(found, BudgetError):
        raise found
    return found


def require_tone(path: Path | None) -> ToneClassifier:
    """A fitted classifier for the rubric.

    Raises:
        ConfigError: none was given.
    """
    if path is None:
        raise ConfigError("--tone: the rubric needs a fitted tone classifier, RUN/data/tone_agent.json")
    return ToneClassifier.load(path)
