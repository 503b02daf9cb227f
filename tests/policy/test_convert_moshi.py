"""Moshi in Kyutai's own files, converted: its logits are those of the makers' code. PersonaPlex's prompt by hand.

`kyutai_golden.safetensors` is what `LMModel` of NVIDIA/personaplex (commit of 2026-03-02, MIT) gives in float64 for the weights
and tokens below, of three codebooks for each speaker; its depth decoder has all six, as PersonaPlex's. No code and no weights
of theirs are in it. Not covered: released weights, and Mimi in Kyutai's files.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pyloudnorm
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from tiny.minimind import waves
from tiny.moshi import tiny_released, tiny_tokenizer, tone
from torch import Tensor

from paras2s.audio.clip import read_clip
from paras2s.errors import PolicyError
from paras2s.policy.moshi import MoshiPolicy
from paras2s.policy.types import Turn

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/tiny/kyutai_golden.safetensors"
OWN, WORDS, CODES, STEPS = 3, 12, 8, 7
WIDE, NARROW = 24, 16
QUESTION = [Turn("user", clip=tone(0.4, 24_000, 200))]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convert_moshi", ROOT / "tools/convert_moshi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kyutai_state(depth: int) -> dict[str, Tensor]:
    """Their tensors by name, of waves; `depth` codebooks in the depth decoder."""
    shapes = {"text_emb.weight": (WORDS + 1, WIDE), "text_linear.weight": (WORDS, WIDE), "out_norm.alpha": (1, 1, WIDE)}
    shapes |= {f"emb.{k}.weight": (CODES + 1, WIDE) for k in range(2 * OWN)}
    shapes |= {"depformer_text_emb.weight": (WORDS + 1, NARROW)}
    shapes |= {f"depformer_emb.{k}.weight": (CODES + 1, NARROW) for k in range(depth - 1)}
    for k in range(depth):
        shapes |= {f"depformer_in.{k}.weight": (NARROW, WIDE), f"linears.{k}.weight": (CODES, NARROW)}
    for network, width, copies in (("transformer", WIDE, 1), ("depformer", NARROW, depth)):
        for layer in (f"{network}.layers.{number}" for number in range(2)):
            shapes |= {f"{layer}.norm{number}.alpha": (1, 1, width) for number in (1, 2)}
            shapes |= {f"{layer}.self_attn.in_proj_weight": (3 * width * copies, width)}
            shapes |= {f"{layer}.self_attn.out_proj.weight": (width * copies, width)}
            inner = 21 if copies == 1 else 16
            for gate in [f"{layer}.gating"] if copies == 1 else [f"{layer}.gating.{k}" for k in range(depth)]:
                shapes |= {f"{gate}.linear_in.weight": (2 * inner, width), f"{gate}.linear_out.weight": (width, inner)}
    return {name: waves(number, name, torch.Size(shapes[name])) * (1 if "norm" in name else 5 / 3)
            for number, name in enumerate(sorted(shapes))}  # fmt: skip


def converted(tool: ModuleType, state: dict[str, Tensor], folder: Path) -> MoshiPolicy:
    """The policy of a written and opened folder."""
    depth = {"num_attention_heads": 2, "max_position_embeddings": OWN + 1, "sliding_window": OWN}
    mimi = tiny_released(codebooks=OWN).audio_encoder
    model = tool.assembled(
        state, mimi, depth=depth, num_attention_heads=2, num_key_value_heads=2, head_dim=WIDE // 2,
        max_position_embeddings=120, sliding_window=120,
    )  # fmt: skip
    model.save_pretrained(folder)
    tiny_tokenizer(WORDS).save(str(folder / "tokenizer.json"))
    return MoshiPolicy.load(folder, dtype=torch.float64)


def test_logits_are_those_of_the_makers_code(tool: ModuleType, tmp_path: Path) -> None:
    policy, golden = converted(tool, kyutai_state(2 * OWN), tmp_path), load_file(GOLDEN)
    rng = np.random.default_rng(0)
    sequence = torch.from_numpy(rng.integers(0, CODES, (1, 1 + 2 * OWN, STEPS)))
    sequence[0, 0] = torch.from_numpy(rng.integers(0, WORDS, STEPS))
    sequence[0, 0, 0], sequence[0, 1:, 0] = WORDS, CODES
    words = torch.from_numpy(rng.integers(0, WORDS, STEPS))
    codes = torch.from_numpy(rng.integers(0, CODES, (STEPS, 2 * OWN)))
    with torch.no_grad():
        states = policy.model.read(sequence[:, 0], sequence[0, 1:].T[None])
        text = policy.model.decoder.lm_head(states)[0]
        spoken = policy.model.frames(states[0], torch.column_stack([words, codes[:, : OWN - 1]]))
    # The makers' depth decoder goes on with the user's codes, which are cut off here. Norms are in float32 on both sides.
    for found, expected in ((text, golden["text_logits"]), (spoken, golden["code_logits"][:, :OWN])):
        torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.std()), rtol=0)


def test_moshi_itself_has_its_own_codebooks_alone(tool: ModuleType, tmp_path: Path) -> None:
    assert converted(tool, kyutai_state(OWN), tmp_path).model.codebooks == OWN


def test_other_files_are_refused_by_name(tool: ModuleType, tmp_path: Path) -> None:
    state = kyutai_state(OWN)
    del state["transformer.layers.1.norm2.alpha"]
    with pytest.raises(SystemExit, match=r"not a Moshi in Kyutai's files: .*1.post_attention_layernorm.weight"):
        converted(tool, state, tmp_path)


def test_personaplexs_prompt_by_hand(tool: ModuleType, tmp_path: Path) -> None:
    """A voice, six silent frames, a frame a word, six silent ones; then the question. A tone is on the user's side."""
    policy = converted(tool, kyutai_state(OWN), tmp_path)
    plain = policy.encode_prompt(QUESTION)
    soundfile.write(tmp_path / "v.wav", tone(1.0, 24_000, 300).samples, 24_000)
    tool.introduce(tmp_path, "c a", tmp_path / "v.wav")
    voice = read_clip(tmp_path / "voice.wav")
    assert pyloudnorm.Meter(24_000).integrated_loudness(voice.samples) == pytest.approx(-24, abs=0.1)
    policy = MoshiPolicy.load(tmp_path, dtype=torch.float64)
    introduced = policy.encode_prompt(QUESTION)
    codes, humming = policy._codes_of(voice), policy._settled(440)
    assert humming.tolist() != policy.silence.tolist()
    # "c" is 6 and "a" is 4; the tiny tokenizer takes <system> for three unknown words.
    words = [3] * (len(codes) + 6) + [0, 0, 0, 6, 4, 0, 0, 0] + [3] * 6
    frames = len(words)
    assert introduced.text_ids.tolist() == [WORDS, *words, *plain.text_ids[1:]]
    own, user = introduced.audio_ids[:, :OWN], introduced.audio_ids[:, OWN:]
    expected = np.concatenate([codes, np.tile(policy.silence, (frames - len(codes), 1))])
    np.testing.assert_array_equal(own[1 : frames + 1, 0], expected[:, 0])
    np.testing.assert_array_equal(own[2 : frames + 2, 1:], expected[:, 1:])
    assert (user[1 : frames + 1, 0] == humming[0]).all()
    assert (user[2 : frames + 2, 1:] == humming[1:]).all()
    np.testing.assert_array_equal(user[frames + 2 :], plain.audio_ids[2:, OWN:])
    policy.save(tmp_path / "again")
    again = MoshiPolicy.load(tmp_path / "again", dtype=torch.float64)
    np.testing.assert_array_equal(again.encode_prompt(QUESTION).audio_ids, introduced.audio_ids)
    assert again.encode_prompt(QUESTION).text_ids.tolist() == introduced.text_ids.tolist()


@pytest.mark.parametrize("persona", [{}, {"voice": "x"}, 3])
def test_a_persona_without_a_role_is_refused(persona: object, tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(json.dumps({"architecture": "Moshi", "text": {}, "persona": persona}))
    with pytest.raises(PolicyError, match=r"policy.json: 'text' or 'persona' does not fit"):
        MoshiPolicy.load(tmp_path)
