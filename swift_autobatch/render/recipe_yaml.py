"""Plan -> project recipe: the file that a project commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from swift_autobatch.records import Plan, Prediction, Request, Sourced
from swift_autobatch.render.engine_config import deepspeed_config, fsdp_config
from swift_autobatch.tables import DIALECT

KIND = "autoswift.recipe/1"
_HEADER = """\
# Written by autoswift. Run it:    autoswift sft --recipe {name}
# Prove it first:                  autoswift dry-run --recipe {name}
# On a machine of the class below the decision is taken as it stands; elsewhere it is planned again (--locked: stop).
"""
# Not part of a decision: where the data happens to lie, and what follows from facts.
_FACTS = frozenset({"max_tokens", "freezes", "device"})


def recipe_yaml(plan: Plan, request: Request, *, name: str, measured: Mapping[str, Any] | None = None) -> str:
    """A project recipe as text; the same plan gives the same bytes.

    Args:
        name: the file name, for the header.
        measured: figures of the gate or the run (bytes, seconds), None before either.
    """
    document = {
        "schema": KIND,
        "request": _request(plan, request),
        "planned": {
            "machine_class": plan.machine_class,
            "strategy": plan.candidate.strategy,
            "digest": plan.digest,
            "engine": DIALECT,
            "candidate": {key: value for key, value in asdict(plan.candidate).items() if key not in _FACTS},
            "arguments": {flag: _plain(arg.value) for flag, arg in plan.engine_args.items()},
            "environment": {variable: value.value for variable, value in plan.env.items()},
            "deepspeed": deepspeed_config(plan.candidate),
            "fsdp": fsdp_config(plan.candidate),
        },
        "predicted": predicted(plan.prediction),
        "measured": dict(measured) if measured else None,
    }
    body = yaml.dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False)
    return _HEADER.format(name=name) + body


def predicted(prediction: Prediction) -> dict[str, Any]:
    """The figures a recipe keeps: bytes per device, seconds per optimizer step."""
    return {
        "gpu_driver_bytes": prediction.driver_bytes,
        "gpu_needs_p99_bytes": prediction.needs_p99_bytes,
        "host_bytes": prediction.host_bytes,
        "step_s": round(prediction.step_s, 4),
        "binding_phase": prediction.binding_phase,
    }


def _request(plan: Plan, request: Request) -> dict[str, Any]:
    base = request.lr_base.value
    asked: dict[str, Any] = {
        "model": _plain(plan.engine_args["model"].value),
        "dataset": _relative(plan.engine_args["dataset"].value),
        "strategy": request.strategy.value,
        "parallel_method": request.parallel_method.value,
        "global_batch": request.global_batch.value,
        "lr_scaling": request.lr_scaling.value,
        "lr_base": f"{base[0]:g}@{base[1]}" if base else None,
        "flags": {flag: _plain(pin.value) for flag, pin in request.pins.items() if not _demonstration(pin)},
    }
    asked["model"] = str(asked["model"]).removeprefix("$ROOT/")
    if plan.facts.model.embedded:
        asked["model"] = None  # built on the spot: the path belongs to one user's cache
    return asked


def _demonstration(pin: Sourced[Any]) -> bool:
    return pin.source.startswith("embedded demonstration")


def _relative(names: str | tuple[str, ...]) -> list[str]:
    spelled = (names,) if isinstance(names, str) else names
    return [name.removeprefix("$ROOT/") for name in spelled]


def _plain(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)
