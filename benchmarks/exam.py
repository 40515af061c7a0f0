"""What the memory and the speed exam do alike: read the cases, write a prediction a line, fail on a missed target."""

from __future__ import annotations

import argparse
import collections
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Row = dict[str, Any]


def options(promise: str | None) -> argparse.ArgumentParser:
    """The command line of an exam.

    Args:
        promise: the docstring of its module, shown by --help.
    """
    parser = argparse.ArgumentParser(description=promise, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worst", type=int, default=20)
    return parser


def read(path: Path) -> list[Row]:
    """One object for each line of a file of cases or predictions."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def write(path: Path, answers: Iterable[Mapping[str, Any]]) -> None:
    """One prediction a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in answers), encoding="utf-8")


def show_skipped(rows: Iterable[Row]) -> None:
    """Why cases were skipped, the most frequent reason first."""
    skipped = collections.Counter(row["skipped"] for row in rows if "skipped" in row)
    for why, times in skipped.most_common():
        print(f"  skipped {times}: {why}")


def as_json(found: Mapping[str, Any]) -> None:
    """The score for programs."""
    json.dump(found, sys.stdout, indent=1)
    print()


def verdict(misses: Sequence[str]) -> int:
    """Names every missed target.

    Returns:
        the exit code: 1 where there is one, else 0.
    """
    for words in misses:
        print(f"missed: {words}", file=sys.stderr)
    return 1 if misses else 0
