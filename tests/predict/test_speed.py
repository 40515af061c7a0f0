"""The step time: padding from the real lengths, and the order of strategies that physics dictates."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch import tables
from swift_autobatch.errors import InputError
from swift_autobatch.predict import predict
from swift_autobatch.predict.padding import padded_lengths
from swift_autobatch.predict.profile import Engine
from swift_autobatch.records import Prediction, replace


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=60), st.integers(1, 8))
def test_expected_longest_of_a_batch(lengths: list[int], rows: int) -> None:
    ordered = tuple(sorted(lengths))
    found = padded_lengths(ordered, 4096, rows, False)
    assert found.real == pytest.approx(sum(ordered) / len(ordered))
    assert found.real - 1e-6 <= found.padded <= ordered[-1] + 1e-6
    assert padded_lengths(ordered, 4096, rows + 1, False).padded >= found.padded - 1e-6


def test_expected_longest_agrees_with_drawing() -> None:
    ordered = tuple(sorted((100, 200, 300, 1000, 50, 400, 2000, 120)))
    generator = random.Random(0)
    drawn = [max(generator.choices(ordered, k=4)) for _ in range(40_000)]
    assert padded_lengths(ordered, 4096, 4, False).padded == pytest.approx(sum(drawn) / len(drawn), rel=0.02)


def test_rows_over_the_limit_are_dropped_and_like_lengths_waste_less() -> None:
    lengths = (100, 200, 300, 400, 5000)
    assert padded_lengths(lengths, 1000, 1, False).real == 250
    assert padded_lengths(lengths, 1000, 2, True).padded == 300
    assert padded_lengths(lengths, 1000, 2, True).padded < padded_lengths(lengths, 1000, 2, False).padded


def run(tmp_path: Path, gpus: str = "1x4090", lengths: tuple[int, ...] = (512,) * 64, **changes: Any) -> Prediction:
    longest = max(lengths)
    facts = builders.facts(tmp_path, gpus, lengths=lengths)
    return predict(facts, builders.candidate(max_tokens=longest, **changes))


def test_checkpointing_costs_20_to_40_percent(tmp_path: Path) -> None:
    """Mission: 20-30 % more time; adapters pay 3 forwards for 2, so half as much again in matmuls at the most."""
    kept = run(tmp_path, gradient_checkpointing=False)
    again = run(tmp_path)
    assert 1.2 < again.step_s / kept.step_s < 1.55


def test_nf4_is_slower_than_16_bit(tmp_path: Path) -> None:
    assert run(tmp_path, quant="nf4").step_s > run(tmp_path).step_s


def test_filling_the_card_helps_less_and_less(tmp_path: Path) -> None:
    speeds = [
        run(tmp_path, lengths=(64,) * 64, micro_batch=rows, accumulation=32 // rows).tokens_per_s
        for rows in (1, 2, 4, 8, 16, 32)
    ]
    gains = [after / before for before, after in pairwise(speeds)]
    assert all(gain > 1 for gain in gains)
    assert gains == sorted(gains, reverse=True)


def test_zero3_is_slower_than_ddp_and_more_so_without_nvlink(tmp_path: Path) -> None:
    ratios = {}
    for gpus in ("4x4090", "4xA100-80G"):
        common = {"gpus": gpus, "world": 4, "accumulation": 4}
        ratios[gpus] = run(tmp_path, parallel="zero3", **common).step_s / run(tmp_path, parallel="ddp", **common).step_s
    assert 1 < ratios["4xA100-80G"] < ratios["4x4090"]


def test_offloaded_full_tuning_is_bound_by_the_host(tmp_path: Path) -> None:
    prediction = run(tmp_path, "1x4090,ram=256", tuner="full", parallel="zero3_offload")
    assert prediction.bound_by == "host"
    assert dict(prediction.time_terms)["offload"] > 0.5 * prediction.step_s


def test_padding_wastes_time_not_tokens(tmp_path: Path) -> None:
    mixed = (64,) * 60 + (2048,) * 4
    padded = run(tmp_path, lengths=mixed, micro_batch=8, accumulation=2)
    free = run(tmp_path, lengths=mixed, micro_batch=8, accumulation=2, padding_free=True, attn_impl="flash_attention_2")
    assert free.tokens_per_s > 1.5 * padded.tokens_per_s
    grouped = run(tmp_path, lengths=mixed, micro_batch=8, accumulation=2, group_by_length=True)
    assert grouped.tokens_per_s > padded.tokens_per_s


def test_bf16_is_emulated_on_a_t4(tmp_path: Path) -> None:
    half = run(tmp_path, "1xT4", quant="nf4", torch_dtype="float16")
    emulated = run(tmp_path, "1xT4", quant="nf4", torch_dtype="bfloat16")
    assert emulated.step_s > 3 * half.step_s


def test_a_7b_adapter_run_on_an_a100_is_within_half_of_what_is_published(tmp_path: Path) -> None:
    """Qwen README, 7B LoRA, A100, 2048 tokens, 8 micro batches of 1: 5.6 s a step (Qwen-1, rank 64)."""
    prediction = run(tmp_path, "1xA100-80G", lengths=(2048,) * 64, lora_rank=64, accumulation=8)
    assert 5.6 / 1.5 < prediction.step_s < 5.6 * 1.5


def terms(prediction: Prediction) -> dict[str, float]:
    return dict(prediction.time_terms)


def test_the_parts_sum_to_the_step_and_mfu_is_a_share(tmp_path: Path) -> None:
    for changes in ({}, {"quant": "nf4"}, {"tuner": "full", "parallel": "zero3_offload"}):
        prediction = run(tmp_path, "1xA100-80G,ram=256", **changes)
        assert sum(terms(prediction).values()) == pytest.approx(prediction.step_s)
        assert prediction.mfu is not None
        assert 0 < prediction.mfu < 0.8


def test_mfu_leaves_out_recompute_and_padding(tmp_path: Path) -> None:
    kept, again = run(tmp_path, gradient_checkpointing=False), run(tmp_path)
    assert kept.mfu is not None
    assert again.mfu is not None
    assert again.mfu / kept.mfu == pytest.approx(kept.step_s / again.step_s)
    mixed = (64,) * 60 + (2048,) * 4
    padded = run(tmp_path, lengths=mixed, micro_batch=8, accumulation=2)
    free = run(tmp_path, lengths=mixed, micro_batch=8, accumulation=2, padding_free=True, attn_impl="flash_attention_2")
    assert padded.mfu is not None
    assert free.mfu is not None
    assert padded.mfu < free.mfu


def test_packed_rows_pay_attention_for_their_own_length_only(tmp_path: Path) -> None:
    packed = {"packing": True, "max_length": 32768, "attn_impl": "flash_attention_2", "gpus": "1xA100-80G"}
    short, long = (run(tmp_path, lengths=(n,) * 64, **packed) for n in (1024, 32768))
    assert terms(short)["attention"] < 0.1 * terms(long)["attention"]
    assert terms(short)["matmul"] == pytest.approx(terms(long)["matmul"])


def test_few_tokens_are_bound_by_launching_and_many_are_not(tmp_path: Path) -> None:
    few = run(tmp_path, "1xH100", lengths=(32,) * 64)
    assert few.bound_by == "host"
    assert terms(few)["launch"] > 0.5 * few.step_s
    assert "launch" not in terms(run(tmp_path, "1xH100", lengths=(2048,) * 64))


def test_a_pipeline_waits_less_with_more_micro_batches(tmp_path: Path) -> None:
    common = {"gpus": "8xA100-80G", "world": 8, "parallel": "megatron", "tuner": "full", "pp": 4}
    shares = []
    for micros in (4, 16):
        prediction = run(tmp_path, accumulation=micros, **common)
        shares.append(terms(prediction)["bubble"] / prediction.step_s)
    assert shares[0] > 2 * shares[1]
    assert "bubble" not in terms(run(tmp_path, accumulation=4, **{**common, "pp": 1}))


def test_collectives_hide_behind_compute_only_where_they_run_beside_it(tmp_path: Path) -> None:
    """FSDP2 prefetches; ms-swift's ZeRO-3 file gathers on the computing stream; nothing hides without peer-to-peer."""
    common = {"world": 4, "accumulation": 4, "lengths": (2048,) * 64, "tuner": "full"}
    nvlink = {name: terms(run(tmp_path, "4xA100-80G", parallel=name, **common)) for name in ("fsdp2", "zero3")}
    assert nvlink["fsdp2"]["collectives"] < 0.5 * nvlink["zero3"]["collectives"]
    without = {name: terms(run(tmp_path, "4x4090", parallel=name, **common)) for name in ("fsdp2", "zero3")}
    assert without["fsdp2"]["collectives"] > 0.8 * without["zero3"]["collectives"]


def facts_and(tmp_path: Path, model: str, **changes: Any) -> tuple[Any, Any]:
    facts = builders.facts(tmp_path, "1xA100-80G", lengths=(1024,) * 64, model=model)
    return facts, builders.candidate(max_tokens=1024, **changes)


def test_experts_run_one_by_one_are_slower_than_grouped_ones(tmp_path: Path) -> None:
    facts, candidate = facts_and(tmp_path, "Qwen/Qwen3-30B-A3B")
    grouped, loop = predict(facts, candidate), predict(facts, candidate, engine=Engine(expert_loop=True))
    assert loop.step_s > 3 * grouped.step_s


def test_engines_of_published_figures_differ_as_their_code_does(tmp_path: Path) -> None:
    facts, candidate = facts_and(tmp_path, "Qwen/Qwen2.5-7B-Instruct", lora_rank=64)
    plain = predict(facts, candidate).step_s
    for faster in (
        Engine(compiled=True),
        Engine(layer_kernels=True),
        Engine(adapter_kernels=True),
        Engine(float8=True),
    ):
        assert predict(facts, candidate, engine=faster).step_s < plain
    for slower in (Engine(rebuilt=3), Engine(rotated=True), Engine(reference_pass=True), Engine(virtual_tokens=200)):
        assert predict(facts, candidate, engine=slower).step_s > plain
    gptq = replace(candidate, quant="nf4")
    by_kernel = [predict(facts, gptq, engine=Engine(quant_kernel=name)).step_s for name in ("gptq-fused", None, "gptq")]
    assert by_kernel[1] < by_kernel[2]
    assert by_kernel[0] == pytest.approx(by_kernel[1], rel=0.05)


def test_galore_pays_for_its_decompositions(tmp_path: Path) -> None:
    facts, candidate = facts_and(tmp_path, "Qwen/Qwen2.5-7B-Instruct", tuner="full")
    often, seldom = (
        predict(facts, candidate, engine=Engine(galore_rank=128, lazy_projection=lazy)) for lazy in (False, True)
    )
    assert terms(often)["optimizer"] > terms(seldom)["optimizer"] + 0.5


def test_several_machines_share_the_network(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "8xA100-80G", lengths=(512,) * 64)
    near, far = (builders.candidate(world=n, parallel="zero3", tuner="full", max_tokens=512) for n in (8, 32))
    assert terms(predict(facts, far))["collectives"] > 2 * terms(predict(facts, near))["collectives"]


def test_every_card_has_a_chip_with_shares_and_a_source() -> None:
    assert len(tables.chips()) == 16
    for row in tables.chips():
        assert 0 < row.attention < row.matmul < 1
        assert len(row.source) > 20
        assert row.l2_mib > 0
    named = [card for row in tables.chips() for card in row.cards]
    assert len(named) == len(set(named))
    for gpu in tables.gpus().values():
        if gpu.compute_capability is not None:
            assert tables.chip(gpu.name, gpu.compute_capability).source
    assert tables.chip("H20", (9, 0)).matmul > tables.chip("H100 SXM5 80GB", (9, 0)).matmul
    assert tables.chip(None, (9, 1)) == tables.chip(None, (9, 0)), "an unknown chip is taken for the newest known below"


def test_a_constant_without_a_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "speed.yaml").write_text("schema: x\ncoefficients:\n  op_s: {value: 1, unit: s}\nchips: []\n")
    monkeypatch.setattr(tables, "DATA", tmp_path)
    with pytest.raises(InputError, match="op_s must have value, unit and source"):
        tables.coefficients.__wrapped__("speed")
    (tmp_path / "speed.yaml").write_text("chips:\n- {cards: [RTX 9999], matmul: 0.5, attention: 0.4, source: s}\n")
    with pytest.raises(InputError, match="RTX 9999"):
        tables.chips.__wrapped__()


def test_counted_images_cost_the_tower_and_uncounted_ones_are_said(tmp_path: Path) -> None:
    facts, candidate = facts_and(tmp_path, "Qwen/Qwen2.5-VL-7B-Instruct")
    plain = predict(facts, candidate)
    counted = replace(facts, data=replace(facts.data, media_rows=64, mean_image_tokens=600.0, max_image_tokens=900))
    seen = predict(counted, candidate)
    assert terms(seen)["matmul"] > 1.05 * terms(plain)["matmul"]
    assert not any("images" in note for note in seen.assumptions)
    unseen = predict(replace(facts, data=replace(facts.data, media_rows=64)), candidate)
    assert any("images" in note for note in unseen.assumptions)
    assert unseen.step_s == plain.step_s


def test_small_tensors_stay_in_the_cache(tmp_path: Path) -> None:
    """A100 holds 40 MiB: 256 rows of a hidden state fit, 8192 do not; RTX 3090's 6 MiB hold neither."""
    gained = {}
    for card in ("1xA100-80G", "1x3090"):
        per_token = []
        for tokens in (256, 8192):
            facts = builders.facts(tmp_path, card, lengths=(tokens,) * 64)
            candidate = builders.candidate(max_tokens=tokens, max_length=8192)
            found = predict(facts, candidate, {"kernel_s": 0.0})  # starts weigh more on few tokens
            per_token.append(terms(found)["elementwise"] / tokens)
        gained[card] = per_token[1] / per_token[0]
    assert gained["1x3090"] == pytest.approx(1.0, abs=0.02)
    assert gained["1xA100-80G"] > 1.3
