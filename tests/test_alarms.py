"""What a running job is warned of, from figures alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch import alarms
from swift_autobatch.alarms import Held, Losses, Memory
from swift_autobatch.records import replace
from swift_autobatch.units import GIB


def test_a_jump_is_told_once_and_again_after_a_calm_stretch() -> None:
    losses = Losses()
    said = [losses.heard(f"{n}/99", loss, 1.0) for n, loss in enumerate([2.0] * 8 + [9.0, 9.5] + [2.0] * 5 + [9.0])]
    told = [(number, text) for number, text in enumerate(said) if text]
    assert [number for number, _ in told] == [8, 15]
    assert "loss 9 at step 8/99, where the 8 logged before it stand at 2" in told[0][1]


@pytest.mark.parametrize("losses", [[2.0, 9.0], [0.01] * 9 + [0.03], [3.0 - 0.1 * n for n in range(20)]])
def test_first_losses_small_ones_and_falling_ones_are_no_jump(losses: list[float]) -> None:
    watch = Losses()
    assert [watch.heard("1/2", loss, 1.0) for loss in losses] == [None] * len(losses)


def step(number: int, held_bytes: int, tokens: int = 100) -> Held:
    return Held(step=number, held_bytes=held_bytes, tokens=tokens)


def test_growth_that_passes_the_budget_is_told_with_the_step() -> None:
    seen = [step(n, 2 * GIB + n * GIB // 10) for n in range(10)]
    said = alarms.growth(seen, budget_bytes=10 * GIB, last_step=200)
    assert said is not None
    assert "grows by 0.100 GiB a step" in said
    assert "step 80 of 200" in said
    assert alarms.growth(seen, budget_bytes=10 * GIB, last_step=70) is None


@given(st.lists(st.integers(0, 64), min_size=8, max_size=40))
def test_memory_that_goes_up_and_down_is_no_trend(noise: list[int]) -> None:
    """Whatever the steps hold, a job that has been there and back is not growing."""
    seen = [step(n, GIB + 1024 * value) for n, value in enumerate([*noise, *reversed(noise)])]
    assert alarms.growth(seen, budget_bytes=2 * GIB, last_step=10**6) is None


def test_the_longest_rows_still_to_come_are_weighed() -> None:
    seen = [step(n, GIB + tokens * 1024 * 1024, tokens) for n, tokens in enumerate((900, 300, 700, 500, 400, 800))]
    said = alarms.longest_to_come(seen, budget_bytes=4 * GIB, met=900, tokens=4096)
    assert said is not None
    assert "4096, not met yet, which would take about 5.00 GiB of 4.00 GiB" in said
    assert alarms.longest_to_come(seen, budget_bytes=6 * GIB, met=900, tokens=4096) is None
    assert alarms.longest_to_come(seen, budget_bytes=4 * GIB, met=4096, tokens=4096) is None


def row(number: int, rank: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "event": "step",
        "rank": rank,
        "step": number,
        "rss_bytes": None,
        "gpu_reserved_bytes": None,
        **more,
    }


def test_a_trend_is_told_once_for_the_card_and_once_for_the_host(tmp_path: Path) -> None:
    plan = replace(jobs.plan(tmp_path), total_steps=500)
    memory = Memory(plan=plan)
    said: list[str] = []
    for n in range(20):
        rows = [
            row(n, rank, gpu_reserved_bytes=GIB + n * GIB // 20, rss_bytes=GIB + n * GIB // 20, tokens=10)
            for rank in (1, 0)
        ]
        said += memory.rows(rows)
    assert [text.split(" holds")[0] for text in said] == [
        "memory may run out: rank 1's card",
        "memory may run out: host RAM",
    ]
    assert memory.held_bytes() == GIB + 19 * GIB // 20


def test_a_job_of_steady_memory_is_told_nothing(tmp_path: Path) -> None:
    memory = Memory(plan=replace(jobs.plan(tmp_path), total_steps=500))
    rows = [row(n, gpu_reserved_bytes=3 * GIB, rss_bytes=2 * GIB, tokens=50 + n) for n in range(100)]
    assert list(memory.rows(rows)) == []
