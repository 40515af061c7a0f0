"""What a repair did, in a few lines."""

from __future__ import annotations

from pathlib import Path

from swift_autobatch.cli import text
from swift_autobatch.facts.codes import CODES
from swift_autobatch.facts.repair import Repaired

_SPACE = "  "


def repaired(done: Repaired) -> list[str]:
    """The copy, the list of changes, and how many rows each kind of problem touched."""
    form = ", all written as messages" if done.rewritten else ""
    lines = [
        f"{done.written:,} of {done.rows:,} rows written to {done.out}{form}",
        f"{sum(done.changes.values()):,} changes, {done.deleted:,} rows left out: {done.list_of_changes}",
    ]
    width = max((len(code) for code in done.changes), default=0)
    for code, times in sorted(done.changes.items(), key=lambda entry: (-entry[1], entry[0])):
        lines += text.wrapped(
            CODES[code].means, text.width(), _SPACE * 2 + " " * (width + 10), f"{_SPACE}{code:<{width}} {times:>8,}  "
        )
    return [*lines, f"train on it: autoswift sft --dataset {Path(done.out)}"]
