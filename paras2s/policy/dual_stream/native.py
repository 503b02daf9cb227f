"""The decoding step in C++ (decode.cpp): compiled on first use, kept on disk, used for float32 weights on the CPU.

It needs a C++ compiler: `c++`, or that of the environment variable CXX (`CXX=none`: not used). Where there is
none, or the model is not made of plain layers (LoRA, shards, half precision, a GPU), `native_decoder` gives None and the
sampler runs the model's own modules. Weights are packed again for each call, which takes about as long as one step, so
nothing can be out of date.
Alphabet: n rows, d hidden size, K audio slots, T steps.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paras2s.policy.dual_stream.kv_cache import DecodeCache, PromptCache
from paras2s.policy.dual_stream.network import Attention, DualStreamNetwork, FeedForward, Layer, RMSNorm, rotary

SOURCE = Path(__file__).with_name("decode.cpp")
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread")
# By what torch found of the processor, so that machines that share a home directory do not share instructions.
PROCESSOR_FLAGS = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
}
# Packed weights are held beside the model's own, so a larger model would pay for them in memory.
LARGEST_BYTES = 2**30


def _structure(name: str, *fields: tuple[str, Any]) -> type[Any]:
    """Define a C structure; fields are (names, type)."""
    listed = [(field, kind) for names, kind in fields for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": listed})


_Layer = _structure("Layer", ("before qkv qkv_bias out between gate_up down", c_void_p))
_Plan = _structure(
    "Plan",
    ("hidden inner heads kv_heads head_size turned in_pairs shared text_layers audio_layers", c_int64),
    ("eps", c_float),
    ("layers embedding text_norm audio_norm", c_void_p),
)
_Cache = _structure(
    "Cache",
    ("prompt_keys prompt_values keys values", c_void_p),
    ("seats prompt_width answers capacity group", c_int64),
    ("prompt_lengths places lengths cosine sine", c_void_p),
)


# By function of the library; addresses are numbers, and 0 is none.
ARGUMENTS: dict[str, list[Any]] = {
    "lanes": [],
    "step_floats": [c_void_p, c_int64, c_int64, c_int64],
    "step": [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64],
    "draw_floats": [c_int64, c_int64],
    "draw": [
        *(c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_float, c_int64),
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_int64),
    ],
}


def _build(compiler: Sequence[str]) -> Path:
    """Return the shared library's file, compiled if it is missing. Raises OSError: the folder or the compiler failed."""
    command = [*compiler, *FLAGS, *PROCESSOR_FLAGS.get(torch.backends.cpu.get_cpu_capability(), ())]
    key = hashlib.sha256(" ".join(command).encode() + SOURCE.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "paras2s" / f"decode-{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several workers may compile at once; each puts its own whole file in place.
        mine = path.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*command, "-o", str(mine), str(SOURCE)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip()[-500:])
        mine.replace(path)
    return path


@functools.cache
def library() -> Any:
    """Return the loaded library, or None if it cannot be built or loaded; a compiler that fails is warned of once."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(compiler[0]) is None:
        return None
    try:
        built = ctypes.CDLL(str(_build(compiler)))
    except (OSError, RuntimeError) as error:
        warnings.warn(f"the sampler runs without its compiled step: {error}", stacklevel=2)
        return None
    for name, taken in ARGUMENTS.items():
        function = getattr(built, name)
        function.argtypes, function.restype = taken, c_int64 if name in ("lanes", "step_floats", "draw_floats") else None
    return built


def is_plain(model: DualStreamNetwork) -> bool:
    """Return whether every layer is the network's own, in float32 on the CPU, without adapters, shards or hooks."""
    config = model.dual_config
    if config.hidden_size // config.num_heads % 8:
        return False
    kinds = {"self_attn": Attention, "mlp": FeedForward, "input_layernorm": RMSNorm, "post_attention_layernorm": RMSNorm}
    stacks: list[Any] = [*model.model.layers, *(model.model.mimo_layers if config.num_codebooks else ())]
    for layer in stacks:
        parts = [(getattr(layer, name), kind) for name, kind in kinds.items()]
        parts += [(part, nn.Linear) for half in (layer.self_attn, layer.mlp) for part in half.children()]
        if any(type(part) is not kind for part, kind in [(layer, Layer), *parts]):
            return False
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.model.modules()):
        return False
    weights = list(model.parameters())
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    return size <= LARGEST_BYTES and all(
        type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in weights
    )


def native_decoder(model: DualStreamNetwork, positions: int) -> NativeDecoder | None:
    """Return the compiled decoder of a model for sequences of at most `positions`, or None if the model's modules must run."""
    if not is_plain(model):
        return None
    loaded = library()
    return None if loaded is None else NativeDecoder(loaded, model, positions)


class NativeDecoder:
    """One model's packed weights and the compiled functions over them; see `sampler.Decoder`."""

    in_place = True

    def __init__(self, loaded: Any, model: DualStreamNetwork, positions: int) -> None:
        config = model.dual_config
        self._library, self._config, self._lanes = loaded, config, int(loaded.lanes())
        # The structures hold addresses alone; this holds the tensors they point at.
        self._held: list[Any] = []
        stack = [*model.model.layers, *(model.model.mimo_layers if config.num_codebooks else ())]
        layers = (_Layer * len(stack))(*(self._layer(layer) for layer in stack))
        cosine, sine = rotary(torch.arange(positions)[None], config, torch.float32)
        turned = cosine.shape[-1]
        once = slice(None, None, 2) if config.rotary_in_pairs else slice(turned // 2)
        self._angles = cosine[0, 0, :, once].contiguous(), sine[0, 0, :, once].contiguous()
        self._plan = _Plan(
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_size=config.hidden_size // config.num_heads,
            turned=turned,
            in_pairs=config.rotary_in_pairs,
            shared=config.tap_layer + 1,
            text_layers=config.num_layers,
            audio_layers=len(stack) - config.num_layers,
            eps=config.rms_norm_eps,
            layers=ctypes.cast(layers, c_void_p),
            embedding=self._hold(model.model.embed_tokens.weight),
            text_norm=self._hold(model.model.norm.weight),
            audio_norm=self._hold(model.model.mimo_norm.weight) if config.num_codebooks else None,
        )
        self._held.append(layers)
        start, stop = config.text_range
        self._text_head = _Head(self._packed(model.lm_head.weight[start:stop]), [(start, stop)])
        if config.num_codebooks:
            first, last = config.audio_ranges[0][0], config.audio_ranges[-1][1]
            self._audio_head = _Head(self._packed(model.mimo_output.weight[first:last]), config.audio_ranges)
        self._scratch = torch.empty(0)

    def cache(self, read: PromptCache, seats: int, group_size: int, capacity: int, width: int) -> DecodeCache:
        """See `sampler.Decoder.cache`."""
        return DecodeCache(read, seats, group_size, capacity, width, self.in_place)

    def step(self, tokens: Tensor, position: Tensor, cache: DecodeCache, with_text: bool) -> tuple[Tensor, Tensor | None]:
        """See `sampler.Decoder.step`; positions are those of the cache."""
        tokens, (rows, slots) = tokens.contiguous(), tokens.shape
        state = tokens.new_empty(2, rows, self._config.hidden_size, dtype=torch.float32)
        text, audio = state[0] if with_text else None, state[1] if slots > 1 else None
        threads, plan = torch.get_num_threads(), ctypes.byref(self._plan)
        positions = cache.prompt_keys.shape[3] + cache.keys.shape[3]
        room = self._room(self._library.step_floats(plan, rows, positions, threads))
        seen = ctypes.byref(self._seen(cache))
        self._library.step(plan, seen, _at(tokens), rows, slots, _at(text), _at(audio), _at(room), threads)
        return state[0, :, None] if with_text else state[0, :, None][:, :0], audio

    def draw_text(self, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """See `sampler.Decoder.draw_text`."""
        index, logp = self._draw(self._text_head, state, temperature, top_k, uniform[:, None])
        return index[:, 0], logp[:, 0]

    def draw_audio(self, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """See `sampler.Decoder.draw_audio`."""
        return self._draw(self._audio_head, state, temperature, top_k, uniform)

    def _draw(self, head: _Head, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        state, uniform = state.contiguous(), uniform.contiguous()
        index = torch.empty(uniform.shape, dtype=torch.int64)
        logp = torch.empty(uniform.shape, dtype=torch.float32)
        threads = torch.get_num_threads()
        room = self._room(self._library.draw_floats(head.columns, threads))
        columns, settings = (_at(head.packed), head.columns, head.starts, head.counts, uniform.shape[1]), (temperature, top_k)
        drawn = (_at(uniform), _at(index), _at(logp))
        self._library.draw(_at(state), *state.shape, *columns, *settings, *drawn, _at(room), threads)
        return index, logp

    def _seen(self, cache: DecodeCache) -> Any:
        """Return the cache as the library sees it at this step."""
        tensors = {
            name: _at(getattr(cache, name))
            for name in ("prompt_keys", "prompt_values", "keys", "values", "prompt_lengths", "places", "lengths")
        }
        cosine, sine = (_at(angles) for angles in self._angles)
        return _Cache(
            **tensors,
            seats=cache.seats,
            prompt_width=cache.prompt_keys.shape[3],
            answers=cache.keys.shape[1],
            capacity=cache.keys.shape[3],
            group=cache.group_size,
            cosine=cosine,
            sine=sine,
        )

    def _room(self, floats: int) -> Tensor:
        """Memory to work in, kept from call to call."""
        if len(self._scratch) < floats:
            self._scratch = torch.empty(floats)
        return self._scratch

    def _hold(self, tensor: Tensor) -> int:
        held = tensor.detach().contiguous()
        self._held.append(held)
        return held.data_ptr()

    def _packed(self, weight: Tensor) -> Tensor:
        """Pack a matrix [N, d] as panels [panels, d, 2 lanes], with zeros behind its last row."""
        return _panels(weight.detach(), 2 * self._lanes).transpose(1, 2).contiguous()

    def _layer(self, layer: Any) -> Any:
        attention, mlp = layer.self_attn, layer.mlp
        inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
        gate, up = (_panels(part.weight.detach(), self._lanes) for part in (mlp.gate_proj, mlp.up_proj))
        return _Layer(
            before=self._hold(layer.input_layernorm.weight),
            qkv=self._hold(self._packed(torch.cat([part.weight for part in inputs]))),
            qkv_bias=self._hold(_panels(torch.cat([part.bias for part in inputs])[:, None], 2 * self._lanes)),
            out=self._hold(self._packed(attention.o_proj.weight)),
            between=self._hold(layer.post_attention_layernorm.weight),
            gate_up=self._hold(torch.cat([gate, up], 1).transpose(1, 2)),
            down=self._hold(self._packed(mlp.down_proj.weight)),
        )


class _Head:
    """A packed output projection and the columns of each slot."""

    def __init__(self, packed: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        self.packed, first = packed, ranges[0][0]
        self.columns = ranges[-1][1] - first
        self.starts = (c_int64 * len(ranges))(*(start - first for start, _ in ranges))
        self.counts = (c_int64 * len(ranges))(*(stop - start for start, stop in ranges))


def _panels(weight: Tensor, width: int) -> Tensor:
    """[N, d] to [panels, width, d], with zeros behind the last row."""
    rows, size = weight.shape
    full = weight.new_zeros(-(-rows // width) * width, size)
    full[:rows] = weight
    return full.view(-1, width, size)


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
