"""Streams a dataset once into lengths, costliest rows and problems; memory does not grow with rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.codes import fix_for
from swift_autobatch.facts.cognition import Cognition
from swift_autobatch.facts.conversation import (
    MESSAGE_COLUMNS,
    QUERY_COLUMNS,
    RESPONSE_COLUMNS,
    Conversation,
    RowError,
    Shape,
    conversation,
    shape_of,
)
from swift_autobatch.facts.embedded import default_dataset
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.rows import read_rows
from swift_autobatch.facts.spelling import Source, resolve
from swift_autobatch.facts.tally import Dearest, Lengths, Problems
from swift_autobatch.facts.templates import render
from swift_autobatch.facts.tokens import Count, Counter, counter_for
from swift_autobatch.progress import Progress
from swift_autobatch.records import DataFacts, Environment, ModelFacts, Problem
from swift_autobatch.tables import near

_NAMED = 8  # places named in one refusal
_BATCH = 512  # rows tokenized together; also the rows whose columns decide how a file is read


def read_dataset(
    paths: tuple[str, ...], model: ModelFacts, env: Environment, *, system: str | None, progress: Progress
) -> DataFacts:
    """Reads every row once, as ms-swift 4.6 would, and says what training on it means.

    Args:
        paths: files as the user spelled them, relative to ``env.cwd``; () means the embedded dataset.
        model: gives the chat template and the tokenizer that count the tokens.
        system: ``--system``, the prompt of rows that carry none; None: the template's own default.
        progress: told how many rows have been read.

    Returns:
        Lengths in tokens per row after the chat template and before any cut, supervised tokens as the engine labels
        them, the 64 costliest rows, and every row that will not train as hoped. A dataset whose every label is masked
        is described, not refused: ``mean_supervised_tokens`` is 0 then, and the dry run refuses it.

    Raises:
        InputError: file:line and a fix, when the engine could not read the file or would drop every row.
    """
    sources = [resolve(path, env) for path in paths or (str(default_dataset()),)]
    prompt = _system_text(system, env)
    reading = _Reading(model=model, counter=counter_for(model), system=prompt, progress=progress)
    try:
        for source in sources:
            reading.read(source)
    finally:
        progress.clear()
    return reading.facts(tuple(str(source.path) for source in sources))


def _system_text(system: str | None, env: Environment) -> str | None:
    """``--system`` as the engine reads it: the text of a .txt file, or the text itself with \\n as line breaks."""
    if system is None or not system.endswith(".txt"):
        return system and system.replace("\\n", "\n")
    path = Path(env.cwd) / system
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the system prompt's file cannot be read: a value that ends in .txt names a file",
            where="--system",
            hints=(f"create {path}", "or give the prompt itself"),
        ) from error


# ------------------------------------------------------------------------------------------------------ reading


class _Reading:
    """The state of one pass over all files."""

    def __init__(self, *, model: ModelFacts, counter: Counter, system: str | None, progress: Progress) -> None:
        self._model = model
        self._counter = counter
        self._system = system
        self._progress = progress
        self._hash = hashlib.sha256()
        self._lengths = Lengths()
        self._dearest = Dearest()
        self._problems = Problems()
        self._cognition = Cognition()
        self._supervised = 0
        self._max_supervised = 0
        self._min_prompt: int | None = None
        self._profiled = 0
        self._plain = True
        self._media = 0
        self._own_system = False
        self._rows = 0
        self._kept = 0

    def read(self, source: Source) -> None:
        rows = read_rows(source.path, self._hash.update)
        shape: Shape | None = None
        seen = kept = 0
        while found := list(islice(rows, _BATCH)):
            batch = [(line, row) for line, row in found if not isinstance(row, Fault)]
            lost = self._faults(str(source.path), found)
            if shape is None and batch:
                shape = _shape(source.path, batch)
                self._clash(str(source.path), batch[0][0], shape)
            kept += self._batch(str(source.path), batch, shape) if shape else 0
            seen += len(batch) + lost
            self._progress.update(f"reading {source.path.name}: {seen} rows")
        if not seen and not self._problems.stopping():
            raise _no_rows(source.path)
        if source.sample is not None:
            drawn = f"trains {source.sample} rows drawn from {seen}; lengths describe all of them"
            self._problems.add("sampled", str(source.path), 1, drawn, drops_row=False)
            seen, kept = source.sample, round(source.sample * kept / seen)
        self._rows += seen
        self._kept += kept

    def _faults(self, file: str, found: list[tuple[int, Any]]) -> int:
        """Notes what is wrong with the file itself. Returns how many rows could not be read for it."""
        faults = [(line, fault) for line, fault in found if isinstance(fault, Fault)]
        for line, fault in faults:
            self._problems.add(fault.code, file, line, fault.text, drops_row=fault.loses)
        return sum(fault.loses for _, fault in faults)

    def _clash(self, file: str, line: int, shape: Shape) -> None:
        if shape.clash:
            text = f"columns {', '.join(shape.clash)} mean the same thing: the engine uses none of them, rename one"
            self._problems.add("ambiguous-columns", file, line, text, drops_row=False)

    def _batch(self, file: str, batch: list[tuple[int, Any]], shape: Shape) -> int:
        """Profiles some rows. Returns how many the engine will train on."""
        ready = []
        for line, record in batch:
            try:
                talk = conversation(record, shape)
                pieces = render(talk, self._counter.template, self._system, self._counter.eos_text)
            except RowError as error:
                self._problems.add(error.code, file, line, error.text, drops_row=True)
                continue
            except RecursionError:
                self._problems.add("not-text", file, line, "brackets are nested too deeply", drops_row=True)
                continue
            ready.append((line, record, talk, pieces))
        counts = self._counter.count([pieces for *_, pieces in ready])
        for (line, record, talk, _), count in zip(ready, counts, strict=True):
            self._row(file, line, record, talk, count)
        return len(ready)

    def _row(self, file: str, line: int, record: Any, talk: Conversation, count: Count) -> None:
        self._profiled += 1
        self._lengths.add(count.tokens, count.planned, count.bound)
        self._supervised += count.supervised
        self._max_supervised = max(self._max_supervised, count.supervised_planned)
        self._min_prompt = count.prompt if self._min_prompt is None else min(self._min_prompt, count.prompt)
        self._dearest.add(file, line, count.planned, count.supervised_planned, record)
        self._plain = self._plain and talk.plain
        self._media += talk.media
        self._own_system = self._own_system or talk.system is not None
        for code, text in self._doubts(talk, count):
            self._problems.add(code, file, line, text, drops_row=False)

    def _doubts(self, talk: Conversation, count: Count) -> Iterator[tuple[str, str]]:
        """What the engine trains without a word although it is hardly meant."""
        answers = [turn for turn in talk.turns if turn.role == "assistant"]
        if not answers:
            yield "no-assistant-turn", "no answer to learn from: the engine trains the row with every label masked"
        elif not any(turn.content.strip() for turn in answers):
            yield "empty-answer", "the answer is empty: the row teaches the model to say nothing"
        elif count.supervised == 0:
            yield "masked", "the row switches its loss off: every label is masked"
        if self._cognition.add(talk):
            yield "placeholder", "{{NAME}} or {{AUTHOR}} is trained as it stands: the engine fills it in hub data only"
        if 0 < self._model.max_position < count.tokens:
            yield (
                "over-context",
                f"{count.tokens} tokens exceed the model's context of {self._model.max_position}: cut or dropped",
            )

    def facts(self, files: tuple[str, ...]) -> DataFacts:
        """The finished record.

        Raises:
            InputError: not one row is left.
        """
        problems = self._problems.all()
        if stopping := self._problems.stopping():
            raise _unloadable(stopping)
        if not self._profiled or not self._kept:
            first = next(problem for problem in problems if problem.drops_row)
            raise InputError(
                f"none of the {self._rows} rows can be trained: {first.text}",
                where=f"{first.file}:{first.line}",
                hints=(f"make line {first.line} read: {_EXAMPLE}",),
            )
        lengths, cognition = self._lengths, self._cognition
        taught = cognition.taught()
        return DataFacts(
            files=files,
            rows=self._rows,
            kept=self._kept,
            problems=problems,
            lengths=lengths.sketch(),
            p50_tokens=lengths.percentile(0.5),
            p95_tokens=lengths.percentile(0.95),
            max_tokens=lengths.longest,
            bound_tokens=lengths.bound if lengths.bound > lengths.longest else 0,
            media_rows=self._media,
            mean_tokens=lengths.mean(),
            mean_supervised_tokens=self._supervised / self._profiled,
            max_supervised_tokens=self._max_supervised,
            min_prompt_tokens=self._min_prompt or 0,
            costliest=self._dearest.rows(),
            tokenizer=self._counter.name,
            exact=self._counter.exact and self._plain,
            digest=self._hash.hexdigest(),
            self_cognition=taught,
            persona=cognition.persona() if taught else None,
            questions=cognition.questions() if taught else (),
            system_prompts=self._own_system,
        )


_EXAMPLE = '{"query": "...", "response": "..."}'


def _shape(path: Path, batch: list[tuple[int, Any]]) -> Shape:
    """How to read this file, by the columns of its first rows."""
    names = list(dict.fromkeys(str(name) for _, row in batch if isinstance(row, dict) for name in row))
    shape = shape_of(names)
    if shape is not None:
        return shape
    line = batch[0][0]
    if not names:
        raise InputError(
            "the rows are not objects with named columns",
            where=f"{path}:{line}",
            hints=(f"write each row as {_EXAMPLE}",),
        )
    raise InputError(
        f"no column to train on: found {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}",
        where=f"{path}:{line}",
        figures=(
            f"questions: {', '.join(QUERY_COLUMNS)}",
            f"answers: {', '.join(RESPONSE_COLUMNS)}",
            f"conversations: {', '.join(MESSAGE_COLUMNS)}",
        ),
        hints=_column_hints(names, batch[0][1]),
    )


def _column_hints(names: list[str], row: Any) -> tuple[str, ...]:
    inner = [name for name, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(names) <= 2 and inner:
        return (f"the rows are inside {inner[0]!r}: save that list alone as the file",)
    known = [*QUERY_COLUMNS, *RESPONSE_COLUMNS, *MESSAGE_COLUMNS]
    renames = [f"rename column {name!r} to {close[0]!r}" for name in names if (close := near(name, known, 1))]
    return tuple(renames[:2]) or ("rename the question column to 'query' and the answer column to 'response'",)


def _unloadable(problems: list[Problem]) -> InputError:
    """Why the engine could not load the files: the first place, and all the others."""
    first, *others = problems
    return InputError(
        first.text,
        where=f"{first.file}:{first.line}",
        figures=tuple(f"{Path(other.file).name}:{other.line}: {other.text}" for other in others[:_NAMED])
        + ((f"and {len(others) - _NAMED} more",) if len(others) > _NAMED else ()),
        hints=(fix_for(first.code, first.file, first.line),),
    )


def _no_rows(path: Path) -> InputError:
    empty = path.stat().st_size == 0
    return InputError(
        "the dataset is empty" if empty else "the dataset has no rows",
        where=str(path),
        hints=(f"write one JSON object a line into it, such as {_EXAMPLE}",),
    )
