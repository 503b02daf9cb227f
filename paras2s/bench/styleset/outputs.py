"""A system's outputs: dialogues are led, written, and read again by a later run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.audio.synthesis import VERSION as SPEECH_VERSION
from paras2s.audio.synthesis import speak_plain
from paras2s.bench.styleset.data import FollowingItem, RoleContext, Task
from paras2s.bench.styleset.dialogue import FEWEST_TURNS, Dialogue, DialogueModel, Output, crop, follow, output_of, role_play
from paras2s.bench.styleset.systems import LONGEST_ANSWER_S, MAX_TOKENS, TEMPERATURE, TOP_P, open_speaker
from paras2s.bench.systems import Progress, find_clip, fingerprint, is_finished
from paras2s.errors import AudioError, ConfigError, checking
from paras2s.reward.judges.base import MAX_CLIP_S
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json
from paras2s.utils.progress import progress_bar

CHUNK_PROMPTS = 8
Item = FollowingItem | RoleContext


@dataclass(frozen=True)
class OutputSettings:
    """Systems by name and spec, items of each task, how dialogues are led, and where outputs are written."""

    systems: dict[str, str]
    items: dict[Task, list[Item]]
    out: Path
    cache_dir: Path
    turns: int
    seed: int = 42
    longest_answer_s: float = LONGEST_ANSWER_S


@dataclass(frozen=True)
class Made:
    """One output, its item, and the file to judge (None if there is nothing)."""

    item: Item
    output: Output
    path: Path | None


def judged_clip(item: Item, path: Path) -> Clip:
    """Return the clip that a judge gets: of a role-play the first minute."""
    clip = read_clip(path, max_duration_s=MAX_CLIP_S)
    return crop(clip) if isinstance(item, RoleContext) else clip


def make_outputs(settings: OutputSettings, name: str, console: Console, quiet: bool) -> dict[Task, list[Made]]:
    """Make one system's outputs of every task; outputs that an earlier run finished are read.

    Raises:
        ConfigError: an earlier run had other settings. BudgetError: the budget ended; paid answers stay in the cache.
    """
    spec = settings.systems[name]
    if is_finished(spec):
        return {task: finished_clips(Path(spec), name, items) for task, items in settings.items.items()}
    outputs: dict[Task, list[Made]] = {}
    speaker, key = None, output_key(settings, name)
    for task, items in settings.items.items():
        made = {item.id: load_made(settings, name, item, key, console) for item in items}
        missing = [item for item in items if made[item.id] is None]
        if missing:
            speaker = speaker or open_speaker(spec, settings.cache_dir, settings.longest_answer_s)
            made |= {entry.item.id: entry for entry in _make(settings, name, speaker, task, missing, key, (console, quiet))}
        outputs[task] = [output for output in made.values() if output is not None]
    return outputs


def output_key(settings: OutputSettings, name: str) -> Callable[[Item], str]:
    """Return the function that gives each output of a system its key, which changes with all that shapes the output."""
    system = fingerprint(settings.systems[name])

    def key(item: Item) -> str:
        shaping: list[Any] = [settings.seed, settings.longest_answer_s, SPEECH_VERSION, TEMPERATURE, TOP_P, MAX_TOKENS]
        shaping += [settings.turns] if isinstance(item, RoleContext) else []
        return key_of([system, shaping, item.id, _texts(item)])

    return key


def _texts(item: Item) -> tuple[str, str]:
    """Return the user's turns."""
    return item.prompts() if isinstance(item, RoleContext) else item.requests()


def _make(
    settings: OutputSettings,
    name: str,
    speaker: DialogueModel,
    task: Task,
    items: Sequence[Item],
    key: Callable[[Item], str],
    shown: tuple[Console, bool],
) -> list[Made]:
    texts = [text for item in items for text in _texts(item)]
    with progress_bar(shown[0], f"{task} prompts", len(texts), shown[1]) as bar:
        spoken = speak_prompts(texts, settings.cache_dir, bar.at)
    made: list[Made] = []
    turns = settings.turns if task == "role_play" else 2
    with progress_bar(shown[0], f"{name} {task} turns", len(items) * turns, shown[1]) as bar:
        for start in range(0, len(items), speaker.at_once):
            part = items[start : start + speaker.at_once]

            def at(done: int, _: int, start: int = start, size: int = len(part)) -> None:
                bar.at(start * turns + done * size, len(items) * turns)

            for item, dialogue in zip(part, _lead(speaker, part, spoken, settings, at), strict=True):
                made.append(_save(settings, name, item, key(item), dialogue))
    return made


def _lead(
    speaker: DialogueModel, items: Sequence[Item], spoken: Mapping[str, Clip], settings: OutputSettings, at: Progress
) -> list[Dialogue]:
    following = [item for item in items if isinstance(item, FollowingItem)]
    contexts = [item for item in items if isinstance(item, RoleContext)]
    if following:
        return follow(speaker, following, spoken, settings.seed, at)
    return role_play(speaker, contexts, spoken, settings.turns, settings.seed, at)


def _files(settings: OutputSettings, name: str, item: Item) -> tuple[Path, Path]:
    task = "role_play" if isinstance(item, RoleContext) else "following"
    folder = settings.out / "outputs" / name / task
    return folder / f"{item.id}.json", folder / f"{item.id}.wav"


def _save(settings: OutputSettings, name: str, item: Item, key: str, dialogue: Dialogue) -> Made:
    output, clip = output_of(item, name, key, dialogue)
    described, sound = _files(settings, name, item)
    if clip is not None:
        write_clip(sound, clip)
    # Last, as the sign that both are there.
    write_json(described, output.model_dump(mode="json", by_alias=True))
    return Made(item, output, sound if clip is not None else None)


def load_made(
    settings: OutputSettings, name: str, item: Item, key: Callable[[Item], str], console: Console | None = None
) -> Made | None:
    """Return the output of an earlier run; None if nothing judgeable is left of it, so that it is made again.

    A broken clip is named on the console.

    Raises:
        ConfigError: the earlier run had other settings. DataError: the file is broken.
    """
    described, sound = _files(settings, name, item)
    if not described.is_file():
        return None
    with checking(described, "output", advice="; delete it, it is made again"):
        output = Output.model_validate(read_json(described))
    if output.unscored is not None or not sound.is_file():
        return None
    if output.key != key(item):
        raise ConfigError(
            f"{described}: was made by another system, of another item or with other settings; give another --out, or delete it"
        )
    try:
        judged_clip(item, sound)
    except AudioError as error:
        if console:
            console.print(f"[yellow]warning[/yellow]: {escape(str(error))}; it is made again", markup=True, soft_wrap=True)
        return None
    return Made(item, output, sound)


def finished_clips(folder: Path, name: str, items: Sequence[Item]) -> list[Made]:
    """Read clips that another program made, ID.wav; a missing or broken clip is a reason. Raises ConfigError: none is there."""
    made = []
    for item in items:
        path = find_clip(folder, item.id)
        length_s, why = None, f"no clip: {folder / item.id}.wav is missing"
        if path is not None:
            try:
                length_s, why = judged_clip(item, path).duration_s, ""
            except AudioError as error:
                path, why = None, str(error)
        task: Task = "role_play" if isinstance(item, RoleContext) else "following"
        output = Output(
            item=item.id, system=name, task=task, key="", unscored=why or None, ended=None, duration_s=length_s, turns=()
        )
        made.append(Made(item, output, path))
    if all(output.path is None for output in made):
        raise ConfigError(f"{folder}: holds no clip that can be judged; expected files such as {items[0].id}.wav")
    return made


def speak_prompts(texts: Sequence[str], cache: Path, on_progress: Progress) -> dict[str, Clip]:
    """Return the user's turns in Piper's voice, each spoken once and cached by its text."""
    folder = cache / "spoken" / SPEECH_VERSION.replace("/", "-")
    paths = {text: folder / f"{key_of(text)}.wav" for text in texts}
    missing = [text for text, path in paths.items() if not path.is_file()]
    for start in range(0, len(missing), CHUNK_PROMPTS):
        part = missing[start : start + CHUNK_PROMPTS]
        for text, clip in zip(part, speak_plain(part), strict=True):
            write_clip(paths[text], clip)
        on_progress(len(paths) - len(missing) + start + len(part), len(paths))
    return {text: read_clip(path) for text, path in paths.items()}


def describe_outputs(made: Mapping[Task, Sequence[Made]]) -> dict[str, dict[str, Any]]:
    """Count facts about a system's outputs, beside their scores; a folder of clips has no turns.

    `short_minutes`: role-plays whose judged minute holds fewer turns than the paper's do. `shown_in_part`: turns that were
    answered without the full dialogue. `cut`: turns at their longest length.
    """
    described: dict[str, dict[str, Any]] = {}
    for task, ones in made.items():
        outputs = [entry.output for entry in ones]
        turns = [turn for output in outputs for turn in output.turns]
        judged = [output for output in outputs if output.unscored is None]
        described[task] = {
            "outputs": len(outputs),
            "to_judge": len(judged),
            "ended_early": sum(output.ended is not None for output in outputs),
            "turns": round(fmean(len(output.turns) for output in outputs), 2) if turns else None,
            "short_minutes": sum(
                bool(output.turns) and task == "role_play" and output.turns_in_clip < FEWEST_TURNS for output in judged
            ),
            "shown_in_part": sum(turn.left_out > 0 for turn in turns),
            "cut": sum(turn.cut for turn in turns),
        }
    return described
