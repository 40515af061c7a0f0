"""What earlier receipts say of a plan, and of versions that have changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest
from test_receipt import finished, verdict

from swift_autobatch import history, receipt
from swift_autobatch.records import Measured, Plan, replace
from swift_autobatch.units import GIB


def written(plan: Plan, folder: Path, rss_gib: float, **changes: Any) -> dict[str, Any]:
    """The receipt of a training whose ranks held so much."""
    peak = Measured(
        phase="steady",
        gpu_allocated_bytes=None,
        gpu_reserved_bytes=None,
        driver_bytes=None,
        rss_bytes=int(rss_gib * GIB),
        rss_sum_bytes=None,
        seconds=0.6,
    )
    done = replace(finished(folder), measured=(peak,))
    return {**receipt.build(plan, folder=folder, verdict=verdict(folder), run=done), **changes}


def test_memory_and_time_are_told_over_what_was_predicted(tmp_path: Path) -> None:
    """Predicted are 1.5 GiB a process (need and context) and half a second a step."""
    plan = jobs.plan(tmp_path)
    one = written(plan, tmp_path, 1.2)
    assert (history.seen(one).memory, history.seen(one).step) == pytest.approx((0.8, 1.2))
    (note,) = history.cite([one], plan)
    assert note == (
        "1 receipt of this model, cpu, on this class of machine: memory 80% of what was predicted, "
        "step time 120% of what was predicted"
    )
    (note,) = history.cite([one, written(plan, tmp_path, 1.8)], plan)
    assert "2 receipts" in note
    assert "memory 100% (80% to 120%)" in note


def test_a_card_is_told_by_what_was_reserved(tmp_path: Path) -> None:
    one = written(jobs.plan(tmp_path), tmp_path, 9.0)
    one["training"]["phases"]["steady"]["gpu_reserved_bytes"] = GIB // 2
    assert history.seen(one).memory == 0.5


def test_a_dry_run_tells_nothing_of_time(tmp_path: Path) -> None:
    one = receipt.build(jobs.plan(tmp_path), folder=tmp_path, verdict=verdict(tmp_path), run=None)
    assert history.seen(one).step is None
    assert history.seen(one).memory is not None


def test_other_machines_models_and_strategies_are_not_cited(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)
    for key in ("machine_class", "model", "strategy"):
        assert history.cite([written(plan, tmp_path, 1.0, **{key: "another"})], plan) == ()
    assert history.cite([], plan) == ()


def test_versions_that_changed_since_are_told(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)
    versions = {**plan.facts.machine.software.versions, "torch": "2.12.0", "ms-swift": "4.5.3", "tensorboard": "1"}
    old = written(plan, tmp_path, 1.0, versions=versions)
    now = plan.facts.machine.software.versions
    assert history.drift(old, now) == (("ms-swift", "4.5.3", "4.6.0"), ("torch", "2.12.0", "2.13.0"))
    assert history.drift(written(plan, tmp_path, 1.0), now) == ()
    _, note = history.cite([old], plan)
    assert note.startswith("since the last receipt ms-swift 4.5.3 -> 4.6.0, torch 2.12.0 -> 2.13.0")
