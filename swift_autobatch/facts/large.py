"""Large .jsonl files: which are read in parts, by workers that start when the first one comes, and their digest."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from swift_autobatch.facts.bounds import Bound, bound_for
from swift_autobatch.facts.counters import Means
from swift_autobatch.facts.lines import Update
from swift_autobatch.facts.schema import Schema
from swift_autobatch.facts.shard_worker import Setup
from swift_autobatch.facts.shards import Limits, Tell, parts_of, survey_all, survey_sampled
from swift_autobatch.facts.spelling import Source
from swift_autobatch.facts.survey import Reader, Survey
from swift_autobatch.records import Environment
from swift_autobatch.workers import Workers, cores

_CHUNK = 1 << 20
_MOST_WORKERS = 16  # more would read faster than a disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A file to survey: its place among the datasets, what decides how it is read, and what its rows have to fit."""

    file: Path
    order: int
    columns: tuple[str, ...]
    schema: Schema
    fixed_from: int  # bytes: rows from there on are compared with the schema


class LargeFiles:
    """A context manager; its workers end with it."""

    def __init__(self, reader: Reader, means: Means, env: Environment, limits: Limits, *, full: bool) -> None:
        self._reader = reader
        self._means = means
        self._env = env
        self._limits = limits
        self._full = full
        self._stack = ExitStack()
        self._workers: Workers | None = None
        self._bound: Bound | None = None
        self._said: list[str] = []

    def __enter__(self) -> LargeFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def takes(self, source: Source, file: Path) -> bool:
        """Whether a file is read in parts: large, one object a line by its looks, and rows as they stand."""
        if file.suffix != ".jsonl" or source.columns or source.persona:
            return False
        if file.stat().st_size < self._limits.parallel_bytes:
            return False
        with file.open("rb") as stream:
            return stream.read(1) == b"{"

    def survey(self, task: Task, update: Update, tell: Tell) -> Survey | None:
        """Surveys a file; None where it can only be read as a whole. Its digest is taken meanwhile, in any case."""
        workers, file = self._started(), task.file
        digest = threading.Thread(target=_digest, args=(file, update))
        digest.start()
        try:
            parts = [
                replace(part, schema=task.schema, fixed_from=task.fixed_from)
                for part in parts_of(file, task.order, task.columns, self._limits.part_bytes)
            ]
            pictured = self._reader.media.block is not None  # bytes bound the tokens of text only
            if self._full or pictured or self._bound is None or file.stat().st_size < self._limits.sampled_bytes:
                return survey_all(parts, workers, tell)
            found = survey_sampled(parts, workers, tell, context=self._reader.model.max_position)
            if found is None:
                return None
            self._said.append(f"{file.name}: {found[1]}")
            return found[0]
        finally:
            digest.join()

    def said(self) -> str | None:
        """How far the lengths of the sampled files may be off; None when every row was counted."""
        return "; ".join(self._said) or None

    def _started(self) -> Workers:
        if self._workers is None:
            reader = self._reader
            fast = self._means.fast
            if fast is not None and not self._means.always:
                self._bound = bound_for(fast.file, fast.template, reader.system)
            setup = Setup(
                model=reader.model,
                means=self._means,
                system=reader.system,
                bound=self._bound,
                cache_dir=Path(self._env.cache_dir),
                cut_at=reader.cut_at,
                media=reader.media,
            )
            self._workers = self._stack.enter_context(
                Workers(
                    "swift_autobatch.facts.shard_worker",
                    setup,
                    count=min(cores(), _MOST_WORKERS),
                    interpreter=self._env.interpreter,
                    variables=self._env.variables,
                )
            )
        return self._workers


def _digest(file: Path, update: Update) -> None:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            update(chunk)
