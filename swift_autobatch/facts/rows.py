"""Reads json, jsonl and csv files row by row, with the line where each row starts; memory does not grow with rows.

What stops the engine stops us: a line that is not JSON, bytes that are not UTF-8, a csv row with too many cells. The
engine would answer with a traceback from a file loader; these readers name the line, the column and the mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.csv_rows import csv_rows
from swift_autobatch.facts.json_rows import json_rows
from swift_autobatch.facts.lines import Update

SUFFIXES = (".json", ".jsonl", ".csv")


def read_rows(path: Path, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (line, row) for every row of a file; a row of a csv is a dict, of a json file whatever JSON it is.

    Args:
        path: a file with one of ``SUFFIXES``. ``.json`` and ``.jsonl`` are told apart by content, as the engine does.
        update: receives every byte of the file once, in order.

    Raises:
        InputError: file:line and what is wrong, when the engine could not read the file either.
    """
    try:
        with path.open("rb") as stream:
            reader = csv_rows if path.suffix == ".csv" else json_rows
            yield from reader(path, stream, update)
    except OSError as error:
        raise InputError(
            f"cannot read the dataset: {error.strerror or error}",
            where=str(path),
            hints=(f"check the file with: ls -l {path}",),
        ) from error
