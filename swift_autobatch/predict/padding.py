"""Tokens per row that a run meets: real, as computed with padding, and as attention sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per row. ``span`` is the mean of the squared length over the mean: what attention pays per token."""

    real: float
    padded: float
    span: float  # with padding
    real_span: float  # of rows side by side in one packed or flattened row
    rows: int


@lru_cache(maxsize=1024)
def padded_lengths(lengths: tuple[int, ...], limit: int, micro_batch: int, grouped: bool) -> Lengths:
    """Expected tokens per row when ``micro_batch`` random rows are padded to the longest of them.

    E[max of b draws] over the sorted sample is the sum of x_i (F_i^b - F_(i-1)^b). Rows over ``limit`` are
    dropped by the engine (truncation_strategy delete).

    Args:
        lengths: tokens per row, ascending (all rows, or quantiles of them).
        limit: tokens, the max_length of the candidate.
        micro_batch: rows per batch on one rank.
        grouped: batches are made of rows of like length (group_by_length).
    """
    kept = [n for n in lengths if n <= limit] or [limit]
    count = len(kept)
    real = sum(kept) / count
    real_span = sum(n * n for n in kept) / count / max(real, 1e-9)
    if micro_batch == 1:
        return Lengths(real, real, real_span, real_span, count)
    if grouped:
        tops = kept[micro_batch - 1 :: micro_batch] + ([kept[-1]] if count % micro_batch else [])
        first = sum(tops) / len(tops)
        second = sum(n * n for n in tops) / len(tops)
        return Lengths(real, min(float(kept[-1]), first), second / max(first, 1e-9), real_span, count)
    first, second, below = 0.0, 0.0, 0.0
    for position, n in enumerate(kept, 1):
        share = (position / count) ** micro_batch
        first += n * (share - below)
        second += n * n * (share - below)
        below = share
    return Lengths(real, first, second / max(first, 1e-9), real_span, count)
