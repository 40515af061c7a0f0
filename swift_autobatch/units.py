"""Converts and prints bytes, tokens and seconds; the only place that divides by 2**30, and it says GiB."""

from __future__ import annotations

import math

GIB = 2**30
MIB = 2**20
GB = 10**9


def gib(n_bytes: float) -> float:
    """Bytes as GiB (2**30)."""
    return n_bytes / GIB


def from_gib(value_gib: float) -> int:
    """GiB (2**30) as whole bytes."""
    return round(value_gib * GIB)


def show_gib(n_bytes: float | None, digits: int = 2) -> str:
    """Bytes for people: ``'18.30 GiB'``; ``'unknown'`` for None."""
    return "unknown" if n_bytes is None else f"{gib(n_bytes):.{digits}f} GiB"


def show_seconds(seconds: float | None) -> str:
    """Seconds for people: ``'0.42 s'``, ``'3 min 10 s'``, ``'2 h 05 min'``; ``'unknown'`` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def counted(n: int, noun: str) -> str:
    """``1 step``, ``3 steps``: a number with its noun, which takes a plain s in the plural."""
    return f"{n} {noun}{'s' * (n != 1)}"


def show_count(n: float) -> str:
    """A count for people: ``'7.62 B'`` parameters, ``'3.4 M'``, ``'950'``."""
    for limit, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(n) >= limit:
            return f"{n / limit:.3g}{suffix}"
    return f"{n:.0f}"
