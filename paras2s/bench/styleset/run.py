"""`paras2s bench styleset`: dialogues are led, kept, and judged by models that listen (Chiang et al., 2025).

Who speaks: a checkpoint, an audio chat endpoint, or a folder of finished clips (other people's systems, recordings of people).
Left out of the paper: its items, which are its authors' and IEMOCAP's, and nucleus sampling of checkpoints, which sample here
from all they consider possible, as they are trained.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.bench.bias.run import NOT_REACHED
from paras2s.bench.styleset.dialogue import (
    FEWEST_TURNS,
    LONGEST_S,
    Dialogue,
    DialogueModel,
    Output,
    Reply,
    crop,
    follow,
    output_of,
    role_play,
)
from paras2s.bench.styleset.items import VERDICT_TASKS, FollowingItem, RoleContext, Task
from paras2s.bench.styleset.report import StyleRow, label_of, row_of, save_rows
from paras2s.bench.systems import SUFFIXES
from paras2s.clients.audio_chat import RATE_HZ, AudioChat, AudioChatRequest, SpokenTurn
from paras2s.clients.chat import Bill
from paras2s.configs.schema.run import AudioChatConfig, load_audio_chat
from paras2s.data_gen.tts.piper_world import VERSION as SPEECH_VERSION
from paras2s.data_gen.tts.piper_world import speak_plain
from paras2s.errors import AudioError, BudgetError, ConfigError, DataError, PolicyError
from paras2s.policy.registry import is_checkpoint
from paras2s.policy.types import Prompt, Turn
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.types import Unscored, Verdict
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json
from paras2s.utils.progress import progress_bar

# How the paper has its models speak (appendix C).
TEMPERATURE, TOP_P, MAX_TOKENS, SEED = 1.0, 0.9, 4096, 42
# Three answers of this length and the silence between them fill a minute.
LONGEST_ANSWER_S = 18.0
# Of a recording of people, before it is cropped.
MAX_CLIP_S = 600.0
POLICY_BATCH = 8
CHUNK_PROMPTS = 8
Item = FollowingItem | RoleContext
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class StyleSetOptions:
    """What is benched: systems by name and how each is reached, items of each task, and where outputs and rows go."""

    systems: dict[str, str]
    items: dict[Task, list[Item]]
    out: Path
    cache_dir: Path
    turns: int
    seed: int = SEED
    longest_answer_s: float = LONGEST_ANSWER_S


# Who speaks.


class PolicyDialogue:
    """A checkpoint. What does not fit its context is left out: the oldest turns behind the first, or, for a policy that knows
    single questions only, all but the last; how many is said with each answer.
    """

    at_once = POLICY_BATCH

    def __init__(self, policy: Any, longest_answer_s: float = LONGEST_ANSWER_S) -> None:
        from paras2s.rollout.engine import NativeEngine

        self._policy, self._engine = policy, NativeEngine(policy)
        self._steps = math.ceil(longest_answer_s * policy.spec.step_rate_hz)
        self._heard: dict[str, str] = {}

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[Reply]:
        """By the native sampler; a policy that reads words beside the sound gets what a recogniser heard."""
        from paras2s.policy.types import Sampling

        found: list[Reply | tuple[Prompt, int]] = [self._prompt(one) for one in self._with_words(dialogues)]
        places = [place for place, one in enumerate(found) if not isinstance(one, Reply)]
        prompts = [one for one in found if not isinstance(one, Reply)]
        sampling = Sampling(TEMPERATURE, TEMPERATURE, self._steps)
        names = [str(place) for place in places]
        every = [[seeds[place]] for place in places]
        # An engine refuses to sample from no prompt at all.
        rollouts = self._engine.generate(names, [prompt for prompt, _ in prompts], 1, sampling, every) if prompts else []
        replies = [one if isinstance(one, Reply) else Reply() for one in found]
        for place, (_, left_out), rollout in zip(places, prompts, rollouts, strict=True):
            text, wave, cut = rollout.texts[0], rollout.waves[0], rollout.finish_reason[0] == "length"
            clip = Clip(wave, rollout.sample_rate_hz) if len(wave) else None
            failed = None if len(wave) else "the policy ended its answer before it began"
            replies[place] = Reply(text, clip, failed, left_out, cut)
        return replies

    def _prompt(self, turns: Sequence[Turn]) -> Reply | tuple[Prompt, int]:
        """The dialogue, or as much of it as the policy takes; a failed reply where that is nothing."""
        from paras2s.rollout.engine import check_lengths

        why = ""
        for shown in shortened(turns):
            try:
                prompt = self._policy.encode_prompt(shown)
                check_lengths(["dialogue"], [prompt], self._steps, self._policy.spec.context_steps)
            except (PolicyError, AudioError) as error:
                why = str(error)
            else:
                return prompt, len(turns) - len(shown)
        return Reply(failed=why)

    def _with_words(self, dialogues: Sequence[Sequence[Turn]]) -> list[list[Turn]]:
        from paras2s.audio.asr import transcribe

        rate_hz = self._policy.spec.input_rate_hz
        keys = {id(turn): _digest(turn.clip) for one in dialogues for turn in one if turn.role == "user" and turn.clip}
        clips = {keys[id(turn)]: turn.clip for one in dialogues for turn in one if id(turn) in keys and turn.clip}
        # Each alone: clips that share a window change what is heard in one another.
        self._heard |= {key: transcribe([clip])[0].text for key, clip in clips.items() if key not in self._heard}
        return [
            [
                replace(turn, text=self._heard[keys[id(turn)]], clip=turn.clip.at(rate_hz))
                if turn.role == "user" and turn.clip
                else turn
                for turn in one
            ]
            for one in dialogues
        ]


def _digest(clip: Clip) -> str:
    return hashlib.sha256(clip.samples.tobytes()).hexdigest()


def shortened(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """A dialogue of one instance, then with fewer and fewer of its turns: the oldest go first, an answer with what it was
    answered by, and the prompt, which says what to do, goes last. The turn to be answered always stays.
    """
    yield list(turns)
    for gone in range(2, len(turns) - 1, 2):
        yield [turns[0], *turns[1 + gone :]]
    if len(turns) > 1:
        yield [turns[-1]]


class EndpointDialogue:
    """A model behind OpenAI-compatible audio chat: it hears the user's turns, and reads its own earlier ones as text."""

    def __init__(self, config: AudioChatConfig, cache: Path) -> None:
        self.at_once = config.concurrency
        self._chat = AudioChat(config, cache / "dialogues", TOP_P, MAX_TOKENS, MAX_CLIP_S)

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[Reply]:
        """All at once; a call that fails for good is a reason, and so is an earlier answer that has no text."""
        asked = [_sayable(turns, seed) for turns, seed in zip(dialogues, seeds, strict=True)]
        said = iter(self._chat.say_all([one for one in asked if one is not None]))
        silent = Reply(failed="an earlier answer came without a transcript, and an endpoint reads its answers as text")
        return [silent if one is None else _reply(next(said)) for one in asked]


def _sayable(turns: Sequence[Turn], seed: int) -> AudioChatRequest | None:
    if any(turn.role == "assistant" and not turn.text for turn in turns):
        return None
    heard = [turn.text if turn.role == "assistant" else turn.clip for turn in turns]
    return AudioChatRequest(tuple(one for one in heard if one is not None), seed=seed)


def _reply(said: SpokenTurn) -> Reply:
    return Reply(said.text, said.clip, said.failed, cut=said.cut)


def open_speaker(spec: str, asked: StyleSetOptions) -> DialogueModel:
    """A system that is to speak, by its spec: an endpoint's YAML, or a checkpoint's folder."""
    path = Path(spec)
    if path.is_file():
        return EndpointDialogue(load_audio_chat(path), asked.cache_dir)
    from paras2s.policy.registry import load_policy

    return PolicyDialogue(load_policy(path), asked.longest_answer_s)


def is_finished(spec: str) -> bool:
    """Whether a system is a folder of finished clips."""
    return Path(spec).is_dir() and not is_checkpoint(Path(spec))


def fingerprint(spec: str) -> list[Any]:
    """What tells one system from another: which model an endpoint is, or a folder's files by name, size and time.

    How the path was typed is no part of it.

    Raises:
        ConfigError: it is no system.
    """
    path = Path(spec)
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        return [load_audio_chat(path).model_dump(include={"base_url", "model", "voice", "system", "temperature"})]
    if not path.is_dir():
        raise ConfigError(f"--system: {spec!r} is no folder and no YAML of an endpoint")
    files = sorted(one for one in path.iterdir() if one.is_file())
    return [[one.name, one.stat().st_size, one.stat().st_mtime_ns] for one in files]


# What they say.


@dataclass(frozen=True)
class Made:
    """One output, the item it is of, and the file that is judged (None: there is nothing)."""

    item: Item
    output: Output
    path: Path | None


def _judged_clip(item: Item, path: Path) -> Clip:
    clip = read_clip(path, max_duration_s=MAX_CLIP_S)
    return crop(clip) if isinstance(item, RoleContext) else clip


def make_outputs(asked: StyleSetOptions, name: str, console: Console, quiet: bool) -> dict[Task, list[Made]]:
    """One system's outputs, of every task; what an earlier run finished is not made again.

    Raises:
        ConfigError: an earlier run was asked otherwise. BudgetError: the budget ended; what was paid for is kept.
    """
    spec = asked.systems[name]
    if is_finished(spec):
        return {task: finished_clips(Path(spec), name, items) for task, items in asked.items.items()}
    found: dict[Task, list[Made]] = {}
    speaker, key = None, _key(asked, name)
    for task, items in asked.items.items():
        kept = {item.id: load_made(asked, name, item, key, console) for item in items}
        missing = [item for item in items if kept[item.id] is None]
        if missing:
            speaker = speaker or open_speaker(spec, asked)
            kept |= {one.item.id: one for one in _make(asked, name, speaker, task, missing, key, (console, quiet))}
        found[task] = [one for one in kept.values() if one is not None]
    return found


def _key(asked: StyleSetOptions, name: str) -> Callable[[Item], str]:
    system = fingerprint(asked.systems[name])

    def key(item: Item) -> str:
        settings: list[Any] = [asked.seed, asked.longest_answer_s, SPEECH_VERSION, TEMPERATURE, TOP_P, MAX_TOKENS]
        settings += [asked.turns] if isinstance(item, RoleContext) else []
        return key_of([system, settings, item.id, _texts(item)])

    return key


def _texts(item: Item) -> tuple[str, str]:
    """What the user says."""
    return item.prompts() if isinstance(item, RoleContext) else item.requests()


def _make(
    asked: StyleSetOptions,
    name: str,
    speaker: DialogueModel,
    task: Task,
    items: Sequence[Item],
    key: Callable[[Item], str],
    shown: tuple[Console, bool],
) -> list[Made]:
    texts = [text for item in items for text in _texts(item)]
    with progress_bar(shown[0], f"{task} prompts", len(texts), shown[1]) as bar:
        spoken = speak_prompts(texts, asked.cache_dir, bar.at)
    found: list[Made] = []
    turns = asked.turns if task == "role_play" else 2
    with progress_bar(shown[0], f"{name} {task} turns", len(items) * turns, shown[1]) as bar:
        for start in range(0, len(items), speaker.at_once):
            part = items[start : start + speaker.at_once]

            def at(done: int, _: int, start: int = start, size: int = len(part)) -> None:
                bar.at(start * turns + done * size, len(items) * turns)

            for item, dialogue in zip(part, _lead(speaker, part, spoken, asked, at), strict=True):
                found.append(_keep(asked, name, item, key(item), dialogue))
    return found


def _lead(
    speaker: DialogueModel, items: Sequence[Item], spoken: Mapping[str, Clip], asked: StyleSetOptions, at: Progress
) -> list[Dialogue]:
    following = [item for item in items if isinstance(item, FollowingItem)]
    contexts = [item for item in items if isinstance(item, RoleContext)]
    if following:
        return follow(speaker, following, spoken, asked.seed, at)
    return role_play(speaker, contexts, spoken, asked.turns, asked.seed, at)


def _files(asked: StyleSetOptions, name: str, item: Item) -> tuple[Path, Path]:
    task = "role_play" if isinstance(item, RoleContext) else "following"
    folder = asked.out / "outputs" / name / task
    return folder / f"{item.id}.json", folder / f"{item.id}.wav"


def _keep(asked: StyleSetOptions, name: str, item: Item, key: str, dialogue: Dialogue) -> Made:
    output, clip = output_of(item, name, key, dialogue)
    described, sound = _files(asked, name, item)
    if clip is not None:
        write_clip(sound, clip)
    # Last, as the sign that both are there.
    write_json(described, output.model_dump(mode="json"))
    return Made(item, output, sound if clip is not None else None)


def load_made(
    asked: StyleSetOptions, name: str, item: Item, key: Callable[[Item], str], console: Console | None = None
) -> Made | None:
    """What an earlier run kept of an item; None where it kept nothing that can be judged, which is tried again.

    A clip that is broken is named on the console.

    Raises:
        ConfigError: it was asked otherwise. DataError: the file is broken.
    """
    described, sound = _files(asked, name, item)
    if not described.is_file():
        return None
    try:
        output = Output.model_validate(read_json(described))
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"])) or "output"
        raise DataError(f"{described}: {place}: {wrong['msg']}; delete it, it is made again") from error
    if output.unscored is not None or not sound.is_file():
        return None
    if output.key != key(item):
        raise ConfigError(
            f"{described}: was made by another system, of another item or with other settings; give another --out, or delete it"
        )
    try:
        _judged_clip(item, sound)
    except AudioError as error:
        if console:
            console.print(f"[yellow]warning[/yellow]: {escape(str(error))}; it is made again", highlight=False, soft_wrap=True)
        return None
    return Made(item, output, sound)


def finished_clips(folder: Path, name: str, items: Sequence[Item]) -> list[Made]:
    """Clips that somebody else made, ID.wav; one that is missing or broken is a reason.

    Raises:
        ConfigError: none is there.
    """
    found = []
    for item in items:
        path = next((one for suffix in SUFFIXES if (one := folder / f"{item.id}{suffix}").is_file()), None)
        length_s, why = None, f"no clip: {folder / item.id}.wav is missing"
        if path is not None:
            try:
                length_s, why = _judged_clip(item, path).duration_s, ""
            except AudioError as error:
                path, why = None, str(error)
        task: Task = "role_play" if isinstance(item, RoleContext) else "following"
        output = Output(
            item=item.id, system=name, task=task, key="", unscored=why or None, ended=None, duration_s=length_s, said=()
        )
        found.append(Made(item, output, path))
    if all(one.path is None for one in found):
        raise ConfigError(f"{folder}: holds no clip that can be judged; expected files such as {items[0].id}.wav")
    return found


def speak_prompts(texts: Sequence[str], cache: Path, on_progress: Progress) -> dict[str, Clip]:
    """The user's turns in Piper's voice, each spoken once and kept by its text."""
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
    """What a system's outputs are like, beside their scores; a folder of clips says nothing of turns.

    `short_minutes`: role-plays whose judged minute holds fewer turns than the paper's do. `shown_in_part`: turns that were
    answered without the whole dialogue. `cut`: turns at their longest length.
    """
    found: dict[str, dict[str, Any]] = {}
    for task, ones in made.items():
        outputs = [one.output for one in ones]
        said = [turn for one in outputs for turn in one.said]
        judged = [one for one in outputs if one.unscored is None]
        found[task] = {
            "outputs": len(outputs),
            "to_judge": len(judged),
            "ended_early": sum(one.ended is not None for one in outputs),
            "turns": round(fmean(len(one.said) for one in outputs), 2) if said else None,
            "short_minutes": sum(bool(one.said) and task == "role_play" and one.heard < FEWEST_TURNS for one in judged),
            "shown_in_part": sum(turn.left_out > 0 for turn in said),
            "cut": sum(turn.cut for turn in said),
        }
    return found


# What judges say of it.


@dataclass(frozen=True)
class OpenJudge:
    """One judge for one task, and at which temperature it was asked for (None: its own)."""

    name: str
    temperature: float | None
    judge: AudioJudge

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return label_of(self.name, self.temperature)


def open_judges(
    specs: Sequence[str], tasks: Sequence[Task], temperatures: Sequence[float], overrides: dict[str, Any]
) -> list[OpenJudge]:
    """Every judge for every task at every temperature.

    Raises:
        ConfigError: a judge's config is wrong, or two judges cannot be told apart.
    """
    from paras2s.data_gen.tts.signal_voice import signal_voice
    from paras2s.reward.judges.registry import open_audio_judges

    wanted = [name for task in tasks for name in VERDICT_TASKS[task]]
    opened: list[tuple[str, float | None, list[AudioJudge]]] = []
    own: list[float | None] = [None]
    for spec in specs:
        for temperature in temperatures or own:
            changed = {} if temperature is None else {"llm.temperature": temperature}
            opened.append((spec, temperature, open_audio_judges(spec, overrides | changed, tasks=wanted, voice=signal_voice())))
    # Two configs of one model are told apart by their names.
    models = {(judges[0].name, spec) for spec, _, judges in opened}
    shared = {name for name, _ in models if sum(name == other for other, _ in models) > 1}
    found = [
        OpenJudge(f"{one.name} ({Path(spec).stem})" if one.name in shared else one.name, temperature, one)
        for spec, temperature, judges in opened
        for one in judges
    ]
    labels = [(one.name, one.temperature, one.judge.task.name) for one in found]
    if len(set(labels)) < len(labels):
        raise ConfigError("--judge: two of one model and one file name, or a temperature twice; they could not be told apart")
    return found


def judge_outputs(
    judges: Sequence[OpenJudge], systems: Mapping[str, Mapping[Task, Sequence[Made]]], path: Path, console: Console, quiet: bool
) -> tuple[list[StyleRow], BudgetError | None]:
    """A row for every output, judge and task, written as they come; and the error, if a budget ended before they did.

    After that no judge is asked any more: what was not reached has a row that says so.
    """
    rows: list[StyleRow] = []
    stopped: BudgetError | None = None
    for opened in judges:
        judge, task = opened.judge, opened.judge.task.name
        for name, outputs in systems.items():
            made = [one for kind, ones in outputs.items() if task in VERDICT_TASKS[kind] for one in ones]
            found: list[Verdict | Unscored | BudgetError] = []
            if stopped is None:
                with progress_bar(console, f"{name}: {task}, {opened.label}", None, quiet) as bar:
                    found = judge.score_batch([_exchange(one.item, one.path) for one in made if one.path], bar.at)
            verdicts = iter(found)
            for one in made:
                verdict: Verdict | Unscored | BudgetError = Unscored(opened.name, one.output.unscored or "nothing to judge")
                if one.path:
                    verdict = next(verdicts, Unscored(opened.name, NOT_REACHED))
                if isinstance(verdict, BudgetError):
                    stopped, verdict = stopped or verdict, Unscored(opened.name, NOT_REACHED)
                rows.append(row_of(one.item.id, name, task, opened.name, opened.temperature, verdict))
            save_rows(path, rows)
    return rows, stopped


def _exchange(item: Item, path: Path) -> Exchange:
    return Exchange(Utterance(), _judged_clip(item, path), task_inputs=item.told())


def estimate(asked: StyleSetOptions, judges: Sequence[OpenJudge]) -> dict[str, Any]:
    """What is still to be made and what judging costs at most, without a call: a clip not made yet counts at its longest."""
    longest = {
        task: Clip(np.zeros(round(RATE_HZ * length_s), dtype=np.float32), RATE_HZ)
        for task, length_s in (("role_play", LONGEST_S), ("following", asked.longest_answer_s))
    }
    systems: dict[str, Any] = {}
    clips: dict[Task, list[Exchange]] = {task: [] for task in asked.items}
    for name, spec in asked.systems.items():
        key = _key(asked, name)
        systems[name] = {}
        for task, items in asked.items.items():
            made: Sequence[Made | None]
            if is_finished(spec):
                made = finished_clips(Path(spec), name, items)
            else:
                made = [load_made(asked, name, one, key) for one in items]
            there = [one for one in made if one is not None]
            new = len(items) - len(there)
            systems[name][task] = {
                "items": len(items),
                "kept": len(there),
                "replies_at_most": new * (asked.turns if task == "role_play" else 2),
            }
            for item, one in zip(items, made, strict=True):
                if one is None:
                    clips[task].append(Exchange(Utterance(), longest[task], task_inputs=item.told()))
                elif one.path:
                    clips[task].append(_exchange(item, one.path))
    priced: list[dict[str, Any]] = []
    total = Bill()
    for opened in judges:
        judge, verdict_task = opened.judge, opened.judge.task.name
        exchanges = [one for task, found in clips.items() if verdict_task in VERDICT_TASKS[task] for one in found]
        bill = judge.client.estimate(judge.requests(exchanges))
        total += bill
        priced.append({"judge": opened.label, "task": verdict_task, **asdict(bill)})
    return {"systems": systems, "judges": priced, **asdict(total)}
