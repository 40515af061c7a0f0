"""Plan -> project recipe: the file that a project commits. ``recipe.py`` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import yaml

from swift_autobatch.recipe import planned_digest, request_digest
from swift_autobatch.records import Measured, Plan, Prediction, Request, Sourced
from swift_autobatch.render.engine_config import configs
from swift_autobatch.tables import DIALECT
from swift_autobatch.yaml_file import PROJECT

_HEADER = """\
# Written by autoswift. Run it:    autoswift sft --recipe {name}
# Prove it first:                  autoswift dry-run --recipe {name}
# Edit 'request' only. On a machine of the class below 'planned' is taken as it stands; elsewhere, and after an edit,
# it is said and planned again (--locked: stop). To commit the new decision: --save-recipe {name} --force
"""
# Not part of a decision: they follow from the facts.
_FACTS = frozenset({"max_tokens", "device"})


def recipe_yaml(plan: Plan, request: Request, *, name: str, measured: Mapping[str, Any] | None = None) -> str:
    """A project recipe as text; the same plan gives the same bytes.

    Args:
        request: what was asked, defaults filled in.
        name: the file name, for the header.
        measured: what :func:`measured_figures` gives; None before any run: then what an equal plan's recipe holds.
    """
    asked = _request(plan, request)
    if measured is None and request.recipe is not None and request.recipe.digest == plan.digest:
        measured = request.recipe.measured
    document = {
        "schema": PROJECT,
        "request": asked,
        "planned": _planned(plan, asked),
        "predicted": predicted_figures(plan.prediction),
        "measured": dict(measured) if measured else None,
    }
    return _HEADER.format(name=name) + _dumped(document)


def asked_yaml(request: Request, *, source: str, name: str) -> str:
    """A project recipe that only asks, and was never planned.

    Args:
        source: the file that it was read from, for the header.
        name: the file name, for the header.
    """
    method = request.parallel_method
    asked = {
        "model": request.model.value,
        "dataset": list(request.datasets.value),
        "parallel_method": None if method.source == "default" else method.value,
        "nproc": request.nproc.value,
        "flags": {flag: _plain(pin.value) for flag, pin in request.pins.items()},
    }
    header = f"# Imported by autoswift from {source}. Run it: autoswift sft --recipe {name}\n"
    return header + _dumped({"schema": PROJECT, "request": {key: value for key, value in asked.items() if value}})


def _dumped(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    """Writes every value out: no anchors, which people do not read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def predicted_figures(prediction: Prediction) -> dict[str, Any]:
    """The figures a recipe keeps: bytes a device (on a CPU: a process), host bytes over all ranks, seconds a step."""
    return {
        "device_bytes": prediction.driver_bytes,
        "device_p99_bytes": prediction.demand_bytes,
        "host_bytes": prediction.host_bytes,
        "step_s": round(prediction.step_s, 4),
        "binding_phase": prediction.binding_phase,
    }


def measured_figures(phases: Iterable[Measured], *, on_gpu: bool, by: str) -> dict[str, Any]:
    """What was seen, in the terms of :func:`predicted_figures`: peaks over all phases, seconds of a steady step.

    Args:
        by: what measured them: ``dry run`` or ``training``.
    """
    seen = tuple(phases)
    device = [
        (one.driver_bytes if one.driver_bytes is not None else one.gpu_reserved_bytes) if on_gpu else one.rss_bytes
        for one in seen
    ]
    host = [one.rss_sum_bytes for one in seen]
    steady = [one.seconds for one in seen if one.phase == "steady" and one.seconds is not None]
    return {
        "by": by,
        "device_bytes": max((size for size in device if size is not None), default=None),
        "host_bytes": max((size for size in host if size is not None), default=None),
        "step_s": round(steady[-1], 4) if steady else None,
    }


def _planned(plan: Plan, asked: Mapping[str, Any]) -> dict[str, Any]:
    args = {flag: arg.value for flag, arg in plan.engine_args.items()}
    deepspeed, fsdp = configs(plan.candidate, args)
    data = plan.facts.data
    decided = {
        "machine_class": plan.machine_class,
        "engine": DIALECT,
        "digest": plan.digest,
        "data": {"rows": data.rows, "longest_tokens": data.max_tokens, "digest": data.digest},
        "candidate": {key: value for key, value in asdict(plan.candidate).items() if key not in _FACTS},
        "arguments": {flag: _plain(value) for flag, value in args.items()},
        "environment": {variable: value.value for variable, value in plan.env.items()},
        "deepspeed": deepspeed,
        "fsdp": fsdp,
        "request_digest": request_digest(asked),
    }
    return {**decided, "planned_digest": planned_digest(decided)}


def _request(plan: Plan, request: Request) -> dict[str, Any]:
    base = request.lr_base.value
    return {
        "model": _model(plan, request),
        "dataset": _datasets(plan, request),
        "strategy": request.strategy.value,
        "parallel_method": request.parallel_method.value,
        "prefer": request.prefer.value,
        "global_batch": request.global_batch.value,
        "lr_scaling": request.lr_scaling.value,
        "lr_base": f"{base[0]!r}@{base[1]}" if base else None,
        "nproc": request.nproc.value,
        "flags": {flag: _plain(pin.value) for flag, pin in request.pins.items() if not _embedded(pin)},
    }


def _embedded(value: Sourced[Any]) -> bool:
    """Filled in with the demonstration: nobody asked for it, and it lies in one user's cache."""
    return value.source.startswith("embedded ")


def _model(plan: Plan, request: Request) -> str | None:
    if _embedded(request.model) or request.model.value is None:
        return None
    return _spelled(request.model.value, str(_plain(plan.engine_args["model"].value)))


def _datasets(plan: Plan, request: Request) -> list[str] | None:
    if _embedded(request.datasets):
        return None
    rendered = plan.engine_args["dataset"].value
    names = (rendered,) if isinstance(rendered, str) else rendered
    return [_spelled(asked, name) for asked, name in zip(request.datasets.value, names, strict=True)]


def _spelled(asked: str, rendered: str) -> str:
    """As the user spelled it; an absolute path as seen from the project or the home folder, so that it travels."""
    if not asked.startswith("/"):
        return asked
    if rendered.startswith("$HOME/"):
        return "~/" + rendered.removeprefix("$HOME/")
    return rendered.removeprefix("$ROOT/")


def _plain(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)
