"""Every rule is broken by one candidate here and by none of the plain ones; a new rule must be added to BREAKS."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml

from swift_autobatch import rules
from swift_autobatch.records import Facts, Sourced
from swift_autobatch.tables import DATA, dialect, engine_models

# rule -> (changes of the plain candidate, machine or None for a CPU, engine flags)
BREAKS: dict[str, tuple[dict[str, Any], str | None, dict[str, str | tuple[str, ...]]]] = {
    "deepspeed-and-fsdp": ({}, "2x4090", {"deepspeed": "zero2", "fsdp": "fsdp2"}),
    "quant-bits-alone": ({}, "1x4090", {"quant_bits": "4"}),
    "quant-method-alone": ({}, "1x4090", {"quant_method": "bnb"}),
    "quant-kind": ({}, "1x4090", {"quant_method": "hqq", "quant_bits": "4"}),
    "fp16-and-bf16": ({}, "1x4090", {"fp16": "true", "bf16": "true"}),
    "precision-twice": ({}, "1x4090", {"torch_dtype": "float16", "bf16": "true"}),
    "lazy-packing": ({"packing": True, "attn_impl": "flash_attn"}, "1x4090", {"lazy_tokenize": "true"}),
    "lazy-streaming": ({}, "1x4090", {"lazy_tokenize": "true", "streaming": "true", "max_steps": "5"}),
    "lazy-group-by-length": ({"group_by_length": True}, "1x4090", {"lazy_tokenize": "true"}),
    "group-by-length-unshuffled": ({"group_by_length": True}, "1x4090", {"train_dataloader_shuffle": "false"}),
    "streaming-endless": ({}, "1x4090", {"streaming": "true"}),
    "streaming-cached": ({}, "1x4090", {"streaming": "true", "cached_dataset": ("a",), "max_steps": "5"}),
    "truncation-split": ({}, "1x4090", {"truncation_strategy": "split"}),
    "load-best-unevaluated": ({}, "1x4090", {"load_best_model_at_end": "true"}),
    "load-best-steps": (
        {},
        "1x4090",
        {"load_best_model_at_end": "true", "val_dataset": ("v",), "save_steps": "10", "eval_steps": "4"},
    ),
    "plateau-unevaluated": ({}, "1x4090", {"lr_scheduler_type": "reduce_lr_on_plateau"}),
    "warmup-twice": ({}, "1x4090", {"warmup_steps": "5", "warmup_ratio": "0.1"}),
    "warmup-whole": ({}, "1x4090", {"warmup_ratio": "1.0"}),
    "fractional-steps": ({}, "1x4090", {"save_steps": "1.5"}),
    "prefetch-without-workers": ({}, "1x4090", {"dataloader_prefetch_factor": "2", "dataloader_num_workers": "0"}),
    "lisa-full-only": ({}, "1x4090", {"lisa_activated_layers": "2"}),
    "muon-broken": ({}, "1x4090", {"optimizer": "muon"}),
    "init-orthogonal-broken": ({}, "1x4090", {"init_strategy": "orthogonal"}),
    "elastic-removed": ({"parallel": "zero2"}, "1x4090", {"callbacks": ("deepspeed_elastic",)}),
    "target-parameters-dropout": ({}, "1x4090", {"target_parameters": ("mlp",)}),
    "parallel-needs-ranks": ({"world": 2}, "2x4090", {}),
    "ddp-needs-two": ({"parallel": "ddp"}, "1x4090", {}),
    "fsdp-needs-two": ({"parallel": "fsdp2"}, "1x4090", {}),
    "fsdp-offload-unproved": ({"parallel": "fsdp2_offload", "world": 2, "device": "cpu"}, None, {}),
    "fsdp-quantised": ({"parallel": "fsdp2", "world": 2, "quant": "nf4"}, "2x4090", {}),
    "quant-full": ({"tuner": "full", "quant": "nf4"}, "1x4090", {}),
    "quantised-full": ({"tuner": "full"}, "1x4090", {}),
    "quant-zero3": ({"quant": "nf4", "parallel": "zero3", "world": 2}, "2x4090", {}),
    "quant-of-quantised": ({"quant": "nf4"}, "1x4090", {}),
    "bf16-needs-ampere": ({}, "1xT4", {}),
    "tf32-needs-ampere": ({"torch_dtype": "float16"}, "1xT4", {"tf32": "true"}),
    "fp16-on-cpu-deepspeed": ({"device": "cpu", "torch_dtype": "float16"}, None, {}),
    "bf16-on-cpu-unsaid": ({"device": "cpu"}, None, {"use_cpu": "false"}),
    "fp16-full-weights": ({"tuner": "full", "torch_dtype": "float16"}, "1xT4", {}),
    "device-map-parallel": ({"world": 2, "parallel": "ddp"}, "2x4090", {"device_map": "auto"}),
    "auto-find-batch-zero3": ({"world": 2, "parallel": "zero3"}, "2x4090", {"auto_find_batch_size": "true"}),
    "load-best-save-only": (
        {"parallel": "zero2"},
        "1x4090",
        {"save_only_model": "true", "load_best_model_at_end": "true", "val_dataset": ("v",)},
    ),
    "fsdp-sharded-save": ({"world": 2, "parallel": "fsdp2"}, "2x4090", {"fsdp": "fsdp2", "save_only_model": "true"}),
    "hpz-without-zero3": ({}, "1x4090", {"zero_hpz_partition_size": "2"}),
    "autotp-full-only": ({"world": 2, "parallel": "zero1", "tp": 2}, "2x4090", {}),
    "autotp-zero3": ({"world": 2, "parallel": "zero3", "tp": 2, "tuner": "full"}, "2x4090", {}),
    "autotp-needs-deepspeed": ({"world": 2, "parallel": "ddp", "tp": 2, "tuner": "full"}, "2x4090", {}),
    "autotp-kv-heads": ({"world": 8, "parallel": "zero1", "tp": 8, "tuner": "full"}, "8xH100", {}),
    "offload-8bit-optimizer": ({"parallel": "zero2_offload", "optim": "adamw_8bit"}, "1x4090", {}),
    "layerwise-one-process": ({"world": 2, "parallel": "ddp", "optim": "galore_adamw_layerwise"}, "2x4090", {}),
    "unsloth-one-process": ({"world": 2, "parallel": "ddp"}, "2x4090", {"tuner_backend": "unsloth"}),
    "flash-needs-ampere": ({"attn_impl": "flash_attention_2", "torch_dtype": "float16"}, "1xT4", {}),
    "flash-on-cpu": ({"attn_impl": "flash_attention_2", "device": "cpu"}, None, {}),
    "flash-head-width": ({"attn_impl": "flash_attention_2"}, "1x4090", {}),
    "padding-free-needs-flash": ({"padding_free": True}, "1x4090", {}),
    "packing-template": ({"packing": True, "attn_impl": "flash_attn"}, "1x4090", {}),
    "group-by-length-packing": (
        {"packing": True, "group_by_length": True, "attn_impl": "flash_attention_2"},
        "1x4090 with flash-attn",
        {},
    ),
    "sp-divides-world": ({"world": 4, "parallel": "ddp", "sp": 3}, "4x4090", {}),
    "sp-ring-needs-padding-free": ({"world": 8, "parallel": "zero3", "sp": 8}, "8xH100", {}),
    "sp-attention": ({"world": 2, "parallel": "ddp", "sp": 2, "attn_impl": "eager"}, "2x4090", {}),
    "sp-logits-to-keep": ({"world": 2, "parallel": "ddp", "sp": 2, "use_logits_to_keep": True}, "2x4090", {}),
    "sp-padding-left": ({"world": 2, "parallel": "ddp", "sp": 2}, "2x4090", {"padding_side": "left"}),
    "sp-with-tp": ({"world": 4, "parallel": "zero2", "sp": 2, "tp": 2, "tuner": "full"}, "4x4090", {}),
    "liger-on-cpu": ({"liger": True, "device": "cpu"}, None, {}),
    "liger-model": ({"liger": True}, "1x4090", {}),
    "rows-fewer-than-ranks": ({"world": 4, "parallel": "ddp"}, "4x4090", {}),
    "flash-not-installed": ({"attn_impl": "flash_attention_2"}, "1x4090", {}),
    "deepspeed-not-installed": ({"parallel": "zero2"}, "1x4090 without deepspeed", {}),
    "offload-needs-compiler": ({"parallel": "zero2_offload"}, "here", {}),
    "offload-needs-nvcc": ({"parallel": "zero2_offload"}, "here with a compiler", {}),
    "bitsandbytes-not-installed": ({"quant": "nf4"}, "1x4090 without bitsandbytes", {}),
    "8bit-optimizer-not-installed": ({"optim": "paged_adamw_8bit"}, "1x4090 without bitsandbytes", {}),
    "liger-not-installed": ({"liger": True}, "1x4090", {}),
    "unsloth-not-installed": ({}, "here", {"tuner_backend": "unsloth"}),
    "apollo-not-installed": ({"optim": "apollo_adamw"}, "here", {}),
    "flash-checkpoint-not-installed": ({}, "here", {"use_flash_ckpt": "true"}),
    "wandb-not-installed": ({}, "here", {"report_to": ("wandb",)}),
    "swanlab-not-installed": ({}, "here", {"report_to": ("swanlab",)}),
    "megatron-heads": ({"parallel": "megatron", "world": 8, "tp": 8}, "8xH100", {}),
    "megatron-layers": ({"parallel": "megatron", "world": 8, "pp": 8}, "8xH100", {}),
    "megatron-experts": ({"parallel": "megatron", "world": 4, "ep": 4}, "4x4090", {}),
    "megatron-quantised": ({"parallel": "megatron", "world": 2, "quant": "nf4"}, "2x4090", {}),
    "megatron-not-rendered": ({"parallel": "megatron", "world": 2, "tp": 2}, "2x4090", {}),
}


def facts_for(rule: str, where: str | None, tmp_path: Path) -> Facts:
    """The facts under which a rule bites; software is what each case says, not what this machine has."""
    spec = where.split(" ")[0] if where and where != "here" and not where.startswith("here") else where and "1x4090"
    found = builders.facts(tmp_path, gpus=spec, lengths=(100,) * (2 if rule == "rows-fewer-than-ranks" else 50))
    versions = {"ms-swift": "4.6.0", "deepspeed": "0.19.8", "bitsandbytes": "0.50.2"}
    compiler = "/usr/bin/c++" if where and "compiler" in where else None
    for name in ("deepspeed", "bitsandbytes"):
        if where and f"without {name}" in where:
            del versions[name]
    if where and "with flash-attn" in where:
        versions["flash-attn"] = "2.8.3"
    software = replace(found.machine.software, versions=versions, compiler=compiler, nvcc=None)
    source = "this machine" if where and where.startswith("here") else found.machine.source
    machine = replace(found.machine, software=software, source=source)
    quantised = "gptq" if rule in ("quant-of-quantised", "quantised-full") else None
    kind = "bloom" if rule == "liger-model" else found.model.hf_model_type
    wide = 512 if rule == "flash-head-width" else 0
    model = replace(found.model, quantised=quantised, hf_model_type=kind, widest_head=wide)
    if rule == "packing-template":
        model = replace(model, swift_model_type=sorted(engine_models().unpackable)[0])
    return replace(found, machine=machine, model=model)


def flags(pins: dict[str, str | tuple[str, ...]]) -> rules.Flags:
    return rules.Flags({name: Sourced(value=value, source=f"flag --{name}") for name, value in pins.items()})


def test_every_rule_is_visited() -> None:
    assert [rule.id for rule in rules.RULES] == list(BREAKS)


@pytest.mark.parametrize("rule", BREAKS)
def test_a_candidate_breaks_the_rule(rule: str, tmp_path: Path) -> None:
    changes, where, pins = BREAKS[rule]
    found = facts_for(rule, where, tmp_path)
    assert rules.find(rule).when(builders.candidate(**changes), found, flags(pins))


@pytest.mark.parametrize("rule", BREAKS)
def test_a_plain_candidate_does_not(rule: str, tmp_path: Path) -> None:
    found = builders.facts(tmp_path)
    assert not rules.find(rule).when(builders.candidate(), found, rules.Flags())


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.id)
def test_every_rule_explains_itself(rule: rules.Rule) -> None:
    assert rule.why
    assert rule.fix
    assert rule.proofs()
    assert set(rule.about) <= set(dialect().flags)


@pytest.mark.parametrize("rule", [rule for rule in rules.RULES if rule.cites], ids=lambda rule: rule.id)
def test_the_lines_that_a_rule_cites_still_say_so(rule: rules.Rule) -> None:
    """Red when another engine is installed: read the new line, then correct the rule or its citation."""
    for cite in rule.cites:
        package = importlib.util.find_spec(cite.path.split("/")[0])
        assert package is not None
        path = Path(str(package.origin)).parents[1] / cite.path
        lines = path.read_text(encoding="utf-8").splitlines()[max(0, cite.line - 4) : cite.line + 3]
        assert any(cite.says in line for line in lines), f"{cite.path}:{cite.line} does not say {cite.says!r}"


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in rules.RULES]
    assert len(ids) == len(set(ids))


def engine_conditions() -> dict[str, dict[int, dict[str, Any]]]:
    found: dict[str, dict[int, dict[str, Any]]] = yaml.safe_load((DATA / "engine_conditions.yaml").read_text())
    return found


def test_every_condition_of_the_engine_has_a_rule_or_a_reason_why_not() -> None:
    table = engine_conditions()
    assert list(table["conditions"]) == list(range(1, 45))
    assert list(table["traps"]) == list(range(1, 26))
    known = {rule.id for rule in rules.RULES}
    for row in (*table["conditions"].values(), *table["traps"].values()):
        assert set(row) in ({"what", "rules"}, {"what", "reason"})
        assert set(row.get("rules", ())) <= known
        assert row.get("rules") or len(row["reason"]) > 30


def test_the_page_of_the_rules_is_current() -> None:
    script = Path(__file__).parents[1] / "scripts" / "make_rule_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:2000] + "\nrun scripts/make_rule_docs.py"
