"""Cases with published or traced figures. Bands are the sources', not fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch.predict import predict
from swift_autobatch.records import Prediction
from swift_autobatch.units import GB, gib

QWEN_7B = "Qwen/Qwen2.5-7B-Instruct"
LLAMA_8B = "meta-llama/Meta-Llama-3-8B"
ALL_ROWS = {"mean_supervised_tokens": 2048.0, "max_supervised_tokens": 2048}


def job(tmp_path: Path, gpus: str, model: str = QWEN_7B, tokens: int = 2048, **changes: Any) -> Prediction:
    """Rows of exactly ``tokens``; ``data`` changes the supervised share."""
    data = changes.pop("data", {})
    facts = builders.facts(tmp_path, gpus, model, (tokens,) * 50, **data)
    return predict(facts, builders.candidate(max_tokens=tokens, **changes))


# Traces of the unmodified model with the real PEFT wrap, allocated GiB, 2048 tokens, all rows through the head.
@pytest.mark.parametrize(
    ("changes", "traced_gib"),
    [
        ({"lora_dropout": 0.0, "accumulation": 1}, 18.30),
        ({"lora_dropout": 0.0, "gradient_checkpointing": False}, 30.74),
        ({"gradient_checkpointing": False}, 32.88),
        ({"lora_dropout": 0.0, "lora_rank": 64, "accumulation": 1}, 19.88),
        ({"lora_dropout": 0.0, "quant": "nf4"}, 9.28),
        ({"lora_dropout": 0.0, "quant": "nf4", "gradient_checkpointing": False}, 20.19),
        ({"tuner": "full", "accumulation": 1}, 56.76),
        ({"tuner": "full", "accumulation": 2}, 60.66),
        ({"tuner": "full", "accumulation": 1, "optim": "adamw_torch"}, 70.93),
        ({"tuner": "full", "accumulation": 1, "optim": "adamw_8bit"}, 42.79),
    ],
)
def test_allocated_agrees_with_the_trace(tmp_path: Path, changes: dict[str, Any], traced_gib: float) -> None:
    prediction = job(tmp_path, "1xA100-80G", data=ALL_ROWS, **changes)
    assert gib(prediction.allocated_bytes) == pytest.approx(traced_gib, rel=0.025)


def test_logits_of_kept_rows_only(tmp_path: Path) -> None:
    """256 labels of 2048 tokens: 15.55 GiB traced, against 18.30 with all rows."""
    data = {"mean_supervised_tokens": 256.0, "max_supervised_tokens": 256}
    prediction = job(tmp_path, "1xA100-80G", data=data, lora_dropout=0.0)
    assert gib(prediction.allocated_bytes) == pytest.approx(15.55, rel=0.025)


def test_case_1_one_row_fits_a_24_gb_card_and_two_do_not(tmp_path: Path) -> None:
    """RTX 4090 D, LoRA r8 on all linears: 20.3-21.1 GB (or GiB) by nvidia-smi, 16.2 after load, batch 2 refused."""
    one = job(tmp_path, "1x4090D", data=ALL_ROWS)
    assert 20.3 * 0.95 <= one.driver_bytes / GB <= 21.1 * 2**30 / GB
    assert one.fits
    load = next(phase for phase in one.phases if phase.phase == "load")
    assert (load.gpu_bytes + one.context_bytes) / GB == pytest.approx(16.2, rel=0.05)
    for data in (ALL_ROWS, {}):
        assert not job(tmp_path, "1x4090D", data=data, micro_batch=2, accumulation=8).fits


def test_case_2_qlora_rank_64_with_offload_stays_under_22_gb(tmp_path: Path) -> None:
    prediction = job(tmp_path, "1x3090", LLAMA_8B, data=ALL_ROWS, quant="nf4", lora_rank=64, parallel="zero2_offload")
    assert prediction.demand_bytes < 22 * GB
    assert prediction.fits


def test_one_t4_holds_7b_in_nf4(tmp_path: Path) -> None:
    prediction = job(tmp_path, "1xT4", tokens=1024, data=ALL_ROWS, quant="nf4", torch_dtype="float16")
    assert prediction.fits
    assert 8 * GB < prediction.driver_bytes < 16 * GB


def test_eight_h100_train_32b_in_full_with_zero3_only(tmp_path: Path) -> None:
    common = {"tuner": "full", "world": 8, "accumulation": 2}
    assert job(tmp_path, "8xH100", "Qwen/Qwen2.5-32B-Instruct", parallel="zero3", **common).fits
    assert not job(tmp_path, "8xH100", "Qwen/Qwen2.5-32B-Instruct", parallel="zero2", **common).fits


def test_full_7b_never_fits_one_4090_without_offload(tmp_path: Path) -> None:
    for optim in ("adamw_torch_fused", "adamw_8bit", "adafactor"):
        for parallel in ("none", "zero2", "zero3"):
            assert not job(tmp_path, "1x4090,ram=1024", tokens=64, tuner="full", parallel=parallel, optim=optim).fits


@pytest.mark.parametrize(("ram", "fits"), [(64, False), (96, False), (256, True)])
def test_full_7b_with_zero3_offload_is_decided_by_host_ram(tmp_path: Path, ram: int, fits: bool) -> None:
    prediction = job(tmp_path, f"1x4090,ram={ram}", tokens=512, tuner="full", parallel="zero3_offload")
    assert prediction.demand_bytes <= prediction.budget_bytes
    assert prediction.fits is fits
    assert prediction.host_bytes > 16 * 7_615_616_512


def test_four_4090_shard_what_one_cannot_hold(tmp_path: Path) -> None:
    common = {"world": 4, "accumulation": 4, "tokens": 1024}
    model = "Qwen/Qwen2.5-14B-Instruct"
    assert not job(tmp_path, "4x4090", model, parallel="zero2", **common).fits  # 27.5 GiB of weights on each
    assert job(tmp_path, "4x4090", model, parallel="zero3", **common).fits


def test_budget_is_the_fit_rule(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "2x4090")
    budgets = [min(int(0.9 * gpu.total_bytes), gpu.free_bytes - int(0.3 * 2**30)) for gpu in facts.machine.gpus]
    prediction = predict(facts, builders.candidate(world=2, parallel="ddp"))
    assert prediction.budget_bytes == min(budgets)
    assert prediction.host_budget_bytes == int(0.9 * facts.machine.host.ram_budget_bytes)


# Resident GiB of one real `swift sft` process on CPU (fp32 full tuning, 392 tokens a row, accumulation 2).
@pytest.mark.parametrize(
    ("rows", "checkpointing", "measured_gib"), [(1, True, 2.94), (4, True, 3.65), (8, True, 4.09), (8, False, 7.06)]
)
def test_cpu_resident_set(tmp_path: Path, rows: int, checkpointing: bool, measured_gib: float) -> None:
    facts = builders.facts(tmp_path, None, "Qwen/Qwen2.5-0.5B-Instruct", (392,) * 32)
    shape = {"hidden": 1024, "layers": 12, "heads": 16, "kv_heads": 4, "head_dim": 64, "intermediate": 2816}
    linears = (
        *(("q_proj", 1024, 1024), ("k_proj", 1024, 256), ("v_proj", 1024, 256), ("o_proj", 1024, 1024)),
        *(("gate_proj", 1024, 2816), ("up_proj", 1024, 2816), ("down_proj", 2816, 1024)),
    )
    params = 12 * sum(a * b for _, a, b in linears) + 2 * 1024 * 1024
    model = builders.replace(
        facts.model,
        **shape,
        vocab=1024,
        tied=False,
        linears=linears,
        params_total=params,
        params_active=params,
        params_embedding=2**20,
        params_lm_head=2**20,
    )
    candidate = builders.candidate(
        device="cpu",
        tuner="full",
        torch_dtype="float32",
        accumulation=2,
        micro_batch=rows,
        max_tokens=392,
        gradient_checkpointing=checkpointing,
    )
    prediction = predict(builders.replace(facts, model=model), candidate)
    assert gib(prediction.driver_bytes) == pytest.approx(measured_gib, rel=0.12)
    assert prediction.host_bytes == prediction.driver_bytes
