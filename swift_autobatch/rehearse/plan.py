"""A real plan -> the plan of its rehearsal: CPU processes, a small model, a few short rows; and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch import arguments, render, schedule
from swift_autobatch.candidates import length_for
from swift_autobatch.effective import effective
from swift_autobatch.errors import UsageError
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.hardware import read_machine
from swift_autobatch.progress import Progress
from swift_autobatch.records import (
    Candidate,
    DataFacts,
    Environment,
    Facts,
    ModelFacts,
    Plan,
    Request,
    Sourced,
    replace,
)
from swift_autobatch.rehearse import rows
from swift_autobatch.rehearse.model import small_model
from swift_autobatch.search import cost

MOST_PROCESSES = 4
_MICRO_BATCH = 2
_ACCUMULATION = 2
_MOST_TOKENS = 1024  # of a row; longer ones are cut

# Flags that the rehearsal decides anew; every other one is the real command's, to the letter.
_ANEW = frozenset(
    {
        "model",
        "model_type",
        "template",
        "check_model",
        "dataset",
        "max_length",
        "truncation_strategy",
        "packing_length",
        "torch_dtype",
        "fp16",
        "bf16",
        "bnb_4bit_compute_dtype",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "use_liger_kernel",
        "optim",
        "sequence_parallel_size",
        "deepspeed_autotp_size",
        "output_dir",
        "external_plugins",
        "callbacks",
        "use_cpu",
        "dataloader_num_workers",
        "adapters",  # of the real model's widths
    }
)
# Of these nobody needs to be told: the places of a run, and what follows from a flag that is told.
_HOUSE = frozenset(
    {"output_dir", "external_plugins", "callbacks", "check_model", "model_type", "template", "bnb_4bit_compute_dtype"}
)
_KEPT_PINS = ("external_plugins", "callbacks", "template", "model_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that the rehearsal does otherwise than the job."""

    what: str
    real: str
    here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A plan that can run here, for the one that cannot."""

    real: Plan
    plan: Plan
    differences: tuple[Difference, ...]


def rehearsal(real: Plan, request: Request, folder: Path, env: Environment, progress: Progress) -> Rehearsal:
    """Makes the small model and the rows, and lays the real command over them.

    Args:
        real: the plan that is rehearsed.
        request: what it was planned for.
        folder: the run folder; the rows are written into its ``autoswift/``.

    Raises:
        InputError: the model cannot be built in small, or no row can be read.
        UsageError: a plan that this version cannot start anywhere.
    """
    if real.candidate.parallel == "megatron":
        raise UsageError("megatron sft is not rendered by this version", where="--parallel-method")
    candidate = in_small(real.candidate)
    model, smaller = small_model(real.facts.model, candidate, env, progress)
    data = _data(real.facts.data, request, model, folder, env, progress)
    machine = _host(env, real, candidate.world)
    facts = Facts(machine=machine, model=model, data=data, cuts_rows=data.max_tokens > _MOST_TOKENS)
    candidate = _with_length(candidate, facts)
    args = _arguments(real, candidate, facts, request, env)
    plan = replace(
        real,
        facts=facts,
        candidate=candidate,
        prediction=cost(facts, candidate),
        effective=effective(candidate, model, machine),
        engine_args=args,
        env=arguments.environment(candidate, facts),
        machine_class=machine.machine_class,
    )
    return Rehearsal(real=real, plan=plan, differences=tuple(_differences(real, plan, smaller)))


def in_small(real: Candidate) -> Candidate:
    """The candidate on at most four CPU processes. Lengths follow once the rows are known."""
    sp, tp = min(real.sp, MOST_PROCESSES), min(real.tp, MOST_PROCESSES)
    dp = max(1, min(real.dp, MOST_PROCESSES // (sp * tp)))
    return replace(
        real,
        device="cpu",
        world=dp * sp * tp,
        sp=sp,
        tp=tp,
        micro_batch=min(real.micro_batch, _MICRO_BATCH),
        accumulation=min(real.accumulation, _ACCUMULATION),
        # DeepSpeed and autocast have no fp16 on a CPU (deepspeed/runtime/engine.py, 'Type fp16 is not supported').
        torch_dtype="float32" if real.torch_dtype == "float16" else real.torch_dtype,
        liger=False,
        optim="adamw_torch" if "8bit" in real.optim or "4bit" in real.optim else real.optim,
    )


def _data(
    real: DataFacts, request: Request, model: ModelFacts, folder: Path, env: Environment, progress: Progress
) -> DataFacts:
    file = folder / "autoswift" / rows.FILE
    render.write_file(file, rows.first_rows(real.files))
    system = request.pins.get("system")
    return read_dataset(
        (str(file),),
        model,
        env,
        system=system.value if system and isinstance(system.value, str) else None,
        progress=progress,
        pins=request.pins,
    )


def _host(env: Environment, real: Plan, processes: int) -> Any:
    """This machine without its cards."""
    hidden = replace(env, variables={**env.variables, "CUDA_VISIBLE_DEVICES": ""})
    return read_machine(hidden, real.facts.machine.software, processes)


def _with_length(candidate: Candidate, facts: Facts) -> Candidate:
    longest = min(facts.data.max_tokens, _MOST_TOKENS)
    limit = min(candidate.max_length, length_for(facts, longest)) if not facts.cuts_rows else _MOST_TOKENS
    return replace(candidate, max_length=limit, max_tokens=min(longest, limit))


def _arguments(
    real: Plan, candidate: Candidate, facts: Facts, request: Request, env: Environment
) -> Mapping[str, Sourced[Any]]:
    """The real command with what a rehearsal decides anew."""
    pins = {flag: request.pins[flag] for flag in _KEPT_PINS if flag in request.pins}
    bare = replace(
        request,
        pins=pins,
        decided=None,
        model=Sourced(value=facts.model.path, source="rehearsal: the same architecture in small"),
        datasets=Sourced(value=facts.data.files, source="rehearsal: short rows among the first"),
    )
    steps = schedule.count_steps(candidate, facts, bare)
    ours = dict(arguments.engine_args(candidate, facts, bare, steps, env.cwd, env.home))
    if facts.cuts_rows:
        ours["truncation_strategy"] = Sourced(value="left", source="rehearsal: rows are short")
    args: dict[str, Sourced[Any]] = {}
    for flag, value in real.engine_args.items():
        if flag not in _ANEW:
            args[flag] = value
        elif flag in ours:
            args[flag] = ours[flag]
    args.update({flag: value for flag, value in ours.items() if flag in _ANEW and flag not in args})
    return MappingProxyType(args)


# ------------------------------------------------------------------------------------------------- what differs


def _differences(real: Plan, plan: Plan, smaller: tuple[tuple[str, str, str], ...]) -> Iterator[Difference]:
    here, there = plan.candidate, real.candidate
    yield Difference(what="device", real=_device(real), here=f"CPU, {here.world} x process")
    if (here.attn_impl or "").startswith("flash"):
        yield Difference(
            what="attention kernel", real=str(here.attn_impl), here="the same calls, computed by PyTorch's SDPA"
        )
    if there.device == "gpu":
        yield (
            Difference(what="collectives", real="NCCL", here="gloo")
            if here.world > 1
            else Difference(what="kernels", real="CUDA", here="CPU")
        )
    for what, was, now in smaller:
        yield Difference(what=what, real=was, here=now)
    for flag in dict.fromkeys((*real.engine_args, *plan.engine_args)):
        was, now = (_text(found.engine_args.get(flag)) for found in (real, plan))
        if flag not in _HOUSE and was != now:
            yield Difference(what=f"--{flag}", real=was, here=now)


def _device(real: Plan) -> str:
    gpus = real.facts.machine.gpus
    return f"{real.candidate.world} x {gpus[0].name}" if gpus else f"CPU, {real.candidate.world} x process"


def _text(arg: Sourced[Any] | None) -> str:
    if arg is None:
        return "-"
    return arg.value if isinstance(arg.value, str) else " ".join(arg.value)
