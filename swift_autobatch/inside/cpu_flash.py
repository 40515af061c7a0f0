"""Runs inside ``swift`` (``--external_plugins``): FlashAttention 2's two functions on a CPU, for a rehearsal.

The flash-attn package has no CPU kernel, and without it transformers refuses ``flash_attention_2``; with it go packing
and padding-free rows, whose whole data path (packs, position ids, where a row ends) is the engine's own and rests on
these two functions only. Here they are PyTorch's ``scaled_dot_product_attention``, once a row: the same results, no
speed, no memory saved. Imports nothing of autoswift.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, modeling_flash_attention_utils

_NAME = "flash_attention_2"
_lazy_imports = modeling_flash_attention_utils._lazy_imports


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool = False,
) -> Any:
    """Attention over (batch, tokens, heads, width); fewer key and value heads are shared out as FlashAttention does."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=_mask(query.shape[2], key.shape[2], causal, window_size[0], query.device),
        dropout_p=dropout_p,
        scale=softmax_scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool = False,
) -> Any:
    """Attention over rows laid end to end: (all tokens, heads, width), each row seeing itself only."""
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = [
        flash_attn_func(
            q[None, ends_q[i] : ends_q[i + 1]],
            k[None, ends_k[i] : ends_k[i + 1]],
            v[None, ends_k[i] : ends_k[i + 1]],
            dropout_p,
            softmax_scale,
            causal,
            window_size,
        )[0]
        for i in range(len(ends_q) - 1)
    ]
    return torch.cat([*parts, q[ends_q[-1] :]])


def _mask(rows: int, columns: int, causal: bool, window: int, device: Any) -> Any:
    """True where a query may look: aligned to the end as FlashAttention does; None where every one may."""
    if not causal and window < 0:
        return None
    behind = torch.arange(rows, device=device)[:, None] + (columns - rows) - torch.arange(columns, device=device)[None]
    seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    return seen & (behind <= window) if window >= 0 else seen


def _imports(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
    if implementation not in (None, _NAME):
        return _lazy_imports(implementation, *args, **kwargs)
    utils = modeling_flash_attention_utils
    return flash_attn_func, flash_attn_varlen_func, None, utils._pad_input, utils._unpad_input


def _can_dispatch(self: Any, flash_attn_version: int, is_init_check: bool = False) -> bool:
    """The model's own word stays; the package and the device are what this file stands in for."""
    if not self._supports_flash_attn or flash_attn_version != 2:
        raise ValueError(f"{type(self).__name__} does not support FlashAttention {flash_attn_version}")
    return True


modeling_flash_attention_utils._lazy_imports = _imports
PreTrainedModel._flash_attn_can_dispatch = _can_dispatch
