"""A language model from a folder and from a GGUF file: the same one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import spoken_lm as tiny
from tiny.gguf_file import write_gguf

from paras2s.errors import ConfigError
from paras2s.utils.language_model import read_language_model


def test_a_gguf_file_is_the_model_that_was_written_to_it(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs gguf, by which transformers reads such files: pip install gguf")
    lm, tokenizer = tiny.tiny_lm(), tiny.tiny_tokenizer()
    lm.float().save_pretrained(tmp_path / "folder")
    tokenizer.save_pretrained(tmp_path / "folder")
    packed = write_gguf(tmp_path / "tiny.gguf", lm, tokenizer, tiny.TEMPLATE)
    text = "Hi, there<|im_end|>"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        expected = lm(input_ids=ids).logits
    for source in (tmp_path / "folder", packed):
        model, read = read_language_model(source)
        assert read(text)["input_ids"] == ids[0].tolist()
        assert read.chat_template == tiny.TEMPLATE
        with torch.no_grad():
            torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["empty", "cut.gguf", "missing"])
def test_what_is_no_language_model_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ConfigError, match=rf"{name}: no language model of transformers and no GGUF file"):
        read_language_model(tmp_path / name)
