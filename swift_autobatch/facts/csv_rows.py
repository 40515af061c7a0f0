"""Reads csv as the engine's pandas does: comma, a header, columns of numbers become numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from swift_autobatch.errors import InputError
from swift_autobatch.facts.lines import Update, lines

_TYPE_ROWS = 10_000  # pandas infers a column's type per chunk of 10 000 rows (datasets' csv builder)


def csv_rows(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (line, row) of a csv file; quoted cells may span lines. Raises InputError with file:line."""
    rows = _cells(path, stream, update)
    head = list(islice(rows, _TYPE_ROWS))
    numeric = _numeric_columns([row for _, row in head])
    for line, row in head:
        yield line, _typed(row, numeric)
    for line, row in rows:
        yield line, _typed(row, numeric)


def _cells(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # the default refuses cells over 128 KiB, which a long document exceeds
    reader = csv.reader((text for _, text in lines(path, stream, update)), strict=False)
    header: list[str] | None = None
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            if not cells:
                continue  # pandas skips empty lines
            if header is None:
                header = cells
            elif len(cells) > len(header):
                raise InputError(
                    f"the row has {len(cells)} cells, the header {len(header)}",
                    where=f"{path}:{start}",
                    hints=("put double quotes around cells that contain a comma",),
                )
            else:
                yield start, dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))
    except csv.Error as error:
        raise InputError(f"not csv: {error}", where=f"{path}:{line}", hints=(f"fix line {line}",)) from error


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
