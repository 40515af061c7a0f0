"""What a worker process does with its part of a large .jsonl file: survey it, or count the rows it is asked for."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from swift_autobatch.facts.bounds import Bound, size_of
from swift_autobatch.facts.conversation import Conversation, RowError, Shape, shape_of
from swift_autobatch.facts.counters import Means, counter_of
from swift_autobatch.facts.json_rows import line_rows
from swift_autobatch.facts.lines import Decoder, Fault
from swift_autobatch.facts.media import Media
from swift_autobatch.facts.schema import Schema
from swift_autobatch.facts.strata import Place, Strata
from swift_autobatch.facts.survey import Reader, Survey, Tokens
from swift_autobatch.facts.suspects import suspicious
from swift_autobatch.facts.tokens import Count
from swift_autobatch.records import ModelFacts

HELD = 1024  # rows of a part that are remembered by their bound
_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every worker is told once."""

    model: ModelFacts
    means: Means
    system: str | None
    bound: Bound | None
    cache_dir: Path
    cut_at: int | None = None
    media: Media = field(default_factory=lambda: Media(block=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a file that starts and ends with whole lines."""

    file: str
    order: int  # the file's place among the datasets
    index: int  # the part's place in the file
    start: int
    end: int
    columns: tuple[str, ...]  # of the file's first rows: they decide how it is read
    schema: Schema = field(default_factory=Schema)  # of the rows before
    fixed_from: int = 0  # bytes: rows from there on are compared with the schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Task: survey a part. ``count``: with the tokens of every row; else with a sample of places to count later."""

    part: Part
    count: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigh:
    """Task: count the rows at these places, (place, line in the file) each."""

    part: Part  # any part of that file
    places: tuple[tuple[Place, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepen:
    """Task: count every row of a part that may have ``least`` tokens or more, but those at ``known`` bytes."""

    part: Part
    least: int
    known: frozenset[int]
    lines_before: int


@dataclass(slots=True)
class Held:
    """The places with the largest bounds, and the largest bound that was let go."""

    heap: list[tuple[int, Place]] = field(default_factory=list)
    floor: int = 0

    def add(self, bound: int, place: Place, room: int = HELD) -> None:
        if len(self.heap) < room:
            heapq.heappush(self.heap, (bound, place))
        else:
            self.floor = max(self.floor, heapq.heappushpop(self.heap, (bound, place))[0])


@dataclass(slots=True)
class Scanned:
    """Answer to a Scan. ``odd``: the part holds what only a reader of the whole file understands."""

    lines: int = 0
    survey: Survey = field(default_factory=Survey)
    strata: Strata = field(default_factory=Strata)
    longest: Held = field(default_factory=Held)
    answers: Held = field(default_factory=Held)
    odd: bool = False


@dataclass(slots=True)
class Weighed:
    """Answer to a Weigh or Deepen."""

    counts: list[tuple[Place, Count]] = field(default_factory=list)
    tokens: Tokens = field(default_factory=Tokens)
    plain: bool = True  # no row was estimated


def handler(setup: Setup) -> Callable[[Any], Any]:
    """What ``workers.py`` asks for: a function from task to answer."""
    counter = counter_of(setup.means, setup.model, setup.system, cache_dir=setup.cache_dir, engines=1)
    reader = Reader(model=setup.model, counter=counter, system=setup.system, cut_at=setup.cut_at, media=setup.media)

    def handle(task: Any) -> Any:
        if isinstance(task, Scan):
            return _count(task.part, reader) if task.count else _scan(task.part, reader, setup.bound)
        if isinstance(task, Weigh):
            return _weigh(task, reader)
        return _deepen(task, reader, setup.bound)

    return handle


# ---------------------------------------------------------------------------------------------------------- reading


class Odd(Exception):
    """An object spread over lines, which cannot be read from a part."""


def _lines(part: Part) -> Iterator[tuple[int, int, bytes]]:
    """(line within the part, byte where it starts, its bytes)."""
    with Path(part.file).open("rb") as stream:
        stream.seek(part.start)
        at = part.start
        for number, raw in enumerate(stream, 1):
            yield number, at, raw
            at += len(raw)
            if at >= part.end:
                return


def _records(raw: bytes, number: int, decoder: Decoder) -> Iterator[Any]:
    """The rows and faults of one line: at once where it is plainly one object, else as the careful reader has it."""
    record = _plain(raw)
    if record is not None:
        yield record
        return
    if raw.strip() == b"{":
        raise Odd
    for text in decoder.line(number, raw):
        if isinstance(text, Fault):
            yield text
        elif text.strip():
            yield from (found for _, found in line_rows(number, text))


def _judged(records: Iterator[Any], part: Part, at: int) -> Iterator[Any]:
    """The rows and faults of a line that starts at byte ``at``, and how the rows do not fit those before."""
    for record in records:
        if at >= part.fixed_from and not isinstance(record, Fault):
            yield from part.schema.late(record)
        yield record


def _plain(raw: bytes) -> dict[str, Any] | None:
    """The object on a line; None where anything about it needs a closer look, such as a name that stands twice."""
    if b"\\ud" in raw or b"\\uD" in raw or suspicious(raw):  # surrogates, control characters
        return None
    try:
        value = _decode(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    names = raw.count(b'":') + raw.count(b'" :')
    return value if isinstance(value, dict) and _names(value) == names else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_decode = json.JSONDecoder(parse_constant=_refuse).decode


def _names(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_names(inner) for inner in value.values() if isinstance(inner, dict | list))
    return sum(_names(inner) for inner in value if isinstance(inner, dict | list))


def _shape(part: Part) -> Shape:
    shape = shape_of(part.columns)
    assert shape is not None  # the file was not cut into parts before its shape was known
    return shape


# ---------------------------------------------------------------------------------------------------------- answers


def _count(part: Part, reader: Reader) -> Scanned:
    """Surveys a part and counts every row."""
    found, shape = Scanned(), _shape(part)
    rows = _surveyed(part, found)
    try:
        while batch := [(line, record) for line, _, record in islice(rows, _BATCH)]:
            reader.survey(found.survey, part.file, part.order, batch, shape)
    except Odd:
        return Scanned(odd=True)
    return found


def _scan(part: Part, reader: Reader, bound: Bound | None) -> Scanned:
    """Surveys a part without counting: classes of size, a sample of places, and the rows that may be the longest."""
    assert bound is not None
    found, shape = Scanned(), _shape(part)
    try:
        for line, at, record in _surveyed(part, found):
            try:
                talk = reader.talk(record, shape)
                reader.check(talk)
            except RowError as error:
                found.survey.drop(part.file, line, error.code, error.text)
                continue
            found.survey.keep(part.file, line, talk, None, reader.model, plain=reader.counter.covers(talk))
            text = size_of(talk)
            place = (part.index, at, line)
            found.strata.add(text.size, text.characters, place, part.order)
            found.longest.add(bound.tokens(talk, text.size, normal=text.normal), place)
            found.answers.add(bound.answer_tokens(talk, normal=text.normal), place)
    except Odd:
        return Scanned(odd=True)
    return found


def _surveyed(part: Part, found: Scanned) -> Iterator[tuple[int, int, Any]]:
    """(line within the part, byte where it starts, record) of every row; faults go into the survey."""
    decoder = Decoder()
    for line, at, raw in _lines(part):
        found.lines = line
        for record in _judged(_records(raw, line, decoder), part, at):
            if isinstance(record, Fault):
                found.survey.fault(part.file, line, record)
            else:
                yield line, at, record


def _weigh(task: Weigh, reader: Reader) -> Weighed:
    """Counts the rows at some places."""
    found = Weighed()
    shape = _shape(task.part)
    with Path(task.part.file).open("rb") as stream:
        for start in range(0, len(task.places), _BATCH):
            batch = task.places[start : start + _BATCH]
            rows: list[_Row] = []
            for place, line in batch:
                stream.seek(place[1])
                rows += [(place, line, record, talk) for record, talk in _kept(stream.readline(), reader, shape)]
            _add(found, rows, reader, task.part)
    return found


def _deepen(task: Deepen, reader: Reader, bound: Bound | None) -> Weighed:
    """Counts the rows of a part that may be among the costliest, raising the bar as it goes."""
    assert bound is not None
    found, shape = Weighed(), _shape(task.part)
    rows: list[_Row] = []
    for number, at, raw in _lines(task.part):
        if at in task.known:
            continue
        least = max(task.least, found.tokens.dearest.least())
        for record, talk in _kept(raw, reader, shape):
            text = size_of(talk)
            if bound.tokens(talk, text.size, normal=text.normal) >= least:
                rows.append(((task.part.index, at, number), number + task.lines_before, record, talk))
        if len(rows) >= _BATCH:
            _add(found, rows, reader, task.part)
            rows = []
    _add(found, rows, reader, task.part)
    found.counts = []  # they are no sample, and may be many
    return found


def _kept(raw: bytes, reader: Reader, shape: Shape) -> list[tuple[Any, Conversation]]:
    """The records of a line that the engine trains, and how it reads them."""
    kept = []
    for record in _records(raw, 1, Decoder()):
        if isinstance(record, Fault):
            continue
        try:
            talk = reader.talk(record, shape)
            reader.check(talk)
        except RowError:
            continue
        kept.append((record, talk))
    return kept


_Row = tuple[Place, int, Any, Conversation]  # place, line in the file, record, how it is read


def _add(found: Weighed, rows: list[_Row], reader: Reader, part: Part) -> None:
    counts = reader.count([reader.pieces(talk) for *_, talk in rows])
    found.plain = found.plain and all(reader.counter.covers(talk) for *_, talk in rows)
    for (place, line, record, _), count in zip(rows, counts, strict=True):
        if isinstance(count, RowError):
            continue  # the engine's own encoder drops it
        found.counts.append((place, count))
        found.tokens.add(part.file, part.order, line, count, record)
