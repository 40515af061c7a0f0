"""``dry-run --scan``: measures one plan with accumulation 8, 16 and 32 and with other micro batches, as one table.

Every point is the real command on the costliest rows for two whole optimizer steps, accumulation included; nothing is
evaluated or saved. What a point measured of the machine is kept, as after any dry run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swift_autobatch import calibration, committed, gate, render
from swift_autobatch.errors import NothingFitsError, UsageError
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment, Plan, Request, Sourced, Strategy, Verdict, replace

SCHEMA = "autoswift.scan/1"
ACCUMULATIONS = (8, 16, 32)  # the articles': 8 to 16 is comfortable, above it the learning rate wants a longer warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured row of the table; None: not measured, ``code`` and ``text`` say why. Bytes are of one device."""

    micro_batch: int
    accumulation: int
    effective_batch: int
    predicted_bytes: int | None
    measured_bytes: int | None
    predicted_step_s: float | None
    step_s: float | None
    rows_per_s: float | None
    code: str
    text: str
    folder: str | None


def pairs(decided: Plan) -> tuple[tuple[int, int], ...]:
    """(micro batch, accumulation) of each point: 8, 16, 32 at the plan's micro batch; half and twice it."""
    micro, rows = decided.candidate.micro_batch, decided.candidate.micro_batch * decided.candidate.accumulation
    found = {(micro, accumulation): None for accumulation in ACCUMULATIONS}
    for other in (micro // 2, micro, micro * 2):
        if other and rows % other == 0:
            found[(other, rows // other)] = None
    return tuple(sorted(found))


def scan(
    decided: Plan, folder: Path, *, asked: Request, table: tuple[Strategy, ...], env: Environment, progress: Progress
) -> tuple[Point, ...]:
    """Measures every point, one engine run each, and writes ``<folder>/autoswift/scan.json``.

    Raises:
        MachineError, Interrupted: see ``gate.run_gate``.
    """
    points = tuple(_points(decided, folder, asked, table, env, progress))
    render.write_file(folder / "autoswift" / "scan.json", render.to_json(scan_json(decided, points)))
    return points


def scan_json(decided: Plan, points: tuple[Point, ...]) -> Mapping[str, Any]:
    """The table as ``autoswift.scan/1``: raw bytes and seconds."""
    return {
        "schema": SCHEMA,
        "strategy": decided.candidate.strategy,
        "machine_class": decided.machine_class,
        "model": decided.facts.model.id,
        "max_tokens": decided.candidate.max_tokens,
        "points": [asdict(point) for point in points],
    }


def _points(
    decided: Plan, folder: Path, asked: Request, table: tuple[Strategy, ...], env: Environment, progress: Progress
) -> Iterator[Point]:
    wanted = pairs(decided)
    for number, (micro, accumulation) in enumerate(wanted, 1):
        progress.stage(f"scan {number} of {len(wanted)}: micro batch {micro}, accumulation {accumulation}")
        pinned = _pinned(decided, asked, micro, accumulation)
        try:
            plan = committed.decide(pinned, decided.facts, table, env, progress)
        except (NothingFitsError, UsageError) as error:
            yield _unmeasured(decided, micro, accumulation, error.what)
            continue
        verdict = gate.run_gate(
            plan,
            render.render(plan),
            root=Path(env.cwd),
            run=folder,
            env=env,
            timeout_s=asked.gate_timeout_s.value,
            whole_steps=True,
            progress=progress,
        )
        calibration.keep_if_possible(env, plan.machine_class, calibration.learn(plan, verdict), progress)
        yield _measured(plan, verdict)


def _pinned(decided: Plan, asked: Request, micro: int, accumulation: int) -> Request:
    """The same plan with other numbers: what the planner would choose anew is held."""
    held = {
        "per_device_train_batch_size": str(micro),
        "gradient_accumulation_steps": str(accumulation),
        "save_strategy": "no",
    }
    checkpointing = decided.engine_args.get("gradient_checkpointing")
    if checkpointing is not None and isinstance(checkpointing.value, str):
        held["gradient_checkpointing"] = checkpointing.value
    pins = {**asked.pins, **{flag: Sourced(value=value, source="flag --scan") for flag, value in held.items()}}
    pins.pop("eval_strategy", None)  # without saves the engine does not evaluate
    strategy = asked.strategy
    if decided.strategy is not None:
        strategy = Sourced(value=decided.candidate.strategy, source="flag --scan")
    return replace(asked, pins=pins, strategy=strategy, recipe=None, decided=None)


def _measured(plan: Plan, verdict: Verdict) -> Point:
    candidate = plan.candidate
    on_gpu = candidate.device == "gpu"
    peaks = [one.driver_bytes or one.gpu_reserved_bytes if on_gpu else one.rss_bytes for one in verdict.measured]
    steady = next((one.seconds for one in verdict.measured if one.phase == "steady"), None)
    return Point(
        micro_batch=candidate.micro_batch,
        accumulation=candidate.accumulation,
        effective_batch=candidate.effective_batch,
        predicted_bytes=plan.prediction.driver_bytes,
        measured_bytes=max((peak for peak in peaks if peak is not None), default=None),
        predicted_step_s=plan.prediction.step_s,
        step_s=steady,
        rows_per_s=candidate.effective_batch / steady if steady else None,
        code=verdict.reason.code,
        text=verdict.reason.text,
        folder=verdict.folder,
    )


def _unmeasured(decided: Plan, micro: int, accumulation: int, why: str) -> Point:
    return Point(
        micro_batch=micro,
        accumulation=accumulation,
        effective_batch=micro * accumulation * decided.candidate.dp,
        predicted_bytes=None,
        measured_bytes=None,
        predicted_step_s=None,
        step_s=None,
        rows_per_s=None,
        code="not-planned",
        text=why,
        folder=None,
    )
