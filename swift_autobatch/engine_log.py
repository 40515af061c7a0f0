"""Reads what the engine leaves behind: logging.jsonl, its merged output, and our telemetry. Judges nothing.

Formats: engine rows as of ms-swift 4.6 (``trainers/patcher.py``, ``add_train_message``); NaN is the bare token
``NaN``; the last row is written after a crash as well, so its presence says nothing.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from swift_autobatch.records import Measured, Phase, Step

_STEP_KEY = "global_step/max_steps"
_PHASES: tuple[Phase, ...] = ("load", "first_step", "steady", "eval", "save", "resume")
# The others repeat a peak or fall between phases.
_PEAK_EVENTS = ("init", "train_begin", "step", "eval", "save", "resume", "pulse")


# --------------------------------------------------------------------------------------------- training rows


def read_rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The JSON objects of a line file, oldest first; an unfinished last line and foreign text are skipped.

    A missing or unreadable file has no rows.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return tuple(rows)


def steps(rows: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """The training rows of logging.jsonl as records; evaluation and summary rows are left out."""
    found = []
    for row in rows:
        made = steps_made(row)
        if "loss" in row and made is not None:
            found.append(
                Step(
                    step=made[0],
                    loss=_number(row.get("loss")),
                    grad_norm=_number(row.get("grad_norm")),
                    token_acc=_number(row.get("token_acc")),
                    learning_rate=_number(row.get("learning_rate")),
                    step_s=_number(row.get("train_speed(s/it)")),
                )
            )
    return tuple(found)


def steps_made(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """(steps made, steps planned) of a row, or None."""
    match = re.fullmatch(r"(\d+)/(\d+)", str(row.get(_STEP_KEY, "")))
    return (int(match[1]), int(match[2])) if match else None


def row_of_line(line: str) -> Mapping[str, Any] | None:
    """A training row as the engine prints it while it runs: a Python dict whose values are strings."""
    start = line.find("{'")
    if start < 0 or _STEP_KEY not in line:
        return None
    try:
        row = ast.literal_eval(line[start : line.rindex("}") + 1])
    except (ValueError, SyntaxError):
        return None
    return row if isinstance(row, dict) else None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# ------------------------------------------------------------------------------------------------ telemetry


def read_telemetry(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The rows of all ranks in ``folder``, in order of time."""
    rows = [row for path in sorted(folder.glob("telemetry-*.jsonl")) for row in read_rows(path)]
    return tuple(sorted((row for row in rows if row.get("v") == 1), key=lambda row: float(row.get("t") or 0)))


class Tail:
    """Telemetry as it grows: each call gives the rows that were finished since the last one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def rows(self) -> tuple[Mapping[str, Any], ...]:
        found: list[Mapping[str, Any]] = []
        for path in sorted(self._folder.glob("telemetry-*.jsonl")):
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    lines, newline, _ = file.read().rpartition(b"\n")
            except OSError:  # it cannot be written either: nothing is measured
                continue
            self._read[path] = self._read.get(path, 0) + len(lines) + len(newline)
            found += [row for line in lines.splitlines() if (row := _object(line)) and row.get("v") == 1]
        return tuple(found)


def _object(line: bytes) -> Mapping[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def effective(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What really runs, as the first rank that said so has it."""
    return next((row for row in rows if row.get("event") == "effective"), None)


def observed(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What came out of the first forward pass, as the first rank that said so has it."""
    return next((row for row in rows if row.get("event") == "observed"), None)


def imports_bytes(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Resident bytes of the largest rank when the engine was imported and no model was loaded."""
    return _largest((row for row in rows if row.get("event") == "imports"), "rss_bytes")


def last_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The last row of each rank, in the order of ranks."""
    last = {int(row["rank"]): row for row in rows}
    return tuple(last[rank] for rank in sorted(last))


def supervised_tokens(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Tokens with a label in the steps that were counted, over all ranks; None: nobody counted."""
    counted = [row["supervised_tokens"] for row in rows if isinstance(row.get("supervised_tokens"), int)]
    return sum(counted) if counted else None


def measured(rows: Iterable[Mapping[str, Any]]) -> tuple[Measured, ...]:
    """Peaks by phase over all ranks, in the order of phases; phases that did not happen are absent."""
    by_phase: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("event") in _PEAK_EVENTS:
            by_phase.setdefault(str(row.get("phase")), []).append(row)
    return tuple(_peaks(phase, by_phase[phase]) for phase in _PHASES if phase in by_phase)


def _peaks(phase: Phase, rows: list[Mapping[str, Any]]) -> Measured:
    rss, pinned = _by_rank(rows, "rss_bytes"), _by_rank(rows, "pinned_bytes")
    steps = sorted(row["step_s"] for row in rows if isinstance(row.get("step_s"), (int, float)))
    took = [row["phase_s"] for row in rows if isinstance(row.get("phase_s"), (int, float))]
    return Measured(
        phase=phase,
        gpu_allocated_bytes=_largest(rows, "gpu_allocated_bytes"),
        gpu_reserved_bytes=_largest(rows, "gpu_reserved_bytes"),
        driver_bytes=_largest(rows, "driver_bytes"),
        rss_bytes=max(rss.values(), default=None),
        rss_sum_bytes=sum(rss.values()) if rss else None,
        seconds=steps[len(steps) // 2] if steps else max(took, default=None),
        pinned_bytes=sum(pinned.values()) if pinned else None,
        shm_bytes=_largest(rows, "shm_bytes"),
        cgroup_bytes=_largest(rows, "cgroup_bytes"),
    )


def _by_rank(rows: Iterable[Mapping[str, Any]], key: str) -> dict[int, int]:
    """The largest value of each rank that has one."""
    found: dict[int, int] = {}
    for row in rows:
        if isinstance(row.get(key), int):
            found[int(row["rank"])] = max(found.get(int(row["rank"]), 0), row[key])
    return found


def _largest(rows: Iterable[Mapping[str, Any]], key: str) -> int | None:
    return max((row[key] for row in rows if isinstance(row.get(key), int)), default=None)


def last_phase(rows: Iterable[Mapping[str, Any]]) -> Phase | None:
    """The phase the job was in when the rows end; None: it never got as far as a trainer."""
    phase: Phase | None = None
    for row in rows:
        if row.get("event") in ("train_begin", "effective"):
            phase = "first_step"
        elif row.get("event") in ("step", "eval", "save", "resume"):  # these end what they name
            phase = "steady"
        elif row.get("event") == "imports":
            continue
        elif row.get("phase") in _PHASES:
            phase = cast(Phase, row["phase"])
    return phase


# --------------------------------------------------------------------------------------------------- output


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What the engine's output says, without a judgement."""

    exceptions: tuple[str, ...]  # last lines of tracebacks, ``Type: text``, in order, without repeats
    frames: tuple[str, ...]  # files that occur in tracebacks, below site-packages
    oom: str | None  # the line that says that the accelerator ran out of memory
    oom_asked: str | None  # how much it asked for, as the allocator says it
    host_oom: str | None  # the line that says that the host ran out of memory
    filtered: tuple[int, int] | None  # (rows before, rows after) the engine's own filter
    killed_by: int | None  # signal that torchrun saw kill a worker
    argument_error: str | None  # what argparse, or the engine's own check of flags, said
    tail: tuple[str, ...]  # last lines, progress bars left out


_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]:\s?)?((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration))(: .*)?$"
)
_FRAME = re.compile(r'File "[^"]*site-packages/([^"]+)", line \d+')
_OOM = re.compile(r"(CUDA|MPS backend|HIP|NPU|XPU) out of memory|torch\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED")
_ASKED = re.compile(r"Tried to allocate ([\d.]+ [KMGT]?i?B)")
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|^(\[rank\d+\]: )?MemoryError|Cannot allocate memory"
)
_FILTERED = re.compile(r"Dataset filtered, origin length: (\d+), filtered dataset length: (\d+)")
_KILLED = re.compile(r"exitcode\s*:\s*-(\d+)|exit code: -(\d+)|Signal (\d+) \(SIG\w+\) received by PID")
_ARGUMENT = re.compile(r"error: (argument .*|.*expected .* argument.*|unrecognized arguments.*)|(remaining_argv: .*)")
_WRAPPERS = ("ChildFailedError", "CalledProcessError")  # say only that a worker failed


def scan(text: str) -> LogFacts:
    """Reads the engine's merged output, ``\\r`` progress included."""
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines()]
    exceptions: dict[str, None] = {}
    frames: dict[str, None] = {}
    first: dict[str, str] = {}
    filtered = killed = None
    for line in lines:
        if (match := _EXCEPTION.match(line)) and not match[1].endswith(_WRAPPERS):
            exceptions[f"{match[1]}{match[2] or ''}"] = None
        if match := _FRAME.search(line):
            frames[match[1]] = None
        if match := _FILTERED.search(line):
            filtered = (int(match[1]), int(match[2]))
        if match := _KILLED.search(line):
            killed = killed or int(match[1] or match[2] or match[3])
        for name, pattern in (("oom", _OOM), ("asked", _ASKED), ("host", _HOST_OOM), ("argument", _ARGUMENT)):
            if match := pattern.search(line):
                first.setdefault(name, next((group for group in match.groups() if group), line).strip())
                first.setdefault(name + "-line", line.strip())
    return LogFacts(
        exceptions=tuple(exceptions),
        frames=tuple(frames),
        oom=first.get("oom-line"),
        oom_asked=first.get("asked"),
        host_oom=first.get("host-line"),
        filtered=filtered,
        killed_by=killed,
        argument_error=first.get("argument"),
        tail=tuple(line for line in lines if line.strip() and not re.search(r"\d+%\|", line))[-12:],
    )


def read_log(path: Path, limit: int = 4 << 20) -> str:
    """The log's text, the last ``limit`` bytes of a long one; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
