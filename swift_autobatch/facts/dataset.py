"""Streams a dataset once into lengths, costliest rows and problems; memory does not grow with rows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.cache import Cache, stamp_of
from swift_autobatch.facts.conversation import Shape, shape_of
from swift_autobatch.facts.counters import Means, WithEngine, counter_of, means_for
from swift_autobatch.facts.embedded import default_dataset
from swift_autobatch.facts.encoder import engine_spec, versions
from swift_autobatch.facts.large import LargeFiles, Task
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.media import media_for
from swift_autobatch.facts.refusals import all_cut, chosen_shape, column_names, no_rows, none_left, unloadable
from swift_autobatch.facts.rows import read_rows
from swift_autobatch.facts.sampling import Draw, sampled, survives
from swift_autobatch.facts.schema import LOADER_CHUNK_BYTES, Schema, learn
from swift_autobatch.facts.shards import Limits
from swift_autobatch.facts.spelling import Pins, Source, resolve
from swift_autobatch.facts.survey import Reader, Survey
from swift_autobatch.facts.tokens import ASSUMED, tokenizer_file
from swift_autobatch.progress import Progress, bar
from swift_autobatch.records import DataFacts, Environment, ModelFacts
from swift_autobatch.workers import Workers

LIMITS = Limits()
_BATCH = 512  # rows tokenized together; also the rows whose columns decide how a file is read


def read_dataset(
    paths: tuple[str, ...],
    model: ModelFacts,
    env: Environment,
    *,
    system: str | None,
    progress: Progress,
    pins: Pins | None = None,
    full: bool = False,
    limits: Limits = LIMITS,
) -> DataFacts:
    """Reads every row once, as ms-swift 4.6 would, and says what training on it means.

    Args:
        paths: files as the user spelled them, relative to ``env.cwd``; () means the embedded dataset.
        model: gives the chat template and the tokenizer that count the tokens.
        system: ``--system``, the prompt of rows that carry none; None: the template's own default.
        progress: told how many rows have been read.
        pins: engine flags that change rows: columns, model_name, model_author, use_hf.
        full: count the tokens of every row; else those of a sample where a .jsonl file is large.
        limits: what is large.

    Returns:
        Lengths in tokens per row after the chat template and before any cut, supervised tokens as the engine labels
        them, the 64 costliest rows, and every row that will not train as hoped. A dataset whose every label is masked
        is described, not refused: ``mean_supervised_tokens`` is 0 then, and the dry run refuses it. Where lengths come
        from a sample, ``confidence`` says how far they may be off; rows, problems and the costliest rows are exact all
        the same.

    Raises:
        InputError: file:line and a fix, when the engine could not read the file or would drop every row.
    """
    sources = [resolve(path, env, pins) for path in paths or (str(default_dataset()),)]
    prompt = _system_text(system, env)
    reading = _Asked(sources=sources, model=model, env=env, system=prompt, pins=pins or {}, full=full, limits=limits)
    if sum(file.stat().st_size for file in reading.files()) < limits.parallel_bytes:
        return reading.read(means_for(model, env), progress)
    cache = Cache(Path(env.cache_dir), reading.files(), reading.question(paths))
    kept = cache.find()
    if kept is not None:
        progress.stage("the data were counted before and have not changed since: taken from the cache")
        return kept
    found = reading.read(_prepared(model, env), progress)
    if not found.media_rows and not found.max_image_tokens:  # images lie in files of their own
        cache.keep(found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What :func:`read_dataset` was asked, its datasets found."""

    sources: list[Source]
    model: ModelFacts
    env: Environment
    system: str | None
    pins: Pins
    full: bool
    limits: Limits

    def files(self) -> list[Path]:
        return [file for source in self.sources for file in source.files]

    def read(self, means: Means, progress: Progress) -> DataFacts:
        large = sum(file.stat().st_size for file in self.files()) >= self.limits.parallel_bytes
        cache = Path(self.env.cache_dir) if large else None
        counter = counter_of(means, self.model, self.system, cache_dir=cache)
        media = media_for(self.model, self.env, self.pins)
        reader = Reader(model=self.model, counter=counter, system=self.system, cut_at=_cut_at(self.pins), media=media)
        with ExitStack() as stack:
            stack.callback(progress.clear)
            if isinstance(counter, WithEngine):
                stack.callback(counter.close)
            if means.always:
                progress.stage(f"template {self.model.swift_template}: ms-swift itself encodes the rows, to count them")
            parts = stack.enter_context(LargeFiles(reader, means, self.env, self.limits, full=self.full))
            reading = _Reading(reader, parts, progress, limits=self.limits, draw=Draw(self.pins))
            for order, source in enumerate(self.sources):
                reading.read(source, order)
        if isinstance(counter, WithEngine) and counter.lost:
            progress.stage(f"ms-swift could not encode the rows, so that lengths are estimated: {counter.lost}")
        return reading.facts(tuple(source.name for source in self.sources))

    def question(self, paths: tuple[str, ...]) -> dict[str, Any]:
        """Whatever but the files' content decides the facts; the day, because a template may hold its date."""
        engine = engine_spec(self.model, self.env)
        return {
            "paths": paths,
            "names": [source.name for source in self.sources],
            "model": asdict(self.model),
            "tokenizer": stamp_of(tokenizer_file(self.model)),
            "engine": [engine.folder if engine else None, *versions()],
            "day": time.strftime("%Y-%m-%d"),
            "system": self.system,
            "pins": {name: pin.value for name, pin in self.pins.items()},
            "full": self.full,
            "limits": asdict(self.limits),
        }


def _cut_at(pins: Pins) -> int | None:
    """Tokens that ``--truncation_strategy right`` leaves of a row; on the left it takes from the question only."""
    length, strategy = pins.get("max_length"), pins.get("truncation_strategy")
    if length is None or strategy is None or strategy.value != "right" or not str(length.value).isdigit():
        return None
    return int(length.value)


def _prepared(model: ModelFacts, env: Environment) -> Means:
    """With what large data are counted. Raises InputError as :func:`means_for` does."""
    if tokenizer_file(model) is None:
        return means_for(model, env)
    module = "swift_autobatch.facts.tokenizer_worker"
    with Workers(module, None, count=1, interpreter=env.interpreter, variables=env.variables) as workers:
        try:
            ((_, means),) = workers.map([(model, replace(env, variables=dict(env.variables)))])
        except RuntimeError:
            return means_for(model, env)  # says what is wrong with the file
    return means  # type: ignore[no-any-return]


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


def _unheard(_: bytes) -> None:
    """For bytes that the digest has seen, or will."""


# ------------------------------------------------------------------------------------------------------ reading


class _Reading:
    """The state of one pass over all files."""

    def __init__(self, reader: Reader, large: LargeFiles, progress: Progress, *, limits: Limits, draw: Draw) -> None:
        self._limits = limits
        self._draw = draw
        self._reader = reader
        self._large = large
        self._progress = progress
        self._hash = hashlib.sha256()
        self._survey = Survey()
        self._kept: list[int] = []  # of each source: rows that are trained, those that are drawn several times once
        self._drawn = (0, 0)  # rows, and rows kept, of sources of which the engine draws a sample: minus what it leaves

    def read(self, source: Source, order: int) -> None:
        """Surveys the files of one dataset as one table; ``order`` is its place among the datasets."""
        before = (self._survey.rows, self._survey.kept)
        columns: tuple[str, ...] | None = None
        schema = Schema()
        self._draw.begin()
        if source.own_code:
            said = f"ms-swift reads {source.path.name} with code of its own: rows and lengths are an assumption"
            self._survey.problems.add("own-code", str(source.files[0]), 1, said, drops_row=False)
            self._survey.plain = False
        shape, times = self._draw_from(source) if self._exactly(source) else (None, None)
        each = None if times is None else iter(times)
        for file in source.files:
            rows = source.rows(file, self._hash.update, schema)
            if self._large.takes(source, file):
                head = islice(source.rows(file, _unheard, Schema()), _BATCH)
                first = [row for row in head if not isinstance(row[1], Fault)]
                columns = self._columns(file, first) if columns is None and first else columns
                if columns and self._parts(file, order, columns, schema):
                    continue
                rows = source.rows(file, _unheard, schema)  # the digest has seen it
            if each is not None and shape is not None:
                rows = sampled(rows, shape, each)
            columns = self._rows(file, order, rows, columns, before[0])
        seen, kept = self._survey.rows - before[0], self._survey.kept - before[1]
        if not seen and not self._survey.problems.stopping():
            raise no_rows(source.path)
        self._kept.append(kept if times is None else min(kept, sum(map(bool, times))))
        if times is not None:
            how = f"drawn as with --data_seed {self._draw.seed}" if self._draw.shuffle else "the first ones"
            said = f"trains {source.sample} rows, {how}; lengths describe these"
            self._survey.problems.add("sampled", str(source.files[0]), 1, said, drops_row=False)
        elif source.sample is not None and seen:
            drawn = f"trains {source.sample} rows drawn from {seen}; lengths describe all of them"
            self._survey.problems.add("sampled", str(source.files[0]), 1, drawn, drops_row=False)
            self._kept[-1] = min(kept, round(source.sample * kept / seen))
            left = (self._drawn[0] + source.sample - seen, self._drawn[1] + round(source.sample * kept / seen) - kept)
            self._drawn = left

    def _exactly(self, source: Source) -> bool:
        """Whether the rows of a sample are told from the others, which reads the files twice."""
        size = sum(file.stat().st_size for file in source.files)
        return source.sample is not None and size < self._limits.parallel_bytes

    def _draw_from(self, source: Source) -> tuple[Shape | None, list[int] | None]:
        """How the dataset is read, and how often each row is trained that the loader keeps."""
        schema = Schema()
        rows = [(line, row) for file in source.files for line, row in source.rows(file, _unheard, schema)]
        records = [(line, row) for line, row in rows if not isinstance(row, Fault)]
        if not records or source.sample is None:
            return None, None
        shape = chosen_shape(source.files[0], records[:_BATCH])
        kept = sum(survives(row, shape) for _, row in records)
        return (shape, self._draw.times(kept, source.sample)) if kept else (None, None)

    def _parts(self, file: Path, order: int, columns: tuple[str, ...], schema: Schema) -> bool:
        """Surveys a large file in parts. Returns False where it can only be read as a whole."""

        def tell(share: float) -> None:
            self._progress.update(f"reading {file.name}: {100 * share:.0f} % {bar(share)}")

        fixed_from = LOADER_CHUNK_BYTES if schema.empty else 0  # bytes; the rows behind have to fit those before
        drifting = learn(file, read_rows, schema)
        task = Task(file=file, order=order, columns=columns, schema=schema, fixed_from=fixed_from)
        found = self._large.survey(task, self._hash.update, tell)
        if found is not None:
            for line, fault in drifting:
                self._survey.fault(str(file), line, fault)
            self._survey.merge(found)
        return found is not None

    def _rows(
        self,
        file: Path,
        order: int,
        rows: Iterator[tuple[int, Any]],
        columns: tuple[str, ...] | None,
        before: int,
    ) -> tuple[str, ...] | None:
        """Surveys a file from its first row to its last. Returns the columns that decide how the table is read."""
        shape = shape_of(columns) if columns else None
        while found := list(islice(rows, _BATCH)):
            batch = [(line, row) for line, row in found if not isinstance(row, Fault)]
            if columns is None and batch:
                columns = self._columns(file, batch)
                shape = shape_of(columns)
            for line, fault in found:
                if isinstance(fault, Fault):
                    self._survey.fault(str(file), line, fault)
            if shape:
                self._reader.survey(self._survey, str(file), order, batch, shape)
            self._progress.update(f"reading {file.name}: {self._survey.rows - before} rows")
        return columns

    def _columns(self, file: Path, batch: list[tuple[int, Any]]) -> tuple[str, ...]:
        """The columns of a table's first rows; the engine could make something of them."""
        shape = chosen_shape(file, batch)
        self._clash(str(file), batch[0][0], shape)
        return column_names(batch)

    def _clash(self, file: str, line: int, shape: Shape) -> None:
        if shape.clash:
            text = f"columns {', '.join(shape.clash)} mean the same thing: the engine uses none of them, rename one"
            self._survey.problems.add("ambiguous-columns", file, line, text, drops_row=False)

    def facts(self, files: tuple[str, ...]) -> DataFacts:
        """The finished record.

        Raises:
            InputError: not one row is left.
        """
        survey, counter = self._survey, self._reader.counter
        survey.finish()
        problems = survey.problems.all()
        if stopping := survey.problems.stopping():
            raise unloadable(stopping)
        rows, kept = survey.rows + self._drawn[0], survey.kept + self._drawn[1]
        if not survey.kept or not kept:
            raise none_left(problems, rows)
        if dict(survey.problems.times()).get("cut-answer", 0) == survey.tokens.counted:
            raise all_cut(survey.problems, survey.tokens.lengths)
        tokens, cognition = survey.tokens, survey.cognition
        lengths = tokens.lengths
        taught = cognition.taught()
        return DataFacts(
            files=files,
            rows=rows,
            kept=kept,
            problems=problems,
            lengths=lengths.sketch(),
            p50_tokens=lengths.percentile(0.5),
            p90_tokens=lengths.percentile(0.9),
            p95_tokens=lengths.percentile(0.95),
            p99_tokens=lengths.percentile(0.99),
            max_tokens=lengths.longest,
            bound_tokens=lengths.bound if lengths.bound > lengths.longest else 0,
            media_rows=survey.media,
            mean_image_tokens=survey.image_tokens / survey.kept,
            max_image_tokens=survey.max_image_tokens,
            problem_rows=survey.problems.times(),
            counted_rows=tokens.counted,
            mean_tokens=lengths.mean(),
            mean_supervised_tokens=tokens.supervised / lengths.total(),
            max_supervised_tokens=tokens.max_supervised,
            min_prompt_tokens=tokens.min_prompt or 0,
            costliest=tokens.dearest.rows(),
            tokenizer=counter.name,
            exact=counter.exact and survey.plain,
            confidence=self._large.said(),
            estimated_longest=max(lengths.counts) if counter.name == ASSUMED else 0,
            kept_by_dataset=tuple(self._kept),
            digest=self._hash.hexdigest(),
            self_cognition=taught,
            persona=cognition.persona() if taught else None,
            questions=cognition.questions() if taught else (),
            system_prompts=survey.own_system,
        )
