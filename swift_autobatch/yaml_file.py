"""Reads one of our YAML kinds against its JSON Schema and tells every error at once, each with its line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from swift_autobatch.errors import AutoswiftError, InputError, UsageError
from swift_autobatch.tables import DATA, near

_SCHEMAS = MappingProxyType({"autoswift.strategy/1": "strategy-1.json", "autoswift.recipe/1": "recipe-1.json"})


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a YAML kind by its ``schema`` value, as published in data/schemas."""
    loaded: dict[str, Any] = json.loads((DATA / "schemas" / _SCHEMAS[name]).read_text(encoding="utf-8"))
    return loaded


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """Reads ``path`` as the YAML kind ``kind`` (``autoswift.strategy/1``).

    Raises:
        InputError: the file is missing, unreadable or not YAML (file:line).
        UsageError: it breaks the schema; ``figures`` holds every error with its line.
    """
    text = _text(path)
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
        document = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "cannot be read"
        raise InputError(f"not YAML: {problem}", where=f"{path}:{line}") from error
    if not isinstance(document, dict):
        raise UsageError(
            f"a {kind} file is a mapping, this is {type(document).__name__}",
            where=f"{path}:1",
            hints=(f"start it with 'schema: {kind}'",),
        )
    duplicates = _duplicate_keys(node)
    problems = duplicates + _problems(document, node, kind)
    if problems:
        raise _refusal(path, kind, problems)
    return document


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"cannot read the recipe: {reason}", where=str(path)) from error


def _refusal(path: Path, kind: str, problems: list[tuple[int, str]]) -> AutoswiftError:
    lines = sorted(set(problems))
    count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    return UsageError(
        f"{count} in this {kind} file",
        where=f"{path}:{lines[0][0]}",
        figures=tuple(f"line {line}: {text}" for line, text in lines),
        hints=("'autoswift recipes show NAME' prints one that works",),
    )


def _problems(document: dict[str, Any], node: Any, kind: str) -> list[tuple[int, str]]:
    import jsonschema  # 0.1 s: only when a file is read

    validator = jsonschema.Draft202012Validator(schema(kind))
    return [(_line(node, error.absolute_path, error), _words(error)) for error in validator.iter_errors(document)]


def _words(error: Any) -> str:
    """One schema error in words that name the key, and the near names of an unknown one."""
    where = ".".join(str(part) for part in error.absolute_path) or "the file"
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        unknown = [key for key in error.instance if key not in known]
        close = near(str(unknown[0]), known, 1)
        return f"unknown key {unknown[0]!r} in {where}" + (f" (did you mean {close[0]!r}?)" if close else "")
    if error.validator == "required":
        return f"{error.message.replace(' is a required property', '')} is missing in {where}"
    if error.validator == "enum":
        return f"{where} is {error.instance!r}, not one of {', '.join(map(str, error.validator_value))}"
    if error.validator == "const":
        return f"{where} is {error.instance!r}, it must be {error.validator_value!r}"
    if error.validator == "type":
        return f"{where} is {error.instance!r}, it must be of type {error.validator_value}"
    return f"{where}: {error.message}"


def _line(node: Any, path: Any, error: Any) -> int:
    """1-based line of the node at ``path``; an unknown key's own line where there is one."""
    for part in path:
        node = _child(node, part) or node
    if error.validator == "additionalProperties" and isinstance(node, yaml.MappingNode):
        known = error.schema.get("properties", {})
        for key, _ in node.value:
            if key.value not in known:
                return int(key.start_mark.line) + 1
    return int(node.start_mark.line) + 1


def _child(node: Any, part: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def _duplicate_keys(node: Any) -> list[tuple[int, str]]:
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
