"""How fast a machine's parts are: data/speed.yaml as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

from swift_autobatch import tables


@dataclass(frozen=True, slots=True)
class Rates:
    """data/speed.yaml as attributes; see there for units and sources."""

    mfu_dense: float
    mfu_half_tokens: float
    traffic_efficiency: float
    op_s: float
    cpu_op_s: float
    link_efficiency: float
    overlap: float
    host_adam_efficiency: float
    cpu_gemm_efficiency: float


@cache
def _defaults() -> Rates:
    return Rates(**{field.name: tables.coefficients("speed")[field.name].value for field in fields(Rates)})


def rates(calibration: Mapping[str, float] | None) -> Rates:
    """The coefficients of the step time, those that this machine has measured replaced by name."""
    if not calibration:
        return _defaults()
    own = {field.name: calibration.get(field.name, getattr(_defaults(), field.name)) for field in fields(Rates)}
    return Rates(**own)
