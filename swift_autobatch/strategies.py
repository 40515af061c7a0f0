"""Loads the strategy table: the YAML files of recipes/ and of a project's autoswift/recipes/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch.errors import UsageError
from swift_autobatch.records import Strategy
from swift_autobatch.tables import near
from swift_autobatch.yaml_file import PROJECT, STRATEGY, kind_of, parse_yaml, read_yaml, trusted_yaml

PROJECT_FOLDER = Path("autoswift") / "recipes"


def shipped_folder() -> Path:
    """Where the shipped recipes are: inside the wheel, or beside the package in a checkout."""
    packaged = Path(__file__).parent / "_recipes"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "recipes"


def load_strategies(project: Path | None = None) -> tuple[Strategy, ...]:
    """The strategy table, by name; a project's file replaces a shipped one of the same name.

    Args:
        project: the project folder; its ``autoswift/recipes/*.yaml`` of the strategy kind are added.

    Raises:
        UsageError: a file breaks the schema, or its name is not its file name.
    """
    found = {path.stem: _strategy(path, trusted_yaml(path)) for path in shipped_folder().glob("*.yaml")}
    # A project keeps project recipes beside strategies; only the first key tells them apart.
    for path in (project / PROJECT_FOLDER).glob("*.yaml") if project else ():
        if kind_of(path) != PROJECT:
            found[path.stem] = read_strategy(path)
    return tuple(found[name] for name in sorted(found))


def read_strategy(path: Path, shown: str | None = None) -> Strategy:
    """Reads and checks one strategy recipe.

    Args:
        shown: the path as the user spelled it, for messages.

    Raises:
        InputError: the file is missing or not YAML.
        UsageError: it breaks the schema (every error at once, with its line), or its name is not its file name.
    """
    return _checked(path, read_yaml(path, STRATEGY, shown=shown))


def copied(found: Strategy, path: Path) -> str:
    """The text of a strategy recipe under the name of another file, checked as that file would be.

    Raises:
        UsageError: the file's name is no name for a strategy.
    """
    text = Path(found.path).read_text(encoding="utf-8")
    lines = [f"name: {path.stem}" if line.startswith("name:") else line for line in text.splitlines()]
    renamed = "\n".join(lines) + "\n"
    _checked(path, parse_yaml(renamed, str(path), STRATEGY))
    return renamed


def _checked(path: Path, raw: Mapping[str, Any]) -> Strategy:
    """What the schema cannot say."""
    if raw["name"] != path.stem:
        raise UsageError(
            f"strategy {raw['name']!r} stands in a file called {path.name}",
            where=f"{path}:1",
            hints=(f"rename the file to {raw['name']}.yaml or the strategy to {path.stem}",),
        )
    both = sorted(set(raw["use"]) & set(raw["search"]))
    if both:
        raise UsageError(
            f"{both[0]!r} is fixed under 'use' and searched under 'search'",
            where=f"{path}:1",
            hints=("keep it in one of the two",),
        )
    return _strategy(path, raw)


def _strategy(path: Path, raw: Mapping[str, Any]) -> Strategy:
    return Strategy(
        name=raw["name"],
        summary=raw["summary"].strip(),
        when=MappingProxyType(raw["when"]),
        use=MappingProxyType(raw["use"]),
        search=_search(raw["search"]),
        because=raw["because"].strip(),
        limits=raw.get("limits", "").strip(),
        example=raw.get("example", "").strip(),
        path=str(path),
    )


def find_strategy(name: str, table: tuple[Strategy, ...], where: str = "--strategy") -> Strategy:
    """The strategy called ``name``.

    Raises:
        UsageError: there is none; the hint names the nearest.
    """
    for strategy in table:
        if strategy.name == name:
            return strategy
    names = [strategy.name for strategy in table]
    close = near(name, names)
    raise UsageError(
        f"no strategy is called {name!r}",
        where=where,
        hints=(f"did you mean {' or '.join(close)}?",) if close else (f"there are: {', '.join(names)}",),
    )


def _search(raw: Mapping[str, Any]) -> Mapping[str, tuple[Any, ...]]:
    # "auto" stands for the powers of two up to what the asked batch needs; candidates.py expands it.
    return MappingProxyType({knob: ("auto",) if values == "auto" else tuple(values) for knob, values in raw.items()})
