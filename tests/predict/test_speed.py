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

from swift_autobatch.predict import predict
from swift_autobatch.predict.padding import padded_lengths
from swift_autobatch.records import Prediction


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
