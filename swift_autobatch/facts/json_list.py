"""Reads a JSON list row by row, never more than one row beyond what is needed, and goes on after a broken row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from swift_autobatch.facts.json_mend import SPACE, checked, mend, plain
from swift_autobatch.facts.lines import Decoder, Fault, Stream, Update, pieces
from swift_autobatch.facts.suspects import in_json


class _Window:
    """The part of a list that is being read: text not yet consumed, and the line where it starts."""

    def __init__(self, text: str, line: int, more: Iterator[tuple[int, str | Fault]]) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.column = 0  # characters of this line that were cut off before ``text``
        self.more = more
        self.faults: list[tuple[int, Fault]] = []  # of the decoding; handed out before the next row

    def grow(self) -> bool:
        """Appends further pieces, at least doubling the window so that one huge row costs linear time."""
        break_at = self.text.rfind("\n", 0, self.at)
        self.column = self.at - break_at - 1 if break_at >= 0 else self.column + self.at
        kept = self.text[self.at :]
        parts = [kept]
        size = 0
        for line, piece in self.more:
            if isinstance(piece, Fault):
                self.faults.append((line, piece))
                continue
            parts.append(piece)
            size += len(piece)
            if size >= len(kept):
                break
        self.text, self.at = "".join(parts), 0
        return size > 0

    def peek(self) -> str:
        """The next character that is not white space, '' at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in SPACE:
                self.line += self.text[self.at] == "\n"
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.grow():
                return ""

    def value(self) -> tuple[Any, str] | Exception:
        """Decodes one value and steps over it. Returns it and its text, or the error, with the value at the front."""
        while True:
            try:
                value, end = plain.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                cut = self.at > 0  # after growing, the value starts the window and errors count from it
                if self.grow() or cut:
                    continue
                return error
            if end == len(self.text) and not isinstance(value, dict | list | str) and self.grow():
                continue  # a number that touches the end of the window may go on
            self.line += self.text.count("\n", self.at, end)
            start, self.at = self.at, end
            return value, self.text[start:end]

    def skip(self) -> str:
        """Steps over a row that does not parse, to the next line that opens a row just as deep. Returns the row's text.

        The rest of the list when there is no such line, as in a list that stands on one line.
        """
        pattern = re.compile(rf"\n[ \t]{{{self.column}}}\{{")
        found = pattern.search(self.text, 1)
        end = found.start() if found else len(self.text)
        skipped = self.text[:end]
        self.line += skipped.count("\n")
        self.at = end
        return skipped


def list_rows(line: int, text: str, stream: Stream, update: Update, decoder: Decoder) -> Iterator[tuple[int, Any]]:
    """Yields (line, row or Fault) of a list that opens on ``line``; ``text`` is that line, ``stream`` the rest."""
    window = _Window(text, line, pieces(line, stream, update, decoder))
    window.peek()
    window.at += 1  # the opening bracket
    if window.peek() == "]":
        window.at += 1
    else:
        yield from _elements(window)
    yield from window.faults
    if window.peek():
        yield window.line, Fault(code="not-json", text="not JSON: text after the closing ']' of the list", loses=False)


def _elements(window: _Window) -> Iterator[tuple[int, Any]]:
    strings: bool | None = None  # a list of texts: the engine makes rows of one column of it
    while True:
        mark = window.peek()
        if mark in ("", "]"):
            yield window.line, _ends(mark)
            window.at += len(mark)
            return
        start = window.line
        found = window.value()
        yield from window.faults
        window.faults.clear()
        if isinstance(found, Exception):
            yield from _bad(window, start, found)
            if not window.peek():
                return
            continue
        value, said = found
        strings = isinstance(value, str) if strings is None else strings
        fault, rows = checked({"text": value} if strings else value, said)
        if fault:
            yield start, fault
        yield from ((start, suspect) for suspect in in_json(said, value))
        yield from ((start, row) for row in rows)
        mark = window.peek()
        if mark == "]":
            window.at += 1
            return
        if mark == ",":
            window.at += 1
        elif mark == "{":
            yield (
                window.line,
                Fault(code="missing-comma", text="not JSON: expected ',' or ']' between two rows"),
            )
        else:
            wrong = f"expected ',' or ']' after the row, found {mark!r}" if mark else "']' is missing at the end"
            yield (
                window.line,
                Fault(code="not-json" if mark else "cut-line", text=f"not JSON: {wrong}", loses=bool(mark)),
            )
            return


def _ends(mark: str) -> Fault:
    if mark:
        return Fault(code="trailing-comma", text="not JSON: a comma before the closing ']'")
    return Fault(code="cut-line", text="not JSON: the list is not closed: ']' is missing")


def _bad(window: _Window, start: int, error: Exception) -> Iterator[tuple[int, Any]]:
    """A row that does not parse: what is wrong, and the row it was meant to be."""
    column = window.column
    text = window.skip()
    fault, meant = mend(text.rstrip(SPACE + ",") if "\n" in text else text, error, column)
    yield start + getattr(error, "lineno", 1) - 1, fault
    yield from ((start, row) for row in meant)
