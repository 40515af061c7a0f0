"""What dry runs have measured of a class of machine: coefficients of the prediction, kept and read back by name.

Only what belongs to the device is learned: the context that the driver holds, NCCL's buffers, what the allocator
reserves beyond what it allocates, what a process holds before it has a model, and how wide the prediction of what
passes in a step has to be. Never a factor over the terms of the model. The file is
``<state>/calibration/<machine class>.json``, schema ``autoswift.calibration/1``; deleting it forgets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swift_autobatch import render
from swift_autobatch.errors import InputError, MachineError
from swift_autobatch.predict import predict
from swift_autobatch.predict.band import CALIBRATED, band, kind_of
from swift_autobatch.predict.instants import LASTING, LAYERS, ROWS
from swift_autobatch.predict.job import check_calibration, constants
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment, Facts, Measured, Plan, Reason, Verdict, replace
from swift_autobatch.units import GIB, show_gib

SCHEMA = "autoswift.calibration/1"
MEMORY_CODES = frozenset({"gpu-oom", "host-kill", "over-budget"})
_WIDEST = 3.0  # a band above this says that something else is wrong
_NEAR = 0.7  # of the budget: a training that died of memory below it did not take it itself
_MARGIN = 1.03  # rows of another order, another day: above what one run measured
_CPU_TRAINS_GIB = 0.1  # what training adds to a CPU process beside the model's own: data/coefficients.yaml
_MOVES = 0.1  # a share of the need that has to move for a run to say anything of its width
_OUTSIDE = (0.05 * GIB, 3 * GIB)  # what a context can be; beyond it another process came or went


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """One coefficient, and the sentence that says how it was measured. ``refused``: by a run that did not fit."""

    name: str
    value: float
    why: str
    refused: bool = False


# ------------------------------------------------------------------------------------------------------ keeping


def path_of(env: Environment, machine_class: str) -> Path:
    """Where the coefficients of a machine class lie."""
    return Path(env.state_dir) / "calibration" / f"{machine_class}.json"


def read(env: Environment, machine_class: str) -> Mapping[str, float]:
    """The coefficients of a machine class by name; a missing, torn or foreign file holds none."""
    return {one.name: one.value for one in _entries(path_of(env, machine_class))}


def keep(env: Environment, machine_class: str, learned: tuple[Learned, ...]) -> None:
    """Adds what was learned to the file; a width that a refusal asked for is never narrowed by a run that passed.

    Raises:
        MachineError: the state folder cannot be written.
    """
    if not learned:
        return
    path = path_of(env, machine_class)
    entries = {one.name: one for one in _entries(path)}
    for one in learned:
        before = entries.get(one.name)
        if before is None or one.refused or not (before.refused and before.value > one.value):
            entries[one.name] = one
    document = {
        "schema": SCHEMA,
        "machine_class": machine_class,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "coefficients": {
            one.name: {key: value for key, value in asdict(one).items() if key != "name"} for one in entries.values()
        },
    }
    render.write_file(path, render.to_json(document))


def keep_if_possible(env: Environment, machine_class: str, learned: tuple[Learned, ...], progress: Progress) -> None:
    """:func:`keep`; what cannot be kept is a warning, and is used for the job at hand all the same."""
    try:
        keep(env, machine_class, learned)
    except MachineError as error:
        progress.stage(f"warning: what was measured of this machine is not kept: {error.what}")


def _entries(path: Path) -> tuple[Learned, ...]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = found["coefficients"].items() if found["schema"] == SCHEMA else ()
        entries = tuple(Learned(name=name, **{**row, "value": float(row["value"])}) for name, row in rows)
        check_calibration({one.name: one.value for one in entries})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        return ()
    return entries


# ----------------------------------------------------------------------------------------------------- learning


def learn(plan: Plan, verdict: Verdict) -> tuple[Learned, ...]:
    """What a dry run has measured of this class of machine. Pure.

    A pass narrows or widens the band of its kind; a run that did not fit widens it until this plan is not judged to fit
    any more, or, where what lasts alone fills the device, counts the lack as the process's own.
    """
    found = _constants(plan, verdict)
    facts = with_learned(plan.facts, found)
    if verdict.verdict == "pass":
        return (*found, *_width(plan, facts, verdict))
    if verdict.reason.code in MEMORY_CODES:
        return (*found, *_refusal(plan, facts, verdict))
    return found


def learn_from_training(plan: Plan, measured: tuple[Measured, ...], died_of: str | None) -> tuple[Learned, ...]:
    """What a whole training has measured of the band: it may only widen it, for its dearest rows need not have met.

    Args:
        died_of: ``gpu-oom`` or ``host-kill``; None: it went to its end.
    """
    seen = Verdict(
        verdict="pass" if died_of is None else "fail",
        reason=Reason(code=died_of or "pass", text="training"),
        measured=measured,
        steps=(),
        child_exit=None,
        seconds=0.0,
        folder="",
        rows=(),
    )
    if died_of is not None:
        return _refusal(plan, plan.facts, seen) if _was_near(plan, measured, died_of) else ()
    now = band(plan.candidate, plan.facts.calibration).p99
    return tuple(one for one in _width(plan, plan.facts, seen) if one.value > now)


def _was_near(plan: Plan, measured: tuple[Measured, ...], died_of: str) -> bool:
    """Whether the job itself held most of what there is; else somebody else took it, and that teaches nothing."""
    on_host = died_of == "host-kill"
    held = [one.rss_sum_bytes if on_host else one.gpu_reserved_bytes for one in measured]
    budget = plan.prediction.host_budget_bytes if on_host else plan.prediction.budget_bytes
    return max((size for size in held if size is not None), default=0) >= _NEAR * budget


def with_learned(facts: Facts, learned: tuple[Learned, ...]) -> Facts:
    """The same facts with what was learned in the place of what was known."""
    return replace(facts, calibration={**facts.calibration, **{one.name: one.value for one in learned}})


def _constants(plan: Plan, verdict: Verdict) -> tuple[Learned, ...]:
    if plan.candidate.device == "cpu":
        if verdict.imports_bytes is None:
            return ()
        value = verdict.imports_bytes / GIB + _CPU_TRAINS_GIB
        why = f"{show_gib(verdict.imports_bytes)} resident after the imports, {_CPU_TRAINS_GIB} more once training"
        return (Learned(name="cpu_process_gib", value=round(value, 3), why=why),)
    return (*_outside(plan, verdict), *_reserve(plan, verdict), *_process(plan, verdict))


def _outside(plan: Plan, verdict: Verdict) -> tuple[Learned, ...]:
    """What the driver counts beyond the allocator's reserve, without what was taken before."""
    cards = plan.facts.machine.gpus[: plan.candidate.world]
    before = max((gpu.total_bytes - gpu.free_bytes for gpu in cards), default=0)
    gaps = [
        one.driver_bytes - one.gpu_reserved_bytes - before
        for one in verdict.measured
        if one.driver_bytes is not None and one.gpu_reserved_bytes is not None
    ]
    gap = max(gaps, default=0)
    if not _OUTSIDE[0] <= gap <= _OUTSIDE[1]:
        return ()
    why = f"the driver counts {show_gib(gap)} beyond what PyTorch has reserved"
    if plan.candidate.world == 1:
        return (Learned(name="context_gib", value=round(gap / GIB, 3), why=why),)
    context = constants(plan.facts.calibration).context_gib
    return (Learned(name="nccl_gib", value=round(max(0.0, gap / GIB - context), 3), why=why + ", context taken off"),)


def _reserve(plan: Plan, verdict: Verdict) -> tuple[Learned, ...]:
    """What the allocator reserves for what passes in a step; a traced plan has its allocator replayed instead."""
    steady = _phase(verdict, "steady")
    if steady is None or plan.prediction.traced or not steady.gpu_allocated_bytes or not steady.gpu_reserved_bytes:
        return ()
    sizes = {"lasting": 0, "layers": 0, "passing": 0}
    for term in plan.prediction.terms:
        kind = "lasting" if term.name in LASTING else "layers" if term.name in LAYERS else "passing"
        sizes[kind] += term.bytes if term.name not in ROWS or kind == "passing" else 0
    if sizes["passing"] < _MOVES * sum(sizes.values()):
        return ()
    known = constants(plan.facts.calibration)
    over = steady.gpu_reserved_bytes - steady.gpu_allocated_bytes
    over -= int((known.reserve_lasting - 1) * sizes["lasting"] + (known.reserve_layers - 1) * sizes["layers"])
    value = min(2.0, max(1.0, 1 + over / sizes["passing"]))
    why = f"{show_gib(steady.gpu_reserved_bytes)} reserved for {show_gib(steady.gpu_allocated_bytes)} allocated"
    return (Learned(name="reserve_passing", value=round(value, 3), why=why),)


def _process(plan: Plan, verdict: Verdict) -> tuple[Learned, ...]:
    """What a process beside a card holds in RAM, where nothing of the job is kept there."""
    steady = _phase(verdict, "steady")
    if steady is None or plan.candidate.offload or steady.rss_bytes is None:
        return ()
    why = f"{show_gib(steady.rss_bytes)} resident in a step, with nothing offloaded"
    return (Learned(name="gpu_process_gib", value=round(steady.rss_bytes / GIB, 3), why=why),)


def _phase(verdict: Verdict, phase: str) -> Measured | None:
    return next((one for one in verdict.measured if one.phase == phase), None)


# -------------------------------------------------------------------------------------------- how wide the band


def _width(plan: Plan, facts: Facts, verdict: Verdict) -> tuple[Learned, ...]:
    seen = _held(plan, facts, verdict)
    fixed, moving = _split(plan, facts)
    if seen is None or moving < _MOVES * (fixed + moving):
        return ()
    value = max(1.0, min(_WIDEST, (seen - fixed) / moving)) * _MARGIN
    why = f"{show_gib(seen)} measured where {show_gib(int(fixed + moving))} were predicted, and {_MARGIN - 1:.0%} more"
    return (Learned(name=_name(plan), value=round(value, 3), why=why),)


def _name(plan: Plan) -> str:
    return f"{CALIBRATED}:{kind_of(plan.candidate)}"


def _held(plan: Plan, facts: Facts, verdict: Verdict) -> int | None:
    """Bytes of the job itself on its device, at the worst phase that a plan is judged by."""
    judged = [one for one in verdict.measured if one.phase != "resume"]
    if plan.candidate.device == "gpu":
        return max((one.gpu_reserved_bytes for one in judged if one.gpu_reserved_bytes), default=None)
    resident = max((one.rss_bytes for one in judged if one.rss_bytes), default=None)
    return None if resident is None else resident - predict(facts, plan.candidate).context_bytes


def _split(plan: Plan, facts: Facts) -> tuple[float, float]:
    """(bytes that no width changes, bytes at width 1 that it multiplies) of the need on one device."""
    name = _name(plan)
    one = predict(facts, plan.candidate, {**facts.calibration, name: 1.0}).needs_p99_bytes
    two = predict(facts, plan.candidate, {**facts.calibration, name: 2.0}).needs_p99_bytes
    return float(one - (two - one)), float(two - one)


def _refusal(plan: Plan, facts: Facts, verdict: Verdict) -> tuple[Learned, ...]:
    """The least that has to change for this plan not to be judged to fit: it did not."""
    why = f"{plan.candidate.strategy}, micro batch {plan.candidate.micro_batch}: {verdict.reason.code}"
    if not predict(facts, plan.candidate).fits:
        return ()  # what was measured of the machine says so already
    name = _name(plan)
    now = band(plan.candidate, facts.calibration).p99
    on_host = verdict.reason.code == "host-kill" and plan.candidate.device == "gpu"
    if not on_host and (value := _least(plan, facts, name, now, _WIDEST)) is not None:
        fixed, moving = _split(plan, facts)
        needed = verdict.oom.get("allocated_bytes", 0) + verdict.oom.get("asked_bytes", 0)
        value = max(value, (needed - fixed) / moving if moving else 0) * _MARGIN
        return (Learned(name=name, value=round(value, 4), why=why, refused=True),)
    process = "cpu_process_gib" if plan.candidate.device == "cpu" else "context_gib"
    process = "gpu_process_gib" if on_host else process
    start = getattr(constants(facts.calibration), process)
    most = start + max(plan.prediction.budget_bytes, plan.prediction.host_budget_bytes) / GIB + 1
    value = _least(plan, facts, process, start, most)
    if value is None:
        return ()
    return (Learned(name=process, value=round(value * _MARGIN, 4), why=why, refused=True),)


def _least(plan: Plan, facts: Facts, name: str, low: float, high: float) -> float | None:
    """The least value of a coefficient under which the plan does not fit; None: it fits under all up to ``high``."""

    def fits(value: float) -> bool:
        return predict(facts, plan.candidate, {**facts.calibration, name: value}).fits

    if fits(high):
        return None
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return high
