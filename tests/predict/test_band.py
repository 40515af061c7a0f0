"""The width of a prediction by kind of configuration, and what DeepSpeed holds beside the shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch import tables
from swift_autobatch.predict import predict
from swift_autobatch.predict.band import band, kind_of
from swift_autobatch.records import Prediction
from swift_autobatch.units import GIB

QWEN_7B = "Qwen/Qwen2.5-7B-Instruct"


def predicted(tmp_path: Path, calibration: dict[str, float] | None = None, **changes: Any) -> Prediction:
    facts = builders.facts(tmp_path, "8xA100-80G", QWEN_7B, (2048,) * 50)
    return predict(facts, builders.candidate(max_tokens=2048, **changes), calibration)


def terms(prediction: Prediction) -> dict[str, int]:
    return {term.name: term.bytes for term in prediction.terms}


def test_every_row_of_the_table_is_a_kind_and_never_narrower_than_its_median() -> None:
    rows = tables.residuals()
    assert "all" in rows
    assert rows["all"].runs == sum(row.runs for kind, row in rows.items() if kind != "all")
    for row in rows.values():
        assert row.runs >= 1
        assert 1 < row.p99 < 2
        assert row.p50 < row.p99


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "lora-whole-closed-form"),
        ({"quant": "nf4"}, "quantised-whole-closed-form"),
        ({"tuner": "full", "parallel": "fsdp2", "world": 8}, "full-fsdp-closed-form"),
        ({"tuner": "full", "parallel": "zero3_offload", "world": 8}, "full-zero-offload-closed-form"),
        ({"tuner": "full", "parallel": "megatron", "world": 8, "tp": 2}, "full-megatron-closed-form"),
    ],
)
def test_kinds(changes: dict[str, Any], kind: str) -> None:
    assert kind_of(builders.candidate(**changes)) == kind


def test_a_kind_that_nobody_measured_takes_the_width_of_all() -> None:
    known, unknown = builders.candidate(), builders.candidate(parallel="zero2", world=2)
    assert band(known, None).kind == kind_of(known)
    assert band(unknown, None).kind == "all"
    assert band(unknown, None).p99 == tables.residuals()["all"].p99


def test_the_band_is_said_and_a_receipt_narrows_it(tmp_path: Path) -> None:
    published = predicted(tmp_path)
    assert any("published runs of this kind" in note for note in published.assumptions)
    own = predicted(tmp_path, {"moving_p99": 1.05})
    assert any("measured on this machine" in note for note in own.assumptions)
    assert own.needs_p50_bytes == published.needs_p50_bytes < own.needs_p99_bytes < published.needs_p99_bytes


def test_deepspeed_casts_a_flat_copy_of_the_shards_gradients(tmp_path: Path) -> None:
    """6 bytes a parameter of the shard beside the states: the flat 16-bit copy and its fp32 cast."""
    made = predicted(tmp_path, tuner="full", parallel="zero2", world=8, accumulation=2, liger=True)
    shard = 7_615_616_512 / 8
    assert terms(made)["step temporaries"] == pytest.approx(6 * shard, rel=0.001)


def test_zero3_holds_no_more_than_a_few_layers_of_a_large_model(tmp_path: Path) -> None:
    made = predicted(tmp_path, tuner="lora", parallel="zero3", world=8, gradient_checkpointing=False)
    whole = terms(made).get("layer weights", 0) + terms(made).get("gathered ends", 0)
    assert 0.3 * GIB < whole < 2.2 * GIB


def test_what_is_held_beyond_the_need_stays_on_the_card(tmp_path: Path) -> None:
    made = predicted(tmp_path, tuner="full", parallel="zero3", world=8, accumulation=2)
    assert made.reserved_bytes is not None
    assert made.needs_p50_bytes < made.reserved_bytes <= 80 * GIB - made.context_bytes - made.nccl_bytes


def test_latent_attention_is_as_wide_as_its_expanded_heads(tmp_path: Path) -> None:
    from swift_autobatch.predict.job import reach, shape

    model = builders.facts(tmp_path, "1xA100-80G", "deepseek-ai/DeepSeek-V2-Lite").model
    counts = shape(model)
    assert counts.q == counts.k == 16 * (192 + 128) // 2
    assert reach(model, None).mlp == 1  # the latents' up-projections are no down_proj


def test_megatron_adapters_reach_every_expert_and_are_spread_over_ep(tmp_path: Path) -> None:
    """Qwen3-30B-A3B: 128 experts of width 768, r (2 h + 3 x 768) each and layer, beside the attention's."""
    facts = builders.facts(tmp_path, "8xA100-80G", "Qwen/Qwen3-30B-A3B", (2048,) * 50)
    made = {
        ep: terms(
            predict(facts, builders.candidate(max_tokens=2048, parallel="megatron", world=8, ep=ep, lora_rank=8))
        )["adapters"]
        for ep in (1, 8)
    }
    experts = 8 * (2 * 2048 + 3 * 768) * 48 * 128 * 2
    assert made[1] - made[8] == pytest.approx(experts * 7 / 8, rel=0.01)


def test_zero3_spreads_adapters_above_its_persistence_threshold(tmp_path: Path) -> None:
    small, large = (
        terms(predicted(tmp_path, parallel="zero3", world=8, lora_rank=rank))["adapters"] for rank in (8, 64)
    )
    assert large == pytest.approx(small * 64 / 8 / 8, rel=0.001)


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1xA100-80G", QWEN_7B, (2048,) * 50)
    quantised = builders.replace(facts, model=builders.replace(facts.model, quantised="fp8"))
    seen = builders.replace(
        facts, model=builders.replace(facts.model, params_vision=1), data=builders.replace(facts.data, media_rows=3)
    )
    plain = builders.candidate(max_tokens=2048)
    assert any("fp8 already" in note for note in predict(quantised, plain).assumptions)
    assert any("vision tower" in note for note in predict(seen, plain).assumptions)
    dora = predict(facts, builders.candidate(max_tokens=2048, tuner="adalora"))
    assert any("adalora is costed as LoRA" in note for note in dora.assumptions)
    assert not any("costed" in note or "vision" in note for note in predict(facts, plain).assumptions)
