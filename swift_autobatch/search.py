"""Finds the best candidate of a space without costing all of it, and exactly as if all of it had been costed.

Four cuts, none of which can lose the answer:

- The order of choice is lexicographic, and its first entries (what is given up, the asked batch, 16-bit before 4-bit)
  stand on the candidate alone. A tier of equal ones is looked at only when no better tier holds a plan that fits.
- Within a family memory grows with the micro batch as long as the same kernels run, so that the first size that does
  not fit ends it.
- Weights, adapters and optimizer states do not depend on kernels, checkpointing or the micro batch: where they alone
  are over budget in one candidate, they are in every one that shares them.
- Grouping rows by length saves time, never memory: what does not fit ungrouped does not fit grouped.

:func:`brute_force` costs everything; a benchmark and a property test compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from math import log
from typing import Any

from swift_autobatch.candidates import Family, as_run, batch_target
from swift_autobatch.predict import predict
from swift_autobatch.predict.pool import replayed
from swift_autobatch.predict.profile import SWIFT, Engine
from swift_autobatch.records import Candidate, Facts, Prediction, Request

Scored = tuple[Candidate, Prediction]
SAME_SPEED = 1.02  # within 2 % is the same speed: then the one with fewer moving parts and more memory to spare wins
OFFLOAD_BUYS = 1.15  # an offload needs a compiler and host RAM: it must be this much faster than doing without
_DEFAULT_OPTIM = "adamw_torch_fused"
_STATES = frozenset({"weights", "adapters", "optimizer"})


def cost(facts: Facts, candidate: Candidate) -> Prediction:
    """The one place where the planner asks the predictor; a pure function of both.

    Returns:
        the prediction with the candidate's own bucket sizes, of steps that hold no more rows than there are.
    """
    return predict(facts, as_run(candidate, facts.data), engine=_engine(candidate))


def settle(facts: Facts, candidate: Candidate, prediction: Prediction) -> Prediction:
    """The prediction with what the allocator makes of it, which takes tenths of a second."""
    return replayed(facts, as_run(candidate, facts.data), prediction, _engine(candidate))


def _engine(candidate: Candidate) -> Engine:
    return SWIFT if candidate.bucket_elements is None else replace(SWIFT, bucket=candidate.bucket_elements)


@dataclass(frozen=True, slots=True)
class Costs:
    """Predictions on one set of facts, each made once."""

    facts: Facts
    known: dict[Candidate, Prediction] = field(default_factory=dict)

    def of(self, candidate: Candidate) -> Prediction:
        """The prediction of a candidate, from memory where it was asked for before."""
        found = self.known.get(candidate)
        if found is None:
            found = self.known[candidate] = cost(self.facts, candidate)
        return found


# ------------------------------------------------------------------------------------------------ order of choice


@dataclass(frozen=True, slots=True)
class Order:
    """What is better: smaller keys first.

    ``tier`` reads the candidate alone; ``within`` orders the candidates of one tier, and ends in entries that only
    make ties deterministic.
    """

    tier: Callable[[Candidate], tuple[Any, ...]]
    within: Callable[[Scored], tuple[Any, ...]]

    def key(self, pair: Scored) -> tuple[Any, ...]:
        """The whole order of choice."""
        return (*self.tier(pair[0]), *self.within(pair))


def gives(candidate: Candidate) -> int:
    """How much a candidate changes what is learned: 0 nothing, then 8-bit states, grouped rows, packed rows."""
    return ("8bit" in candidate.optim) + 2 * candidate.group_by_length + 4 * candidate.packing


def batch_excess(candidate: Candidate, facts: Facts, request: Request) -> int:
    """Rows by which the effective batch misses the one that is aimed at."""
    return abs(candidate.effective_batch - batch_target(request, facts.data, candidate.dp))


def keeps_masters(candidate: Candidate) -> bool:
    """Whether small updates are not rounded away: fp32 master weights, or fp32 adapters."""
    return candidate.tuner != "full" or candidate.torch_dtype == "float32" or candidate.parallel not in ("none", "ddp")


def order_for(request: Request, facts: Facts) -> Order:
    """The order of choice that a request asks for with ``--prefer``.

    ``auto``: nothing that changes training, the asked batch, 16-bit before 4-bit before streamed weights, the fastest;
    an offload counts as slower than it is by :data:`OFFLOAD_BUYS`, so that it comes where it is needed or pays.
    ``quality``: the same, and fp32 master weights before speed. ``speed``: the asked batch, then the fastest, whatever
    else gives. ``memory``: as auto with the least memory a card instead of the fastest, 4-bit and offload allowed.
    ``fewest-gpus`` is auto on the fewest cards that hold a plan (:mod:`planner` narrows the machine).
    """
    prefer = request.prefer.value

    def tier(candidate: Candidate) -> tuple[Any, ...]:
        excess = batch_excess(candidate, facts, request)
        if prefer == "speed":
            return (excess,)
        if prefer == "memory":
            return (gives(candidate), excess)
        masters = (not keeps_masters(candidate),) if prefer == "quality" else ()
        return (gives(candidate), excess, candidate.weights_rank, *masters)

    def within(pair: Scored) -> tuple[Any, ...]:
        candidate, prediction = pair
        pace = _bucket(prediction.epoch_s * (OFFLOAD_BUYS if candidate.offload and prefer != "speed" else 1.0))
        first = (_bucket(float(prediction.demand_bytes)), pace) if prefer == "memory" else (pace, gives(candidate))
        return (
            *first,
            candidate.offload,
            _departures(candidate),
            prediction.demand_bytes,
            prediction.host_p99_bytes,
            candidate.strategy,
            -candidate.micro_batch,
            *_ties(candidate),
        )

    return Order(tier, within)


def _bucket(value: float) -> int:
    """Steps of 2 %: what falls into one counts as the same."""
    return round(log(max(value, 1e-9)) / log(SAME_SPEED))


def _departures(candidate: Candidate) -> int:
    """How many settings differ from what the engine does by itself."""
    return (
        (candidate.attn_impl is not None)
        + candidate.padding_free
        + candidate.liger
        + (candidate.bucket_elements is not None)
        + (candidate.optim != _DEFAULT_OPTIM)
    )


def _ties(candidate: Candidate) -> tuple[Any, ...]:
    splits = (candidate.tp, candidate.pp, candidate.cp, candidate.ep, candidate.sp)
    return (
        *splits,
        candidate.parallel,
        candidate.quant,
        not candidate.gradient_checkpointing,
        candidate.liger,
        candidate.padding_free,
        candidate.attn_impl or "",
        candidate.bucket_elements or 0,
        candidate.optim,
        candidate.accumulation,
    )


# --------------------------------------------------------------------------------------------------------- search


def best(families: Iterable[Family], costs: Costs, order: Order) -> Scored | None:
    """The candidate that comes first in the order of choice among those that fit; None when none does."""
    tiers: dict[tuple[Any, ...], list[Family]] = {}
    for family in families:
        for tier, members in _by_tier(family, order):
            tiers.setdefault(tier, []).append(members)
    floors: dict[tuple[Any, ...], int] = {}
    for tier in sorted(tiers):
        fitting = [pair for members in tiers[tier] for pair in _fitting(members, costs, floors)]
        if fitting:
            return min(fitting, key=order.within)
    return None


def brute_force(families: Iterable[Family], facts: Facts, order: Order) -> Scored | None:
    """What :func:`best` must answer, by costing every candidate."""
    pairs = [(candidate, cost(facts, candidate)) for candidate in chain.from_iterable(families)]
    return min((pair for pair in pairs if pair[1].fits), key=order.key, default=None)


def nearest(families: Iterable[Family], costs: Costs) -> Scored | None:
    """The candidate that misses its budgets by least, among the smallest micro batches that change least of training.

    Returns:
        None in an empty space.
    """
    first = [family[0] for family in families]
    least = min(map(gives, first), default=0)
    pairs = [(candidate, costs.of(candidate)) for candidate in first if gives(candidate) == least]
    return min(pairs, key=lambda pair: shortage(pair[1]), default=None)


def shortage(prediction: Prediction) -> float:
    """How full the fuller of card and host would be, as a share of its budget; above 1 it does not fit."""
    card = prediction.demand_bytes / max(1, prediction.budget_bytes)
    return max(card, prediction.host_p99_bytes / max(1, prediction.host_budget_bytes))


def _by_tier(family: Family, order: Order) -> Iterator[tuple[tuple[Any, ...], Family]]:
    tiers: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in family:
        tiers.setdefault(order.tier(candidate), []).append(candidate)
    for tier, members in tiers.items():
        yield tier, tuple(members)


def _fitting(members: Family, costs: Costs, floors: dict[tuple[Any, ...], int]) -> Iterator[Scored]:
    """Those of a family that fit, smallest first; costs no more than one that does not in each monotone stretch."""
    states = _states(members[0])
    ended: set[tuple[bool, bool]] = set()
    for candidate in members:
        # One row alone runs other kernels than several; without accumulation gradients live shorter.
        stretch = (candidate.micro_batch == 1, as_run(candidate, costs.facts.data).accumulation == 1)
        if stretch in ended:
            continue
        if candidate not in costs.known and floors.get(states, 0) < 0:
            return
        if candidate.group_by_length and _ungrouped_misses(candidate, costs):
            ended.add(stretch)
            continue
        prediction = costs.of(candidate)
        if states not in floors:
            floors[states] = prediction.budget_bytes - _floor(prediction)
        if prediction.fits:
            yield candidate, prediction
        else:
            ended.add(stretch)


def _ungrouped_misses(candidate: Candidate, costs: Costs) -> bool:
    """Whether the same plan with rows in random order is known not to fit: the longest batch is the same in both."""
    twin = costs.known.get(replace(candidate, group_by_length=False))
    return twin is not None and not twin.fits


def _states(candidate: Candidate) -> tuple[Any, ...]:
    """What weights, adapters and optimizer states depend on."""
    splits = (candidate.tp, candidate.pp, candidate.cp, candidate.ep, candidate.sp, candidate.world)
    tuning = (candidate.tuner, candidate.quant, candidate.torch_dtype, candidate.lora_rank, candidate.optim)
    return (candidate.parallel, *splits, *tuning)


def _floor(prediction: Prediction) -> int:
    """Bytes that any candidate with the same states needs at the least, context and NCCL included."""
    states = sum(term.bytes for term in prediction.terms if term.name in _STATES)
    return states + prediction.context_bytes + prediction.nccl_bytes
