"""What a row holds that JSON can carry and a training set hardly means: control characters, NaN, lost characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from swift_autobatch.facts.lines import Fault

# Written \u00XX, \b or \f in JSON; a row without these needs no closer look, which would take as long as reading it.
_ESCAPED = ("\\u00", "\\b", "\\f", "\x7f", "\ufffd")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BACKSPACE = re.compile(rb"(?<!\\)(?:\\\\)*\\[bf]")
_LOST = "\ufffd"


def suspicious(raw: bytes) -> bool:
    """Whether a line of JSON may hold a control character or a lost one; quick, for the millions of lines without."""
    if b"\x7f" in raw or b"\xef\xbf\xbd" in raw:
        return True
    if b"\\" not in raw:
        return False
    return b"\\u00" in raw or ((b"\\b" in raw or b"\\f" in raw) and _BACKSPACE.search(raw) is not None)


def in_json(text: str, value: Any) -> Iterator[Fault]:
    """Suspects of a row that was parsed from ``text``."""
    if any(mark in text for mark in _ESCAPED):
        yield from in_row(value)
    if ("NaN" in text or "Infinity" in text) and (found := _constant(text)):
        yield Fault(code="nan", text=f"{found} is no JSON: the engine reads null")


def in_row(value: Any) -> Iterator[Fault]:
    """Suspects of a row as it came from any kind of file; at most one of a kind."""
    control = next((match for text in texts(value) if (match := _CONTROL.search(text))), None)
    if control:
        yield Fault(code="control-character", text=f"a control character (U+{ord(control.group()):04X}) in the text")
    if any(_LOST in text for text in texts(value)):
        yield Fault(code="replacement-character", text="U+FFFD stands where an earlier conversion lost a character")


def without_control(text: str) -> str:
    """The text without control characters; tabs and line breaks stay."""
    return _CONTROL.sub("", text)


def texts(value: Any) -> Iterator[str]:
    """Every string inside a value, names of objects apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def _constant(text: str) -> str | None:
    """The first NaN or Infinity that stands as a value; the same letters inside a string are text."""
    found: list[str] = []
    decoder = json.JSONDecoder(parse_constant=lambda name: found.append(name))
    try:
        decoder.decode(text.strip())
    except (ValueError, RecursionError):
        return None
    return found[0] if found else None
