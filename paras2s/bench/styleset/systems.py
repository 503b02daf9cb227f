"""Models that speak in dialogues: a checkpoint, or an audio chat endpoint; a folder of finished clips needs none.

Left out of the paper: nucleus sampling of checkpoints, which sample here from the full distribution, as they are trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paras2s.audio.clip import Clip
from paras2s.bench.styleset.dialogue import DialogueModel, ModelTurn
from paras2s.clients.audio_chat import AudioChat, AudioChatRequest, SpokenReply
from paras2s.configs.schema.endpoints import AudioChatConfig, load_audio_chat
from paras2s.errors import AudioError, PolicyError
from paras2s.policy.types import Prompt, SampleRequest, Turn
from paras2s.reward.judges.base import MAX_CLIP_S

# Sampling of the paper's models (appendix C).
TEMPERATURE, TOP_P, MAX_TOKENS = 1.0, 0.9, 4096
# Three answers of this length and the silence between them fill a minute.
LONGEST_ANSWER_S = 18.0
POLICY_BATCH = 8


class PolicyDialogue:
    """A checkpoint. Turns beyond its context are left out, the oldest behind the first, and each answer says how many."""

    at_once = POLICY_BATCH

    def __init__(self, policy: Any, longest_answer_s: float = LONGEST_ANSWER_S) -> None:
        from paras2s.rollout.engine import NativeEngine

        self._policy, self._engine = policy, NativeEngine(policy)
        self._steps = math.ceil(longest_answer_s * policy.spec.step_rate_hz)
        self._transcripts: dict[str, str] = {}

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[ModelTurn]:
        """Sample with the native engine; a policy that reads words beside the sound gets the ASR transcript."""
        from paras2s.policy.types import Sampling

        prompted: list[ModelTurn | tuple[Prompt, int]] = [self._prompt(turns) for turns in self._with_words(dialogues)]
        places = [index for index, prompt in enumerate(prompted) if not isinstance(prompt, ModelTurn)]
        prompts = [prompt for prompt in prompted if not isinstance(prompt, ModelTurn)]
        sampling = Sampling(TEMPERATURE, TEMPERATURE, self._steps)
        names = [str(index) for index in places]
        every = [[seeds[index]] for index in places]
        # An engine refuses to sample from no prompt at all.
        request = SampleRequest([prompt for prompt, _ in prompts], every, sampling) if prompts else None
        rollouts = [] if request is None else self._engine.generate(names, request)
        replies = [reply if isinstance(reply, ModelTurn) else ModelTurn() for reply in prompted]
        for index, (_, left_out), rollout in zip(places, prompts, rollouts, strict=True):
            text, wave, cut = rollout.texts[0], rollout.waves[0], rollout.finish_reason[0] == "length"
            clip = Clip(wave, rollout.sample_rate_hz) if len(wave) else None
            failed = None if len(wave) else "the policy ended its answer before it began"
            replies[index] = ModelTurn(text, clip, failed, left_out, cut)
        return replies

    def _prompt(self, turns: Sequence[Turn]) -> ModelTurn | tuple[Prompt, int]:
        """Return a prompt of as many turns as the policy takes, and the number left out; a failed reply if it takes none."""
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
        return ModelTurn(failed=why)

    def _with_words(self, dialogues: Sequence[Sequence[Turn]]) -> list[list[Turn]]:
        from paras2s.audio.asr import transcribe

        rate_hz = self._policy.spec.input_rate_hz
        keys = {id(turn): turn.clip.digest for turns in dialogues for turn in turns if turn.role == "user" and turn.clip}
        clips = {keys[id(turn)]: turn.clip for turns in dialogues for turn in turns if id(turn) in keys and turn.clip}
        # Each alone: clips that share a window change what is heard in one another.
        self._transcripts |= {key: transcribe([clip])[0].text for key, clip in clips.items() if key not in self._transcripts}
        return [
            [
                replace(turn, text=self._transcripts[keys[id(turn)]], clip=turn.clip.at(rate_hz))
                if turn.role == "user" and turn.clip
                else turn
                for turn in turns
            ]
            for turns in dialogues
        ]


def shortened(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Yield a dialogue of one instance, then without its oldest turns and answers, last the prompt that gives the role."""
    yield list(turns)
    for gone in range(2, len(turns) - 1, 2):
        yield [turns[0], *turns[1 + gone :]]
    if len(turns) > 1:
        yield [turns[-1]]


class EndpointDialogue:
    """A model behind OpenAI-compatible audio chat: the user's turns are sound, the model's own earlier ones are text."""

    def __init__(self, config: AudioChatConfig, cache: Path) -> None:
        self.at_once = config.concurrency
        self._chat = AudioChat(config, cache / "dialogues", TOP_P, MAX_TOKENS, MAX_CLIP_S)

    def reply(self, dialogues: Sequence[Sequence[Turn]], seeds: Sequence[int]) -> list[ModelTurn]:
        """Send all requests at once; a failed call is a reason, and so is an earlier answer without text."""
        requests = [_request(turns, seed) for turns, seed in zip(dialogues, seeds, strict=True)]
        replies = iter(self._chat.complete_all([request for request in requests if request is not None]))
        silent = ModelTurn(failed="an earlier answer came without a transcript, and an endpoint reads its answers as text")
        return [silent if request is None else _reply(next(replies)) for request in requests]


def _request(turns: Sequence[Turn], seed: int) -> AudioChatRequest | None:
    if any(turn.role == "assistant" and not turn.text for turn in turns):
        return None
    shown = [turn.text if turn.role == "assistant" else turn.clip for turn in turns]
    return AudioChatRequest(tuple(part for part in shown if part is not None), seed=seed)


def _reply(turn: SpokenReply) -> ModelTurn:
    return ModelTurn(turn.text, turn.clip, turn.failed, cut=turn.cut)


def open_speaker(spec: str, cache: Path, longest_answer_s: float) -> DialogueModel:
    """Return a model that speaks, by its spec: an endpoint's YAML, or a checkpoint's folder."""
    path = Path(spec)
    if path.is_file():
        return EndpointDialogue(load_audio_chat(path), cache)
    from paras2s.policy.registry import load_policy

    return PolicyDialogue(load_policy(path), longest_answer_s)
