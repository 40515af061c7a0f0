"""Chooses what counts a model's tokens, and puts together what two counters can do.

The fast path knows a template by heart and holds the tokenizer itself. Rows or templates beyond it are left to the
engine's own encoder in child processes, where the engine and the tokenizer are at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_autobatch.facts.conversation import Conversation, RowError
from swift_autobatch.facts.encoder import Engine, EngineSpec, NoEngine, engine_spec, sent
from swift_autobatch.facts.loaded import as_loaded
from swift_autobatch.facts.quick import prove, quick_for
from swift_autobatch.facts.template_table import TEMPLATES
from swift_autobatch.facts.tokens import (
    Assumed,
    Count,
    Counted,
    Counter,
    Spec,
    load,
    spec_of,
    template_of,
    tokenizer_file,
)
from swift_autobatch.records import Environment, ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """With what a model's rows are counted; goes to worker processes.

    ``fast`` None: bytes are the measure. ``engine`` None: not at hand. ``always``: the engine counts every row of text.
    """

    fast: Spec | None
    engine: EngineSpec | None
    always: bool


def means_for(model: ModelFacts, env: Environment) -> Means:
    """Reads a tokenizer once for all that will count with it.

    Raises:
        InputError: tokenizer.json is there and cannot be read.
    """
    file, engine = tokenizer_file(model), engine_spec(model, env)
    if file is None:
        return Means(fast=None, engine=engine, always=engine is not None)
    tokenizer = load(file)
    known = model.swift_template in TEMPLATES
    copy = as_loaded(file, tokenizer, Path(env.cache_dir), lambda path: _saved(engine, path)) if known else None
    loaded = copy or file
    spec = spec_of(file, loaded, tokenizer if loaded == file else load(loaded), model, same=copy is not None)
    return Means(fast=spec, engine=engine, always=engine is not None and not spec.exact)


def _saved(engine: EngineSpec | None, path: Path) -> bool:
    if engine is None:
        return False
    asked = Engine(engine, None, count=1)
    try:
        asked.save(path)
    except NoEngine:
        return False
    finally:
        asked.close()
    return True


def prepare(model: ModelFacts, env: Environment) -> Means:
    """As :func:`means_for`, and proves, or not, that tiktoken may count (seconds)."""
    means = means_for(model, env)
    fast = means.fast
    if fast is not None and not means.always:
        prove(fast.file, lambda: load(fast.file), Path(env.cache_dir))
    return means


def counter_of(
    means: Means, model: ModelFacts, system: str | None, *, cache_dir: Path | None = None, engines: int = 0
) -> Counter:
    """The counter behind some means; it loads what it counts with when it counts.

    Args:
        means: as :func:`means_for` found them.
        model: its template, where nothing else is known.
        system: ``--system``.
        cache_dir: for large data: where the proof lies that tiktoken may count.
        engines: processes of the engine; 0: one a core, at most four.
    """
    fast = means.fast
    if fast is None:
        quickest: Counter = Assumed(template_of(model))
    elif cache_dir is None:
        quickest = Counted(fast)
    else:
        quickest = Counted(fast, quick=lambda: quick_for(fast.file, lambda: load(fast.file), cache_dir))
    if means.engine is None:
        return quickest
    return WithEngine(quickest, Engine(means.engine, system, count=engines), always=means.always)


class WithEngine:
    """A fast counter, and the engine for what that cannot count: every row of text, or those with tools.

    Media are left to the fast one, whose text is then an estimate. Where the engine cannot be loaded, all is.
    """

    def __init__(self, fast: Counter, engine: Engine, *, always: bool) -> None:
        self._fast = fast
        self._engine = engine
        self._always = always
        self.lost: str | None = None  # why the engine cannot encode

    @property
    def exact(self) -> bool:
        return self._fast.exact or (self._always and self.lost is None)

    @property
    def name(self) -> str:
        return self._engine.spec.name if self._always and self.lost is None else self._fast.name

    def covers(self, talk: Conversation) -> bool:
        return not talk.media if self.lost is None else self._fast.exact and self._fast.covers(talk)

    def framed(self, talk: Conversation, system: str | None) -> Any:
        """The fast one's frame, and the conversation where the engine is to count it."""
        frame = self._fast.framed(talk, system)
        return frame, talk if not talk.media and (self._always or not talk.plain) else None

    def count(self, rows: Sequence[tuple[Any, Conversation | None]]) -> list[Count | RowError]:
        sends = [sent(talk) for _, talk in rows if talk is not None]
        answers = self._by_engine(sends) if sends and self.lost is None else None
        if answers is None:
            return list(self._fast.count([frame for frame, _ in rows]))
        theirs, mine = iter(answers), iter(self._fast.count([frame for frame, talk in rows if talk is None]))
        return [next(mine) if talk is None else next(theirs) for _, talk in rows]

    def close(self) -> None:
        """Ends the engine's processes."""
        self._engine.close()

    def _by_engine(self, sends: list[Any]) -> list[Count | RowError] | None:
        try:
            return self._engine.count(sends)
        except NoEngine as error:
            self.lost = str(error)
            return None
