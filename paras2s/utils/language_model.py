"""A causal language model of transformers on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paras2s.errors import ConfigError
from paras2s.utils.io import reading


def read_language_model(model: Path, dtype: str = "float32") -> tuple[Any, Any]:
    """Read a causal language model and its tokenizer from a folder of transformers, or a GGUF file; nothing is downloaded.

    Raises:
        ConfigError: it is neither, or of another architecture.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, file = (model.parent, {"gguf_file": model.name}) if model.is_file() else (model, {})
    with reading(model, "no language model of transformers and no GGUF file", kind=ConfigError):
        tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True, **file)
        loader: Any = AutoModelForCausalLM
        return loader.from_pretrained(source, dtype=getattr(torch, dtype), local_files_only=True, **file), tokenizer
