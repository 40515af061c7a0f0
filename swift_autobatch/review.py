"""Somebody else's job, costed as it stands and planned afresh: what it does, what it needs, what we would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from swift_autobatch import api, render
from swift_autobatch.adopt import Adopted, read
from swift_autobatch.engine_flags import shown
from swift_autobatch.errors import AutoswiftError, InputError, NothingFitsError, UsageError
from swift_autobatch.facts.assumed_rows import assumed_rows
from swift_autobatch.facts.model import read_model
from swift_autobatch.planner import make_plan
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import Environment, Facts, Plan, Request, Sourced
from swift_autobatch.request import build_request
from swift_autobatch.units import show_gib, show_seconds

ASSUMED_TOKENS = 2048  # rows of unknown length where the job does not say max_length
# What the engine does where a script says nothing. Source: ms-swift 4.6 sft_args.py, base_args.
_ENGINE = {
    "per_device_train_batch_size": "1",
    "gradient_checkpointing": "true",
    "tuner_type": "lora",
    "use_liger_kernel": "false",
    "packing": "false",
    "group_by_length": "false",
    "optim": "adamw_torch_fused",
}
_PACKAGES = {
    "attn_impl": "flash-attn",
    "packing": "flash-attn",
    "quant_method": "bitsandbytes",
    "use_liger_kernel": "liger-kernel",
    "deepspeed": "deepspeed",
}
# What a plan decides; everything else that a job says is what its author wants.
_DECIDED = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "deepspeed",
    "fsdp",
    "attn_impl",
    "quant_method",
    "quant_bits",
    "bnb_4bit_quant_type",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_use_double_quant",
    "use_liger_kernel",
    "optim",
    "sequence_parallel_size",
    "deepspeed_autotp_size",
    "dataloader_num_workers",
    "learning_rate",
    "warmup_ratio",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A job read from a file. A plan is None where it could not be made; ``why`` says so in one sentence."""

    adopted: Adopted
    request: Request
    as_written: Plan | None
    own: Plan | None
    why: str
    changes: tuple[str, ...]
    assumed: tuple[str, ...]


def review(file: str, options: Mapping[str, Any], env: Environment, progress: Progress | None = None) -> Review:
    """Reads a job and costs it, on this machine or the one that ``options`` name.

    Args:
        file: path of a script, YAML, JSON or recipe.
        options: ``gpus``, ``hardware``, ``nproc`` by name.

    Raises:
        InputError, UsageError: the file is none that we read; a machine that does not exist.
    """
    adopted = read(Path(env.cwd, file), file)
    given = {name: value for name, value in options.items() if value is not None}
    if adopted.nproc and "nproc" not in given:
        given["nproc"] = str(adopted.nproc)
    request = build_request(given, argv(adopted), env)
    if adopted.kind == "DeepSpeed JSON":
        return _unplanned(adopted, request, "a DeepSpeed config alone is no job: name the script that uses it")
    found = api.machine(request, env)
    if not found.gpus:
        return _unplanned(adopted, request, "this machine has no accelerator: name one with --gpus 1x4090")
    try:
        facts, assumed = _facts(request, adopted, env, progress or Silent())
    except AutoswiftError as error:
        return _unplanned(adopted, request, f"not predicted: {error.what}")
    as_written, why = _plan(_pinned(request, facts), facts, env)
    batch = as_written.candidate.effective_batch if as_written else request.global_batch.value
    own, _ = _plan(_freed(request, batch), facts, env)
    return Review(
        adopted=adopted,
        request=request,
        as_written=as_written,
        own=own,
        why=why,
        changes=_changes(as_written, own),
        assumed=assumed,
    )


def argv(adopted: Adopted) -> tuple[str, ...]:
    """The job as engine flags, in the file's order."""
    words: list[str] = []
    for name, setting in adopted.flags.items():
        words += [f"--{name}", *setting.words]
    return tuple(words)


def differences(one: Adopted, other: Adopted) -> tuple[str, ...]:
    """What two jobs do not have in common: flags and environment variables, each side's value."""
    lines = []
    for prefix, left, right in (("--", one.flags, other.flags), ("", one.env, other.env)):
        for name in sorted({*left, *right}):
            was, now = (" ".join(side[name].words) if name in side else "(not set)" for side in (left, right))
            if was != now:
                lines.append(f"{prefix}{name}: {was} | {now}")
    if one.nproc != other.nproc:
        lines.append(f"processes: {one.nproc or 'not said'} | {other.nproc or 'not said'}")
    return tuple(lines)


def import_file(file: str, target: str, env: Environment, *, force: bool = False) -> tuple[Path, Adopted]:
    """Writes the recipe of a file to ``target``.

    Raises:
        InputError, UsageError: the file is none that we read, or ``target`` exists.
    """
    path = Path(env.cwd, target)
    render.may_write(path, force=force)
    adopted = read(Path(env.cwd, file), file)
    options = {"nproc": str(adopted.nproc)} if adopted.nproc else {}
    request = build_request(options, argv(adopted), env)
    render.write_file(path, render.asked_yaml(request, source=adopted.path, name=target))
    return path, adopted


def _unplanned(adopted: Adopted, request: Request, why: str) -> Review:
    return Review(adopted=adopted, request=request, as_written=None, own=None, why=why, changes=(), assumed=())


def _facts(request: Request, adopted: Adopted, env: Environment, progress: Progress) -> tuple[Facts, tuple[str, ...]]:
    """The facts; where the data is not at hand, rows of the longest length that the job takes."""
    try:
        return _elsewhere(api.read_facts(request, env, progress)[1], request, ())
    except InputError as error:
        model = read_model(str(request.model.value), env, request.pins, progress)
        pin = request.pins.get("max_length")
        tokens = int(str(pin.value)) if pin else min(ASSUMED_TOKENS, model.max_position or ASSUMED_TOKENS)
        said = f"the rows are not at hand ({error.what}): every one is taken for {tokens} tokens"
        facts = Facts(
            machine=api.machine(request, env),
            model=model,
            data=assumed_rows(tokens, request.datasets.value or ("rows",)),
        )
        return _elsewhere(facts, request, (said,))


def _elsewhere(facts: Facts, request: Request, said: tuple[str, ...]) -> tuple[Facts, tuple[str, ...]]:
    """On a machine that is not here the packages that a job needs are taken to be installed."""
    needed = dict.fromkeys(package for flag, package in _PACKAGES.items() if flag in request.pins)
    absent = [package for package in needed if facts.machine.software.versions.get(package) is None]
    if not request.gpus.value or not absent:
        return facts, said
    software = facts.machine.software
    versions = {**software.versions, **dict.fromkeys(absent, "assumed")}
    machine = replace(facts.machine, software=replace(software, versions=versions))
    return replace(facts, machine=machine), (
        *said,
        f"{', '.join(absent)}: taken to be installed on {request.gpus.value}",
    )


def _pinned(request: Request, facts: Facts) -> Request:
    """The job with everything that it leaves open set as the engine sets it."""
    pins = dict(request.pins)
    for flag, value in _ENGINE.items():
        pins.setdefault(flag, Sourced(value=value, source="the engine's default"))
    if "gradient_accumulation_steps" not in pins:
        micro = int(str(pins["per_device_train_batch_size"].value))
        steps = max(1, ceil(16 / micro / facts.machine.processes))  # sft_args.py:289, by WORLD_SIZE
        pins["gradient_accumulation_steps"] = Sourced(value=str(steps), source="the engine's default")
    method = request.parallel_method
    if "deepspeed" not in pins and "fsdp" not in pins:
        method = Sourced(value="none", source="the job names neither DeepSpeed nor FSDP")
    return replace(request, pins=pins, parallel_method=method)


def _freed(request: Request, batch: int) -> Request:
    """The job with only what its author wants, and the same effective batch."""
    pins = {flag: pin for flag, pin in request.pins.items() if flag not in _DECIDED}
    return replace(request, pins=pins, global_batch=Sourced(value=batch, source="as the job has it"))


def _plan(request: Request, facts: Facts, env: Environment) -> tuple[Plan | None, str]:
    try:
        return make_plan(request, facts, api.strategies(env), env.cwd, env.home), ""
    except (NothingFitsError, UsageError, InputError) as error:
        figures = f" ({'; '.join(error.figures[:2])})" if error.figures else ""
        hint = f"; {error.hints[0]}" if error.hints else ""
        return None, f"{error.what}{figures}{hint}"


def _changes(was: Plan | None, own: Plan | None) -> tuple[str, ...]:
    """What the fresh plan does otherwise, flag by flag, and what it gains."""
    if own is None or was is None:
        return ()
    lines = []
    for flag in dict.fromkeys((*own.engine_args, *was.engine_args)):
        if flag not in _DECIDED:
            continue
        old, new = (plan.engine_args[flag].value if flag in plan.engine_args else None for plan in (was, own))
        if old != new:
            was_said = f" instead of {shown(old)}" if old is not None else ""
            lines.append(f"--{flag} {'(left out)' if new is None else shown(new)}{was_said}")
    if lines:
        lines.append(
            f"{show_seconds(own.prediction.epoch_s)} an epoch instead of {show_seconds(was.prediction.epoch_s)}, "
            f"{show_gib(own.prediction.driver_bytes)} a card instead of {show_gib(was.prediction.driver_bytes)}"
        )
    return tuple(lines)
