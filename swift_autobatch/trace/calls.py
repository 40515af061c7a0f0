"""What a CUDA run does between a Python call and the operator, put onto meta tensors.

Autocast has no meta key, dropout and attention have CUDA kernels of their own, and a value read from a tensor
(``bool``, ``item``) does not exist. A torch function mode sees the calls and does what CUDA would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch.overrides import TorchFunctionMode

from swift_autobatch.trace.attention import attend

_T = torch.Tensor
# aten/src/ATen/autocast_mode.h: operators that run in the 16-bit type, and those that run in fp32.
_LOWER = frozenset(
    {
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.addbmm, torch.mv, torch.einsum),
        *(F.linear, F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d, F.prelu),
        *(_T.matmul, _T.mm, _T.bmm, _T.__matmul__, _T.__rmatmul__, _T.addmm, _T.baddbmm, _T.addbmm, _T.mv),
        F.scaled_dot_product_attention,
    }
)
_FP32 = frozenset(
    {
        *(F.softmax, torch.softmax, _T.softmax, F.log_softmax, torch.log_softmax, _T.log_softmax, F.cross_entropy),
        *(F.layer_norm, F.group_norm, F.nll_loss, F.softplus, F.mse_loss, F.normalize, F.cosine_similarity),
        *(torch.exp, _T.exp, torch.log, _T.log, torch.pow, _T.pow, _T.__pow__, torch.rsqrt, _T.rsqrt),
        *(torch.sum, _T.sum, torch.cumsum, _T.cumsum, torch.prod, _T.prod, torch.norm, _T.norm),
        *(torch.reciprocal, _T.reciprocal, torch.logsumexp, _T.logsumexp, torch.expm1, torch.log1p),
    }
)
_READS = frozenset({_T.__bool__, _T.item, _T.__int__, _T.__float__, _T.__index__, _T.tolist})
# "Is the mask all ones": `mask.all()`, or `mask.sum() == mask.numel()` (transformers masking_utils.py `fast_all`).
_ALL = frozenset({torch.all, _T.all})
_SUMS = frozenset({torch.sum, _T.sum})
_EQUAL = frozenset({torch.eq, _T.eq, _T.__eq__})


class Calls(TorchFunctionMode):  # type: ignore[misc]
    """Emulates one device for the time of the block.

    Args:
        device: ``cuda`` or ``cpu``: whose autocast state stands for the emulated device's, and whose dropout runs
            (one kernel with a mask of one byte, or a 16-bit product).
        kernel: which attention kernel runs (a value of Effective.attention, or ``cpu``).
        masked: rows are padded: a mask that "is all ones" is not.
    """

    def __init__(self, *, device: str, kernel: str, masked: bool) -> None:
        super().__init__()
        self._kernel = kernel
        self._masked = masked
        self._device = device
        self._casts: dict[int, tuple[Any, Any]] = {}  # parameter's id -> (parameter, its 16-bit copy)
        self.notes: set[str] = set()

    def autocast(self, dtype: Any) -> Any:
        """The autocast region of one forward; nothing where ``dtype`` is None."""
        return nullcontext() if dtype is None else torch.autocast(self._device, dtype=dtype)

    def forget_casts(self) -> None:
        self._casts.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS and args[0].device.type == "meta":
            return self._read(func, args[0])
        if torch.is_autocast_enabled(self._device):
            if func in _LOWER:
                args, kwargs = self._cast(args, torch.get_autocast_dtype(self._device)), self._cast(kwargs, None)
            elif func in _FP32 and kwargs.get("dtype") is None:
                args = self._upcast(args)
        if func is F.scaled_dot_product_attention:
            return attend(self._kernel, func, args, kwargs)
        if func is F.dropout and self._device == "cuda":
            return _dropout(func, *args, **kwargs)
        out = func(*args, **kwargs)
        if func in _SUMS:
            out._is_sum = True
        elif func in _ALL or (func in _EQUAL and getattr(args[0], "_is_sum", False)):
            out._is_all = True
        return out

    # ---------------------------------------------------------------------------------------------- autocast

    def _cast(self, value: Any, dtype: Any) -> Any:
        dtype = dtype or torch.get_autocast_dtype(self._device)
        if isinstance(value, torch.Tensor):
            return self._cast_one(value, dtype) if value.dtype in _FLOATS and value.dtype != dtype else value
        if isinstance(value, (tuple, list)):
            return type(value)(self._cast(item, dtype) for item in value)
        if isinstance(value, dict):
            return {key: self._cast(item, dtype) for key, item in value.items()}
        return value

    def _cast_one(self, tensor: Any, dtype: Any) -> Any:
        """Casts of fp32 leaves that train are kept until autocast ends, as PyTorch's own cache does."""
        keeps = (
            torch.is_autocast_cache_enabled()
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and tensor._base is None
        )
        if not keeps:
            return tensor.to(dtype)
        found = self._casts.get(id(tensor))
        if found is None:
            found = self._casts[id(tensor)] = (tensor, tensor.to(dtype))
        return found[1]

    def _upcast(self, args: Any) -> Any:
        return tuple(
            item.float() if isinstance(item, torch.Tensor) and item.dtype in _HALVES else item for item in args
        )

    # ------------------------------------------------------------------------------------------------ values

    def _read(self, func: Any, tensor: Any) -> Any:
        """A value that the run would read. "Is the mask all ones" is answered by ``masked``; else no."""
        if getattr(tensor, "_is_all", False):
            return not self._masked
        if func is _T.__bool__ or tensor.dtype == torch.bool:
            return False
        self.notes.add("the model reads a number from a tensor while it runs; 0 was assumed")
        return [] if func is _T.tolist else 0


_HALVES = frozenset({torch.bfloat16, torch.float16})
_FLOATS = _HALVES | {torch.float32}


def _dropout(original: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """CUDA's dropout: the product and a mask of one byte."""
    if not training or p == 0:
        return original(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


@contextmanager
def emulated(calls: Calls) -> Iterator[None]:
    """Puts the mode on, and lets torch's autocast and checkpointing take meta tensors for the device's."""
    import torch.utils.checkpoint as checkpoint
    from torch.cuda.amp import common
    from torch.nn.utils import clip_grad

    changes = [
        (common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True),
        (checkpoint, "_infer_device_type", lambda *args: "cuda"),
        (clip_grad, "_has_foreach_support", lambda *args, **kwargs: True),
        (torch, "clear_autocast_cache", calls.forget_casts),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        with calls:
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
