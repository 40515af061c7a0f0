"""The error for a request that leaves nothing legal: which rule or pin stands in the way, and what would be."""

from __future__ import annotations

from swift_autobatch import rules, schedule
from swift_autobatch.candidates import Space
from swift_autobatch.errors import NotLegalError, UsageError
from swift_autobatch.records import Candidate, Facts, Illegal, Prediction, Request
from swift_autobatch.search import Costs, best, nearest, order_for
from swift_autobatch.units import show_count, show_gib, show_seconds

MEGATRON_SENTENCE = "megatron sft is not rendered by this version; that comes with a later one"


def refusal(request: Request, facts: Facts, space: Space) -> UsageError:
    """Names the rule that the most promising candidate breaks, else why no strategy applies."""
    if request.parallel_method.value == "megatron":
        return _megatron(request, facts, space)
    if space.illegal:
        first = min(space.illegal, key=lambda item: _distance(item, facts, rules.Flags(request.pins)))
        flags = [f"--{flag}" for flag in sorted(first.about) if flag in request.pins]
        return NotLegalError(
            f"no legal plan: {first.why} (rule {first.rule})",
            where=", ".join(flags) or "--strategy",
            hints=(first.fix,),
        )
    if request.strategy.value:
        name, why = space.skipped[0]
        return NotLegalError(
            f"strategy {name} cannot be used here: {why}",
            where="--strategy",
            hints=("drop --strategy to let the planner choose", "'autoswift recipes ls' says for whom each one is"),
        )
    return NotLegalError(
        f"no strategy allows --parallel-method {request.parallel_method.value} with these flags on "
        f"{'one device' if facts.machine.processes == 1 else 'this machine'}",
        where="--parallel-method",
        figures=tuple(f"{name}: {why}" for name, why in space.skipped[:6]),
        hints=("--parallel-method auto",),
    )


def _distance(item: Illegal, facts: Facts, flags: rules.Flags) -> tuple[bool, int, bool]:
    """How far a candidate is from what could run: one that was never asked for is farthest, one that only misses a
    package nearest among those that break as many rules."""
    unasked = item.candidate.parallel == "megatron"
    count = sum(1 for _ in rules.broken(item.candidate, facts, flags))
    return unasked, count, not item.rule.endswith("-not-installed")


def megatron_words(candidate: Candidate) -> str:
    """A Megatron plan's degrees: ``tp 4 pp 1 cp 1 ep 2``, the experts' only where there are any."""
    degrees = [("tp", candidate.tp), ("pp", candidate.pp), ("cp", candidate.cp), ("ep", candidate.ep)]
    return " ".join(f"{name} {size}" for name, size in degrees if name in ("tp", "pp") or size > 1)


def _megatron(request: Request, facts: Facts, space: Space) -> UsageError:
    """The sentence, and what Megatron would do here: the best plan that fits, else the nearest."""
    costs = Costs(facts)
    found = best(space.unrendered, costs, order_for(request, facts)) or nearest(space.unrendered, costs)
    figures = _megatron_figures(*found) if found else tuple(f"{item.why} (rule {item.rule})" for item in space.illegal)
    return UsageError(
        MEGATRON_SENTENCE,
        where="--parallel-method",
        figures=figures or tuple(f"{name}: {why}" for name, why in space.skipped if name == "megatron"),
        hints=("--parallel-method deepspeed", "--parallel-method fsdp"),
    )


def _megatron_figures(candidate: Candidate, prediction: Prediction) -> tuple[str, ...]:
    batch = f"{candidate.micro_batch} x {candidate.dp} x {candidate.accumulation}"
    recompute = ", recompute" if candidate.gradient_checkpointing else ""
    figures = [
        f"predicted: {megatron_words(candidate)}{recompute}, batch {batch} = {candidate.effective_batch}",
        f"a card would need {show_gib(prediction.demand_bytes)} of {show_gib(prediction.budget_bytes)}",
        f"a step would take {show_seconds(prediction.step_s)}: {show_count(prediction.tokens_per_s)} tokens/s",
    ]
    if candidate.accumulation > schedule.COMFORTABLE_ACCUMULATION:
        figures.append(f"accumulation {candidate.accumulation} is outside the comfortable 8-16")
    if not prediction.fits:
        figures.append("it would not fit")
    return tuple(figures)
