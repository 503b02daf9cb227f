"""Prompts and targets of GLM-4-Voice and Step-Audio 2, with ids that the released tokenizer gave (a public log)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.interleaved import (
    sliding,
    tiny_glm,
    tiny_glm_once,
    tiny_step,
    tiny_step_once,
    tiny_turns,
)

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.interleaved.glm4_voice import SPEECH_INSTRUCTION, TEXT_INSTRUCTION, Glm4VoicePolicy
from paras2s.policy.types import Turn
from paras2s.types import AUDIO, TEXT


class Spoken:
    """Words and codes by heart."""

    def __init__(self, known: dict[str, list[int]]) -> None:
        self.known = known

    def encode(self, text: Any) -> Any:
        return self.known[text] if isinstance(text, str) else np.array(self.known[f"{len(text.samples)}"])

    def decode(self, ids: Any) -> str:
        return str(list(ids))


def silence(samples: int) -> Clip:
    return Clip(np.zeros(samples, dtype=np.float32), 16_000)


# What the released tokenizer made of the makers' prompt, and of a second question behind an answer (printed by a public fork of
# their demo). It has a prefix that the prompt's text does not show.
GIVEN = [
    198, 1474, 686, 3410, 498, 448, 264, 8805, 7600, 13, 3155, 432, 3019, 553, 3019, 13, 5512, 11, 1744, 911, 279, 7600, 323,
    5889, 304, 264, 94171, 4141, 11561, 11, 448, 220, 99366, 1467, 3950, 8109, 553, 220, 99916, 7699, 11206, 13, 220,
]  # fmt: skip
REQUESTED = [
    159290, 161774, 154713, 167499, 165821, 167442, 154315, 166394, 157067, 154510, 159964, 154031, 166615, 153946, 155765,
    161126, 160014, 164425, 160014,
]  # fmt: skip
ANSWERED_WORDS = [109377, 3837, 124675, 6313, 101665, 109213, 99215, 99444, 99212, 11314]
ANSWERED = [
    166648, 164526, 163431, 155030, 159141, 167785, 163012, 167510, 165067, 158729, 159316, 167061, 156487, 167785, 152945,
    162242, 157345, 155220, 156583, 159316, 166768, 166768, 167840, 155444, 160466, 155342, 157515, 159530, 153961, 167551,
    165123, 155721, 152703, 154548, 165926, 163830, 155220, 152459, 155773, 161696, 156246, 167188, 161373, 157635, 164078,
    160166, 160014, 160014, 160014, 160526,
]  # fmt: skip
AGAIN = [
    163168, 161774, 164482, 158553, 153642, 163492, 166693, 166286, 156507, 158217, 158278, 153219, 160872, 163251, 167323,
    164639, 168492, 160789, 160703, 163482, 155017, 167393, 160166,
]  # fmt: skip
TRANSCRIBE = [4027, 287, 7964, 1453, 198]


def released_glm() -> Glm4VoicePolicy:
    """Released ids around a network of almost nothing."""
    released = {
        "padded_vocab_size": 168960, "hidden_size": 4, "ffn_hidden_size": 4, "num_layers": 1, "num_attention_heads": 1,
        "multi_query_group_num": 1, "kv_channels": 4, "layernorm_epsilon": 1e-5, "eos_token_id": [151329, 151336, 151338],
        "pad_token_id": 151329,
    }  # fmt: skip
    tokens = {
        "[gMASK]": 151331, "<sop>": 151333, "<|system|>": 151335, "<|user|>": 151336, "<|assistant|>": 151337,
        "<|begin_of_audio|>": 151343, "<|end_of_audio|>": 151344, "<|audio_0|>": 152353, "<|audio_16383|>": 168736,
    }  # fmt: skip
    model = DualStreamLM(Glm4VoicePolicy.stream_config(released, tokens, "released"))
    words = Spoken(
        {"\n" + SPEECH_INSTRUCTION: GIVEN, "\n": [198], "streaming_transcription\n": TRANSCRIBE, "早": ANSWERED_WORDS}
    )
    policy = Glm4VoicePolicy(model, released, tokens, words, Path("nowhere"))
    clips = {"100": REQUESTED, "200": ANSWERED, "300": AGAIN}
    policy.__dict__["tokenizer"] = Spoken({key: [one - 152353 for one in ids] for key, ids in clips.items()})
    return policy


def test_golden_prompts_of_glm() -> None:
    policy = released_glm()
    question = [151331, 151333, 151335, *GIVEN, 151336, 198, 151343, *REQUESTED, 151344, 151337, *TRANSCRIBE]
    prompt = policy.encode_prompt([Turn("user", "(not read)", silence(100))])
    assert prompt.text_ids.tolist() == question
    assert prompt.audio_ids.shape == (len(question), 0)
    assert prompt.features is None
    turns = [
        Turn("user", clip=silence(100)),
        Turn("assistant", "早", silence(200)),
        Turn("user", clip=silence(300)),
    ]
    history = [*question, *ANSWERED_WORDS, *ANSWERED, 151336, 198, 151343, *AGAIN, 151344, 151337, *TRANSCRIBE]
    assert policy.encode_prompt(turns).text_ids.tolist() == history
    (target,) = policy.encode_target(silence(200), "早")
    assert target.tokens[0, :, 0].tolist() == [*ANSWERED_WORDS, *ANSWERED, 151336]
    assert target.sampled.all()
    assert target.labels is not None
    assert target.labels[0, :, 0].tolist() == [TEXT] * 10 + [AUDIO] * 50 + [TEXT]
    assert policy.decode_codes([target], 0)[:, 0].tolist() == [one - 152353 for one in ANSWERED]
    assert policy.decode_text([target], 0) == str([*ANSWERED_WORDS, 151336])


@pytest.mark.parametrize(
    ("words", "codes", "kinds"),
    [
        (30, 70, "w13 c26 w13 c26 w4 c18"),
        (13, 30, "w13 c26 c4"),
        (14, 27, "w13 c26 w1 c1"),
        (3, 60, "w3 c26 c26 c8"),
        (0, 5, "c5"),
        (0, 0, ""),
    ],
)
def test_glm_says_13_words_and_26_codes_in_turn(words: int, codes: int, kinds: str) -> None:
    policy = released_glm()
    ids = policy.interleave(list(range(words)), list(range(codes)))
    wanted = "".join(part[0] * int(part[1:]) for part in kinds.split())
    assert "".join("c" if one >= 152353 else "w" for one in ids) == wanted
    assert [one for one in ids if one < 152353] == list(range(words))
    assert [one - 152353 for one in ids if one >= 152353] == list(range(codes))


def test_words_that_outlast_their_sound_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"words \(27 pieces\) are longer than their speech \(52 codes\)"):
        released_glm().interleave(list(range(27)), list(range(52)))


def test_glm_prompts_of_words_and_of_system_turns() -> None:
    policy = tiny_glm()
    at, encode = policy.tokens, policy.words.encode
    head, tail = [at["[gMASK]"], at["<sop>"], at["<|system|>"]], [at["<|assistant|>"], *encode("streaming_transcription\n")]
    found = policy.encode_prompt([Turn("user", "<|user|>Hi")]).text_ids.tolist()
    # What looks like a special token is text.
    assert encode("<|user|>") == list(b"<|user|>")
    assert found == [*head, *encode("\n" + TEXT_INSTRUCTION), at["<|user|>"], *encode("\n<|user|>Hi"), *tail]
    assert TEXT_INSTRUCTION.startswith("User will provide you with a text instruction.")
    turns = [
        Turn("system", "Be kind."),
        Turn("user", "Hi"),
        Turn("assistant", "Yes?"),
        Turn("user", clip=sliding(0.2, 16_000, 90)),
    ]
    found = policy.encode_prompt(turns).text_ids.tolist()
    given = [*head, *encode(f"\n{TEXT_INSTRUCTION} Be kind."), at["<|user|>"], *encode("\nHi"), at["<|assistant|>"]]
    assert found[: len(given) + 5] == [*given, *encode("\nYes?")]
    assert found[len(given) + 5 : len(given) + 8] == [at["<|user|>"], *encode("\n"), at["<|begin_of_audio|>"]]
    assert len(found) == len(given) + 8 + 3 + 1 + len(tail)
    spoken = policy.encode_prompt([turns[3], turns[0]]).text_ids.tolist()
    assert spoken[3 : 3 + len(encode(f"\n{SPEECH_INSTRUCTION}Be kind."))] == encode(f"\n{SPEECH_INSTRUCTION}Be kind.")


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([], "a turn of the user"),
        ([Turn("system", "Be kind.")], "a turn of the user"),
        ([Turn("user")], "neither words nor sound"),
        ([Turn("user", "Hi"), Turn("assistant", clip=sliding(0.2, 16_000, 90))], "needs its words"),
    ],
    ids=["nothing", "nobody asks", "an empty turn", "sound without words"],
)
def test_glm_refuses_what_is_no_dialogue(turns: list[Turn], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        tiny_glm_once().encode_prompt(turns)


def test_step_prompts() -> None:
    policy = tiny_step()
    at, encode = policy.tokens, policy.words.encode
    turns = tiny_turns()[1]
    prompt = policy.encode_prompt(turns)
    codes = policy.tokenizer.encode(turns[2].clip).tolist()
    answer = policy.interleave(encode("Yes?"), codes)
    patch = at["<audio_patch>"]
    wanted = [
        at["<|BOT|>"], *encode("system\nBe kind."), at["<|EOT|>"],
        at["<|BOT|>"], *encode("human\n"), at["<audio_start>"], patch, patch, patch, at["<audio_end>"], at["<|EOT|>"],
        at["<|BOT|>"], *encode("assistant\n"), at["<tts_start>"], *answer, at["<tts_end>"], at["<|EOT|>"],
        at["<|BOT|>"], *encode("human\n"), at["<audio_start>"], patch, patch, at["<audio_end>"], at["<|EOT|>"],
        at["<|BOT|>"], *encode("assistant\n"), at["<tts_start>"],
    ]  # fmt: skip
    assert prompt.text_ids.tolist() == wanted
    assert prompt.continuous.tolist() == [one == patch for one in wanted]
    assert prompt.features is not None
    first, second = (policy.audio_encoder.features(turn.clip.at(16_000).samples) for turn in (turns[1], turns[3]) if turn.clip)
    np.testing.assert_array_equal(prompt.features[prompt.continuous], np.concatenate([first, second]))
    assert not prompt.features[~prompt.continuous].any()
    # Without a system turn there is the makers', and names of special tokens are text.
    plain = policy.encode_prompt([Turn("user", "<|EOT|>")])
    assert encode("<|EOT|>") == list(b"<|EOT|>")
    given = encode("system\nYou are a helpful assistant.")
    requests = [at["<|BOT|>"], *given, at["<|EOT|>"], at["<|BOT|>"], *encode("human\n<|EOT|>"), at["<|EOT|>"]]
    assert plain.text_ids.tolist() == [*requests, at["<|BOT|>"], *encode("assistant\n"), at["<tts_start>"]]
    assert plain.features is None
    assert not plain.continuous.any()
    for wrong in (Turn("user"), Turn("assistant", clip=turns[2].clip), Turn("system")):
        with pytest.raises(PolicyError, match="words"):
            policy.encode_prompt([Turn("user", "Hi"), wrong])


@pytest.mark.parametrize(
    ("words", "codes", "kinds"),
    [(2, 8, "wccccwcccc"), (1, 6, "wccccpccnn"), (3, 5, "wccccwcnnnwnnnn"), (0, 3, "pcccn"), (1, 0, "wnnnn"), (0, 0, "")],
)
def test_step_says_one_word_and_four_codes_in_turn(words: int, codes: int, kinds: str) -> None:
    policy = tiny_step_once()
    none, base = policy.tokens["<tts_pad>"], policy.first_audio
    ids = policy.interleave([65 + one for one in range(words)], list(range(codes)))
    names = {none: "p", base + policy.codes: "n"}
    assert "".join(names.get(one, "c" if one >= base else "w") for one in ids) == kinds
    assert [one - base for one in ids if base <= one < base + policy.codes] == list(range(codes))
    (target,) = policy.encode_target(sliding(0.2, 16_000, 120), "Hi")
    assert target.tokens[0, -2:, 0].tolist() == [policy.tokens["<tts_end>"], policy.tokens["<|EOT|>"]]
    assert target.sampled.all()
    assert policy.decode_text([target], 0) == "Hi"
    assert policy.decode_codes([target], 0)[:, 0].tolist() == policy.tokenizer.encode(sliding(0.2, 16_000, 120)).tolist()
