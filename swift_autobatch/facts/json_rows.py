"""Reads JSON lines, or hands a JSON list on; goes on after a broken line, so that every one of them is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from swift_autobatch.facts.json_list import list_rows
from swift_autobatch.facts.json_mend import SPACE, checked, mend, strict
from swift_autobatch.facts.lines import Decoder, Fault, Stream, Update, lines
from swift_autobatch.facts.schema import LOADER_CHUNK_BYTES
from swift_autobatch.facts.suspects import in_json

_TALLEST = 1_000_000  # lines of one indented object


def json_rows(
    stream: Stream, update: Update, *, starts_at_once: bool, suffix: str, size: int
) -> Iterator[tuple[int, Any]]:
    """Yields (line, row or Fault) of a list of objects or of one object a line; content tells, as in the engine.

    Args:
        starts_at_once: the file's very first byte opens the list; the engine's loader reads no list otherwise.
        suffix: a list in a .jsonl file is read, and reported.
        size: bytes of the file.
    """
    decoder = Decoder()
    read = lines(stream, update, decoder)
    first = True
    for number, text in read:
        if isinstance(text, Fault):
            yield number, text
            continue
        if not text.strip():
            continue
        if first and text.lstrip(SPACE).startswith("["):
            if not starts_at_once:
                yield number, _something_before(text)
            elif suffix == ".jsonl":
                yield number, Fault(code="list-in-jsonl", text="the .jsonl file holds one list: this engine reads it")
            yield from list_rows(number, text, stream, update, decoder)
            return
        first = False
        if text.strip() == "{":
            yield from _indented(number, text, read, size)
        else:
            yield from line_rows(number, text)


def _something_before(text: str) -> Fault:
    what = "white space or a byte order mark"
    return Fault(
        code="space-before-list",
        text=f"something stands before the '[' of the list ({what}): the engine cannot read it",
    )


def line_rows(number: int, text: str) -> Iterator[tuple[int, Any]]:
    """The rows on one line, and what is wrong with it: one row, though the engine takes several.

    Args:
        number: its line.
        text: the line, decoded.
    """
    text = text.rstrip(SPACE)  # so that a row that is cut off ends on its own line
    at = len(text) - len(text.lstrip(SPACE))
    found = 0
    while at < len(text):
        try:
            value, end = strict.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield from _broken(number, text, at, error, found)
            return
        fault, rows = checked(value, text[at:end])
        if fault:
            yield number, fault
        yield from ((number, suspect) for suspect in in_json(text[at:end], value))
        yield from ((number, row) for row in rows)
        at = end
        while at < len(text) and text[at] in SPACE:
            at += 1
        found += 1
        if found == 1 and at < len(text) and text[at] in "{[":
            yield number, Fault(code="several-on-a-line", text="more than one object on the line")


def _broken(number: int, text: str, at: int, error: Exception, found: int) -> Iterator[tuple[int, Any]]:
    """A line that does not parse from ``at`` on, after ``found`` rows that did."""
    if found and not text[at:].strip(SPACE + ","):  # {...}, at the end of a line
        column = at + 1
        yield number, Fault(code="trailing-comma", text=f"not JSON: a trailing comma (column {column})")
        return
    rest = text[at:]
    if isinstance(error, json.JSONDecodeError):
        error = json.JSONDecodeError(error.msg, rest, max(0, error.pos - at))
    fault, meant = mend(rest, error, at)
    yield number + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0), fault
    yield from ((number, row) for row in meant)


def _indented(number: int, text: str, read: Iterator[tuple[int, str | Fault]], size: int) -> Iterator[tuple[int, Any]]:
    """An object that is spread over lines: it ends at the first '}' that stands as deep as its '{'."""
    closing = text[: len(text) - len(text.lstrip(" \t"))] + "}"
    parts: list[str] = [text]
    for line, more in islice(read, _TALLEST):
        if isinstance(more, Fault):
            yield line, more
            continue
        parts.append(more)
        if more.rstrip(SPACE + ",") == closing:
            break
    if size > LOADER_CHUNK_BYTES:
        yield number, Fault(code="indented-large-file", text="an object is spread over several lines")
    yield from line_rows(number, "".join(parts))
