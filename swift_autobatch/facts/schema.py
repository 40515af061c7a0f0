"""Finds rows that do not fit the columns before them, where the engine's loader fails or a column changes its kind.

The loader takes names and types of all columns from the first 10 MiB of a dataset's first file; whatever comes later
has to fit them. In the first 10 MiB themselves anything goes.

Source: datasets packaged_modules/json/json.py and arrow_writer.py ``write_table``; every rule was tried with datasets
4.8.4: a later column, also one of nulls, a text after nulls, a fraction or a text after whole numbers, and a new field
in an object stop it; a missing column, and a number among texts, do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swift_autobatch.facts.lines import Fault, Update
from swift_autobatch.facts.suspects import in_row

LOADER_CHUNK_BYTES = 10 << 20
_CSV_CHUNK_ROWS = 10_000
_JSON = (".json", ".jsonl", ".ndjson")
_CELLS = (".csv", ".tsv")
_TYPED = (".parquet", ".arrow")
PACKED = (".gz", ".zst")
_WORDS = {"null": "null", "bool": "true/false", "int": "whole numbers", "float": "numbers", "text": "text"}
_WORDS |= {"list": "lists", "object": "objects"}
_KINDS: dict[type, str] = {type(None): "null", bool: "bool", int: "int", float: "float", str: "text"}
_KINDS |= {list: "list", dict: "object"}
# What a column that held one kind alone cannot take later.
_UNFIT = {
    "null": frozenset({"bool", "int", "float", "text", "list", "object"}),
    "int": frozenset({"float", "text", "list", "object"}),
    "float": frozenset({"text", "list", "object"}),
    "bool": frozenset({"text", "list", "object"}),
}
_NUMBERS = frozenset({"int", "float"})


def judged(
    file: Path, read: Callable[[Path, Update], Iterator[tuple[int, Any]]], update: Update, schema: Schema
) -> Iterator[tuple[int, Any]]:
    """The rows of a file as ``read`` yields them, before each what is odd about it beside the rows before."""
    place = _Place(file, update)
    learning = schema.empty
    for line, row in read(file, place.update):
        if not isinstance(row, Fault):
            found = schema.learn(row) if learning and place.in_first_chunk(line) else schema.late(row)
            yield from ((line, fault) for fault in found)
            if place.kind not in _JSON:
                yield from ((line, fault) for fault in in_row(row))
        yield line, row


def learn(
    file: Path, read: Callable[[Path, Update], Iterator[tuple[int, Any]]], schema: Schema
) -> list[tuple[int, Fault]]:
    """Teaches an empty schema the file's first chunk, and no other anything. Returns what drifts there, with lines."""
    found: list[tuple[int, Fault]] = []
    if not schema.empty:
        return found
    place = _Place(file, lambda _: None)
    for line, row in read(file, place.update):
        if not place.in_first_chunk(line):
            break
        if not isinstance(row, Fault):
            found += [(line, fault) for fault in schema.learn(row)]
    return found


class _Place:
    """How far a file has been read, in what the loader calls a chunk."""

    def __init__(self, file: Path, update: Update) -> None:
        self.kind = kind_of(file)
        # The loader takes a list whole; parquet and arrow files say their columns themselves.
        self._whole = self.kind in _TYPED or (self.kind in _JSON and _first_byte(file) == b"[")
        self._pass_on = update
        self._read = self._before = 0  # bytes; of those, bytes before the row's line
        self._line = self._rows = 0

    def update(self, raw: bytes) -> None:
        self._read += len(raw)
        self._pass_on(raw)

    def in_first_chunk(self, line: int) -> bool:
        self._rows += 1
        before = self._before
        if line != self._line:
            self._line, self._before = line, self._read
        if self.kind in _CELLS:
            return self._rows <= _CSV_CHUNK_ROWS
        return self._whole or before < LOADER_CHUNK_BYTES


def _first_byte(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(1)


class Schema:
    """The columns of one dataset: learned from its first rows, compared with the later ones. Can be pickled."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[str]] = {}
        self._fields: dict[str, set[str]] = {}  # names inside the objects of a list, such as messages
        self._drift: dict[str, set[str]] = {}
        self._seen: set[tuple[str, type]] = set()  # of rows that came late and were judged
        self._told: set[str] = set()  # one report a column: the rest of the file is like it

    @property
    def empty(self) -> bool:
        """Nothing has been learned yet."""
        return not self._kinds

    def learn(self, row: Any) -> Iterator[Fault]:
        """A row of the first 10 MiB: nothing stops there, a column of several kinds is told."""
        if not isinstance(row, dict):
            return
        for name, value in row.items():
            self._kinds.setdefault(name, set()).add(_kind(value))
            if inner := _inner(value):
                self._fields.setdefault(name, set()).update(inner)
        yield from self._drifts(row)

    def late(self, row: Any) -> Iterator[Fault]:
        """A row after the first 10 MiB: what stops the loader there, then what is only odd."""
        if not isinstance(row, dict):
            return
        seen = self._seen
        if all((name, type(value)) in seen for name, value in row.items()):
            return  # nearly every row: names and kinds that were looked at before, and nothing inside them
        if self._kinds:
            for name, value in row.items():
                if name not in self._told and (fault := self._unfit(name, value)):
                    self._told.add(name)
                    yield fault
        yield from self._drifts(row)
        seen.update((name, type(value)) for name, value in row.items() if not isinstance(value, list | dict))

    def _unfit(self, name: str, value: Any) -> Fault | None:
        kinds, kind = self._kinds.get(name), _kind(value)
        if kinds is None:
            text = f"column {name!r} is not among those of the first 10 MiB, which the loader keeps to: it fails"
            return Fault(code="late-column", text=text)
        alone = next(iter(kinds - {"null"}), "null") if len(kinds - {"null"}) <= 1 else ""
        if kind in _UNFIT.get(alone, ()):
            text = f"column {name!r} held {_WORDS[alone]} in the first 10 MiB and {_WORDS[kind]} here: the loader fails"
            return Fault(code="late-type", text=text)
        new = _inner(value) - self._fields.get(name, set()) if alone in ("list", "object") else set()
        if new:
            text = f"{sorted(new)[0]!r} inside {name!r} first appears here, after the first 10 MiB: the loader fails"
            return Fault(code="late-column", text=text)
        return None

    def _drifts(self, row: dict[str, Any]) -> Iterator[Fault]:
        for name, value in row.items():
            kind = _kind(value)
            if kind == "null":
                continue
            known = self._drift.setdefault(name, {kind})
            if kind in known or ({kind} | known) <= _NUMBERS:
                continue
            before = ", ".join(_WORDS[one] for one in sorted(known))
            known.add(kind)
            yield Fault(code="type-drift", text=f"column {name!r} held {before} before and holds {_WORDS[kind]} here")


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read: ``.jsonl`` for ``rows.jsonl.gz``."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "text")


def _inner(value: Any) -> set[str]:
    """Names inside the objects of a list; the loader joins them into one structure."""
    items = value if isinstance(value, list) else [value]
    return {str(name) for item in items if isinstance(item, dict) for name in item}
