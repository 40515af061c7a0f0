"""How many bytes a parameter takes in a checkpoint that is quantised already, from its quantization_config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SCALE_BYTES = 2  # an fp16 scale for each group
_GROUP = 128  # weights that share a scale where nothing is said: what AutoGPTQ and AutoAWQ write by default
_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)  # as bitsandbytes packs with double quantisation
_NF4_SINGLE = 0.5 + 4 / 64


def packed_bytes(config: Mapping[str, Any] | None, name: str, method: str | None) -> float | None:
    """Bytes a parameter of the linear modules of a quantised checkpoint, scales and zero points included.

    Args:
        config: its quantization_config; None: not at hand, the id says what it can.
        name: the id.
        method: gptq, awq, bnb ...; None: not quantised.

    Returns:
        None where the checkpoint is not quantised, or by a method whose weights may be unpacked on the way in.

    Source: AutoGPTQ qlinear (int32 words of packed weights, fp16 scales, packed zero points); AutoAWQ gemm.py, the
    same; bitsandbytes functional.py.
    """
    said = config or {}
    if method in ("gptq", "awq"):
        bits = _number(said, "bits", "w_bit") or _bits_of(name) or 4
        group = _number(said, "group_size", "q_group_size") or _GROUP
        shared = (_SCALE_BYTES + bits / 8) / group if group > 0 else 0.0  # -1: one scale a row, next to nothing
        return bits / 8 + shared
    if method == "bnb":
        if said.get("load_in_8bit") or said.get("_load_in_8bit") or (not said and _bits_of(name) == 8):
            return 1.0
        return _NF4_SINGLE if said.get("bnb_4bit_use_double_quant") is False else _NF4
    return None


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    found = (config.get(name) for name in names)
    return next((int(value) for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def _bits_of(name: str) -> int | None:
    """``Qwen2.5-7B-Instruct-GPTQ-Int8`` -> 8."""
    match = re.search(r"(?:int|w)([48])\b|\b([48])-?bits?\b", name.lower())
    return int(match[1] or match[2]) if match else None
