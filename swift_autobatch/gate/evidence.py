"""What a dry run left behind, as one record that the judge reads; and its collection from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_autobatch import engine_log
from swift_autobatch.process import ChildResult
from swift_autobatch.records import Measured, Phase, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the judge may look at. ``exit_code`` and ``signal`` never decide alone."""

    exit_code: int
    signal: int | None
    timed_out: bool
    seconds: float
    rows: int  # in the probe file
    planned_steps: int
    planned_accumulation: int
    planned_phases: tuple[Phase, ...]  # after the steps: eval, save, resume
    steps: tuple[Step, ...]
    measured: tuple[Measured, ...]
    effective: Mapping[str, Any] | None
    observed: Mapping[str, Any] | None  # what came out of the first forward pass
    imports_bytes: int | None  # resident, of the largest rank, before it loaded a model
    last: tuple[Mapping[str, Any], ...]  # the last row of each rank's telemetry
    supervised_tokens: int | None  # in all steps, over all ranks; None: not counted
    phase: Phase | None  # where the job was when the telemetry ends; None: before a trainer existed
    log: engine_log.LogFacts
    log_error: str | None = None


def collect(
    folder: Path,
    child: ChildResult,
    *,
    rows: int,
    planned_steps: int,
    planned_accumulation: int,
    planned_phases: tuple[Phase, ...],
) -> Evidence:
    """Reads the engine's and our own files in a dry run's folder."""
    telemetry = engine_log.read_telemetry(folder / "autoswift")
    return Evidence(
        exit_code=child.exit_code,
        signal=child.signal,
        timed_out=child.timed_out,
        seconds=child.seconds,
        rows=rows,
        planned_steps=planned_steps,
        planned_accumulation=planned_accumulation,
        planned_phases=planned_phases,
        steps=engine_log.steps(engine_log.read_rows(folder / "logging.jsonl")),
        measured=engine_log.measured(telemetry),
        effective=engine_log.effective(telemetry),
        observed=engine_log.observed(telemetry),
        imports_bytes=engine_log.imports_bytes(telemetry),
        last=engine_log.last_rows(telemetry),
        supervised_tokens=engine_log.supervised_tokens(telemetry),
        phase=engine_log.last_phase(telemetry),
        log=engine_log.scan(engine_log.read_log(folder / "autoswift" / "swift.log")),
        log_error=child.log_error,
    )
