"""What people read on stdout of ``check``."""

from __future__ import annotations

from typing import Any

from swift_autobatch.adopt import Adopted
from swift_autobatch.cli import text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.records import Plan
from swift_autobatch.review import ONE_PROCESS, Review
from swift_autobatch.units import show_gib, show_seconds


def review(found: Review, *, columns: int | None = None) -> list[str]:
    """The job in one line, its oddities by line, what it needs, and what autoswift would change."""
    columns = columns or text.width()
    adopted = found.adopted
    needs = _needs(found.as_written, columns) if found.as_written else text.wrapped(found.why, columns)
    own = _needs(found.own, columns) if found.own and not found.as_written else []
    return joined(
        [
            text.wrapped(f"{adopted.path}:{adopted.line}: {adopted.kind}, {_job(found)}", columns, "  ", ""),
            section("What is odd", findings(adopted, columns=columns)),
            section("As it is written", needs),
            section("autoswift would run", own),
            section("autoswift would change", text.bullets(found.changes, columns)),
            section("Assumed", text.bullets(found.assumed, columns)),
        ]
    )


def findings(adopted: Adopted, *, columns: int) -> list[str]:
    """One paragraph a finding: level, line, text, fix."""
    lines: list[str] = []
    for one in adopted.findings:
        fix = f" -> {one.fix}" if one.fix else ""
        lines += text.wrapped(f"line {one.line}: {one.text}{fix}", columns, "         ", f"  {one.level:5}  ")
    return lines


def _job(found: Review) -> str:
    request = found.request
    tuner = request.pins.get("tuner_type")
    words = [
        str(request.model.value or "no model named"),
        str(tuner.value) if tuner else "lora",
        _processes(found.adopted),
        ", ".join(request.datasets.value) or "no dataset named",
    ]
    return "; ".join(words)


def _processes(adopted: Adopted) -> str:
    if adopted.nproc:
        return "one process" if adopted.nproc == 1 else f"{adopted.nproc} processes"
    return "one process" if adopted.kind in ONE_PROCESS else "one process a card"


def _needs(plan: Plan, columns: int) -> list[str]:
    candidate, prediction = plan.candidate, plan.prediction
    batch = f"{candidate.micro_batch} x {candidate.dp} ranks x {candidate.accumulation} = {candidate.effective_batch}"
    pairs = [
        ("machine", plan.machine_class),
        ("parallel", candidate.parallel + (f", sequence parallel {candidate.sp}" if candidate.sp > 1 else "")),
        ("batch", batch),
        ("longest row", f"{candidate.max_tokens} tokens"),
        ("memory", f"{show_gib(prediction.driver_bytes)} a card, {show_gib(prediction.host_bytes, 0)} host RAM"),
        ("time", f"{show_seconds(prediction.step_s)} a step, {show_seconds(prediction.epoch_s)} an epoch"),
    ]
    return text.rows(pairs, columns)


def as_json(found: Review) -> dict[str, Any]:
    """The review as ``autoswift.check/1``."""
    adopted = found.adopted
    return {
        "schema": "autoswift.check/1",
        "file": adopted.path,
        "kind": adopted.kind,
        "line": adopted.line,
        "flags": {name: list(setting.words) for name, setting in adopted.flags.items()},
        "nproc": adopted.nproc,
        "findings": [
            {"level": one.level, "line": one.line, "text": one.text, "fix": one.fix} for one in adopted.findings
        ],
        "as_written": _figures(found.as_written),
        "own": _figures(found.own),
        "why": found.why or None,
        "runs": found.runs,
        "changes": list(found.changes),
        "assumed": list(found.assumed),
    }


def _figures(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        "strategy": plan.candidate.strategy,
        "driver_bytes": plan.prediction.driver_bytes,
        "host_bytes": plan.prediction.host_bytes,
        "step_s": plan.prediction.step_s,
        "epoch_s": plan.prediction.epoch_s,
        "effective_batch": plan.candidate.effective_batch,
    }
