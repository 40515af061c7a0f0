"""Stand-ins for Liger's fused kernels: autograd functions that allocate what the Triton kernels do.

Source: liger_kernel/ops/{rms_norm,swiglu,rope,fused_linear_cross_entropy}.py and the forwards of
liger_kernel/transformers/model/*.py. Only what Liger patches for the usual decoder is replaced: norms, the gated
product of the MLP, and the vocabulary projection with its loss; rotary embedding works in place there.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from swift_autobatch.records import FootprintKey
from swift_autobatch.trace.errors import CannotTrace

# Model types for which transformers' `use_liger_kernel` patches norms, gated MLP and loss (monkey_patch.py
# MODEL_TYPE_TO_APPLY_LIGER_FN) in the way that is modelled here.
_MODELLED = frozenset(
    "llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe phi3 granite olmo2 smollm3 qwen2_vl qwen2_vl_text "
    "qwen2_5_vl qwen2_5_vl_text qwen3_vl qwen3_vl_text".split()
)
_MULTIPROCESSORS = 128  # partial weight gradients of a norm: one row a multiprocessor


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    """RMSNorm: keeps its input and one fp32 value a row; the gradient is written over the incoming one."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _, weight, _ = ctx.saved_tensors
        partial = weight.new_empty((_MULTIPROCESSORS, *weight.shape), dtype=torch.float32)
        ours = partial.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return grad, ours


class _Gate(torch.autograd.Function):  # type: ignore[misc]
    """silu(a) * b: keeps a and b, and writes their gradients over them."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return torch.empty_like(a)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        return a, b


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    """Projection and cross-entropy by chunks of rows: the gradient of the hidden state is made in the forward.

    A chunk has the next power of two of rows x hidden / vocabulary: at most twice that, which is what is counted.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any) -> Any:
        rows, width = hidden.shape
        vocab = weight.shape[0]
        ours = torch.zeros_like(hidden)
        theirs = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = hidden.new_zeros(rows, dtype=torch.float32)
        # A chunk's logits hold 2 x rows x width values whatever the vocabulary is: (rows x width / vocab) x vocab.
        logits = hidden.new_empty((2, rows, width))
        product = hidden.new_empty((vocab, width)) if theirs is not None else None
        total = losses.sum()
        del logits, product, losses
        ctx.save_for_backward(ours, theirs)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.saved_tensors


@contextmanager
def liger(model: Any, key: FootprintKey, notes: set[str]) -> Iterator[None]:
    """Puts Liger's kernels into a model for the time of the block, where the key asks for them.

    Raises:
        CannotTrace: Liger has no kernels for the architecture, or others than are modelled.
    """
    if key.loss != "liger_fused":
        yield
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = getattr(base.config, "model_type", "")
    if name not in _MODELLED:
        raise CannotTrace(f"Liger's kernels are not modelled for {name or 'this architecture'}")
    notes.add("Liger's loss is counted with chunks of the largest size, up to twice the real one")
    undo = _patched(base)
    try:
        yield
    finally:
        for module in undo:
            del module.forward  # the instance's own; the class's shows again


def _patched(base: Any) -> list[Any]:
    changed = []
    for module in base.modules():
        forward: Callable[..., Any] | None = None
        if type(module).__name__.endswith("RMSNorm") and getattr(module, "weight", None) is not None:
            forward = _norm_forward
        elif _is_gated(module):
            forward = _gated_forward
        if forward is not None:
            module.forward = types.MethodType(forward, module)
            changed.append(module)
    base.forward = types.MethodType(_causal_forward, base)
    return [*changed, base]


def _is_gated(module: Any) -> bool:
    return all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))


def _norm_forward(self: Any, x: Any) -> Any:
    return _Norm.apply(x, self.weight)


def _gated_forward(self: Any, x: Any) -> Any:
    return self.down_proj(_Gate.apply(self.gate_proj(x), self.up_proj(x)))


def _causal_forward(self: Any, labels: Any = None, logits_to_keep: int = 0, **inputs: Any) -> Any:
    """Liger's forward of a causal model: no logits are made in training; evaluation makes them as ever."""
    if not self.training:
        return type(self).forward(self, labels=labels, logits_to_keep=logits_to_keep, **inputs)
    inputs.pop("num_items_in_batch", None)
    hidden = self.model(**inputs)[0]
    hidden = hidden[:, -logits_to_keep:, :].reshape(-1, hidden.shape[-1])
    weight = self.get_output_embeddings().weight
    if torch.is_autocast_enabled("cuda"):
        hidden = hidden.to(torch.get_autocast_dtype("cuda"))
    return {"loss": _Loss.apply(hidden, weight), "logits": None}
