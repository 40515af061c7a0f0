"""Project recipes: a decision that a team commits. Reads them into request values; writes them from a plan.

The file's ``request`` is what was asked, its ``planned`` what was decided for one machine class. On the same class
the decision is taken as it stands, so that the same bytes come out; elsewhere it is said and planned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch.records import Recipe
from swift_autobatch.yaml_file import read_yaml

KIND = "autoswift.recipe/1"
Value = str | tuple[str, ...]


def read_recipe(path: Path) -> Recipe:
    """Reads and checks a project recipe.

    Raises:
        InputError: missing or not YAML.
        UsageError: it breaks the schema; every error at once, with its line.
    """
    raw = read_yaml(path, KIND)
    asked = dict(raw["request"] or {})
    planned = raw.get("planned") or {}
    return Recipe(
        path=str(path),
        name=raw.get("name") or path.stem,
        flags=_flags(asked.pop("flags", None)),
        request=MappingProxyType(asked),
        machine_class=planned.get("machine_class"),
        candidate=MappingProxyType(planned["candidate"]) if planned.get("candidate") else None,
        arguments=_flags(planned.get("arguments")),
        digest=planned.get("digest"),
        predicted=MappingProxyType(raw.get("predicted") or {}),
        measured=MappingProxyType(raw.get("measured") or {}),
    )


def _flags(raw: Mapping[str, Any] | None) -> Mapping[str, Value]:
    return MappingProxyType({flag: _engine_text(value) for flag, value in (raw or {}).items()})


def _engine_text(value: Any) -> Value:
    """A YAML value as the engine's command line spells it."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
