"""Log-likelihoods of answers after prompts by a language model of this machine: a folder of transformers, or a GGUF file."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paras2s.configs.schema.judges import ContrastConfig
from paras2s.errors import ConfigError
from paras2s.utils.device import found_device
from paras2s.utils.io import sample_digest
from paras2s.utils.language_model import read_language_model

# Files of weights.
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


class LocalLikelihoods:
    """A causal language model that reads answers, `batch_size` at once, and each prompt before them once."""

    def __init__(self, config: ContrastConfig) -> None:
        """Load the model and its tokenizer. Raises ConfigError: it is missing, unreadable, or has no chat template."""
        if config.model is None or not config.model.exists():
            raise ConfigError(f"model: {config.model} is no folder of a model and no GGUF file")
        loaded, self._tokenizer = read_language_model(config.model, config.dtype)
        if config.chat_template is not None:
            self._tokenizer.chat_template = config.chat_template.read_text(encoding="utf-8")
        if self._tokenizer.chat_template is None:
            raise ConfigError(f"model: {config.model} has no chat template; give one as chat_template")
        self._model, self._batch_size = loaded.to(found_device(config.device)).eval(), config.batch_size
        self.fingerprint = fingerprint_of(config.model)

    def prompt(self, messages: Sequence[dict[str, str]]) -> str:
        """Return messages as the model's chat template writes them, up to where its reply begins."""
        return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))

    def read(self, items: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-likelihood of each answer's tokens after its prompt, summed, in nats."""
        import torch

        values = [0.0] * len(items)
        by_prompt: dict[str, list[int]] = {}
        for index, (prompt, _) in enumerate(items):
            by_prompt.setdefault(prompt, []).append(index)
        with torch.inference_mode():
            for prompt, indices in by_prompt.items():
                given = self._ids(prompt)
                read = self._model(torch.tensor([given], device=self._model.device), use_cache=True)
                for start in range(0, len(indices), self._batch_size):
                    batch = indices[start : start + self._batch_size]
                    answers = [self._ids(items[index][1]) for index in batch]
                    for index, value in zip(batch, self._after(len(given), read, answers), strict=True):
                        values[index] = value
        return values

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _after(self, n_given: int, read: Any, answers: Sequence[list[int]]) -> list[float]:
        """Return the log-likelihoods of answers [B] after a prompt that has been read."""
        import torch

        longest, device = max(map(len, answers)), self._model.device
        ids = torch.zeros((len(answers), longest), dtype=torch.long, device=device)
        present = torch.zeros((len(answers), longest), dtype=torch.long, device=device)
        for row, answer in enumerate(answers):
            ids[row, : len(answer)] = torch.tensor(answer, device=device)
            present[row, : len(answer)] = 1
        cache = copy.deepcopy(read.past_key_values)
        cache.batch_repeat_interleave(len(answers))
        mask = torch.cat([torch.ones((len(answers), n_given), dtype=torch.long, device=device), present], dim=1)
        logits = self._model(ids, attention_mask=mask, past_key_values=cache).logits
        before = torch.cat([read.logits[:, -1:].expand(len(answers), -1, -1), logits[:, :-1]], dim=1)
        logprobs = before.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        return [float(value) for value in (logprobs * present).sum(1)]


def fingerprint_of(model: Path) -> str:
    """Return a hash of a model's files: their names, and samples of each."""
    files = [model] if model.is_file() else sorted(path for pattern in (*WEIGHTS, "*.json") for path in model.glob(pattern))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + sample_digest(path))
    return digest.hexdigest()[:12]
