"""Translates pinned engine flags into the fields of a Candidate, so that the planner plans around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swift_autobatch import deepspeed_config
from swift_autobatch.deepspeed_config import Fault
from swift_autobatch.engine_flags import PRESETS
from swift_autobatch.errors import InputError
from swift_autobatch.records import Request, Sourced

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
        InputError: a pinned JSON file that is missing, not JSON, or no config that the engine takes.
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
    if pin is None or not isinstance(pin.value, str) or pin.value in (*PRESETS["deepspeed"], *PRESETS["fsdp"]):
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
                hints=(f"use one of {', '.join(PRESETS[flag])}",),
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
    """What really loads: bits without a method load 16-bit weights. Rules refuse what is not meant."""
    method, bits = (request.pins.get(flag) for flag in ("quant_method", "quant_bits"))
    if method is None or bits is None:
        return {}
    quant = {("bnb", "4"): "nf4", ("bnb", "8"): "int8"}.get((str(method.value), str(bits.value)), "none")
    return {"quant": Sourced(value=quant, source=bits.source)}


def _parallel(request: Request, cwd: Path) -> dict[str, Sourced[Any]]:
    deepspeed, fsdp = request.pins.get("deepspeed"), request.pins.get("fsdp")
    if deepspeed is not None:
        return _deepspeed(request, cwd)
    if fsdp is not None:
        config = pinned_json(request, "fsdp", cwd) or {}
        offload = "offload" in str(config.get("fsdp", ""))
        return {"parallel": Sourced(value="fsdp2_offload" if offload else "fsdp2", source=fsdp.source)}
    return {}


def _deepspeed(request: Request, cwd: Path) -> dict[str, Sourced[Any]]:
    """Method and reduce bucket of a pinned preset or config, and what else the config decides.

    Raises:
        InputError: every error of the config at once, or a value that contradicts a flag.
    """
    source = request.pins["deepspeed"].source
    config = pinned_json(request, "deepspeed", cwd)
    if config is None:
        name = str(request.pins["deepspeed"].value)
        return {"parallel": Sourced(value=name, source=source), "bucket_elements": Sourced(value=None, source=source)}
    _sound(config)
    decided: dict[str, Any] = {
        "parallel": deepspeed_config.method(config),
        "bucket_elements": deepspeed_config.reduce_bucket(config),
    }
    for flag, value in deepspeed_config.asked(config).items():
        _agrees(flag, value, request)
        if flag in _FIELDS:
            name, convert = _FIELDS[flag]
            decided[name] = convert(str(int(value)) if isinstance(value, float) else str(value))
    return {name: Sourced(value=value, source=source) for name, value in decided.items()}


def _sound(config: Mapping[str, Any]) -> None:
    wrong = [fault for fault in deepspeed_config.faults(config) if fault.level == "error"]
    if config.get("train_batch_size", "auto") != "auto":
        said = "train_batch_size must follow from batch, ranks and accumulation, or the trainer stops at its start"
        wrong.append(Fault(level="error", key="train_batch_size", text=said, fix='"train_batch_size": "auto"'))
    if len(wrong) == 1:
        raise InputError(wrong[0].text, where="--deepspeed", hints=(wrong[0].fix,))
    if wrong:
        raise InputError(
            f"{len(wrong)} errors in the DeepSpeed config",
            where="--deepspeed",
            figures=tuple(f"{fault.text}: {fault.fix}" for fault in wrong),
            hints=("'autoswift check FILE' names their lines",),
        )


def _agrees(flag: str, value: Any, request: Request) -> None:
    """The trainer compares what the config says with its flags at its start, and stops where they differ."""
    default = {"max_grad_norm": "1.0"}.get(flag)
    pin = request.pins.get(flag)
    said = pin.value if pin is not None else default
    if said is None or said == value or (isinstance(value, (int, float)) and float(str(said)) == value):
        return
    raise InputError(
        f"the DeepSpeed config asks for {flag} {value}, and {'the flag' if pin else 'its default'} says {said}",
        where="--deepspeed",
        hints=('write "auto" in the config: the trainer fills it in', f"--{flag} {value}"),
    )
