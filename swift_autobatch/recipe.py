"""Project recipes: a decision that a team commits. Reads the file; ``render/recipe_yaml.py`` writes it.

The file's ``request`` is what was asked, its ``planned`` what was decided for one machine class. On the same class
the decision is taken as it stands, so that the same bytes come out; elsewhere it is said and planned again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch import engine_flags
from swift_autobatch.engine_flags import OWNED, Value
from swift_autobatch.errors import UsageError
from swift_autobatch.records import Recipe, Sourced
from swift_autobatch.strategies import read_strategy
from swift_autobatch.tables import dialect
from swift_autobatch.yaml_file import PROJECT, STRATEGY, Problem, kind_of, read_yaml

# The keys of ``request`` that are options of ours; all others of a layer are engine flags.
_OURS = ("model", "dataset", "strategy", "parallel_method", "prefer", "global_batch", "lr_scaling", "lr_base", "nproc")


def read_recipe(path: Path, shown: str | None = None) -> Recipe:
    """Reads and checks a project recipe.

    Args:
        shown: the path as the user spelled it, for messages.

    Raises:
        InputError: missing or not YAML.
        UsageError: it breaks the schema or holds flags that the engine does not know; every error at once, each
            with its line.
    """
    raw = read_yaml(path, PROJECT, _check_flags, shown)
    asked = dict(raw["request"] or {})
    planned = raw.get("planned") or {}
    edited = _edited(asked, planned)
    return Recipe(
        path=shown or str(path),
        name=raw.get("name") or path.stem,
        flags=_flags(asked.pop("flags", None)),
        request=MappingProxyType(asked),
        machine_class=planned.get("machine_class"),
        candidate=MappingProxyType(planned["candidate"]) if planned else None,
        arguments=_flags(planned.get("arguments")),
        digest=planned.get("digest"),
        predicted=MappingProxyType(raw.get("predicted") or {}),
        measured=MappingProxyType(raw.get("measured") or {}),
        engine=planned.get("engine"),
        environment=MappingProxyType(planned.get("environment") or {}),
        deepspeed=planned.get("deepspeed"),
        fsdp=planned.get("fsdp"),
        data=MappingProxyType(planned.get("data") or {}),
        edited=edited,
    )


def layer(recipe: Recipe) -> dict[str, Sourced[Value]]:
    """The recipe's request as settings by name, below ``AUTOSWIFT_*`` and flags."""
    source = f"recipe {recipe.path}"
    asked: dict[str, Sourced[Value]] = {}
    for name in _OURS:
        value = recipe.request.get(name)
        if value is not None:
            asked[name] = Sourced(value=_engine_text(value), source=source)
    return {**asked, **{flag: Sourced(value=value, source=source) for flag, value in recipe.flags.items()}}


def request_digest(request: Mapping[str, Any]) -> str:
    """sha256 of a ``request``, the same for equal ones: ``2048`` is ``"2048"``, null is absent."""
    plain = {key: _engine_text(value) for key, value in request.items() if value is not None and key != "flags"}
    return _sha({**plain, "flags": dict(_flags(request.get("flags")))})


def planned_digest(planned: Mapping[str, Any]) -> str:
    """sha256 of a ``planned`` section without the digest itself."""
    return _sha({key: value for key, value in planned.items() if key != "planned_digest"})


def _sha(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _edited(request: Mapping[str, Any], planned: Mapping[str, Any]) -> tuple[str, ...]:
    """The sections that were edited since autoswift wrote them."""
    if not planned:
        return ()
    now = {"request": request_digest(request), "planned": planned_digest(planned)}
    return tuple(section for section, digest in now.items() if planned.get(f"{section}_digest") != digest)


def check_file(path: Path, shown: str | None = None) -> str:
    """Checks a file of either kind against its schema; returns the kind (``autoswift.recipe/1``).

    Args:
        shown: the path as the user spelled it, for messages.

    Raises:
        InputError: missing or not YAML.
        UsageError: every error at once, each with its line; or the file says no kind.
    """
    kind = kind_of(path, shown)
    if kind == PROJECT:
        read_recipe(path, shown)
    elif kind == STRATEGY:
        read_strategy(path, shown)
    else:
        said = "has no 'schema:' line" if kind is None else f"says schema: {kind}"
        raise UsageError(
            f"no recipe of this version: it {said}",
            where=f"{shown or path}:1",
            hints=(f"start it with 'schema: {STRATEGY}' or 'schema: {PROJECT}'",),
        )
    return kind


def _check_flags(document: dict[str, Any], line: Callable[[Sequence[str | int]], int]) -> list[Problem]:
    """Engine flags that the engine does not know, or with a value that it would not take."""
    return [
        (line((section, key, flag)), problem)
        for section, key, owned in (("request", "flags", False), ("planned", "arguments", True))
        for flag, value in _mapping(_mapping(document.get(section)).get(key)).items()
        for problem in _flag_problem(str(flag), value, owned)
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _flag_problem(name: str, value: Any, owned: bool) -> list[str]:
    if owned and name in OWNED:
        return []
    if not owned and name in _OURS:
        return [f"{name} stands directly under request, not under its flags"]
    try:
        flag = engine_flags.find(name, dialect())
        if isinstance(value, (dict, type(None))) or value == []:
            return []  # the schema has said it
        engine_flags.check(flag, engine_flags.text(_engine_text(value)), where=name)
    except UsageError as error:
        return [f"{error.what} ({error.hints[0]})" if error.hints else error.what]
    return []


def _flags(raw: Mapping[str, Any] | None) -> Mapping[str, Value]:
    return MappingProxyType({flag: _engine_text(value) for flag, value in (raw or {}).items()})


def _engine_text(value: Any) -> Value:
    """A YAML value as the engine's command line spells it."""
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
