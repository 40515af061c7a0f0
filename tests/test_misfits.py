"""Pins that do not fit the model or each other: the engine's late stops come early, and what has no effect is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch.errors import UsageError
from swift_autobatch.planner import make_plan
from swift_autobatch.records import Plan
from swift_autobatch.rules import PACKED
from swift_autobatch.strategies import load_strategies

TINY = "Qwen/Qwen2.5-0.5B-Instruct"


def plan(tmp_path: Path, *, spec: str = "1x4090", model: str = TINY, quantised: str | None = None, **pins: Any) -> Plan:
    facts = builders.facts(tmp_path, spec, model)
    facts = replace(facts, model=replace(facts.model, quantised=quantised))
    return make_plan(builders.request(pins=pins), facts, load_strategies(), str(tmp_path), str(tmp_path))


@pytest.mark.parametrize(
    ("pins", "said", "hint"),
    [
        ({"template": "qwen2.5"}, "no template called 'qwen2.5'", "did you mean qwen2_5"),
        ({"template": "zzzzzz"}, "no template called", "drop --template"),
        ({"model_type": "qwen22"}, "no model type called 'qwen22'", "did you mean qwen2"),
        ({"target_modules": ("q_porj",)}, "no module called q_porj", "did you mean q_proj"),
    ],
)
def test_pins_at_which_the_engine_would_stop(tmp_path: Path, pins: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, **pins)
    assert said in caught.value.what
    assert hint in " ".join(caught.value.hints)
    assert caught.value.where.removeprefix("--") in pins


@pytest.mark.parametrize(
    "pins",
    [
        {"template": "deepseek_coder"},  # belongs to no model type, and the engine knows it
        {"template": "mine", "external_plugins": "mine.py"},
        {"target_modules": ("all-linear",)},
        {"target_modules": ("self_attn.q_proj", "lm_head")},
        {"torch_dtype": "bfloat16", "bf16": "true", "fp16": "false"},
    ],
)
def test_pins_that_the_engine_takes(tmp_path: Path, pins: dict[str, Any]) -> None:
    assert not any("no effect" in note or "no linear module" in note for note in plan(tmp_path, **pins).notes)


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    full = " ".join(plan(tmp_path, tuner_type="full", lora_rank="8", use_dora="true").notes)
    assert "--lora_rank, --use_dora have no effect" in full
    assert "--max_length 99999 is above the 32768 positions" in " ".join(plan(tmp_path, max_length="99999").notes)
    assert "positions" not in " ".join(plan(tmp_path, max_length="32768").notes)
    some = " ".join(plan(tmp_path, target_modules=("q_proj", "foo")).notes)
    assert "--target_modules foo: no linear module of the decoder has that name" in some


@pytest.mark.parametrize("method", PACKED)
def test_a_packed_checkpoint_is_not_tuned_in_full_nor_spread(tmp_path: Path, method: str) -> None:
    with pytest.raises(UsageError, match="rule quantised-full") as caught:
        plan(tmp_path, quantised=method, tuner_type="full")
    assert "--tuner_type lora" in caught.value.hints[0]
    assert plan(tmp_path, quantised=method, tuner_type="lora").candidate.tuner == "lora"
    for pins, rule in (({"deepspeed": "zero3"}, "quant-zero3"), ({"fsdp": "fsdp2"}, "fsdp-quantised")):
        with pytest.raises(UsageError, match=f"rule {rule}"):
            plan(tmp_path, spec="2x4090", quantised=method, **pins)


@pytest.mark.parametrize("spec", ["1x4090", "2x4090"])
@pytest.mark.parametrize(
    ("pins", "rule"),
    [
        ({"packing": "true"}, "flash-not-installed"),
        ({"padding_free": "true"}, "flash-not-installed"),
        ({"attn_impl": "flash_attn"}, "flash-not-installed"),
        ({"packing": "true", "attn_impl": "sdpa"}, "padding-free-needs-flash"),
        ({"use_liger_kernel": "true"}, "liger-not-installed"),
        ({"sequence_parallel_size": "3"}, "sp-divides-world"),
    ],
)
def test_the_refusal_names_the_rule_nearest_to_the_pins(
    tmp_path: Path, spec: str, pins: dict[str, Any], rule: str
) -> None:
    facts = builders.facts(tmp_path, spec, TINY)
    bare = {**facts.machine.software.versions, "flash-attn": None, "liger-kernel": None}
    machine = replace(facts.machine, software=replace(facts.machine.software, versions=bare))
    with pytest.raises(UsageError, match=f"rule {rule}") as caught:
        make_plan(
            builders.request(pins=pins),
            replace(facts, machine=machine),
            load_strategies(),
            str(tmp_path),
            str(tmp_path),
        )
    assert "megatron" not in str(caught.value).lower()
    assert "--parallel-method deepspeed" not in caught.value.hints


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"use_dora": "true"}, "DoRA is costed as LoRA: it needs more"),
        ({"use_galore": "true", "tuner_type": "full"}, "GaLore is costed as whole AdamW states: it needs less"),
        ({"target_modules": ("q_proj", "v_proj")}, "adapters are costed on every linear module"),
    ],
)
def test_pins_that_the_prediction_does_not_follow_say_so(tmp_path: Path, pins: dict[str, Any], said: str) -> None:
    assert any(said in note for note in plan(tmp_path, **pins).notes)
    assert not any("costed" in note for note in plan(tmp_path).notes)
