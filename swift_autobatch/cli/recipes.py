"""``autoswift recipes``: the strategy table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swift_autobatch.cli.options import json_option, print_json


@click.group("recipes")
def command() -> None:
    """List and show strategy recipes.

    A YAML file dropped into the project's autoswift/recipes/ adds a strategy.
    """


@command.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List the strategies."""
    from swift_autobatch import api
    from swift_autobatch.cli import show_machine, text
    from swift_autobatch.request import read_environment

    table = api.strategies(read_environment())
    if as_json:
        rows = [{"name": row.name, "summary": row.summary, "path": row.path} for row in table]
        print_json({"schema": "autoswift.strategies/1", "strategies": rows})
    else:
        text.page(show_machine.strategies(table))


@command.command("show")
@click.argument("name")
@json_option
def show_one(name: str, as_json: bool) -> None:
    """Print one strategy recipe as it is written."""
    from swift_autobatch import api
    from swift_autobatch.request import read_environment
    from swift_autobatch.strategies import find_strategy

    found = find_strategy(name, api.strategies(read_environment()))
    if as_json:
        print_json(_as_json(found))
    else:
        click.echo(Path(found.path).read_text(encoding="utf-8"), nl=False)


def _as_json(found: Any) -> dict[str, Any]:
    fields = ("name", "summary", "when", "use", "search", "because", "limits", "example", "path")
    values = {field: getattr(found, field) for field in fields}
    return {"schema": "autoswift.strategy/1", **{key: _plain(value) for key, value in values.items()}}


def _plain(value: Any) -> Any:
    """Mappings and tuples as JSON has them."""
    if hasattr(value, "items"):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
