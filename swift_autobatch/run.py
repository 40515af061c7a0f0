"""Launches the full job, watches it, says what came out; success is what was trained, not an exit code.

Codes of a failure, in ``TrainingError.code``: gpu-oom, host-oom, killed, stalled, diverged, nothing-learned, no-step,
unfinished, and those of gate/causes.py (port, disk-full, environment ...).
"""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swift_autobatch import engine, engine_log
from swift_autobatch.alarms import Losses, Memory
from swift_autobatch.checkpoint_files import last_whole, last_with_weights
from swift_autobatch.errors import Interrupted, TrainingError
from swift_autobatch.gate.causes import known_cause
from swift_autobatch.process import ChildResult
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import Artefacts, Environment, Measured, Plan, Run, Step
from swift_autobatch.units import show_count, show_gib, show_seconds

STOP = "autoswift/stop"  # asks the engine to save and end, see inside/autoswift_stop.py
_TAIL = 3  # log lines shown with an error
_NEAR_BUDGET = 0.8  # of host RAM: a process killed above it most likely died for lack of memory
_PATIENCE_S = 60.0  # for one step and one checkpoint, when asked to stop
_PATIENCE_STEPS = 4.0  # or as many steps, where they take longer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    code: str
    text: str
    hints: tuple[str, ...] = ()


def run_training(
    plan: Plan,
    artefacts: Artefacts,
    *,
    root: Path,
    run: Path,
    env: Environment,
    progress: Progress | None = None,
    stall_s: float | None = None,
) -> Run:
    """Runs the whole job in ``run``; the log is kept at ``autoswift/swift.log``.

    Args:
        stall_s: seconds without any output of the engine after which it counts as hung; None: for ever.

    Raises:
        TrainingError: the engine made fewer steps than it set out to, or ended with a loss that is not finite.
        MachineError: the engine cannot be started.
        Interrupted: a signal asked us to stop; the engine was given the time to save, and the whole group is gone.
    """
    watch = _Watch(plan=plan, progress=progress or Silent(), tail=engine_log.Tail(run / "autoswift"))
    try:
        child = engine.train(
            plan,
            artefacts,
            root=root,
            run=run,
            env=env,
            on_line=watch.line,
            idle_s=stall_s,
            on_stop=lambda: _ask_to_stop(plan, run, watch.progress),
        )
    except Interrupted as stop:
        watch.progress.clear()
        raise _interrupted(stop, run) from None
    watch.progress.clear()
    rows = engine_log.read_rows(run / "logging.jsonl")
    steps = _once_each(engine_log.steps(rows))
    measured = engine_log.measured(engine_log.read_telemetry(run / "autoswift"))
    failure = _failure(plan, child, rows, steps)
    if failure is not None:
        log = engine_log.scan(engine_log.read_log(run / engine.LOG))
        raise _error(_explained(failure, child, log, plan, measured, run), child, log, run)
    if child.exit_code != 0:
        watch.progress.stage(f"warning: every step was made, yet the engine ended with exit code {child.exit_code}")
    if not measured:
        watch.progress.stage("warning: the training is complete, but nothing was measured: telemetry was not written")
    checkpoint = last_with_weights(run)
    return Run(
        folder=str(run),
        checkpoint=None if checkpoint is None else str(checkpoint),
        child_exit=child.exit_code,
        steps=steps,
        measured=measured,
        seconds=child.seconds,
        infer_command=None if checkpoint is None else shlex.join(infer_argv(plan, checkpoint)),
        steps_made=_counted(plan, rows)[0],
    )


# ------------------------------------------------------------------------------------------------- while it runs


@dataclass(slots=True)
class _Watch:
    """Turns the engine's lines and the telemetry into progress and warnings."""

    plan: Plan
    progress: Progress
    tail: engine_log.Tail
    losses: Losses = field(default_factory=Losses)
    memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory(plan=self.plan)

    def line(self, line: str) -> None:
        row = engine_log.row_of_line(line)
        if row is None or "loss" not in row:
            return
        for warning in self.memory.rows(self.tail.rows()):
            self.progress.stage(f"warning: {warning}")
        self.progress.update(progress_text(row, self.plan, self.memory.held_bytes()))
        at, loss, norm = row["global_step/max_steps"], _number(row.get("loss")), _number(row.get("grad_norm"))
        if warned := self.losses.heard(str(at), loss, norm):
            self.progress.stage(f"warning: {warned}")


def progress_text(row: Mapping[str, Any], plan: Plan, held_bytes: int | None) -> str:
    """One line for a person: step, loss, token accuracy, seconds a step, tokens a second, memory, time left.

    Tokens are counted at the data's mean a row.
    """
    parts = [f"step {row['global_step/max_steps']}", f"loss {_short(row.get('loss'))}"]
    if row.get("token_acc") is not None:
        parts.append(f"token accuracy {_short(row['token_acc'])}")
    step_s = _number(row.get("train_speed(s/it)"))
    if step_s:
        tokens = plan.candidate.effective_batch * plan.facts.data.mean_tokens
        parts += [f"{_short(step_s)} s a step", f"{show_count(round(tokens / step_s))} tokens/s"]
    if held_bytes is not None:
        parts.append(show_gib(held_bytes))
    if row.get("remaining_time"):
        parts.append(f"{row['remaining_time']} left")
    return ", ".join(parts)


def _ask_to_stop(plan: Plan, run: Path, progress: Progress) -> float:
    """Asks the engine to save and end; returns the seconds it is given. A full disk costs the checkpoint only."""
    patience = max(_PATIENCE_S, _PATIENCE_STEPS * plan.prediction.step_s)
    try:
        (run / STOP).write_text("save and end\n", encoding="utf-8")
    except OSError:
        return 0.0
    progress.stage(f"stopping: a checkpoint first, at most {show_seconds(patience)}; once more to stop at once")
    return patience


def _interrupted(stop: Interrupted, run: Path) -> Interrupted:
    checkpoint = last_whole(run)
    then = ": no checkpoint had been saved" if checkpoint is None else f": {checkpoint.name} was saved whole"
    return Interrupted(stop.signal_number, then=then, where=stop.where, hints=_go_on(run))


def _go_on(run: Path) -> tuple[str, ...]:
    checkpoint = last_whole(run)
    if checkpoint is None:
        return ("the same command starts again",)
    return (f"the same command with --resume_from_checkpoint {shlex.quote(str(checkpoint))} goes on from there",)


# ------------------------------------------------------------------------------------------------- what came out


def _short(value: Any) -> str:
    number = _number(value)
    return str(value) if number is None else f"{number:.4g}"


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _not_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _once_each(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """A job that was gone on with made some steps twice: the later one counts."""
    by_step = {step.step: step for step in steps}
    return tuple(by_step[number] for number in sorted(by_step))


def _counted(plan: Plan, rows: tuple[Mapping[str, Any], ...]) -> tuple[int, int]:
    """Optimizer steps made and set out to make, by the engine's own count."""
    counted = [pair for pair in map(engine_log.steps_made, rows) if pair is not None]
    return max((pair[0] for pair in counted), default=0), counted[-1][1] if counted else plan.total_steps


def _failure(
    plan: Plan, child: ChildResult, rows: tuple[Mapping[str, Any], ...], steps: tuple[Step, ...]
) -> _Failure | None:
    """Why the job did not succeed, or None."""
    made, planned = _counted(plan, rows)
    if made == 0:
        return _Failure(code="no-step", text="the engine ended without an optimizer step")
    if made < planned and (child.exit_code != 0 or "early_stop" not in _callbacks(plan)):
        return _Failure(code="unfinished", text=f"the engine ended after {made} of {planned} steps")
    last = steps[-1] if steps else None
    if last is not None and any(_not_finite(value) for value in (last.loss, last.grad_norm)):
        return _Failure(
            code="diverged",
            text=f"the training diverged: loss {last.loss}, gradient norm {last.grad_norm} at step {last.step}",
        )
    if steps and all(step.loss == 0 and not step.grad_norm for step in steps):
        return _Failure(
            code="nothing-learned",
            text="nothing was learned: loss and gradient are exactly 0 at every logged step",
        )
    return None


def _callbacks(plan: Plan) -> tuple[str, ...]:
    found = plan.engine_args.get("callbacks")
    if found is None:
        return ()
    return (found.value,) if isinstance(found.value, str) else found.value


def _explained(
    failure: _Failure,
    child: ChildResult,
    log: engine_log.LogFacts,
    plan: Plan,
    measured: tuple[Measured, ...],
    run: Path,
) -> _Failure:
    """The failure with what caused it, as far as the child's end, the log and the measurements tell."""
    if failure.code in ("diverged", "nothing-learned"):
        return failure
    cause = known_cause(log) if child.exit_code != 0 else None
    killed = signal.SIGKILL in (child.signal, log.killed_by)
    if child.timed_out:
        found = _Failure(
            code="stalled",
            text=f"it hung and was stopped after {show_seconds(child.seconds)}{_last_seen(run)}",
            hints=("--stall-timeout SECONDS, larger, if it was at work",),
        )
    elif log.oom is not None:
        asked = f", asking for {log.oom_asked} more" if log.oom_asked else ""
        hints = ("autoswift dry-run, and a smaller micro batch",)
        found = _Failure(code="gpu-oom", text=f"the GPU ran out of memory{asked}", hints=hints)
    elif log.host_oom is not None or (killed and _short_of_ram(child, plan, measured)):
        found = _host_oom(child, log, plan, measured)
    elif cause is not None:
        found = _Failure(code=cause.code, text=cause.text, hints=cause.hints)
    elif log.killed_by is not None or child.signal is not None:
        number = log.killed_by or child.signal
        who = "a worker" if log.killed_by is not None else "the engine"
        found = _Failure(code="killed", text=f"{who} was killed by signal {number}, memory was not short")
    elif log.exceptions and child.exit_code != 0:
        found = _Failure(code=failure.code, text=log.exceptions[-1])
    else:
        return failure
    return _Failure(code=found.code, text=f"{failure.text}: {found.text}", hints=found.hints)


def _last_seen(run: Path) -> str:
    """The last step of each rank: the one that lags is the one to look at."""
    last = engine_log.last_rows(engine_log.read_telemetry(run / "autoswift"))[:8]
    seen = ", ".join(f"rank {row['rank']} {row.get('phase')} step {row.get('step')}" for row in last)
    return f"; last seen: {seen}" if seen else "; no rank got as far as a model"


def _resident(measured: tuple[Measured, ...]) -> int | None:
    return max((one.rss_sum_bytes for one in measured if one.rss_sum_bytes is not None), default=None)


def _short_of_ram(child: ChildResult, plan: Plan, measured: tuple[Measured, ...]) -> bool:
    if child.oom_kills is not None and child.oom_kills > 0:
        return True
    held = _resident(measured)
    return held is not None and held > _NEAR_BUDGET * plan.prediction.host_budget_bytes


def _host_oom(child: ChildResult, log: engine_log.LogFacts, plan: Plan, measured: tuple[Measured, ...]) -> _Failure:
    said = log.host_oom or f"the kernel killed it; out-of-memory kills counted meanwhile: {child.oom_kills}"
    return _Failure(
        code="host-oom",
        text=f"the host ran out of memory ({said[:120]}); all ranks held {show_gib(_resident(measured))} at most, "
        f"of {show_gib(plan.prediction.host_budget_bytes)}",
        hints=("close what else uses RAM, or raise the container's memory limit",),
    )


def _error(failure: _Failure, child: ChildResult, log: engine_log.LogFacts, run: Path) -> TrainingError:
    return TrainingError(
        failure.text,
        child_exit=child.exit_code,
        code=failure.code,
        where=str(run / engine.LOG),
        figures=tuple(line[:200] for line in log.tail[-_TAIL:]),
        hints=(*(failure.hints or ("the log has the engine's own words",)), *_go_on(run)),
    )


def infer_argv(plan: Plan, checkpoint: Path) -> tuple[str, ...]:
    """``swift infer`` with the trained model; the engine reads the other arguments from the checkpoint's args.json."""
    adapters = plan.candidate.tuner != "full"
    words = ["swift", "infer", "--adapters" if adapters else "--model", str(checkpoint)]
    model = plan.facts.model
    if model.pass_model_type and not adapters:
        for flag, told in (("--model_type", model.swift_model_type), ("--template", model.swift_template)):
            words += [flag, told] if told else []
    return tuple(words)
