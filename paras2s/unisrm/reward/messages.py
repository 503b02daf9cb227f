"""The prompt of a task for the thinker: the instruction as system prompt, then the inputs, each below its label.

Alphabet: N clips of an item.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.configs.schema.unisrm import ThinkerConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.judges.prompts import PLACEHOLDER, as_data, read_prompt
from paras2s.reward.reward_model.omni import AUDIO, AUDIO_BOS, AUDIO_EOS, RATE_HZ, audio_tokens
from paras2s.unisrm.reward.reply import ASPECTS, PARAGRAPH, SUMMARY, heading, marker, total_prefix
from paras2s.unisrm.reward.tasks import ASPECT_DESCRIPTIONS, TASKS, Task, TaskId

log = logging.getLogger(__name__)
HISTORY = re.compile(r"history_([1-9]\d*)")
# Placeholder of every clip for judges that get only texts: of one length, so that no clip's length is left.
SILENCE = Clip(np.zeros(RATE_HZ, dtype=np.float32), RATE_HZ)

# The layout of `chat_text` as a chat template, by which a server makes the same tokens of the parts of a message.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}{%- for part in message['content'] -%}"
    f"{{{{- part['text'] if part['type'] == 'text' else '{AUDIO_BOS}{AUDIO}{AUDIO_EOS}' -}}}}"
    "{%- endfor -%}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def system_prompt(task_id: TaskId, reasoning: bool = True, folder: Path | None = None) -> str:
    """Return a task's instruction with the reply format; `folder`/T1.md replaces ours. Raises ConfigError: no {{format}}."""
    return instruction(task_id, reply_format(TASKS[task_id], reasoning), folder)


def instruction(task_id: TaskId, wanted_format: str, folder: Path | None = None) -> str:
    """Return a task's instruction with a reply's format in words. Raises ConfigError: it lacks {{format}}, or is unreadable."""
    template = read_prompt(task_id, folder, "paras2s.unisrm.reward")
    if PLACEHOLDER.findall(template) != ["format"]:
        raise ConfigError(f"prompt {task_id!r} must hold {{{{format}}}} once, and no other placeholder")
    return PLACEHOLDER.sub(lambda _: wanted_format, template)


def reply_format(task: Task, reasoning: bool = True) -> str:
    """Return the format of a task's reply in words (Figures 3 to 6)."""
    if task.pairwise:
        answer = "<answer>Speech A is better</answer>"
        note = 'Between <answer> and </answer> stands "Speech A is better" or "Speech B is better", and nothing else.'
    else:
        answer = "<answer>" + " ".join(f"{key}=SCORE;" for key in task.keys) + "</answer>"
        note = "Between <answer> and </answer> stand the scores alone."
    quality = [
        ASPECTS,
        *(f"{name}: WHAT YOU HEAR" for name in ASPECT_DESCRIPTIONS),
        PARAGRAPH,
        "one paragraph about all aspects",
    ]
    think = ["<think>", *(_pair_lines(task) if task.pairwise else quality), "</think>"] if reasoning else []
    return "\n".join(["Reply in exactly this form, with nothing before or after it:", *think, answer, note])


def _pair_lines(task: Task) -> list[str]:
    scores = [f"{marker(task, number)} score=SCORE/{task.high}; explanation: WHY" for number in range(len(task.dimensions))]
    total = " = " + "+".join(["SCORE"] * len(scores)) + " = TOTAL"
    sides = [line for side in ("A", "B") for line in (heading(task, side), *scores, total_prefix(task, side) + total)]
    return [*sides, SUMMARY, "- two to four sentences: how they differ, and why the winner wins"]


def clip_order(task_id: TaskId, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of an item's N clips in the prompt's order. Raises JudgeError: a missing, unknown or misnumbered one."""
    task, given = TASKS[task_id], set(names)
    turns = sorted((name for name in given if HISTORY.fullmatch(name)), key=lambda name: int(name.partition("_")[2]))
    context = [part for name in task.clips for part in (turns if name == "history" else [name])]
    order = (*context, *task.candidates)
    if set(order) != given:
        raise JudgeError(
            f"{task_id}: needs the clips {', '.join((*task.clips, *task.candidates))}; got {', '.join(sorted(given))}"
        )
    if "history" in task.clips and turns != [f"history_{number}" for number in range(1, len(turns) + 1)]:
        raise JudgeError(f"{task_id}: the turns of the history are history_1, history_2 and so on; got {', '.join(turns)}")
    if "history" in task.clips and not turns:
        raise JudgeError(f"{task_id}: there is no history; give at least history_1")
    return order


def fitted_clip(name: str, clip: Clip, config: ThinkerConfig) -> Clip:
    """Return the clip at 16 kHz, cut where the config says so. Raises JudgeError: it is longer than `max_audio_s`."""
    clip, limit_s = clip.at(RATE_HZ), config.max_audio_s
    if clip.duration_s <= limit_s:
        return clip
    if config.too_long == "refuse":
        raise JudgeError(f"{name} lasts {clip.duration_s:.1f} s, at most {limit_s:g} s are read; thinker.too_long: cut")
    log.warning("%s lasts %.1f s and is cut to %g s", name, clip.duration_s, limit_s)
    return replace(clip, samples=clip.samples[: int(limit_s * RATE_HZ)])


def user_parts(task_id: TaskId, texts: Mapping[str, str], clip_samples: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Return the user's message as N pairs of text and the next clip's name. Raises JudgeError: an input is wrong."""
    task = TASKS[task_id]
    if set(texts) != set(task.texts):
        raise JudgeError(
            f"{task_id}: needs the texts {', '.join(task.texts) or '(none)'}; got {', '.join(sorted(texts)) or 'none'}"
        )
    order = clip_order(task_id, clip_samples)
    if short := [name for name in order if audio_tokens(clip_samples[name]) < 1]:
        raise JudgeError(f"{task_id}: {short[0]} is too short to be understood ({clip_samples[short[0]]} samples at 16 kHz)")
    above = "".join(f"{as_data(name, texts[name])}\n" for name in task.texts)
    return tuple(((above if number == 0 else "\n") + f"{label(name)}\n", name) for number, name in enumerate(order))


def chat_text(task_id: TaskId, system: str, texts: Mapping[str, str], clip_samples: Mapping[str, int]) -> str:
    """Return the full prompt with each clip's number of audio tokens, by its samples at 16 kHz. Raises JudgeError."""
    user = "".join(
        f"{before}{AUDIO_BOS}{AUDIO * audio_tokens(clip_samples[name])}{AUDIO_EOS}"
        for before, name in user_parts(task_id, texts, clip_samples)
    )
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def label(name: str) -> str:
    """Return the line above a clip."""
    if match := HISTORY.fullmatch(name):
        return f"[Turn {match[1]}]"
    return {"prompt_speech": "[Prompt Speech]", "speech_a": "[Speech A]", "speech_b": "[Speech B]", "speech": "[Speech]"}[name]
