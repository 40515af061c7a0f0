"""Why a dataset is refused, in words that a person can act on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.codes import CODES, fix_for
from swift_autobatch.facts.conversation import MESSAGE_COLUMNS, QUERY_COLUMNS, RESPONSE_COLUMNS, Shape, shape_of
from swift_autobatch.facts.tally import Lengths, Problems
from swift_autobatch.records import DataFacts, Problem
from swift_autobatch.tables import near

_NAMED = 8  # places named in one refusal
_DROPPED_SHARE = 0.5  # above it nothing is planned
_SEPARATORS = (";", "\t", "|")
_EXAMPLE = '{"query": "...", "response": "..."}'
_EXAMPLES = {".csv": "who are you?,I am a helper", ".parquet": "a query and a response"}  # a row, where it is no JSON


def column_names(batch: Sequence[tuple[int, Any]]) -> tuple[str, ...]:
    """Every column of some rows, in the order of appearance."""
    return tuple(dict.fromkeys(str(name) for _, row in batch if isinstance(row, dict) for name in row))


def chosen_shape(path: Path, batch: list[tuple[int, Any]]) -> Shape:
    """How to read this file, by the columns of its first rows.

    Raises:
        InputError: there is no column to train on.
    """
    names = list(column_names(batch))
    shape = shape_of(names)
    if shape is not None:
        return shape
    line = batch[0][0]
    if not names:
        raise InputError(
            "the rows are not objects with named columns",
            where=f"{path}:{line}",
            hints=(f"write each row as {example(path)}",),
        )
    raise InputError(
        f"no column to train on: found {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}",
        where=f"{path}:{line}",
        figures=(
            f"questions: {', '.join(QUERY_COLUMNS)}",
            f"answers: {', '.join(RESPONSE_COLUMNS)}",
            f"conversations: {', '.join(MESSAGE_COLUMNS)}",
        ),
        hints=_separator_hints(path, names) or _column_hints(names, batch[0][1]),
    )


def example(path: Path) -> str:
    """A row as a file of this kind holds it."""
    return _EXAMPLES.get(path.suffix, _EXAMPLE)


def _separator_hints(path: Path, names: list[str]) -> tuple[str, ...]:
    """A .csv that is separated otherwise: the engine reads commas, and takes the whole line for one column."""
    found = next((mark for mark in _SEPARATORS if len(names) == 1 and mark in names[0]), None)
    if path.suffix != ".csv" or found is None:
        return ()
    commas = path.with_name(f"{path.stem}.commas.csv")
    old, new, mark = (json.dumps(word, ensure_ascii=False) for word in (str(path), str(commas), found))
    code = (
        f'import csv; rows = csv.reader(open({old}, encoding="utf-8-sig", newline=""), delimiter={mark}); '
        f'csv.writer(open({new}, "w", encoding="utf-8", newline="")).writerows(rows)'
    )
    named = {"\t": "tabs"}.get(found, repr(found))
    return (
        f"its columns are separated by {named}, the engine reads commas; this writes a copy with those: "
        f"python -c {shlex.quote(code)}",
    )


def _column_hints(names: list[str], row: Any) -> tuple[str, ...]:
    inner = [name for name, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(names) <= 2 and inner:
        return (f"the rows are inside {inner[0]!r}: save that list alone as the file",)
    known = [*QUERY_COLUMNS, *RESPONSE_COLUMNS, *MESSAGE_COLUMNS]
    renames = [f"rename column {name!r} to {close[0]!r}" for name in names if (close := near(name, known, 1, 0.7))]
    return tuple(renames[:2]) or ("rename the question column to 'query' and the answer column to 'response'",)


def unfit(data: DataFacts) -> InputError | None:
    """Why nothing is planned for data that can be read: what it would teach is hardly what anyone wants."""
    return _mostly_dropped(data) or _unfilled(data)


def _unfilled(data: DataFacts) -> InputError | None:
    """Rows that would teach the model to say ``{{NAME}}``."""
    first = next((problem for problem in data.problems if problem.code == "placeholder"), None)
    if first is None:
        return None
    times = dict(data.problem_rows).get("placeholder", 1)
    return InputError(
        f"{times} rows hold {{{{NAME}}}} or {{{{AUTHOR}}}}, which the model would learn to say",
        where=f"{first.file}:{first.line}",
        figures=("the engine fills --model_name and --model_author in for its own self-cognition set only",),
        hints=(
            f"autoswift profile {first.file} --repair named.jsonl --model_name NAME --model_author AUTHOR",
            "or put the names into the file",
        ),
    )


def _mostly_dropped(data: DataFacts) -> InputError | None:
    """The engine would silently drop more than half."""
    dropped = data.rows - data.kept
    first = next((problem for problem in data.problems if problem.drops_row), None)
    if first is None or dropped <= data.rows * _DROPPED_SHARE:
        return None
    codes = {problem.code for problem in data.problems if problem.drops_row}
    counts = [f"{code}: {times} rows ({CODES[code].means})" for code, times in data.problem_rows if code in codes]
    return InputError(
        f"{dropped} of {data.rows} rows would be dropped without a word, the first: {first.text}",
        where=f"{first.file}:{first.line}",
        figures=tuple(counts),
        hints=(fix_for(first.code, first.file, first.line), *_repairs([first])),
    )


def _repairs(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The command that mends the files, where it can."""
    first = next((problem for problem in problems if CODES[problem.code].repairs), None)
    if first is None:
        return ()
    return (f"autoswift profile {first.file} --repair clean.jsonl writes a clean copy and a list of what changed",)


def all_cut(problems: Problems, lengths: Lengths) -> InputError:
    """Every row loses its answer to ``--max_length``."""
    first = next(problem for problem in problems.all() if problem.code == "cut-answer")
    half, most = lengths.percentile(0.5), lengths.longest
    return InputError(
        f"not one of {round(lengths.total())} rows keeps a token to learn from: {first.text}",
        where="--max_length",
        figures=(f"rows have {half} tokens in the middle, {most} at most (first: {first.file}:{first.line})",),
        hints=(
            f"--max_length {max(most, lengths.bound)} cuts no row",
            "--truncation_strategy left cuts the question instead",
        ),
    )


def unloadable(problems: Sequence[Problem]) -> InputError:
    """Why the engine could not load the files: the first place, and all the others."""
    first, *others = problems
    return InputError(
        first.text,
        where=f"{first.file}:{first.line}",
        figures=tuple(f"{Path(other.file).name}:{other.line}: {other.text}" for other in others[:_NAMED])
        + ((f"and {len(others) - _NAMED} more",) if len(others) > _NAMED else ()),
        hints=(fix_for(first.code, first.file, first.line), *_repairs(problems)),
    )


def no_rows(path: Path) -> InputError:
    """The file, or every file of the folder, holds no row at all."""
    if path.is_dir():
        hint = f"put a file into it with one JSON object a line, such as {_EXAMPLE}"
        return InputError("the dataset has no rows", where=str(path), hints=(hint,))
    with path.open("rb") as stream:
        head = stream.read(4096)
    hints = {
        ".csv": f"write the line query,response into it and below it rows such as {example(path)}"
        if not head.strip()
        else f"it has a line of names and nothing below it: add rows such as {example(path)}",
        ".json": f"write a list of objects into it, such as [{_EXAMPLE}]",
        ".txt": "write one text a line into it",
        ".parquet": "write it with at least one row: a query and a response",
    }
    return InputError(
        "the dataset has no rows" if head else "the dataset is empty",
        where=str(path),
        hints=(hints.get(path.suffix, f"write one JSON object a line into it, such as {_EXAMPLE}"),),
    )


def none_left(problems: Sequence[Problem], rows: int) -> InputError:
    """The engine would drop every row."""
    first = next(problem for problem in problems if problem.drops_row)
    return InputError(
        f"none of the {rows} rows can be trained: {first.text}",
        where=f"{first.file}:{first.line}",
        hints=(f"make line {first.line} read: {example(Path(first.file))}",),
    )
