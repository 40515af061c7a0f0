"""What must hold for every candidate: monotony, sums, purity, speed."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_autobatch.errors import InputError
from swift_autobatch.predict import predict
from swift_autobatch.predict.host import pinned
from swift_autobatch.records import Candidate, Facts

MODELS = (
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Meta-Llama-3-8B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen2.5-VL-7B-Instruct",
)
SHARDED = ("ddp", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload", "fsdp2", "fsdp2_offload")
OPTIMS = ("adamw_torch_fused", "adamw_torch", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "adafactor", "sgd")


@cache
def facts(model: str, gpus: str | None = "8xA100-80G") -> Facts:
    return builders.facts(Path("/nonexistent"), gpus, model, tuple(range(64, 2049, 31)), 2)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Facts, Candidate]:
    """A model and a candidate that names every knob."""
    model = draw(st.sampled_from(MODELS))
    tuner = draw(st.sampled_from(("lora", "full")))
    parallel = draw(st.sampled_from(("none", *SHARDED)))
    tokens = draw(st.integers(16, 4096))
    packing = draw(st.booleans())
    candidate = builders.candidate(
        tuner=tuner,
        quant="none" if tuner == "full" else draw(st.sampled_from(("none", "nf4", "int8"))),
        parallel=parallel,
        world=1 if parallel == "none" else draw(st.sampled_from((2, 4, 8))),
        micro_batch=draw(st.integers(1, 16)),
        accumulation=draw(st.integers(1, 16)),
        max_length=tokens + draw(st.integers(0, 512)),
        max_tokens=tokens,
        gradient_checkpointing=draw(st.booleans()),
        attn_impl="flash_attention_2" if packing else draw(st.sampled_from((None, "eager", "flash_attention_2"))),
        torch_dtype=draw(st.sampled_from(("bfloat16", "float16", "float32"))),
        packing=packing,
        liger=draw(st.booleans()),
        lora_rank=draw(st.sampled_from((4, 8, 64))),
        lora_dropout=draw(st.sampled_from((0.0, 0.05))),
        optim=draw(st.sampled_from(OPTIMS)),
    )
    return facts(model), candidate


@given(jobs())
@settings(max_examples=300, deadline=None)
def test_parts_sum_to_the_whole(job: tuple[Facts, Candidate]) -> None:
    prediction = predict(*job)
    assert sum(term.bytes for term in prediction.terms) == prediction.allocated_bytes
    assert sum(seconds for _, seconds in prediction.time_terms) == pytest.approx(prediction.step_s)
    assert all(term.bytes > 0 and term.why for term in prediction.terms)
    assert prediction.step_s > 0
    assert prediction.tokens_per_s > 0


@given(jobs())
@settings(max_examples=200, deadline=None)
def test_bands_and_phases_are_ordered(job: tuple[Facts, Candidate]) -> None:
    prediction = predict(*job)
    assert prediction.allocated_bytes <= prediction.needs_p50_bytes <= prediction.needs_p99_bytes
    phases = {phase.phase: phase for phase in prediction.phases}
    assert set(phases) == {"load", "first_step", "steady", "eval", "save", "resume"}
    assert phases["first_step"].gpu_bytes <= phases["steady"].gpu_bytes
    judged = [phase for name, phase in phases.items() if name != "resume"]
    assert prediction.host_bytes == max(phase.host_bytes for phase in judged)


@given(jobs(), st.integers(1, 8), st.integers(0, 2048))
@settings(max_examples=300, deadline=None)
def test_memory_does_not_shrink_with_batch_or_length(job: tuple[Facts, Candidate], rows: int, tokens: int) -> None:
    given_facts, small = job
    wide = replace(small, micro_batch=small.micro_batch + rows)
    long = replace(small, max_length=small.max_length + tokens, max_tokens=small.max_tokens + tokens)
    least = predict(given_facts, small)
    # one row keeps exactly its own labels and takes an unmasked kernel; from two rows on the padded path holds
    for grown in (wide, long):
        more = predict(given_facts, grown)
        same_kernel = predict_kernel(given_facts, grown) == predict_kernel(given_facts, small)
        if same_kernel:
            assert more.needs_p50_bytes >= least.needs_p50_bytes
            assert more.needs_p99_bytes >= least.needs_p99_bytes
            assert more.host_bytes >= least.host_bytes


def predict_kernel(given_facts: Facts, candidate: Candidate) -> str:
    from swift_autobatch.effective import effective

    return effective(candidate, given_facts.model, given_facts.machine).attention


@given(jobs(), st.sampled_from(SHARDED))
@settings(max_examples=200, deadline=None)
def test_sharded_states_do_not_grow_with_ranks(job: tuple[Facts, Candidate], parallel: str) -> None:
    given_facts, base = job
    states = []
    for world in (2, 4, 8):
        prediction = predict(given_facts, replace(base, parallel=parallel, world=world))
        kept = {term.name: term.bytes for term in prediction.terms}
        states.append(sum(kept.get(name, 0) for name in ("weights", "adapters", "optimizer")))
    assert states == sorted(states, reverse=True)


@given(jobs())
@settings(max_examples=100, deadline=None)
def test_pure(job: tuple[Facts, Candidate]) -> None:
    assert predict(*job) == predict(*job)


@given(st.integers(0, 10**12), st.integers(1, 10**11))
def test_pinned_blocks_are_powers_of_two(n_bytes: int, block: int) -> None:
    taken = pinned(n_bytes, block)
    assert n_bytes <= taken <= 2 * n_bytes
    if 0 < n_bytes <= block:
        assert taken & (taken - 1) == 0


def test_a_candidate_costs_few_calls() -> None:
    """Under a millisecond on a quiet core; counted in calls, which a busy machine does not change."""
    given_facts = replace(facts(MODELS[1]), data=builders.data_facts(tuple(range(100, 4196))))
    grid = [
        builders.candidate(micro_batch=rows, world=8, parallel=parallel, quant=quant, max_tokens=4000, max_length=4096)
        for rows in range(1, 17)
        for parallel in ("ddp", "zero2", "zero3")
        for quant in ("none", "nf4")
    ]
    for candidate in grid:
        predict(given_facts, candidate)  # fills the caches per model and data set
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for candidate in grid:
            predict(given_facts, candidate)
    finally:
        sys.setprofile(None)
    assert calls / len(grid) < 3000


def test_calibration_replaces_a_coefficient_and_refuses_an_unknown_one() -> None:
    candidate = builders.candidate()
    plain = predict(facts(MODELS[1]), candidate)
    measured = predict(facts(MODELS[1]), candidate, {"context_gib": 1.5})
    assert measured.context_bytes - plain.context_bytes == 2**30
    with pytest.raises(InputError, match="context_gigs") as caught:
        predict(facts(MODELS[1]), candidate, {"context_gigs": 1.0})
    assert "context_gib" in " ".join(caught.value.hints)


@pytest.mark.parametrize("changes", [{"tp": 2, "tuner": "full", "parallel": "zero1"}, {"sp": 2, "parallel": "zero3"}])
def test_splitting_a_model_or_a_row_takes_less_on_each_card(changes: dict[str, Any]) -> None:
    whole = {key: value for key, value in changes.items() if key not in ("tp", "sp")}
    base = predict(facts(MODELS[1]), builders.candidate(world=8, max_tokens=2048, **whole, use_logits_to_keep=False))
    split = predict(facts(MODELS[1]), builders.candidate(world=8, max_tokens=2048, **changes))
    assert split.allocated_bytes < base.allocated_bytes


def test_roughly_predicted_plans_say_so() -> None:
    prediction = predict(facts(MODELS[1]), builders.candidate(world=8, parallel="megatron", tp=4, pp=2, tuner="full"))
    assert any("Megatron" in note for note in prediction.assumptions)


def test_quantised_experts_are_not_assumed() -> None:
    moe = predict(facts("Qwen/Qwen3-30B-A3B"), builders.candidate(quant="nf4"))
    assert {term.name: term.bytes for term in moe.terms}["weights"] > 57e9
    assert any("experts" in note for note in moe.assumptions)
