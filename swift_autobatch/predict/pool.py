"""What PyTorch's allocator makes of a traced job: reserved memory, and the least pool that the run survives in.

Costs tenths of a second, so only the plan that was chosen and its nearest rivals are replayed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from swift_autobatch.effective import effective
from swift_autobatch.predict import buffers, footprints, states, weights
from swift_autobatch.predict.footprints import Point
from swift_autobatch.predict.job import Job, job
from swift_autobatch.predict.profile import SWIFT, Engine
from swift_autobatch.predict.replay import Run, Script, needs, replay, script
from swift_autobatch.records import Candidate, Facts, Footprint, PhaseMemory, Prediction, Replay, StorageKind

_MOST_BATCHES = 4096  # micro batches of the order that is looked at
_MOST_RECORDS = 5  # of them replayed: those that are longer than any before, the last ones
_WORTH = 64 << 20  # fixed segments are kept only where they save more than this


def replayed(facts: Facts, candidate: Candidate, prediction: Prediction, engine: Engine = SWIFT) -> Prediction:
    """A prediction with what the allocator holds and the least it survives in; unchanged where nothing was traced.

    Args:
        prediction: of this candidate on these facts.
        engine: as in :func:`predict`.

    Returns:
        ``needs_p50_bytes`` is the replay's (of the other phases where those need more), ``needs_p99_bytes`` is moved by
        as much; ``reserved_bytes`` is what the rows of the data set make the allocator hold, at most the card.
    """
    work = job(facts, candidate, effective(candidate, facts.model, facts.machine), None, engine)
    footprint = footprints.find(work)
    if footprint is None or not prediction.traced:
        return prediction
    steps = script(footprint.stream)
    growing, fixed = (_replay(work, footprint, steps, expandable=expandable) for expandable in (True, False))
    chosen, other = (fixed, growing) if fixed.varied_bytes + _WORTH < growing.varied_bytes else (growing, fixed)
    run = _run(work, footprint, steps, _first_and_costliest(work))
    least = needs(run, replay(run, expandable=chosen.expandable), expandable=chosen.expandable)
    chosen = replace(chosen, needs_bytes=least)
    phases = tuple(_replayed_phase(one, least, prediction) for one in prediction.phases)
    needed = max(one.gpu_bytes for one in phases if one.phase != "resume")
    needing = replace(
        prediction,
        needs_p50_bytes=needed,
        needs_p99_bytes=prediction.needs_p99_bytes - prediction.needs_p50_bytes + needed,
        phases=phases,
    )
    return _held(facts, needing, chosen, other)


def with_segments(facts: Facts, prediction: Prediction, *, expandable: bool) -> Prediction:
    """The same prediction for a job that has set its allocator otherwise; unchanged where nothing was replayed."""
    chosen, other = prediction.replay, prediction.replay_otherwise
    if chosen is None or other is None or chosen.expandable == expandable:
        return prediction
    return _held(facts, prediction, other, chosen)


def _held(facts: Facts, prediction: Prediction, chosen: Replay, other: Replay) -> Prediction:
    """What the allocator holds: no more than the card has, no less than the job needs."""
    beside = prediction.context_bytes + prediction.nccl_bytes
    room = min(gpu.total_bytes for gpu in facts.machine.gpus) - beside
    reserved = max(prediction.needs_p50_bytes, min(room, chosen.varied_bytes))
    return replace(prediction, reserved_bytes=reserved, replay=chosen, replay_otherwise=other)


def _replayed_phase(phase: PhaseMemory, least: int, prediction: Prediction) -> PhaseMemory:
    """A phase with the replay's need where it trains; never below what the terms of the binding phase sum to."""
    if phase.phase == "steady":
        phase = replace(phase, gpu_bytes=least)
    elif phase.phase == "first_step":
        phase = replace(phase, gpu_bytes=min(least, phase.gpu_bytes))
    binding = phase.phase == prediction.binding_phase
    return replace(phase, gpu_bytes=max(phase.gpu_bytes, prediction.allocated_bytes)) if binding else phase


def _replay(work: Job, footprint: Footprint, steps: Script, *, expandable: bool) -> Replay:
    """Equal batches, and batches as the rows make them: an expandable segment needs no more than two of those."""
    costliest = footprints.point(work)
    equal = replay(_run(work, footprint, steps, (costliest, costliest)), expandable=expandable)
    order = _first_and_costliest(work) if expandable else (*_records(work), costliest)
    varied = replay(_run(work, footprint, steps, order), expandable=expandable) if _varies(work) else equal
    return Replay(
        expandable=expandable,
        allocated_bytes=max(equal.allocated_bytes, varied.allocated_bytes),
        reserved_bytes=equal.reserved_bytes,
        varied_bytes=max(equal.reserved_bytes, varied.reserved_bytes),
        needs_bytes=None,
    )


def _run(work: Job, footprint: Footprint, steps: Script, points: tuple[Point, ...]) -> Run:
    """The traced stream as this candidate's device holds it: shards of what is sharded, buffers beside it."""
    totals = {
        "weights": footprint.weights_bytes,
        "adapters": footprint.adapters_bytes,
        "gradients": max((one.gradients_bytes for one in footprint.instants), default=0),
        "optimizer": max((one.optimizer_bytes for one in footprint.instants), default=0),
    }
    held = {
        "weights": weights.resident(work),
        "adapters": states.adapters(work),
        "gradients": states.gradients(work),
        "optimizer": states.optimizer(work),
    }
    shares: dict[StorageKind, float] = {}
    beside = [buffers.permanent(work), footprints.rank_bytes(work, footprint)]
    for kind, total in totals.items():
        if total and not (kind == "gradients" and footprints.keeps_gradients(work)):
            shares[kind] = held[kind] / total  # type: ignore[index]
        else:  # the trace keeps it on the host, or makes it in other places, or it outlives the step that was traced
            shares[kind] = 0  # type: ignore[index]
            beside.append(held[kind])
    sharded = work.candidate.zero_stage == 3 or work.candidate.uses_fsdp
    return Run(
        script=steps,
        points=points,
        shares=shares,
        beside=tuple(beside),
        gathered=(buffers.gathered(work), buffers.root(work)) if sharded else (),
        updates=footprints.closing(work, footprint),
    )


def _first_and_costliest(work: Job) -> tuple[Point, ...]:
    """The first step on usual rows, where what lasts settles into smaller holes, then the costliest micro batch."""
    costliest = footprints.point(work)
    usual = _at(costliest, min(costliest.s, work.facts.data.p50_tokens))
    return (usual, costliest) if _varies(work) else (costliest, costliest)


def _at(costliest: Point, tokens: int) -> Point:
    """A micro batch of shorter rows, with the costliest one's share of labels."""
    return Point(b=costliest.b, s=tokens, k=max(1, round(costliest.k * tokens / costliest.s)))


def _varies(work: Job) -> bool:
    """Whether micro batches come in another order than longest first, and differ in length at all."""
    candidate, lengths = work.candidate, work.facts.data.lengths
    return not (candidate.packing or candidate.group_by_length) and len(set(lengths)) > 1


def _records(work: Job) -> tuple[Point, ...]:
    """One order of the data set's rows, cut down to the micro batches that are longer than any before.

    Others find room in what is cached; each of these asks for new segments, and fixed ones keep the old beside them.
    The order is drawn with a fixed seed, the costliest micro batch is left to come last.
    """
    costliest = footprints.point(work)
    if not _varies(work):
        return ()
    longest, found = 0, []
    for tokens in _micro_batches(work):
        if longest < tokens < costliest.s:
            longest = tokens
            found.append(_at(costliest, tokens))
    return tuple(found[-_MOST_RECORDS:])


def _micro_batches(work: Job) -> Iterator[int]:
    """Tokens of a row of each micro batch of an epoch on one rank."""
    candidate, data = work.candidate, work.facts.data
    draw = random.Random(0)
    rows = [
        min(length, work.row_tokens) for length in data.lengths if length <= work.row_tokens or work.facts.cuts_rows
    ]
    count = min(_MOST_BATCHES, data.kept // (candidate.micro_batch * candidate.dp))
    for _ in range(count if rows else 0):
        batch = [draw.choice(rows) for _ in range(candidate.micro_batch)]
        yield max(1, sum(batch) if candidate.padding_free else max(batch))
