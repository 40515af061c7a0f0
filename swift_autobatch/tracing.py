"""Plans with a trace: what is already known of a model, and what is traced because a plan depends on it.

A plan is made twice where nothing was known of its variants: by closed form, to see which are in question, and again
with their footprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from swift_autobatch import committed, tables
from swift_autobatch.effective import effective
from swift_autobatch.footprint_file import model_digest
from swift_autobatch.predict.footprints import find, key_of
from swift_autobatch.predict.job import Job, job
from swift_autobatch.progress import Progress
from swift_autobatch.records import (
    Candidate,
    Environment,
    Facts,
    Footprint,
    FootprintKey,
    ModelFacts,
    Plan,
    Request,
    Strategy,
    replace,
)
from swift_autobatch.trace import Shelf, kept, traced
from swift_autobatch.trace.source import traceable

_MOST_KEYS = 2  # variants traced for one plan, about 10 s each: the chosen one and the next


def known(model: ModelFacts, asked: Request, env: Environment) -> Mapping[FootprintKey, Footprint]:
    """Footprints that ship with the package, and those that were traced here before."""
    shipped = tables.footprints(model_digest(model))
    source = None if model.embedded else traceable(model, env, asked.pins)
    ours = kept(source, env).footprints if source is not None else {}
    return {**shipped, **ours} if ours else shipped


def decide(
    asked: Request, facts: Facts, table: tuple[Strategy, ...], env: Environment, progress: Progress, *, always: bool
) -> Plan:
    """The plan, its variants traced first where ``--trace`` asks for it or ``always`` does (before a run).

    Raises:
        UsageError, NothingFitsError: see ``committed.decide``. A trace that fails is a note, never an error.
    """
    decided = committed.decide(asked, facts, table, env, progress)
    wanted = tuple(_unknown(decided))[:_MOST_KEYS] if asked.trace or always else ()
    source = traceable(facts.model, env, asked.pins) if wanted else None
    if source is not None:
        shelf = traced(source, wanted, env, progress)
        if any(key in shelf.footprints for key in wanted):
            facts = replace(facts, footprints={**facts.footprints, **shelf.footprints})
            decided = committed.decide(asked, facts, table, env, progress)
        decided = replace(decided, notes=(*decided.notes, *_refusals(decided, shelf)))
    return decided


def _unknown(decided: Plan) -> Iterator[FootprintKey]:
    """Variants of the chosen candidate and of the runners-up that no footprint answers for, each once."""
    seen: set[FootprintKey] = set()
    for candidate in (decided.candidate, *(other.candidate for other in decided.runners_up)):
        one = _job(decided.facts, candidate)
        key = key_of(one)
        if key is None or find(one) is not None:
            continue
        key = replace(key, accumulates=False)  # more micro batches are counted from one
        if key not in seen:
            seen.add(key)
            yield key


def _job(facts: Facts, candidate: Candidate) -> Job:
    return job(facts, candidate, effective(candidate, facts.model, facts.machine), None)


def _refusals(decided: Plan, shelf: Shelf) -> tuple[str, ...]:
    """Why the chosen variant was not traced."""
    key = key_of(_job(decided.facts, decided.candidate))
    why = shelf.refused.get(replace(key, accumulates=False)) if key is not None else None
    return (f"not traced: {why}; the memory figures are the closed form's",) if why else ()
