"""Reads a JSON list or JSON lines row by row, never more than one row of a list beyond what is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from swift_autobatch.errors import InputError
from swift_autobatch.facts.lines import Update, lines, pieces

_SPACE = " \t\n\r"


def json_rows(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (line, row) of a list of objects or of one object a line; told apart by content, as in the engine.

    Raises:
        InputError: file:line and the mistake in words.
    """
    read = lines(path, stream, update)
    first = True
    for number, text in read:
        if not text.strip():
            continue
        if first and text.lstrip(_SPACE).startswith("["):
            _starts_at_once(path, number, text, stream)
            yield from _array(path, number, text, pieces(path, number, stream, update))
            return
        first = False
        if text.strip() == "{":  # a file that is one indented object
            text += "".join(more for _, more in read)
        yield from _values(path, number, text)


def _starts_at_once(path: Path, number: int, text: str, stream: BinaryIO) -> None:
    """The engine's loader knows a list by its first byte and fails on anything before it."""
    here = stream.tell()
    stream.seek(0)
    first = stream.read(1)
    stream.seek(here)
    if first != b"[":
        raise InputError(
            "something stands before the '[' of the list (white space or a byte order mark): the engine cannot read it",
            where=f"{path}:{number}",
            hints=(
                f"sed -i '1s/^\\xef\\xbb\\xbf//' {path}"
                if text.startswith("[") and number == 1
                else f"delete what stands before the '[' in {path.name}",
            ),
        )


_CONSTANTS = dict.fromkeys(("NaN", "Infinity", "-Infinity"))  # the engine reads null
_decoder = json.JSONDecoder(parse_constant=_CONSTANTS.__getitem__)


def _values(path: Path, number: int, text: str) -> Iterator[tuple[int, Any]]:
    """The rows on one line: one, though the engine takes several."""
    text = text.rstrip(_SPACE)  # so that a row that is cut off ends on its own line
    at = len(text) - len(text.lstrip(_SPACE))
    while at < len(text):
        try:
            value, end = _line_decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _malformed(path, number, text, error) from error
        yield number, _checked(path, number, value, text)
        at = end
        while at < len(text) and text[at] in _SPACE:
            at += 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a line; the engine's loader refuses a name that stands twice in one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {name!r} stands twice in one object")
    return found


_line_decoder = json.JSONDecoder(parse_constant=_CONSTANTS.__getitem__, object_pairs_hook=_unique)


def _checked(path: Path, line: int, value: Any, text: str) -> Any:
    """Refuses what stops the engine's loader: a row that is no object, and half of a surrogate pair."""
    if value is not None and not isinstance(value, dict):
        raise InputError(
            f"a row must be an object, found {text.strip()[:20]!r}",
            where=f"{path}:{line}",
            hints=(f'write line {line} as {{"query": "...", "response": "..."}}, or delete it',),
        )
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except RecursionError as error:
            raise _malformed(path, line, text, error) from error
        except UnicodeEncodeError as error:
            raise _broken(path, line, f"half a surrogate pair (\\u{ord(error.object[error.start]):04x})") from error
    return value


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

    def value(self, path: Path) -> tuple[Any, str]:
        """Decodes one value and steps over it. Returns it and its text."""
        while True:
            try:
                value, end = _decoder.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                cut = self.at > 0  # after growing, the value starts the window and errors count from it
                if self.grow() or cut:
                    continue
                raise _malformed(path, self.line, self.text, error, self.column) from error
            if end == len(self.text) and not isinstance(value, dict | list | str) and self.grow():
                continue  # a number that touches the end of the window may go on
            self.line += self.text.count("\n", self.at, end)
            start, self.at = self.at, end
            return value, self.text[start:end]


def _array(path: Path, line: int, text: str, more: Iterator[str]) -> Iterator[tuple[int, Any]]:
    window = _Window(text, line, more)
    strings: bool | None = None  # a list of texts: the engine makes rows of one column of it
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
            value, said = window.value(path)
            strings = isinstance(value, str) if strings is None else strings
            if strings:
                value = {"text": value}
            yield start, _checked(path, start, value, said)
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
