"""Comparison of a policy with what its makers' own code gave for one clip, written by `tools/dump_official.py` to one file.

Each part is compared on the dump's own input, so that a difference in one is no reason for another: logits are read behind the
dump's prompt and features, sound is made of the dump's tokens. Parts come in the order of the data, so the first that differs
is the first to look at.
Alphabet: L positions of a prompt, T steps, S slots, F continuous features, V ids of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError, one_line
from paras2s.policy.base import Policy
from paras2s.policy.subject import Finding
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block
from paras2s.utils.io import parse_json, reading

VERSION = 1
METADATA = "dump_official"
# Root mean square of a difference, in spreads of what the makers' code gave, by the coarser precision of the two sides.
# By `python benchmarks/precision.py`, half precision alone makes 1 % to 9 % of the logits' spread in bfloat16, an eighth of it
# in float16, 6e-6 at most in float32.
APART = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
# Share of the codes of a clip that may be others: a state half-way between two codes falls to either.
CODES_APART = {torch.float64: 0.0, torch.float32: 0.02, torch.float16: 0.05, torch.bfloat16: 0.05}
# Mean difference of two spectra, in dB. Assumed: no released weights have been compared with it yet.
SOUND_APART_DB = {torch.float64: 0.01, torch.float32: 0.5, torch.float16: 2.0, torch.bfloat16: 3.0}
_WINDOW, _HOP, _FLOOR_DB = 512, 128, 60.0
_COARSE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Dump:
    """Results of the makers' code: a clip's codes [C] or [C, K], prompt, features, logits [T, V] a slot, tokens, sound.

    `coded` [L] are the positions of the prompt that hold the clip's codes; logits that the makers do not compute are NaN;
    None: their code has no such part, or was run without it.
    """

    dtype: torch.dtype
    turns: tuple[Turn, ...]
    codes: np.ndarray | None
    prompt: Prompt
    coded: np.ndarray
    greedy: tuple[Block, ...]
    logits: tuple[np.ndarray, ...]
    sound_tokens: tuple[Block, ...]
    sound: Clip | None
    sound_seed: int
    # The first numbers that the makers' torch drew after `sound_seed`.
    noise: tuple[float, ...]


def read_dump(path: Path) -> Dump:
    """Read what `tools/dump_official.py` wrote. Raises PolicyError: another file, another version, or a part is missing."""
    from safetensors import safe_open

    with reading(path, "no dump of tools/dump_official.py", kind=PolicyError), safe_open(path, "np") as held:
        parts = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 - a safetensors file is no mapping
        said = dict(parse_json((held.metadata() or {})[METADATA], path))
    if said.get("version") != VERSION:
        raise PolicyError(
            f"{path}: a dump of version {said.get('version')}, this reads {VERSION}; write it again with this tool"
        )
    try:
        return _dump(said, parts)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise PolicyError(f"{path}: incomplete ({one_line(error)}); write it again") from error


def _dump(said: dict[str, Any], parts: dict[str, np.ndarray]) -> Dump:
    slots = said["slots"]
    names = [slots] if isinstance(slots[0], str) else slots

    def blocks(name: str) -> tuple[Block, ...]:
        return tuple(_block(tuple(held), parts, f"{name}{number or ''}") for number, held in enumerate(names))

    continuous, features = parts["prompt.continuous"].astype(bool), None
    if "features" in parts:
        features = np.zeros((len(continuous), parts["features"].shape[1]), dtype=parts["features"].dtype)
        features[continuous] = parts["features"]
    audio = parts["prompt.audio"]
    prompt = Prompt(audio.reshape(len(continuous), audio.size // len(continuous)), parts["prompt.text"], features, continuous)
    question = Turn("user", str(said.get("text", "")), Clip(parts["question"], int(said["question_hz"])))
    reply = (Turn("assistant", said["reply"]),) if "reply" in said else ()
    return Dump(
        dtype=getattr(torch, said["dtype"]),
        turns=(question, *reply),
        codes=parts.get("codes"),
        prompt=prompt,
        coded=parts.get("prompt.coded", continuous).astype(bool),
        greedy=blocks("greedy"),
        logits=tuple(parts[f"logits.{slot}"] for held in names for slot in held),
        sound_tokens=blocks("sound") if "sound" in parts else (),
        sound=Clip(parts["sound"], int(said["sound_hz"])) if "sound" in parts else None,
        sound_seed=int(said["seed"]),
        noise=tuple(said["noise"]),
    )


def _block(slots: tuple[str, ...], parts: dict[str, np.ndarray], name: str) -> Block:
    tokens, sampled = parts[f"{name}.tokens"][None], parts[f"{name}.sampled"][None].astype(bool)
    return Block(slots, tokens.astype(np.int64), sampled, np.zeros(tokens.shape))


@dataclass(frozen=True)
class DumpComparison:
    """A policy and a dump, with the precision that bounds their difference."""

    policy: Policy
    dump: Dump
    dtype: torch.dtype

    @classmethod
    def of(cls, policy: Policy, dump: Dump) -> DumpComparison:
        """Bounded by the coarser precision of the two."""
        own = next(policy.model.parameters()).dtype
        return cls(policy, dump, max(own, dump.dtype, key=_COARSE.index))


def codes_agree(compared: DumpComparison) -> Finding:
    """D1: codes of the clip."""
    name, codes, clip = "D1 codes of the clip", compared.dump.codes, compared.dump.turns[0].clip
    if codes is None or clip is None:
        return Finding(name, None, "the dump has none")
    own = compared.policy.decode_codes(compared.policy.encode_target(clip, ""), 0)
    theirs = codes.reshape(len(codes), -1)
    if len(own) != len(theirs):
        return Finding(name, False, f"{len(own)} codes, the makers' code gives {len(theirs)}")
    share = float((own != theirs).mean())
    return Finding(name, share <= CODES_APART[compared.dtype], f"{share:.1%} of {len(own)} codes differ")


def prompt_agrees(compared: DumpComparison) -> Finding:
    """D2: both streams of the prompt and the continuous positions; the codes themselves are D1's."""
    own, theirs, name = _prompt(compared), compared.dump.prompt, "D2 prompt"
    if own.length != theirs.length:
        return Finding(name, False, f"{own.length} positions, the makers' code gives {theirs.length}")
    marks = ~compared.dump.coded
    # Without audio streams the codes are among the text's ids.
    words = marks | bool(theirs.audio_ids.size)
    for what, first, second, where in (
        ("continuous positions", own.continuous, theirs.continuous, marks | True),
        ("text ids", own.text_ids, theirs.text_ids, words),
        ("audio ids", own.audio_ids, theirs.audio_ids, marks[:, None]),
    ):
        if len(wrong := np.argwhere((first != second) & where)):
            at = tuple(wrong[0])
            return Finding(name, False, f"{what}: {first[at]} for {second[at]}, first at {at[0]}, {len(wrong)} in all")
    return Finding(name, True, f"{own.length} positions in all streams")


def features_agree(compared: DumpComparison) -> Finding:
    """D3: continuous features of the clip."""
    own, theirs, name = _prompt(compared), compared.dump.prompt, "D3 continuous features"
    if theirs.features is None:
        return Finding(name, None, "the prompt has none")
    expected = theirs.features[theirs.continuous]
    features = None if own.features is None else own.features[own.continuous]
    if features is None or features.shape != expected.shape:
        return Finding(name, False, f"{None if features is None else features.shape}, the makers' code gives {expected.shape}")
    apart = spreads_apart(features, expected)
    return Finding(name, apart <= APART[compared.dtype], f"{apart:.2e} of their spread apart")


def logits_agree(compared: DumpComparison) -> Finding:
    """D4: logits of every slot along the makers' greedy answer, up to a constant of each step, which no softmax sees."""
    dump = compared.dump
    logits = compared.policy.answer_logits(dump.prompt, dump.greedy)
    slots = [slot for block in dump.greedy for slot in block.slots]
    said, ok = [], True
    for slot, own, theirs in zip(slots, logits, dump.logits, strict=True):
        if own.shape != theirs.shape:
            return Finding("D4 logits", False, f"{slot}: {own.shape}, the makers' code gives {theirs.shape}")
        steps = np.flatnonzero(~np.isnan(theirs[:, 0]))
        centred = (part[steps] - part[steps].mean(1, keepdims=True) for part in (own, theirs))
        apart = np.array([spreads_apart(*pair) for pair in zip(*centred, strict=True)])
        ok = ok and bool((apart <= APART[compared.dtype]).all())
        worst = int(apart.argmax())
        said.append(f"{slot} {apart[worst]:.2e} of their spread apart at step {steps[worst]}, {len(steps)} steps")
    return Finding("D4 logits", ok, "; ".join(said))


def greedy_agrees(compared: DumpComparison) -> Finding:
    """D5: the most probable answer, up to the first step at which rounding may choose either of two tokens."""
    dump, name = compared.dump, "D5 greedy tokens"
    steps = [block.tokens.shape[1] for block in dump.greedy]
    sampling = Sampling(max_steps=max(steps), text_top_k=1, audio_top_k=1)
    (made,) = compared.policy.generate(SampleRequest([dump.prompt], [[0]], sampling))
    logits = iter(dump.logits)
    for own, block in zip(made.blocks, dump.greedy, strict=True):
        rows = [next(logits) for _ in block.slots]
        for step in range(block.tokens.shape[1]):
            if step >= own.tokens.shape[1] or not np.array_equal(own.sampled[0, step], block.sampled[0, step]):
                return Finding(name, False, f"step {step}: other slots are drawn than by the makers' code")
            for slot, label in enumerate(block.slots):
                mine, theirs = own.tokens[0, step, slot], block.tokens[0, step, slot]
                if not block.sampled[0, step, slot] or mine == theirs:
                    continue
                row = rows[slot][step]
                lead = row[theirs] - row[mine]
                if abs(lead) <= 2 * APART[compared.dtype] * row.std():
                    detail = f"equal for {step} steps of {block.slots[0]}; then rounding may choose either of two tokens"
                    return Finding(name, step > 0 or None, detail)
                return Finding(name, False, f"step {step}, {label}: {mine} for {theirs}, which leads by {lead:.3f}")
    return Finding(name, True, f"{' and '.join(map(str, steps))} steps")


def sound_agrees(compared: DumpComparison) -> Finding:
    """D6: sound for given codes and noise."""
    name, dump = "D6 sound for given codes", compared.dump
    if dump.sound is None:
        return Finding(name, None, "the dump has none")
    noise = torch.randn(len(dump.noise), generator=torch.Generator().manual_seed(dump.sound_seed)).tolist()
    if not np.allclose(noise, dump.noise):
        return Finding(name, None, f"seed {dump.sound_seed} draws other noise here than in the torch that wrote the dump")
    own = compared.policy.decode_audio(dump.sound_tokens, 0, dump.sound_seed)
    if len(own.samples) != len(dump.sound.samples) or own.sample_rate_hz != dump.sound.sample_rate_hz:
        measured = f"{len(own.samples)} samples at {own.sample_rate_hz} Hz"
        return Finding(name, False, f"{measured}, the makers' {len(dump.sound.samples)} at {dump.sound.sample_rate_hz}")
    apart = spectra_apart_db(own.samples, dump.sound.samples)
    return Finding(name, apart <= SOUND_APART_DB[compared.dtype], f"spectra {apart:.3f} dB apart over {own.duration_s:.2f} s")


PARTS: tuple[Callable[[DumpComparison], Finding], ...] = (
    codes_agree,
    prompt_agrees,
    features_agree,
    logits_agree,
    greedy_agrees,
    sound_agrees,
)


def check_against(policy: Policy, dump: Dump) -> Iterator[Finding]:
    """Compare part by part; a part that cannot be compared at all has failed, with the reason."""
    compared = DumpComparison.of(policy, dump)
    for part in PARTS:
        try:
            yield part(compared)
        except (PolicyError, RuntimeError, ValueError, IndexError) as error:
            yield Finding((part.__doc__ or "").replace(":", "").rstrip("."), False, one_line(error))


def spreads_apart(own: np.ndarray, theirs: np.ndarray) -> float:
    """Root mean square of the difference in standard deviations of `theirs`."""
    spread = float(theirs.astype(np.float64).std()) or 1.0
    return float(np.sqrt(np.mean((own.astype(np.float64) - theirs.astype(np.float64)) ** 2)) / spread)


def spectra_apart_db(own: np.ndarray, theirs: np.ndarray) -> float:
    """Mean distance of two sounds' short-time magnitudes in dB; what is 60 dB below the loudest counts as silence."""
    if not len(theirs):
        return 0.0
    first, second = (_magnitudes(samples) for samples in (own, theirs))
    floor = max(float(first.max()), float(second.max()), 1e-12) * 10 ** (-_FLOOR_DB / 20)
    return float(np.mean(np.abs(20 * np.log10(np.maximum(first, floor) / np.maximum(second, floor)))))


def _magnitudes(samples: np.ndarray) -> np.ndarray:
    padded = np.pad(samples.astype(np.float64), (0, max(_WINDOW - len(samples), 0)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    return np.abs(np.fft.rfft(frames * np.hanning(_WINDOW), axis=1))


def _prompt(compared: DumpComparison) -> Prompt:
    return compared.policy.encode_prompt(compared.dump.turns)
