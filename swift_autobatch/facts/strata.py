"""A deterministic sample of rows by their size, and what it says of all rows, with its confidence.

Rows are sorted into classes of about equal length, eight to a doubling, guessed from bytes and characters. Of each
class the rows with the smallest hash of their place are kept: a uniform sample without replacement that is the same on
every machine and however the file was cut into parts. Every class is counted exactly, so only the spread of tokens
within a class is left to chance; classes with few rows, the longest above all, are in the sample whole. The first 60
rows of each class are counted, then more of those classes in which a percentile lies, until it is known closely enough.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

CLASSES_PER_DOUBLING = 8
SAMPLED = 1000  # rows of a class at most
ROUNDS = (60, 250, SAMPLED)  # rows of a class counted before the next look
CLOSE = 0.005  # a percentile may be off by this share, at 95 % confidence
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

    def first(self, count: int) -> list[Place]:
        """The ``count`` rows with the smallest hashes."""
        return [place for _, place in heapq.nlargest(count, self.kept)]

    def _push(self, rank: int, place: Place) -> None:
        if len(self.kept) < SAMPLED:
            heapq.heappush(self.kept, (rank, place))
        elif rank > self.kept[0][0]:
            heapq.heapreplace(self.kept, (rank, place))


@dataclass(slots=True)
class Strata:
    """All classes of size of one dataset."""

    classes: dict[int, Stratum] = field(default_factory=dict)

    def add(self, size: int, characters: int, place: Place, order: int) -> None:
        """One row of so many UTF-8 bytes and characters; ``order`` tells files apart.

        Where a character takes several bytes it is worth more tokens: one of three bytes (Chinese) about 0.8, of one
        byte (Latin) about 0.25. How well that guess fits is of no matter for the result, only for its confidence.
        """
        guess = 0.25 * characters + 0.3 * (size - characters)
        name = int(math.log2(guess + 1) * CLASSES_PER_DOUBLING)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How far each percentile may be off, as a share of it, at 95 %, and the classes that leave one open."""

    off: Mapping[float, float]
    open: frozenset[int]


def confidence(sampled: Mapping[int, list[int]], rows: Mapping[int, int]) -> Confidence:
    """How well a sample knows the percentiles.

    Args:
        sampled: tokens of the sampled rows, by class.
        rows: how many rows each class has.

    Source: the standard error of a stratified share without replacement (Cochran, Sampling Techniques, 5.2), turned
    into tokens through the estimated distribution itself. A class all of whose sample lies on one side of a
    percentile adds nothing to its error.
    """
    total = sum(rows.values())
    weighted = sorted((tokens, rows[name] / len(found)) for name, found in sampled.items() for tokens in found)
    off: dict[float, float] = {}
    unsure: set[int] = set()
    for share in _SHARES:
        middle = _quantile(weighted, share * total)
        parts = _variances(sampled, rows, middle)
        error = math.sqrt(sum(parts.values())) / total
        low = _quantile(weighted, max(0.0, share - _Z95 * error) * total)
        high = _quantile(weighted, min(1.0, share + _Z95 * error) * total)
        off[share] = max(high - middle, middle - low) / max(1, middle)
        if off[share] > CLOSE:
            unsure |= {name for name, variance in parts.items() if variance > 0}
    return Confidence(off=off, open=frozenset(unsure))


def said(off: Mapping[float, float]) -> str:
    """The same in words."""
    return ", ".join(f"P{round(share * 100)} ± {100 * part:.1f} %" for share, part in off.items())


def _quantile(weighted: list[tuple[int, float]], rank: float) -> int:
    passed = 0.0
    for tokens, weight in weighted:
        passed += weight
        if passed >= rank - 1e-6:
            return tokens
    return weighted[-1][0]


def _variances(sampled: Mapping[int, list[int]], rows: Mapping[int, int], at: int) -> dict[int, float]:
    """Variance of the number of rows of each class that are no longer than ``at`` tokens."""
    found_variances = {}
    for name, found in sampled.items():
        seen, there = len(found), rows[name]
        if 1 < seen < there:
            share = sum(tokens <= at for tokens in found) / seen
            found_variances[name] = there * there * (1 - seen / there) * share * (1 - share) / (seen - 1)
    return found_variances
