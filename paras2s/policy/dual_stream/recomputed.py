"""Operations that keep only their inputs for the gradient, and compute the rest again.

Autograd keeps every intermediate result of a norm, of SwiGLU and of a softmax over the vocabulary, in half precision as float32
copies: a quarter to two fifths of what a layer holds between its passes. On a processor to compute them again takes no longer.
Alphabet: n rows, d features, f features inside a feed-forward, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as fn


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return fn.rms_norm(_wide(x), x.shape[-1:], _wide(weight), eps).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wide, gradient = _wide(x), _wide(gradients[0])
        scale = wide.pow(2).mean(-1, keepdim=True).add_(ctx.eps).rsqrt_()
        normed = wide * scale
        of_weight = (normed * gradient).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_normed = gradient * _wide(weight)
        along = (of_normed * normed).mean(-1, keepdim=True)
        of_x = of_normed.sub_(normed.mul_(along)).mul_(scale)
        return of_x.to(x.dtype), of_weight, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of x [..., d]; half precision is normalised in float32."""
    if x.is_cuda and x.dtype == weight.dtype:
        # One kernel, which is as wide inside and keeps its input and a number a row.
        return fn.rms_norm(x, x.shape[-1:], weight, eps)
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return fn.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(gradients[0] * up, gate)
        return of_gate, fn.silu(gate).mul_(gradients[0])


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, all [..., f]."""
    return _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]


class _PickedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.temperature = temperature
        return torch.log_softmax(_tempered(logits, temperature), -1).gather(1, targets[:, None])[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        gradient = gradients[0][:, None] / ctx.temperature
        of_logits = torch.softmax(_tempered(logits, ctx.temperature), -1).mul_(-gradient)
        return of_logits.scatter_add_(1, targets[:, None], gradient).to(logits.dtype), None, None


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    return _wide(logits) if temperature == 1.0 else _wide(logits) / temperature


def picked_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the log-probs [n] of targets [n] under logits [n, V]; half precision is normalised in float32."""
    return _PickedLogProbs.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
