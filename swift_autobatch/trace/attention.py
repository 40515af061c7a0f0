"""Stand-ins for CUDA's attention kernels: autograd functions that allocate what the kernels do.

On meta tensors ``scaled_dot_product_attention`` decomposes into products that are quadratic in length, which no
CUDA run with a fused kernel holds. Sizes are those of PyTorch's aten/src/ATen/native/transformers/cuda/attention.cu
and attention_backward.cu (and of the flash-attn package, which they were taken from); lengths are not rounded up
to the kernels' blocks of 128.
"""

from __future__ import annotations

from typing import Any

import torch

_EIGHT = 8  # flash kernels pad the head dimension to a multiple of it


def _rows_first(like: Any, heads: int, width: int) -> Any:
    """An empty (batch, heads, length, width) tensor that lies as (batch, length, heads, width)."""
    batch, _, length, _ = like.shape
    return like.new_empty((batch, length, heads, width)).transpose(1, 2)


class _Flash(torch.autograd.Function):  # type: ignore[misc]
    """FlashAttention 2: output and log-sum-exp; backward: three gradients, row sums and an fp32 gradient of q."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = _rows_first(query, heads, value.shape[-1])
        log_sum = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, _, _ = ctx.saved_tensors
        batch, heads, length, width = query.shape
        dq = _rows_first(query, heads, width)
        dk = _rows_first(key, key.shape[1], width)
        dv = _rows_first(value, value.shape[1], value.shape[-1])
        row_sums = query.new_empty((batch, heads, length), dtype=torch.float32)
        whole = query.new_empty((batch, length, heads, width), dtype=torch.float32)
        # Grouped heads: the kernel writes one gradient a query head, summed over each group afterwards.
        spread = [_rows_first(key, heads, width) for _ in range(2)] if key.shape[1] != heads else None
        del row_sums, whole, spread
        return dq, dk, dv


class _Efficient(torch.autograd.Function):  # type: ignore[misc]
    """The memory-efficient kernel: as flash, without the fp32 gradient of q; keeps the additive mask."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = _rows_first(query, heads, value.shape[-1])
        log_sum = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sum, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, _, _, _ = ctx.saved_tensors
        batch, heads, length, width = query.shape
        dq = _rows_first(query, heads, width)
        dk = _rows_first(key, key.shape[1], width)
        dv = _rows_first(value, value.shape[1], value.shape[-1])
        row_sums = query.new_empty((batch, heads, length), dtype=torch.float32)
        del row_sums
        return dq, dk, dv, None


def _flash(query: Any, key: Any, value: Any) -> Any:
    width = value.shape[-1]
    pad = -query.shape[-1] % _EIGHT
    if pad:
        query, key, value = (torch.nn.functional.pad(x, (0, pad)) for x in (query, key, value))
    return _Flash.apply(query, key, value)[..., :width]


def _efficient(query: Any, key: Any, value: Any, mask: Any) -> Any:
    bias = mask
    if mask is not None and mask.dtype == torch.bool:
        bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return _Efficient.apply(query, key, value, bias)


def attend(kernel: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``scaled_dot_product_attention`` as ``kernel`` (a value of Effective.attention) runs it; ``cpu`` is
    PyTorch's flash kernel for CPUs."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    grouped = bool(given.get("enable_gqa")) and key.shape[1] != query.shape[1]
    if kernel == "cpu":
        return _cpu(query, key, value, mask, bool(given.get("is_causal")))
    fused = query.dtype != torch.float32 or kernel == "sdpa-efficient"
    if kernel in ("sdpa-flash", "flash_attention_2") and mask is None and fused:
        return _flash(query, key, value)
    if kernel != "sdpa-math" and not grouped:
        return _efficient(query, key, value, mask)
    return original(*args, **kwargs)


def _cpu(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> Any:
    """The CPU kernel takes grouped heads as they are."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return run(query, key, value, 0.0, causal, attn_mask=mask)[0]
