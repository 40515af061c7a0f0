"""One job over a range of card counts or row lengths: what would be chosen at each point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift_autobatch import machines
from swift_autobatch.errors import AutoswiftError, UsageError
from swift_autobatch.even_rows import rows_of
from swift_autobatch.interconnect import MOST_CARDS
from swift_autobatch.planner import choose
from swift_autobatch.records import Candidate, Facts, Prediction, Request, Sourced, Strategy
from swift_autobatch.search import nearest
from swift_autobatch.units import show_gib

AXES = ("gpus", "length")
_SHORTEST = 512
_LONGEST = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of the axis with the plan for it; ``candidate`` is None where there is none, and ``why`` says so."""

    value: int  # cards, or tokens of every row
    candidate: Candidate | None
    prediction: Prediction | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What ``--sweep`` answers."""

    axis: str  # gpus | length
    points: tuple[Point, ...]


def parse(text: str) -> tuple[str, tuple[int, ...] | None]:
    """``gpus 1..8``, ``length 1024..32768`` or ``gpus 1,2,4`` as an axis and its values; None: the usual range.

    Raises:
        UsageError: another axis, or no range.
    """
    axis, _, span = text.strip().partition(" ")
    if axis not in AXES:
        raise UsageError(
            f"--sweep goes over {' or '.join(AXES)}, not {axis!r}", where="--sweep", hints=("--sweep gpus 1..8",)
        )
    return axis, _values(axis, span.strip()) if span.strip() else None


def _values(axis: str, span: str) -> tuple[int, ...]:
    most = MOST_CARDS if axis == "gpus" else _LONGEST
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", span)
    found: list[int] = []
    if ends:
        first, last = int(ends[1]), int(ends[2])
        found = list(range(first, last + 1)) if axis == "gpus" else _doubling(first, last)
    elif re.fullmatch(r"\d+(,\d+)*", span):
        found = [int(word) for word in span.split(",")]
    if not found or min(found) < 1 or max(found) > most:
        example = "1..8" if axis == "gpus" else "1024..32768"
        raise UsageError(
            f"{span!r} is no range of {axis} from 1 to {most}",
            where="--sweep",
            hints=(f"--sweep {axis} {example}", f"--sweep {axis} {example.replace('..', ',')}"),
        )
    return tuple(sorted(set(found)))


def _doubling(first: int, last: int) -> list[int]:
    values = []
    while 0 < first < last:
        values.append(first)
        first *= 2
    return [*values, last] if last > 0 else []


def sweep(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    axis: str,
    values: tuple[int, ...] | None,
) -> Sweep:
    """Plans the job at each value of the axis.

    Args:
        values: cards, or tokens of every row; None: 1 to 8 cards, or 512 doubled up to what the model takes.

    Raises:
        UsageError: cards are swept on a machine without one, or lengths under a pinned max_length.
    """
    if axis == "gpus" and not facts.machine.gpus:
        raise UsageError(
            "--sweep gpus needs a card to start from, and this machine has none",
            where="--sweep",
            hints=("name one: --gpus 1x4090",),
        )
    if axis == "length" and "max_length" in pins:
        raise UsageError(
            "--sweep length takes every row to be as long as the value of the axis, which --max_length would cut",
            where="--sweep",
            hints=("drop --max_length", f"--sweep length {pins['max_length'].value} plans that one length"),
        )
    values = values or (tuple(range(1, 9)) if axis == "gpus" else _lengths(facts))
    return Sweep(axis=axis, points=tuple(_point(request, facts, table, pins, axis, value) for value in values))


def _lengths(facts: Facts) -> tuple[int, ...]:
    return tuple(_doubling(_SHORTEST, min(facts.model.max_position or _LONGEST, _LONGEST)))


def _point(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    axis: str,
    value: int,
) -> Point:
    changed = machines.with_cards(facts, value) if axis == "gpus" else rows_of(facts, value)
    try:
        choice = choose(request, changed, table, pins)
    except AutoswiftError as error:
        return Point(value=value, candidate=None, prediction=None, why=error.what)
    if choice.best is not None:
        return Point(value=value, candidate=choice.best[0], prediction=choice.best[1])
    missed = nearest(choice.space.families, choice.costs)
    why = "nothing fits"
    if missed is not None:
        needs = missed[1]
        host = needs.demand_bytes <= needs.budget_bytes
        short = (needs.host_p99_bytes, needs.host_budget_bytes) if host else (needs.demand_bytes, needs.budget_bytes)
        why += (
            f": {missed[0].strategy} needs {show_gib(short[0])} of {show_gib(short[1])} {'host' if host else 'a card'}"
        )
    return Point(value=value, candidate=None, prediction=None, why=why)
