"""Reads json, jsonl and csv files row by row, with the line where each row starts; memory does not grow with rows.

What stops the engine stops us: a line that is not JSON, bytes that are not UTF-8, a csv row with too many cells. The
engine would answer with a traceback from a file loader; these readers name the line, the column and the mistake.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from swift_autobatch.errors import InputError

SUFFIXES = (".json", ".jsonl", ".csv")
_CHUNK_BYTES = 1 << 20
_CSV_TYPE_ROWS = 10_000  # pandas infers a column's type per chunk of 10 000 rows (datasets' csv builder)
_SPACE = " \t\n\r"

Update = Callable[[bytes], None]  # sees every byte once, in order: the digest


def read_rows(path: Path, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (line, row) for every row of a file; a row of a csv is a dict, of a json file whatever JSON it is.

    Args:
        path: a file with one of ``SUFFIXES``. ``.json`` and ``.jsonl`` are told apart by content, as the engine does.
        update: receives every byte of the file once, in order.

    Raises:
        InputError: file:line and what is wrong, when the engine could not read the file either.
    """
    try:
        with path.open("rb") as stream:
            reader = _csv_rows if path.suffix == ".csv" else _json_rows
            yield from reader(path, stream, update)
    except OSError as error:
        raise InputError(
            f"cannot read the dataset: {error.strerror or error}",
            where=str(path),
            hints=(f"check the file with: ls -l {path}",),
        ) from error


# ------------------------------------------------------------------------------------------------------- lines


def _lines(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, str]]:
    """Yields (line number, text with its newline); a byte order mark is dropped."""
    for number, raw in enumerate(stream, 1):
        update(raw)
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw = raw[len(codecs.BOM_UTF8) :]
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, raw, error.start) from error


def _not_utf8(path: Path, line: int, raw: bytes, at: int) -> InputError:
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    guess = "utf-16" if raw.startswith(marks) else "gb18030"
    return InputError(
        f"not UTF-8: byte 0x{raw[at]:02x} at byte {at + 1} of line {line}",
        where=f"{path}:{line}",
        hints=(f"convert it: iconv -f {guess} -t utf-8 {path} > {path.stem}.utf8{path.suffix}",),
    )


# -------------------------------------------------------------------------------------------------------- json


def _json_rows(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, Any]]:
    lines = _lines(path, stream, update)
    for number, text in lines:
        if not text.strip():
            continue
        if text.lstrip(_SPACE).startswith("["):
            yield from _array(path, number, text, _texts(path, number, stream, update))
            return
        yield number, _object(path, number, text, lines)
        break
    for number, text in lines:
        if text.strip():
            yield number, _parse_line(path, number, text)


def _object(path: Path, number: int, text: str, lines: Iterator[tuple[int, str]]) -> Any:
    """The first row of a file of lines; a lone ``{`` opens a file that is one indented object."""
    if text.strip() != "{":
        return _parse_line(path, number, text)
    rest = "".join([text, *(more for _, more in lines)])
    try:
        return json.loads(rest)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, number, rest, error) from error


def _parse_line(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, number, text, error) from error


def _texts(path: Path, line: int, stream: BinaryIO, update: Update) -> Iterator[str]:
    """The rest of a file in pieces of about 1 MiB, decoded."""
    while raw := stream.read(_CHUNK_BYTES):
        raw += stream.readline()  # a piece ends with a line, so that an error can name its line
        update(raw)
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            head = raw[: error.start]
            start = head.rfind(b"\n") + 1
            found = line + 1 + head.count(b"\n")
            raise _not_utf8(path, found, raw[start : error.end], error.start - start) from error
        line += raw.count(b"\n")


class _Window:
    """The part of a JSON array that is being read: text not yet consumed, and the line where it starts."""

    def __init__(self, text: str, line: int, more: Iterator[str]) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.column = 0  # characters of this line that were cut off before ``text``
        self.more = more

    def grow(self) -> bool:
        """Appends further pieces, at least doubling the window so that one huge row costs linear time."""
        break_at = self.text.rfind("\n", 0, self.at)
        self.column = self.at - break_at - 1 if break_at >= 0 else self.column + self.at
        kept = self.text[self.at :]
        pieces = [kept]
        size = 0
        for piece in self.more:
            pieces.append(piece)
            size += len(piece)
            if size >= len(kept):
                break
        self.text, self.at = "".join(pieces), 0
        return size > 0

    def peek(self) -> str:
        """The next character that is not white space, '' at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.line += self.text[self.at] == "\n"
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.grow():
                return ""

    def value(self, path: Path) -> Any:
        """Decodes one value and steps over it."""
        decoder = json.JSONDecoder()
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                cut = self.at > 0  # after growing, the value starts the window and errors count from it
                if self.grow() or cut:
                    continue
                raise _malformed(path, self.line, self.text, error, self.column) from error
            if end == len(self.text) and not isinstance(value, dict | list | str) and self.grow():
                continue  # a number that touches the end of the window may go on
            self.line += self.text.count("\n", self.at, end)
            self.at = end
            return value


def _array(path: Path, line: int, text: str, more: Iterator[str]) -> Iterator[tuple[int, Any]]:
    window = _Window(text, line, more)
    window.peek()
    window.at += 1  # the opening bracket
    if window.peek() == "]":
        window.at += 1
    else:
        while True:
            mark = window.peek()
            if mark in ("", "]"):
                wrong = "the list is not closed: ']' is missing" if not mark else "a comma before the closing ']'"
                raise _broken(path, window.line, wrong)
            start = window.line
            yield start, window.value(path)
            mark = window.peek()
            if mark == "]":
                window.at += 1
                break
            if mark != ",":
                wrong = f"expected ',' or ']' after the row, found {mark!r}" if mark else "']' is missing at the end"
                raise _broken(path, window.line, wrong)
            window.at += 1
    if window.peek():
        raise _broken(path, window.line, "text after the closing ']' of the list")


def _broken(path: Path, line: int, wrong: str) -> InputError:
    return InputError(
        f"not JSON: {wrong}",
        where=f"{path}:{line}",
        hints=(f"fix line {line}; python -m json.tool {path} shows the same place",),
    )


def _malformed(path: Path, line: int, text: str, error: Exception, column: int = 0) -> InputError:
    """A JSON error as people say it: which line and column, and what is usually meant there."""
    if isinstance(error, RecursionError):
        return _broken(path, line, "brackets are nested too deeply")
    if not isinstance(error, json.JSONDecodeError):
        return _broken(path, line, str(error).partition(";")[0])
    at_line = line + error.lineno - 1
    at_column = error.colno + (column if error.lineno == 1 else 0)
    return InputError(
        f"not JSON: {_meaning(text, error)} (column {at_column})",
        where=f"{path}:{at_line}",
        hints=(f"fix line {at_line}, or delete it: sed -i '{at_line}d' {path}",)
        if path.suffix == ".jsonl"
        else (f"fix line {at_line} of {path.name}",),
    )


def _meaning(text: str, error: json.JSONDecodeError) -> str:
    before = text[: error.pos].rstrip()
    here = text[error.pos : error.pos + 1]
    if error.msg.startswith("Illegal trailing comma") or (before.endswith(",") and here in ("}", "]")):
        return "a trailing comma"
    if here == "'":
        return "single quotes where JSON wants double quotes"
    if error.msg.startswith("Extra data"):
        return "more than one value on the line" if here in ("{", "[", '"') else f"unexpected {here!r} after the row"
    if error.msg.startswith("Unterminated string"):
        return "a string is not closed"
    if error.msg.startswith("Invalid control character"):
        return "a raw line break or control character inside a string"
    if not here:
        return "the row ends too early"
    return error.msg[0].lower() + error.msg[1:]


# --------------------------------------------------------------------------------------------------------- csv


def _csv_rows(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, Any]]:
    rows = _csv_cells(path, stream, update)
    head = list(islice(rows, _CSV_TYPE_ROWS))
    numeric = _numeric_columns([row for _, row in head])
    for line, row in head:
        yield line, _typed(row, numeric)
    for line, row in rows:
        yield line, _typed(row, numeric)


def _csv_cells(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # the default refuses cells over 128 KiB, which a long document exceeds
    reader = csv.reader((text for _, text in _lines(path, stream, update)), strict=False)
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
        float(cell)
    except ValueError:
        return cell in ("True", "False")
    return "_" not in cell  # Python reads 1_000, pandas does not


def _typed(row: dict[str, str], numeric: frozenset[str]) -> dict[str, Any]:
    return {name: _number(cell) if name in numeric else cell for name, cell in row.items()}


def _number(cell: str) -> float | bool | str:
    if cell in ("True", "False"):
        return cell == "True"
    return float(cell) if _is_number(cell) else cell
