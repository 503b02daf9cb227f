"""`SDiaRewardJudge`: SDiaReward (arXiv 2603.14889, MM-Speech/SDiaReward), a reward model of spoken dialogues that hears them.

The thinker of Qwen2.5-Omni, the mean of its last states, and a linear head, trained by pairs (Bradley-Terry): its reward has
no scale of its own. Two answers are compared by their rewards. A single one is scored only where a `fit` says which rewards
are a 1 and a 5. A dialogue has any number of turns, each with its words, its sound, or both, in the layout of the makers'
processor; `prompts/sdiareward.md` is their system prompt, letter by letter, since the head was trained behind it.

Left out: other poolings, pictures. Alphabet: L tokens, A mel frames.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Progress, Scored, Utterance, preference_of, sides_of
from paras2s.reward.judges.votes import prefer
from paras2s.reward.reward_model.omni import AUDIO, AUDIO_BOS, AUDIO_EOS, RATE_HZ, audio_tokens, mel_extractor, mel_features
from paras2s.types import Unscored, Verdict
from paras2s.utils.device import found_device
from paras2s.utils.io import reading, sample_digest

PROMPT = resources.files("paras2s.reward").joinpath("prompts/sdiareward.md").read_text(encoding="utf-8")
START, END = "<|im_start|>", "<|im_end|>"
LOWEST, HIGHEST = 1.0, 5.0
# transformers 4 wrote the thinker's parts under these names, and 5 renames them for its own class alone.
_RENAMED = {
    r"^audio_tower": "model.audio_tower",
    r"^visual": "model.visual",
    r"^model(?!\.(language_model|visual|audio_tower))": "model.language_model",
}

# A speaker, "user" or "assistant", and what is said.
Turn = tuple[str, Utterance]


def network_class() -> Any:
    """Return the thinker of transformers with the makers' head, under the names of their checkpoint."""
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    class SDiaReward(Qwen2_5OmniThinkerForConditionalGeneration):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.score_head = nn.Linear(config.text_config.hidden_size, 1, bias=False)
            self.post_init()  # type: ignore[no-untyped-call]

    return SDiaReward


class SDiaRewardJudge(Judge):
    """Scores or compares the last turn of a spoken dialogue, in the context of the turns before it."""

    name = "sdiareward"
    scores_alone = True
    reads_history = True

    def __init__(
        self,
        weights: str,
        base: str | None = None,
        fit: Sequence[float] | None = None,
        device: str = "auto",
        max_audio_s: float = 120.0,
    ) -> None:
        """Name the weights; they are read when something is judged.

        Args:
            weights: folder of the checkpoint.
            base: folder with the tokenizer of Qwen2.5-Omni, where the checkpoint has none.
            fit: the rewards that are a 1 and a 5, as fitted on labelled answers; what lies between is linear.
            device: cpu, cuda; auto: a GPU if available.
            max_audio_s: longest clip.

        Raises:
            ConfigError: no such folder, or a fit that does not rise.
        """
        self.weights, self.tokens_from = Path(weights).expanduser(), Path(base or weights).expanduser()
        if not (self.weights / "config.json").is_file():
            raise ConfigError(f"sdiareward: weights: {weights} holds no config.json; name the folder of the checkpoint")
        if fit is not None and (len(fit) != 2 or not fit[0] < fit[1]):
            raise ConfigError(f"sdiareward: fit: {list(fit)} must be two rewards, of a 1 and of a 5, the first one lower")
        self.fit = None if fit is None else (float(fit[0]), float(fit[1]))
        self.device = found_device(device)
        self.max_audio_s = max_audio_s
        self.prompt_hash = hashlib.sha256(PROMPT.encode()).hexdigest()[:16]
        digest = hashlib.sha256(json.dumps([self.fit, max_audio_s]).encode())
        for file in sorted(self.weights.glob("*.safetensors")):
            digest.update(file.name.encode() + sample_digest(file))
        self.version = digest.hexdigest()[:12]

    # -- the network --------------------------------------------------------------------------------------------------

    @cached_property
    def network(self) -> Any:
        """The network with its weights, as stored. Raises JudgeError: they cannot be read, or are not SDiaReward's."""
        with reading(self.weights, kind=JudgeError):
            network, report = network_class().from_pretrained(
                self.weights, dtype="auto", output_loading_info=True, local_files_only=True, key_mapping=_RENAMED
            )
        # Other poolings have weights of their own.
        wrong = sorted({*report["missing_keys"], *report["unexpected_keys"]})
        if wrong:
            raise JudgeError(f"{self.weights}: is no SDiaReward with mean pooling; other tensors: {', '.join(wrong[:5])}")
        return network.eval().requires_grad_(False).to(self.device)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of Qwen2.5-Omni. Raises JudgeError: it is missing."""
        from transformers import AutoTokenizer

        with reading(self.tokens_from, "no tokenizer", "; name Qwen2.5-Omni as base", JudgeError):
            return AutoTokenizer.from_pretrained(str(self.tokens_from), local_files_only=True)

    @cached_property
    def _mel(self) -> Any:
        return mel_extractor()

    def inputs(self, turns: Sequence[Turn]) -> dict[str, Tensor]:
        """Return the network's inputs of one dialogue: ids and mask [1, L], and the clips' mel features [n, 128, A] with masks.

        What looks like a special token in a speaker's words stays words.

        Raises:
            JudgeError: a turn is empty, or its clip too short or too long.
        """
        ids, clips = self._message("system", PROMPT, None), []
        for role, said in turns:
            if said.clip is None and not said.text:
                raise JudgeError(f"the {role}'s turn has neither words nor sound")
            samples = None if said.clip is None else said.clip.at(RATE_HZ).samples
            if samples is not None:
                duration_s = len(samples) / RATE_HZ
                if audio_tokens(len(samples)) < 1 or duration_s > self.max_audio_s:
                    raise JudgeError(f"the {role}'s clip lasts {duration_s:.3f} s; 0.03 to {self.max_audio_s:.0f} s are read")
                clips.append(samples)
            ids += self._message(role, said.text or "", None if samples is None else len(samples))
        made = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if clips:
            features, mask = mel_features(self._mel, clips)
            made |= {"input_features": features.to(self.network.dtype), "feature_attention_mask": mask}
        return {name: value.to(self.device) for name, value in made.items()}

    def _message(self, role: str, text: str, samples: int | None) -> list[int]:
        def special(*names: str) -> list[int]:
            return [int(self.tokenizer.convert_tokens_to_ids(name)) for name in names]

        def words(text: str) -> list[int]:
            return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

        sound = [] if samples is None else special(AUDIO_BOS, *[AUDIO] * audio_tokens(samples), AUDIO_EOS)
        return [*special(START), *words(f"{role}\n{text}"), *sound, *special(END), *words("\n")]

    @torch.inference_mode()
    def reward(self, turns: Sequence[Turn]) -> float:
        """Return a dialogue's raw reward, to be compared only after the same turns. Raises JudgeError: see `inputs`, or NaN."""
        states = self.network.model(**self.inputs(turns), use_cache=False).last_hidden_state
        # In half precision rewards near 7 would be 0.03 apart or equal.
        value = float(states.float().mean(1)[0] @ self.network.score_head.weight[0].float())
        if value != value or value in (float("inf"), float("-inf")):
            raise JudgeError(f"the reward is {value}")
        return value

    # -- judging ------------------------------------------------------------------------------------------------------

    def _reward_of(self, exchange: Exchange) -> float | Unscored:
        question, answer = ("user", exchange.question), ("assistant", Utterance(exchange.answer, exchange.words))
        turns = [*exchange.question.history, question, answer]
        try:
            return self.reward(turns)
        except JudgeError as error:
            return Unscored(self.name, str(error))

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers from 1 to 5 by the fit, unreadable ones Unscored; `reply` has the raw reward. Raises ConfigError."""
        if self.fit is None:
            raise ConfigError(
                "sdiareward: fit: its rewards have no scale, so it only compares; set the rewards that are a 1 and a 5 "
                "(options.fit: [low, high]), as measured on labelled answers"
            )
        low, high = self.fit
        scores: list[Scored] = []
        for number, exchange in enumerate(exchanges, start=1):
            started = time.perf_counter()
            raw = self._reward_of(exchange)
            if isinstance(raw, Unscored):
                scores.append(raw)
            else:
                score = LOWEST + (HIGHEST - LOWEST) * min(max((raw - low) / (high - low), 0.0), 1.0)
                said, latency_s = f"reward {raw:.6g}", time.perf_counter() - started
                scores.append(Verdict(self.name, self.version, self.prompt_hash, score, "", said, 0.0, latency_s))
            if on_progress:
                on_progress(number, len(exchanges))
        return scores

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs by their raw rewards, which needs no fit; equal ones tie."""
        preferences: list[Preferred] = []
        for number, pair in enumerate(pairs, start=1):
            started = time.perf_counter()
            first, second = (self._reward_of(side) for side in sides_of(pair))
            if isinstance(first, Unscored) or isinstance(second, Unscored):
                preferences.append(first if isinstance(first, Unscored) else second)  # type: ignore[arg-type]
            else:
                said, latency_s = f"rewards {first:.6g} and {second:.6g}", time.perf_counter() - started
                known = (self.name, self.version, self.prompt_hash, "score", prefer(first, second), said)
                preferences.append(preference_of(*known, latency_s=latency_s))
            if on_progress:
                on_progress(number, len(pairs))
        return preferences
