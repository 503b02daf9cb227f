"""Words by the true Whisper classes on a tiny random network. Not covered: what a trained one hears, which needs weights."""

from pathlib import Path

import numpy as np
import pytest

from paras2s.audio.clip import Clip
from paras2s.reward.blueprint import transformers_words
from paras2s.reward.blueprint.extract import build_blueprints
from paras2s.reward.blueprint.schema import FIELDS
from paras2s.reward.blueprint.transformers_words import TransformersWordsExtractor, _pipeline, _transcript
from paras2s.reward.blueprint.words import WORD_KEYS
from paras2s.types import Measured


@pytest.fixture(scope="module")
def tiny_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper of two layers with a tokenizer of single bytes, saved as from_pretrained wants it."""
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperTokenizer,
    )
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    folder = tmp_path_factory.mktemp("whisper")
    pieces = list(bytes_to_unicode().values())
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|translate|>", "<|nospeech|>"]
    special += ["<|startofprev|>", "<|startoflm|>", "<|notimestamps|>", *(f"<|{n * 0.02:.2f}|>" for n in range(1501))]
    ids = {piece: number for number, piece in enumerate([*pieces, *special])}
    tokenizer = WhisperTokenizer(vocab={piece: ids[piece] for piece in pieces}, merges=[], pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    assert tokenizer.convert_tokens_to_ids("<|30.00|>") == ids["<|30.00|>"]
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    torch.manual_seed(0)
    start, end = ids["<|startoftranscript|>"], ids["<|endoftext|>"]
    config = WhisperConfig(
        vocab_size=len(ids), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_target_positions=64,
        decoder_start_token_id=start, bos_token_id=end, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    network = WhisperForConditionalGeneration(config)
    network.generation_config = GenerationConfig(
        decoder_start_token_id=start, eos_token_id=end, pad_token_id=end, max_length=24, is_multilingual=True,
        no_timestamps_token_id=ids["<|notimestamps|>"], lang_to_id={"<|en|>": ids["<|en|>"]},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        alignment_heads=[[0, 0], [1, 1]], prev_sot_token_id=ids["<|startofprev|>"], suppress_tokens=[],
    )  # fmt: skip
    network.save_pretrained(folder)
    return folder


def test_the_true_classes_give_every_field(tiny_whisper: Path) -> None:
    time_s = np.arange(32_000) / 16_000
    clips = [Clip((0.3 * np.sin(2 * np.pi * f0_hz * time_s)).astype(np.float32), 16_000) for f0_hz in (200, 0, 300)]
    extractor = TransformersWordsExtractor(str(tiny_whisper), batch=2)
    found = build_blueprints(clips, [extractor])
    assert all(set(blueprint.fields) == set(WORD_KEYS) <= set(FIELDS) for blueprint in found)
    assert found[1].fields["agent_response"] == Measured("")
    assert isinstance(found[0].value("agent_response"), str)
    assert found[0].fields == build_blueprints(clips[:1], [extractor])[0].fields
    assert found[0].extractors == {"transformers_words": f"transformers/{tiny_whisper}/alone-1+rates-4"}


def test_a_short_clip_has_a_short_window_and_one_that_fails_a_check_the_full_one(
    tiny_whisper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = Clip((0.3 * np.sin(np.arange(32_000) / 9)).astype(np.float32), 16_000)
    recognise = _pipeline(str(tiny_whisper))
    encoder, frames = recognise.model.model.encoder, []
    hook = encoder.conv1.register_forward_hook(lambda module, given, _: frames.append(given[0].shape[-1]))
    for doubtful in (False, True):
        monkeypatch.setattr(transformers_words, "_doubtful", lambda *_, doubtful=doubtful: doubtful)
        TransformersWordsExtractor(str(tiny_whisper)).measure([clip])
    hook.remove()
    # A window that says nothing of use is followed by another of the rest of the clip.
    assert (frames[:2], set(frames[2:])) == ([300, 300], {3000})
    assert recognise.model.config.max_source_positions == 1500
    assert encoder.embed_positions.weight.shape[0] == 1500


def test_a_last_word_without_an_end_ends_with_the_clip() -> None:
    chunks = [{"text": " Hello,", "timestamp": (0.0, 0.5)}, {"text": " you", "timestamp": (0.6, None)}]
    words = _transcript({"text": " Hello, you", "chunks": chunks}, 2.0).words
    assert [(word.text, word.start_s, word.end_s, word.probability) for word in words] == [
        ("Hello,", 0.0, 0.5, None),
        ("you", 0.6, 2.0, None),
    ]


def test_a_folder_that_is_no_whisper_is_absent_with_its_name() -> None:
    clip = Clip(np.full(16_000, 0.1, dtype=np.float32), 16_000)
    found = build_blueprints([clip], [TransformersWordsExtractor("/nowhere/whisper")])[0]
    assert "/nowhere/whisper: no such Whisper" in found.why_absent("agent_response")
