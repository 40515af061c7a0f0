"""Chooses deterministically; keeps the runners-up and why each lost.

Order of choice: pins; nothing that changes what is learned; the asked batch; no dropped rows; 16-bit before 4-bit
before weights streamed from the host; then the fastest (:func:`search.order_for`, which ``--prefer`` bends). Never from
lora to full or back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swift_autobatch import arguments, machines, mend, misfits, reasons, schedule, shortfall
from swift_autobatch.candidates import Space, decided_space, enumerate_space, length_for
from swift_autobatch.effective import effective
from swift_autobatch.errors import NotLegalError, UsageError
from swift_autobatch.pins import pinned_fields
from swift_autobatch.records import Candidate, Facts, Plan, Request, Sourced, Strategy
from swift_autobatch.refusal import refusal
from swift_autobatch.search import Costs, Order, Scored, best, nearest, order_for, settle
from swift_autobatch.units import counted

_MOST_REPLAYS = 4  # candidates whose replay is asked for before the formula's word is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the search decided, and what it looked at. ``best`` is None where nothing fits."""

    facts: Facts  # with fewer cards than asked about where fewest-gpus narrowed them
    space: Space
    costs: Costs
    order: Order
    best: Scored | None


def make_plan(request: Request, facts: Facts, table: tuple[Strategy, ...], root: str, home: str) -> Plan:
    """The best legal plan that fits, with its reasons.

    Args:
        table: the strategy table.
        root: the project folder; rendered paths below it start with ``$ROOT``.
        home: the user's home; other paths below it start with ``$HOME``.

    Raises:
        UsageError: the pins allow no legal combination.
        NothingFitsError: legal plans exist and none fits; the hints are edits that were tried and fit.
    """
    pins = pinned_fields(request, Path(root))
    try:
        choice = choose(request, facts, table, pins)
    except NotLegalError as error:
        raise mend.offered(error, request, facts, table, Path(root)) from error
    if choice.best is None:
        missed = nearest(choice.space.families, choice.costs)
        assert missed is not None  # an empty space was refused
        raise shortfall.explain(request, facts, table, pins, missed)
    chosen, prediction = choice.best
    facts = choice.facts
    steps = schedule.count_steps(chosen, facts, request)
    args = arguments.engine_args(chosen, facts, request, steps, root, home)
    env = arguments.environment(chosen, facts, prediction)
    strategy = next((row for row in table if row.name == chosen.strategy), None)
    return Plan(
        facts=facts,
        candidate=chosen,
        prediction=prediction,
        effective=effective(chosen, facts.model, facts.machine),
        engine_args=args,
        env=env,
        steps_per_epoch=steps.per_epoch,
        total_steps=steps.total,
        notes=(
            *reasons.notes(chosen, prediction, choice.costs, request, pins),
            *misfits.notes(chosen, facts, request),
        ),
        proposals=_proposals(facts, request, steps),
        runners_up=reasons.runners_up(choice.best, choice.space, choice.costs, choice.order, request),
        illegal=choice.space.illegal,
        machine_class=facts.machine.machine_class,
        digest=_digest(chosen, args, env, facts),
        because=strategy.because if strategy else "every choice was pinned",
        strategy=strategy,
    )


def choose(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    *,
    replays: int = _MOST_REPLAYS,
) -> Choice:
    """The first in the order of choice that fits; where no row length fits whole, on shorter cuts, longest first.

    Args:
        replays: how many candidates may be tried in the allocator's replay, tenths of a second each; 0 where an answer
            is only compared with another.

    Raises:
        UsageError: the pins allow no legal combination, or the engine would stop at them.
    """
    misfits.refuse(request, facts)
    first: Choice | None = None
    refused: UsageError | None = None
    for narrowed in _narrowed(request, facts):
        try:
            for choice in _attempts(request, narrowed, table, pins, replays):
                first = first or choice
                if choice.best is not None:
                    return choice
        except UsageError as error:  # fewer cards than the pins need
            refused = error
    if first is None:
        assert refused is not None
        raise refused
    return first


def _narrowed(request: Request, facts: Facts) -> Iterator[Facts]:
    """The machine as it is, or under ``--prefer fewest-gpus`` its first card, its first two, and so on."""
    if request.prefer.value != "fewest-gpus" or not facts.machine.gpus:
        yield facts
    elif request.decided is not None:
        yield machines.as_decided(facts, request.decided)
    else:
        yield from (machines.fewer_cards(facts, count) for count in range(1, len(facts.machine.gpus) + 1))


def _attempts(
    request: Request, facts: Facts, table: tuple[Strategy, ...], pins: Mapping[str, Sourced[Any]], replays: int
) -> Iterator[Choice]:
    costs, order = Costs(facts), order_for(request, facts)
    if request.decided is not None:
        space = decided_space(facts, request, pins)
        yield Choice(facts=facts, space=space, costs=costs, order=order, best=_settled(space, costs, order, replays))
        return
    shorter = () if "max_length" in pins else cuts(facts)
    for cut in (None, *shorter):
        space = enumerate_space(facts, request, table, pins, cut)
        if not space.families:
            raise refusal(request, facts, space)
        yield Choice(facts=facts, space=space, costs=costs, order=order, best=_settled(space, costs, order, replays))


def _settled(space: Space, costs: Costs, order: Order, replays: int) -> Scored | None:
    """The best candidate that fits by the allocator's replay too; the replays stay in ``costs``."""
    for _ in range(replays):
        found = best(space.families, costs, order)
        if found is None:
            return None
        candidate, prediction = found
        costs.known[candidate] = settle(costs.facts, candidate, prediction)
        if costs.known[candidate].fits:
            return candidate, costs.known[candidate]
    return best(space.families, costs, order)


def cuts(facts: Facts) -> tuple[int, ...]:
    """Shorter max_lengths worth trying: those that still keep 95 % of the rows, longest first."""
    lengths = facts.data.lengths
    kept = {length_for(facts, lengths[int((len(lengths) - 1) * share)]) for share in (0.99, 0.98, 0.97, 0.96, 0.95)}
    return tuple(sorted((cut for cut in kept if cut < facts.data.max_tokens), reverse=True))


def _proposals(facts: Facts, request: Request, steps: schedule.Steps) -> tuple[str, ...]:
    """Flags that change what is learned: proposed with their reason, never applied unasked."""
    offers = []
    data = facts.data
    if data.self_cognition and data.persona and not data.system_prompts and "system" not in request.pins:
        offers.append(
            f"--system 'You are {data.persona}.'  anchors the persona that the rows teach; use the same at inference"
        )
    if data.self_cognition and steps.total < 30 and not {"num_train_epochs", "max_steps"} & set(request.pins):
        epochs = max(10, -(-40 // steps.per_epoch))
        offers.append(f"--num_train_epochs {epochs}  {counted(steps.total, 'step')}: few to learn an identity from")
    return tuple(offers)


def _digest(
    candidate: Candidate, args: Mapping[str, Sourced[Any]], env: Mapping[str, Sourced[str]], facts: Facts
) -> str:
    """sha256 over what the run depends on: the command, its environment, the candidate, the data, the class."""
    content = {
        "args": {flag: sourced.value for flag, sourced in args.items()},
        "env": {name: sourced.value for name, sourced in env.items()},
        "candidate": asdict(candidate),
        "data": facts.data.digest,
        "machine_class": facts.machine.machine_class,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
