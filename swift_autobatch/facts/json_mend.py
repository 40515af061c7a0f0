"""Says what is wrong with a JSON text that does not parse, in words, and what was hardly meant otherwise."""

from __future__ import annotations

import ast
import json
from typing import Any

from swift_autobatch.facts.lines import Fault

SPACE = " \t\n\r"
_TRIES = 64  # mistakes of one kind mended in one row
_CONSTANTS = dict.fromkeys(("NaN", "Infinity", "-Infinity"))  # the engine reads null


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a line; the engine's loader refuses a name that stands twice in one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {name!r} stands twice in one object")
    return found


strict = json.JSONDecoder(parse_constant=_CONSTANTS.__getitem__, object_pairs_hook=_unique)
plain = json.JSONDecoder(parse_constant=_CONSTANTS.__getitem__)
_loose = json.JSONDecoder(parse_constant=_CONSTANTS.__getitem__, strict=False)


def mend(text: str, error: Exception, column: int = 0) -> tuple[Fault, list[Any]]:
    """What is wrong with the row in ``text``, and the rows that it was meant to be; none when that is a guess.

    Args:
        text: the row, without the white space around it.
        error: what the decoder said to it.
        column: characters of the line before ``text``.
    """
    if isinstance(error, RecursionError):
        return Fault(code="not-json", text="not JSON: brackets are nested too deeply", loses=True), []
    if not isinstance(error, json.JSONDecodeError):
        meant = _objects(_parsed(text, plain))
        code = "duplicate-name" if "stands twice" in str(error) else "not-json"
        return Fault(code=code, text=f"not JSON: {str(error).partition(';')[0]}", loses=not meant), meant
    code, words = _mistake(text, error)
    meant = _meant(code, text)
    where = error.colno + (column if error.lineno == 1 else 0)
    return Fault(code=code, text=f"not JSON: {words} (column {where})", loses=not meant), meant


def meaning(text: str, error: Exception) -> str:
    """The mistake in words."""
    return _mistake(text, error)[1] if isinstance(error, json.JSONDecodeError) else str(error).partition(";")[0]


def _mistake(text: str, error: json.JSONDecodeError) -> tuple[str, str]:
    before = text[: error.pos].rstrip()
    here = text[error.pos : error.pos + 1]
    if error.msg.startswith("Illegal trailing comma") or (before.endswith(",") and here in ("}", "]")):
        return "trailing-comma", "a trailing comma"
    if here == "," and not text[error.pos :].strip(SPACE + ","):
        return "trailing-comma", "a trailing comma"
    if here == "'":
        return "single-quotes", "single quotes where JSON wants double quotes"
    if error.msg.startswith("Extra data"):
        more = here in ("{", "[", '"')
        return "not-json", "more than one value on the line" if more else f"unexpected {here!r} after the row"
    if error.msg.startswith("Unterminated string"):
        return "cut-line", "a string is not closed"
    if error.msg.startswith("Invalid control character"):
        return "raw-control", "a raw line break or control character inside a string"
    if not here:
        return "cut-line", "the row ends too early"
    return "not-json", error.msg[0].lower() + error.msg[1:]


def _meant(code: str, text: str) -> list[Any]:
    if code == "trailing-comma":
        return _objects(_without_commas(text.rstrip(SPACE + ",")))
    if code == "single-quotes":
        try:
            return _objects(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return []
    return _objects(_parsed(text, _loose)) if code == "raw-control" else []


def _without_commas(text: str) -> Any:
    """The value of a text after its commas before a closing bracket are taken out, each where the decoder stumbles."""
    for _ in range(_TRIES):
        try:
            return strict.decode(text)
        except json.JSONDecodeError as error:
            at = text.rfind(",", 0, error.pos + 1)
            if at < 0 or text[at + 1 :].lstrip(SPACE)[:1] not in ("}", "]"):
                return None
            text = text[:at] + text[at + 1 :]
        except (ValueError, RecursionError):
            return None
    return None


def _parsed(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def _objects(value: Any) -> list[Any]:
    return [value] if isinstance(value, dict) and writable(value) else []


def writable(value: Any) -> bool:
    """False for text with half of a surrogate pair, which has no UTF-8 form."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        return False
    return True


def checked(value: Any, text: str) -> tuple[Fault | None, list[Any]]:
    """A value that parsed, or why the engine's loader stops at it: a row that is no object, half a surrogate pair."""
    if value is not None and not isinstance(value, dict):
        rows = value if isinstance(value, list) and value and all(isinstance(row, dict) for row in value) else []
        words = f"a row must be an object, found {text.strip()[:20]!r}"
        return Fault(code="not-an-object", text=words, loses=not rows), rows
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except RecursionError:
            return Fault(code="not-json", text="not JSON: brackets are nested too deeply", loses=True), []
        except UnicodeEncodeError as error:
            words = f"not JSON: half a surrogate pair (\\u{ord(error.object[error.start]):04x})"
            return Fault(code="surrogate", text=words), [_without_halves(value)]
    return None, [value]


def _without_halves(value: Any) -> Any:
    """The value with U+FFFD, the sign for an unreadable character, in place of every half pair."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_halves(item) for item in value]
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(item) for name, item in value.items()}
    return value
