"""Byte-pair tokenizers given as a file of ranks (tiktoken's format), as Kimi-Audio and GLM-4-Voice ship theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paras2s.errors import PolicyError
from paras2s.utils.io import read_json

# How text is cut before pairs are merged. Qwen's, with single digits; GLM-4's takes up to three.
QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GLM_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# The Kimi family's: Han apart from other letters, and words cut where lower case ends.
_LETTER = r"\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_UPPER, _LOWER = rf"[\p{{Lu}}{_LETTER}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


class RankBpe:
    """Text to ids and back. Markers of special tokens in a text are text: a user's text cannot steer the layout."""

    def __init__(self, ranks: Mapping[bytes, int], specials: Mapping[str, int], pattern: str) -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise PolicyError("this policy's tokenizer needs tiktoken: pip install 'paras2s[models]'") from error
        self._coder = tiktoken.Encoding("paras2s", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens=dict(specials))
        self._text_ids = frozenset(ranks.values())

    @classmethod
    def read(cls, path: Path, specials: Mapping[str, int], pattern: str) -> RankBpe:
        """Read a file of lines, each a token in base64 and its rank. Raises PolicyError: no such file, or another format."""
        import base64
        import binascii

        try:
            lines = (line.split() for line in path.read_bytes().splitlines() if line)
            ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        except (OSError, ValueError, binascii.Error) as error:
            raise PolicyError(f"{path}: not a file of token ranks ({error}); copy the checkpoint again") from error
        return cls(ranks, specials, pattern)

    @property
    def size(self) -> int:
        """One more than the largest id of a word."""
        return max(self._text_ids, default=-1) + 1

    def check_below(self, specials: Mapping[str, int], path: Path) -> None:
        """Compare the words of `path` with the ids of special tokens behind them. Raises PolicyError: an id is a word's."""
        name, first = min(specials.items(), key=lambda named: named[1])
        if self.size > first:
            raise PolicyError(
                f"{path}: has {self.size} words, and {name} is {first}: it is another model's tokenizer; copy {path.name} and "
                "tokenizer_config.json from the release again"
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, none of them special."""
        return list(self._coder.encode_ordinary(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode the text ids; others are left out, and so is half of a character."""
        return self._coder.decode([number for number in ids if number in self._text_ids], errors="ignore")


def added_tokens(folder: Path) -> dict[str, int]:
    """Special tokens of a released tokenizer: name to id, from `tokenizer_config.json` and, if there, `added_tokens.json`."""
    described = dict(read_json(folder / "tokenizer_config.json")).get("added_tokens_decoder", {})
    tokens = {str(token["content"]): int(number) for number, token in dict(described).items()}
    if (folder / "added_tokens.json").is_file():
        tokens |= {str(name): int(number) for name, number in dict(read_json(folder / "added_tokens.json")).items()}
    return tokens
