"""What is remembered of a dataset while its rows stream by: a histogram, the dearest rows, the problems."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from swift_autobatch.facts.codes import stops
from swift_autobatch.records import Problem, Row

COSTLIEST = 64  # enough for 8 ranks x micro batch 8 in the dry run
SKETCH = 4096
LISTED = 100  # problems of one kind listed one by one; the rest is summed up in a last one


class Lengths:
    """A histogram of token lengths: as many entries as there are different lengths, however many rows."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.longest = 0  # what to plan the longest row for; above every length when lengths are estimates
        self.bound = 0  # the longest row for sure

    def add(self, tokens: int, planned: int, bound: int) -> None:
        self.counts[tokens] += 1
        self.longest = max(self.longest, planned)
        self.bound = max(self.bound, bound)

    def at(self, ranks: list[int]) -> list[int]:
        """The lengths at ascending 0-based ranks of the sorted rows."""
        found: list[int] = []
        passed = 0
        for length in sorted(self.counts):
            passed += self.counts[length]
            while len(found) < len(ranks) and ranks[len(found)] < passed:
                found.append(length)
        return found

    def percentile(self, share: float) -> int:
        """Nearest rank: the shortest length that at least ``share`` of the rows do not exceed."""
        return self.at([max(0, math.ceil(share * self.counts.total()) - 1)])[0]

    def mean(self) -> float:
        return sum(length * times for length, times in self.counts.items()) / self.counts.total()

    def sketch(self) -> tuple[int, ...]:
        """Every length in order, or ``SKETCH`` evenly spaced ones; the last is always the longest."""
        rows = self.counts.total()
        ranks = list(range(rows)) if rows <= SKETCH else [(i + 1) * rows // SKETCH - 1 for i in range(SKETCH)]
        return (*self.at(ranks)[:-1], self.longest)


class Dearest:
    """The costliest rows: tokens first, then supervised tokens, then the earlier row."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Row]] = []
        self._seen = 0

    def add(self, file: str, line: int, tokens: int, supervised: int, record: Mapping[str, Any]) -> None:
        self._seen += 1
        key = (tokens, supervised, -self._seen)
        if len(self._heap) == COSTLIEST and key < self._heap[0][0]:
            return
        row = Row(file=file, line=line, tokens=tokens, supervised_tokens=supervised, record=record)
        if len(self._heap) < COSTLIEST:
            heapq.heappush(self._heap, (key, row))
        else:
            heapq.heapreplace(self._heap, (key, row))

    def rows(self) -> tuple[Row, ...]:
        return tuple(row for _, row in sorted(self._heap, key=lambda entry: entry[0], reverse=True))


class Problems:
    """Problems in the order found, at most ``LISTED`` of a kind and file."""

    def __init__(self) -> None:
        self._listed: list[Problem] = []
        self._times: Counter[tuple[str, str, bool]] = Counter()
        self._last: dict[tuple[str, str, bool], int] = {}

    def add(self, code: str, file: str, line: int, text: str, *, drops_row: bool) -> None:
        kind = (file, code, drops_row)
        self._times[kind] += 1
        self._last[kind] = line
        if self._times[kind] <= LISTED:
            self._listed.append(
                Problem(code=code, file=file, line=line, text=text, drops_row=drops_row, stops=stops(code))
            )

    def stopping(self) -> list[Problem]:
        """Those that the engine's loader fails on."""
        return [problem for problem in self.all() if problem.stops]

    def all(self) -> tuple[Problem, ...]:
        more = [
            Problem(
                code=code,
                file=file,
                line=self._last[file, code, drops],
                text=f"and {times - LISTED} more rows like these, the last one here",
                drops_row=drops,
                stops=stops(code),
            )
            for (file, code, drops), times in self._times.items()
            if times > LISTED
        ]
        return (*self._listed, *more)
