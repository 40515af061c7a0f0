"""Reads csv as the engine's pandas does: a header, columns of numbers become numbers; goes on after a broken row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from swift_autobatch.facts.lines import Decoder, Fault, Stream, Update, lines

_LONGEST = 64 << 20  # characters of one row
_TYPE_ROWS = 10_000  # pandas infers a column's type per chunk of 10 000 rows (datasets' csv builder)


def csv_rows(stream: Stream, update: Update, *, delimiter: str = ",") -> Iterator[tuple[int, Any]]:
    """Yields (line, row or Fault) of a csv file; quoted cells may span lines."""
    rows = _cells(stream, update, delimiter)
    head = list(islice(rows, _TYPE_ROWS))
    numeric = _numeric_columns([row for _, row in head if isinstance(row, dict)])
    for line, row in head:
        yield line, _typed(row, numeric) if isinstance(row, dict) else row
    for line, row in rows:
        yield line, _typed(row, numeric) if isinstance(row, dict) else row


class _Texts:
    """The lines that the csv reader asks for; knows how many quotes the row that it is at has shown so far."""

    def __init__(self, stream: Stream, update: Update) -> None:
        self._lines = lines(stream, update, Decoder())
        self.faults: list[tuple[int, Fault]] = []  # of the decoding; handed out before the next row
        self.number = 0  # of the line read last
        self._quotes = self._size = 0

    def __iter__(self) -> _Texts:
        return self

    def __next__(self) -> str:
        if self._size > _LONGEST:
            raise StopIteration  # a quote that is never closed would read the whole file into one cell
        for number, text in self._lines:
            self.number = number
            if isinstance(text, str):
                self._quotes += text.count('"')
                self._size += len(text)
                return text
            self.faults.append((number, text))
        raise StopIteration

    def row(self) -> tuple[bool, list[tuple[int, Fault]]]:
        """A row ends here. Returns whether a quote in it is still open, and the faults met on the way."""
        faults, self.faults = self.faults, []
        is_open = self._quotes % 2 == 1
        self._quotes = self._size = 0
        return is_open, faults


def _cells(stream: Stream, update: Update, delimiter: str) -> Iterator[tuple[int, dict[str, str] | Fault]]:
    csv.field_size_limit(2**31 - 1)  # the default refuses cells over 128 KiB, which a long document exceeds
    texts = _Texts(stream, update)
    reader = csv.reader(texts, strict=False, delimiter=delimiter)
    header: list[str] | None = None
    start = 1
    while True:
        try:
            cells: list[str] | csv.Error | None = next(reader, None)
        except csv.Error as error:
            cells = error
        is_open, faults = texts.row()
        yield from faults
        if cells is None:
            return
        line, start = start, texts.number + 1
        if isinstance(cells, csv.Error):
            yield line, Fault(code="csv-quote", text=f"not csv: {cells}", loses=True)
        elif is_open:
            words = "not csv: a quoted cell that starts in this row is never closed"
            yield line, Fault(code="csv-quote", text=words, loses=True)
            return
        elif not cells:
            continue  # pandas skips empty lines
        elif header is None:
            header = _named(cells)
        elif len(cells) > len(header):
            text = f"the row has {len(cells)} cells, the header {len(header)}"
            yield line, Fault(code="csv-cells", text=text, loses=True)
        else:
            yield line, dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))


def _named(cells: list[str]) -> list[str]:
    """Column names; pandas calls the second of two equal ones ``name.1``."""
    names: list[str] = []
    for cell in cells:
        name, times = cell, 0
        while name in names:
            times += 1
            name = f"{cell}.{times}"
        names.append(name)
    return names


def _numeric_columns(rows: list[dict[str, str]]) -> frozenset[str]:
    """Columns in which every cell is a number: pandas hands them to the engine as numbers, not as text."""
    names = set(rows[0]) if rows else set()
    for row in rows:
        names = {name for name in names if _is_number(row[name])}
        if not names:
            break
    return frozenset(names)


def _is_number(cell: str) -> bool:
    try:
        number = float(cell)
    except ValueError:
        return cell in ("True", "False")
    return "_" not in cell and not math.isnan(number)  # Python reads 1_000 and nan, the engine's pandas does not


def _typed(row: dict[str, str], numeric: frozenset[str]) -> dict[str, Any]:
    return {name: _number(cell) if name in numeric else cell for name, cell in row.items()}


def _number(cell: str) -> float | bool | str:
    if cell in ("True", "False"):
        return cell == "True"
    return float(cell) if _is_number(cell) else cell
