"""Reads what PyTorch's allocator says when a card has no room left: its figures, and the room that is there unused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from swift_autobatch.units import GIB, show_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """What the allocator said, in bytes; None where it did not say."""

    asked_bytes: int | None = None
    card_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    idle_bytes: int | None = None  # reserved, not allocated
    others_bytes: int | None = None  # held by other processes on the card
    gpu: int | None = None


_FRAGMENTED = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: {idle} are reserved and idle, in pieces too small"
_OTHERS = "free the card: other processes hold {others} of it (nvidia-smi names them)"

_SIZE = r"([\d.]+) ?([KMGT]i?B|bytes)"
_FIELDS: tuple[tuple[str, str], ...] = (
    ("asked_bytes", rf"Tried to allocate {_SIZE}"),
    ("card_bytes", rf"total capacity of {_SIZE}|{_SIZE} total capacity"),
    ("free_bytes", rf"of which {_SIZE} is free|{_SIZE} free"),
    ("allocated_bytes", rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated"),
    ("idle_bytes", rf"{_SIZE} is reserved by PyTorch but unallocated"),
)
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_OTHER_PROCESS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_THIS_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_GPU = re.compile(r"GPU (\d+)[ ;]")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 2**10, "MB": 2**20, "GB": 2**30}


def read_oom(text: str) -> Oom:
    """The allocator's figures out of its message."""
    found: dict[str, int] = {}
    for name, pattern in _FIELDS:
        if match := re.search(pattern, text):
            value, unit = [group for group in match.groups() if group]
            found[name] = _bytes(value, unit)
    if (match := _RESERVED.search(text)) and "allocated_bytes" in found:
        found["idle_bytes"] = max(0, _bytes(*match.groups()) - found["allocated_bytes"])
    others = sum(_bytes(value, unit) for value, unit in _OTHER_PROCESS.findall(text))
    if others and _THIS_PROCESS.search(text):  # else the one process named may be this one
        found["others_bytes"] = others
    gpu = _GPU.search(text)
    return Oom(gpu=int(gpu[1]) if gpu else None, **found)


def _bytes(value: str, unit: str) -> int:
    return int(float(value) * _UNITS.get(unit, GIB))


def figures(oom: Oom) -> tuple[str, ...]:
    """What the allocator said, for people."""
    named = (
        ("card", oom.card_bytes),
        ("free", oom.free_bytes),
        ("allocated by torch", oom.allocated_bytes),
        ("reserved and idle", oom.idle_bytes),
        ("other processes", oom.others_bytes),
    )
    return tuple(f"{name} {show_gib(size)}" for name, size in named if size is not None)


def first_aid(oom: Oom) -> tuple[str, ...]:
    """What helps without changing the job: room that is there and cannot be used."""
    hints = []
    if oom.others_bytes and oom.others_bytes >= GIB // 2:
        hints.append(_OTHERS.format(others=show_gib(oom.others_bytes)))
    if oom.idle_bytes and oom.asked_bytes and oom.idle_bytes >= oom.asked_bytes:
        hints.append(_FRAGMENTED.format(idle=show_gib(oom.idle_bytes)))
    return tuple(hints)
