"""What is remembered of a dataset while its rows stream by: a histogram, the dearest rows, the problems.

Every tally can be pickled and merged, so that worker processes count parts of a file and the parts add up to the whole.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swift_autobatch.facts.codes import stops
from swift_autobatch.records import Problem, Row

COSTLIEST = 64  # enough for 8 ranks x micro batch 8 in the dry run
SKETCH = 4096
LISTED = 100  # problems of one kind listed one by one; the rest is summed up in a last one


class Lengths:
    """A histogram of token lengths: as many entries as there are different lengths, however many rows.

    A row of a sample stands for several: weights are numbers of rows, whole ones where every row was counted.
    """

    def __init__(self) -> None:
        self.counts: dict[int, float] = {}
        self.longest = 0  # what to plan the longest row for; above every length when lengths are estimates
        self.bound = 0  # the longest row for sure

    def add(self, tokens: int, planned: int, bound: int, weight: float = 1) -> None:
        self.counts[tokens] = self.counts.get(tokens, 0) + weight
        self.longest = max(self.longest, planned)
        self.bound = max(self.bound, bound)

    def merge(self, other: Lengths) -> None:
        for tokens, weight in other.counts.items():
            self.counts[tokens] = self.counts.get(tokens, 0) + weight
        self.longest = max(self.longest, other.longest)
        self.bound = max(self.bound, other.bound)

    def total(self) -> float:
        return sum(self.counts.values())

    def at(self, ranks: list[int]) -> list[int]:
        """The lengths at ascending 0-based ranks of the sorted rows."""
        found: list[int] = []
        passed = 0.0
        ordered = sorted(self.counts)
        for length in ordered:
            passed += self.counts[length]
            while len(found) < len(ranks) and ranks[len(found)] < passed:
                found.append(length)
        return found + [ordered[-1]] * (len(ranks) - len(found))  # weights that are no whole numbers may fall short

    def percentile(self, share: float) -> int:
        """Nearest rank: the shortest length that at least ``share`` of the rows do not exceed."""
        return self.at([max(0, math.ceil(share * self.total()) - 1)])[0]

    def mean(self) -> float:
        return sum(length * times for length, times in self.counts.items()) / self.total()

    def sketch(self) -> tuple[int, ...]:
        """Every length in order, or ``SKETCH`` evenly spaced ones; the last is always the longest."""
        rows = round(self.total())
        ranks = list(range(rows)) if rows <= SKETCH else [(i + 1) * rows // SKETCH - 1 for i in range(SKETCH)]
        return (*self.at(ranks)[:-1], self.longest)


# tokens, supervised tokens, then minus file, line and how many rows were seen before: several may share a line
Key = tuple[int, int, int, int, int]


class Dearest:
    """The costliest rows: tokens first, then supervised tokens, then the earlier row."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Row]] = []
        self._seen = 0

    def add(self, file: str, order: int, line: int, tokens: int, supervised: int, record: Mapping[str, Any]) -> None:
        """``order`` is the file's place among the datasets."""
        self._seen += 1
        key = (tokens, supervised, -order, -line, -self._seen)
        if len(self._heap) == COSTLIEST and key < self._heap[0][0]:
            return
        self._push(key, Row(file=file, line=line, tokens=tokens, supervised_tokens=supervised, record=record))

    def merge(self, other: Dearest, lines_before: int = 0) -> None:
        for (tokens, supervised, order, line, seen), row in other._heap:
            moved = replace(row, line=row.line + lines_before)
            self._push((tokens, supervised, order, line - lines_before, seen), moved)

    def least(self) -> int:
        """Tokens that a row needs at least to be among the costliest; 0 while there is room."""
        return self._heap[0][0][0] if len(self._heap) == COSTLIEST else 0

    def _push(self, key: Key, row: Row) -> None:
        if len(self._heap) < COSTLIEST:
            heapq.heappush(self._heap, (key, row))
        elif key > self._heap[0][0]:
            heapq.heapreplace(self._heap, (key, row))

    def rows(self) -> tuple[Row, ...]:
        return tuple(row for _, row in sorted(self._heap, key=lambda entry: entry[0], reverse=True))


class Problems:
    """Problems by file and line, at most ``LISTED`` of a kind and file."""

    def __init__(self) -> None:
        self._listed: list[Problem] = []
        self._times: Counter[tuple[str, str, bool]] = Counter()
        self._last: dict[tuple[str, str, bool], int] = {}

    def add(self, code: str, file: str, line: int, text: str, *, drops_row: bool, times: int = 1) -> None:
        """``times``: rows with this problem; more than one are counted and not listed."""
        kind = (file, code, drops_row)
        self._times[kind] += times
        self._last[kind] = line
        if times == 1 and self._times[kind] <= LISTED:
            self._listed.append(
                Problem(code=code, file=file, line=line, text=text, drops_row=drops_row, stops=stops(code))
            )

    def stopping(self) -> list[Problem]:
        """Those that the engine's loader fails on."""
        return [problem for problem in self.all() if problem.stops]

    def merge(self, other: Problems, lines_before: int = 0) -> None:
        """Adds those of a later part of the same files."""
        room = {kind: max(0, LISTED - self._times[kind]) for kind in other._times}
        for problem in other._listed:
            kind = (problem.file, problem.code, problem.drops_row)
            if room[kind] > 0:
                room[kind] -= 1
                self._listed.append(replace(problem, line=problem.line + lines_before))
        for kind, times in other._times.items():
            self._times[kind] += times
            self._last[kind] = other._last[kind] + lines_before

    def estimate(self, code: str, file: str, times: int) -> None:
        """Says that a code holds for more rows than were looked at."""
        kind = (file, code, False)
        self._times[kind] = max(times, self._times[kind])

    def times(self) -> tuple[tuple[str, int], ...]:
        """How many rows each code was found on, most first."""
        found: Counter[str] = Counter()
        for (_, code, _), times in self._times.items():
            found[code] += times
        return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))

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
        files = {problem.file: at for at, problem in reversed(list(enumerate(self._listed)))}
        return (*sorted(self._listed, key=lambda problem: (files[problem.file], problem.line)), *more)
