"""The search answers what brute force answers, on every kind of space, and keeps the order of choice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_autobatch import machines, rules
from swift_autobatch.candidates import Space, enumerate_space
from swift_autobatch.pins import pinned_fields
from swift_autobatch.records import Facts, Request, replace
from swift_autobatch.request import PREFERENCES
from swift_autobatch.search import Costs, best, brute_force, gives, order_for
from swift_autobatch.strategies import load_strategies

TABLE = load_strategies()
QWEN = "Qwen/Qwen2.5-{}-Instruct"


def space_of(facts: Facts, request: Request) -> Space:
    return enumerate_space(facts, request, TABLE, pinned_fields(request, Path("/project")))


def facts_of(folder: Path, spec: str, model: str, lengths: tuple[int, ...], *, kernels: bool) -> Facts:
    facts = builders.facts(folder, spec, model, lengths)
    if kernels:
        facts = machines.with_software(facts, "flash-attn", "2.8.3")
        facts = machines.with_software(facts, "liger-kernel", "0.6.4")
    return facts


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(["1xT4", "1x3090", "2x4090", "3x4090", "4xA100-80G", "8xH100"]),
    model=st.sampled_from([QWEN.format(size) for size in ("0.5B", "7B", "32B")] + ["Qwen/Qwen3-30B-A3B"]),
    tuner=st.sampled_from(["lora", "full"]),
    longest=st.sampled_from([60, 900, 4000, 16000]),
    batch=st.sampled_from([1, 16, 60, 256]),
    prefer=st.sampled_from(PREFERENCES),
    kernels=st.booleans(),
)
def test_it_answers_what_brute_force_answers(
    tmp_path_factory: pytest.TempPathFactory,
    spec: str,
    model: str,
    tuner: str,
    longest: int,
    batch: int,
    prefer: str,
    kernels: bool,
) -> None:
    lengths = (longest // 3, longest // 2, longest) * 32
    facts = facts_of(tmp_path_factory.mktemp("facts"), spec, model, lengths, kernels=kernels)
    request = builders.request(pins={"tuner_type": tuner}, global_batch=batch, prefer=prefer)
    space, order = space_of(facts, request), order_for(request, facts)
    found, proved = best(space.families, Costs(facts), order), brute_force(space.families, facts, order)
    assert (found is None) == (proved is None)
    if found and proved:
        assert found[0] == proved[0]


def test_no_rule_reads_the_micro_batch(tmp_path: Path) -> None:
    """One member answers for its family; a rule that looks at the batch would have to be asked for each."""
    facts = facts_of(tmp_path, "4xA100-80G", QWEN.format("7B"), (500,) * 64, kernels=True)
    space = space_of(facts, builders.request())
    families = [*space.families, *space.unrendered]
    assert len(families) > 100
    for family in families:
        answers = {
            None if found is None else found.rule
            for found in (rules.check(one, facts, rules.Flags()) for one in family)
        }
        assert len(answers) == 1


def test_it_costs_a_small_part_of_a_large_space(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "8xH100", QWEN.format("7B"), (500, 1000, 2000) * 32, kernels=True)
    request = builders.request(global_batch=64)
    space, costs = space_of(facts, request), Costs(facts)
    assert best(space.families, costs, order_for(request, facts))
    assert len(costs.known) < len(space.legal) / 3


@pytest.mark.parametrize(("cards", "limit_s"), [(8, 0.3), (64, 2.0)])
def test_it_is_quick(tmp_path: Path, cards: int, limit_s: float) -> None:
    """Enumeration and search, the best of three: a busy machine must not decide."""
    one = facts_of(tmp_path, "8xH100", QWEN.format("32B"), (500, 1000, 2000) * 200, kernels=True)
    facts = machines.with_cards(one, cards)
    request = builders.request(pins={"tuner_type": "full"}, global_batch=512)
    spent = []
    for _ in range(3):
        start = time.process_time()
        space = space_of(facts, request)
        assert best(space.families, Costs(facts), order_for(request, facts))
        best(space.unrendered, Costs(facts), order_for(request, facts))
        spent.append(time.process_time() - start)
    assert min(spent) < limit_s


def chosen(folder: Path, spec: str, model: str, **changes: Any) -> Any:
    kernels = changes.pop("kernels", False)
    facts = facts_of(folder, spec, model, changes.pop("lengths", (100, 300, 900) * 32), kernels=kernels)
    request = builders.request(**changes)
    found = best(space_of(facts, request).families, Costs(facts), order_for(request, facts))
    assert found is not None
    return found


def test_what_is_learned_changes_only_when_asked_for(tmp_path: Path) -> None:
    plain = chosen(tmp_path, "1x4090", QWEN.format("7B"), kernels=True)[0]
    assert gives(plain) == 0
    fast = chosen(tmp_path, "1x4090", QWEN.format("7B"), kernels=True, prefer="speed")
    assert fast[1].epoch_s <= chosen(tmp_path, "1x4090", QWEN.format("7B"), kernels=True)[1].epoch_s


def test_quality_keeps_fp32_masters(tmp_path: Path) -> None:
    pins = {"tuner_type": "full"}
    assert chosen(tmp_path, "1xH100", QWEN.format("1.5B"), pins=pins)[0].strategy == "single-full"
    kept = chosen(tmp_path, "1xH100", QWEN.format("1.5B"), pins=pins, prefer="quality")[0]
    assert kept.strategy == "single-zero2"


def test_memory_takes_the_least(tmp_path: Path) -> None:
    least = chosen(tmp_path, "1x4090", QWEN.format("7B"), prefer="memory")
    usual = chosen(tmp_path, "1x4090", QWEN.format("7B"))
    assert least[1].demand_bytes < usual[1].demand_bytes / 2
    assert least[0].effective_batch == 16


def test_8_bit_states_come_when_nothing_else_fits(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "1x4090,ram=16", QWEN.format("3B"), (300,) * 64, kernels=False)
    request = builders.request(pins={"tuner_type": "full"})
    found = best(space_of(facts, request).families, Costs(facts), order_for(request, facts))
    assert found is not None
    assert found[0].optim == "paged_adamw_8bit"
    roomy = replace(facts, machine=machines.with_card(facts, machines.gpus()["H100 SXM5 80GB"]).machine)
    found = best(space_of(roomy, request).families, Costs(roomy), order_for(request, facts))
    assert found is not None
    assert found[0].optim == "adamw_torch_fused"
