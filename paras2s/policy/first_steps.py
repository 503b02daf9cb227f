"""A new policy, method by method: a module to fill in, and the next method to write.

The contract (`contract.py`) compares complete passes; before that, each method is called once and its result looked at.
"""

from __future__ import annotations

import importlib.util
import keyword
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from paras2s.audio.clip import Clip
from paras2s.errors import ConfigError, one_line, raised_at
from paras2s.policy.base import Policy
from paras2s.policy.subject import Finding, sample_dialogues
from paras2s.policy.types import Generation, PolicySpec, Prompt, SampleRequest, Sampling
from paras2s.utils.io import write_text

# The layouts of a module: its slots, and what a step of an answer is.
_AUDIO = "*(paras2s.SlotSpec(f'audio{k}', 'audio', 0, 2048) for k in range(8))"
LAYOUTS = {
    "dual_stream": (
        "paras2s.SlotSpec('text', 'text', 0, 1000), paras2s.SlotSpec('audio0', 'audio', 0, 512)",
        "a text token and the code of each codebook, side by side",
    ),
    "interleaved": (
        "paras2s.SlotSpec('token', 'both', 0, 2000),",
        "one id, text and codes in turn; `Block.labels` [G, T, 1] says which (0 text, 1 audio)",
    ),
    "frames": (
        f"paras2s.SlotSpec('text', 'text', 0, 1000), {_AUDIO}",
        "a text token and the codes of one frame, codebook after codebook (a depth decoder)",
    ),
}
GROUP, STEPS = 2, 6
# Every method in the order of writing, with what it returns.
METHODS = {
    "__init__": "self.model, a torch.nn.Module with parameters (write Network.__init__ too)",
    "spec": "a PolicySpec: slots, rates, name patterns",
    "encode_prompt": "a Prompt: audio_ids [L, K], text_ids [L], features [L, F] or None, continuous [L]",
    "generate": "a Generation for each prompt: blocks (tokens, sampled, behaviour_logp [G, T, S]), finish_reason and seeds [G]",
    "model": "teacher-forced log-probs [N, T, S] for each block, differentiable, 0 where not sampled",
    "decode_text": "the text of an answer",
    "decode_codes": "the codes [T, K] of an answer, from 0",
    "decode_audio": "the Clip of an answer at spec.output_rate_hz",
    "save": "nothing; writes a checkpoint to a folder",
    "load": "the policy of that folder",
    "reload": "nothing; fills the weights from that folder",
}


def class_name(module: str) -> str:
    """Return the name of the class in a module: my_model has MyModel."""
    return "".join(part.capitalize() for part in module.split("_"))


def write_policy(name: str, layout: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py, a policy with a guide in its methods, and its test; return both paths. Raises ConfigError: it exists."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{name}: is no name for a module; use letters, digits and underscores")
    if importlib.util.find_spec(name) is not None and not (folder / f"{name}.py").exists():
        raise ConfigError(f"{name}: is the name of an installed module, which it would hide; give another")
    if layout not in LAYOUTS:
        raise ConfigError(f"--like {layout}: no such layout; there are {', '.join(LAYOUTS)}")
    slots, step = LAYOUTS[layout]
    values = {
        "NAME": name,
        "CLASS": "".join(part.capitalize() for part in name.split("_")) or name,
        "SLOTS": slots,
        "STEP": step,
    }
    paths = folder / f"{name}.py", folder / f"test_{name}.py"
    if existing := [path for path in paths if path.exists()]:
        raise ConfigError(f"{existing[0]}: exists already; give another name, or delete it")
    for path, template in zip(paths, ("policy_module.j2", "policy_test.j2"), strict=True):
        text = resources.files("paras2s.policy").joinpath(template).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        write_text(path, text)
    return paths


@dataclass
class _Walk:
    """One call of each method; a later one is given what an earlier one returned."""

    make: Callable[[], Policy]
    folder: Path
    policy: Any = None
    prompt: Any = None
    generation: Any = None
    sampling: Sampling = field(default_factory=lambda: Sampling(max_steps=STEPS))

    def construct(self) -> bool:
        self.policy = self.make()
        return isinstance(getattr(self.policy, "model", None), nn.Module) and any(True for _ in self.policy.model.parameters())

    def spec(self) -> bool:
        return isinstance(self.policy.spec, PolicySpec) and bool(self.policy.spec.slots)

    def encode_prompt(self) -> bool:
        self.prompt = self.policy.encode_prompt(sample_dialogues(self.policy.spec.input_rate_hz)[0])
        return isinstance(self.prompt, Prompt) and len(self.prompt.audio_ids) == self.prompt.length == len(
            self.prompt.continuous
        )

    def generate(self) -> bool:
        seeds = [list(range(GROUP))]
        generations = self.policy.generate(SampleRequest([self.prompt], seeds, self.sampling))
        self.generation = generations[0]
        blocks = self.generation.blocks
        shapes = [block.tokens.shape == block.sampled.shape == block.behaviour_logp.shape for block in blocks]
        groups = [block.tokens.ndim == 3 and len(block.tokens) == GROUP for block in blocks]
        complete = isinstance(self.generation, Generation) and len(self.generation.finish_reason) == GROUP
        return len(generations) == 1 and complete and bool(blocks) and all(shapes) and all(groups)

    def model(self) -> bool:
        blocks = self.generation.blocks
        logps = self.policy.logprobs([self.prompt], [blocks], self.sampling)
        fits = [tuple(logp.shape) == block.tokens.shape for logp, block in zip(logps, blocks, strict=True)]
        return all(fits) and any(isinstance(logp, torch.Tensor) and logp.requires_grad for logp in logps)

    def decode_text(self) -> bool:
        return isinstance(self.policy.decode_text(self.generation.blocks, 0), str)

    def decode_codes(self) -> bool:
        codes = self.policy.decode_codes(self.generation.blocks, 0)
        return isinstance(codes, np.ndarray) and codes.ndim == 2

    def decode_audio(self) -> bool:
        clip = self.policy.decode_audio(self.generation.blocks, 0, 0)
        return isinstance(clip, Clip) and clip.sample_rate_hz == self.policy.spec.output_rate_hz

    def save(self) -> bool:
        self.policy.save(self.folder)
        return any(self.folder.iterdir())

    def load(self) -> bool:
        return isinstance(type(self.policy).load(self.folder), Policy)

    def reload(self) -> bool:
        self.policy.reload(self.folder)
        return True


def walk_methods(policy: type[Policy]) -> Iterator[Finding]:
    """Yield a finding for each method in the order of writing, up to the first that is missing, wrong, or raises."""
    with TemporaryDirectory() as folder:
        walk = _Walk(policy, Path(folder))
        missing = [name for name in METHODS if name in policy.__abstractmethods__]
        for name, returns in METHODS.items():
            if missing:
                yield Finding(missing[0], False, f"write it next; it returns {METHODS[missing[0]]}")
                return
            try:
                fits = walk.construct() if name == "__init__" else getattr(walk, name)()
            except NotImplementedError:
                yield Finding(name, False, f"write it next; it returns {returns}")
                return
            except Exception as error:  # The user's own code may raise whatever it likes.
                yield Finding(
                    name, False, f"raised {type(error).__name__} ({one_line(error)}){raised_at(error)}; it returns {returns}"
                )
                return
            if not fits:
                yield Finding(name, False, f"returned something else; it returns {returns}")
                return
            yield Finding(name, True, f"returns {returns}")
