"""Streams a dataset once into lengths, costliest rows and problems; memory does not grow with rows."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path

from swift_autobatch.errors import InputError
from swift_autobatch.facts.conversation import Shape
from swift_autobatch.facts.embedded import default_dataset
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.refusals import chosen_shape, no_rows, none_left, unloadable
from swift_autobatch.facts.schema import Schema
from swift_autobatch.facts.spelling import Pins, Source, resolve
from swift_autobatch.facts.survey import Reader, Survey
from swift_autobatch.facts.tokens import counter_for
from swift_autobatch.progress import Progress
from swift_autobatch.records import DataFacts, Environment, ModelFacts

_BATCH = 512  # rows tokenized together; also the rows whose columns decide how a file is read


def read_dataset(
    paths: tuple[str, ...],
    model: ModelFacts,
    env: Environment,
    *,
    system: str | None,
    progress: Progress,
    pins: Pins | None = None,
) -> DataFacts:
    """Reads every row once, as ms-swift 4.6 would, and says what training on it means.

    Args:
        paths: files as the user spelled them, relative to ``env.cwd``; () means the embedded dataset.
        model: gives the chat template and the tokenizer that count the tokens.
        system: ``--system``, the prompt of rows that carry none; None: the template's own default.
        progress: told how many rows have been read.
        pins: engine flags that change rows: columns, model_name, model_author, use_hf.

    Returns:
        Lengths in tokens per row after the chat template and before any cut, supervised tokens as the engine labels
        them, the 64 costliest rows, and every row that will not train as hoped. A dataset whose every label is masked
        is described, not refused: ``mean_supervised_tokens`` is 0 then, and the dry run refuses it.

    Raises:
        InputError: file:line and a fix, when the engine could not read the file or would drop every row.
    """
    sources = [resolve(path, env, pins) for path in paths or (str(default_dataset()),)]
    prompt = _system_text(system, env)
    reading = _Reading(Reader(model=model, counter=counter_for(model), system=prompt), progress)
    try:
        for order, source in enumerate(sources):
            reading.read(source, order)
    finally:
        progress.clear()
    return reading.facts(tuple(source.name for source in sources))


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

    def __init__(self, reader: Reader, progress: Progress) -> None:
        self._reader = reader
        self._progress = progress
        self._hash = hashlib.sha256()
        self._survey = Survey()
        self._drawn = (0, 0)  # rows, and rows kept, of sources of which the engine draws a sample: minus what it leaves

    def read(self, source: Source, order: int) -> None:
        """Surveys the files of one dataset as one table; ``order`` is its place among the datasets."""
        before = (self._survey.rows, self._survey.kept)
        shape: Shape | None = None
        schema = Schema()
        for file in source.files:
            rows = source.rows(file, self._hash.update, schema)
            while found := list(islice(rows, _BATCH)):
                batch = [(line, row) for line, row in found if not isinstance(row, Fault)]
                if shape is None and batch:
                    shape = chosen_shape(file, batch)
                    self._clash(str(file), batch[0][0], shape)
                for line, fault in found:
                    if isinstance(fault, Fault):
                        self._survey.fault(str(file), line, fault)
                if shape:
                    self._reader.survey(self._survey, str(file), order, batch, shape)
                self._progress.update(f"reading {file.name}: {self._survey.rows - before[0]} rows")
        seen, kept = self._survey.rows - before[0], self._survey.kept - before[1]
        if not seen and not self._survey.problems.stopping():
            raise no_rows(source.path)
        if source.sample is not None and seen:
            drawn = f"trains {source.sample} rows drawn from {seen}; lengths describe all of them"
            self._survey.problems.add("sampled", str(source.files[0]), 1, drawn, drops_row=False)
            left = (self._drawn[0] + source.sample - seen, self._drawn[1] + round(source.sample * kept / seen) - kept)
            self._drawn = left

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
            problem_rows=survey.problems.times(),
            counted_rows=tokens.counted,
            mean_tokens=lengths.mean(),
            mean_supervised_tokens=tokens.supervised / lengths.total(),
            max_supervised_tokens=tokens.max_supervised,
            min_prompt_tokens=tokens.min_prompt or 0,
            costliest=tokens.dearest.rows(),
            tokenizer=counter.name,
            exact=counter.exact and survey.plain,
            digest=self._hash.hexdigest(),
            self_cognition=taught,
            persona=cognition.persona() if taught else None,
            questions=cognition.questions() if taught else (),
            system_prompts=survey.own_system,
        )
