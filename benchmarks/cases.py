"""A published case -> what the predictor takes: facts, candidate and the engine's profile."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, get_args

from profiles import NEW_BLOCKS, profile

from swift_autobatch.errors import AutoswiftError
from swift_autobatch.facts.cards import find_card
from swift_autobatch.facts.model import read_model
from swift_autobatch.predict.profile import Engine
from swift_autobatch.records import (
    Candidate,
    DataFacts,
    Environment,
    Facts,
    Gpu,
    Host,
    Machine,
    ModelFacts,
    Parallel,
    Software,
    replace,
)
from swift_autobatch.tables import models
from swift_autobatch.units import MIB, from_gib, gib

Case = dict[str, Any]
UNKNOWN_LENGTH = 2048  # where neither length nor limit is stated: ms-swift's default max_length for years


class Skip(Exception):
    """A case that the predictor cannot express; the text says why."""


_NOWHERE = Environment(
    variables={},
    cwd="/nonexistent",
    home="/nonexistent",
    cache_dir="/nonexistent",
    state_dir="/nonexistent",
    interpreter="",
)


@cache
def model_of(name: str, params_b: float | None) -> tuple[ModelFacts, bool]:
    """The model's shape, and whether it is assumed: that of the dense Llama-like model next in size, stretched.

    Raises:
        Skip: neither shape nor size is known.
    """
    try:
        return read_model(name, _NOWHERE), False
    except AutoswiftError as error:
        if not params_b:
            raise Skip(error.what) from error
    wanted = params_b * 1e9
    known = {row.id for row in models().values() if row.architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM")}
    shapes = [read_model(name, _NOWHERE) for name in sorted(known)]
    near = min(shapes, key=lambda shape: abs(math.log(shape.params_total / wanted)))
    grown = round(wanted) - near.params_total
    ratio = max(0.1, 1 + grown / (near.params_total - near.params_embedding - near.params_lm_head))
    linears = tuple((label, a, round(b * ratio)) for label, a, b in near.linears)
    changes = {"id": name, "params_total": round(wanted), "params_active": round(wanted), "linears": linears}
    return replace(near, **changes, source=f"assumed: {near.id} stretched to {params_b:g} B parameters"), True


_PARALLEL = {
    None: "none",
    "none": "none",
    "device_map": "none",
    "fsdp1": "fsdp2",
    "fsdp1_offload": "fsdp2_offload",
}
_OLD_CHIPS = {"T4": (7, 5), "V100": (7, 0), "Titan": (7, 5), "2080": (7, 5), "P100": (6, 0)}


def card_gib(case: Case) -> float | None:
    """What the case's card reports to a program: a 24 GB A10G has 22.5 GiB. None where the case names none."""
    stated = case.get("gpu_mem_gib")
    if not stated:
        return None
    name = re.sub(r"\(.*|-\d+GB$|^NVIDIA ", "", case["gpu"] or "").strip()
    try:
        reported = gib(find_card(name).memory_mib * MIB)
    except AutoswiftError:
        return float(stated)
    return reported if 0.85 * stated <= reported <= stated else float(stated)


def _whole(value: Any, default: int = 1) -> int:
    """A count as a case states it; ``default`` where it does not."""
    try:
        return max(1, int(value))
    except (TypeError, ValueError):
        return default


def express(case: Case) -> tuple[Facts, Candidate, Engine]:
    """Facts, candidate and engine of one case.

    Raises:
        Skip: the model's shape is unknown, or the job is one that the predictor does not know.
    """
    model, _ = model_of(case["model"], case["params_b"])
    if case["group"].startswith("litgpt") and model.tied:
        model = _untied(model)
    if case["tuner"] == "llamapro":
        model = _grown(model, NEW_BLOCKS)
    length = _length(case)
    candidate = _candidate(case, model, int(length))
    return Facts(machine=_machine(case, candidate), model=model, data=_rows(int(length))), candidate, profile(case)


def _untied(model: ModelFacts) -> ModelFacts:
    """A tied model as litgpt holds it, the embedding twice.

    Source: litgpt scripts/convert_hf_checkpoint.py (lm_head from wte), model.py (a Linear of its own).
    """
    more = model.params_embedding
    return replace(
        model,
        tied=False,
        params_lm_head=more,
        params_total=model.params_total + more,
        params_active=model.params_active + more,
    )


def _grown(model: ModelFacts, blocks: int) -> ModelFacts:
    """A dense model with copies of some of its layers put in between."""
    ends = model.params_embedding + model.params_lm_head + model.params_vision
    total = model.params_total + blocks * (model.params_total - ends) // model.layers
    return replace(model, layers=model.layers + blocks, params_total=total, params_active=total)


def _length(case: Case) -> float:
    stated = case["seq_len_effective"] or case["max_length"]
    if stated:
        return float(stated)
    found = re.search(r"(\d{3,6}) tokens", (case["actual_seq_note"] or "") + " " + (case["notes"] or ""))
    if found:
        return float(found[1])
    return 4096 if case["group"].startswith("fms") else UNKNOWN_LENGTH  # fms: max_seq_length of its scenarios


def _candidate(case: Case, model: ModelFacts, length: int) -> Candidate:
    world = _whole(case["gpus"])
    parallel = _PARALLEL.get(case["deepspeed"], case["deepspeed"])
    if parallel not in get_args(Parallel):
        raise Skip(f"{parallel} is not modelled")
    if case["group"].startswith("qwen-readme") and case["tuner"] == "qlora":
        parallel = "zero2"  # finetune_qlora_single_gpu.sh: --deepspeed finetune/ds_config_zero2.json
    pieces = world if case["deepspeed"] == "device_map" else _whole(case["pp"])
    spread_by = re.search(r"(\d+) visible cards, (\d+) process", case["notes"] or "")
    processes = int(spread_by[2]) if spread_by else 1
    if processes > 1:  # each with its layers on its share of the cards
        parallel, pieces = "ddp", world // processes
    if parallel == "none" and case["deepspeed"] != "device_map" and world > 1:
        parallel = "ddp"
    spread = {"sp": _whole(case["sequence_parallel"]), "tp": _whole(case["tp"]), "ep": _whole(case["ep"])}
    rows, accumulation = _rows_of(case, world), _whole(case["grad_accum"])
    if pieces > 1 and case["group"] == "torchtitan":  # a pipeline takes its local batch a row at a time
        rows, accumulation = 1, rows
    if parallel == "megatron":  # its sequence parallel is the tensor-parallel group; the rest is context parallel
        spread["cp"], spread["sp"] = 1, 1
    tuner = _tuner(case)
    return Candidate(
        strategy="exam",
        device="gpu",
        world=world,
        tuner=tuner,
        quant=_quant(case, model),
        parallel=parallel,
        pp=pieces,
        **spread,
        micro_batch=rows,
        accumulation=accumulation,
        max_length=length,
        max_tokens=length,
        gradient_checkpointing=case["grad_checkpointing"] is not False,
        attn_impl=None,
        torch_dtype="float16" if case["dtype"] == "fp16" else "bfloat16",
        packing=bool(case["packing"]),
        padding_free=bool(case["padding_free"]),
        liger=bool(case["liger"]),
        lora_rank=_whole(case["lora_rank"], 8),
        optim=_optim(case),
    )


def _rows_of(case: Case, world: int) -> int:
    """Rows of a micro batch; where only the batch of all cards is stated, its share."""
    stated = re.search(r"batch size (\d+)", case["quote"] or "")
    if case["per_device_batch"] is None and stated:
        return max(1, int(stated[1]) // (world * _whole(case["grad_accum"])))
    return _whole(case["per_device_batch"])


# Trained whole or projected; everything else trains few parameters beside frozen ones, as adapters do.
_FULL = frozenset({"full", "galore"})
_FEW = re.compile(
    r"^(q?lora|q?dora|rs-?lora|pissa|longlora|adalora|adapter|adaption_prompt|loha|lokr|vera|boft|oft|bone|miss|ia3|reft"
    r"|fourierft|hra|prompt|prefix|p[-_ ]?tuning|llamapro|lisa|badam|ln_tuning|trainable_tokens|bias)\b"
)


def _tuner(case: Case) -> str:
    name = str(case["tuner"] or "").lower()
    if name in _FULL:
        return "full"
    if _FEW.match(name) and "full" not in name:
        return "lora"
    raise Skip(f"tuner {case['tuner']} is not modelled")


def _quant(case: Case, model: ModelFacts) -> Any:
    if case["quant_bits"] == 8:
        return "int8"
    return "nf4" if case["quant_bits"] == 4 else "none"


def _optim(case: Case) -> str:
    name = (case["optimizer"] or "").lower()
    if "galore" in name:
        return "adamw_torch"
    if "paged" in name:
        return "paged_adamw_8bit" if "8bit" in name else "paged_adamw"
    if "4bit" in name:
        return "adamw_torch_4bit"
    if "8bit" in name or "8-bit" in name:
        return "adamw_8bit"
    if "fused" in name or case["tool"] == "megatron-swift":
        return "adamw_torch_fused"
    return "adamw_torch"


def _machine(case: Case, candidate: Candidate) -> Machine:
    total = from_gib(card_gib(case) or 80)
    name = case["gpu"] or "unknown card"
    chip = next((value for key, value in _OLD_CHIPS.items() if key in name), (8, 0))
    gpu = Gpu(
        index=0,
        name=name,
        card=None,
        uuid=None,
        total_bytes=total,
        free_bytes=total,
        compute_capability=chip,
        bf16_native=chip >= (8, 0),
        flash_attention=chip >= (8, 0),
        tflops_16bit=None,
        bandwidth_gb_s=None,
        pcie_gb_s=None,
        source="the case",
    )
    ram = from_gib(4096)  # no case is about host memory
    host = Host(
        cpu_cores=64,
        ram_total_bytes=ram,
        ram_budget_bytes=ram,
        ram_source="",
        shm_bytes=None,
        disk_free_bytes=None,
        gflops=1e3,
    )
    return Machine(
        gpus=(gpu,) * min(8, candidate.world),
        links="nvlink" if candidate.world > 1 else "none",
        link_gb_s=None,
        host=host,
        software=Software(versions={}, python="", driver=None, cuda_driver=None, compiler=None, nvcc=None),
        visible_devices=None,
        processes=candidate.world,
        source="the case",
    )


def _rows(length: int) -> DataFacts:
    return DataFacts(
        files=(),
        rows=1,
        kept=1,
        problems=(),
        lengths=(length,),
        p50_tokens=length,
        p95_tokens=length,
        max_tokens=length,
        mean_tokens=length,
        mean_supervised_tokens=length,
        max_supervised_tokens=length,
        costliest=(),
        tokenizer="the case",
        exact=True,
        digest="",
        self_cognition=False,
    )
