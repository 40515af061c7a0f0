"""A stream -> the instants of each phase that can be its peak for some batch, length and kept labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from swift_autobatch.records import MONOMIALS, Instant, Phase, Polynomial, Stream

# Instants closer than this in every part are merged into one that is at least both; of the largest of that part.
_CLOSE = 1 / 4096
_SHORT = 32
_GRADIENTS, _OPTIMIZER, _PASSING = 0, 1, 2  # columns: two static parts, then the monomials of what passes


def instants(stream: Stream) -> tuple[Instant, ...]:
    """The Pareto set of every phase: an instant is dropped when another is at least as large in every part.

    Parts are gradients, optimizer states, and each coefficient of what passes. Merging near-equal instants adds
    at most 1/4096 of the largest value of a part. Of a long front the ones stay that are the largest somewhere.
    """
    table, phases, places = _states(stream)
    close = np.maximum(1, (np.abs(table).max(axis=0) * _CLOSE)).astype(np.int64)
    found: list[Instant] = []
    for phase in dict.fromkeys(phases):
        rows = [index for index, name in enumerate(phases) if name == phase]
        merged, owners = _merged(table[rows], close)
        front = _front(merged)
        kept = [front[index] for index in _largest(merged[front])]
        found += [_instant(merged[keep], phase, places[rows[owners[keep]]]) for keep in kept]
    return tuple(found)


def _instant(row: Any, phase: Phase, place: str) -> Instant:
    values = [int(value) for value in row]
    return Instant(
        phase=phase,
        place=place,
        gradients_bytes=values[_GRADIENTS],
        optimizer_bytes=values[_OPTIMIZER],
        passing=tuple(values[_PASSING:]),
    )


def _states(stream: Stream) -> tuple[Any, list[Phase], list[str]]:
    """What is alive after each allocation that a free, a mark or the end follows."""
    deltas = [_delta(stream, size, kind) for size, kind in stream.storages]
    now = [0] * (_PASSING + len(MONOMIALS))
    rows: list[list[int]] = []
    phases: list[Phase] = []
    places: list[str] = []
    marks = [*stream.marks, (len(stream.events) + 1, "eval", "end")]
    current = 0
    for position, event in enumerate(stream.events):
        while marks[current + 1][0] <= position:
            current += 1
        sign = 1 if event >= 0 else -1
        for column, amount in deltas[event if event >= 0 else ~event]:
            now[column] += sign * amount
        last = position + 1 == len(stream.events) or marks[current + 1][0] == position + 1
        if last or (event >= 0 and stream.events[position + 1] < 0):
            rows.append(list(now))
            phases.append(marks[current][1])
            places.append(marks[current][2])
    return np.array(rows, dtype=np.int64), phases, places


def _delta(stream: Stream, size: int, kind: str) -> list[tuple[int, int]]:
    polynomial = stream.sizes[size]
    if kind in ("weights", "adapters"):
        return []
    if kind in ("gradients", "optimizer"):
        return [(_GRADIENTS if kind == "gradients" else _OPTIMIZER, polynomial[0])]
    return [(_PASSING + index, value) for index, value in enumerate(polynomial) if value]


def _merged(table: Any, close: Any) -> tuple[Any, Any]:
    """One row a cell of the grid ``close``: the largest value of each column; and a row that stands for it."""
    cells, owners, groups = np.unique(table // close, axis=0, return_index=True, return_inverse=True)
    merged = np.full_like(cells, np.iinfo(np.int64).min)
    np.maximum.at(merged, groups.reshape(-1), table)
    return merged, owners


def _front(table: Any) -> list[int]:
    """Indices of rows that no other row equals or exceeds in every column."""
    order = np.argsort(-table.sum(axis=1, dtype=np.float64), kind="stable")
    kept: list[int] = []
    front = np.empty((0, table.shape[1]), dtype=table.dtype)
    for index in order:
        if not (front >= table[index]).all(axis=1).any():
            kept.append(int(index))
            front = np.vstack([front, table[index]])
    return kept


def _largest(table: Any) -> list[int]:
    """Indices of rows that are the largest at some point: without checkpointing a thousand lie on the Pareto front,
    and a few dozen ever are the peak. A sum is linear in its parts, so a grid of what they are multiplied by does.
    A front that is short already is kept whole: between the points of the grid another row may be larger by a hair."""
    if len(table) <= _SHORT:
        return list(range(len(table)))
    grid = np.array([(*shares, *values) for shares in _SHARES for values in _grid()], dtype=np.float64)
    return sorted(set((grid @ table.T.astype(np.float64)).argmax(axis=1).tolist()))


# What a device holds of (gradients, states): all, a shard of 8 or 64, none, no states (offload), DDP's two of each.
_SHARES = ((1, 1), (1 / 8, 1 / 8), (1 / 64, 1 / 64), (0, 0), (1, 0), (2, 1))


def _grid() -> Iterator[Polynomial]:
    """The monomials over batches of 1 to 128 rows of 64 to 131,072 tokens, up to 4 million tokens, by kept share."""
    for b in (1, 2, 4, 8, 16, 32, 64, 128):
        for s in (64 << step for step in range(12)):
            for kept in (0.001, 0.02, 0.1, 0.25, 0.5, 0.75, 1.0):
                if b * s <= 1 << 22:
                    yield (1, b, s, b * s, s * s, b * s * s, max(1, int(kept * b * s)))
