"""The dataset card, ``autoswift.data/1``: what a plan needs to know of the data, and not one word of a row.

``autoswift profile --json`` prints it; ``--dataset card.json`` plans with it where the data must not go. Without rows
nothing can be trained, so only ``plan`` and ``render`` take it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.records import DataFacts, Environment, Problem, Row

SCHEMA = "autoswift.data/1"
_HEAD = 400
_KEPT_BACK = ("questions", "persona", "card")  # words of rows, and where the card itself was read from


def dump_card(data: DataFacts) -> dict[str, Any]:
    """A JSON-ready card; the costliest rows are there with their places and figures, without their text."""
    found = asdict(data)
    for name in _KEPT_BACK:
        del found[name]
    for row in found["costliest"]:
        del row["record"]
    found["problem_rows"] = dict(data.problem_rows)
    return {"schema": SCHEMA, **found}


def read_card(paths: tuple[str, ...], env: Environment) -> DataFacts | None:
    """The facts of a card; None when the datasets are data.

    Raises:
        InputError: a card beside other datasets, or one that this version cannot read.
    """
    cards = [path for path in paths if _is_card(Path(env.cwd) / path)]
    if not cards:
        return None
    path = Path(env.cwd) / cards[0]
    if len(paths) > 1:
        raise InputError(
            "a dataset card describes a whole job's data and stands alone",
            where=f"--dataset {' '.join(paths)}",
            hints=("profile all the datasets together: autoswift profile A B --json > card.json",),
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return load_facts(document, str(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"the dataset card cannot be read: {type(error).__name__}: {error}",
            where=str(path),
            hints=("write it again: autoswift profile DATASET --json > card.json",),
        ) from error


def _is_card(path: Path) -> bool:
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    return head.lstrip().startswith(b"{") and b'"schema"' in head and SCHEMA.encode() in head


def load_facts(document: Mapping[str, Any], card: str | None = None) -> DataFacts:
    """Facts from their JSON form, a card's or the whole one of the cache.

    Args:
        card: the card's file, when they come from one.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: a value is missing or of the wrong kind. Keys that are not
            known here are left alone.
    """
    names = {field.name for field in fields(DataFacts)} - {"card"}
    values = {name: value for name, value in document.items() if name in names}
    for name in ("files", "lengths", "kept_by_dataset"):
        values[name] = tuple(values.get(name, ()) if name == "kept_by_dataset" else values[name])
    values["problems"] = tuple(Problem(**problem) for problem in values["problems"])
    values["costliest"] = tuple(Row(**{"record": {}, **row}) for row in values["costliest"])
    counts = values.get("problem_rows", {})
    values["problem_rows"] = tuple((code, times) for code, times in (counts.items() if card else counts))
    values["questions"] = tuple((asked, told) for asked, told in values.get("questions", ()))
    lengths = values["lengths"]
    if not lengths or not all(isinstance(length, int) and length > 0 for length in lengths):
        raise ValueError("'lengths' must be whole numbers above 0")
    if list(lengths) != sorted(lengths):
        raise ValueError("'lengths' must ascend")
    return DataFacts(**values, card=card)
