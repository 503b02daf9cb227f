"""`UniSRM`: the Qwen2.5-Omni thinker that reasons over clips, for `Qwen/Qwen2.5-Omni-7B` and tiny instances alike.

Alphabet: N items, L tokens, A audio frames of 10 ms, K clips of all items together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paras2s.audio.clip import Clip, read_clip
from paras2s.configs.schema.base import parse_config
from paras2s.configs.schema.unisrm import ThinkerConfig
from paras2s.errors import DataError, JudgeError
from paras2s.reward.reward_model.omni import HOP, LORA_TARGETS, mel_extractor, mel_features
from paras2s.unisrm.reward.messages import SILENCE, chat_text, clip_order, fitted_clip, system_prompt
from paras2s.unisrm.reward.tasks import TASK_IDS, Item, TaskId
from paras2s.utils.device import found_device
from paras2s.utils.io import read_json, reading, write_json

SETTINGS = "unisrm.json"
END = "<|im_end|>"
# Clips whose features are held: all that SFT has in the embedded edition. Those of 10 s are 0.5 MB each, so 4 GB of the host's
# memory for each process; longer ones take more, since clips are counted and not bytes.
HELD_CLIPS = 8192


@dataclass(frozen=True)
class Encoded:
    """An item as the model reads it: prompt tokens, and its clips' mel features [128, A] in the order of the prompt."""

    ids: tuple[int, ...]
    clips: tuple[Tensor, ...]

    def with_clips_of(self, other: Encoded) -> Encoded:
        """Return the prompt with another item's clips, each repeated or cut to the length of its slot."""
        clips = []
        for n, clip in enumerate(self.clips):
            features, frames = other.clips[n % len(other.clips)], clip.shape[1]
            clips.append(features.repeat(1, -(-frames // features.shape[1]))[:, :frames])
        return replace(self, clips=tuple(clips))


class UniSRM:
    """The model with its tokenizer and settings: encodes items, replies to them, is saved and loaded."""

    def __init__(self, thinker: Any, tokenizer: Any, config: ThinkerConfig) -> None:
        self.thinker, self.tokenizer, self.config = thinker, tokenizer, config
        self.extractor = mel_extractor()
        self.end_id = int(tokenizer.convert_tokens_to_ids(END))
        self.systems = instructions(config)

    @classmethod
    def pretrained(cls, config: ThinkerConfig) -> UniSRM:
        """Load the thinker of `config.model`. Raises JudgeError: the weights or the tokenizer are not here."""
        from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration

        with reading(config.model, "cannot be loaded; HF_HUB_OFFLINE=1 rules a hub out", kind=JudgeError):
            thinker: Any = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(config.model)
            tokenizer = AutoTokenizer.from_pretrained(config.model)
        return cls(thinker.to(found_device()), tokenizer, config)

    @classmethod
    def load(cls, folder: Path) -> UniSRM:
        """Load a trained model, or adapters on their base. Raises JudgeError: there is none, or another model's."""
        from peft import PeftModel

        try:
            config = parse_config(read_json(folder / SETTINGS), str(folder / SETTINGS), ThinkerConfig)
        except DataError as error:
            raise JudgeError(f"{folder}: holds no UniSRM model ({error})") from error
        if not (folder / "adapter_config.json").is_file():
            return cls.pretrained(config.model_copy(update={"model": str(folder)}))
        model = cls.pretrained(config)
        with reading(folder, f"no adapter that fits {config.model}", kind=JudgeError):
            model.thinker = PeftModel.from_pretrained(model.thinker, str(folder), is_trainable=True)
        return model

    def save(self, folder: Path) -> None:
        """Save weights or adapters as transformers and peft write them, the tokenizer, and the settings."""
        self.thinker.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))
        write_json(folder / SETTINGS, self.config.model_dump(mode="json"))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.thinker.parameters()).device

    def prepare_training(self) -> None:
        """Add adapters, or choose the trained weights, float32 from now on; the vision tower is never trained.

        In bfloat16, as weights are released, an update of 1e-6 would be rounded away.
        """
        if self.config.trains == "adapters":
            from peft import LoraConfig, get_peft_model

            if not hasattr(self.thinker, "peft_config"):
                lora = LoraConfig(r=self.config.lora_rank, lora_alpha=self.config.lora_alpha, target_modules=LORA_TARGETS)
                self.thinker = get_peft_model(self.thinker, lora)
            return
        for name, parameter in self.thinker.named_parameters():
            frozen = "audio_tower" in name and self.config.trains == "language_model"
            parameter.requires_grad_("visual" not in name and not frozen)
            if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
                parameter.data = parameter.data.float()

    # Input.

    def encode(self, task_id: TaskId, texts: Mapping[str, str], clips: Mapping[str, Clip]) -> Encoded:
        """Encode an item's prompt and features. Raises JudgeError: as `features_of` and `chat_text`."""
        return self.assemble(task_id, texts, {name: self.features_of(name, clip) for name, clip in clips.items()})

    def features_of(self, name: str, clip: Clip) -> Tensor:
        """Compute a clip's mel features [128, A]. Raises JudgeError: it is longer than `max_audio_s` where that is an error."""
        features: Tensor = mel_features(self.extractor, [fitted_clip(name, clip, self.config).samples])[0][0]
        return features

    def assemble(
        self, task_id: TaskId, texts: Mapping[str, str], features: Mapping[str, Tensor], system: str | None = None
    ) -> Encoded:
        """Assemble an item's prompt around its clips' features [128, A]; `system` is the instruction. Raises JudgeError."""
        samples = {name: HOP * clip_features.shape[1] for name, clip_features in features.items()}
        text = chat_text(task_id, system or self.systems[task_id], texts, samples)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Encoded(tuple(ids), tuple(features[name] for name in clip_order(task_id, features)))

    def features(self, rows: Sequence[Encoded]) -> dict[str, Tensor]:
        """Stack mel features [K, 128, A] of all clips, row after row, and their mask [K, A]."""
        clips = [clip.T for row in rows for clip in row.clips]
        features = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True).transpose(1, 2)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(clip), dtype=torch.long) for clip in clips], batch_first=True)
        dtype = next(self.thinker.parameters()).dtype
        return {"input_features": features.to(self.device, dtype), "feature_attention_mask": mask.to(self.device)}

    def left_padded(self, rows: Sequence[Sequence[int]], value: int) -> Tensor:
        """Pad rows of different length to one tensor [N, L], filled with `value` on the left."""
        longest = max(map(len, rows))
        return torch.tensor([[value] * (longest - len(row)) + list(row) for row in rows], device=self.device)

    def batch(self, rows: Sequence[Encoded], replies: Sequence[Sequence[int]] | None = None) -> dict[str, Tensor]:
        """Make model inputs of N items; with `replies` also labels, -100 everywhere but on the reply."""
        ids = [row.ids for row in rows]
        labels: dict[str, Tensor] = {}
        if replies is not None:
            marked = [[-100] * len(prompt) + list(reply) for prompt, reply in zip(ids, replies, strict=True)]
            labels = {"labels": self.left_padded(marked, -100)}
            ids = [(*prompt, *reply) for prompt, reply in zip(ids, replies, strict=True)]
        mask = self.left_padded([[1] * len(row) for row in ids], 0)
        padded = self.left_padded(ids, self.tokenizer.pad_token_id or 0)
        return {"input_ids": padded, "attention_mask": mask, **self.features(rows), **labels}

    # Replies.

    def reply_ids(self, reply: str) -> tuple[int, ...]:
        """Return the tokens of a reply with its end."""
        return (*self.tokenizer(reply, add_special_tokens=False)["input_ids"], self.end_id)

    def text_of(self, ids: Sequence[int]) -> str:
        """Decode sampled tokens up to their end; special tokens within remain, so that the parser sees them."""
        own = list(ids)
        own = own[: own.index(self.end_id)] if self.end_id in own else own
        return str(self.tokenizer.decode(own, skip_special_tokens=False))

    @property
    def generation_options(self) -> dict[str, Any]:
        """The end of a reply, the cache, and the tokens of media, which no reply may hold: a forward pass needs the media."""
        config = self.thinker.config
        media = (config.audio_token_index, config.image_token_index, config.video_token_index)
        options: dict[str, Any] = {"eos_token_id": self.end_id, "suppress_tokens": list(media)}
        if self.device.type == "cpu":
            # The other kind of cache is copied at every token. On a GPU this one would have transformers compile the model.
            options["cache_implementation"] = "static"
        return options

    @torch.inference_mode()
    def reply(self, rows: Sequence[Encoded], max_tokens: int, batch_size: int = 8) -> list[str]:
        """Return the likeliest reply to each item, token by token."""
        was_training = self.thinker.training
        self.thinker.eval()
        replies = []
        for start in range(0, len(rows), batch_size):
            inputs = self.batch(rows[start : start + batch_size])
            ids = self.thinker.generate(
                **inputs, **self.generation_options, max_new_tokens=max_tokens, do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id or 0,
            )  # fmt: skip
            replies += [self.text_of(row) for row in ids[:, inputs["input_ids"].shape[1] :].tolist()]
        self.thinker.train(was_training)
        return replies


def instructions(config: ThinkerConfig) -> dict[TaskId, str]:
    """Return the system prompt of each task. A model with random initial weights reads no English: it gets the task's name."""
    if config.scratch is not None and config.prompts is None:
        return {task: task for task in TASK_IDS}
    return {task: system_prompt(task, config.reasoning, config.prompts) for task in TASK_IDS}


class ItemEncoder:
    """Encoder of a folder's items by number; the features of the last few thousand clips are held."""

    def __init__(self, model: UniSRM, folder: Path, items: Sequence[Item]) -> None:
        self.model, self.folder, self.items = model, folder, list(items)
        self._features = lru_cache(HELD_CLIPS)(self._features_of)

    def __getitem__(self, number: int) -> Encoded:
        """Return the encoded item. Raises AudioError, JudgeError: a clip cannot be read, or is refused."""
        return self.encoded(number)

    def encoded(self, number: int, system: str | None = None) -> Encoded:
        """Return the encoded item, as by index; `system` in place of its task's instruction."""
        item = self.items[number]
        features = {name: self._features(path) for name, path in item.clips.items()}
        return self.model.assemble(item.task, item.texts, features, system)

    def silenced(self, number: int) -> Encoded:
        """Return the item with silence in place of all its clips. Raises JudgeError: as `chat_text`."""
        item = self.items[number]
        return self.model.encode(item.task, item.texts, dict.fromkeys(item.clips, SILENCE))

    def _features_of(self, path: str) -> Tensor:
        return self.model.features_of(path, read_clip(self.folder / path))
