"""Export of a trained UniSRM for a vLLM server: adapters merged in, in the released model's layout without its talker."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.errors import StorageError
from paras2s.reward.reward_model.omni import export_thinker
from paras2s.unisrm.reward.messages import CHAT_TEMPLATE
from paras2s.unisrm.reward.readers import weights_digest
from paras2s.unisrm.reward.thinker import SETTINGS, UniSRM
from paras2s.utils.io import write_json, write_text

JUDGE = "judge.yaml"
# Ten turns of a dialogue and the two candidates; unused space takes no memory.
MOST_CLIPS = {"audio": 12, "image": 0, "video": 0}
NEVER = -100


@dataclass(frozen=True)
class ServedModel:
    """A folder for a server: its name there, the command that serves it, and the config of the judge that calls it."""

    folder: Path
    name: str
    command: str
    judge: Path


def export_served(checkpoint: Path, out: Path | None = None) -> ServedModel:
    """Write a checkpoint for a server, with the config of a judge that calls it; `out` None: `served` beside the checkpoint.

    The model's name there holds a hash of its weights, so that no server answers for another model. The folder is complete or
    missing.

    Raises:
        JudgeError: the checkpoint holds no model, or adapters of another one. StorageError: `out` is there already.
    """
    out = out or checkpoint.parent / "served"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: exists already; give another folder, or delete it")
    name = f"unisrm-{weights_digest(checkpoint)[:8]}"
    limits = shlex.quote(json.dumps(MOST_CLIPS))
    command = f"vllm serve {shlex.quote(str(out))} --served-model-name {name} --limit-mm-per-prompt {limits}"
    temporary = out.with_name(f".{out.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    model = UniSRM.load(checkpoint)
    _write_model(model, temporary)
    write_text(temporary / JUDGE, _judge_yaml(model, name, command, out))
    try:
        os.replace(temporary, out)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
    return ServedModel(out, name, command, out / JUDGE)


def _write_model(model: UniSRM, folder: Path) -> None:
    from transformers import GenerationConfig

    model.tokenizer.chat_template = CHAT_TEMPLATE
    model.thinker = export_thinker(model.thinker, model.tokenizer, folder)
    made: Any = GenerationConfig
    made(eos_token_id=model.end_id, pad_token_id=model.tokenizer.pad_token_id).save_pretrained(str(folder))
    write_json(folder / SETTINGS, model.config.model_dump(mode="json"))


def _judge_yaml(model: UniSRM, name: str, command: str, out: Path) -> str:
    import yaml

    media = model.generation_options["suppress_tokens"]
    # As in this process: a special token within a reply is kept for the parser, and none is a placeholder of media.
    extra = {"skip_special_tokens": False, "logit_bias": {str(token): NEVER for token in media}}
    llm = {
        "base_url": "http://127.0.0.1:8000/v1",
        "model": name,
        "max_output_tokens": 1024,
        "concurrency": 16,
        "extra_body": extra,
    }
    values = {"kind": "unisrm", "served": {"llm": llm, "settings": str((out / SETTINGS).resolve())}}
    return f"# {command}\n{yaml.safe_dump(values, sort_keys=False)}"
