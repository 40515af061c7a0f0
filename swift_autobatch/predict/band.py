"""The width of a prediction: p50 to p99 of what does not last, by kind of configuration.

A kind is tuner x sharding x offload x how the tensors were counted. The figures come from published runs
(data/residuals.yaml); what this machine has measured replaces them, for one kind
(``calibration={"moving_p99:lora-whole-closed-form": ...}``) or for all (``moving_p99``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swift_autobatch import tables
from swift_autobatch.records import Candidate

CALIBRATED = "moving_p99"  # the name by which receipts replace the width


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Measured over predicted, of what does not last."""

    p99: float
    runs: int  # that stand behind it; 0: this machine's own
    kind: str


def kind_of(candidate: Candidate, counted: str = "closed-form") -> str:
    """The kind of a configuration, as data/residuals.yaml names it.

    Args:
        counted: ``closed-form`` or ``trace``.
    """
    tuner = "full" if candidate.tuner == "full" else "quantised" if candidate.quant != "none" else "lora"
    sharding = "zero" if candidate.uses_deepspeed else "fsdp" if candidate.uses_fsdp else "whole"
    if candidate.parallel == "megatron":
        sharding = "megatron"
    return f"{tuner}-{sharding}{'-offload' if candidate.offload else ''}-{counted}"


def band(candidate: Candidate, calibration: Mapping[str, float] | None) -> Band:
    """The band of one configuration: its kind's, or that of all kinds where no run of it is known.

    Returns:
        ``p99`` is never below 1: half of the runs need more than p50.

    Source: data/residuals.yaml, written by benchmarks/residuals.py.
    """
    found, kind = tables.residuals(), kind_of(candidate)
    row = found.get(kind)
    if row is None:
        kind, row = "all", found["all"]
    ours = calibration or {}
    measured = ours.get(f"{CALIBRATED}:{kind_of(candidate)}", ours.get(CALIBRATED))
    if measured is not None:
        return Band(p99=max(1.0, measured), runs=0, kind="this machine")
    return Band(p99=max(1.0, row.p99), runs=row.runs, kind=kind)
