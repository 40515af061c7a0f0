"""What trains besides adapters of low rank: whole layers, ends, experts' adapters; and gradients that add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch.effective import effective
from swift_autobatch.predict import activations, predict, states
from swift_autobatch.predict.instants import phases
from swift_autobatch.predict.job import Job
from swift_autobatch.predict.job import job as make_job
from swift_autobatch.predict.profile import SWIFT, Engine

LLAMA_8B = "meta-llama/Meta-Llama-3-8B"
LAYER = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096  # parameters: attention, MLP, two norms
ENDS = 128256 * 4096  # of each of embedding and head
ADAPTERS = 8 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))  # rank x layers x (in + out)


def counted(tmp_path: Path, engine: Engine = SWIFT, model: str = LLAMA_8B, **changes: Any) -> Job:
    facts = builders.facts(tmp_path, "1xA100-80G", model, (2048,) * 50)
    candidate = builders.candidate(**{"max_tokens": 2048, "lora_rank": 8, **changes})
    return make_job(facts, candidate, effective(candidate, facts.model, facts.machine), None, engine)


def terms(work: Job, name: str) -> list[int]:
    return [term.bytes for instant in phases(work)["steady"] for term in instant if term.name == name]


def test_layers_that_train_among_frozen_ones_have_states_and_no_adapters(tmp_path: Path) -> None:
    work = counted(tmp_path, Engine(trained_layers=4, trained_in_place=("embedding", "head"), targets=()))
    trained = 4 * LAYER + 2 * ENDS
    assert work.trainable == pytest.approx(trained, rel=1e-3)
    assert states.adapters(work) == 0
    assert states.optimizer(work) == 2 * 2 * work.trainable, "two Adam states in the weights' type"
    assert activations.case_of(work) == "full-16"
    plain = counted(tmp_path)
    assert plain.trainable == ADAPTERS
    assert states.adapters(plain) == 4 * ADAPTERS


def test_four_of_32_trained_layers_cost_an_eighth_of_full_tunings_extra_time(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1xA100-80G", LLAMA_8B, (2048,) * 50, mean_supervised_tokens=1.0)
    engine = Engine(targets=())
    frozen = dict(predict(facts, builders.candidate(max_tokens=2048), engine=engine).time_terms)["matmul"]
    some = Engine(targets=(), trained_layers=4)
    four = dict(predict(facts, builders.candidate(max_tokens=2048), engine=some).time_terms)["matmul"]
    full = dict(predict(facts, builders.candidate(max_tokens=2048, tuner="full"), engine=engine).time_terms)["matmul"]
    assert (four - frozen) / (full - frozen) == pytest.approx(1 / 8, abs=0.03)


def test_copies_of_the_ends_stay_in_the_weights_type_beside_fp32_adapters(tmp_path: Path) -> None:
    work = counted(tmp_path, Engine(trains_ends=True))
    assert work.trainable == ADAPTERS + 2 * ENDS
    assert states.adapters(work) == 4 * ADAPTERS + 2 * 2 * ENDS
    assert states.optimizer(work) == 2 * (4 * ADAPTERS + 2 * 2 * ENDS)
    assert activations.autocast_casts(work) == 2 * ADAPTERS


def test_autocast_copies_no_16_bit_adapters(tmp_path: Path) -> None:
    assert activations.autocast_casts(counted(tmp_path)) == 2 * ADAPTERS
    assert activations.autocast_casts(counted(tmp_path, Engine(trainable_bytes=2))) == 0


def test_adapters_reach_experts_that_are_modules(tmp_path: Path) -> None:
    model = "Qwen/Qwen1.5-MoE-A2.7B"
    fused = counted(tmp_path, model=model).trainable
    modules = counted(tmp_path, Engine(adapted_experts=True), model=model).trainable
    assert modules - fused == 8 * 24 * 60 * 3 * (2048 + 1408), "rank x layers x experts x three linears"


def test_a_new_gradient_stands_beside_the_old_one_until_it_is_added(tmp_path: Path) -> None:
    once = counted(tmp_path, tuner="full", accumulation=1)
    again = counted(tmp_path, tuner="full", accumulation=2)
    assert terms(once, "whole gradients") == []
    assert max(terms(again, "whole gradients")) == 2 * ENDS
    spread = counted(tmp_path, Engine(step_in_backward=True), tuner="full", accumulation=2)
    assert terms(spread, "whole gradients") == [], "an optimizer inside backward leaves nothing to add to"


def test_a_loop_that_keeps_its_outputs_holds_the_logits_through_the_backward(tmp_path: Path) -> None:
    logits = 4 * 2048 * 128256  # one fp32 copy
    freed = counted(tmp_path, Engine(loss="shifted_fp32", logits_rows="all"))
    kept = counted(tmp_path, Engine(loss="shifted_fp32_held", logits_rows="all"))
    before, after = (phases(work)["steady"] for work in (freed, kept))
    more = [sum(b.bytes for b in late) - sum(a.bytes for a in early) for early, late in zip(before, after, strict=True)]
    forward, loss, head, layer, first, reduction, step = more
    assert (forward, loss, head, layer, first) == (logits,) * 5
    assert (reduction, step) == (0, 0)


def test_a_tower_trains_where_the_engine_does_not_freeze_it(tmp_path: Path) -> None:
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    frozen = counted(tmp_path, model=model, tuner="full")
    trained = counted(tmp_path, Engine(trains_tower=True), model=model, tuner="full")
    assert trained.trainable - frozen.trainable == frozen.facts.model.params_vision > 6e8
