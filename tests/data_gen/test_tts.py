"""Engines: Piper and espeak-ng for real, the remote ones over real HTTP with clips that Piper spoke.

Not covered: how gpt-4o-mini-tts and CosyVoice sound, which needs a key and their weights.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny.endpoint import Fail, Raw, ScriptedEndpoint

from paras2s.audio.asr import transcribe, word_error_rate
from paras2s.audio.clip import Clip, encode_clip, read_clip, write_clip
from paras2s.audio.synthesis import speak_plain
from paras2s.clients.chat import count_tokens
from paras2s.clients.endpoint import Price
from paras2s.configs.schema.curation import VoiceConfig
from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.tts.base import FailedSpeech, Line, line_key, synthesise_all
from paras2s.data_gen.tts.local import EspeakTTS, PiperTTS
from paras2s.data_gen.tts.remote import CosyVoiceTTS, OpenAITTS, speech_usd
from paras2s.errors import BudgetError, ConfigError

TEXTS = ("The bus leaves at nine in the morning.", "They are painting the house next door.")
SILENCE = Clip(np.zeros(16_000, dtype=np.float32), 16_000)


@pytest.fixture(scope="module")
def spoken() -> dict[str, Clip]:
    return dict(zip(TEXTS, speak_plain(TEXTS), strict=True))


def voice(engine: str, **options: object) -> VoiceConfig:
    return VoiceConfig(name="v", engine=engine, kind="male", options=options)


def endpoint(server: ScriptedEndpoint, **changes: object) -> EndpointConfig:
    settings = {"base_url": server.base_url, "model": "gpt-4o-mini-tts", "backoff_s": 0.001, "timeout_s": 20.0, **changes}
    return EndpointConfig(**settings)


def test_piper_speaks_the_words_in_the_voice_and_style(tmp_path: Path) -> None:
    lines = [Line(TEXTS[0], voice("piper", f0_factor=factor), style) for factor, style in ((1.0, "happy"), (1.7, "sad"))]
    first, second = synthesise_all(PiperTTS(tmp_path), lines, tmp_path)
    assert isinstance(first, Clip)
    assert isinstance(second, Clip)
    assert second.duration_s > 1.2 * first.duration_s
    assert word_error_rate(TEXTS[0], transcribe([first])[0].text) <= 0.2
    assert synthesise_all(PiperTTS(tmp_path), lines, tmp_path)[0].samples.tolist() == first.samples.tolist()


def test_a_style_that_an_engine_cannot_do_is_not_spoken_plain(tmp_path: Path) -> None:
    for tts in (PiperTTS(tmp_path), EspeakTTS()):
        found = synthesise_all(tts, [Line(TEXTS[0], voice("piper"), "whispering")], tmp_path)[0]
        assert isinstance(found, FailedSpeech)
        assert "espeak-ng is not installed" in found.reason or "'whispering' has no shape" in found.reason


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed here")
def test_espeak_speaks(tmp_path: Path) -> None:
    lines = [Line(TEXTS[0], voice("espeak", voice="en-us+f3"), style) for style in ("angry", "sad")]
    quick, slow = synthesise_all(EspeakTTS(), lines, tmp_path)
    assert slow.duration_s > 1.2 * quick.duration_s
    assert len(list(tmp_path.rglob("*.wav"))) == 2


def test_openai_gets_words_and_instructions_and_a_clip_is_paid_for_once(tmp_path: Path, spoken: dict[str, Clip]) -> None:
    def answer(request: dict, _: int) -> Raw:
        return Raw(encode_clip(spoken[request["input"]]))

    lines = [Line(text, voice("openai", voice="coral"), "happy", "Bright and quick.") for text in TEXTS]
    with ScriptedEndpoint(answer) as server:
        tts = OpenAITTS(endpoint(server))
        found = synthesise_all(tts, lines, tmp_path)
        again = synthesise_all(OpenAITTS(endpoint(server)), lines, tmp_path)
        assert len(server.requests) == 2
    requests = {one["input"]: one for one in server.requests}
    assert requests[TEXTS[0]]["instructions"] == "Bright and quick."
    assert (requests[TEXTS[0]]["voice"], requests[TEXTS[0]]["model"], requests[TEXTS[0]]["route"]) == (
        "coral", "gpt-4o-mini-tts", "/v1/audio/speech",
    )  # fmt: skip
    for text, one, other in zip(TEXTS, found, again, strict=True):
        np.testing.assert_allclose(one.samples, read_clip(encode_clip(spoken[text])).samples, atol=2e-4)
        assert one.samples.tolist() == other.samples.tolist()
    seconds = sum(clip.duration_s for clip in found)
    tokens = sum(count_tokens(text) + len(["Bright", "and", "quick", "."]) for text in TEXTS)
    assert tts.spent_usd == pytest.approx((tokens * 0.6 + seconds * 20.83 * 12) / 1e6, rel=1e-6)


def test_cosyvoice_is_given_the_voice_to_copy(tmp_path: Path, spoken: dict[str, Clip]) -> None:
    write_clip(tmp_path / "me.wav", spoken[TEXTS[1]])

    def answer(request: dict, _: int) -> Raw:
        samples = spoken[request["tts_text"]].at(24_000).samples
        return Raw((samples * 32767).astype("<i2").tobytes(), {"X-Custom-Header-sampleRate": "24000"})

    line = Line(TEXTS[0], voice("cosyvoice", clip=str(tmp_path / "me.wav"), text=TEXTS[1]), "female")
    with ScriptedEndpoint(answer) as server:
        config = endpoint(server, base_url=server.base_url.removesuffix("/v1"), model="CosyVoice2-0.5B")
        found = synthesise_all(CosyVoiceTTS(config), [line], tmp_path)[0]
    request = server.requests[0]
    assert (request["route"], request["tts_text"], request["prompt_text"]) == ("/inference_zero_shot", TEXTS[0], TEXTS[1])
    assert request["prompt_wav"] == (tmp_path / "me.wav").read_bytes()
    assert found.sample_rate_hz == 24_000
    assert word_error_rate(TEXTS[0], transcribe([found])[0].text) <= 0.2


def test_silence_refusals_and_noise_that_is_no_audio_are_reasons_and_are_tried_again_by_a_later_run(tmp_path: Path) -> None:
    bodies = {"quiet": Raw(encode_clip(SILENCE)), "text": Raw(b"<html>busy</html>"), "no": Fail(400, "unsafe")}
    lines = [Line(name, voice("openai"), "happy") for name in bodies]
    with ScriptedEndpoint(lambda request, _: bodies[request["input"]]) as server:
        config = endpoint(server, max_attempts=2)
        found = synthesise_all(OpenAITTS(config), lines, tmp_path)
        first = len(server.requests)
        synthesise_all(OpenAITTS(config), lines, tmp_path)
        assert len(server.requests) == 2 * first == 8
    assert [type(one) for one in found] == [FailedSpeech] * 3
    assert "1.0 s of silence" in found[0].reason
    assert "cannot be decoded" in found[1].reason
    assert "HTTP 400: " in found[2].reason
    assert not list(tmp_path.rglob("*.wav"))


def test_a_voice_whose_clip_is_missing_holds_nobody_up(tmp_path: Path, spoken: dict[str, Clip]) -> None:
    lines = [Line(TEXTS[0], voice("openai", clip=str(tmp_path / "gone.wav")), "happy"), Line(TEXTS[0], voice("openai"), "sad")]
    with ScriptedEndpoint(lambda request, _: Raw(encode_clip(spoken[request["input"]]))) as server:
        found = synthesise_all(OpenAITTS(endpoint(server)), lines, tmp_path)
    assert found[0] == FailedSpeech(f"voice v: {tmp_path / 'gone.wav'}: No such file or directory")
    assert isinstance(found[1], Clip)


def test_the_budget_is_not_exceeded(tmp_path: Path, spoken: dict[str, Clip]) -> None:
    lines = [Line(TEXTS[0], voice("openai"), "happy", take=take) for take in range(20)]
    with ScriptedEndpoint(lambda request, _: Raw(encode_clip(spoken[request["input"]]))) as server:
        tts = OpenAITTS(endpoint(server, budget_usd=0.004, concurrency=2))
        spend = Spend()
        with pytest.raises(BudgetError, match="run again with a larger one"):
            synthesise_all(tts, lines, tmp_path, spend=spend)
        first = len(server.requests)
        results = synthesise_all(OpenAITTS(endpoint(server)), lines, tmp_path)
        # Paid clips are cached.
        assert 0 < first < 20
        assert len(server.requests) == 20
    assert all(isinstance(result, Clip) for result in results)
    assert spend.usd == pytest.approx(tts.spent_usd)
    assert 0 < tts.spent_usd <= 0.004


def test_equal_lines_are_synthesised_once_and_counted(tmp_path: Path, spoken: dict[str, Clip]) -> None:
    lines = [Line(TEXTS[n % 2], voice("openai"), "happy") for n in range(6)]
    with ScriptedEndpoint(lambda request, _: Raw(encode_clip(spoken[request["input"]]))) as server:
        spend = Spend()
        found = synthesise_all(OpenAITTS(endpoint(server, model="mine")), lines, tmp_path, spend=spend)
        assert len(server.requests) == 2
        synthesise_all(OpenAITTS(endpoint(server, model="mine")), lines, tmp_path, spend=spend)
    assert found[0].samples.tolist() == found[2].samples.tolist() == found[4].samples.tolist()
    # No price is known, but a server of this machine is free.
    assert (spend.requests, spend.cached, spend.failed, spend.usd) == (4, 2, 0, 0.0)


def test_a_budget_needs_a_price(tmp_path: Path) -> None:
    elsewhere = EndpointConfig(base_url="http://10.0.0.1/v1", model="mine", budget_usd=1.0)
    with pytest.raises(ConfigError, match=r"openai\.budget_usd: no price is known for mine"):
        OpenAITTS(elsewhere)


def test_the_price_of_speech_by_hand() -> None:
    line = Line("a" * 40, voice("openai"), "happy", "b" * 40)
    price = Price(text_in=1.0, text_out=0.0, audio_out=10.0, audio_out_tokens_per_s=20.0)
    assert speech_usd(price, line, 3.0) == pytest.approx((10 * 1.0 + 60 * 10.0) / 1e6)
    assert speech_usd(Price(text_in=1.0, text_out=1.0), line, 3.0) is None
    assert speech_usd(None, line, 3.0) is None


def test_a_key_has_all_that_shapes_a_rendering_and_no_name(tmp_path: Path, spoken: dict[str, Clip]) -> None:
    write_clip(tmp_path / "a.wav", spoken[TEXTS[0]])
    shutil.copy(tmp_path / "a.wav", tmp_path / "b.wav")
    base = Line("Hello.", voice("cosyvoice", clip=str(tmp_path / "a.wav")), "happy")
    same = Line("Hello.", voice("cosyvoice", clip=str(tmp_path / "b.wav")), "happy")
    assert line_key("1", base) == line_key("1", same)
    write_clip(tmp_path / "b.wav", spoken[TEXTS[1]])
    others = [same, Line("Hello!", base.voice, "happy"), Line("Hello.", base.voice, "sad")]
    others += [Line("Hello.", base.voice, "happy", "slow"), Line("Hello.", base.voice, "happy", "", 1)]
    keys = {line_key("1", one) for one in (base, *others)} | {line_key("2", base)}
    assert len(keys) == 7
    assert json.dumps(sorted(keys))
