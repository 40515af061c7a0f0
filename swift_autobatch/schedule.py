"""Decides the engine arguments that do not change memory: learning rate, warmup, steps, workers, logging, saving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from swift_autobatch.candidates import as_run, batch_target, rows_a_step
from swift_autobatch.records import Candidate, DataFacts, Facts, Request, Sourced
from swift_autobatch.units import counted

# ms-swift 4.6.0, swift/arguments/sft_args.py:245-249: taken as right at an effective batch of 16 (design).
DEFAULT_LR = {"full": 1e-5, "lora": 1e-4}
REFERENCE_BATCH = 16
DEFAULT_EPOCHS = 3.0  # ms-swift 4.6.0 num_train_epochs
MAX_WORKERS = 4  # the articles: 0 starves the card, 8 is slower on a small host, 4 served 50 rows best
LOGGING_STEPS = 5  # the articles: logging every step cost 18 % of the speed
SAVE_STEPS = 50
SAVE_TOTAL_LIMIT = 2
LARGE_BATCH = 128
COMFORTABLE_ACCUMULATION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Optimizer steps: of one epoch and of the whole job."""

    per_epoch: int
    total: int


def count_steps(candidate: Candidate, facts: Facts, request: Request) -> Steps:
    """How many optimizer steps the engine will make.

    Source: swift/dataloader/shard.py:24 (rows // ranks) and transformers' num_update_steps_per_epoch, where a
    last partial accumulation counts as a step.
    """
    rows = facts.data.kept // candidate.dp
    batches = ceil(rows / candidate.micro_batch)
    per_epoch = max(1, ceil(batches / candidate.accumulation))
    pinned = _number(request, "max_steps")
    if pinned is not None and pinned > 0:
        return Steps(per_epoch=per_epoch, total=int(pinned))
    epochs = _number(request, "num_train_epochs")
    return Steps(per_epoch=per_epoch, total=ceil(per_epoch * (DEFAULT_EPOCHS if epochs is None else epochs)))


def learning_rate(candidate: Candidate, facts: Facts, request: Request) -> Sourced[str]:
    """The learning rate for the effective batch; sqrt scaling for Adam unless the user asks otherwise."""
    base = request.lr_base.value
    default = DEFAULT_LR.get(candidate.tuner, DEFAULT_LR["lora"])
    rate, batch = base if base else (default, REFERENCE_BATCH)
    said = f"{request.lr_base.source}: {rate:g}@{batch}" if base else f"engine default for {candidate.tuner}"
    effective = rows_a_step(candidate, facts.data)
    scaling = request.lr_scaling.value
    if scaling == "none" or effective == batch:
        return Sourced(value=_lr(rate), source=f"{said}, right at an effective batch of {batch}")
    factor = effective / batch
    scaled = rate * (sqrt(factor) if scaling == "sqrt" else factor)
    formula = f"{rate:g} x sqrt({effective}/{batch})" if scaling == "sqrt" else f"{rate:g} x {effective}/{batch}"
    return Sourced(value=_lr(scaled), source=f"{said}, {scaling} scaling: {formula}")


def batch_words(
    candidate: Candidate, data: DataFacts, request: Request, pins: Mapping[str, Sourced[Any]]
) -> Iterator[str]:
    """Why a step learns from another number of rows than was asked for; nothing where it does not."""
    asked, rows, ranks = request.global_batch.value, rows_a_step(candidate, data), candidate.dp
    if rows == asked:
        return
    fixed = [pins[name].source.removeprefix("flag ") for name in ("micro_batch", "accumulation") if name in pins]
    if rows < candidate.effective_batch or batch_target(request, data, ranks) < asked:
        shared = f" on each of {ranks} ranks" if ranks > 1 else ""
        asked = max(asked, candidate.effective_batch)
        why = f"an epoch has {counted(rows // ranks, 'row')}{shared}, and one step holds them all"
    elif len(fixed) == 2:
        batch = f"{candidate.micro_batch} x {ranks} x {candidate.accumulation}"
        why = f"pinned to {batch} by {' and '.join(dict.fromkeys(fixed))}"
    else:
        each = candidate.accumulation if "accumulation" in pins else candidate.micro_batch
        pinned = f", {each} being pinned by {fixed[0]}" if fixed else ""
        why = f"the least multiple of {each} x {counted(ranks, 'rank')}{pinned}"
    follows = "learning_rate" not in request.pins and request.lr_scaling.value != "none"
    yield f"effective batch {rows} instead of {asked}: {why}{'; the learning rate follows' if follows else ''}"


def warmup_ratio(candidate: Candidate, facts: Facts) -> Sourced[str]:
    """Warmup as a share of all steps."""
    steps, rows = as_run(candidate, facts.data).accumulation, rows_a_step(candidate, facts.data)
    if steps > COMFORTABLE_ACCUMULATION:
        return Sourced(value="0.1", source=f"accumulation {steps} is above the comfortable 8-16")
    if rows >= LARGE_BATCH:
        return Sourced(value="0.1", source=f"effective batch {rows} is {LARGE_BATCH} or more")
    return Sourced(value="0.05", source="default; 5 % served 50 rows well")


def workers(candidate: Candidate, facts: Facts) -> Sourced[str]:
    """Dataloader workers per rank: at most 4, leaving a core for each rank itself."""
    cores = facts.machine.host.cpu_cores
    count = max(1, min(MAX_WORKERS, cores // candidate.world - 1))
    return Sourced(
        value=str(count), source=f"{cores} cores for {candidate.world} ranks; 0 starves, above 4 is no faster"
    )


def save_steps(steps: Steps) -> Sourced[str]:
    """Steps between checkpoints: 50 on a short run, about ten saves on a long one."""
    if steps.total <= 10 * SAVE_STEPS:
        return Sourced(value=str(SAVE_STEPS), source="default for a short run")
    every = min(500, ceil(steps.total / 10 / SAVE_STEPS) * SAVE_STEPS)
    return Sourced(value=str(every), source=f"about ten saves in {steps.total} steps, at most 500 apart")


def _number(request: Request, flag: str) -> float | None:
    pin = request.pins.get(flag)
    return float(pin.value) if pin is not None and isinstance(pin.value, str) else None


def _lr(rate: float) -> str:
    return f"{rate:.3g}"
