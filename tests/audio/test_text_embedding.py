"""Word pieces spell every answer of the data stage and any word; sentence vectors are unit and independent of a batch.

Not covered: how well the vectors tell meanings apart, and languages other than English.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import paras2s.data_gen
from paras2s.audio import text_embedding
from paras2s.audio.asr import normalise_words
from paras2s.audio.text_embedding import SENTENCE_DIM, WordPieces, embed_sentences, piece_embeddings

ANSWERS = Path(paras2s.data_gen.__file__).with_name("scripted") / "answers.yaml"


def sentences(node: Any) -> Iterator[str]:
    """Every string with more than one word."""
    if isinstance(node, str):
        if " " in node:
            yield node
    else:
        for child in node.values() if isinstance(node, dict) else node:
            yield from sentences(child)


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return WordPieces.most_frequent(3000)


def test_encoding_takes_the_longest_piece_first() -> None:
    small = WordPieces(["a", "##a", "b", "##b", "ab", "##ba"])
    assert small.encode("ab") == [4]
    assert small.encode("aba b") == [4, 1, 2]
    assert small.encode("bba") == [2, 5]
    assert small.decode([4, 1, 2]) == "aba b"
    assert small.decode([1, 0]) == "a a"
    assert small.encode("") == []
    assert small.decode([]) == ""


def test_a_letter_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="'c' is not in the vocabulary"):
        WordPieces(["a", "##a"]).encode("ac")


def test_every_answer_comes_back(pieces: WordPieces) -> None:
    texts = list(sentences(yaml.safe_load(ANSWERS.read_text())))
    assert len(texts) > 50
    for text in texts:
        ids = pieces.encode(text)
        assert pieces.decode(ids) == normalise_words(text)
        assert max(ids) < len(pieces) == 3000


@pytest.mark.parametrize("word", ["zyzzyva", "o'clock", "'tis", "rhythms'", "q", "Qwxkj", "bedchambermaid"])
def test_any_word_can_be_spelt(pieces: WordPieces, word: str) -> None:
    assert pieces.decode(pieces.encode(word)) == word.lower()


def test_any_letters_can_be_spelt(pieces: WordPieces) -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz'"))
    for _ in range(200):
        text = " ".join("".join(rng.choice(letters, size=rng.integers(1, 12))) for _ in range(3))
        assert pieces.decode(pieces.encode(text)) == text


def test_pieces_are_different_and_known_to_the_sentence_model(pieces: WordPieces) -> None:
    assert len(set(pieces.pieces)) == 3000
    rows = piece_embeddings(pieces.pieces)
    assert rows.shape == (3000, SENTENCE_DIM)
    # A piece that the table lacks would get the row of the unknown token, and share it.
    assert len(np.unique(rows, axis=0)) == 3000


def test_sentence_vectors_are_unit_and_alone_in_their_batch() -> None:
    texts = ["I lost my keys.", "What a wonderful day this has been for all of us!", "no"]
    together = embed_sentences(texts)
    assert together.shape == (3, SENTENCE_DIM)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(embed_sentences(texts[::-1]), together[::-1])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_sentence_is_the_same_to_the_bit_in_any_batch_and_by_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    texts = [
        f"{subject} {verb} my keys" for subject in ("I", "we", "you", "they") for verb in ("lost", "found", "took", "need")
    ]

    def computed(batch: list[str]) -> np.ndarray:
        monkeypatch.setattr(text_embedding, "_vectors", {})
        return embed_sentences(batch)

    alone = np.concatenate([computed([text]) for text in texts])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for size in (1, 2, 3, 5, 8, 16):
            np.testing.assert_array_equal(computed(texts[:size]), alone[:size])
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_sentence_vectors_ignore_punctuation_and_case() -> None:
    np.testing.assert_array_equal(embed_sentences(["I lost my keys!"]), embed_sentences(["i LOST my keys"]))


def test_near_meanings_are_nearer() -> None:
    a, b, c = embed_sentences(["I am very sad today", "I feel so unhappy", "The train leaves at nine"])
    assert a @ b > a @ c + 0.2


def test_nothing_to_embed() -> None:
    assert embed_sentences([]).shape == (0, SENTENCE_DIM)
    assert np.linalg.norm(embed_sentences([""])) == pytest.approx(1, abs=1e-6)
