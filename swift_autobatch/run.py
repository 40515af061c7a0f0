"""Launches the full job, watches it, says what came out; success is what was trained, not an exit code."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swift_autobatch import engine, engine_log
from swift_autobatch.errors import TrainingError
from swift_autobatch.gate.causes import known_cause
from swift_autobatch.process import ChildResult
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import Artefacts, Environment, Plan, Run, Step

# Not "*.bin": training_args.bin, optimizer.bin and pytorch_model_fsdp.bin lie beside, with or without a model.
_WEIGHTS = ("*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin", "adapter_model.bin")
_TAIL = 3  # log lines shown with an error


def run_training(
    plan: Plan,
    artefacts: Artefacts,
    *,
    root: Path,
    run: Path,
    env: Environment,
    progress: Progress | None = None,
) -> Run:
    """Runs the whole job in ``run``; the log is kept at ``autoswift/swift.log``.

    Raises:
        TrainingError: the engine made fewer steps than it set out to, or ended with a loss that is not finite.
        MachineError: the engine cannot be started.
        Interrupted: a signal asked us to stop; the whole group is gone.
    """
    watch = _Watch(progress or Silent())
    child = engine.train(plan, artefacts, root=root, run=run, env=env, on_line=watch.line)
    watch.progress.clear()
    rows = engine_log.read_rows(run / "logging.jsonl")
    steps = engine_log.steps(rows)
    log = engine_log.scan(engine_log.read_log(run / engine.LOG))
    checkpoint = last_checkpoint(run)
    failure = _failure(plan, child, rows, steps)
    if failure is not None:
        raise _error(failure, child, log, run, checkpoint)
    if child.exit_code != 0:
        watch.progress.stage(f"warning: every step was made, yet the engine ended with exit code {child.exit_code}")
    return Run(
        folder=str(run),
        checkpoint=None if checkpoint is None else str(checkpoint),
        child_exit=child.exit_code,
        steps=steps,
        measured=engine_log.measured(engine_log.read_telemetry(run / "autoswift")),
        seconds=child.seconds,
        infer_command=None if checkpoint is None else shlex.join(infer_argv(plan, checkpoint)),
        steps_made=_counted(plan, rows)[0],
    )


@dataclass(slots=True)
class _Watch:
    """Turns the engine's lines into progress and warns once of a loss that is no number."""

    progress: Progress
    warned: bool = False
    seen: list[str] = field(default_factory=list)

    def line(self, line: str) -> None:
        row = engine_log.row_of_line(line)
        if row is None or "loss" not in row:
            return
        self.progress.update(progress_text(row))
        if not self.warned and any(_not_finite(row.get(key)) for key in ("loss", "grad_norm")):
            self.warned = True
            self.progress.stage(
                f"warning: loss {row.get('loss')}, gradient norm {row.get('grad_norm')} at step "
                f"{row['global_step/max_steps']}: the engine goes on, but skips such steps; lower --learning_rate"
            )


def progress_text(row: Mapping[str, Any]) -> str:
    """One line for a person: step, loss, token accuracy, seconds a step, time left."""
    parts = [f"step {row['global_step/max_steps']}", f"loss {_short(row.get('loss'))}"]
    if row.get("token_acc") is not None:
        parts.append(f"token accuracy {_short(row['token_acc'])}")
    if row.get("train_speed(s/it)") is not None:
        parts.append(f"{_short(row['train_speed(s/it)'])} s a step")
    if row.get("remaining_time"):
        parts.append(f"{row['remaining_time']} left")
    return ", ".join(parts)


def _short(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)


def _not_finite(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _counted(plan: Plan, rows: tuple[Mapping[str, Any], ...]) -> tuple[int, int]:
    """Optimizer steps made and set out to make, by the engine's own count."""
    counted = [pair for pair in map(engine_log.steps_made, rows) if pair is not None]
    return max((pair[0] for pair in counted), default=0), counted[-1][1] if counted else plan.total_steps


def _failure(
    plan: Plan, child: ChildResult, rows: tuple[Mapping[str, Any], ...], steps: tuple[Step, ...]
) -> str | None:
    """Why the job did not succeed, or None."""
    made, planned = _counted(plan, rows)
    if made == 0:
        return "the engine ended without an optimizer step"
    if made < planned and (child.exit_code != 0 or "early_stop" not in _callbacks(plan)):
        return f"the engine ended after {made} of {planned} steps"
    last = steps[-1] if steps else None
    if last is not None and any(_not_finite(value) for value in (last.loss, last.grad_norm)):
        return f"the training diverged: loss {last.loss}, gradient norm {last.grad_norm} at step {last.step}"
    if steps and all(step.loss == 0 and not step.grad_norm for step in steps):
        return "nothing was learned: loss and gradient are exactly 0 at every logged step"
    return None


def _callbacks(plan: Plan) -> tuple[str, ...]:
    found = plan.engine_args.get("callbacks")
    if found is None:
        return ()
    return (found.value,) if isinstance(found.value, str) else found.value


def _error(
    what: str, child: ChildResult, log: engine_log.LogFacts, run: Path, checkpoint: Path | None
) -> TrainingError:
    cause = known_cause(log)
    hints: tuple[str, ...] = ("the log has the engine's own words",)
    if log.oom is not None:
        what, hints = f"{what}: the GPU ran out of memory", ("autoswift dry-run, and a smaller micro batch",)
    elif cause is not None and child.exit_code != 0:
        what, hints = f"{what}: {cause.text}", cause.hints
    else:
        what = f"{what}: {log.exceptions[-1]}" if log.exceptions and child.exit_code != 0 else what
    if checkpoint is not None:
        hints += (f"--resume_from_checkpoint {checkpoint} goes on from there",)
    return TrainingError(
        what,
        child_exit=child.exit_code,
        where=str(run / engine.LOG),
        figures=tuple(line[:200] for line in log.tail[-_TAIL:]),
        hints=hints,
    )


def last_checkpoint(run: Path) -> Path | None:
    """The ``checkpoint-N`` folder with the largest N that holds weights."""
    found = []
    for folder in run.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
        if match and any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
            found.append((int(match[1]), folder))
    return max(found)[1] if found else None


def infer_argv(plan: Plan, checkpoint: Path) -> tuple[str, ...]:
    """``swift infer`` with the trained model; the engine reads the other arguments from the checkpoint's args.json."""
    adapters = plan.candidate.tuner != "full"
    words = ["swift", "infer", "--adapters" if adapters else "--model", str(checkpoint)]
    model = plan.facts.model
    if model.pass_model_type and not adapters:
        for flag, told in (("--model_type", model.swift_model_type), ("--template", model.swift_template)):
            words += [flag, told] if told else []
    return tuple(words)
