"""Pairs of speaking rate and of speakers, made from a corpus in LibriTTS-R's layout (AudioJudge, appendices A.1.2 and A.1.3).

The layout: anywhere under the root a folder SPEAKER/CHAPTER with NAME.wav and its words in NAME.normalized.txt.

1. `speaking_rate`: two utterances of one speaker; phonemes of the words over the length of the clip say which is faster. Two of
   exactly one rate are no pair.
2. `speaker_identity`: one half of the pairs has one speaker, the other half two; their sexes are not looked at.

The paper does not say how it drew. Here every utterance is in at most one pair, speakers are drawn with one weight each,
and all is decided by the seed, whatever order the disk lists files in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from paras2s.bench.detection.data import DetectPair
from paras2s.data_gen.libritts import SpokenText, read_corpus
from paras2s.errors import ConfigError, DataError
from paras2s.utils.io import write_json

DEFAULT_VOICE = "en-us"
Buildable = Literal["speaking_rate", "speaker_identity"]


def rate_pairs(root: Path, count: int, seed: int, count_sounds: Callable[[str], int]) -> list[DetectPair]:
    """Return at most `count` pairs of a speaker each, labelled by `count_sounds` a second. Raises DataError: a wrong corpus."""
    import soundfile

    pairs = []
    for first, second in _same_speaker(read_corpus(root), random.Random(seed)):
        rates_hz = [count_sounds(clip.words) / soundfile.info(root / clip.path).duration for clip in (first, second)]
        if rates_hz[0] != rates_hz[1]:
            pairs.append(_pair(first, second, "1" if rates_hz[0] > rates_hz[1] else "2"))
        if len(pairs) == count:
            break
    if not pairs:
        raise DataError(f"{root}: no speaker has two utterances of different rates")
    return pairs


def speaker_pairs(root: Path, count: int, seed: int) -> list[DetectPair]:
    """Return at most `count` pairs, of one speaker and of two by turns. Raises DataError: the corpus is wrong, or too small."""
    dice = random.Random(seed)
    corpus = {name: dice.sample(said, len(said)) for name, said in read_corpus(root).items()}
    pairs: list[DetectPair] = []
    while len(pairs) < count:
        needed = 2 if len(pairs) % 2 == 0 else 1
        able = [name for name, said in corpus.items() if len(said) >= needed]
        if needed == 2 and able:
            said = corpus[dice.choice(able)]
            pairs.append(_pair(said.pop(), said.pop(), "same"))
        elif needed == 1 and len(able) > 1:
            first, other = (corpus[name].pop() for name in dice.sample(able, 2))
            pairs.append(_pair(first, other, "different"))
        else:
            break
    if len(pairs) < 2:
        raise DataError(f"{root}: too few utterances for a pair of one speaker and one of two")
    # Cut to as many of each kind: to say one of them always is then worth nothing.
    return pairs[: len(pairs) // 2 * 2]


def _same_speaker(corpus: dict[str, list[SpokenText]], dice: random.Random) -> Iterator[tuple[SpokenText, SpokenText]]:
    """Yield two utterances of a speaker by lot until no speaker has two left."""
    left = {name: dice.sample(said, len(said)) for name, said in corpus.items()}
    while able := [name for name, said in left.items() if len(said) > 1]:
        said = left[dice.choice(able)]
        yield said.pop(), said.pop()


def _pair(first: SpokenText, second: SpokenText, label: Literal["1", "2", "same", "different"]) -> DetectPair:
    return DetectPair(
        audio1_path=first.path,
        audio2_path=second.path,
        label=label,
        transcript1=first.words,
        transcript2=second.words,
        speaker1=first.speaker,
        speaker2=second.speaker,
    )


def build(suite: Buildable, root: Path, count: int, seed: int, voice: str | None, out: Path) -> list[DetectPair]:
    """Make the pairs of a suite and write them as `bench detect` reads them; phonemes are espeak-ng's, in `voice`.

    Raises:
        ConfigError: the root is no folder, or a voice for a suite that counts no phonemes. DataError: it holds no such corpus.
        AssetError: espeak-ng is not installed.
    """
    from paras2s.bench.detection.baselines import count_phonemes

    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    if suite == "speaking_rate":
        pairs = rate_pairs(root, count, seed, lambda words: count_phonemes(words, voice or DEFAULT_VOICE))
    else:
        if voice is not None:
            raise ConfigError(f"--voice {voice}: is for speaking_rate; {suite} counts no phonemes")
        pairs = speaker_pairs(root, count, seed)
    write_json(out, [pair.model_dump(exclude_none=True) for pair in pairs])
    return pairs
