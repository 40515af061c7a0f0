"""What is rehearsed: a strategy on the smallest machine it is for, a project recipe on its own, or the plan here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_autobatch.errors import UsageError
from swift_autobatch.facts import embedded
from swift_autobatch.records import Environment, Facts, Request, Sourced, Strategy, replace
from swift_autobatch.strategies import find_strategy, load_strategies, read_strategy
from swift_autobatch.yaml_file import PROJECT, kind_of

_CARD = "A100-80G"  # new enough for every kernel, large enough for every strategy with a small model
_ASSUMED = "assumed on the cards' machine"
_KERNELS = ("flash-attn", "liger-kernel")  # packages that are of use on a GPU only
_CLASS = re.compile(r"(\d+)x(.+)-\d+(?:-(nvlink|pcie|nop2p))?-ram(\d+)")
_CPU_CLASS = re.compile(r"(\d+)xcpu-ram\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to plan before it is rehearsed. ``name`` stands in the run folder's name."""

    name: str
    request: Request
    table: tuple[Strategy, ...]
    strategy: Strategy | None = None  # the one that is forced
    file: str | None = None  # where it stands, if it was named as a file


def target(word: str | None, request: Request, env: Environment) -> Target:
    """The request behind ``autoswift rehearse WORD``.

    Args:
        word: a strategy's name or file; None: the plan for this machine, for ``--gpus`` or of ``--recipe``.
        request: everything else that was asked for. A model, data or a machine that it names go before the defaults:
            the smallest machine that the strategy's ``when`` admits, the embedded model and its data.

    Raises:
        UsageError: no strategy of that name, or two are asked for.
        InputError: the file is missing or not YAML.
    """
    table = load_strategies(Path(env.cwd))
    forced = request.strategy.value
    if word is not None and forced is not None:
        raise UsageError(
            f"two strategies are asked for: {word} and {forced}",
            where=request.strategy.source.removeprefix("flag "),
            hints=(f"autoswift rehearse {word}", f"autoswift rehearse {forced}"),
        )
    if word is None and forced is None:
        return _without_strategy(request, table)
    file = word if word is not None and is_file(word) else None
    if file is not None:
        found = read_strategy(Path(env.cwd, file), file)
        table = (*(row for row in table if row.name != found.name), found)
    else:
        found = find_strategy(word or str(forced), table, where="RECIPE" if word else "--strategy")
    asked = replace(request, strategy=Sourced(value=found.name, source="rehearse"))
    return Target(name=found.name, request=_smallest(found, asked, env), table=table, strategy=found, file=file)


def is_file(word: str) -> bool:
    """Whether a word after ``rehearse`` is a file rather than a strategy's name."""
    return word.endswith((".yaml", ".yml")) or "/" in word


def is_project_recipe(word: str, cwd: str) -> bool:
    """Whether a word after ``rehearse`` is the file of a project recipe.

    Raises:
        InputError: the file cannot be read.
    """
    return is_file(word) and kind_of(Path(cwd, word), word) == PROJECT


def one_recipe(word: str, flag: str | None) -> None:
    """Refuses a recipe before the options and another one behind ``--recipe``.

    Raises:
        UsageError: there are two.
    """
    if flag is not None:
        raise UsageError(
            f"two recipes are asked for: {word} and {flag}", where="--recipe", hints=(f"autoswift rehearse {word}",)
        )


def _without_strategy(request: Request, table: tuple[Strategy, ...]) -> Target:
    recipe = request.recipe
    if recipe is None:
        return Target(name="plan", request=request, table=table)
    named = request.gpus.value or request.hardware_file.value or request.nproc.value
    if named or recipe.machine_class is None:
        return Target(name=recipe.name, request=request, table=table)
    return Target(name=recipe.name, request=_machine_of(recipe.machine_class, request, recipe.path), table=table)


def _machine_of(machine_class: str, request: Request, where: str) -> Request:
    """The request for a machine of a class: ``4xrtx-4090-24-nop2p-ram256``."""
    source = f"machine class of {where}"
    on_cpu = _CPU_CLASS.fullmatch(machine_class)
    if on_cpu:
        return replace(request, nproc=Sourced(value=int(on_cpu[1]), source=source))
    cards = _CLASS.fullmatch(machine_class)
    if cards is None or "+" in machine_class:
        raise UsageError(
            f"the machine class {machine_class} cannot be built from the catalogue",
            where=where,
            hints=("describe the machine: --hardware FILE, written there by autoswift env --json",),
        )
    return replace(request, gpus=Sourced(value=f"{cards[1]}x{cards[2]},ram={cards[4]}", source=source))


def _smallest(strategy: Strategy, request: Request, env: Environment) -> Request:
    """The request with the smallest machine, the embedded model and a tuner that the strategy admits."""
    when: Mapping[str, Any] = strategy.when
    source = f"the smallest machine of strategy {strategy.name}"
    devices = int(when.get("devices", {}).get("min", 1))
    if not (request.gpus.value or request.hardware_file.value):
        if when.get("accelerator") == "cpu":
            request = replace(request, nproc=Sourced(value=request.nproc.value or devices, source=source))
        else:
            devices = request.nproc.value or devices
            request = replace(request, gpus=Sourced(value=f"{devices}x{_CARD}", source=source))
    tuners = when.get("tuner", ("lora",))
    pins = dict(request.pins)
    if "lora" not in tuners:
        pins.setdefault("tuner_type", Sourced(value=tuners[0], source=f"strategy {strategy.name}"))
    request = replace(request, pins=pins)
    if request.model.value is None:
        folder = str(embedded.ensure_model(env))
        request = replace(request, model=Sourced(value=folder, source="embedded model: no --model"))
    return request


def own_words(error: UsageError, wanted: Target) -> UsageError:
    """A planner's refusal of the strategy that was named as RECIPE, with hints that hold for ``rehearse``."""
    if error.where != "--strategy" or wanted.strategy is None:
        return error
    # Hints that change the strategy, or the flag that we set for it, are none where it was named to be rehearsed.
    own = ("drop --strategy", "--strategy", "--parallel-method", "--fix", "'")
    kept = tuple(hint for hint in error.hints if not hint.startswith(own))
    if wanted.file:
        kept = (*kept, f"change what the sentence names in {wanted.file}")
    else:
        kept += (f"'autoswift recipes show {wanted.name}' says for which machines and tuners it is",)
    error.where = wanted.file or wanted.name
    error.hints = (*kept, "'autoswift recipes ls' names the others")
    return error


def assume_kernels(facts: Facts, strategy: Strategy | None) -> Facts:
    """Facts of a machine that is not here, with the GPU packages that a forced strategy stands on taken for installed.

    A laptop has no use for flash-attn and cannot build it; that the strategy needs it is said, not held against it.
    """
    machine = facts.machine
    wants = str((strategy.use if strategy else {}).get("attn_impl") or "").startswith("flash")
    if not wants or not machine.gpus or machine.source == "this machine":
        return facts
    missing = [name for name in _KERNELS if machine.software.versions.get(name) is None]
    versions = {**machine.software.versions, **dict.fromkeys(missing, _ASSUMED)}
    assumed = tuple(f"{name} is installed there" for name in missing)
    software = replace(machine.software, versions=versions)
    return replace(facts, machine=replace(machine, software=software, assumed=(*machine.assumed, *assumed)))
