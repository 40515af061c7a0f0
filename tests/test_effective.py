"""What really runs: the loss, attention, precision and optimizer that flags alone do not tell."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch.effective import NO_LOGITS_TO_KEEP, effective
from swift_autobatch.records import Effective

QWEN = "Qwen/Qwen2.5-7B-Instruct"


def resolve(tmp_path: Path, gpus: str | None = "1x4090", model: str = QWEN, **changes: Any) -> Effective:
    facts = builders.facts(tmp_path, gpus, model)
    device = "gpu" if gpus else "cpu"
    return effective(builders.candidate(device=device, **changes), facts.model, facts.machine)


def test_only_supervised_rows_reach_the_head_by_default(tmp_path: Path) -> None:
    found = resolve(tmp_path)
    assert (found.loss, found.logits_rows) == ("hf_fp32_logits", "supervised")


def test_switching_logits_to_keep_off_sends_all_rows(tmp_path: Path) -> None:
    assert resolve(tmp_path, use_logits_to_keep=False).logits_rows == "all"


def test_a_model_without_logits_to_keep_sends_all_rows_and_says_so(tmp_path: Path) -> None:
    found = resolve(tmp_path, "1xA100-80G", "Qwen/Qwen-7B-Chat")
    assert found.logits_rows == "all"
    assert any("QWenLMHeadModel" in note for note in found.notes)


def test_sequence_parallel_keeps_16_bit_logits_of_all_rows_and_drops_liger(tmp_path: Path) -> None:
    found = resolve(tmp_path, "2xA100-80G", world=2, sp=2, liger=True, parallel="zero3")
    assert (found.loss, found.logits_rows) == ("bf16_logits", "all")
    assert any("Liger" in note for note in found.notes)


def test_liger_is_fused_where_nothing_drops_it(tmp_path: Path) -> None:
    assert resolve(tmp_path, liger=True).loss == "liger_fused"


@pytest.mark.parametrize(
    ("gpus", "changes", "kernel"),
    [
        ("1x4090", {}, "sdpa-flash"),
        ("1x4090", {"micro_batch": 2}, "sdpa-efficient"),
        ("1x4090", {"micro_batch": 2, "packing": True, "attn_impl": "flash_attn"}, "flash_attention_2"),
        ("1x4090", {"attn_impl": "flash_attention_2"}, "flash_attention_2"),
        ("1x4090", {"attn_impl": "eager"}, "eager"),
        ("1xT4", {"torch_dtype": "float16"}, "sdpa-math"),  # grouped heads, no mask, no flash kernel
        ("1xT4", {"torch_dtype": "float16", "micro_batch": 2}, "sdpa-efficient"),
        (None, {"torch_dtype": "float32", "micro_batch": 4}, "sdpa-flash"),
    ],
)
def test_attention_kernel(tmp_path: Path, gpus: str | None, changes: dict[str, Any], kernel: str) -> None:
    assert resolve(tmp_path, gpus, **changes).attention == kernel


def test_a_t4_without_grouped_heads_has_the_memory_efficient_kernel(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1xT4")
    ungrouped = replace(facts.model, kv_heads=facts.model.heads)
    found = effective(builders.candidate(torch_dtype="float16"), ungrouped, facts.machine)
    assert found.attention == "sdpa-efficient"


@pytest.mark.parametrize(
    ("gpus", "dtype", "precision"),
    [
        ("1x4090", "bfloat16", "bf16"),
        ("1xT4", "float16", "fp16-amp"),
        ("1x4090", "float32", "fp16-amp"),
        (None, "float32", "fp32"),
        (None, "bfloat16", "bf16"),
    ],
)
def test_precision(tmp_path: Path, gpus: str | None, dtype: str, precision: str) -> None:
    assert resolve(tmp_path, gpus, torch_dtype=dtype).precision == precision


def test_offload_replaces_an_8_bit_optimizer_and_says_so(tmp_path: Path) -> None:
    found = resolve(tmp_path, parallel="zero2_offload", optim="adamw_8bit")
    assert found.optimizer == "deepspeed-cpu-adam"
    assert any("adamw_8bit" in note for note in found.notes)
    assert not resolve(tmp_path, parallel="zero2_offload").notes


def test_optimizer_names(tmp_path: Path) -> None:
    assert resolve(tmp_path).optimizer == "fused-adamw"
    assert resolve(tmp_path, optim="adamw_torch").optimizer == "foreach-adamw"
    assert resolve(tmp_path, optim="paged_adamw_8bit").optimizer == "paged-adamw-8bit"
    assert resolve(tmp_path, "2x4090", world=2, parallel="fsdp2_offload").optimizer == "host-fused-adamw"


def test_the_list_of_models_without_logits_to_keep_agrees_with_the_installed_transformers() -> None:
    """Reads the source of every listed architecture that transformers itself ships, and of common ones not listed."""
    folder = Path(pytest.importorskip("importlib.util").find_spec("transformers").submodule_search_locations[0])
    checked = set()
    for path in folder.glob("models/*/modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        able = "logits_to_keep" in text
        for name in re.findall(r"^class (\w+(?:ForCausalLM|ForConditionalGeneration))\(", text, re.MULTILINE):
            if name in NO_LOGITS_TO_KEEP:
                assert not able, f"{name} has logits_to_keep in {path.name}"
                checked.add(name)
            elif name in {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"}:
                assert able, f"{name} has no logits_to_keep"
                checked.add(name)
    assert {"Qwen2ForCausalLM", "LlamaForCausalLM", "T5ForConditionalGeneration"} <= checked
