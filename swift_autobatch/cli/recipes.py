"""``autoswift recipes``: the strategy table, and the schema check of both kinds of recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swift_autobatch.cli.options import json_option, print_json

if TYPE_CHECKING:
    from swift_autobatch.errors import AutoswiftError


@click.group("recipes")
def command() -> None:
    """List, show and copy strategy recipes; check and compare recipe files.

    A strategy recipe is a row of the planner's table; a YAML file dropped into the project's autoswift/recipes/
    adds one. A project recipe is a decision that a project commits: `--save-recipe` writes it, `--recipe` runs it.
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

    found = find_strategy(name, api.strategies(read_environment()), where=name)
    if as_json:
        print_json(_as_json(found))
    else:
        click.echo(Path(found.path).read_text(encoding="utf-8"), nl=False)


@command.command("cp")
@click.argument("name")
@click.argument("file", required=False)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def cp(name: str, file: str | None, force: bool) -> None:
    """Copy a strategy recipe, to change it.

    It goes to the project's autoswift/recipes/NAME.yaml, where it replaces the shipped one, or to FILE, whose name
    becomes the strategy's.
    """
    from swift_autobatch import api
    from swift_autobatch.request import read_environment

    click.echo(api.copy_strategy(name, read_environment(), file, force=force))


@command.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@json_option
def check(files: tuple[str, ...], as_json: bool) -> None:
    """Check recipe files of both kinds against their schema; nothing else.

    Every error of every file is told at once, with its line. Exit 2 when there is any, 5 when a file cannot be read.
    """
    from swift_autobatch.errors import AutoswiftError
    from swift_autobatch.recipe import check_file

    found: list[dict[str, Any]] = []
    failed: list[AutoswiftError] = []
    for name in files:
        try:
            found.append({"file": name, "kind": check_file(Path(name), name), "errors": []})
        except AutoswiftError as error:
            failed.append(error)
            found.append({"file": name, "kind": None, "errors": list(error.figures) or [error.what]})
    if as_json:
        print_json({"schema": "autoswift.recipes-check/1", "files": found})
    else:
        for one in found:
            if one["kind"]:
                click.echo(f"{one['file']}: {one['kind']}")
    if failed:
        raise _all_of(failed)


@command.command("diff")
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--gpus", metavar="NxCARD", help="Predict both for these cards instead of what the recipes say.")
@click.option("--hardware", metavar="FILE", help="Predict both for the machine of a file: `autoswift env --json`.")
@json_option
def diff(one: str, other: str, as_json: bool, **options: str | None) -> None:
    """Say what two recipes set otherwise, and what that changes in GiB and seconds.

    A and B are project recipes, or anything that `autoswift check` reads, or two strategy recipes.
    """
    from swift_autobatch.cli import show_differences, text
    from swift_autobatch.cli.options import progress_of
    from swift_autobatch.differences import compare
    from swift_autobatch.request import read_environment

    found = compare(one, other, options, read_environment(), progress_of(options))
    if as_json:
        print_json(show_differences.as_json(found))
    else:
        text.page(show_differences.differences(found))


@command.command("schema")
@click.argument("kind", type=click.Choice(["project", "strategy"]), default="project", required=False)
def schema_of(kind: str) -> None:
    """Print the JSON Schema of project or strategy recipes, for an editor that completes and checks them.

    Save it, and start a recipe with:  # yaml-language-server: $schema=recipe.schema.json
    """
    from swift_autobatch.yaml_file import PROJECT, STRATEGY, schema

    print_json(schema(PROJECT if kind == "project" else STRATEGY))


def _all_of(errors: Sequence[AutoswiftError]) -> AutoswiftError:
    """One error that tells what all of them tell."""
    from swift_autobatch.errors import UsageError

    if len(errors) == 1:
        return errors[0]
    worst = next((error for error in errors if isinstance(error, UsageError)), errors[0])
    lines: list[str] = []
    for error in errors:
        lines += [f"{error.where}: {error.what}", *(f"  {figure}" for figure in error.figures)]
    hints = tuple(dict.fromkeys(hint for error in errors for hint in error.hints))
    return type(worst)(f"{len(errors)} of these files are not right", figures=tuple(lines), hints=hints)


def _as_json(found: Any) -> dict[str, Any]:
    fields = ("name", "summary", "when", "use", "search", "because", "limits", "example", "path")
    values = {field: getattr(found, field) for field in fields}
    return {"schema": "autoswift.strategy/1", **{key: _plain(value) for key, value in values.items()}}


def _plain(value: Any) -> Any:
    """Mappings and tuples as JSON has them."""
    if hasattr(value, "items"):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
