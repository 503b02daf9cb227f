"""`OmniRewardModel`: the Qwen2.5-Omni thinker as reward model (ParaS2S, 4.2): two clips and a guideline in, one digit out.

Trained by cross entropy on that digit with LoRA on the language model; the score is the expected value over the five
digits. `omni_train` trains it. The talker is never loaded. Left out of the paper: nothing of the method; several GPUs.
Alphabet: N pairs (or clips), L tokens, A audio frames of 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import OmniConfig
from paras2s.errors import DataError, JudgeError, one_line
from paras2s.reward.judges.prompts import PLACEHOLDER, read_prompt
from paras2s.utils.device import found_device
from paras2s.utils.io import read_json, reading, write_json

RATE_HZ = 16_000
HOP = 160
DIGITS = ("1", "2", "3", "4", "5")
AUDIO_BOS, AUDIO, AUDIO_EOS = "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"
SYSTEM = "You are a helpful assistant."
# The names of the released processor's classes, without which none is made, and those by which it knows its tokens.
PROCESSOR = {"processor_class": "Qwen2_5OmniProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
MEDIA_TOKENS = {
    "audio_token": AUDIO, "audio_bos_token": AUDIO_BOS, "audio_eos_token": AUDIO_EOS, "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>", "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
}  # fmt: skip
# A suffix alone would also hit the audio tower, and train it in silence.
LORA_TARGETS = r".*language_model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
# Less of the probability than this on the five digits and the prompt is not understood as a question for one.
LOW_MASS = 0.5


@dataclass(frozen=True)
class SpokenPair:
    """A question and an answer as sound."""

    question: Clip
    answer: Clip


@dataclass(frozen=True)
class OmniScore:
    """Expected value over the digits, the likeliest digit, and how much of the probability was on digits at all."""

    expected: float
    hard: int
    digit_mass: float


def audio_tokens(samples: int) -> int:
    """Return the number of a clip's placeholders: 25 a second (as transformers counts ceil(samples / 160) mel frames)."""
    frames = -(-samples // HOP)
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def mel_extractor() -> Any:
    """Return the thinker's own extractor of mel features."""
    from transformers import WhisperFeatureExtractor

    made: Any = WhisperFeatureExtractor(feature_size=128, n_fft=400, hop_length=HOP, chunk_length=300)  # type: ignore[no-untyped-call]
    return made


def mel_features(extractor: Any, clips: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Mel features [N, 128, A] of N clips and their mask [N, A]: those of padding to 300 s, in less time.

    Zeros behind each clip keep the last frames from mirroring its end, which they would where nothing follows.
    """
    frames = [-(-len(clip) // HOP) for clip in clips]
    size = (max(frames) + 3) * HOP
    padded = [np.pad(clip, (0, size - len(clip))) for clip in clips]
    made = extractor(padded, sampling_rate=RATE_HZ, padding="longest", truncation=False, return_tensors="pt")
    mask = torch.tensor([[1] * count + [0] * (max(frames) - count) for count in frames])
    return made["input_features"][..., : max(frames)], mask


def prompt_text(template: str, clip_samples: dict[str, int]) -> str:
    """Return the full chat prompt, each placeholder of the template replaced by as many audio tokens as its clip has."""

    def audio(name: str) -> str:
        return f"{AUDIO_BOS}{AUDIO * audio_tokens(clip_samples[name])}{AUDIO_EOS}"

    user = PLACEHOLDER.sub(lambda match: audio(match.group(1)), template)
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the settings that a stored adapter was trained with, version 0.5's too. Raises DataError: there are none."""
    values = dict(read_json(folder / "omni.json"))
    if "learning_rate" in values:
        values["lr"] = values.pop("learning_rate")
    return values


def export_thinker(thinker: Any, tokenizer: Any, folder: Path) -> Any:
    """Write a thinker with its adapters merged in, laid out as vLLM reads it, and return it so.

    vLLM knows only the class of the full model, and drops what is not the thinker's: it writes a full model without
    its talker. Beside it are the processor's settings; only those of sound are used.
    """
    from transformers import AutoTokenizer, Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    merged = thinker.merge_and_unload() if hasattr(thinker, "merge_and_unload") else thinker
    config = Qwen2_5OmniConfig(thinker_config=merged.config.to_dict(), enable_audio_output=False)
    with torch.device("meta"):
        # Its own thinker is never made: of 7 billion weights there are not two in memory.
        model: Any = Qwen2_5OmniForConditionalGeneration(config)
    model.thinker = merged
    model.to(next(merged.parameters()).dtype).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    # A tokenizer that was not released with the processor has the tokens, but not by these names.
    named: Any = AutoTokenizer.from_pretrained(str(folder), extra_special_tokens=MEDIA_TOKENS)
    named.save_pretrained(str(folder))
    write_json(folder / "preprocessor_config.json", mel_extractor().to_dict() | PROCESSOR)
    return merged


class OmniRewardModel:
    """Scores spoken pairs from 1 to 5. One code path for `Qwen/Qwen2.5-Omni-7B` and for tiny instances of the same classes."""

    name = "omni"

    def __init__(self, thinker: Any, tokenizer: Any, config: OmniConfig) -> None:
        self.thinker, self.tokenizer, self.config = thinker, tokenizer, config
        self.features = mel_extractor()
        self.template = read_prompt("omni", config.prompts)
        self.order = [match.group(1) for match in PLACEHOLDER.finditer(self.template)]
        if sorted(self.order) != ["answer", "question"]:
            raise JudgeError(f"prompt 'omni' must hold {{{{question}}}} and {{{{answer}}}} once each, it holds {self.order}")
        self.digit_ids = [self._single(digit) for digit in DIGITS]

    def _single(self, digit: str) -> int:
        ids = self.tokenizer(digit, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise JudgeError(f"the tokenizer makes {len(ids)} tokens of {digit!r}; a score must be one")
        return int(ids[0])

    @classmethod
    def pretrained(cls, config: OmniConfig, adapter: Path | None = None) -> OmniRewardModel:
        """Load the thinker of `config.model`, with any trained adapter. Raises JudgeError: a part is missing."""
        from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration

        with reading(config.model, "cannot be loaded; HF_HUB_OFFLINE=1 rules a hub out", kind=JudgeError):
            thinker = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(config.model)
            tokenizer = AutoTokenizer.from_pretrained(config.model)
        on_device: Any = thinker
        model = cls(on_device.to(found_device()), tokenizer, config)
        if adapter is not None:
            model.load_adapter(adapter)
        return model

    # Input.

    def batch(self, pairs: Sequence[SpokenPair]) -> dict[str, Tensor]:
        """Return inputs of N pairs: left-padded ids [N, L], mask, features of 2 N clips. Raises JudgeError: too long."""
        texts, clips = [], []
        for pair in pairs:
            by_name = {"question": pair.question.at(RATE_HZ), "answer": pair.answer.at(RATE_HZ)}
            for name, clip in by_name.items():
                if clip.duration_s > self.config.max_audio_s:
                    raise JudgeError(
                        f"the {name} lasts {clip.duration_s:.0f} s, at most {self.config.max_audio_s:.0f} s are read"
                    )
                if audio_tokens(len(clip.samples)) < 1:
                    raise JudgeError(f"the {name} is too short to be heard ({clip.duration_s:.3f} s)")
            clips += [by_name[name].samples for name in self.order]
            texts.append(prompt_text(self.template, {name: len(clip.samples) for name, clip in by_name.items()}))
        ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        longest = max(map(len, ids))
        pad = self.tokenizer.pad_token_id or 0
        features, mask = mel_features(self.features, clips)
        inputs = {
            "input_ids": torch.tensor([[pad] * (longest - len(row)) + row for row in ids]),
            "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids]),
            "input_features": features.to(self.dtype),
            "feature_attention_mask": mask,
        }
        return {name: value.to(self.device) for name, value in inputs.items()}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.thinker.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the weights."""
        return next(self.thinker.parameters()).dtype

    def next_logits(self, pairs: Sequence[SpokenPair]) -> Tensor:
        """Return the logits [N, V] of the token after the prompt; the thinker's own forward would build [N, L, V]."""
        hidden = self.base.model(**self.batch(pairs), use_cache=False).last_hidden_state[:, -1]
        logits: Tensor = self.base.lm_head(hidden)
        # Half precision is too coarse for a softmax.
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    # Scoring.

    @torch.inference_mode()
    def score(self, pairs: Sequence[SpokenPair]) -> list[OmniScore]:
        """Score all pairs, `batch_size` at a time."""
        self.thinker.eval()
        scores = []
        for start in range(0, len(pairs), self.config.batch_size):
            logp = self.next_logits(pairs[start : start + self.config.batch_size]).log_softmax(-1)[:, self.digit_ids]
            share = logp.softmax(-1)
            expected = share @ torch.arange(1.0, 6.0, device=share.device)
            mass = logp.exp().sum(-1)
            rows = zip(expected.tolist(), share.argmax(-1).tolist(), mass.tolist(), strict=True)
            scores += [OmniScore(value, best + 1, digit_mass) for value, best, digit_mass in rows]
        return scores

    # Training.

    @property
    def base(self) -> Any:
        """The thinker itself, beneath its adapters."""
        return self.thinker.get_base_model() if hasattr(self.thinker, "get_base_model") else self.thinker

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters that learn, by name."""
        return {name: parameter for name, parameter in self.thinker.named_parameters() if parameter.requires_grad}

    def add_lora(self) -> None:
        """Add adapters to the language model alone; everything else is frozen."""
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=self.config.lora_rank, lora_alpha=self.config.lora_alpha, target_modules=LORA_TARGETS)
        self.thinker = get_peft_model(self.thinker, lora)

    def loss(self, pairs: Sequence[SpokenPair], scores: Sequence[int]) -> Tensor:
        """Return the digit's cross entropy over the full vocabulary, so that mass leaves all tokens that are no digit."""
        labels = torch.tensor([self.digit_ids[score - 1] for score in scores], device=self.device)
        return torch.nn.functional.cross_entropy(self.next_logits(pairs), labels)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as peft does, and the settings it was trained with."""
        self.thinker.save_pretrained(str(folder))
        write_json(folder / "omni.json", self.config.model_dump(mode="json"))

    def export(self, folder: Path) -> None:
        """Write the model with its adapter merged in, laid out as vLLM reads it; see `omni_vllm`."""
        # Merging changes the weights under the adapter's feet.
        self.thinker = export_thinker(self.thinker, self.tokenizer, folder)

    def load_adapter(self, folder: Path) -> None:
        """Put a trained adapter on. Raises JudgeError: the folder holds none, or one of another model."""
        from peft import PeftModel

        try:
            trained_on = read_json(folder / "omni.json")["model"]
            if trained_on != self.config.model:
                raise JudgeError(f"{folder}: an adapter of {trained_on}, not of {self.config.model}")
            with reading(folder, kind=DataError):
                self.thinker = PeftModel.from_pretrained(self.thinker, str(folder), is_trainable=True)
        except (DataError, KeyError) as error:
            raise JudgeError(f"{folder}: no adapter that fits {self.config.model} ({one_line(error)[:200]})") from error
