"""Training of an audio tower with random weights, before the thinker learns replies; released towers are trained already.

Two linear heads on the tower's output, thrown away afterwards: the letters that are spoken (CTC), and what each clip was made
with (its traits: pitch, pace, noise and so on, from takes.jsonl). Only clips of the split `sft` are taught.

Alphabet: N clips, A audio frames of 10 ms, L tokens of all clips, D their width, F traits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import read_clip
from paras2s.errors import ConfigError
from paras2s.unisrm.reward.items import TAKES
from paras2s.unisrm.reward.thinker import HELD_CLIPS, Encoded, UniSRM
from paras2s.utils.io import read_jsonl

BATCH = 32
LR = 2e-3
WARMUP_SHARE = 0.05
# The blank of CTC, then what a text may hold.
LETTERS = "\0 abcdefghijklmnopqrstuvwxyz'"
# Clips of another split on which it is measured.
MEASURED_CLIPS = 200


@dataclass(frozen=True)
class TowerProbe:
    """Readings of a tower by two heads on other speakers and texts: edits a spoken letter, share of variance explained."""

    letter_errors: float
    traits: dict[str, float]


@dataclass(frozen=True)
class _Take:
    clip: str
    letters: tuple[int, ...]
    traits: tuple[float, ...]


class _Heads(nn.Module):
    """The two heads of a tower of width D."""

    def __init__(self, width: int, traits: int) -> None:
        super().__init__()
        self.letters, self.traits = nn.Linear(width, len(LETTERS)), nn.Linear(width, traits)


def pretrain_tower(
    model: UniSRM, data: Path, updates: int, seed: int, on_progress: Callable[[int, int], None] | None = None
) -> TowerProbe:
    """Train the model's audio tower on `data`, and measure what heads read on split `rl`. Raises ConfigError. AudioError."""
    if not (data / TAKES).is_file():
        raise ConfigError(
            f"{data / TAKES}: missing; thinker.scratch.audio_pretraining_updates needs data of `paras2s unisrm data`"
        )
    rows = [dict(row) for row in read_jsonl(data / TAKES)]
    names = sorted(rows[0]["traits"])
    taught, others = ([_take(row, names) for row in rows if row["split"] == split] for split in ("sft", "rl"))
    known = torch.tensor([take.traits for take in taught])
    # A trait that never varies explains nothing.
    mean, deviation = known.mean(0), known.std(0).clamp_min(1e-6)
    torch.manual_seed(seed)
    heads = _Heads(model.thinker.config.text_config.hidden_size, len(names)).to(model.device)
    tower = model.thinker.model.audio_tower
    parameters = [*tower.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LR)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=max(updates, 2), pct_start=WARMUP_SHARE)
    features = lru_cache(HELD_CLIPS)(lambda path: model.features_of(path, read_clip(data / path)))
    rng = np.random.default_rng([seed, 19])
    tower.train()
    for update in range(1, updates + 1):
        batch = [taught[number] for number in rng.choice(len(taught), min(BATCH, len(taught)), replace=False)]
        parts = _encoded(model, [features(take.clip) for take in batch])
        traits = ((torch.tensor([take.traits for take in batch]) - mean) / deviation).to(model.device)
        predicted = heads.traits(torch.stack([part.mean(0) for part in parts]))
        loss = nn.functional.mse_loss(predicted, traits) + _letter_loss(heads, parts, batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rates.step()
        if on_progress:
            on_progress(update, updates)
    return _measured(model, heads, others[:: max(1, len(others) // MEASURED_CLIPS)], features, names, (mean, deviation))


def _take(row: dict[str, Any], names: Sequence[str]) -> _Take:
    letters = tuple(LETTERS.index(letter) for letter in row["text"].lower() if letter in LETTERS)
    return _Take(row["clip"], letters, tuple(row["traits"][name] for name in names))


def _encoded(model: UniSRM, clips: Sequence[Tensor]) -> list[Tensor]:
    """Encode N clips' mel features [128, A] to the tower's output [L_n, D]."""
    inputs = model.features([Encoded((), (clip,)) for clip in clips])
    output = model.thinker.model.get_audio_features(**inputs).last_hidden_state
    tower = model.thinker.model.audio_tower
    lengths = tower._get_feat_extract_output_lengths(inputs["feature_attention_mask"].sum(1))[1]
    return list(output.split(lengths.tolist()))


def _letter_loss(heads: _Heads, parts: Sequence[Tensor], batch: Sequence[_Take]) -> Tensor:
    """Return the CTC loss a letter. A clip spoken faster than one letter a token has no path, and counts as 0."""
    logprobs = nn.utils.rnn.pad_sequence([heads.letters(part).log_softmax(-1) for part in parts])
    targets = torch.tensor([letter for take in batch for letter in take.letters], device=logprobs.device)
    steps = torch.tensor([len(part) for part in parts])
    letters = torch.tensor([len(take.letters) for take in batch])
    return nn.functional.ctc_loss(logprobs, targets, steps, letters, zero_infinity=True)


def collapsed(best: Sequence[int]) -> list[int]:
    """Return the letters of a CTC path: repeated ones once, and no blanks."""
    return [letter for before, letter in zip([0, *best], best, strict=False) if letter not in (0, before)]


@torch.inference_mode()
def _measured(
    model: UniSRM, heads: _Heads, takes: Sequence[_Take], features: Any, names: Sequence[str], scale: tuple[Tensor, Tensor]
) -> TowerProbe:  # fmt: skip
    model.thinker.model.audio_tower.eval()
    import jiwer

    spoken, read, trait_scores = [], [], []
    for start in range(0, len(takes), BATCH):
        batch = takes[start : start + BATCH]
        for take, part in zip(batch, _encoded(model, [features(take.clip) for take in batch]), strict=True):
            spoken.append("".join(LETTERS[letter] for letter in take.letters))
            read.append("".join(LETTERS[letter] for letter in collapsed(heads.letters(part).argmax(-1).tolist())))
            trait_scores.append(heads.traits(part.mean(0)).cpu() * scale[1] + scale[0])
    true = torch.tensor([take.traits for take in takes])
    varied = true.var(0, correction=0)
    explained = 1 - (torch.stack(trait_scores) - true).square().mean(0) / varied.clamp_min(1e-9)
    known = {name: float(value) for name, value, spread in zip(names, explained, varied, strict=True) if spread > 0}
    return TowerProbe(float(jiwer.cer(spoken, read)), known)
