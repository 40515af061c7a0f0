"""Turns the chosen candidate into the whole ``swift sft`` argument list and its environment, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from swift_autobatch import schedule
from swift_autobatch.candidates import batch_target
from swift_autobatch.records import Candidate, Facts, Prediction, Request, Sourced
from swift_autobatch.schedule import Steps
from swift_autobatch.units import show_gib

Value = str | tuple[str, ...]
OWN = "$RUN/autoswift"
TELEMETRY = f"{OWN}/plugins/telemetry.py"
CPU_COMM = f"{OWN}/plugins/cpu_comm.py"
CPU_FSDP = f"{OWN}/plugins/cpu_fsdp.py"
CPU_FLASH = f"{OWN}/plugins/cpu_flash.py"
DEEPSPEED_FILE = f"{OWN}/ds.json"
FSDP_FILE = f"{OWN}/fsdp.json"
CALLBACK = "autoswift_telemetry"


def portable(path: str, root: str, home: str) -> str:
    """``path`` relative to ``$ROOT`` or ``$HOME`` where it lies below them, so that plans travel."""
    for name, folder in (("$ROOT", root), ("$HOME", home)):
        try:
            rest = PurePath(path).relative_to(folder)
        except ValueError:
            continue
        return name if str(rest) == "." else f"{name}/{rest.as_posix()}"
    return path


def engine_args(
    candidate: Candidate, facts: Facts, request: Request, steps: Steps, root: str, home: str
) -> Mapping[str, Sourced[Value]]:
    """Every flag of ``swift sft`` for this job, in order; pinned ones keep the user's value and source."""
    decided: dict[str, Sourced[Value]] = {}
    decided.update(_model(facts, request, root, home))
    decided.update(_data(facts, candidate, request, root, home))
    decided.update(_tuning(candidate, facts))
    decided.update(_batch(candidate, facts, request))
    decided.update(_kernels(candidate))
    decided.update(_parallel(candidate))
    decided["learning_rate"] = schedule.learning_rate(candidate, facts, request)
    decided["warmup_ratio"] = schedule.warmup_ratio(candidate, facts)
    decided["num_train_epochs"] = Sourced(value=f"{schedule.DEFAULT_EPOCHS:g}", source="engine default")
    decided["dataloader_num_workers"] = schedule.workers(candidate, facts)
    decided["logging_steps"] = Sourced(
        value=str(schedule.LOGGING_STEPS), source="every step would cost up to 18 % of the speed"
    )
    decided["save_steps"] = schedule.save_steps(steps)
    decided["save_total_limit"] = Sourced(value=str(schedule.SAVE_TOTAL_LIMIT), source="the last two checkpoints")
    decided.update(_house(candidate))
    return MappingProxyType(_with_pins(decided, request, root, home))


def _model(facts: Facts, request: Request, root: str, home: str) -> dict[str, Sourced[Value]]:
    model = facts.model
    name = portable(model.path, root, home) if model.path else model.id
    args: dict[str, Sourced[Value]] = {"model": Sourced(value=name, source=request.model.source)}
    if model.pass_model_type:
        why = "the engine cannot tell it from the folder's name"
        for flag, told in (("model_type", model.swift_model_type), ("template", model.swift_template)):
            if told:
                args[flag] = Sourced(value=told, source=why)
    if model.path:
        args["check_model"] = Sourced(value="false", source="local folder: the hub check only waits when offline")
    return args


def _data(facts: Facts, candidate: Candidate, request: Request, root: str, home: str) -> dict[str, Sourced[Value]]:
    data = facts.data
    names = tuple(portable(name, root, home) for name in data.files)
    suffixes = tuple(_sample(name) for name in request.datasets.value) or ("",) * len(names)
    spelled = tuple(name + suffix for name, suffix in zip(names, suffixes, strict=True))
    length = f"dataset p100 {data.max_tokens} tokens" if candidate.max_length >= data.max_tokens else "rows are cut"
    return {
        "dataset": Sourced(value=spelled, source=request.datasets.source),
        "max_length": Sourced(
            value=str(candidate.max_length),
            source=f"{length} (p50 {data.p50_tokens}, p95 {data.p95_tokens}); rows are padded to their batch only",
        ),
    }


def _sample(name: str) -> str:
    """The engine's ``#N`` sampling suffix of a dataset as the user spelled it."""
    head, mark, count = name.rpartition("#")
    return f"#{count}" if mark and head and count.isdigit() else ""


def _tuning(candidate: Candidate, facts: Facts) -> dict[str, Sourced[Value]]:
    args: dict[str, Sourced[Value]] = {
        "tuner_type": Sourced(value=candidate.tuner, source="default: never from lora to full or back by itself"),
        "torch_dtype": Sourced(value=candidate.torch_dtype, source=_dtype_reason(candidate, facts)),
    }
    if candidate.torch_dtype == "float32":
        # The engine reads float32 as fp16 AMP (swift/arguments/base_args/model_args.py:130-142).
        args["fp16"] = Sourced(value="false", source="the engine would record fp32 as fp16 AMP")
        args["bf16"] = Sourced(value="false", source="fp32 run")
    if candidate.quant != "none":
        bits = "4" if candidate.quant == "nf4" else "8"
        why = f"strategy {candidate.strategy}"
        args["quant_method"] = Sourced(value="bnb", source=why + ": quant_bits alone is silently ignored")
        args["quant_bits"] = Sourced(value=bits, source=why)
        if candidate.quant == "nf4":
            args["bnb_4bit_compute_dtype"] = Sourced(
                value=candidate.torch_dtype, source="the engine would compute fp16 models in fp32"
            )
    if candidate.tuner == "lora":
        args["lora_rank"] = Sourced(value=str(candidate.lora_rank), source="engine default")
        args["lora_alpha"] = Sourced(value="32", source="engine default")
        args["target_modules"] = Sourced(
            value=("all-linear",), source="+0.3 GB over qkv only on 7B and 22 % better in the articles' measure"
        )
    return args


def _dtype_reason(candidate: Candidate, facts: Facts) -> str:
    if candidate.device == "cpu":
        return "CPU" if candidate.torch_dtype == "float32" else "checkpoint dtype, on CPU"
    oldest = min(gpu.compute_capability for gpu in facts.machine.gpus)
    return f"compute capability {oldest[0]}.{oldest[1]}"


def _batch(candidate: Candidate, facts: Facts, request: Request) -> dict[str, Sourced[Value]]:
    micro, steps, ranks = candidate.micro_batch, candidate.accumulation, candidate.dp
    effective, asked = candidate.effective_batch, request.global_batch
    target = batch_target(request, facts.data, ranks)
    few = "" if target == asked.value else f", {facts.data.kept} rows being fewer than {asked.value}"
    return {
        "per_device_train_batch_size": Sourced(value=str(micro), source="fastest that fits"),
        "gradient_accumulation_steps": Sourced(
            value=str(steps),
            source=f"{micro} x {ranks} x {steps} = {effective} for a target of {target} ({asked.source}{few})",
        ),
    }


def _kernels(candidate: Candidate) -> dict[str, Sourced[Value]]:
    why = f"strategy {candidate.strategy}"
    # Under FSDP2 the JSON's activation_checkpointing takes over (swift/arguments/sft_args.py:354-360).
    engine_checkpointing = candidate.gradient_checkpointing and not candidate.uses_fsdp
    args: dict[str, Sourced[Value]] = {
        "gradient_checkpointing": Sourced(
            value=str(engine_checkpointing).lower(),
            source="activation_checkpointing in the FSDP config instead"
            if candidate.uses_fsdp
            else ("needed to fit, or faster at this batch" if engine_checkpointing else "it fits without recomputing"),
        )
    }
    if candidate.attn_impl:
        args["attn_impl"] = Sourced(value=candidate.attn_impl, source=why)
    for flag, value in (
        ("packing", candidate.packing),
        ("padding_free", candidate.padding_free),
        ("use_liger_kernel", candidate.liger),
        ("group_by_length", candidate.group_by_length),
    ):
        if value:
            args[flag] = Sourced(value="true", source=why)
    if candidate.optim != "adamw_torch_fused":
        args["optim"] = Sourced(value=candidate.optim, source=f"{why}: smaller optimizer states")
    return args


def _parallel(candidate: Candidate) -> dict[str, Sourced[Value]]:
    why = f"strategy {candidate.strategy}"
    args: dict[str, Sourced[Value]] = {}
    if candidate.uses_deepspeed:
        args["deepspeed"] = Sourced(value=DEEPSPEED_FILE, source=f"{why}: {candidate.parallel}")
    if candidate.uses_fsdp:
        args["fsdp"] = Sourced(value=FSDP_FILE, source=f"{why}: {candidate.parallel}")
    if candidate.sp > 1:
        args["sequence_parallel_size"] = Sourced(value=str(candidate.sp), source=why)
    if candidate.tp > 1:
        args["deepspeed_autotp_size"] = Sourced(value=str(candidate.tp), source=why)
    return args


def _house(candidate: Candidate) -> dict[str, Sourced[Value]]:
    """What autoswift itself needs from the engine: the run folder and telemetry."""
    plugins: tuple[str, ...] = (TELEMETRY,)
    if candidate.device == "cpu" and candidate.uses_deepspeed and candidate.world > 1:
        plugins += (CPU_COMM,)
    if candidate.device == "cpu" and candidate.uses_fsdp:
        plugins += (CPU_FSDP,)
    if candidate.device == "cpu" and (candidate.attn_impl or "").startswith("flash"):  # a rehearsal
        plugins += (CPU_FLASH,)
    args: dict[str, Sourced[Value]] = {
        "output_dir": Sourced(value="$RUN", source="autoswift owns the run folder"),
        "add_version": Sourced(value="false", source="autoswift owns the run folder"),
        "external_plugins": Sourced(value=plugins, source="telemetry"),
        "callbacks": Sourced(value=(CALLBACK,), source="telemetry"),
    }
    if candidate.device == "cpu":
        args["use_cpu"] = Sourced(value="true", source="no accelerator")
    return args


# Rendered from the place where the job runs, never taken from a recipe.
_PLACES = frozenset({"model", "dataset", "output_dir", "external_plugins", "callbacks"})
# Needed where the model lies in a folder, whether the recipe was planned on such a machine or not.
_LOCAL = frozenset({"model_type", "template", "check_model"})


def _from_recipe(decided: dict[str, Sourced[Value]], request: Request) -> dict[str, Sourced[Value]]:
    """The arguments that the project recipe decided, where it holds on this machine: all of them and no more."""
    recipe = request.decided
    if recipe is None:
        return decided
    source = f"recipe {recipe.path}"
    kept = {flag: arg for flag, arg in decided.items() if flag in recipe.arguments or flag in _PLACES | _LOCAL}
    for flag, value in recipe.arguments.items():
        if flag not in _PLACES and (flag not in kept or kept[flag].value != value):
            kept[flag] = Sourced(value=value, source=source)
    return kept


_APPENDED = ("external_plugins", "callbacks")  # a user's entries join ours


def _with_pins(decided: dict[str, Sourced[Value]], request: Request, root: str, home: str) -> dict[str, Sourced[Value]]:
    """Lays the user's flags over ours: same place in the order where we had the flag, else at the end."""
    merged = _from_recipe(decided, request)
    for flag, pin in request.pins.items():
        if flag in _APPENDED:
            extra = pin.value if isinstance(pin.value, tuple) else (pin.value,)
            ours = decided[flag].value
            merged[flag] = Sourced(value=(*ours, *extra), source=f"telemetry, {pin.source}")
        else:
            merged[flag] = pin
    if "warmup_steps" in request.pins and "warmup_ratio" not in request.pins:
        merged.pop("warmup_ratio", None)  # the engine refuses both (swift/trainers/arguments.py:231)
    if "max_steps" in request.pins and "num_train_epochs" not in request.pins:
        merged.pop("num_train_epochs", None)
    return merged


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def _why_expandable(prediction: Prediction | None) -> str:
    """What expandable segments save, where both settings were replayed."""
    if prediction is None or prediction.replay is None or prediction.replay_otherwise is None:
        return "rows of varying length fragment fixed segments"
    ours, fixed = prediction.replay.varied_bytes, prediction.replay_otherwise.varied_bytes
    return f"replayed over the rows: reserves {show_gib(ours)} instead of {show_gib(fixed)} with fixed segments"


def environment(candidate: Candidate, facts: Facts, prediction: Prediction | None = None) -> Mapping[str, Sourced[str]]:
    """The environment of the engine, in order. ``${X:-y}`` means: the caller's X, else y.

    Args:
        prediction: where it was replayed, the replay decides how the allocator is set.
    """
    machine = facts.machine
    env: dict[str, Sourced[str]] = {}
    # One process per visible device, exactly: anything else is silent model parallelism or an error. A single CPU
    # process starts without torchrun: under it accelerate wraps the model in DDP, which keeps all gradients twice
    # (accelerate/state.py, `_prepare_backend`: MULTI_CPU for any LOCAL_RANK; on cards one process is not wrapped).
    if candidate.device == "gpu" or candidate.world > 1 or candidate.uses_deepspeed:
        env["NPROC_PER_NODE"] = Sourced(value=str(candidate.world), source="one process per visible device")
        env["MASTER_PORT"] = Sourced(value="${MASTER_PORT:-free}", source="29500 clashes; chosen at launch")
    env["AUTOSWIFT_TELEMETRY_DIR"] = Sourced(value=OWN, source="telemetry")
    if candidate.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = Sourced(value="", source="CPU run")
        env["OMP_WAIT_POLICY"] = Sourced(
            value="PASSIVE", source="threads that spin crawl beside another job: 12 s a step measured instead of 0.9"
        )
        if not candidate.uses_deepspeed:  # accelerate would drop DeepSpeed for plain DDP (accelerate/state.py:915)
            env["ACCELERATE_USE_CPU"] = Sourced(value="true", source="CPU run")
        env["DS_ACCELERATOR"] = Sourced(value="cpu", source="CPU run")
        return MappingProxyType(env)
    devices = ",".join(str(index) for index in range(candidate.world))
    env["CUDA_VISIBLE_DEVICES"] = Sourced(
        value="${CUDA_VISIBLE_DEVICES:-" + devices + "}", source="exactly as many devices as processes"
    )
    replay = prediction.replay if prediction else None
    if replay is None or replay.expandable:
        env[ALLOCATOR] = Sourced(value="expandable_segments:True", source=_why_expandable(prediction))
    if machine.links == "nop2p" and candidate.world > 1 and _old_driver(machine.software.driver):
        env["NCCL_P2P_DISABLE"] = Sourced(
            value="1", source="these cards have no peer-to-peer, and drivers before 550.40 do not say so"
        )
        env["NCCL_IB_DISABLE"] = Sourced(value="1", source="as accelerate launch does for such cards")
    return MappingProxyType(env)


def _old_driver(version: str | None) -> bool:
    """Whether NCCL must be told that these cards have no peer-to-peer; an unknown driver is taken for an old one.

    Source: accelerate utils/other.py `check_cuda_p2p_ib_support`: RTX 40 cards, drivers from 550.40.07 on support it.
    """
    digits = [int(part) for part in (version or "").split(".")[:2] if part.isdigit()]
    return len(digits) < 2 or tuple(digits) < (550, 40)
