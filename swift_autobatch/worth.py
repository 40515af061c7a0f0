"""What a max_length, a micro batch and packing are worth on these rows: pure figures from a plan and its facts.

Batches are padded to their longest row, not to max_length: a max_length above the longest row costs nothing, and one
below it saves only by the rows that it cuts or drops.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from swift_autobatch.candidates import length_for
from swift_autobatch.predict import predict
from swift_autobatch.predict.padding import padded_lengths
from swift_autobatch.records import DataFacts, Facts, Plan, Prediction

_SHARES = ((0.5, "P50"), (0.9, "P90"), (0.95, "P95"), (0.99, "P99"))
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthChoice:
    """One max_length: what it loses and what it costs under the plan's strategy and batch, all else equal."""

    max_length: int
    why: str  # P95, longest, planned, unused
    rows_over: int  # cut or dropped
    tokens_lost: float  # share of all tokens, 0 to 1
    longest_tokens: int  # of what trains
    demand_bytes: int  # what the fit rule compares with the budget, per card
    step_s: float
    epoch_s: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Padding at one micro batch: ``waste`` is the share of a batch's tokens that are padding."""

    micro_batch: int
    waste: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The figures of :func:`weigh`. ``packing_gain``: tokens computed without packing, per token with it."""

    lengths: tuple[LengthChoice, ...]
    recommended: int
    padding: tuple[Padding, ...]
    packing_gain: float


def weigh(plan: Plan) -> Worth:
    """What each choice is worth under a plan."""
    data = plan.facts.data
    candidate = plan.candidate
    padded = padded_lengths(data.lengths, candidate.max_length, candidate.micro_batch, False)
    return Worth(
        lengths=tuple(_choice(plan, length, why) for length, why in _lengths(plan)),
        recommended=candidate.max_length,
        padding=tuple(_padding(data, candidate.max_length, batch) for batch in _MICRO_BATCHES),
        packing_gain=padded.padded / max(1e-9, padded.real),
    )


def _lengths(plan: Plan) -> list[tuple[int, str]]:
    """Max_lengths worth comparing: percentiles, the longest row, the plan's own, and one that no row needs."""
    facts = plan.facts
    data = facts.data
    wanted = [(length_for(facts, _percentile(data, share)), name) for share, name in _SHARES]
    wanted += [(length_for(facts, data.max_tokens), "longest"), (plan.candidate.max_length, "planned")]
    largest = max(length for length, _ in wanted)
    unused = min(2 * largest, facts.model.max_position or 2 * largest)
    named: dict[int, list[str]] = {}
    for length, why in (*wanted, *(((unused, "unused"),) if unused > largest >= data.max_tokens else ())):
        named.setdefault(length, []).append(why)
    return [(length, ", ".join(why)) for length, why in sorted(named.items())]


def _percentile(data: DataFacts, share: float) -> int:
    return data.lengths[max(0, -(-int(share * 1_000_000) * len(data.lengths) // 1_000_000) - 1)]


def _choice(plan: Plan, max_length: int, why: str) -> LengthChoice:
    data = plan.facts.data
    facts = _shortened(plan.facts, max_length)
    found = _predicted(plan, facts, max_length)
    inside = bisect_right(data.lengths, max_length)
    return LengthChoice(
        max_length=max_length,
        why=why,
        rows_over=round((len(data.lengths) - inside) * data.kept / len(data.lengths)),
        tokens_lost=1 - sum(facts.data.lengths) / sum(data.lengths),
        longest_tokens=facts.data.max_tokens,
        demand_bytes=found.demand_bytes,
        step_s=found.step_s,
        epoch_s=found.epoch_s,
        fits=found.fits,
    )


def _predicted(plan: Plan, facts: Facts, max_length: int) -> Prediction:
    candidate = replace(plan.candidate, max_length=max_length, max_tokens=facts.data.max_tokens)
    return predict(facts, candidate)


def _shortened(facts: Facts, max_length: int) -> Facts:
    """The facts with the rows that a max_length leaves: long ones dropped, as the engine does by itself, or cut."""
    data = facts.data
    if max_length >= data.lengths[-1]:
        return facts
    if facts.cuts_rows:
        lengths = tuple(min(length, max_length) for length in data.lengths)
        kept = data.kept
    else:
        lengths = data.lengths[: max(1, bisect_right(data.lengths, max_length))]
        kept = max(1, round(data.kept * len(lengths) / len(data.lengths)))
    mean = sum(lengths) / len(lengths)
    changed = replace(
        data,
        lengths=lengths,
        kept=kept,
        max_tokens=min(max_length, lengths[-1]),
        bound_tokens=0,
        mean_tokens=mean,
        mean_supervised_tokens=data.mean_supervised_tokens * mean / max(1e-9, data.mean_tokens),
        max_supervised_tokens=min(data.max_supervised_tokens, max_length),
    )
    return replace(facts, data=changed)


def _padding(data: DataFacts, max_length: int, micro_batch: int) -> Padding:
    lengths = padded_lengths(data.lengths, max_length, micro_batch, False)
    return Padding(micro_batch=micro_batch, waste=1 - lengths.real / max(1e-9, lengths.padded))
