"""Audio to discrete codes and back, behind one interface; Codec 2 700C is the embedded codec."""

from __future__ import annotations

import _ctypes
import ctypes
import functools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from paras2s.audio.assets import package_dir
from paras2s.audio.clip import Clip
from paras2s.audio.pitch import track_pitch
from paras2s.errors import AssetError


@runtime_checkable
class Codec(Protocol):
    """The codec interface of a policy. K = `num_codebooks`; one step of K codes lasts 1 / `frame_rate_hz`."""

    sample_rate_hz: int
    frame_rate_hz: float
    num_codebooks: int
    cardinality: tuple[int, ...]

    def encode(self, clip: Clip) -> np.ndarray:
        """Return codes [T, K], int64; the tail is padded with silence to a whole step."""

    def decode(self, codes: np.ndarray) -> Clip:
        """Waveform of codes [T, K]; T = 0 gives an empty clip. The same codes give the same samples."""


class Codec2Pairs:
    """Codec 2, mode 700C, two 40 ms frames a step: 12.5 steps/s, K = 8.

    A frame is 28 bits, most significant first: two 9-bit spectral indices, 4-bit energy, 6-bit log pitch (0 unvoiced).
    The pitch index is written from SwiftF0, since Codec 2's own tracker halves and doubles on processed speech.
    """

    sample_rate_hz = 8_000
    frame_rate_hz = 12.5
    num_codebooks = 8
    cardinality: tuple[int, ...] = (512, 512, 16, 64, 512, 512, 16, 64)
    version = "codec2-700c-pairs/1"

    _WIDTHS = (9, 9, 4, 6)
    _FRAME = 320

    def encode(self, clip: Clip) -> np.ndarray:
        """Return codes [T, 8]."""
        samples = clip.at(self.sample_rate_hz).samples
        step = 2 * self._FRAME
        samples = np.pad(samples, (0, -len(samples) % step))
        frames = len(samples) // self._FRAME
        pcm = np.clip(samples * 32767, -32768, 32767).astype(np.int16)
        pitch = track_pitch(clip)
        # The index describes the middle of a frame.
        f0_hz = pitch.at((np.arange(frames) + 0.5) * self._FRAME / self.sample_rate_hz)
        codes = np.zeros((frames, 4), dtype=np.int64)
        with _Codec2Library() as coder:
            for number in range(frames):
                codes[number] = self._unpack(coder.encode(pcm[number * self._FRAME : (number + 1) * self._FRAME]))
        codes[:, 3] = pitch_index(f0_hz)
        return codes.reshape(frames // 2, 8)

    def steps_of(self, samples: int, sample_rate_hz: int) -> int:
        """Return the number of steps that `encode` makes of *n* samples."""
        # As soxr rounds.
        resampled = int(samples * self.sample_rate_hz / sample_rate_hz + 0.5)
        return -(-resampled // (2 * self._FRAME))

    def decode(self, codes: np.ndarray) -> Clip:
        """Waveform at 8 kHz, 640 samples a step."""
        codes = np.asarray(codes, dtype=np.int64).reshape(-1, 4)
        if not len(codes):
            return Clip(np.zeros(0, dtype=np.float32), self.sample_rate_hz)
        with _Codec2Library() as coder:
            pcm = np.concatenate([coder.decode(self._pack(frame)) for frame in codes])
        return Clip((pcm / 32768.0).astype(np.float32), self.sample_rate_hz)

    def speak(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        """Decode answers from their codes [T, 8] to waveforms; Codec 2 draws nothing."""
        return [self.decode(answer) for answer in codes]

    @functools.cached_property
    def code_vectors(self) -> np.ndarray:
        """The sound of each code [C, 46]: a step's vectors, added up over its K codes, describe its sound.

        C counts the codes of all K codebooks, one after the other. Each of a step's two frames has 23 numbers: the 20 levels
        of its spectrum (10 dB; equally wide on the mel scale; Codec 2 adds two vectors), its energy (10 dB), whether it is
        voiced, and how far its pitch lies from 109 Hz (0.19 octaves; 0 unvoiced). From the tables in the library.
        """
        tables = _Codec2Library().tables()
        spectra, energies = tables[:2], tables[2]
        pitch = np.arange(64, dtype=np.float32)
        voiced = np.stack([pitch > 0, np.where(pitch > 0, (pitch - 24) / 4, 0)], axis=1)
        places = (slice(0, 20), slice(0, 20), slice(20, 21), slice(21, 23))
        vectors = np.zeros((sum(self.cardinality), 46), dtype=np.float32)
        first = 0
        for half in range(2):
            for columns, values in zip(places, (*(table / 10 for table in spectra), energies / 10, voiced), strict=True):
                vectors[first : first + len(values), columns.start + 23 * half : columns.stop + 23 * half] = values
                first += len(values)
        return vectors

    def _unpack(self, packed: bytes) -> list[int]:
        bits = int.from_bytes(packed, "big") >> 4
        values = []
        for width in reversed(self._WIDTHS):
            values.append(bits & ((1 << width) - 1))
            bits >>= width
        return values[::-1]

    def _pack(self, frame: np.ndarray) -> bytes:
        bits = 0
        for value, width in zip(frame, self._WIDTHS, strict=True):
            bits = (bits << width) | int(value)
        return (bits << 4).to_bytes(4, "big")


def pitch_index(f0_hz: np.ndarray) -> np.ndarray:
    """Codec 2's 6-bit log pitch: 64 ln(f/50) / ln 8, at least 1 where voiced, 0 where unvoiced."""
    index = np.rint(64 * np.log(np.maximum(f0_hz, 50.0) / 50.0) / np.log(8.0))
    return np.where(f0_hz > 0, np.clip(index, 1, 63), 0).astype(np.int64)


class _Codebook(ctypes.Structure):
    """`struct lsp_codebook` of Codec 2: `m` vectors of `k` floats."""

    _fields_ = (("k", ctypes.c_int), ("log2m", ctypes.c_int), ("m", ctypes.c_int), ("cb", ctypes.POINTER(ctypes.c_float)))


class _Codec2Library:
    """The C library inside pycodec2's wheel, loaded afresh for every clip.

    Its dither for unvoiced frames comes from a generator that cannot be seeded; only a new copy of the library restarts it,
    and equal codes must give equal samples. So pycodec2 itself, which would keep the library loaded, is not imported.
    """

    _MODE_700C = 8
    _SAMPLES = 320
    _BYTES = 4

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the two codebooks of mode 700C's spectrum [512, 20] in dB, and that of its energy [16, 1] in dB."""
        library = ctypes.CDLL(_codec2_path())
        books = (*(_Codebook * 2).in_dll(library, "newamp1vq_cb"), _Codebook.in_dll(library, "newamp1_energy_cb"))
        first, second, energy = (np.ctypeslib.as_array(book.cb, shape=(book.m, book.k)).copy() for book in books)
        _ctypes.dlclose(library._handle)
        return first, second, energy

    def __enter__(self) -> _Codec2Library:
        self._library = ctypes.CDLL(_codec2_path())
        self._library.codec2_create.restype = ctypes.c_void_p
        self._state = ctypes.c_void_p(self._library.codec2_create(self._MODE_700C))
        return self

    def __exit__(self, *_: object) -> None:
        self._library.codec2_destroy(self._state)
        _ctypes.dlclose(self._library._handle)

    def encode(self, pcm: np.ndarray) -> bytes:
        """Encode one frame of 320 int16 samples to 4 bytes."""
        frame = np.ascontiguousarray(pcm, dtype=np.int16)
        packed = ctypes.create_string_buffer(self._BYTES)
        self._library.codec2_encode(self._state, packed, frame.ctypes.data_as(ctypes.c_void_p))
        return packed.raw

    def decode(self, packed: bytes) -> np.ndarray:
        """Four bytes to 320 int16 samples."""
        frame = np.zeros(self._SAMPLES, dtype=np.int16)
        self._library.codec2_decode(self._state, frame.ctypes.data_as(ctypes.c_void_p), packed)
        return frame


@functools.lru_cache(maxsize=1)
def _codec2_path() -> str:
    folder = package_dir("pycodec2")
    places = (folder.parent / "pycodec2.libs", folder / ".dylibs")
    libraries = [path for folder in places for path in sorted(folder.glob("libcodec2*"))]
    if not libraries:
        raise AssetError(f"no libcodec2 beside {folder}; reinstall the package 'pycodec2' from its wheel")
    return str(libraries[0])
