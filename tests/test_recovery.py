"""Which plan a training that died is gone on with; the engine itself dies in tests/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import recovery
from swift_autobatch.errors import TrainingError
from swift_autobatch.planner import make_plan
from swift_autobatch.records import Facts, Plan, replace
from swift_autobatch.strategies import load_strategies


def died(code: str) -> TrainingError:
    return TrainingError("it died", child_exit=1, code=code)


def job(project: Path, world: int = 1, on_failure: str = "resume", **pins: str) -> tuple[Plan, recovery.Job]:
    """A planned job on the embedded model, and what a launch of it needs."""
    facts = Facts(machine=jobs.machine(world), model=jobs.model(), data=jobs.write_rows(project))
    asked = replace(jobs.request(**pins), on_failure=on_failure)
    table = load_strategies(project)
    env = jobs.environment(project)
    made = make_plan(asked, facts, table, env.cwd, env.home)
    files: Any = lambda plan, request, artefacts: artefacts.files  # noqa: E731
    return made, recovery.Job(asked=asked, table=table, root=project, run=project / "run", env=env, files=files)


@pytest.mark.parametrize("code", ["gpu-oom", "host-oom"])
def test_short_of_memory_halves_the_micro_batch_and_keeps_the_effective_one(tmp_path: Path, code: str) -> None:
    before, asked = job(tmp_path)
    after = recovery.following(died(code), before, asked)
    assert before.candidate.micro_batch == 8
    assert after is not None
    assert (after.candidate.micro_batch, after.candidate.accumulation) == (4, 2)
    assert after.candidate.strategy == before.candidate.strategy
    assert after.engine_args["learning_rate"].value == before.engine_args["learning_rate"].value
    assert after.prediction.demand_bytes < before.prediction.demand_bytes


def test_again_and_again_it_gets_smaller_until_nothing_is_left(tmp_path: Path) -> None:
    plan, asked = job(tmp_path)
    seen = [plan.candidate]
    while (following := recovery.following(died("gpu-oom"), plan, asked)) is not None:
        plan = following
        seen.append(plan.candidate)
        assert len(seen) < 10
    assert [one.micro_batch for one in seen[:4]] == [8, 4, 2, 1]
    assert {one.effective_batch for one in seen} == {8}


def test_an_odd_micro_batch_is_parted_too(tmp_path: Path) -> None:
    plan, asked = job(tmp_path)
    odd = replace(plan, candidate=replace(plan.candidate, micro_batch=9, accumulation=1))
    after = recovery.following(died("gpu-oom"), odd, asked)
    assert after is not None
    assert (after.candidate.micro_batch, after.candidate.accumulation) == (3, 3)


def test_what_the_user_pinned_is_kept(tmp_path: Path) -> None:
    pinned = {"per_device_train_batch_size": "4", "gradient_checkpointing": "false"}
    before, asked = job(tmp_path, **pinned)
    assert recovery.following(died("gpu-oom"), before, asked) is None
    before, asked = job(tmp_path, per_device_train_batch_size="4")
    after = recovery.following(died("gpu-oom"), before, asked)
    assert after is None or (after.candidate.micro_batch, after.candidate.gradient_checkpointing) == (4, True)


def test_replan_may_take_another_strategy(tmp_path: Path) -> None:
    """The fastest of all that need less; sharded optimizer states among them."""
    before, asked = job(tmp_path, world=2, on_failure="replan")
    after = recovery.following(died("gpu-oom"), before, asked)
    assert after is not None
    assert after.candidate.effective_batch == before.candidate.effective_batch
    assert after.prediction.demand_bytes < before.prediction.demand_bytes
    resumed = recovery.following(
        died("gpu-oom"), before, replace(asked, asked=replace(asked.asked, on_failure="resume"))
    )
    assert resumed is not None
    assert after.prediction.step_s <= resumed.prediction.step_s


@pytest.mark.parametrize(("code", "same"), [("killed", True), ("stalled", True), ("port", True), ("diverged", False)])
def test_other_deaths(tmp_path: Path, code: str, same: bool) -> None:
    before, asked = job(tmp_path)
    assert recovery.following(died(code), before, asked) is (before if same else None)


@pytest.mark.parametrize("code", ["gpu-oom", "killed"])
def test_stop_goes_on_with_nothing(tmp_path: Path, code: str) -> None:
    before, asked = job(tmp_path, on_failure="stop")
    assert recovery.following(died(code), before, asked) is None
