"""Checks of trained weights, and comparison with the makers' code, on a tiny Kimi-Audio that learned ten pairs by heart.

Its six mutants read the same weights wrongly, as an adapter of a released model might, and keep the contract. The makers'
code is played by a package of the same interface that reads without caches. Not covered: released weights, the makers'
package itself, half precision at depth, recognised speech (transcripts are scripted).
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import wave
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.kimi import write_kimi
from tiny.world import invoke

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import PolicyError
from paras2s.policy import trained_checks
from paras2s.policy.kimi import policy as kimi_module
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.official import (
    Dump,
    DumpComparison,
    check_against,
    read_dump,
    sound_agrees,
    spectra_apart_db,
    spreads_apart,
)
from paras2s.policy.trained_checks import (
    Pair,
    check_trained,
    pooled_word_errors,
    read_pairs,
    sound_says_the_text,
    speech_survives_codes,
)
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn

REPOSITORY = Path(__file__).resolve().parents[2]
WIDER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
WORDS = ("yes", "no", "maybe", "go on", "stop it", "why")


def tone(number: int, duration_s: float) -> Clip:
    """Steps of pitch that no other number has."""
    rng = np.random.default_rng(number)
    pitch_hz = np.repeat(rng.uniform(120, 900, 16), round(duration_s * 1000))
    wave_ = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch_hz) / 16_000) + 0.02 * rng.normal(size=len(pitch_hz))
    return Clip(wave_.astype(np.float32), 16_000)


def make_pairs() -> list[Pair]:
    return [Pair(f"q{n}", tone(n, 1.0 + 0.1 * (n % 3)), tone(100 + n, 0.9), WORDS[n % 6]) for n in range(10)]


class Memo:
    """A frozen component of the policy, called once a clip for all tests."""

    def __init__(self, component: Any) -> None:
        self.component, self.found = component, dict[tuple[str, int], tuple[Clip, Any]]()

    def __getattr__(self, name: str) -> Any:
        def once(clip: Clip) -> Any:
            # The clip is kept beside its answer: an id is given anew once its clip is gone.
            if (name, id(clip)) not in self.found:
                self.found[name, id(clip)] = clip, getattr(self.component, name)(clip)
            return self.found[name, id(clip)][1]

        return once


@dataclass(frozen=True)
class Trained:
    folder: Path
    pairs: list[Pair]
    tokenizer: Memo
    whisper: Memo

    def load(self) -> KimiPolicy:
        policy = KimiPolicy.load(self.folder)
        policy.tokenizer, policy.whisper = self.tokenizer, self.whisper  # type: ignore[assignment]
        return policy


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A tiny Kimi-Audio after sixty updates on ten pairs; in float64, so that rounding decides nothing."""
    folder = write_kimi(tmp_path_factory.mktemp("trained") / "kimi", wider=WIDER)
    policy, pairs = KimiPolicy.load(folder), make_pairs()
    made = Trained(folder, pairs, Memo(policy.tokenizer), Memo(policy.whisper))
    policy = made.load()
    # Quieter weights than those of the other tests, which saturate every softmax; embeddings as large as what the adaptor
    # gives, since beside smaller ones a norm would take the square root of 2 away.
    policy.model.initialise(0)
    for parameter in policy.model.parameters():
        parameter.data *= 4 if parameter.ndim > 1 else 1
    policy.model.model.embed_tokens.weight.data *= 50 / 4
    prompts = [policy.encode_prompt([Turn("user", clip=pair.question)]) for pair in pairs]
    targets = [policy.encode_target(pair.answer, pair.text) for pair in pairs]
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = -policy.logprobs(prompts, targets, Sampling())[0].sum() / len(pairs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 5.0)
        optimizer.step()
    policy.save(folder)
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_checks, "AT_ONCE", 16)


# -- mutants ------------------------------------------------------------------------------------------------------------------


def swapped_heads(policy: KimiPolicy, patch: pytest.MonkeyPatch) -> None:
    model = policy.model
    model.lm_head, model.mimo_output = model.mimo_output, model.lm_head


def without_sqrt_2(policy: KimiPolicy, patch: pytest.MonkeyPatch) -> None:
    policy.model.continuous_scale = 1.0


def other_theta(policy: KimiPolicy, patch: pytest.MonkeyPatch) -> None:
    policy.model.dual_config = policy.config.model_copy(update={"rope_theta": policy.config.rope_theta * 100})


def without_media_marks(policy: KimiPolicy, patch: pytest.MonkeyPatch) -> None:
    lay_out = kimi_module.lay_out

    def unmarked(*given: Any) -> kimi_module.Layout:
        made = lay_out(*given)
        kept = ~np.isin(made.audio, [policy.config.media_begin_id, policy.config.media_end_id])
        return kimi_module.Layout(made.audio[kept], made.text[kept], made.continuous[kept])

    patch.setattr(kimi_module, "lay_out", unmarked)


def other_delay(policy: KimiPolicy, patch: pytest.MonkeyPatch) -> None:
    policy.model.dual_config = policy.config.model_copy(update={"audio_delay_steps": policy.config.audio_delay_steps - 1})


def random_weights(policy: KimiPolicy, patch: pytest.MonkeyPatch) -> None:
    policy.model.initialise(3)


MUTANTS: dict[str, Callable[[KimiPolicy, pytest.MonkeyPatch], None]] = {
    one.__name__: one for one in (swapped_heads, without_sqrt_2, other_theta, without_media_marks, other_delay, random_weights)
}

# Where the settings are at fault, the check names the right one.
NAMED = {
    "swapped_heads": "of a uniform guess",
    "without_sqrt_2": "BETTER: continuous positions x sqrt 2",
    "other_theta": "BETTER: rotary base x 0.01",
    "without_media_marks": "BETTER: media marks of the prompt, the other way",
    "other_delay": "BETTER: audio delay of 2 steps",
    "random_weights": "of a uniform guess",
}


def no_speech(clips: Sequence[Clip]) -> list[str]:
    raise PolicyError("nothing here can be recognised")


def test_trained_weights_read_rightly_pass(trained: Trained) -> None:
    policy = trained.load()
    found = {one.name[:2]: one for one in check_trained(policy, trained.pairs, no_speech)}
    assert {name: one.ok for name, one in found.items()} == {"T1": True, "T2": True, "T3": True, "T4": None, "T5": None}, found


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_fails_a_check_without_a_dump(name: str, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = trained.load()
    MUTANTS[name](policy, monkeypatch)
    said = ""
    for one in check_trained(policy, trained.pairs, no_speech):
        said += "" if one.ok is not False else one.detail
        if NAMED[name] in said:
            return
    raise AssertionError(said or "nothing failed")


# -- words and pairs ----------------------------------------------------------------------------------------------------------


def test_word_errors_are_pooled_by_words() -> None:
    # One of four words of the first, none of one of the second; the third has no word and one is made up.
    assert pooled_word_errors(["a b c d", "yes", "..."], ["a b x d", "Yes!", "oh"]) == pytest.approx(2 / 5)
    assert pooled_word_errors(["..."], ["oh"]) is None
    # A number is a word.
    assert pooled_word_errors(["room 5"], ["room five"]) == 0


class Speaker:
    """As much of a policy as the checks of sound call: it writes `texts`, and its clips are as long as their number."""

    sampling = Sampling(max_steps=7)

    def __init__(self, texts: Sequence[str], cut: Sequence[bool]) -> None:
        self.texts, self.cut = texts, cut

    def generate(self, request: SampleRequest) -> list[Any]:
        (number,) = request.prompts
        return [types.SimpleNamespace(blocks=number, finish_reason=("length" if self.cut[number] else "eos",))]

    def encode_target(self, clip: Clip, text: str) -> int:
        return self.texts.index(text)

    def decode_text(self, blocks: int, answer: int) -> str:
        return self.texts[blocks]

    def decode_audio(self, blocks: int, answer: int, seed: int) -> Clip:
        return Clip(np.zeros(blocks + 1, dtype=np.float32), 16_000)


@pytest.mark.parametrize(
    ("recognised", "ok", "said"),
    [
        (["go on then", "stop now"], True, "0.0% word errors over 2 of 3"),
        (["go on man", "stop"], False, "40.0% word errors"),
    ],
)
def test_sound_must_say_the_text(recognised: list[str], ok: bool, said: str) -> None:
    speaker: Any = Speaker(["Go on, then.", "Stop now!", "cut off here"], [False, False, True])
    prompts: Any = [0, 1, 2]
    found = sound_says_the_text(speaker, prompts, lambda clips: [recognised[len(clip.samples) - 1] for clip in clips])
    assert (found.ok, said in found.detail) == (ok, True)


@pytest.mark.parametrize(("recognised", "ok"), [(["go on then", "stop"], True), (["go", "stop"], False)])
def test_speech_must_survive_its_codes(recognised: list[str], ok: bool) -> None:
    # The recordings themselves lose one of five words; another 2 of 5 are too many.
    speaker: Any = Speaker(["go on then", "stop now"], [False, False])
    pairs = [Pair(text, tone(0, 0.1), Clip(np.zeros(3, dtype=np.float32), 16_000), text) for text in speaker.texts]

    def recognise(clips: Sequence[Clip]) -> list[str]:
        if len(clips[0].samples) == 3:
            return ["go on then", "stop"]
        return [recognised[len(clip.samples) - 1] for clip in clips]

    assert speech_survives_codes(speaker, pairs, recognise).ok is ok


def write_wav(path: Path, clip: Clip) -> Path:
    with wave.open(str(path), "wb") as held:
        held.setparams((1, 2, clip.sample_rate_hz, 0, "NONE", ""))
        held.writeframes((clip.samples * 32768).round().clip(-32768, 32767).astype("<i2").tobytes())
    return path


def test_pairs_are_read_and_faults_named(tmp_path: Path) -> None:
    for name in ("q.wav", "a.wav"):
        write_wav(tmp_path / name, tone(0, 0.2))
    line = json.dumps({"question": "q.wav", "answer": "a.wav", "text": "yes"})
    listed = tmp_path / "pairs.jsonl"
    listed.write_text("\n".join([line] * 8) + "\n\n")
    assert [pair.text for pair in read_pairs(listed)] == ["yes"] * 8
    listed.write_text("\n".join([line] * 7))
    with pytest.raises(PolicyError, match="7 pairs; give at least 8"):
        read_pairs(listed)
    listed.write_text(line + '\n{"question": "q.wav"}')
    with pytest.raises(PolicyError, match=r"pairs\.jsonl:2: not an object with question, answer and text"):
        read_pairs(listed)


# -- against the makers' code -------------------------------------------------------------------------------------------------


class MakersPlayed:
    """The interface of `kimia_infer.api.kimia.KimiAudio`, played by a policy that reads everything anew at each step."""

    def __init__(self, policy: KimiPolicy, clips: dict[str, Clip]) -> None:
        config = policy.config
        self.policy, self.clips, self.alm, self.prompt_manager = policy, clips, self, self
        self.extra_tokens = types.SimpleNamespace(kimia_text_blank=config.blank_id, kimia_text_eos=config.text_eos_id)
        self.eod_ids = [config.msg_end_id, config.media_end_id]
        self.kimia_text_audiodelaytokens, self.kimia_token_offset = config.audio_delay_steps, config.codebook_offsets[0]

    def parameters(self) -> Iterator[torch.Tensor]:
        return self.policy.model.parameters()

    def get_prompt(self, messages: list[dict[str, str]], output_type: str) -> Any:
        (message,) = messages
        prompt = self.policy.encode_prompt([Turn("user", clip=self.clips[message["content"]])])
        assert prompt.features is not None
        parts = tuple(torch.from_numpy(part)[None] for part in (prompt.audio_ids[:, 0], prompt.text_ids, prompt.continuous))
        features = [torch.from_numpy(prompt.features[prompt.continuous])[None]]
        # Newer releases of the package give five parts, of which the last two have no sound or text.
        return types.SimpleNamespace(to_tensor=lambda: (*parts, None, None), continuous_feature=features)

    def forward(self, *, input_ids: Any, text_input_ids: Any, whisper_input_feature: Any, is_continuous_mask: Any,
                position_ids: Any, past_key_values: Any, return_dict: bool) -> tuple[Any, Any, Any]:  # fmt: skip
        model = self.policy.model
        if whisper_input_feature is None:
            audio, text, features, continuous = past_key_values
            audio, text = torch.cat([audio, input_ids[..., None]], 1), torch.cat([text, text_input_ids], 1)
            features, continuous = (torch.cat([one, torch.zeros_like(one[:, :1])], 1) for one in (features, continuous))
        else:
            audio, text, continuous = input_ids[..., None], text_input_ids, is_continuous_mask
            features = torch.zeros(*text.shape, whisper_input_feature[0].shape[-1], dtype=whisper_input_feature[0].dtype)
            features[continuous] = whisper_input_feature[0][0]
        assert int(position_ids[0, -1]) == text.shape[1] - 1
        x = model.embed(audio, text, features, continuous)
        text_state, audio_state = model.hidden(x, torch.arange(text.shape[1])[None])
        # The makers' forward gives the audio stream's logits first.
        return model.audio_logits(audio_state)[0], model.text_logits(text_state), (audio, text, features, continuous)

    def _generate_loop(self, *, audio_input_ids: Any, text_input_ids: Any, max_new_tokens: int, is_continuous_mask: Any,
                       continous_feature: Any, output_type: str) -> tuple[list[int], list[int]]:  # fmt: skip
        features = np.zeros((text_input_ids.shape[1], continous_feature[0].shape[-1]), dtype=np.float32)
        continuous = is_continuous_mask[0].numpy()
        features[continuous] = continous_feature[0][0].numpy()
        prompt = Prompt(audio_input_ids[0].numpy()[:, None], text_input_ids[0].numpy(), features, continuous)
        greedy = Sampling(max_steps=max_new_tokens, text_top_k=1, audio_top_k=1)
        block = self.policy.generate(SampleRequest([prompt], [[0]], greedy))[0].blocks[0]
        words = block.tokens[0, :, 0][block.sampled[0, :, 0]]
        return block.tokens[0, self.kimia_text_audiodelaytokens :, 1].tolist(), words.tolist()

    def detokenize_audio(self, codes: torch.Tensor) -> torch.Tensor:
        # As in the release, noise comes from torch's own generator.
        made = self.policy.detokenizer.decode(codes[0].numpy(), torch.initial_seed())
        return torch.from_numpy(made.samples)[None]


@pytest.fixture(scope="module")
def dump_file(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tool's file of the first question, by the played makers' code."""
    folder = tmp_path_factory.mktemp("dump")
    clip = write_wav(folder / "question.wav", trained.pairs[0].question)

    played = types.ModuleType("kimia_infer.api.kimia")
    played.KimiAudio = lambda model_path, load_detokenizer: MakersPlayed(  # type: ignore[attr-defined]
        KimiPolicy.load(Path(model_path)), {str(clip): read_clip(clip)}
    )
    names = {"kimia_infer": types.ModuleType("kimia_infer"), "kimia_infer.api": types.ModuleType("kimia_infer.api")}
    given = {"model": str(trained.folder), "family": "kimi", "clip": clip, "out": folder / "kimi.safetensors", "steps": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "tools")
        for name, module in {**names, "kimia_infer.api.kimia": played}.items():
            patch.setitem(sys.modules, name, module)
        importlib.import_module("dump_official").dump(Namespace(**given, seed=4, sound_codes=40))
    return folder / "kimi.safetensors"


def first_failed(policy: KimiPolicy, dump: Dump) -> str | None:
    return next((one.name[:2] for one in check_against(policy, dump) if one.ok is False), None)


def test_the_same_weights_agree_with_the_dump(trained: Trained, dump_file: Path) -> None:
    found = {one.name[:2]: one for one in check_against(KimiPolicy.load(trained.folder), read_dump(dump_file))}
    assert {name: one.ok for name, one in found.items()} == dict.fromkeys(("D1", "D2", "D3", "D4", "D5", "D6"), True), found


@pytest.mark.parametrize(
    ("name", "first"),
    [("swapped_heads", "D4"), ("without_sqrt_2", "D4"), ("other_theta", "D4"), ("without_media_marks", "D2"),
     ("other_delay", "D5"), ("random_weights", "D4")],
)  # fmt: skip
def test_every_mutant_differs_from_the_dump(
    name: str, first: str, trained: Trained, dump_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = KimiPolicy.load(trained.folder)
    MUTANTS[name](policy, monkeypatch)
    assert first_failed(policy, read_dump(dump_file)) == first


def test_other_codes_features_and_sound_are_named(trained: Trained, dump_file: Path) -> None:
    dump = read_dump(dump_file)
    codes = dump.codes.copy()
    codes[0] += 1
    features = dump.prompt.features
    assert features is not None
    others = {
        "D1": replace(dump, codes=codes),
        "D3": replace(dump, prompt=replace(dump.prompt, features=features * 1.1)),
        "D6": replace(dump, sound=Clip(dump.sound.samples[::-1].copy(), dump.sound.sample_rate_hz)),
    }
    policy = KimiPolicy.load(trained.folder)
    for name, other in others.items():
        assert first_failed(policy, other) == name
    unlike = sound_agrees(DumpComparison.of(policy, replace(dump, noise=(0.0,) * 32)))
    assert (unlike.ok, "other noise" in unlike.detail) == (None, True)


def test_distances_are_those_computed_by_hand() -> None:
    # Differences 1 and -1 have the root mean square 1; 0 and 4 have the spread 2.
    assert spreads_apart(np.array([1.0, 3.0]), np.array([0.0, 4.0])) == pytest.approx(0.5)
    sound = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    # Half the amplitude is 6.02 dB less.
    assert spectra_apart_db(sound / 2, sound) == pytest.approx(6.0206, abs=1e-3)
    assert spectra_apart_db(sound, sound) == 0


def test_the_command_compares_and_names_the_first_difference(dump_file: Path, tmp_path: Path) -> None:
    other = write_kimi(tmp_path / "kimi", seed=5, wider=WIDER)
    given = ("--weights", other, "--device", "cpu", "--steps", 3, "--against", dump_file)
    failed = invoke("check-policy", "kimi", *given, status=1)
    assert "ok D3 continuous features" in failed.output
    assert "first failure: D4 logits" in failed.output


@pytest.mark.parametrize("name", ["nothing", "weights"])
def test_a_file_that_is_no_dump_is_refused_before_weights_are_read(name: str, trained: Trained, tmp_path: Path) -> None:
    path = trained.folder / "model.safetensors" if name == "weights" else tmp_path / "nothing.safetensors"
    with pytest.raises(PolicyError, match=r"no dump of tools/dump_official\.py"):
        invoke("check-policy", "kimi", "--weights", tmp_path / "nowhere", "--against", path)
