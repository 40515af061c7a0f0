"""Goes on after a training that died: from its last whole checkpoint, with a smaller plan where memory was short.

``resume`` (default) keeps the strategy: half the micro batch and twice the accumulation, then activation
checkpointing. ``replan`` takes the fastest of these and of every other strategy that needs less; where its checkpoints
are of another kind it starts again. The effective batch stays the same in both. A flag that the user pinned is kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swift_autobatch import calibration, engine_log, render
from swift_autobatch.checkpoint_files import broken, checkpoints, last_whole
from swift_autobatch.errors import NothingFitsError, TrainingError, UsageError
from swift_autobatch.planner import make_plan
from swift_autobatch.progress import Progress
from swift_autobatch.records import (
    Artefacts,
    Candidate,
    Died,
    Environment,
    Measured,
    Plan,
    Request,
    Run,
    Sourced,
    Strategy,
)
from swift_autobatch.run import run_training
from swift_autobatch.units import show_gib

MOST = 2  # times that a job is gone on with
_SHORT_OF_MEMORY = {"gpu-oom": "gpu-oom", "host-oom": "host-kill"}  # and what a dry run calls it
_SAME_AGAIN = ("killed", "stalled", "port")
# What the next launch writes anew in the run's autoswift folder; logging.jsonl and checkpoints are gone on with.
_OF_ONE_TRY = ("telemetry-*.jsonl", "swift.log", "launch.json", "stop*", "plan.json", "run.sh", "ds.json", "fsdp.json")
_SOURCE = "on failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a launch needs beside the plan."""

    asked: Request
    table: tuple[Strategy, ...]
    root: Path
    run: Path
    env: Environment
    files: Callable[[Plan, Request, Artefacts], Mapping[str, str]]  # everything that belongs in the run folder


def train(decided: Plan, artefacts: Artefacts, job: Job, progress: Progress, tries: list[Died]) -> tuple[Plan, Run]:
    """Trains to the end, at most twice from where it died; returns the plan that ended it and what came out.

    Args:
        tries: receives what died, also when an error is raised in the end.

    Raises:
        TrainingError: what ended the last training, where nothing more can or may be tried.
        MachineError, Interrupted: as ``run_training``.
    """
    while True:
        try:
            done = run_training(
                decided,
                artefacts,
                root=job.root,
                run=job.run,
                env=job.env,
                progress=progress,
                stall_s=job.asked.stall_timeout_s,
            )
        except TrainingError as error:
            died = error
        else:
            _learn(decided, done.measured, None, job, progress)
            return decided, done
        if died.code in _SHORT_OF_MEMORY:
            measured = engine_log.measured(engine_log.read_telemetry(job.run / "autoswift"))
            _learn(decided, measured, _SHORT_OF_MEMORY[died.code], job, progress)
        plan = following(died, decided, job) if len(tries) < MOST else None
        if plan is None:
            raise died
        progress.stage(f"died: {died.what}")
        kept = _put_aside(job.run, len(tries) + 1, progress)
        checkpoint = last_whole(job.run) if _reads(plan.candidate, decided.candidate) else None
        tries.append(_try(died, kept, checkpoint, plan.candidate))
        progress.stage(_said(len(tries), decided, plan, checkpoint))
        decided = plan
        artefacts = _artefacts(plan, job, checkpoint)


def _learn(decided: Plan, measured: tuple[Measured, ...], died_of: str | None, job: Job, progress: Progress) -> None:
    """Widens the band of this class of machine where the training took more than it allows for."""
    learned = calibration.learn_from_training(decided, measured, died_of)
    for one in learned:
        progress.stage(f"learned of this class of machine: {one.name} {one.value:g}: {one.why}")
    calibration.keep_if_possible(job.env, decided.machine_class, learned, progress)


def following(died: TrainingError, decided: Plan, job: Job) -> Plan | None:
    """The plan to go on with: the same where memory was not the cause, a smaller one where it was; None: none."""
    if job.asked.on_failure == "stop":
        return None
    if died.code in _SAME_AGAIN:
        return decided
    if died.code not in _SHORT_OF_MEMORY:
        return None
    smaller = _smaller(decided, job)
    if job.asked.on_failure == "resume":
        return next(smaller, None)
    return min((*smaller, *_others(decided, job)), key=lambda plan: plan.prediction.step_s, default=None)


def _smaller(decided: Plan, job: Job) -> Iterator[Plan]:
    """Plans of the same strategy that need less, least change first."""
    now, asked = decided.candidate, _same_batch(decided, job.asked)
    batch = ("per_device_train_batch_size", "gradient_accumulation_steps")
    kept = dict(zip(batch, (str(now.micro_batch), str(now.accumulation)), strict=True))
    changes = []
    if now.micro_batch > 1 and not set(batch) & set(job.asked.pins):
        part = next(number for number in range(2, now.micro_batch + 1) if now.micro_batch % number == 0)
        parted = (str(now.micro_batch // part), str(now.accumulation * part))  # halved, where it is even
        changes.append(dict(zip(batch, parted, strict=True)))
    if not now.gradient_checkpointing and "gradient_checkpointing" not in job.asked.pins:
        changes.append({**kept, "gradient_checkpointing": "true"})
    for change in changes:
        yield from _planned(_pinned(asked, now.strategy, change), decided, job)


def _others(decided: Plan, job: Job) -> Iterator[Plan]:
    """The best plan of every other strategy that needs less."""
    if job.asked.strategy.value is not None:
        return
    for row in job.table:
        if row.name != decided.candidate.strategy:
            yield from _planned(_pinned(_same_batch(decided, job.asked), row.name, {}), decided, job)


def _same_batch(decided: Plan, asked: Request) -> Request:
    effective = Sourced(value=decided.candidate.effective_batch, source=_SOURCE)
    return replace(asked, global_batch=effective, recipe=None, decided=None, locked=False)


def _pinned(asked: Request, strategy: str, change: Mapping[str, str]) -> Request:
    pins = {flag: Sourced(value=value, source=_SOURCE) for flag, value in change.items()}
    return replace(asked, strategy=Sourced(value=strategy, source=_SOURCE), pins={**asked.pins, **pins})


def _planned(asked: Request, decided: Plan, job: Job) -> Iterator[Plan]:
    """The plan of a request where there is one, of the same effective batch, that needs less than what died."""
    try:
        plan = make_plan(asked, decided.facts, job.table, job.env.cwd, job.env.home)
    except (UsageError, NothingFitsError):
        return
    before, after = decided.prediction, plan.prediction
    less = after.demand_bytes < before.demand_bytes or after.host_p99_bytes < before.host_p99_bytes
    if less and plan.candidate.effective_batch == decided.candidate.effective_batch:
        yield plan


def _reads(new: Candidate, old: Candidate) -> bool:
    """Whether the new plan's engine reads the old one's checkpoints: the same shards on the same ranks."""
    return (new.world, new.parallel, new.tp, new.quant, new.optim) == (
        old.world,
        old.parallel,
        old.tp,
        old.quant,
        old.optim,
    )


def _put_aside(run: Path, number: int, progress: Progress) -> Path:
    """Moves what the dead launch left in the run folder to ``autoswift/died/<number>/``, cut checkpoints included."""
    own = run / "autoswift"
    folder = own / "died" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in _OF_ONE_TRY:
        for path in own.glob(pattern):
            shutil.move(path, folder / path.name)
    for _, checkpoint in checkpoints(run):
        why = broken(checkpoint)
        if why is not None:
            progress.stage(f"{checkpoint.name} is not whole ({why}): put aside in {folder}")
            shutil.move(checkpoint, folder / checkpoint.name)
    return folder


def _try(died: TrainingError, kept: Path, checkpoint: Path | None, new: Candidate) -> Died:
    return Died(
        code=died.code,
        text=died.what,
        child_exit=died.child_exit,
        folder=str(kept),
        checkpoint=None if checkpoint is None else str(checkpoint),
        batch=(new.micro_batch, new.dp, new.accumulation),
    )


def _said(number: int, before: Plan, after: Plan, checkpoint: Path | None) -> str:
    old, new = before.candidate, after.candidate
    start = "from the start" if checkpoint is None else f"from {checkpoint.name}"
    if after is before:
        return f"going on ({number} of {MOST}): {start}, with the same plan"
    changed = [f"batch {new.micro_batch} x {new.dp} x {new.accumulation}"]
    if new.strategy != old.strategy:
        changed.append(f"strategy {new.strategy}")
    if new.gradient_checkpointing and not old.gradient_checkpointing:
        changed.append("activation checkpointing")
    return (
        f"going on ({number} of {MOST}): {start}, with {', '.join(changed)} instead of {old.micro_batch} x {old.dp} x "
        f"{old.accumulation}, the same effective batch of {new.effective_batch}; predicted "
        f"{show_gib(after.prediction.driver_bytes)} a device instead of {show_gib(before.prediction.driver_bytes)}"
    )


def _artefacts(plan: Plan, job: Job, checkpoint: Path | None) -> Artefacts:
    """Renders the plan into the run folder, to begin from the checkpoint."""
    args = dict(plan.engine_args)
    if checkpoint is not None:
        args["resume_from_checkpoint"] = Sourced(value=f"$RUN/{checkpoint.name}", source=_SOURCE)
        args.pop("resume_only_model", None)  # of a checkpoint that the user began from
    artefacts = render.render(replace(plan, engine_args=args))
    render.write(job.files(plan, job.asked, artefacts), job.run / "autoswift", force=True)
    return artefacts
