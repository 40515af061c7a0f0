"""Two recipes, scripts or configs side by side: what they set otherwise, and what that changes in GiB and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_autobatch.adopt import Adopted, read
from swift_autobatch.errors import UsageError
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.recipe import read_recipe
from swift_autobatch.records import Environment, Recipe, Strategy
from swift_autobatch.review import review
from swift_autobatch.strategies import read_strategy
from swift_autobatch.yaml_file import PROJECT, STRATEGY, kind_of

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one of the two needs. Bytes are per card (on a CPU: per process), host bytes over all; None: see ``why``."""

    path: str
    kind: str
    machine_class: str | None
    device_bytes: int | None
    host_bytes: int | None
    step_s: float | None
    why: str  # where the figures are from, or why there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``settings`` has (name, value here, value there) of everything that differs; None: not set."""

    one: Side
    other: Side
    settings: tuple[tuple[str, str | None, str | None], ...]


def compare(
    one: str, other: str, options: Mapping[str, Any], env: Environment, progress: Progress | None = None
) -> Difference:
    """Compares two files that ``check`` reads, or two strategy recipes.

    Args:
        options: ``gpus``, ``hardware``, ``nproc`` by name: predict both there, whatever recipes say of themselves.

    Raises:
        InputError, UsageError: a file is none that we read, or a strategy is compared with a job.
    """
    kinds = [_kind(Path(env.cwd, path), path) for path in (one, other)]
    if kinds[0] != kinds[1] and STRATEGY in kinds:
        raise UsageError(
            "a strategy recipe says how to search, the other file is a job: they have nothing to compare",
            where=(one, other)[kinds.index(STRATEGY)],
            hints=("compare two project recipes, or two strategy recipes",),
        )
    asked = any(options.values())
    settings = [_settings(Path(env.cwd, path), path, kind, env) for path, kind in zip((one, other), kinds, strict=True)]
    whole = all(planned for planned, _ in settings)
    left, right = (planned if whole else request for planned, request in settings)
    for config in ("deepspeed.", "fsdp."):  # of interest where both have one; else the flag says all
        if not all(any(name.startswith(config) for name in side) for side in (left, right)):
            left, right = ({k: v for k, v in side.items() if not k.startswith(config)} for side in (left, right))
    sides = [
        _side(path, kind, asked, options, env, progress or Silent())
        for path, kind in zip((one, other), kinds, strict=True)
    ]
    return Difference(
        one=sides[0],
        other=sides[1],
        settings=tuple(
            (name, left.get(name), right.get(name))
            for name in dict.fromkeys((*left, *right))
            if left.get(name) != right.get(name)
        ),
    )


def adopted_settings(adopted: Adopted) -> dict[str, str]:
    """Flags, environment variables and processes of a job, by name."""
    flags = {f"--{name}": " ".join(setting.words) for name, setting in adopted.flags.items()}
    variables = {name: " ".join(setting.words) for name, setting in adopted.env.items()}
    return {**flags, **variables, **({"processes": str(adopted.nproc)} if adopted.nproc else {})}


def _kind(path: Path, shown: str) -> str:
    """``schema`` of a recipe of ours; "" for anything else that ``check`` may read."""
    found = kind_of(path, shown) if path.suffix in _SUFFIXES else None
    return found if found in (PROJECT, STRATEGY) else ""


def _settings(path: Path, shown: str, kind: str, env: Environment) -> tuple[dict[str, str], dict[str, str]]:
    """(what was decided, what was asked for); the first is empty where nothing was planned."""
    if kind == STRATEGY:
        fields = _flat(read_strategy(path, shown))
        return fields, fields
    if kind == PROJECT:
        recipe = read_recipe(path, shown)
        return _planned(recipe), _asked(recipe)
    return {}, adopted_settings(read(path, shown, env.variables))


def _flat(strategy: Strategy) -> dict[str, str]:
    parts = {"when": strategy.when, "use": strategy.use, "search": strategy.search}
    return {f"{part}.{name}": _plain(value) for part, values in parts.items() for name, value in values.items()}


def _planned(recipe: Recipe) -> dict[str, str]:
    flags = {f"--{name}": _plain(value) for name, value in recipe.arguments.items()}
    configs = {"deepspeed": recipe.deepspeed, "fsdp": recipe.fsdp}
    inside = {
        f"{config}.{name}": _plain(value)
        for config, document in configs.items()
        for name, value in _leaves(document or {})
    }
    environment = dict(recipe.environment) if recipe.arguments else {}
    return {**flags, **environment, **inside}


def _asked(recipe: Recipe) -> dict[str, str]:
    own = {name: _plain(value) for name, value in recipe.request.items() if value is not None}
    return {**own, **{f"--{name}": _plain(value) for name, value in recipe.flags.items()}}


def _leaves(document: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in document.items():
        found += _leaves(value, f"{above}{name}.") if isinstance(value, Mapping) else [(above + name, value)]
    return found


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _side(path: str, kind: str, asked: bool, options: Mapping[str, Any], env: Environment, progress: Progress) -> Side:
    nothing = {"machine_class": None, "device_bytes": None, "host_bytes": None, "step_s": None}
    if kind == STRATEGY:
        return Side(path=path, kind="strategy recipe", why="'autoswift plan --strategy NAME' costs it", **nothing)
    if kind == PROJECT and not asked:
        recipe = read_recipe(Path(env.cwd, path), path)
        if recipe.predicted:
            return Side(
                path=path,
                kind="project recipe",
                machine_class=recipe.machine_class,
                device_bytes=recipe.predicted.get("device_bytes"),
                host_bytes=recipe.predicted.get("host_bytes"),
                step_s=recipe.predicted.get("step_s"),
                why="as the recipe says",
            )
    found = review(path, options, env, progress)
    plan = found.as_written
    if plan is None:
        return Side(path=path, kind=found.adopted.kind, why=found.why, **nothing)
    return Side(
        path=path,
        kind=found.adopted.kind,
        machine_class=plan.machine_class,
        device_bytes=plan.prediction.driver_bytes,
        host_bytes=plan.prediction.host_bytes,
        step_s=plan.prediction.step_s,
        why="predicted as it is written",
    )
