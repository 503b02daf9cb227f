"""`tools/dump_official.py` on tiny random instances of the true classes, compared by what `check-policy --against` runs.

Moshi, CSM and the Qwen-Omnis are transformers' own classes and their `generate`; GLM-4-Voice's and Step-Audio 2's decoders are
transformers' GLM and Qwen2 with the makers' prompt, written out here. Kimi-Audio and MiniMind-O: test_trained_checks.py,
test_minimind_o.py. Not covered: released weights, the makers' own packages, their processors.
"""

from __future__ import annotations

import re
import sys
import types
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import csm, moshi, qwen3_omni, qwen_omni
from tiny.interleaved import sliding, tiny_glm, tiny_step
from tiny.moshi import tone
from torch import nn

from paras2s.audio.clip import Clip
from paras2s.policy import csm as csm_module
from paras2s.policy import moshi as moshi_module
from paras2s.policy.base import Policy
from paras2s.policy.csm import CsmPolicy
from paras2s.policy.interleaved import glm4_voice as glm_module
from paras2s.policy.interleaved.base import InterleavedPolicy
from paras2s.policy.moshi import MoshiPolicy
from paras2s.policy.official import Dump, check_against, read_dump
from paras2s.policy.qwen3_omni import Qwen3OmniPolicy
from paras2s.policy.qwen_omni import Qwen25Network, QwenOmniPolicy
from paras2s.policy.types import Turn

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from dumps import files, frames, interleaved, omni

GIVEN = Namespace(model="released", steps=6, seed=3, sound_codes=5, text="Hi", reply="Ho", device="cpu", dtype="float64",
                  tokenizer="", decoder="", clip=Path("question.wav"))  # fmt: skip
# Whose greedy replies do not end at once, and whose sound ends.
SEED, SEED3 = 2, 8
Case = tuple[Policy, Clip, Any]


def moshi_case() -> Case:
    clip = tone(0.45, 16_000, 200)
    made = frames.moshi_parts(moshi.tiny_released(), clip.samples, GIVEN.steps, GIVEN.sound_codes)
    return MoshiPolicy(moshi.tiny_released(), moshi.tiny_tokenizer(12)), clip, made


def csm_case() -> Case:
    clip = tone(0.45, 16_000, 200)
    released, tokenizer = csm.tiny_released(), csm.tiny_tokenizer()
    samples = files.resampled(clip.samples, 24_000, 12.5)
    said = "<|begin_of_text|>[1]Hi<|end_of_text|>" + "<|AUDIO|>" * 6 + "<|audio_eos|><|begin_of_text|>[0]Ho<|end_of_text|>"
    ids = torch.tensor([tokenizer(said, add_special_tokens=False)["input_ids"]])
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "input_values": torch.from_numpy(samples)[None, None],
        "input_values_cutoffs": torch.tensor([[len(samples)]]),
    }  # fmt: skip
    return CsmPolicy(csm.tiny_released(), tokenizer), clip, frames.csm_parts(released, inputs, samples, GIVEN)


def qwen_case() -> Case:
    clip, tokenizer = qwen_omni.noise_clip(0, 0.3), qwen_omni.tiny_tokenizer()
    released = qwen_omni.tiny_model(tokenizer, seed=SEED)
    released.speaker_map = qwen_omni.tiny_speakers()
    policy = QwenOmniPolicy(qwen_omni.tiny_model(tokenizer, seed=SEED), tokenizer, qwen_omni.tiny_speakers())
    inputs = qwen_omni.released_inputs(policy, [[Turn("user", clip=clip)]])
    return policy, clip, omni.qwen_parts(released, inputs, policy.ids.end, "Chelsie", GIVEN)


def qwen3_case() -> Case:
    clip, tokenizer = qwen_omni.noise_clip(0, 1.13), qwen3_omni.tiny_tokenizer()
    policy = Qwen3OmniPolicy(qwen3_omni.tiny_model(tokenizer, seed=SEED3), tokenizer)
    released = qwen3_omni.tiny_model(tokenizer, seed=SEED3)
    released.set_experts_implementation("eager")
    end = policy.special["<|im_end|>"]
    ids = torch.from_numpy(policy.encode_prompt([Turn("user", clip=clip)]).text_ids)[None]
    mel = policy.mel(clip.samples, sampling_rate=16_000, padding="longest", truncation=False, return_attention_mask=True,
                     return_tensors="pt")  # fmt: skip
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": mel["input_features"].double(),
        "feature_attention_mask": mel["attention_mask"],
    }  # fmt: skip
    return policy, clip, omni.qwen3_parts(released, inputs, end, "Ethan", GIVEN)


class PlayedTokenizer:
    """Names of special tokens are ids, all else is the policy's words, behind the prefix that ChatGLM's adds."""

    def __init__(self, policy: InterleavedPolicy, prefix: tuple[str, ...] = ()) -> None:
        self.policy, self.prefix = policy, prefix

    def convert_tokens_to_ids(self, name: str) -> int:
        known = self.policy.tokens
        numbered = re.fullmatch(r"(<\|?audio_)(\d+)(\|?>)", name)
        if name in known or numbered is None:
            return known[name]
        return self.policy.first_audio + int(numbered[2])

    def ids(self, text: str) -> list[int]:
        made = [self.convert_tokens_to_ids(name) for name in self.prefix]
        for part in re.split(r"(<\|?[A-Za-z_]+(?:\d+)?\|?>)", text):
            special = re.fullmatch(r"<\|?[A-Za-z_]+(?:\d+)?\|?>", part)
            made += [self.convert_tokens_to_ids(part)] if special else self.policy.words.encode(part)
        return made

    def __call__(self, texts: list[str], return_tensors: str) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([self.ids(texts[0])])}


def exported(policy: InterleavedPolicy, folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    policy.export_hf(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def glm_case(folder: Path, patch: pytest.MonkeyPatch) -> Case:
    import transformers

    policy, clip = tiny_glm(), sliding(0.45, 16_000, 200)
    # Opened before what it opens is played.
    encode = policy.tokenizer.encode
    played = types.ModuleType("speech_tokenizer.utils")
    played.extract_speech_token = lambda *given: [  # type: ignore[attr-defined]
        encode(Clip(given[2][0][0][0].numpy(), given[2][0][1])).tolist()
    ]
    modelling = types.ModuleType("speech_tokenizer.modeling_whisper")
    modelling.WhisperVQEncoder = types.SimpleNamespace(from_pretrained=lambda _: nn.Identity())  # type: ignore[attr-defined]
    for name, module in (("utils", played), ("modeling_whisper", modelling)):
        patch.setitem(sys.modules, f"speech_tokenizer.{name}", module)
    patch.setitem(sys.modules, "speech_tokenizer", types.ModuleType("speech_tokenizer"))
    vocoder = types.ModuleType("flow_inference")
    vocoder.AudioDecoder = lambda *files, device: types.SimpleNamespace(  # type: ignore[attr-defined]
        offline_inference=lambda codes: torch.from_numpy(policy.decoder.decode(codes[0].numpy(), 3).samples)[None]
    )
    patch.setitem(sys.modules, "flow_inference", vocoder)
    patch.setattr(transformers.AutoModel, "from_pretrained", lambda *_, **__: exported(policy, folder))
    tokenizer = PlayedTokenizer(policy, ("[gMASK]", "<sop>"))
    patch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    patch.setattr(transformers.WhisperFeatureExtractor, "from_pretrained", lambda _: None)
    return policy, clip, interleaved.glm4_voice(Namespace(**{**vars(GIVEN), "decoder": "decoder"}), clip.samples)


class PlayedStep(nn.Module):
    """As much of the makers' network as the tool calls: Qwen2, and an adapter whose states go where the patches are."""

    def __init__(self, policy: Any, clip: Clip, folder: Path) -> None:
        super().__init__()
        self.policy, self.clip, self.qwen, self.adapter = policy, clip, exported(policy, folder), nn.Identity()
        self.dtype = torch.float64

    def generate(self, input_ids: torch.Tensor, generation_config: Any, **_: Any) -> Any:
        # Longer than its patches, as a padded piece is.
        vectors = torch.from_numpy(self.policy.audio_encoder.features(self.clip.samples)).double()
        states = self.adapter(torch.nn.functional.pad(vectors, (0, 0, 0, 3))[None])
        x = self.qwen.get_input_embeddings()(input_ids)
        x[input_ids == self.policy.tokens["<audio_patch>"]] = states[0, : len(vectors)]
        made = self.qwen.generate(
            inputs_embeds=x, attention_mask=torch.ones_like(input_ids), generation_config=generation_config
        )
        made.sequences = torch.cat([input_ids, made.sequences], 1)
        return made


def step_case(folder: Path, patch: pytest.MonkeyPatch) -> Case:
    from transformers import GenerationConfig

    policy, clip = tiny_step(), sliding(0.45, 16_000, 200)

    class StepAudio2:
        def __init__(self, path: str) -> None:
            self.llm_tokenizer, self.llm = PlayedTokenizer(policy), PlayedStep(policy, clip, folder)

        def __call__(self, messages: list[dict[str, Any]], max_new_tokens: int) -> torch.Tensor:
            patches = "<audio_patch>" * len(policy.audio_encoder.features(clip.samples))
            text = ""
            for message in messages:
                sound = f"<audio_start>{patches}<audio_end>"
                said = message["content"] if isinstance(message["content"], str) else sound
                text += f"<|BOT|>{message['role']}\n{said}" + ("<|EOT|>" if message.get("eot", True) else "")
            ids = torch.tensor([self.llm_tokenizer.ids(text)])
            config = GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=policy.tokens["<|EOT|>"], pad_token_id=256)
            return self.llm.generate(input_ids=ids, wavs=None, wav_lens=None, generation_config=config)[0, ids.shape[1] : -1]

    played = types.ModuleType("stepaudio2")
    played.StepAudio2 = StepAudio2  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "stepaudio2", played)
    return policy, clip, interleaved.step_audio2(GIVEN, clip.samples)


CASES: dict[str, Callable[[Path, pytest.MonkeyPatch], Case]] = {
    "moshi": lambda *_: moshi_case(), "csm": lambda *_: csm_case(), "qwen_omni": lambda *_: qwen_case(),
    "qwen3_omni": lambda *_: qwen3_case(), "glm4_voice": glm_case, "step_audio2": step_case,
}  # fmt: skip
# What a family's code does not give: codes of speech, features, sound.
MISSING = {"moshi": {"D3"}, "csm": {"D3"}, "qwen_omni": {"D1"}, "qwen3_omni": {"D1"}, "glm4_voice": {"D3"},
           "step_audio2": {"D1", "D6"}}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Policy, Dump]:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        policy, clip, made = CASES[request.param](folder / "hf", patch)
    files.write(made, folder / "dump.safetensors", "released", clip.samples, GIVEN.seed)
    return request.param, policy, read_dump(folder / "dump.safetensors")


def first_failed(policy: Policy, dump: Dump) -> str | None:
    return next((one.name[:2] for one in check_against(policy, dump) if one.ok is False), None)


def test_the_policy_agrees_with_the_makers_code(compared: tuple[str, Policy, Dump]) -> None:
    name, policy, dump = compared
    result = {one.name[:2]: one for one in check_against(policy, dump)}
    wrong = {key: one.detail for key, one in result.items() if one.ok is not True}
    assert wrong.keys() == MISSING[name], wrong
    assert "then rounding" not in result["D5"].detail
    assert sum(block.tokens.shape[1] for block in dump.greedy) >= 4


def without_the_codecs_pad(policy: Any, patch: pytest.MonkeyPatch) -> None:
    marks = Qwen25Network.marks

    def other(network: Any) -> Any:
        begin, end, pad = marks(network)
        return begin - network.codec(torch.tensor(policy.ids.codec_pad)), end, pad

    patch.setattr(Qwen25Network, "marks", other)


def another_layer_is_read(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy.model, "tapped_layer", 0)


def turned_otherwise(policy: Any, patch: pytest.MonkeyPatch) -> None:
    changed = policy.config.model_copy(update={"rope_theta": policy.config.rope_theta / 100})
    patch.setattr(policy.model, "dual_config", changed)


# A family's weights read otherwise, and the part of the dump that differs first.
MISREAD: dict[str, tuple[Callable[[Any, pytest.MonkeyPatch], None], str]] = {
    "moshi": (lambda _, patch: patch.setattr(moshi_module, "PAUSE_FRAMES", 1), "D2"),
    "csm": (lambda _, patch: patch.setattr(csm_module, "SPEAKERS", {"user": 0, "assistant": 1}), "D2"),
    "qwen_omni": (without_the_codecs_pad, "D4"),
    "qwen3_omni": (another_layer_is_read, "D4"),
    "glm4_voice": (lambda _, patch: patch.setattr(glm_module, "SPEECH_INSTRUCTION", "Answer. "), "D2"),
    "step_audio2": (turned_otherwise, "D4"),
}


def test_weights_read_otherwise_differ(compared: tuple[str, Policy, Dump], monkeypatch: pytest.MonkeyPatch) -> None:
    name, policy, dump = compared
    misread, first = MISREAD[name]
    misread(policy, monkeypatch)
    assert first_failed(policy, dump) == first


def test_codes_in_the_prompt_are_compared_as_codes(compared: tuple[str, Policy, Dump]) -> None:
    """A code that falls to the other side is D1's, and no other prompt; a mark that is another is."""
    _, policy, dump = compared
    if dump.codes is None:
        return
    prompt = dump.prompt
    text, audio = prompt.text_ids.copy(), prompt.audio_ids.copy()
    ids = audio if audio.size else text
    ids[np.flatnonzero(dump.coded)[0]] += 1
    other = replace(dump, prompt=replace(prompt, text_ids=text, audio_ids=audio), codes=dump.codes + 1)
    codes, prompts = islice(check_against(policy, other), 2)
    assert (codes.ok, prompts.ok) == (False, True)
    text[-1] += 1
    assert first_failed(policy, replace(other, codes=dump.codes)) == "D2"


# Nobody else publishes weights or answers of these.
MADE_HERE = {"embedded", "spoken_lm"}


def test_the_tool_knows_every_family() -> None:
    from dump_official import FAMILIES, parsed

    from paras2s.policy.registry import POLICIES

    assert set(FAMILIES) == set(POLICIES) - MADE_HERE
    given = parsed(["csm-1b", "--family", "csm", "--clip", "q.wav", "--out", "csm.safetensors"])
    assert (given.steps, given.sound_codes, given.reply) == (48, 75, "Hello there.")
