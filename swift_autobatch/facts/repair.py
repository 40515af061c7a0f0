"""Writes a clean copy of a dataset as JSON lines, and a list of what changed; the data themselves stay as they are.

What a row was meant to be is put right where that is no guess; a row that the engine would drop, or that teaches
nothing, is left out. Where rows come in several forms, or a column changes its kind, all are written as ``messages``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.facts.checks import explained
from swift_autobatch.facts.codes import CODES
from swift_autobatch.facts.conversation import RowError, Shape, conversation
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.refusals import chosen_shape
from swift_autobatch.facts.schema import Schema
from swift_autobatch.facts.spelling import Pins, Source, resolve
from swift_autobatch.facts.tidy import Change, Tidy
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment

_FIRST = 512  # rows whose columns decide how a dataset is read
_FORMS = frozenset({"mixed-schema", "late-column", "late-type", "type-drift"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a repair did. ``changes`` counts rows by code; ``deleted`` of them are not in the copy."""

    out: str
    list_of_changes: str
    rows: int
    written: int
    deleted: int
    changes: Mapping[str, int]
    rewritten: bool  # every row as messages


def repair(
    paths: tuple[str, ...], out: str, env: Environment, *, progress: Progress, pins: Pins | None = None, force: bool
) -> Repaired:
    """Writes a copy of the datasets that the engine loads whole and trains row for row.

    Args:
        paths: datasets as the user spelled them; all go into the one copy.
        out: the copy, a .jsonl file; ``out.changes.jsonl`` beside it lists (file, line, code, what was done).
        env: the folder that paths are relative to.
        pins: engine flags: columns; model_name and model_author fill in ``{{NAME}}`` and ``{{AUTHOR}}``.
        force: overwrite a copy that is there.

    Raises:
        UsageError: ``out`` is no new .jsonl file.
        InputError: a dataset cannot be opened, or no row of it can be saved.
    """
    target = Path(env.cwd) / out
    listed = target.with_name(target.name + ".changes.jsonl")
    sources = [resolve(path, env, pins) for path in paths]
    _check(target, listed, sources, force)
    forms = set().union(*(_forms(source) for source in sources))
    rewritten = bool(forms & _FORMS) or len(forms) > 1
    try:
        with ExitStack() as stack:
            rows, changes = (_Draft(path, stack) for path in (target, listed))
            counts = _write(sources, Tidy(pins or {}, as_messages=rewritten), rows, changes, progress)
            if not rewritten and counts["written"] and not _sound(rows):
                rewritten = True  # the columns of rows that were left out decided how the others are read
                counts = _write(sources, Tidy(pins or {}, as_messages=True), rows, changes, progress)
            if not counts["written"]:
                raise InputError(
                    f"none of the {counts['rows']} rows can be saved",
                    where=str(sources[0].path),
                    hints=("autoswift profile shows why each row is refused",),
                )
            rows.keep()
            changes.keep()
    finally:
        progress.clear()
    return Repaired(
        out=str(target),
        list_of_changes=str(listed),
        rows=counts["rows"],
        written=counts["written"],
        deleted=counts["rows"] - counts["written"],
        changes=MappingProxyType({code: times for code, times in counts.items() if code in CODES}),
        rewritten=rewritten,
    )


def _write(
    sources: list[Source], tidy: Tidy, row_draft: _Draft, change_draft: _Draft, progress: Progress
) -> Counter[str]:
    """Writes both files from their start. Returns rows read and written, and changes by code."""
    counts: Counter[str] = Counter()
    rows, changes = row_draft.restarted(), change_draft.restarted()
    for source in sources:
        for file, line, shape, row in _read(source):
            done: list[Change]
            if isinstance(row, Fault):
                if row.code in _LEFT:
                    continue
                counts["rows"] += row.loses
                kept, done = None, [Change(row.code, "deleted" if row.loses else "mended", row.text)]
            else:
                counts["rows"] += 1
                kept, done = tidy.row(row, shape, file, line)
            counts.update(change.code for change in done)
            for change in done:
                entry = {"file": file, "line": line, "code": change.code, "action": change.action, "text": change.text}
                changes.write(json.dumps(entry, ensure_ascii=False) + "\n")
            if kept is not None:
                rows.write(_dumped(kept, file, line) + "\n")
                counts["written"] += 1
            if counts["rows"] % 1000 == 0:
                progress.update(f"repairing {source.path.name}: {counts['rows']} rows")
    return counts


def _sound(draft: _Draft) -> bool:
    """Whether the engine would load a copy and keep every row of it."""
    draft.stream.flush()
    source = Source(name=str(draft.draft), path=draft.draft, files=(draft.draft,))
    try:
        for _, _, shape, row in _read(source):
            if isinstance(row, Fault):
                if CODES[row.code].severity != "warns":
                    return False
            else:
                conversation(row, shape)
    except (RowError, InputError):
        return False
    return True


def _read(source: Source) -> Iterator[tuple[str, int, Shape, Any]]:
    """Yields (file, line, how the dataset is read, row or Fault)."""
    schema = Schema()
    entries = ((file, line, row) for file in source.files for line, row in source.rows(file, _nothing, schema))
    head = list(islice(entries, _FIRST))
    records = [(line, row) for _, line, row in head if not isinstance(row, Fault)]
    shape = chosen_shape(source.files[0], records) if records else _any_shape()
    for file, line, row in chain(head, entries):
        yield str(file), line, shape, row


# Told of rows that stay as they are: nobody but the author can say what was meant.
_LEFT = frozenset(code for code, entry in CODES.items() if entry.severity == "warns" and not entry.repairs) | {
    "control-character"
}  # taken out, and reported, by tidy.py


def _forms(source: Source) -> set[str]:
    """What decides the form of the copy: the codes of _FORMS that the rows show, and how the dataset is read."""
    found: set[str] = set()
    for _, _, shape, row in _read(source):
        if isinstance(row, Fault):
            found.add(row.code)
            continue
        found.add(shape.reading)
        try:
            conversation(row, shape)
        except RowError as error:
            found.add(explained(error, row, shape).code)
        except RecursionError:
            continue
    return found & (_FORMS | {"messages", "alpaca", "pairs"})


def _any_shape() -> Shape:
    return Shape(reading="pairs", rename=MappingProxyType({}))


def _nothing(_: bytes) -> None:
    """No digest is taken."""


def _dumped(row: Any, file: str, line: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the row cannot be written as JSON: {error}",
            where=f"{file}:{line}",
            hints=("write images and other bytes to files of their own and name the files in the rows",),
        ) from error


class _Draft:
    """A file under a temporary name, which it loses when it is kept and dies with when it is not."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self.draft = path.with_name(f".{os.getpid()}.{path.name}")  # the suffix says how it is read
        try:
            self.stream: TextIO = stack.enter_context(self.draft.open("w", encoding="utf-8"))
        except OSError as error:
            raise UsageError(
                f"cannot write there: {error.strerror}", where="--repair", hints=(f"check the folder {path.parent}",)
            ) from error
        stack.callback(lambda: self.draft.unlink(missing_ok=True))

    def restarted(self) -> TextIO:
        """The stream, empty."""
        self.stream.seek(0)
        self.stream.truncate()
        return self.stream

    def keep(self) -> None:
        self.stream.flush()
        self.draft.replace(self._path)


def _check(target: Path, listed: Path, sources: list[Source], force: bool) -> None:
    if target.suffix != ".jsonl":
        raise UsageError(
            f"the copy is written as JSON lines, and {target.name!r} is no name for them",
            where="--repair",
            hints=(f"--repair {target.with_suffix('.jsonl').name}",),
        )
    if any(target == file for source in sources for file in source.files):
        raise UsageError(
            "the copy would replace the data: nothing is changed in place",
            where="--repair",
            hints=(f"--repair {target.stem}.clean.jsonl",),
        )
    taken = next((path for path in (target, listed) if path.exists()), None)
    if taken and not force:
        raise UsageError(f"{taken} exists", where="--repair", hints=("--force overwrites it", "give another name"))
