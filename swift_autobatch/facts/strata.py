"""A deterministic sample of rows by their size, and what it says of all rows, with its confidence.

Rows are sorted into classes of size, eight to a doubling. Of each class the rows with the smallest hash of their
place are kept: a uniform sample without replacement that is the same on every machine and however the file was cut
into parts. Every class is counted exactly, so only the spread of tokens within a class of about equal bytes is left
to chance; classes with few rows, the longest above all, are in the sample whole.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

CLASSES_PER_DOUBLING = 8
SAMPLED = 500  # rows of a class
_Z95 = 1.96
_SHARES = (0.5, 0.9, 0.95, 0.99)

Place = tuple[int, int, int]  # part of the file, byte where the row starts, line within the part


@dataclass(slots=True)
class Stratum:
    """One class of size. ``kept`` is a heap of (minus hash, place)."""

    rows: int = 0
    kept: list[tuple[int, Place]] = field(default_factory=list)

    def add(self, place: Place, rank: int) -> None:
        self.rows += 1
        self._push(-rank, place)

    def merge(self, other: Stratum) -> None:
        self.rows += other.rows
        for rank, place in other.kept:
            self._push(rank, place)

    def _push(self, rank: int, place: Place) -> None:
        if len(self.kept) < SAMPLED:
            heapq.heappush(self.kept, (rank, place))
        elif rank > self.kept[0][0]:
            heapq.heapreplace(self.kept, (rank, place))


@dataclass(slots=True)
class Strata:
    """All classes of size of one dataset."""

    classes: dict[int, Stratum] = field(default_factory=dict)

    def add(self, size: int, place: Place, order: int) -> None:
        """One row of ``size`` bytes; ``order`` tells files apart."""
        name = int(math.log2(size + 1) * CLASSES_PER_DOUBLING)
        self.classes.setdefault(name, Stratum()).add(place, _hash(place[1] + (order << 48)))

    def merge(self, other: Strata) -> None:
        for name, stratum in other.classes.items():
            self.classes.setdefault(name, Stratum()).merge(stratum)


def _hash(value: int) -> int:
    """Splitmix64: places in a file become ranks without any order in them."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def confidence(sampled: Mapping[int, list[int]], rows: Mapping[int, int]) -> str:
    """How far the percentiles may be off, at 95 % confidence, in words.

    Args:
        sampled: tokens of the sampled rows, by class.
        rows: how many rows each class has.

    Source: the standard error of a stratified share without replacement (Cochran, Sampling Techniques, 5.2), turned
    into tokens through the estimated distribution itself.
    """
    total = sum(rows.values())
    weighted = sorted((tokens, rows[name] / len(found)) for name, found in sampled.items() for tokens in found)
    parts = []
    for share in _SHARES:
        middle = _quantile(weighted, share * total)
        error = _error(sampled, rows, middle) / total
        low = _quantile(weighted, max(0.0, share - _Z95 * error) * total)
        high = _quantile(weighted, min(1.0, share + _Z95 * error) * total)
        off = max(high - middle, middle - low) / max(1, middle)
        parts.append(f"P{round(share * 100)} ± {100 * off:.1f} %")
    return ", ".join(parts)


def _quantile(weighted: list[tuple[int, float]], rank: float) -> int:
    passed = 0.0
    for tokens, weight in weighted:
        passed += weight
        if passed >= rank - 1e-6:
            return tokens
    return weighted[-1][0]


def _error(sampled: Mapping[int, list[int]], rows: Mapping[int, int], at: int) -> float:
    """Standard error of the number of rows that are no longer than ``at`` tokens."""
    variance = 0.0
    for name, found in sampled.items():
        seen, there = len(found), rows[name]
        if 1 < seen < there:
            share = sum(tokens <= at for tokens in found) / seen
            variance += there * there * (1 - seen / there) * share * (1 - share) / (seen - 1)
    return math.sqrt(variance)
