"""MiniMind-O: what its makers' code gives on a tiny checkpoint, its rules of an answer, and its files.

Not covered: released weights,
SenseVoice-Small (compared by hand with funasr 1.4.16 on a tiny random encoder), half precision.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.minimind import CODES, GOLDEN, PAD, STOP, TinyEncoder, tiny_minimind, write_minimind
from tiny.moshi import tone

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.answers import read_answer_settings
from paras2s.policy.minimind_o import MiniMindPolicy
from paras2s.policy.official import check_against, read_dump
from paras2s.policy.speech_tokenizers.sense_voice import SenseVoice
from paras2s.policy.types import SampleRequest, Sampling, Turn
from paras2s.types import Block


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> MiniMindPolicy:
    return tiny_minimind(tmp_path_factory.mktemp("minimind"), torch.float32)


def test_its_own_settings_of_answers_are_read(tmp_path: Path) -> None:
    settings = read_answer_settings(tmp_path, "minimind_o")
    assert settings is not None
    assert (settings.sampling.max_steps, settings.sampling.audio_top_k) == (512, 50)


def test_codes_prompt_logits_greedy_answer_and_sound_are_the_makers(policy: MiniMindPolicy) -> None:
    dump = read_dump(GOLDEN)
    found = list(check_against(policy, dump))
    assert [(one.name[:2], one.ok) for one in found] == [(f"D{n}", True) for n in range(1, 7)], found
    # The words come to an end: what follows them is forced, and vectors by the talker.
    words = dump.greedy[0].tokens[0, :, 0].tolist()
    end = words.index(2)
    assert words[end + 1 :] == [policy.marks["break"], *[0] * (len(words) - end - 2)]
    assert len(words) - end > 4
    assert not dump.greedy[0].sampled[0, end + 1 :, 0].any()


def test_the_words_of_earlier_turns_are_read_and_the_last_is_heard(policy: MiniMindPolicy) -> None:
    clip = tone(0.12, 16_000, 200)
    prompt = policy.encode_prompt([Turn("user", "ab", clip), Turn("assistant", "c<|im_end|>"), Turn("user", clip=clip)])
    said = policy.tokenizer.convert_ids_to_tokens(prompt.text_ids.tolist())
    start, end, thought = "<|im_start|>", "<|im_end|>", ["<think>", "Ċ", "Ċ", "</think>", "Ċ", "Ċ"]
    expected = [
        start, *"user", "Ċ", *"ab", end, "Ċ", start, *"assistant", "Ċ", *thought, *"c<|im_end|>", end, "Ċ",
        start, *"user", "Ċ", *["<|audio_pad|>"] * 2, end, "Ċ", start, *"assistant", "Ċ", *thought,
    ]  # fmt: skip
    assert said == expected
    assert prompt.features is not None
    np.testing.assert_array_equal(prompt.features[prompt.continuous], TinyEncoder().features(clip))
    assert (prompt.audio_ids == PAD).all()


def test_a_demonstration_starts_each_codebook_a_step_later_and_stops_it(policy: MiniMindPolicy) -> None:
    (block,) = policy.encode_target(tone(0.2, 24_000, 300), "hey")
    codes = policy.decode_codes([block], 0)
    assert codes.shape == (3, 8)
    assert (codes < CODES).all()
    tokens, sampled = block.tokens[0], block.sampled[0]
    assert tokens[:, 0].tolist() == [*policy.tokenizer("hey")["input_ids"], 2, policy.marks["break"], *[0] * 7]
    assert sampled[:, 0].tolist() == [True] * 4 + [False] * 8
    for k in range(8):
        assert tokens[:, 1 + k].tolist() == [*[PAD] * (k + 1), *codes[:, k], STOP, *[PAD] * (7 - k)]
        assert sampled[:, 1 + k].tolist() == [k < step <= k + 4 for step in range(12)]
    assert policy.decode_text([block], 0) == "hey"
    (longer,) = policy.encode_target(tone(0.02, 24_000, 300), "more words than sound")
    assert policy.decode_text([longer], 0) == "more words than sound"


def test_an_answer_ends_when_its_words_and_all_codebooks_have(policy: MiniMindPolicy) -> None:
    prompt = policy.encode_prompt([Turn("user", "hi")])
    hot = Sampling(20.0, 20.0, 80)
    (made,) = policy.generate(SampleRequest([prompt], [list(range(16))], hot))
    block, seen = made.blocks[0], set()
    for answer, finish in enumerate(made.finish_reason):
        tokens, sampled = block.tokens[answer], block.sampled[answer]
        over = sampled & np.concatenate([tokens[:, :1] == 2, tokens[:, 1:] >= CODES], 1)
        ended = np.maximum.accumulate(over, 0).all(1)
        steps = int(np.flatnonzero(sampled.any(1))[-1]) + 1
        assert finish == ("eos" if ended[steps - 1] else "length")
        assert not ended[: steps - 1].any()
        frames = policy.decode_codes([block], answer)
        firsts = [int(np.flatnonzero(tokens[k + 1 : steps, 1 + k] >= CODES)[0]) for k in range(8) if over[:, 1 + k].any()]
        assert len(frames) == min([*firsts, steps - 8])
        seen.add(finish)
    assert seen == {"eos", "length"}
    (silent,) = policy.generate(SampleRequest([prompt], [[1, 2]], Sampling(20.0, 1.0, 20, speak=False)))
    assert not silent.blocks[0].sampled[..., 1:].any()
    assert policy.decode_audio(silent.blocks, 0, 0).samples.shape == (0,)


def test_a_checkpoint_of_ours_has_the_makers_names_and_what_we_do_not_use(policy: MiniMindPolicy, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    MiniMindPolicy.check_folder(policy.folder)
    (policy.folder / "model_omni.py").write_text("# theirs\n")
    policy.save(tmp_path)
    MiniMindPolicy.check_folder(tmp_path)
    released = torch.load(policy.folder / "pytorch_model.bin", weights_only=True)
    del released["lm_head.weight"]
    ours = load_file(tmp_path / "model.safetensors")
    assert ours.keys() == released.keys()
    assert all(torch.equal(ours[name], value) for name, value in released.items())
    assert (tmp_path / "model_omni.py").is_file()
    loaded = MiniMindPolicy.load(tmp_path)
    assert (loaded.folder, loaded.mimi.config.codebook_size) == (tmp_path, CODES)


def test_frequencies_are_not_rounded_with_the_weights(policy: MiniMindPolicy) -> None:
    halved = MiniMindPolicy.load(policy.folder, dtype=torch.bfloat16)
    assert halved.model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert halved.model.talker.text_scale.dtype == torch.bfloat16


CLIP = Clip(np.zeros(4800, dtype=np.float32), 16_000)


@pytest.mark.parametrize(
    ("turns", "complaint"),
    [
        ([], "end the dialogue with the user's turn"),
        ([Turn("user", "a"), Turn("assistant", "b")], "end the dialogue with the user's turn"),
        ([Turn("user", clip=CLIP), Turn("assistant", "b"), Turn("user", clip=CLIP)], "give the words of the user's turn"),
        ([Turn("user", "x" * 400)], "MiniMind-O's context 400"),
    ],
)
def test_what_it_cannot_read_is_refused(policy: MiniMindPolicy, turns: list[Turn], complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        policy.encode_prompt(turns)


def test_without_its_audio_encoder_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = MiniMindPolicy.load(write_minimind(tmp_path / "minimind"))
    with pytest.raises(PolicyError, match="there is no SenseVoiceSmall in it or beside it"):
        deaf.encode_prompt([Turn("user", clip=CLIP)])
    (tmp_path / "SenseVoiceSmall").mkdir()
    monkeypatch.setitem(sys.modules, "funasr", None)
    with pytest.raises(PolicyError, match=r"pip install 'paras2s\[trace\]'"):
        deaf.encode_prompt([Turn("user", clip=CLIP)])


class Frontend:
    """Takes the place of funasr's filter bank, and of its encoder."""

    dither = 1.0

    def eval(self) -> Frontend:
        return self

    def __call__(self, wave: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return wave[:, : 960 * 3].view(1, 3, 960), torch.tensor([3])


class Encoder(torch.nn.Linear):
    def forward(self, mel: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(mel), counts


def test_the_same_clip_is_heard_the_same_and_silence_is_not_digital() -> None:
    frontend = Frontend()
    audio_encoder = SenseVoice(Encoder(960, 4), frontend)
    assert frontend.dither == 0
    vectors = audio_encoder.features(CLIP)
    assert vectors.shape == (3, 4)
    np.testing.assert_array_equal(vectors, audio_encoder.features(CLIP))
    assert len(np.unique(vectors[:, 0])) == 3
    with pytest.raises(PolicyError, match=r"a clip of 0.010 s; SenseVoice-Small hears 0.025 s"):
        audio_encoder.features(Clip(np.zeros(160, dtype=np.float32), 16_000))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"use_moe": True}, "use_moe is True; only False is built"),
        ({"bridge_layer": 3}, "bridge_layer 3 has no layer behind it"),
        ({"eos_token_id": 5}, "are .* to the config and"),
        ({"vocab_size": 20}, "is not MiniMind-O's: the model has 20 words"),
        ({"hidden_size": 64}, "tensors do not fit"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_before_its_weights_are_used(
    policy: MiniMindPolicy, tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    for file in policy.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    sizes = json.loads((policy.folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    with pytest.raises(PolicyError, match=complaint):
        MiniMindPolicy.check_folder(tmp_path)


def block_of(frames: list[list[int]]) -> Block:
    """Answers of eight codebooks, all sampled from their first step on, of the same words."""
    tokens = np.full((1, len(frames[0]) + 8, 9), PAD)
    sampled = np.zeros(tokens.shape, dtype=bool)
    for k, ids in enumerate(frames):
        tokens[0, k + 1 : k + 1 + len(ids), 1 + k], sampled[0, k + 1 : k + 1 + len(ids), 1 + k] = ids, True
    return Block(("text", *(f"audio{k}" for k in range(8))), tokens, sampled, np.zeros(tokens.shape))


def test_the_first_stop_of_any_codebook_ends_the_sound(policy: MiniMindPolicy) -> None:
    frames = [[k % CODES, 1, 2, STOP] for k in range(8)]
    frames[5] = [5, 1, CODES, 3]
    codes = policy.decode_codes([block_of(frames)], 0)
    assert codes.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [1] * 8]
