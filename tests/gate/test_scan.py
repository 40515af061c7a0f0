"""Which points a scan measures, and what of the plan it holds."""

from __future__ import annotations

from pathlib import Path

import builders
import jobs
import pytest

from swift_autobatch import scan
from swift_autobatch.cli import show_run
from swift_autobatch.gate import probe


@pytest.mark.parametrize(
    ("micro", "accumulation", "wanted"),
    [
        (1, 16, ((1, 8), (1, 16), (1, 32), (2, 8))),
        (4, 4, ((2, 8), (4, 4), (4, 8), (4, 16), (4, 32), (8, 2))),
        (3, 5, ((1, 15), (3, 5), (3, 8), (3, 16), (3, 32))),  # 15 rows are no multiple of 6
    ],
)
def test_the_points_are_the_articles_accumulations_and_the_neighbours(
    tmp_path: Path, micro: int, accumulation: int, wanted: tuple[tuple[int, int], ...]
) -> None:
    plan = jobs.plan(tmp_path, micro_batch=micro, accumulation=accumulation)
    assert scan.pairs(plan) == wanted


def test_a_point_holds_what_the_planner_would_choose_anew(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)
    pinned = scan._pinned(plan, builders.request(pins={"eval_strategy": "steps", "lora_rank": "16"}), 2, 32)
    assert {flag: pin.value for flag, pin in pinned.pins.items()} == {
        "lora_rank": "16",
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "32",
        "save_strategy": "no",
        "gradient_checkpointing": "false",
    }


def test_whole_steps_accumulate_as_often_as_the_job(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, micro_batch=2, accumulation=32)
    assert len(probe.probe_rows(plan, whole=True)) == 2 * 32 * 2
    assert len(probe.probe_rows(plan)) == 2 * 2 * 2


def test_the_table_names_the_fastest_point_that_holds(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)

    def point(micro: int, rows_per_s: float | None, code: str) -> scan.Point:
        return scan.Point(
            micro_batch=micro,
            accumulation=8,
            effective_batch=8 * micro,
            predicted_bytes=1 << 30,
            measured_bytes=None if rows_per_s is None else 1 << 30,
            predicted_step_s=1.0,
            step_s=1.0,
            rows_per_s=rows_per_s,
            code=code,
            text=f"why {micro}",
            folder=None,
        )

    page = "\n".join(
        show_run.scan(plan, (point(1, 5.0, "pass"), point(2, 8.0, "pass"), point(4, None, "gpu-oom")), "/run")
    )
    assert "fastest: --per_device_train_batch_size 2 --gradient_accumulation_steps 8" in page
    assert "4 x 8: why 4" in page
    assert all(len(line) <= 80 for line in page.splitlines())
