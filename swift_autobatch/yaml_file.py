"""Reads one of our YAML kinds against its JSON Schema and tells every error at once, each with its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.tables import DATA, near

STRATEGY = "autoswift.strategy/1"
PROJECT = "autoswift.recipe/1"
_SCHEMAS = MappingProxyType({STRATEGY: "strategy-1.json", PROJECT: "recipe-1.json"})
WORDS = MappingProxyType({STRATEGY: "strategy recipe", PROJECT: "project recipe"})
_WRITES_ONE = MappingProxyType(
    {
        STRATEGY: "'autoswift recipes cp NAME FILE' writes one that works",
        PROJECT: "'autoswift plan --save-recipe FILE' writes one that works",
    }
)

Problem = tuple[int, str]  # line, words
# Checks that no schema can make: (document, line of the node at a path) -> problems. The document may be of any shape.
Check = Callable[[dict[str, Any], Callable[[Sequence[str | int]], int]], list[Problem]]


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a YAML kind by its ``schema`` value, as published in data/schemas."""
    loaded: dict[str, Any] = json.loads((DATA / "schemas" / _SCHEMAS[name]).read_text(encoding="utf-8"))
    return loaded


def read_yaml(path: Path, kind: str, check: Check | None = None, shown: str | None = None) -> dict[str, Any]:
    """Reads ``path`` as the YAML kind ``kind`` (``autoswift.strategy/1``).

    Args:
        check: further checks; what they find is told together with the schema's errors.
        shown: the path as the user spelled it, for messages.

    Raises:
        InputError: the file is missing, unreadable or not YAML (file:line).
        UsageError: it breaks the schema; ``figures`` holds every error with its line.
    """
    return parse_yaml(_text(path, shown), shown or str(path), kind, check)


def parse_yaml(text: str, where: str, kind: str, check: Check | None = None) -> dict[str, Any]:
    """As :func:`read_yaml`, on a text that stands (or will stand) in the file ``where``."""
    node, document = _load(text, where)
    hint = _WRITES_ONE[kind]
    if not isinstance(document, dict):
        said = "is empty" if document is None else f"is a {type(document).__name__}"
        raise UsageError(
            f"a {WORDS[kind]} is a mapping, this {said}",
            where=f"{where}:1",
            hints=(f"start it with 'schema: {kind}'", hint),
        )
    other = document.get("schema")
    if isinstance(other, str) and other != kind and other in WORDS:
        raise UsageError(
            f"this is a {WORDS[other]}, not a {WORDS[kind]}",
            where=f"{where}:{_line(node, ('schema',))}",
            hints=("--recipe FILE takes a project recipe, --strategy NAME a strategy recipe's name",),
        )
    try:
        problems = _duplicate_keys(node) + _problems(document, node, kind)
    except RecursionError as error:
        raise InputError("an alias of this file holds itself", where=f"{where}:1", hints=(hint,)) from error
    if check is not None:
        problems += check(document, lambda path: _line(node, path))
    if problems:
        lines = sorted(set(problems))
        count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        raise UsageError(
            f"{count} in this {WORDS[kind]}",
            where=f"{where}:{lines[0][0]}",
            figures=tuple(f"line {line}: {words}" for line, words in lines),
            hints=(hint,),
        )
    return document


def kind_of(path: Path, shown: str | None = None) -> str | None:
    """The ``schema`` value of a YAML file; None when it says none.

    Raises:
        InputError: missing or not YAML.
    """
    _, document = _load(_text(path, shown), shown or str(path))
    kind = document.get("schema") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else None


def trusted_yaml(path: Path) -> dict[str, Any]:
    """A file of our own, which the tests have checked: read without its schema, which takes 0.1 s to load."""
    loaded: dict[str, Any] = yaml.load(_text(path), Loader=yaml.CSafeLoader)
    return loaded


def _load(text: str, where: str) -> tuple[Any, Any]:
    try:
        return yaml.compose(text, Loader=yaml.CSafeLoader), yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that no calendar has
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or (str(error).splitlines() or ["cannot be read"])[0]
        raise InputError(
            f"not YAML: {problem}",
            where=f"{where}:{mark.line + 1 if mark else 1}",
            hints=("put text that holds ': ', '#' or a leading quote, '@' or '*' in quotes",),
        ) from error


def _text(path: Path, shown: str | None = None) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(
            f"cannot read the recipe: {reason}",
            where=shown or str(path),
            hints=("check the path; it counts from here",),
        ) from error


def _problems(document: dict[str, Any], node: Any, kind: str) -> list[Problem]:
    import jsonschema  # 0.1 s: only when a file of the user's is read

    validator = jsonschema.Draft202012Validator(schema(kind))
    return [problem for error in validator.iter_errors(document) for problem in _said(node, error)]


def _said(node: Any, error: Any) -> list[Problem]:
    """One schema error as problems: an unknown key each on its own line."""
    here = list(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema.get("additionalProperties"), bool):
        known = list(error.schema.get("properties", {}))
        place = ".".join(str(part) for part in here) or "the file"
        found = []
        for key in error.instance:
            if key not in known:
                close = near(str(key), known, 1)
                guess = f" (did you mean {close[0]!r}?)" if close else ""
                found.append((_key_line(node, here, key), f"unknown key {str(key)!r} in {place}{guess}"))
        return found
    return [(_line(node, here), _words(error))]


def _words(error: Any) -> str:
    """One schema error in words that name the key."""
    where = ".".join(str(part) for part in error.absolute_path) or "the file"
    if error.validator == "required":
        return f"{error.message.replace(' is a required property', '')} is missing in {where}"
    if error.validator == "enum":
        return f"{where} is {error.instance!r}, not one of {', '.join(map(_plain, error.validator_value))}"
    if error.validator == "const":
        return f"{where} is {error.instance!r}, it must be {error.validator_value!r}"
    if error.validator in ("type", "oneOf"):
        return f"{where} is {_short(error.instance)}, it must be {_kinds(error)}"
    if error.validator == "pattern":
        return f"{where} is {_short(error.instance)}, it must look like {error.validator_value}"
    return f"{where}: {error.message}"


_KINDS = MappingProxyType(
    {
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "array": "a list",
        "object": "a mapping",
        "null": "null",
    }
)


def _kinds(error: Any) -> str:
    """The types that a schema wants, as people say them."""
    value = error.validator_value
    parts = [value] if error.validator == "type" else [part.get("type", []) for part in value]
    names = [name for part in parts for name in ([part] if isinstance(part, str) else part)]
    return " or ".join(_KINDS[name] for name in names)


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)


def _line(node: Any, path: Sequence[str | int]) -> int:
    """1-based line of the node at ``path``: of the key where it has one, else of the innermost node there is."""
    line = int(node.start_mark.line) + 1
    for part in path:
        line = _key_line(node, (), part, line)
        child = _child(node, part)
        if child is None:
            break
        if isinstance(node, yaml.SequenceNode):
            line = int(child.start_mark.line) + 1
        node = child
    return line


def _key_line(node: Any, path: Sequence[str | int], key: Any, default: int = 1) -> int:
    """1-based line where ``key`` stands in the mapping at ``path``."""
    for part in path:
        node = _child(node, part) or node
    if isinstance(node, yaml.MappingNode):
        for name, _ in node.value:
            if name.value == str(key):
                return int(name.start_mark.line) + 1
    return default


def _child(node: Any, part: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def _duplicate_keys(node: Any) -> list[Problem]:
    """YAML keeps the last of two equal keys without a word; we refuse both."""
    if isinstance(node, yaml.SequenceNode):
        return [problem for item in node.value for problem in _duplicate_keys(item)]
    if not isinstance(node, yaml.MappingNode):
        return []
    seen: set[str] = set()
    problems = []
    for key, value in node.value:
        if key.value in seen:
            problems.append((int(key.start_mark.line) + 1, f"key {key.value!r} stands here a second time"))
        seen.add(str(key.value))
        problems += _duplicate_keys(value)
    return problems
