"""A stream -> the instants of each phase that can be its peak for some batch, length and kept labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from swift_autobatch.records import MONOMIALS, Instant, Phase, Stream

# Instants closer than this in every part are merged into one that is at least both; of the largest of that part.
_CLOSE = 1 / 4096
_GRADIENTS, _OPTIMIZER, _PASSING = 0, 1, 2  # columns: two static parts, then the monomials of what passes


def instants(stream: Stream) -> tuple[Instant, ...]:
    """The Pareto set of every phase: an instant is dropped when another is at least as large in every part.

    Parts are gradients, optimizer states, and each coefficient of what passes. Merging near-equal instants adds
    at most 1/4096 of the largest value of a part.
    """
    table, phases, places = _states(stream)
    close = np.maximum(1, (np.abs(table).max(axis=0) * _CLOSE)).astype(np.int64)
    found: list[Instant] = []
    for phase in dict.fromkeys(phases):
        rows = [index for index, name in enumerate(phases) if name == phase]
        merged, owners = _merged(table[rows], close)
        found += [_instant(merged[keep], phase, places[rows[owners[keep]]]) for keep in _front(merged)]
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
