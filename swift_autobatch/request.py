"""Merges flags, environment, project recipe and defaults into one Request and remembers where each came from.

Precedence, low to high: default < project recipe < ``AUTOSWIFT_*`` < flag. (Strategy recipes, between defaults
and project recipes, are the planner's.) The only reader of ``os.environ``: once, into an Environment.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch import engine_flags
from swift_autobatch.engine_flags import Value
from swift_autobatch.errors import UsageError
from swift_autobatch.recipe import layer, read_recipe
from swift_autobatch.records import Environment, Recipe, Request, Sourced
from swift_autobatch.tables import Dialect, Flag, dialect, near

PREFIX = "AUTOSWIFT_"
# What we hand to our own children, and what tests hand to them.
INTERNAL = frozenset({"AUTOSWIFT_JOB", "AUTOSWIFT_TELEMETRY_DIR", "AUTOSWIFT_SIMULATED_CARD"})
DEFAULT_GLOBAL_BATCH = 16
DEFAULT_STALL_TIMEOUT_S = 1800.0  # a silent download or compilation before the first step; NCCL itself waits 600
ON_FAILURE = ("resume", "replan", "stop")
DEFAULT_TRIES = 3
DEFAULT_GATE_TIMEOUT_S = 1800.0  # loading a 70B model from a network disk takes a quarter of an hour
PARALLEL_METHODS = ("auto", "deepspeed", "fsdp", "megatron", "none")
PREFERENCES = ("auto", "speed", "quality", "memory", "fewest-gpus")
LR_SCALINGS = ("sqrt", "linear", "none")

# A layer of settings by name (ours or the engine's); a project recipe is one.
Layer = Mapping[str, Sourced[Value]]

# Inside these flags the engine and we mean the same thing; they fill their own field of Request, not the pins.
SHARED = ("model", "dataset", "output_dir")

# Options that say what to plan; a project recipe holds them, and another value than its own overrides it. (--nproc,
# --gpus and --hardware change the machine: its class is compared.)
PLANNED = ("model", "dataset", "strategy", "parallel_method", "prefer", "global_batch", "lr_scaling", "lr_base")


# ------------------------------------------------------------------------------------------------ our options


def _whole(name: str, text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"--{name} needs a whole number of at least 1, not {text!r}",
            where=where,
            hints=(f"for instance --{name} {DEFAULT_GLOBAL_BATCH if name == 'global-batch' else 2}",),
        )
    return int(text)


def _seconds(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(
            f"--{name} needs a number of seconds above 0, not {text!r}",
            where=where,
            hints=(f"for instance --{name} {DEFAULT_GATE_TIMEOUT_S:.0f}",),
        )
    return value


def _one_of(choices: tuple[str, ...]) -> Callable[[str, str, str], str]:
    def parse(name: str, text: str, where: str) -> str:
        if text not in choices:
            likely = near(text, list(choices), 1)
            hints = ((f"did you mean --{name} {likely[0]}?",) if likely else ()) + (f"one of: {', '.join(choices)}",)
            raise UsageError(f"--{name} does not know {text!r}", where=where, hints=hints)
        return text

    return parse


def _lr_base(name: str, text: str, where: str) -> tuple[float, int]:
    rate, at, batch = text.partition("@")
    try:
        pair = (float(rate), int(batch))
    except ValueError:
        pair = (0.0, 0)
    if not at or not 0 < pair[0] < float("inf") or pair[1] < 1:
        raise UsageError(
            f"--{name} is LR@BATCH, not {text!r}",
            where=where,
            hints=(f"--{name} 1e-4@16: the learning rate 1e-4 is right at an effective batch of 16",),
        )
    return pair


def _yes(name: str, text: str, where: str) -> bool:
    flag = Flag(name=name, kind="bool", many=False, optional=False, default=False, choices=())
    return engine_flags.check(flag, [text], where) == "true"


def _text(name: str, text: str, where: str) -> str:
    if not text.strip():
        raise engine_flags.is_empty(f"--{name}", where)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of autoswift's own: its default, and how its text is read."""

    default: Any
    parse: Callable[[str, str, str], Any]
    is_switch: bool = False


# Every option of ours that shapes a Request, by Python name; cli/options.py declares the same ones for click.
OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "strategy": Option(default=None, parse=_text),
        "parallel_method": Option(default="auto", parse=_one_of(PARALLEL_METHODS)),
        "prefer": Option(default="auto", parse=_one_of(PREFERENCES)),
        "global_batch": Option(default=DEFAULT_GLOBAL_BATCH, parse=_whole),
        "lr_scaling": Option(default="sqrt", parse=_one_of(LR_SCALINGS)),
        "lr_base": Option(default=None, parse=_lr_base),
        "nproc": Option(default=None, parse=_whole),
        "gpus": Option(default=None, parse=_text),
        "hardware": Option(default=None, parse=_text),
        "recipe": Option(default=None, parse=_text),
        "locked": Option(default=False, parse=_yes, is_switch=True),
        "save_recipe": Option(default=None, parse=_text),
        "output_dir": Option(default=None, parse=_text),
        "gate_timeout": Option(default=DEFAULT_GATE_TIMEOUT_S, parse=_seconds),
        "on_failure": Option(default="resume", parse=_one_of(ON_FAILURE)),
        "stall_timeout": Option(default=DEFAULT_STALL_TIMEOUT_S, parse=_seconds),
        "tries": Option(default=DEFAULT_TRIES, parse=_whole),
        "skip_dry_run": Option(default=False, parse=_yes, is_switch=True),
        "trace": Option(default=False, parse=_yes, is_switch=True),
        "no_ask": Option(default=False, parse=_yes, is_switch=True),
        "fix": Option(default=False, parse=_yes, is_switch=True),
        "force": Option(default=False, parse=_yes, is_switch=True),
    }
)


# -------------------------------------------------------------------------------------------------- environment


def read_environment() -> Environment:
    """Reads the process environment: variables, working folder, XDG folders and the running Python."""
    variables = dict(os.environ)
    home = variables.get("HOME") or str(Path.home())
    cache = variables.get("XDG_CACHE_HOME") or str(Path(home, ".cache"))
    state = variables.get("XDG_STATE_HOME") or str(Path(home, ".local", "state"))
    return Environment(
        variables=MappingProxyType(variables),
        cwd=str(Path.cwd()),
        home=home,
        cache_dir=str(Path(cache, "autoswift")),
        state_dir=str(Path(state, "autoswift")),
        interpreter=sys.executable,
    )


def _environment_layer(env: Environment, engine: Dialect) -> dict[str, Sourced[Value]]:
    """``AUTOSWIFT_<NAME>`` as settings; a flag that takes many values is split as a shell would. Empty: unset."""
    by_upper = {name.upper(): name for name in (*engine.flags, *OPTIONS)}
    layer: dict[str, Sourced[Value]] = {}
    if env.variables.get("NPROC_PER_NODE"):
        layer["nproc"] = Sourced(value=env.variables["NPROC_PER_NODE"], source="environment NPROC_PER_NODE")
    for variable, text in sorted(env.variables.items()):
        if not variable.startswith(PREFIX) or not text:
            continue
        source = f"environment {variable}"
        if variable in INTERNAL:
            continue
        name = by_upper.get(variable[len(PREFIX) :], variable[len(PREFIX) :].lower())
        if name in OPTIONS:
            layer[name] = Sourced(value=text, source=source)
        else:
            flag = engine_flags.find(name, engine, OPTIONS, where=source)
            words = _split(text, source) if flag.many else [text]
            layer[name] = Sourced(value=engine_flags.check(flag, words, where=source), source=source)
    return layer


def _split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"unbalanced quotes: {error}", where=where, hints=("quote as in a shell",)) from error


# ------------------------------------------------------------------------------------------------------ request


def _flag_layer(options: Mapping[str, Any], engine_argv: Sequence[str], engine: Dialect) -> dict[str, Sourced[Value]]:
    """What was typed: our options (None means not given) and the engine's flags, from either argument."""
    layer = {
        name: Sourced(value=value, source=f"flag --{name}")
        for name, value in engine_flags.parse(engine_argv, engine, OPTIONS).items()
    }
    for name, value in options.items():
        if value is None or (name in OPTIONS and OPTIONS[name].is_switch and value is False):
            continue
        shown = f"--{name.replace('_', '-')}" if name in OPTIONS else f"--{name}"
        if name in layer:
            raise UsageError(f"{shown} is given twice", where=shown, hints=("keep one of them",))
        words = engine_flags.text(value)
        if name == "lr_base" and isinstance(value, (list, tuple)):
            words = ["@".join(words)]
        if name in OPTIONS:
            layer[name] = Sourced(value=words[0], source=f"flag {shown}")
        else:
            flag = engine_flags.find(name, engine, OPTIONS)
            layer[name] = Sourced(value=engine_flags.check(flag, words, where=shown), source=f"flag {shown}")
    return layer


def _ours(name: str, settings: Layer) -> Sourced[Any]:
    """One option of ours from the merged settings, read and checked, or its default."""
    given = settings.get(name)
    if given is None:
        return Sourced(value=OPTIONS[name].default, source="default")
    where = given.source.removeprefix("flag ")
    value = OPTIONS[name].parse(name.replace("_", "-"), engine_flags.shown(given.value), where)
    return Sourced(value=value, source=given.source)


def _overrides(recipe: Layer, above: Layer) -> tuple[Sourced[str], ...]:
    """What flags and variables set otherwise than a project recipe (or than the defaults that it left standing)."""
    found = []
    for name in PLANNED:
        option = OPTIONS.get(name)
        default = [] if option is None or option.default is None else engine_flags.text(option.default)
        asked = engine_flags.text(recipe[name].value) if name in recipe else default
        if name in above and engine_flags.text(above[name].value) != asked:
            found.append(Sourced(value=name, source=above[name].source))
    return tuple(found)


def _read_recipe(path: Sourced[str | None], locked: bool, env: Environment) -> Recipe | None:
    if path.value is None:
        if locked:
            raise UsageError(
                "--locked says that a project recipe must hold, and there is none",
                where="--locked",
                hints=("add --recipe FILE", "drop --locked"),
            )
        return None
    return read_recipe(Path(env.cwd, path.value), path.value)


def _one_machine(settings: Mapping[str, Sourced[Value]]) -> None:
    if settings.get("gpus") and settings.get("hardware"):
        raise UsageError(
            "--gpus and --hardware both name the machine to plan for",
            where="--gpus",
            hints=("drop --gpus", "drop --hardware"),
        )


def build_request(
    options: Mapping[str, Any],
    engine_argv: Sequence[str],
    env: Environment,
) -> Request:
    """Merges everything that was said into one Request.

    Args:
        options: our options by Python name (``global_batch``), None meaning not given; engine flags may stand
            here too (``max_length=2048``), which is how the Python API passes them.
        engine_argv: ``swift sft`` flags as typed.
        env: what ``read_environment`` returned; a project recipe (``--recipe``) is read from its ``cwd``.

    Raises:
        UsageError: any flag, variable, recipe key or value that autoswift or ms-swift would not understand.
        InputError: the project recipe is missing or not YAML.
    """
    engine = dialect()
    above = {**_environment_layer(env, engine), **_flag_layer(options, engine_argv, engine)}
    locked = _ours("locked", above).value
    recipe = _read_recipe(_ours("recipe", above), locked, env)
    below = {} if recipe is None else layer(recipe)
    settings: dict[str, Sourced[Value]] = {**below, **above}
    pins = {name: found for name, found in sorted(settings.items()) if name not in OPTIONS and name not in SHARED}
    for name, pin in pins.items():
        engine_flags.check_files(name, pin.value, env.cwd, where=pin.source.removeprefix("flag "))
    engine_flags.check_tuner(pins)
    engine_flags.check_resume(pins, env.cwd)
    _one_machine(settings)
    default: Sourced[Any] = Sourced(value=None, source="default")
    model: Sourced[Any] = settings.get("model", default)
    datasets = settings.get("dataset", Sourced(value=(), source="default"))
    return Request(
        model=model,
        datasets=Sourced(value=tuple(engine_flags.text(datasets.value)), source=datasets.source),
        pins=MappingProxyType(pins),
        strategy=_ours("strategy", settings),
        parallel_method=_ours("parallel_method", settings),
        prefer=_ours("prefer", settings),
        global_batch=_ours("global_batch", settings),
        lr_scaling=_ours("lr_scaling", settings),
        lr_base=_ours("lr_base", settings),
        nproc=_ours("nproc", settings),
        gpus=_ours("gpus", settings),
        hardware_file=_ours("hardware", settings),
        output_dir=_ours("output_dir", settings),
        gate_timeout_s=_ours("gate_timeout", settings),
        tries=_ours("tries", settings).value,
        recipe=recipe,
        overrides=() if recipe is None else _overrides(below, above),
        fix=_ours("fix", settings).value,
        locked=locked,
        save_recipe=_ours("save_recipe", settings).value,
        on_failure=_ours("on_failure", settings).value,
        stall_timeout_s=_ours("stall_timeout", settings).value,
        skip_dry_run=_ours("skip_dry_run", settings).value,
        trace=_ours("trace", settings).value,
        ask=not _ours("no_ask", settings).value,
        force=_ours("force", settings).value,
    )
