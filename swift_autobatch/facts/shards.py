"""Surveys a large .jsonl file in parts, one worker a core; memory does not grow with the file.

Every row is read and judged. Their tokens are counted either all, or by the least that answers the same questions:
a sample for the percentiles (strata.py) and, for the costliest rows and the largest answer, every row whose bytes
leave it possible (bounds.py), in the order of that bound until none can be dearer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swift_autobatch.facts.checks import over_context
from swift_autobatch.facts.shard_worker import Deepen, Held, Part, Scan, Scanned, Weigh, Weighed
from swift_autobatch.facts.strata import ROUNDS, Confidence, Place, Strata, confidence, said
from swift_autobatch.facts.survey import Survey, Tokens
from swift_autobatch.facts.tokens import Count
from swift_autobatch.workers import Workers

HELD_ROWS = 1 << 16  # rows of a file that are remembered by their bound
_WEIGHED = 512  # rows a task
_ROUND = 4  # tasks a worker between two looks at the bar

Tell = Callable[[float], None]  # share of the file that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From how many bytes on a file is read in parts, and sampled; and how large a part is."""

    parallel_bytes: int = 16 << 20
    sampled_bytes: int = 64 << 20
    part_bytes: int = 16 << 20


def parts_of(path: Path, order: int, columns: Sequence[str], part_bytes: int) -> list[Part]:
    """The file in stretches of whole lines."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        starts = [0]
        for at in range(part_bytes, size, part_bytes):
            stream.seek(at)
            stream.readline()
            if starts[-1] < stream.tell() < size:
                starts.append(stream.tell())
    ends = [*starts[1:], size]
    return [
        Part(file=str(path), order=order, index=index, start=start, end=end, columns=tuple(columns))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def survey_all(parts: Sequence[Part], workers: Workers, tell: Tell) -> Survey | None:
    """Surveys a file and counts every row; None when it can only be read as a whole."""
    found = _scanned(parts, workers, tell, count=True)
    return None if found is None else found.survey


def survey_sampled(parts: Sequence[Part], workers: Workers, tell: Tell, *, context: int) -> tuple[Survey, str] | None:
    """Surveys a file by a sample and its longest rows; None when it can only be read as a whole.

    Args:
        context: tokens that the model takes; 0: not known. Rows beyond it are named among the costliest, and estimated.

    Returns:
        the survey, its costliest rows and largest answer exact, its lengths estimated; and how far those may be off.
    """
    found = _scanned(parts, workers, tell, count=False)
    if found is None:
        return None
    survey = found.survey
    if not survey.kept:
        return survey, ""
    weigher = _Weigher(parts, found.lines_before, workers)
    lengths, off = _sampled(found.strata, weigher)
    weigher.dearest(found.longest, found.floors)
    weigher.largest_answer(found.answers)
    _with_extremes(lengths, weigher)
    survey.tokens = lengths
    survey.plain = survey.plain and weigher.plain
    _over_context(survey, context)
    return survey, said(off)


# ---------------------------------------------------------------------------------------------------------- surveys


class _Folded:
    """The parts of a file put together as they come, in order: what a part said is let go at once."""

    def __init__(self) -> None:
        self.survey = Survey()
        self.strata = Strata()
        self.longest = Held()
        self.answers = Held()
        self.floors: list[int] = []  # of each part
        self.lines_before: list[int] = []  # each part
        self._lines = 0
        self._waiting: dict[int, Scanned] = {}  # those that came before their turn: as many as there are workers

    def add(self, index: int, scanned: Scanned) -> None:
        self._waiting[index] = scanned
        while (following := self._waiting.pop(len(self.floors), None)) is not None:
            self._fold(following)

    def _fold(self, scanned: Scanned) -> None:
        self.survey.merge(scanned.survey, self._lines)
        self.strata.merge(scanned.strata)
        for whole, held in ((self.longest, scanned.longest), (self.answers, scanned.answers)):
            whole.floor = max(whole.floor, held.floor)
            for bound, place in held.heap:
                whole.add(bound, place, HELD_ROWS)
        self.floors.append(scanned.longest.floor)
        self.lines_before.append(self._lines)
        self._lines += scanned.lines


def _scanned(parts: Sequence[Part], workers: Workers, tell: Tell, *, count: bool) -> _Folded | None:
    found = _Folded()
    done = 0
    for index, scanned in workers.map([Scan(part=part, count=count) for part in parts]):
        if scanned.odd:
            return None
        found.add(index, scanned)
        done += parts[index].end - parts[index].start
        tell(done / max(1, parts[-1].end))
    return found


def _over_context(survey: Survey, context: int) -> None:
    beyond = sum(weight for tokens, weight in survey.tokens.lengths.counts.items() if tokens > context > 0)
    for row in survey.tokens.dearest.rows():
        if row.tokens > context > 0:
            code, text = over_context(row.tokens, context)
            survey.problems.add(code, row.file, row.line, text, drops_row=False)
            survey.problems.estimate("over-context", row.file, round(beyond))


# ---------------------------------------------------------------------------------------------------------- weighing


class _Weigher:
    """Counts rows by their places, each once."""

    def __init__(self, parts: Sequence[Part], lines_before: Sequence[int], workers: Workers) -> None:
        self._parts = parts
        self._before = lines_before
        self._workers = workers
        self.counts: dict[Place, Count] = {}
        self.tokens = Tokens()
        self.plain = True  # no row was estimated

    def weigh(self, places: Sequence[Place]) -> None:
        new = sorted({place for place in places if place not in self.counts})
        numbered = [(place, place[2] + self._before[place[0]]) for place in new]
        tasks = [
            Weigh(part=self._parts[0], places=tuple(numbered[at : at + _WEIGHED]))
            for at in range(0, len(numbered), _WEIGHED)
        ]
        for _, weighed in self._workers.map(tasks):
            self._take(weighed)

    def _take(self, weighed: Weighed) -> None:
        self.counts.update(weighed.counts)
        self.tokens.merge(weighed.tokens, 0)
        self.plain = self.plain and weighed.plain

    def dearest(self, held: Held, floors: Sequence[int]) -> None:
        """Counts rows by falling bound until the next cannot be among the costliest."""
        for batch in self._batches(held):
            if batch[0][0] < self.tokens.dearest.least():
                break
            least = self.tokens.dearest.least()
            self.weigh([place for bound, place in batch if bound >= least])
        deep = []
        for part, before, floor in zip(self._parts, self._before, floors, strict=True):
            if max(floor, held.floor) >= self.tokens.dearest.least() > 0:
                known = frozenset(at for index, at, _ in self.counts if index == part.index)
                least = self.tokens.dearest.least()
                deep.append(Deepen(part=part, least=least, known=known, lines_before=before))
        for _, weighed in self._workers.map(deep):
            self._take(weighed)

    def largest_answer(self, held: Held) -> None:
        """Counts rows by falling bound of their labels until none can have more; what was let go may."""
        for batch in self._batches(held):
            if batch[0][0] <= self.tokens.max_supervised:
                return
            self.weigh([place for bound, place in batch if bound > self.tokens.max_supervised])
        self.tokens.max_supervised = max(
            self.tokens.max_supervised, min(held.floor, self.tokens.dearest.rows()[0].tokens)
        )

    @staticmethod
    def _batches(held: Held) -> Iterator[list[tuple[int, Place]]]:
        ordered = sorted(held.heap, reverse=True)
        size = _ROUND * 32
        at = 0
        while at < len(ordered):
            yield ordered[at : at + size]
            at, size = at + size, min(2 * size, _ROUND * _WEIGHED)


def _sampled(strata: Strata, weigher: _Weigher) -> tuple[Tokens, Mapping[float, float]]:
    """What all rows weigh, from a sample just large enough, and how far its percentiles may be off."""
    taken = dict.fromkeys(strata.classes, 0)
    more: Collection[int] = strata.classes.keys()
    for size in ROUNDS:
        taken.update(dict.fromkeys(more, size))
        places = {name: stratum.first(taken[name]) for name, stratum in strata.classes.items()}
        weigher.weigh([place for name in more for place in places[name]])
        lengths, known = _estimated(strata, weigher, places)
        more = known.open
        if not more:
            break
    return lengths, known.off


def _estimated(strata: Strata, weigher: _Weigher, places: Mapping[int, list[Place]]) -> tuple[Tokens, Confidence]:
    """What all rows weigh, from the rows at some places of each class."""
    whole = Tokens()
    sampled: dict[int, list[int]] = {}
    for name, stratum in sorted(strata.classes.items()):  # sums of fractions depend on their order
        counts = [weigher.counts[place] for place in places[name] if place in weigher.counts]
        sampled[name] = [count.tokens for count in counts]
        for count in counts:
            whole.weigh(count, stratum.rows / len(counts))
    whole.min_prompt = None  # the fewest of a sample may be too many
    return whole, confidence(sampled, {name: stratum.rows for name, stratum in strata.classes.items()})


def _with_extremes(whole: Tokens, weigher: _Weigher) -> None:
    """The costliest rows and the largest answer as they were found."""
    whole.counted = weigher.tokens.counted
    whole.dearest = weigher.tokens.dearest
    whole.max_supervised = weigher.tokens.max_supervised
    whole.lengths.longest = max(whole.lengths.longest, weigher.tokens.lengths.longest)
    whole.lengths.bound = max(whole.lengths.bound, weigher.tokens.lengths.bound)
