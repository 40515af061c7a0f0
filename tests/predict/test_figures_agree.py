"""The figures of one prediction agree with each other, whether the closed form, a trace or the replay made them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_autobatch import tables
from swift_autobatch.cli.show import memory_parts
from swift_autobatch.footprint_file import model_digest
from swift_autobatch.predict.footprints import Point
from swift_autobatch.predict.replay import Run, replay, script
from swift_autobatch.records import Candidate, Facts, Parallel, Prediction
from swift_autobatch.search import cost, settle

MODELS = ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-3B-Instruct")
METHODS = tuple(method for method in get_args(Parallel) if method != "megatron")


@cache
def traced(model: str) -> Facts:
    found = builders.facts(Path("/nonexistent"), "8xA100-80G", model, tuple(range(20, 90)))
    return replace(found, footprints=tables.footprints(model_digest(found.model)))


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Facts, Candidate]:
    tuner = draw(st.sampled_from(("lora", "full")))
    parallel = draw(st.sampled_from(METHODS))
    tokens = draw(st.integers(20, 3000))
    candidate = builders.candidate(
        tuner=tuner,
        quant="none" if tuner == "full" else draw(st.sampled_from(("none", "nf4"))),
        parallel=parallel,
        world=1 if parallel == "none" else draw(st.sampled_from((2, 8))),
        micro_batch=draw(st.integers(1, 4)),
        accumulation=draw(st.sampled_from((1, 4))),
        max_length=tokens,
        max_tokens=tokens,
        lora_rank=draw(st.sampled_from((8, 64))),
        optim=draw(st.sampled_from(("adamw_torch_fused", "adamw_torch", "paged_adamw_8bit"))),
    )
    return traced(draw(st.sampled_from(MODELS))), candidate


def agree(made: Prediction) -> None:
    reserved = made.driver_bytes - made.context_bytes - made.nccl_bytes
    assert sum(term.bytes for term in made.terms) == made.allocated_bytes <= reserved
    assert made.allocated_bytes <= made.needs_p50_bytes <= made.needs_p99_bytes
    assert made.needs_p50_bytes <= reserved
    judged = {one.phase: one.gpu_bytes for one in made.phases if one.phase != "resume"}
    assert max(judged.values()) == made.needs_p50_bytes
    assert judged["first_step"] <= judged["steady"]
    assert sum(size for _, size in memory_parts(made)) == made.driver_bytes
    assert all(size >= 0 for _, size in memory_parts(made))


@given(candidates())
@settings(max_examples=25, deadline=None)
def test_figures_agree(job: tuple[Facts, Candidate]) -> None:
    made = cost(*job)
    agree(made)
    agree(settle(*job, made))
    agree(cost(replace(job[0], footprints={}), job[1]))


@pytest.mark.parametrize("parallel", ["ddp", "zero1", "zero2", "zero3", "zero2_offload", "fsdp2"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_replay_allocates_what_the_terms_say(parallel: Parallel, accumulation: int) -> None:
    """Sharded runs end a step in another way than the traced one: its blocks are replayed too."""
    facts = traced(MODELS[1])
    job = (
        facts,
        builders.candidate(
            tuner="full", parallel=parallel, world=8, accumulation=accumulation, max_length=90, max_tokens=89
        ),
    )
    made = settle(*job, cost(*job))
    assert made.replay is not None
    assert made.replay.allocated_bytes == pytest.approx(made.allocated_bytes, rel=0.005)
    assert made.needs_p50_bytes < 1.15 * made.allocated_bytes


def test_what_a_step_gathers_is_gone_when_its_update_begins() -> None:
    stream = next(iter(traced(MODELS[0]).footprints.values())).stream
    points = (Point(b=1, s=64, k=8),) * 2
    plain = replay(Run(script=script(stream), points=points)).allocated_bytes
    big = 10 * plain
    alone = replay(Run(script=script(stream), points=points, gathered=(big,))).allocated_bytes
    both = replay(Run(script=script(stream), points=points, gathered=(big,), updates=((big,), (big,)))).allocated_bytes
    assert both == alone > big
