"""Which cards of the catalogue hold a job, and which are cheapest at prices that the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from swift_autobatch.errors import AutoswiftError
from swift_autobatch.planner import choose
from swift_autobatch.records import Candidate, Facts, Machine, Prediction, Request, Sourced, Strategy, replace

COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Cards that hold the job, with the plan for them. Prices are in the user's currency."""

    card: str  # the catalogue's name
    count: int
    card_bytes: int
    candidate: Candidate
    prediction: Prediction
    price_hour: float | None = None  # all cards together
    price_epoch: float | None = None


def offers(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    machines: Iterable[Iterable[Machine]],
    prices: Mapping[str, float] | None,
) -> tuple[Offer, ...]:
    """Cards that hold the job: the smallest first, or the cheapest epoch first where there are prices.

    Args:
        machines: for each card, machines with ever more of it. Without prices the fewest that fit are listed; with
            prices every count is, because more cards may cost less an epoch.
        prices: of one card an hour, by the catalogue's name; None: not known.
    """
    found: list[Offer] = []
    for row in machines:
        for machine in row:
            offer = _offer(request, replace(facts, machine=machine), table, pins, prices)
            if offer is not None:
                found.append(offer)
                if prices is None:
                    break
    return tuple(sorted(found, key=_rank))


def _offer(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    prices: Mapping[str, float] | None,
) -> Offer | None:
    try:
        best = choose(request, facts, table, pins).best
    except AutoswiftError:  # what is pinned is not legal on such a machine
        return None
    if best is None:
        return None
    card, count = facts.machine.gpus[0].card or "", len(facts.machine.gpus)
    hour = prices[card] * count if prices is not None else None
    return Offer(
        card=card,
        count=count,
        card_bytes=facts.machine.gpus[0].total_bytes,
        candidate=best[0],
        prediction=best[1],
        price_hour=hour,
        price_epoch=None if hour is None else hour * best[1].epoch_s / 3600,
    )


def _rank(offer: Offer) -> tuple[Any, ...]:
    size = offer.count * offer.card_bytes
    first = (offer.price_epoch,) if offer.price_epoch is not None else (offer.candidate.weights_rank == 2, size)
    return (*first, offer.count, offer.prediction.epoch_s, offer.card)
