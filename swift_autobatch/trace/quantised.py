"""bitsandbytes' NF4 on meta tensors: the real modules with packed weights that were never quantised."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

_BLOCK = 64  # weights that share a scale; bitsandbytes functional.py `quantize_4bit`
_OUTER_BLOCK = 256  # scales that share a scale (double quantisation)


def to_nf4(model: Any, dtype: Any, skipped: frozenset[str]) -> None:
    """Replaces every nn.Linear but ``skipped`` by a Linear4bit whose weight is packed, with double quantisation.

    Source: transformers integrations/bitsandbytes.py `replace_with_bnb_linear`.
    """
    import bitsandbytes as bnb

    for name, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear or name in skipped:
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        with torch.device("meta"):
            packed = bnb.nn.Linear4bit(
                module.in_features,
                module.out_features,
                module.bias is not None,
                compute_dtype=dtype,
                compress_statistics=True,
                quant_type="nf4",
            )
        packed.weight = _packed(module.weight.shape, dtype)
        packed.weight.module = packed
        if module.bias is not None:
            packed.bias = module.bias
        packed.quant_state = packed.weight.quant_state
        packed.compute_type_is_set = True
        packed.requires_grad_(False)
        setattr(parent, name.rpartition(".")[2], packed)
    model.is_loaded_in_4bit = True


def _packed(shape: Any, dtype: Any) -> Any:
    import bitsandbytes as bnb
    from bitsandbytes.functional import QuantState

    n = prod(shape)
    blocks = -(-n // _BLOCK)
    with torch.device("meta"):
        outer = QuantState(
            absmax=torch.empty(-(-blocks // _OUTER_BLOCK), dtype=torch.float32),
            code=torch.empty(256, dtype=torch.float32),
            blocksize=_OUTER_BLOCK,
            dtype=torch.float32,
        )
        state = QuantState(
            absmax=torch.empty(blocks, dtype=torch.uint8),
            shape=torch.Size(shape),
            code=torch.empty(16, dtype=torch.float32),
            blocksize=_BLOCK,
            quant_type="nf4",
            dtype=dtype,
            offset=torch.empty((), dtype=torch.float32),
            state2=outer,
        )
        data = torch.empty(((n + 1) // 2, 1), dtype=torch.uint8)
    return bnb.nn.Params4bit(
        data, requires_grad=False, quant_state=state, blocksize=_BLOCK, quant_type="nf4", bnb_quantized=True
    )


def state_tensors(model: Any) -> list[Any]:
    """The scales of every packed weight: on the device for the whole run, but no parameters."""
    found: list[Any] = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            found += [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    return found


def gemm_4bit(a: Any, b: Any, shape: Any, *rest: Any, **named: Any) -> tuple[int, ...]:
    """Bytes that CUDA's 4-bit product makes and drops: scales in fp32, the weight in 16 bits. (Up to some hundred
    tokens a fused kernel runs instead.) Source: bitsandbytes backends/cuda/ops.py."""
    n = prod(shape)
    return (4 * -(-n // _BLOCK), n * a.element_size())
