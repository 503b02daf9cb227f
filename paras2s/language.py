"""English that comes in a wheel: word pieces and sentence embeddings of a small sentence model (MiniLM-L6)."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.acoustics.asr import normalise_words
from paras2s.acoustics.assets import asset_path

SENTENCE_DIM = 384


@functools.lru_cache(maxsize=1)
def _sentence_model() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    folder = str(asset_path("sentence_model").parent)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True), AutoModel.from_pretrained(
        folder, local_files_only=True
    ).eval()


@functools.lru_cache(maxsize=20_000)
def _embed_one(text: str) -> bytes:
    import torch

    tokenizer, model = _sentence_model()
    with torch.inference_mode():
        batch = tokenizer([text], return_tensors="pt")
        hidden = model(**batch).last_hidden_state[0].mean(0)
        vector = torch.nn.functional.normalize(hidden, dim=0)
    return bytes(vector.numpy().astype(np.float32).tobytes())


def embed_sentences(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors [n, 384] of normalised texts; one sentence at a time, so that a batch cannot change a vector."""
    rows = [np.frombuffer(_embed_one(normalise_words(text)), dtype=np.float32) for text in texts]
    return np.stack(rows) if rows else np.zeros((0, SENTENCE_DIM), dtype=np.float32)


def piece_embeddings(pieces: Sequence[str]) -> np.ndarray:
    """Rows [n, 384] of the sentence model's token table for the given word pieces."""
    tokenizer, model = _sentence_model()
    table = model.embeddings.word_embeddings.weight.detach().numpy()
    return np.asarray(table[tokenizer.convert_tokens_to_ids(list(pieces))])


class WordPieces:
    """Greedy longest-match word pieces over a small vocabulary that can spell everything.

    Ids are 0..len-1 in the order of `pieces`; ids beyond belong to whoever owns the model (special tokens, codes).
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}

    @classmethod
    def most_frequent(cls, count: int) -> WordPieces:
        """Letters, then the most frequent pieces: the sentence model's vocabulary is ordered by frequency."""
        vocabulary = Path(asset_path("sentence_model").parent, "vocab.txt").read_text().split("\n")
        letters = ["'", "##'", *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
        seen = set(letters)
        words = [w for w in vocabulary[1996:] if w.removeprefix("##").isascii() and w.removeprefix("##").isalpha()]
        return cls([*letters, *(w for w in words if w not in seen)][:count])

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of a normalised text."""
        found: list[int] = []
        for word in normalise_words(text).split():
            start = 0
            while start < len(word):
                for stop in range(len(word), start, -1):
                    piece = ("##" if start else "") + word[start:stop]
                    if piece in self._ids:
                        found.append(self._ids[piece])
                        start = stop
                        break
                else:
                    raise ValueError(f"'{word[start]}' is not in the vocabulary")
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; the inverse of `encode` up to normalisation."""
        return " ".join(self.pieces[number] for number in ids).replace(" ##", "").removeprefix("##")
