"""A published speed -> what the predictor takes: the memory exam's facts, the card's rates, the rows' lengths."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from functools import lru_cache
from typing import Any

from cases import Case, Skip, express, model_of
from profiles import targets, task_of

from swift_autobatch.errors import AutoswiftError
from swift_autobatch.facts.cards import assumed_links, find_card, row_gpu
from swift_autobatch.predict.profile import Engine
from swift_autobatch.records import Candidate, DataFacts, Facts, Machine, replace
from swift_autobatch.tables import GpuRow, ModelRow, models

UNNAMED = "A100-80G"  # such a case is scored only against others of its own machine
_POINTS = 256  # quantiles of an assumed distribution
_GRID = 4096  # steps of its sum

# What the cases call a card where the catalogue has another word for it.
_CARDS = {
    "A100-80GB": "A100-80G",
    "A800-80GB": "A800 SXM4 80GB",
    "H800-80GB": "H800 SXM5 80GB",
    "H20-96GB": "H20",
    "H100-96GB": "H100 NVL 94GB",  # torchtitan: HBM2e and less power, a peak "between SXM and NVL"
    "H200": "H200 SXM5 141GB",
    "A100 40GB SXM": "A100 SXM4 40GB",
    "A100-SXM4-40GB": "A100 SXM4 40GB",
    "A100-SXM4-80GB": "A100 SXM4 80GB",
}

# Tokens of a row (mean, standard deviation) of datasets that cases name without a length.
# Source: ms-swift 2.x and 3.x, Supported models and datasets, counted with Qwen's tokenizer.
_DATASETS = {
    "LongAlpaca-12k": (9941.8, 3417.1),
    "shareAI-Llama3-DPO": (334.0, 162.8),
    "alpaca": (183.0, 122.9),  # 170.1 in ChatML, whose frame is 13 tokens shorter than Alpaca's own
}


def express_speed(case: Case) -> tuple[Facts, Candidate, Engine]:
    """Facts, candidate and engine of one case, as far as its speed depends on them.

    Raises:
        Skip: as :func:`cases.express`.
    """
    facts, candidate, engine = express(_with_known_shape(case))
    limit = candidate.max_length
    lengths = lengths_of(case, limit)
    candidate = replace(
        candidate,
        max_tokens=lengths[-1],
        accumulation=_accumulation(case, candidate),
        group_by_length="length-bucketed" in (case["actual_seq_note"] or ""),
    )
    facts = replace(facts, machine=_machine(case, facts.machine, candidate), data=_data(facts.data, lengths))
    return facts, candidate, replace(engine, **kernels(case, facts.model.hidden))


def _with_known_shape(case: Case) -> Case:
    """The case with a catalogued MoE of its size where its own shape is unknown and its name states both sizes."""
    named = re.search(r"(\d+(?:\.\d+)?)b-a?(\d+(?:\.\d+)?)b", case["model"].lower())
    if not named or not model_of(case["model"], case["params_b"])[1]:
        return case
    sizes = [float(size) * 1e9 for size in named.groups()]

    def away(row: ModelRow) -> float:
        return sum(
            abs(math.log(own / size)) for own, size in zip((row.params_total, row.params_active), sizes, strict=True)
        )

    rows = {row.id: row for row in models().values() if row.params_active}
    return {**case, "model": min(rows.values(), key=away).id}


def epochs_counted_once(case: Case) -> int:
    """Epochs in a source's seconds whose rows it counts once.

    Source: ms-swift 1.5 to 2.6 llm/utils/utils.py `get_time_info`, rows of one epoch over the whole run's seconds;
    its tuner table trains two (scripts/benchmark/config/tuner.json, and the table's own column: epoch=2).
    """
    return 2 if case["group"] == "ms-swift-v2-tuner-benchmark" else 1


def _accumulation(case: Case, candidate: Candidate) -> int:
    """Micro batches of a step; Megatron scripts state the global batch instead."""
    found = re.search(r"global[_ ]batch(?:[_ ]size)?[ =](\d+)", case["notes"] or "")
    if case["deepspeed"] == "megatron" and found:
        return max(1, int(found[1]) // (candidate.micro_batch * candidate.dp))
    return candidate.accumulation


# ---------------------------------------------------------------------------------------------------- machine


def card_of(case: Case) -> GpuRow:
    """The catalogue's row of a case's card; an A100 where it names none."""
    name = (case["gpu"] or "").strip()
    text = _CARDS.get(name) or re.sub(r"\(.*|^NVIDIA ", "", name).strip()
    if name.startswith("B200"):
        text = "B200"
    try:
        return find_card(text)
    except AutoswiftError:
        return find_card(UNNAMED)


def _machine(case: Case, machine: Machine, candidate: Candidate) -> Machine:
    row = card_of(case)
    old = machine.gpus[0]
    gpu = row_gpu(row, index=0, name=row.name, uuid=None, total_bytes=old.total_bytes, free_bytes=old.free_bytes)
    cards = min(8, candidate.world)
    links, rate = assumed_links(find_card("H100 SXM5 80GB") if "NVL" in row.name else row, cards)
    if "(2x" in (case["gpu"] or "") and rate:
        rate /= 2  # two cards on a desktop processor's 16 lanes
    return replace(machine, gpus=(gpu,) * cards, links=links, link_gb_s=rate)


# ---------------------------------------------------------------------------------------------------- lengths


def lengths_of(case: Case, limit: int) -> tuple[int, ...]:
    """Tokens per row, ascending: exact where the case knows, else quantiles of what it says of its dataset."""
    note, speed = case["actual_seq_note"] or "", case["speed"] or {}
    side_by_side = case["packing"] and case["tool"] == "ms-swift" and "LongAlpaca" in (case["notes"] or "")
    if speed.get("length_known") and case["seq_len_effective"] and not side_by_side:
        return (case["seq_len_effective"],)
    mean, spread = _moments(case, note, speed.get("basis") or "", limit)
    return spread_over(round(mean), round(spread), limit, "truncated" in note)


def _moments(case: Case, note: str, basis: str, limit: int) -> tuple[float, float]:
    stated = re.search(r"\((\d+)\+-(\d+) tokens", note)
    if stated:
        return float(stated[1]), float(stated[2])
    mean = re.search(r"mean (\d+) tokens/sample", basis) or re.search(r"(\d{4,}) tokens \* \d+ rows", note)
    if mean:
        return float(mean[1]), 0.5 * float(mean[1])
    for name, moments in _DATASETS.items():
        if name.lower() in f"{note} {case['notes']}".lower():
            return moments
    return 0.5 * limit, 0.25 * limit  # nobody says: half of the limit


@lru_cache(maxsize=64)
def spread_over(mean: int, spread: int, limit: int, cut: bool) -> tuple[int, ...]:
    """Quantiles of a gamma distribution of that mean and deviation; over the limit rows are dropped, or cut."""
    shape, scale = (mean / spread) ** 2, spread**2 / mean
    top = mean + 12 * spread if cut else limit
    grid = [top * (n + 0.5) / _GRID for n in range(_GRID)]
    below = list(itertools.accumulate(math.exp((shape - 1) * math.log(x) - x / scale) for x in grid))
    ranks = (below[-1] * (n + 0.5) / _POINTS for n in range(_POINTS))
    return tuple(min(limit, max(1, round(grid[bisect.bisect_left(below, rank)]))) for rank in ranks)


def _data(data: DataFacts, lengths: tuple[int, ...]) -> DataFacts:
    mean = sum(lengths) / len(lengths)
    return replace(
        data,
        rows=len(lengths),
        kept=len(lengths),
        lengths=lengths,
        max_tokens=lengths[-1],
        mean_tokens=mean,
        mean_supervised_tokens=mean,
        max_supervised_tokens=lengths[-1],
    )


# ---------------------------------------------------------------------------------------------------- engines


# fp32 tensors of a weight's size that a forward makes: DoRA B A, its sum with the weight and its square; LoHa two
# products, theirs, its cast. Source: peft tuners/lora/dora.py, tuners/loha/layer.py.
_REBUILT = {"-dora": 3, "loha": 4}
_LORA = re.compile(r"q?(lora|dora)|rs-?lora|pissa|longlora|adalora|vera|oft|adaption_prompt", re.IGNORECASE)


def kernels(case: Case, facts_hidden: int) -> dict[str, Any]:
    """What only the speed depends on: fused and compiled kernels, quantised products, images."""
    notes, group = case["notes"] or "", case["group"]
    facts: dict[str, Any] = {}
    if case["liger"] or "foak" in notes:
        facts["layer_kernels"] = True
    if "foak" in notes and case["quant_bits"]:
        facts["adapter_kernels"] = True  # fms-acceleration: fused LoRA products
    facts["compiled"] = group in ("torchtune", "torchtitan") and "compile" in f"{notes} {case['id']}".lower()
    if group == "torchtune" and "-flags" in case["id"]:  # each row keeps the flags of the rows above
        facts["compiled"] = not case["id"].endswith("packed")
    # transformers' Trainer checkpoints the wrapped layer and warns of one gather more; fsdp_qlora wraps within it.
    facts["checkpoints_units"] = case["deepspeed"] in ("fsdp1", "fsdp1_offload") and group not in ("torchtune",)
    facts["float8"] = case["dtype"] in ("fp8", "nvfp4") or case["id"].endswith("-fp8")
    if "baichuan" in case["model"].lower() and "13b" in case["model"].lower():
        facts["attention"] = "eager"  # modeling_baichuan.py: ALiBi as a bias of every head, no FlashAttention
    facts["lazy_projection"] = "quantize" in case["id"]  # Q-GaLore renews a projection when the old one is off
    if case["deepspeed"] != "megatron" and "scattermoe" not in notes.split(";")[0].split("(")[0]:
        facts["expert_loop"] = True  # transformers before 5 and remote code
        facts["expert_modules"] = "ibm" not in case["model"]  # GraniteMoeParallelExperts: one tensor for all
    if not _LORA.match(str(case["tuner"])):
        facts["targets"] = ()
    quant = f"{case['id']} {case['model']} {notes}".lower()
    if case["quant_bits"] in (4, 8) and "bnb" not in quant and re.search("gptq|awq|-int[48]", quant):
        facts["quant_kernel"] = "gptq-fused" if group.startswith("fms") else "gptq"
    facts["reference_pass"] = task_of(case) in ("dpo", "kto")
    tuner = f"{case['tuner']} {case['id']}".lower()
    facts["rebuilt"] = next((count for name, count in _REBUILT.items() if name in tuner), 0)
    facts["rotated"] = "boft" in tuner
    if facts["rebuilt"] or facts["rotated"]:
        facts["targets"] = targets(case)
        facts["bare_adapters"] = True
    if "prompt_tuning" in tuner:
        facts["virtual_tokens"] = round((case["trainable_params_m"] or 0) * 1e6 / facts_hidden)
    found = re.search(r"(\d+) visual tokens", case["actual_seq_note"] or "")
    if found:
        facts["image_patches"] = 4 * int(found[1])  # the projector joins 2 x 2 patches
    return facts


__all__ = ["Skip", "express_speed"]
