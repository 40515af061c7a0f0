"""Translates pinned engine flags into the fields of a Candidate, so that the planner plans around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.records import Request, Sourced

_DEEPSPEED_PRESETS = {
    "zero0": "zero0",
    "zero1": "zero1",
    "zero2": "zero2",
    "zero3": "zero3",
    "zero2_offload": "zero2_offload",
    "zero3_offload": "zero3_offload",
}
_STAGES = (0, 1, 2, 3)
_ATTENTION = {"flash_attn": "flash_attention_2"}


def _truth(text: str) -> bool:
    return text.strip().lower() in {"true", "1", "yes"}


def _attention(text: str) -> str:
    return _ATTENTION.get(text, text)


# engine flag -> (candidate field, how its text becomes the value)
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "per_device_train_batch_size": ("micro_batch", int),
    "gradient_accumulation_steps": ("accumulation", int),
    "max_length": ("max_length", int),
    "tuner_type": ("tuner", str),
    "gradient_checkpointing": ("gradient_checkpointing", _truth),
    "attn_impl": ("attn_impl", _attention),
    "torch_dtype": ("torch_dtype", str),
    "packing": ("packing", _truth),
    "padding_free": ("padding_free", _truth),
    "use_liger_kernel": ("liger", _truth),
    "lora_rank": ("lora_rank", int),
    "lora_dropout": ("lora_dropout", float),
    "optim": ("optim", str),
    "use_logits_to_keep": ("use_logits_to_keep", _truth),
    "group_by_length": ("group_by_length", _truth),
    "sequence_parallel_size": ("sp", int),
    "deepspeed_autotp_size": ("tp", int),
}


def pinned_fields(request: Request, cwd: Path) -> Mapping[str, Sourced[Any]]:
    """Candidate fields that the user's engine flags decide.

    Args:
        cwd: the project folder, for a DeepSpeed or FSDP JSON given by a relative path.

    Raises:
        UsageError: quant_bits without quant_method (the engine would train unquantised without a word), or
            both DeepSpeed and FSDP.
        InputError: a pinned JSON file that is missing or not JSON.
    """
    fields: dict[str, Sourced[Any]] = {}
    for flag, (name, convert) in _FIELDS.items():
        pin = request.pins.get(flag)
        if pin is not None and isinstance(pin.value, str):
            fields[name] = Sourced(value=convert(pin.value), source=pin.source)
    fields.update(_precision(request))
    fields.update(_quant(request))
    fields.update(_parallel(request, cwd))
    return fields


def pinned_json(request: Request, flag: str, cwd: Path) -> dict[str, Any] | None:
    """The DeepSpeed or FSDP config that the user pinned as a file or as JSON text; None for a preset name."""
    pin = request.pins.get(flag)
    if pin is None or not isinstance(pin.value, str) or pin.value in (*_DEEPSPEED_PRESETS, "fsdp2"):
        return None
    text, where = pin.value, f"--{flag}"
    if not text.lstrip().startswith("{"):
        path = cwd / text
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--{flag} names a file that cannot be read: {pin.value}",
                where=f"--{flag}",
                hints=(f"use one of {', '.join(_DEEPSPEED_PRESETS)}" if flag == "deepspeed" else "use fsdp2",),
            ) from error
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(f"--{flag} is not JSON: {error}", where=where) from error
    if not isinstance(document, dict):
        raise InputError(f"--{flag} must be a JSON object", where=where)
    return document


def _precision(request: Request) -> dict[str, Sourced[Any]]:
    for flag, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        pin = request.pins.get(flag)
        if pin is not None and isinstance(pin.value, str) and _truth(pin.value) and "torch_dtype" not in request.pins:
            return {"torch_dtype": Sourced(value=dtype, source=pin.source)}
    return {}


def _quant(request: Request) -> dict[str, Sourced[Any]]:
    method, bits = request.pins.get("quant_method"), request.pins.get("quant_bits")
    if bits is not None and method is None:
        raise UsageError(
            "--quant_bits without --quant_method is silently ignored by the engine: the model would load unquantised",
            where="--quant_bits",
            hints=(f"add --quant_method bnb (so: --quant_method bnb --quant_bits {bits.value})",),
        )
    if method is None:
        return {}
    if bits is None:
        raise UsageError(
            "--quant_method needs --quant_bits", where="--quant_method", hints=("add --quant_bits 4 (NF4) or 8",)
        )
    if method.value != "bnb" or bits.value not in {"4", "8"}:
        raise UsageError(
            f"--quant_method {method.value} --quant_bits {bits.value} is not planned for; bnb with 4 or 8 bits is",
            where="--quant_method",
            hints=("--quant_method bnb --quant_bits 4",),
        )
    return {"quant": Sourced(value="nf4" if bits.value == "4" else "int8", source=bits.source)}


def _parallel(request: Request, cwd: Path) -> dict[str, Sourced[Any]]:
    deepspeed, fsdp = request.pins.get("deepspeed"), request.pins.get("fsdp")
    if deepspeed is not None and fsdp is not None:
        raise UsageError(
            "--deepspeed and --fsdp exclude each other", where="--fsdp", hints=("drop --fsdp", "drop --deepspeed")
        )
    if deepspeed is not None:
        parallel = Sourced(value=_deepspeed_parallel(request, cwd), source=deepspeed.source)
        bucket = _bucket(pinned_json(request, "deepspeed", cwd))
        return {"parallel": parallel, "bucket_elements": Sourced(value=bucket, source=deepspeed.source)}
    if fsdp is not None:
        config = pinned_json(request, "fsdp", cwd) or {}
        offload = "offload" in str(config.get("fsdp", ""))
        return {"parallel": Sourced(value="fsdp2_offload" if offload else "fsdp2", source=fsdp.source)}
    return {}


def _bucket(config: Mapping[str, Any] | None) -> int | None:
    """Elements of the reduce bucket that a pinned ZeRO-1/2 config names; None: the preset's."""
    zero = (config or {}).get("zero_optimization")
    found = zero.get("reduce_bucket_size") if isinstance(zero, dict) and zero.get("stage") in (1, 2) else None
    return int(found) if isinstance(found, (int, float)) and not isinstance(found, bool) and found >= 1 else None


def _deepspeed_parallel(request: Request, cwd: Path) -> str:
    name = str(request.pins["deepspeed"].value)
    if name in _DEEPSPEED_PRESETS:
        return _DEEPSPEED_PRESETS[name]
    config = pinned_json(request, "deepspeed", cwd) or {}
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        raise InputError(
            "the DeepSpeed config has no zero_optimization block, which the engine requires",
            where="--deepspeed",
            hints=('add "zero_optimization": {"stage": 2}',),
        )
    stage = zero.get("stage", 0)
    if type(stage) is not int or stage not in _STAGES:
        raise InputError(
            f"zero_optimization.stage is {json.dumps(stage)}; DeepSpeed has 0, 1, 2 and 3",
            where="--deepspeed",
            hints=('write "stage": 2 (or 3 to shard the weights as well)',),
        )
    offload = any(
        isinstance(zero.get(key), dict) and zero[key].get("device", "none") != "none"
        for key in ("offload_optimizer", "offload_param")
    )
    return f"zero{stage}" + ("_offload" if offload and stage > 1 else "")
