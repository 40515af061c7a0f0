"""Beside ``telemetry.py`` inside ``swift``: which code paths really run, asked of the objects, not of the flags.

Imports nothing of autoswift's own package: it is copied to the run folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def effective(args: Any, trainer: Any, kwargs: Any) -> dict[str, Any]:
    """What really runs, asked of the objects, not of the flags."""
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    optimizer = kwargs.get("optimizer") or trainer.optimizer
    while hasattr(optimizer, "optimizer"):  # accelerate's and DeepSpeed's wrappers
        optimizer = optimizer.optimizer
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    quantised = getattr(config, "quantization_config", None)
    return {
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "micro_batch": args.per_device_train_batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "rows": _length(trainer.train_dataset),
        "dtypes": _dtypes(model),
        "parameters": _count(model, trainable_only=False),
        "trainable_parameters": _count(model, trainable_only=True),
        "attention": getattr(config, "_attn_implementation", None),
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "gradient_checkpointing": bool(getattr(base, "is_gradient_checkpointing", False)),
        "quantised": _quantised(quantised, model),
        "zero_stage": getattr(plugin, "zero_stage", None),
        "fsdp": bool(getattr(trainer, "is_fsdp_enabled", False)) and _spread(model),
        "sequence_parallel": _sequence_parallel(),
        "tensor_parallel": max((getattr(module, "tp_world_size", 1) for module in model.modules()), default=1),
        "mixed_precision": getattr(trainer.accelerator, "mixed_precision", None),
        "liger": bool(getattr(args, "use_liger_kernel", False)),
        "device": str(args.device),
    }


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:  # a stream
        return None


def _dtypes(model: Any) -> dict[str, int]:
    """Parameters by dtype; the quantised ones count as stored (NF4: two a byte, ``uint8``)."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + int(getattr(parameter, "ds_numel", parameter.numel()))
    return counts


def _count(model: Any, *, trainable_only: bool) -> int:
    """Elements over all ranks where ZeRO-3 has sharded them (``ds_numel``)."""
    return sum(
        int(getattr(p, "ds_numel", p.numel())) for p in model.parameters() if p.requires_grad or not trainable_only
    )


def _spread(model: Any) -> bool:
    """Whether parameters are FSDP's own kind: the trainer's word alone holds where nothing was sharded."""
    return any(type(parameter).__name__ in ("DTensor", "FlatParameter") for parameter in model.parameters())


def _sequence_parallel() -> int:
    """Ranks that share one row, as the engine's own object has it once its mesh exists."""
    shared: Any = getattr(sys.modules.get("swift.sequence_parallel"), "sequence_parallel", None)
    return int(shared.world_size) if getattr(shared, "device_mesh", None) is not None else 1


def _quantised(config: Any, model: Any) -> str | None:
    kinds = {type(parameter).__name__ for parameter in model.parameters()}
    if "Params4bit" in kinds:
        return "nf4" if getattr(config, "bnb_4bit_quant_type", "nf4") == "nf4" else "fp4"
    if "Int8Params" in kinds:
        return "int8"
    return None if config is None else str(getattr(config, "quant_method", "unknown"))


def watch_logits(model: Any, say: Callable[..., Any]) -> None:
    """Calls ``say(logits_rows=.., logits_dtype=..)`` once, after the first forward pass in training.

    ``logits_rows`` is how many positions of a row reached the vocabulary projection; None: no logits came out at all,
    because a fused kernel made the loss of them.
    """

    def after(module: Any, args: Any, output: Any) -> None:
        if not module.training:
            return
        handle.remove()
        logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
        shape = tuple(getattr(logits, "shape", ()))
        dtype = str(getattr(logits, "dtype", "")).removeprefix("torch.") or None
        say(logits_rows=int(shape[-2]) if len(shape) > 1 else None, logits_dtype=dtype)

    handle = model.register_forward_hook(after)


def rows_needed(labels: Any) -> int:
    """Positions of a row that have to reach the vocabulary projection, as ms-swift keeps them.

    One row: the supervised ones and one more; several: from the earliest label of any of them.
    Source: swift/trainers/mixin.py, ``prepare_logits_to_keep``.
    """
    supervised = labels != -100
    if labels.shape[0] == 1:
        return int(supervised.sum()) + 1
    return int(labels.shape[-1] - supervised.int().argmax(-1).min() + 1)
