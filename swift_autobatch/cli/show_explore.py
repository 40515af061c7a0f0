"""What people read on stdout of ``plan --sweep`` and ``plan --fit``."""

from __future__ import annotations

from collections.abc import Sequence

from swift_autobatch.buying import Offer
from swift_autobatch.cli import text
from swift_autobatch.records import Candidate, Prediction
from swift_autobatch.sweep import Sweep
from swift_autobatch.units import gib, show_count, show_seconds

_MOST_OFFERS = 20
_PRICED = "The cheapest epoch first, at the prices given."
_SMALLEST = "The fewest of each card; least memory in all first, streamed weights last."
_HEAD = {"gpus": "cards", "length": "tokens"}


def sweep(found: Sweep) -> list[str]:
    """A table of one line a point, and below it why points have no plan."""
    head = (_HEAD[found.axis], "strategy", "batch", "GiB a card", "tokens/s", "epoch")
    planned = [(one.value, one.candidate, one.prediction) for one in found.points if one.candidate and one.prediction]
    body = [
        (str(value), _strategy(plan), _batch(plan), _memory(made), show_count(made.tokens_per_s), _epoch(made))
        for value, plan, made in planned
    ]
    lines = text.table(head, body) if body else []
    batches = {plan.effective_batch for _, plan, _ in planned}
    differs = ["The effective batch is not the same everywhere: epochs are of larger or smaller steps."]
    missing = [f"{one.value} {_HEAD[found.axis]}: {one.why}" for one in found.points if one.candidate is None]
    return text.joined([lines, differs if len(batches) > 1 else [], text.bullets(missing, text.width())])


def offers(found: Sequence[Offer]) -> list[str]:
    """A table of one line an offer, best first."""
    if not found:
        return ["No card of the catalogue holds this job, up to 8 of them.", "Shorter rows or LoRA would need less."]
    priced = found[0].price_epoch is not None
    head = ("cards", "strategy", "GiB a card", "epoch", *(("price/h", "an epoch") if priced else ()))
    body = [
        (
            f"{one.count} x {one.card}",
            _strategy(one.candidate),
            _memory(one.prediction),
            _epoch(one.prediction),
            *_price(one),
        )
        for one in found[:_MOST_OFFERS]
    ]
    rest = len(found) - _MOST_OFFERS
    more = [f"  and {rest} more (--json lists all)"] if rest > 0 else []
    return [*text.table(head, body), *more, "", _PRICED if priced else _SMALLEST]


def _price(offer: Offer) -> tuple[str, ...]:
    if offer.price_hour is None or offer.price_epoch is None:
        return ()
    return f"{offer.price_hour:.2f}", f"{offer.price_epoch:.3g}"


def _strategy(candidate: Candidate) -> str:
    return candidate.strategy + (" (4-bit)" if candidate.quant == "nf4" and "qlora" not in candidate.strategy else "")


def _batch(candidate: Candidate) -> str:
    return f"{candidate.micro_batch} x {candidate.dp} x {candidate.accumulation} = {candidate.effective_batch}"


def _memory(prediction: Prediction) -> str:
    return f"{gib(prediction.demand_bytes):.1f} of {gib(prediction.budget_bytes):.1f}"


def _epoch(prediction: Prediction) -> str:
    return show_seconds(prediction.epoch_s)
