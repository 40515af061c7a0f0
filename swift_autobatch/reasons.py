"""Why a plan is what it is: what had to give and what that cost, and why every other strategy lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from swift_autobatch import checkpoints, schedule
from swift_autobatch.candidates import Family, Space, as_run
from swift_autobatch.records import Candidate, DataFacts, Facts, Parallel, Prediction, Request, RunnerUp, Sourced
from swift_autobatch.search import (
    OFFLOAD_BUYS,
    SAME_SPEED,
    Costs,
    Order,
    Scored,
    batch_excess,
    best,
    cost,
    gives,
    nearest,
    shortage,
)
from swift_autobatch.units import show_gib, show_seconds

_RUNNERS_UP = 8
MOST_APART = 0.06  # trace and closed form on a dense model, by their test


# ------------------------------------------------------------------------------------------------------ what lost


def runners_up(chosen: Scored, space: Space, costs: Costs, order: Order, request: Request) -> tuple[RunnerUp, ...]:
    """The best of every other strategy and of the chosen one's other micro batches, each with why it lost.

    Those that fit come first, best first; then the others, nearest to fitting first.
    """
    pairs = list(_rivals(chosen[0], space, costs, order))
    fit = sorted((pair for pair in pairs if pair[1].fits), key=order.key)
    unfit = sorted((pair for pair in pairs if not pair[1].fits), key=lambda pair: shortage(pair[1]))
    found = [
        RunnerUp(candidate=pair[0], prediction=pair[1], why=why_not(pair, chosen, costs.facts, request))
        for pair in (*fit, *unfit)
    ]
    named = {family[0].strategy for family in space.families}
    for item in space.illegal:
        if item.candidate.strategy not in named:
            named.add(item.candidate.strategy)
            found.append(RunnerUp(candidate=item.candidate, prediction=None, why=f"not legal: {item.why}"))
    return tuple(found[:_RUNNERS_UP])


def _rivals(chosen: Candidate, space: Space, costs: Costs, order: Order) -> Iterator[Scored]:
    groups: dict[tuple[str, int], list[Family]] = {}
    for family in space.families:
        if family[0].strategy != chosen.strategy:
            groups.setdefault((family[0].strategy, 0), []).append(family)
        elif _alike(family[0], chosen):
            for member in family:
                groups.setdefault((chosen.strategy, member.micro_batch), []).append((member,))
    groups.pop((chosen.strategy, chosen.micro_batch), None)
    for families in groups.values():
        found = best(families, costs, order) or nearest(families, costs)
        if found is not None:
            yield found


def _alike(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates of a strategy differ in batch and checkpointing only: others would crowd the list."""
    return (
        replace(
            one,
            micro_batch=other.micro_batch,
            accumulation=other.accumulation,
            gradient_checkpointing=other.gradient_checkpointing,
        )
        == other
    )


def why_not(pair: Scored, chosen: Scored, facts: Facts, request: Request) -> str:
    """Why a candidate lost against the chosen one, in one sentence."""
    candidate, prediction = pair
    winner, best_known = chosen
    if prediction.demand_bytes > prediction.budget_bytes:
        return f"does not fit: needs {show_gib(prediction.demand_bytes)} of {show_gib(prediction.budget_bytes)} a card"
    if prediction.host_p99_bytes > prediction.host_budget_bytes:
        return (
            f"does not fit: needs {show_gib(prediction.host_p99_bytes)} of {show_gib(prediction.host_budget_bytes)} "
            "host RAM"
        )
    ratio = prediction.epoch_s / best_known.epoch_s
    if gives(candidate) > gives(winner):
        return f"changes what is learned ({given(candidate)}), only when asked for; {ratio:.2f} x the time"
    if batch_excess(candidate, facts, request) > batch_excess(winner, facts, request):
        return f"effective batch {candidate.effective_batch}, asked for {request.global_batch.value}"
    if candidate.weights_rank > winner.weights_rank and request.prefer.value not in ("speed", "memory"):
        what = "4-bit" if candidate.quant != "none" else "weights streamed from the host"
        return f"{what} only when nothing better fits; {ratio:.2f} x the time"
    if candidate.offload and not winner.offload and ratio <= 1 / SAME_SPEED:
        gain = round((OFFLOAD_BUYS - 1) * 100)
        return f"{ratio:.2f} x the time, but an offload that is not needed must save {gain} % to be worth its risks"
    if ratio <= SAME_SPEED:
        return (
            f"no faster (within 2 %), {show_gib(prediction.demand_bytes)} instead of "
            f"{show_gib(best_known.demand_bytes)}"
        )
    return f"{ratio:.2f} x the time"


def given(candidate: Candidate) -> str:
    """What of the candidate changes what is learned, in words."""
    words = (
        ("8-bit optimizer states", "8bit" in candidate.optim),
        ("rows grouped by length", candidate.group_by_length),
        ("packed rows", candidate.packing),
    )
    return ", ".join(word for word, given in words if given)


# --------------------------------------------------------------------------------------------------- what had to give


def notes(
    candidate: Candidate, prediction: Prediction, costs: Costs, request: Request, pins: Mapping[str, Sourced[Any]]
) -> tuple[str, ...]:
    """What had to give and what it cost, first; then what a person should know of the job."""
    facts = costs.facts
    return (
        *schedule.batch_words(candidate, facts.data, request, pins),
        *_gave(candidate, prediction, costs, request),
        *_disagreement(candidate, prediction, facts),
        *_of_the_data(facts.data, facts),
        *checkpoints.notes(candidate, facts, request),
        *_of_few_rows(facts.data, candidate),
        *((f"the checkpoint is already quantised ({facts.model.quantised})",) if facts.model.quantised else ()),
    )


def _disagreement(candidate: Candidate, prediction: Prediction, facts: Facts) -> Iterator[str]:
    """A dense model on which trace and closed form are further apart than they ever should be: one has a bug."""
    if not prediction.traced or facts.model.experts or facts.model.params_vision:
        return
    closed = cost(replace(facts, footprints={}), candidate).allocated_bytes
    apart = abs(closed / prediction.allocated_bytes - 1)
    if apart > MOST_APART:
        yield (
            f"warning: the trace says {show_gib(prediction.allocated_bytes)} allocated, the closed form "
            f"{show_gib(closed)}, {apart:.0%} apart: please report this plan's --json, one of them has a bug"
        )


def _gave(candidate: Candidate, prediction: Prediction, costs: Costs, request: Request) -> Iterator[str]:
    facts, free = costs.facts, not request.strategy.value
    changes = _unasked(candidate, request)
    if changes and free:
        why = "asked for by --prefer speed" if request.prefer.value == "speed" else "nothing else fits"
        yield f"what is learned changes: {changes}; {why}"
    dropped = _rows_above(facts.data, candidate.max_length)
    if dropped:
        fate = "cut" if facts.cuts_rows else "dropped"
        yield f"about {dropped} of {facts.data.kept} rows are longer than {candidate.max_length} tokens: {fate}"
    if candidate.quant != "none" and "quant_bits" not in request.pins and free:
        yield _four_bit_words(candidate, prediction, costs)
    if candidate.weights_rank == 2 and free:
        yield _streamed_words(candidate, prediction, costs)
    if candidate.parallel == "zero2_offload":
        yield _offload_words(candidate, prediction, costs)
    if candidate.bucket_elements is not None:
        yield _bucket_words(candidate, prediction, costs)
    steps = as_run(candidate, facts.data).accumulation
    if steps > schedule.COMFORTABLE_ACCUMULATION:
        yield f"accumulation {steps} is above the comfortable 8-16: warmup 0.10, keep clipping"


def _unasked(candidate: Candidate, request: Request) -> str:
    """What changes training without a flag that asks for it."""
    asked = replace(
        candidate,
        packing=candidate.packing and "packing" not in request.pins,
        group_by_length=candidate.group_by_length and "group_by_length" not in request.pins,
        optim="" if "optim" in request.pins else candidate.optim,
    )
    return given(asked)


def _rows_above(data: DataFacts, limit: int) -> int:
    return sum(length > limit for length in data.lengths) * data.kept // max(1, len(data.lengths))


def _four_bit_words(candidate: Candidate, prediction: Prediction, costs: Costs) -> str:
    whole = costs.of(replace(candidate, quant="none"))
    if whole.fits:
        return f"4-bit weights: {show_gib(whole.demand_bytes - prediction.demand_bytes)} less a card than in 16-bit"
    return (
        f"4-bit weights: in 16-bit the model does not fit on the card, this batch needs {show_gib(whole.demand_bytes)} "
        f"of {show_gib(whole.budget_bytes)}"
    )


def _without_offload(candidate: Candidate) -> Parallel:
    """The same method with everything on the card."""
    plain: dict[Parallel, Parallel] = {
        "zero2_offload": "zero2",  # on one card as well: what DeepSpeed itself changes is not the offload's doing
        "zero3_offload": "none" if candidate.world == 1 else "zero3",
        "fsdp2_offload": "fsdp2",
    }
    return plain[candidate.parallel]


def _streamed_words(candidate: Candidate, prediction: Prediction, costs: Costs) -> str:
    """What keeping the weights on the card would need, and how much slower the host makes it."""
    resident = costs.of(replace(candidate, parallel=_without_offload(candidate)))
    needs = f"on the card they need {show_gib(resident.demand_bytes)} of {show_gib(resident.budget_bytes)}"
    slower = prediction.step_s / resident.step_s
    return (
        f"weights stay in host RAM and cross PCIe for every layer: slow ({slower:.1f} x a step), but nothing else "
        f"fits: {needs}"
    )


def _offload_words(candidate: Candidate, prediction: Prediction, costs: Costs) -> str:
    """What the optimizer offload gains and costs, beside the same plan without it."""
    without = costs.of(replace(candidate, parallel=_without_offload(candidate)))
    freed = without.demand_bytes - prediction.demand_bytes
    gain = f"frees {show_gib(freed)} a card" if freed > 0 else f"frees nothing on the card ({show_gib(-freed)} more)"
    slower = prediction.step_s - without.step_s
    return f"the optimizer offload {gain} and costs {show_seconds(max(slower, 0.0))} a step"


def _bucket_words(candidate: Candidate, prediction: Prediction, costs: Costs) -> str:
    """What smaller reduce buckets free."""
    preset = costs.of(replace(candidate, bucket_elements=None))
    freed = max(0, preset.demand_bytes - prediction.demand_bytes)
    return f"reduce buckets of {candidate.bucket_elements:,} elements: {show_gib(freed)} a card less than the preset's"


def _of_few_rows(data: DataFacts, candidate: Candidate) -> Iterator[str]:
    """What a very small dataset means for this candidate."""
    together = candidate.dp * candidate.micro_batch
    if data.kept == 1:
        yield "the dataset is a single row: it will be learned by heart, and nothing else"
    elif data.kept < together:
        yield (
            f"{data.kept} rows are fewer than one batch of {candidate.dp} x {candidate.micro_batch} rows: "
            "steps are smaller than planned; add rows or lower --per_device_train_batch_size"
        )


def _of_the_data(data: DataFacts, facts: Facts) -> Iterator[str]:
    if not data.exact:
        yield f"token lengths: {data.tokenizer}; the longest row is planned for at {data.max_tokens} tokens"
    lost = data.rows - data.kept - data.evaluated_rows
    if lost > 0:
        yield f"{lost} of {data.rows} rows will not train: see the problems in the data"
    if data.media_rows:
        blind = "" if facts.model.params_vision else f", and {facts.model.id} is a text model"
        yield (
            f"rows with images, video or audio: {data.media_rows}; their tokens are not counted, so memory, time and "
            f"max_length are too low{blind}; the dry run measures them"
        )
    if data.mean_supervised_tokens == 0:
        yield "no row has a token to learn from: every label is masked, the dry run will refuse it"
