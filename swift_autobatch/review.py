"""Somebody else's job, costed as it stands and planned afresh: what it does, what it needs, what we would change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from swift_autobatch import api, committed, machines, mend, render
from swift_autobatch.adopt import Adopted, Finding, read
from swift_autobatch.arguments import ALLOCATOR
from swift_autobatch.engine_flags import shown
from swift_autobatch.errors import AutoswiftError, InputError, NothingFitsError, UsageError
from swift_autobatch.even_rows import assumed_rows
from swift_autobatch.pins import pinned_fields
from swift_autobatch.planner import make_plan
from swift_autobatch.predict.pool import with_segments
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import DataFacts, Environment, Facts, ModelFacts, Plan, Request, Sourced, Strategy
from swift_autobatch.request import OPTIONS, SHARED, build_request
from swift_autobatch.units import show_gib, show_seconds

ASSUMED_TOKENS = 2048  # rows of unknown length where the job does not say max_length
_PACKAGES = {
    "attn_impl": "flash-attn",
    "packing": "flash-attn",
    "quant_method": "bitsandbytes",
    "use_liger_kernel": "liger-kernel",
    "deepspeed": "deepspeed",
}
ONE_PROCESS = ("shell script", "ms-swift YAML")  # of ms-swift; other trainers' launchers take every card
# What a job has to name, and what else brings it along.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "model": ("adapters", "resume_from_checkpoint", "ckpt_dir", "load_args", "mcore_model"),
    "dataset": ("cached_dataset", "resume_from_checkpoint", "load_args", "load_data_args"),
}
_UNSET = re.compile(r"\$\w+|\$\{[^}]*\}|\$\(.*\)|`[^`]+`|%\w+%")  # what only the author's shell knows
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
    """A job read from a file. A plan is None where it could not be made; ``why`` says so in one sentence.

    ``runs`` is False where the job as written would not run here, None where that could not be told.
    """

    adopted: Adopted
    request: Request
    as_written: Plan | None
    own: Plan | None
    why: str
    runs: bool | None
    changes: tuple[str, ...]
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """Processes that the job starts on one node, and cards that a fresh plan may use; with what was assumed."""

    started: int
    cards: int
    assumed: tuple[str, ...] = ()


def review(file: str, options: Mapping[str, Any], env: Environment, progress: Progress | None = None) -> Review:
    """Reads a job and costs it, on this machine or the one that ``options`` name.

    Args:
        file: path of a script, YAML, JSON or recipe.
        options: ``gpus``, ``hardware``, ``nproc`` by name.

    Raises:
        InputError, UsageError: the file is none that we read; a machine that does not exist.
    """
    adopted = read(Path(env.cwd, file), file, env.variables)
    given = {**_own(adopted), **{name: value for name, value in options.items() if value is not None}}
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
    ranks = _ranks(adopted, len(facts.machine.gpus), asked="nproc" in given)
    table = api.strategies(env)
    if adopted.kind == "project recipe":
        as_written, why = _committed(file, given, facts, table, env)
    else:
        adopted = replace(adopted, findings=(*adopted.findings, *_missing(adopted)))
        as_written, why = _as_written(request, facts, ranks.started, env)
        if as_written is not None:
            as_written = _allocating(as_written, adopted, env)
    batch = as_written.candidate.effective_batch if as_written else request.global_batch.value
    own, _ = _plan(_freed(request, batch), machines.fewer_cards(facts, ranks.cards), table, env)
    return Review(
        adopted=adopted,
        request=request,
        as_written=as_written,
        own=own,
        why=why,
        runs=as_written is not None,
        changes=_changes(as_written, own),
        assumed=(*_fixes(as_written), *_reading(adopted), *assumed, *ranks.assumed),
    )


def _committed(
    file: str, options: Mapping[str, Any], facts: Facts, table: tuple[Strategy, ...], env: Environment
) -> tuple[Plan | None, str]:
    """What a project recipe runs on this machine: its own decision where it holds, a plan of what it asks elsewhere."""
    told = {name: value for name, value in options.items() if name != "nproc"}
    try:
        asked = build_request({**told, "recipe": file}, (), env)
        return committed.decide(asked, facts, table, env, Silent()), ""
    except (NothingFitsError, UsageError, InputError) as error:
        return None, _refused(error)


def _missing(adopted: Adopted) -> Iterator[Finding]:
    """What the engine stops for when nobody says it. Source: swift/arguments/base_args/model_args.py, sft_args.py."""
    if adopted.kind not in ONE_PROCESS:
        return
    for flag, others in _REQUIRED.items():
        if not {flag, *others} & set(adopted.flags):
            text = f"there is no --{flag}, and the engine stops without it; figures are of the default of autoswift"
            yield Finding(level="error", line=adopted.line, text=text, fix=f"add --{flag}")


def _fixes(as_written: Plan | None) -> tuple[str, ...]:
    """What ``--fix`` did to the job before it was costed."""
    return tuple(note for note in as_written.notes if note.startswith(mend.FIXED)) if as_written else ()


def argv(adopted: Adopted) -> tuple[str, ...]:
    """The job as engine flags, in the file's order."""
    words: list[str] = []
    for name, setting in adopted.flags.items():
        if name not in _own(adopted):
            words += [f"--{name}", *setting.words]
    return tuple(words)


def _own(adopted: Adopted) -> dict[str, str]:
    """The options of ours that a project recipe holds beside engine flags."""
    own = set(OPTIONS) - set(SHARED)
    return {name: " ".join(setting.words) for name, setting in adopted.flags.items() if name in own}


def import_file(file: str, target: str, env: Environment, *, force: bool = False) -> tuple[Path, Adopted]:
    """Writes the recipe of a file to ``target``.

    Args:
        force: overwrite ``target``, and write what can be taken over although something cannot.

    Raises:
        InputError, UsageError: the file is none that we read, ``target`` exists, or a line cannot be taken over.
    """
    path = Path(env.cwd, target)
    render.may_write(path, force=force)
    adopted = read(Path(env.cwd, file), file, env.variables)
    unset = tuple(name for name, setting in adopted.flags.items() if _UNSET.search(" ".join(setting.words)))
    lost = (
        *(f"line {one.line}: {one.text}" for one in adopted.findings if one.level == "error"),
        *(f"line {adopted.flags[name].line}: --{name} {' '.join(adopted.flags[name].words)}" for name in unset),
    )
    if lost and not force:
        raise UsageError(
            "this cannot be taken over as it is written",
            where=file,
            figures=lost,
            hints=("correct these lines: 'autoswift check' says how", "--force writes a recipe without them"),
        )
    adopted = replace(adopted, flags={name: adopted.flags[name] for name in adopted.flags if name not in unset})
    options = {"nproc": str(adopted.nproc)} if adopted.nproc else {}
    request = build_request({**_own(adopted), **options}, argv(adopted), env)
    render.write_file(path, render.asked_yaml(request, source=adopted.path, name=target))
    return path, adopted


def _unplanned(adopted: Adopted, request: Request, why: str) -> Review:
    return Review(
        adopted=adopted, request=request, as_written=None, own=None, why=why, runs=None, changes=(), assumed=()
    )


def _facts(request: Request, adopted: Adopted, env: Environment, progress: Progress) -> tuple[Facts, tuple[str, ...]]:
    """The facts; where the data is not at hand, rows of the longest length that the job takes."""
    said: list[str] = []

    def at_most(model: ModelFacts, why: InputError) -> DataFacts:
        pin = request.pins.get("max_length")
        tokens = int(str(pin.value)) if pin else min(ASSUMED_TOKENS, model.max_position or ASSUMED_TOKENS)
        said.append(f"the rows are not at hand ({why.what}): every one is taken for {tokens} tokens")
        return assumed_rows(tokens, request.datasets.value or ("rows",))

    facts = api.read_facts(request, env, progress, without_data=at_most)[1]
    return _elsewhere(_visible(facts, adopted), request, tuple(said))


def _visible(facts: Facts, adopted: Adopted) -> Facts:
    """The machine with the cards that the job lets itself see."""
    setting = adopted.env.get("CUDA_VISIBLE_DEVICES")
    named = [card for card in ",".join(setting.words).split(",") if card.strip()] if setting else []
    return machines.fewer_cards(facts, len(named)) if 0 < len(named) < len(facts.machine.gpus) else facts


def _ranks(adopted: Adopted, cards: int, *, asked: bool) -> _Ranks:
    """How many processes run as the job stands. The engine starts one where neither launcher nor script says more.

    Args:
        asked: ``--nproc`` was given, which the machine at hand follows already.
    """
    nodes = adopted.env.get("NNODES")
    said: tuple[str, ...] = ()
    if nodes is not None and nodes.words[0] not in ("", "1"):
        said = (f"one node of {nodes.words[0]} is costed; the network between them is not counted",)
    if asked or (adopted.nproc is None and adopted.kind not in ONE_PROCESS):
        return _Ranks(started=cards, cards=cards, assumed=said)
    if adopted.nproc is not None:
        return _Ranks(started=adopted.nproc, cards=min(cards, adopted.nproc), assumed=said)
    if cards > 1:
        spread = "NPROC_PER_NODE is not set: one process, which spreads the model's layers over all cards and uses them"
        said = (*said, f"{spread} one after the other; costed as on one card")
    return _Ranks(started=1, cards=cards, assumed=said)


def _reading(adopted: Adopted) -> tuple[str, ...]:
    return ("the command is read as it was meant, with the lines that the shell would cut off",) * adopted.as_meant


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


def _as_written(request: Request, facts: Facts, started: int, env: Environment) -> tuple[Plan | None, str]:
    """The job with everything that it leaves open as the engine sets it: the table has one strategy, the engine's own.

    Source: ms-swift 4.6 arguments/sft_args.py (accumulation :289, by the world size), arguments/base_args.
    """
    cards = len(facts.machine.gpus)
    if started > cards:
        return None, f"it starts {started} processes, one a card, and there {'is' if cards == 1 else 'are'} {cards}"
    try:
        fields = pinned_fields(request, Path(env.cwd))
    except (UsageError, InputError) as error:
        return None, error.what
    micro = int(fields["micro_batch"].value) if "micro_batch" in fields else 1
    packing = "packing" in fields and fields["packing"].value
    use = {
        "padding_free": packing,  # sft_args.py:190
        "quant": "none",
        "parallel": "ddp" if started > 1 else "none",
        "micro_batch": micro,
        "accumulation": max(1, ceil(16 / micro / started)),
        "gradient_checkpointing": True,
        "tuner": "lora",
    }
    alone = Strategy(
        name="as-written",
        summary="what the engine does with this job",
        when={},
        use={name: value for name, value in use.items() if name not in fields},
        search={},
        because="Nothing is chosen.",
        limits="",
        example="",
        path="",
    )
    pins = dict(request.pins)
    if facts.model.max_position:
        pins.setdefault("max_length", Sourced(value=str(facts.model.max_position), source="the engine's default"))
    source = "as the job has it"
    as_it_stands = replace(
        request,
        pins=pins,
        parallel_method=Sourced(value="auto", source=source),
        strategy=Sourced(value=alone.name, source=source),
        lr_scaling=Sourced(value="none", source=source),
    )
    return _plan(as_it_stands, machines.fewer_cards(facts, started), (alone,), env)


def _allocating(as_written: Plan, adopted: Adopted, env: Environment) -> Plan:
    """The plan with the segments that the job sets, or the environment it starts in; fixed ones are torch's default."""
    setting = adopted.env.get(ALLOCATOR)
    value = " ".join(setting.words) if setting else env.variables.get(ALLOCATOR, "")
    expandable = "expandable_segments:true" in value.lower()
    prediction = with_segments(as_written.facts, as_written.prediction, expandable=expandable)
    return replace(as_written, prediction=prediction)


def _freed(request: Request, batch: int) -> Request:
    """The job with only what its author wants, and the same effective batch."""
    pins = {flag: pin for flag, pin in request.pins.items() if flag not in _DECIDED}
    return replace(request, pins=pins, global_batch=Sourced(value=batch, source="as the job has it"))


def _plan(request: Request, facts: Facts, table: tuple[Strategy, ...], env: Environment) -> tuple[Plan | None, str]:
    try:
        request, done = mend.fixed(request, facts, table, Path(env.cwd))
        decided = make_plan(request, facts, table, env.cwd, env.home)
        return replace(decided, notes=(done, *decided.notes)) if done else decided, ""
    except (NothingFitsError, UsageError, InputError) as error:
        return None, _refused(error)


def _refused(error: AutoswiftError) -> str:
    figures = f" ({'; '.join(error.figures[:2])})" if error.figures else ""
    hint = f"; {error.hints[0]}" if error.hints else ""
    return f"{error.what}{figures}{hint}"


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
