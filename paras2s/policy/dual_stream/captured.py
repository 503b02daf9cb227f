"""The decoding step as recorded CUDA graphs, so that the device does not wait for the host's several thousand small launches.

A recorded graph repeats the same operations on the same memory. So nothing in a step may depend on how many answers there
are or how long they have become: rows, prompts' width and answers' length are rounded up to a few sizes, each recorded
once; inputs, weights and keys stay where they are. A size is run plainly the first time, which warms it up, and recorded the
second. On other devices, or with `record` None, the same steps run without being recorded.

What stays outside: reading prompts, drawing tokens, and the rules of an answer's end.
Alphabet: n rows under way, N rows of a size, S slots, d hidden size.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from paras2s.policy.dual_stream.kv_cache import DecodeCache, PromptCache
from paras2s.policy.dual_stream.network import DualStreamNetwork
from paras2s.policy.dual_stream.sampler import ModelDecoder

# Positions to which widths and lengths are rounded up.
POSITIONS = 64
States = tuple[Tensor, Tensor | None]
Record = Callable[[Callable[[], States]], Callable[[], States]]


def size_of(rows: int) -> int:
    """Return the smallest size that holds *n* rows: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


def _round_up(count: int) -> int:
    return -(-count // POSITIONS) * POSITIONS


class _GraphPool:
    """Records work on this process's GPU; all graphs share their working memory, since no two run at once."""

    def __init__(self) -> None:
        self._graphs = weakref.WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, work: Callable[[], States]) -> Callable[[], States]:
        if not self._graphs:
            # A pool ends with its last graph, and torch records no other graph in it.
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            states = work()
        self._graphs.add(graph)

        def replay() -> States:
            graph.replay()
            return states

        return replay


def graph_recorder(device: torch.device) -> Record | None:
    """Return a new recorder of graphs, or None if the device records none."""
    return _GraphPool() if device.type == "cuda" else None


class CapturedDecoder(ModelDecoder):
    """A decoder whose steps are recorded and repeated. It keeps its cache from call to call, since graphs refer to it."""

    def __init__(self, model: DualStreamNetwork, record: Record | None) -> None:
        super().__init__(model)
        self._record, self._warm = record, set[tuple[int, ...]]()
        self._recorded: dict[tuple[int, ...], Callable[[], States]] = {}
        self._cache: DecodeCache | None = None
        self._sizes: tuple[object, ...] = ()

    @property
    def records(self) -> bool:
        """Whether steps are recorded, and not only given fixed sizes."""
        return self._record is not None

    def cache(self, read: PromptCache, seats: int, group_size: int, capacity: int, width: int) -> DecodeCache:
        """See `Decoder.cache`; the one of the call before where it is as large."""
        capacity, width = _round_up(capacity), _round_up(width)
        key = read.pairs[0][0]
        # A weight that has been put elsewhere would still be read where it was.
        weights = tuple(weight.data_ptr() for weight in self.model.parameters())
        sizes = (seats, group_size, capacity, width, key.dtype, key.device, weights)
        if self._cache is None or sizes != self._sizes:
            # First what refers to the old memory, then the memory, so that both never lie side by side.
            self._recorded, self._warm, self._cache = {}, set(), None
            self._cache, self._sizes = super().cache(read, seats, group_size, capacity, width), sizes
            rows = seats * group_size
            self._places = torch.arange(rows, device=key.device)
            self._position, self._lengths = torch.zeros_like(self._places), torch.zeros_like(self._places)
            self._tokens = self._places.new_zeros(rows, 1 + self.model.dual_config.num_codebooks)
        self._cache.clear()
        return self._cache

    def step(self, tokens: Tensor, position: Tensor, cache: DecodeCache, with_text: bool) -> tuple[Tensor, Tensor | None]:
        """See `Decoder.step`. Rows up to the size read what was left there, and their results are discarded."""
        count, most = len(tokens), len(self._tokens)
        rows = min(size_of(count), most)
        width, stop = _round_up(cache.width), _round_up(cache.longest + 1)
        self._tokens[:count], self._position[:count], self._lengths[:count] = tokens, position, cache.lengths
        taken = torch.zeros(most, dtype=torch.int8, device=tokens.device).index_fill_(0, cache.places, 1)
        # No two rows may have the same place; rows whose results are discarded take free ones.
        self._places[:rows] = torch.cat([cache.places, taken.argsort(stable=True)])[:rows]

        def work() -> States:
            seen = cache.fixed(self._places[:rows], self._lengths[:rows], width, stop)
            return self.states(self._tokens[:rows], self._position[:rows], seen, with_text)

        text, audio = self._repeat((rows, width, stop, int(with_text)), work)
        return text[:count], None if audio is None else audio[:count]

    def _repeat(self, size: tuple[int, ...], work: Callable[[], States]) -> States:
        if size in self._recorded:
            return self._recorded[size]()
        if self._record is None or size not in self._warm:
            self._warm.add(size)
            return work()
        try:
            self._recorded[size] = self._record(work)
        except RuntimeError as error:
            warnings.warn(f"the sampler runs without recorded steps: {error}", stacklevel=2)
            # Memory may be what is short.
            self._record, self._recorded, self._cache = None, {}, None
            return work()
        return self._recorded[size]()
