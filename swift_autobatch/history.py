"""What earlier receipts say of a plan: how far they lay from the prediction, and with which versions. Pure.

How wide the band is follows from what was measured of a class of machine (see ``predict/band.py``); here it is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from swift_autobatch.records import Plan

Receipt = Mapping[str, Any]
_SHOWN = 4  # versions that differ, named in one sentence
_MATTER = ("ms-swift", "torch", "transformers", "peft", "deepspeed", "bitsandbytes", "flash-attn", "liger-kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One receipt's peak and step, measured over predicted; None where one of the two is missing."""

    memory: float | None
    step: float | None


def seen(receipt: Receipt) -> Seen:
    """Measured over predicted of a receipt: the training's where there was one, else the dry run's.

    Memory is what is reserved on a card, in the phases that a plan is judged by; on CPU the resident bytes of a rank.
    A step's time is a training's only: a dry run makes the dearest steps there are.
    """
    predicted = receipt["predicted"]
    training = receipt.get("training") or {}
    measured = training.get("phases") or (receipt.get("measured") or {}).get("phases") or {}
    judged = [phase for name, phase in measured.items() if name != "resume"]
    reserved = _largest(judged, "gpu_reserved_bytes")
    needs, driver = predicted.get("needs_p50_bytes"), predicted.get("driver_bytes")
    memory = _over(reserved, needs) if reserved else _over(_largest(judged, "rss_bytes"), driver)
    steady = (training.get("phases") or {}).get("steady") or {}
    return Seen(memory=memory, step=_over(steady.get("step_s"), predicted.get("step_s")))


def _largest(phases: Iterable[Mapping[str, Any]], key: str) -> float | None:
    return max((phase[key] for phase in phases if phase.get(key)), default=None)


def _over(measured: float | None, predicted: float | None) -> float | None:
    return measured / predicted if measured and predicted else None


def drift(receipt: Receipt, now: Mapping[str, str | None]) -> tuple[tuple[str, str | None, str | None], ...]:
    """(name, version then, version now) of what matters to a prediction and is no longer the same."""
    then = receipt.get("versions", {})
    pairs = ((name, then.get(name), now.get(name)) for name in _MATTER)
    return tuple(pair for pair in pairs if pair[1] != pair[2])


def drift_text(changes: Sequence[tuple[str, str | None, str | None]]) -> str:
    """Changed versions in words."""
    told = [f"{name} {then or 'absent'} -> {now or 'absent'}" for name, then, now in changes[:_SHOWN]]
    more = len(changes) - _SHOWN
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")


def cite(receipts: Iterable[Receipt], plan: Plan) -> tuple[str, ...]:
    """What a plan tells, beside its assumptions, of receipts of the same model and strategy on its class of machine.

    Returns:
        Sentences; () where there is no such receipt.
    """
    alike = [one for one in receipts if _alike(one, plan)]
    if not alike:
        return ()
    ratios = [seen(one) for one in alike]
    runs = "1 receipt" if len(alike) == 1 else f"{len(alike)} receipts"
    told = [
        f"{what} {_range(values)} of what was predicted"
        for what, values in (
            ("memory", [one.memory for one in ratios if one.memory]),
            ("step time", [one.step for one in ratios if one.step]),
        )
        if values
    ]
    notes = (
        [f"{runs} of this model, {plan.candidate.strategy}, on this class of machine: {', '.join(told)}"]
        if told
        else []
    )
    changes = drift(alike[-1], plan.facts.machine.software.versions)
    if changes:
        notes.append(f"since the last receipt {drift_text(changes)}: what it measured may no longer hold")
    return tuple(notes)


def _alike(receipt: Receipt, plan: Plan) -> bool:
    wanted = (plan.machine_class, plan.candidate.strategy, plan.facts.model.id)
    return (receipt["machine_class"], receipt["strategy"], receipt["model"]) == wanted


def _range(values: Sequence[float]) -> str:
    """``97 %``, or the median and the range of several."""
    if len(values) == 1:
        return f"{values[0]:.0%}"
    return f"{median(values):.0%} ({min(values):.0%} to {max(values):.0%})"
