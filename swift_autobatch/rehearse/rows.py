"""The rows of a rehearsal: short ones among the first of the user's own."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.rows import read_rows

FILE = "rows.jsonl"
_LOOKED_AT = 256
_KEPT = 32


def first_rows(files: tuple[str, ...]) -> str:
    """JSON lines of up to 32 of the first 256 rows of the first file: the shortest, in their order.

    Rows are taken whole and as they stand, so that the engine reads them by the same columns.

    Raises:
        InputError: the file cannot be read, or holds no row.
    """
    found: list[tuple[int, Any]] = [
        (number, row)
        for number, (_, row) in enumerate(islice(read_rows(Path(files[0]), lambda _: None), _LOOKED_AT))
        if isinstance(row, dict) and row
    ]
    texts = {number: json.dumps(row, ensure_ascii=False, default=str) for number, row in found}
    kept = sorted(sorted(texts, key=lambda number: len(texts[number]))[:_KEPT])
    if not kept:
        raise InputError("there is no row to rehearse with", where=files[0], hints=("pass rows: --dataset FILE.jsonl",))
    return "".join(texts[number] + "\n" for number in kept)
