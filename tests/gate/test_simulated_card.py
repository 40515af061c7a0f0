"""Ladder, calibration and tries end to end without a GPU: the real engine, whose telemetry plays a small card.

The card's size comes from what a first dry run measured on this CPU: above it the child raises PyTorch's own words
(``AUTOSWIFT_SIMULATED_CARD``, read by the telemetry alone). The machine that is planned for is this one with less RAM.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import api, calibration, request
from swift_autobatch.facts import embedded
from swift_autobatch.records import Environment, Machine, Measured, Plan, Request
from swift_autobatch.units import GIB

pytestmark = pytest.mark.engine

ROWS = [jobs.turn(f"A story ({n})", "Once upon a time there was a small helper. " * (30 + n % 3)) for n in range(64)]
CARD = "AUTOSWIFT_SIMULATED_CARD"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of long rows on a machine with 2.4 GiB of RAM, where micro batch 8 fits and 16 does not."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    real = api.read_machine

    def smaller(*args: Any) -> Machine:
        found = real(*args)
        return replace(found, host=replace(found.host, ram_budget_bytes=round(2.4 * GIB)))

    monkeypatch.setattr(api, "read_machine", smaller)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    return tmp_path


def asked(project: Path, *words: str) -> tuple[Request, Environment]:
    env = jobs.environment(project)
    model = embedded.ensure_model(env)
    pins = ("--tuner_type", "full", "--split_dataset_ratio", "0.1", "--gradient_checkpointing", "false", *words)
    return request.build_request({"model": str(model), "dataset": "rows.jsonl"}, pins, env), env


def dry_run(project: Path, *words: str) -> tuple[api.GateOutcome, Environment]:
    wanted, env = asked(project, *words)
    return api.dry_run(wanted, env), env


def _assumed(plan: Plan) -> tuple[str, ...]:
    return plan.prediction.assumptions


def _held(found: api.GateOutcome, phase: str) -> int:
    """Resident bytes beyond the imports, which is what the simulated card counts."""
    one: Measured = next(one for one in found.verdict.measured if one.phase == phase)
    assert one.rss_bytes is not None
    assert found.verdict.imports_bytes is not None
    return one.rss_bytes - found.verdict.imports_bytes


def test_a_card_that_is_too_small_is_learned_and_planned_around(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, env = dry_run(project)
    assert [one["code"] for one in free.receipt["tries"]] == ["pass"], free.verdict.reason
    assert free.plan.candidate.micro_batch == 8
    learned = calibration.read(env, free.plan.machine_class)
    assert 0.4 < learned["cpu_process_gib"] < 1.5
    calibration.path_of(env, free.plan.machine_class).unlink()  # as if nothing had been run here

    card = round(0.8 * _held(free, "steady"))
    monkeypatch.setenv(CARD, str(card))
    small, env = dry_run(project)
    codes = [one["code"] for one in small.receipt["tries"]]
    assert codes == ["gpu-oom", "pass"], small.verdict
    first = small.verdict.earlier[0]
    assert "in the first step" in first.reason.text
    assert f"{first.oom['asked_bytes'] / 2**20:.2f} MiB more" in first.reason.text
    assert small.plan.candidate.micro_batch < 8
    assert small.plan.candidate.effective_batch == free.plan.candidate.effective_batch
    assert _held(small, "steady") <= card
    for one in small.receipt["tries"]:
        assert (small.folder / one["folder"] / "autoswift" / "plan.json").is_file()  # moved with the run folder
    assert small.folder.name.endswith(small.plan.digest[:8])
    assert f"--per_device_train_batch_size {small.plan.candidate.micro_batch} " in (
        small.folder / "autoswift" / "run.sh"
    ).read_text().replace("\\\n", " ").replace("  ", " ")

    again = api.plan(asked(project)[0], env)  # the machine is known now
    assert again.candidate == small.plan.candidate
    assert any(line.startswith("measured on this class of machine: cpu_process_gib") for line in _assumed(again))

    # The same card under a training that was never proved: it dies after its first checkpoint and goes on from there.
    calibration.path_of(env, again.machine_class).unlink()
    monkeypatch.setenv(CARD, f"{card}:steady")
    wanted, env = asked(project, "--max_steps", "4", "--save_steps", "1", "--learning_rate", "1e-3")
    done = api.sft(replace(wanted, skip_dry_run=True, ask=False), env)
    (died,) = done.receipt["training"]["died"]
    assert died["code"] == "gpu-oom"
    assert Path(died["checkpoint"]).name == "checkpoint-1"
    assert done.plan.candidate.micro_batch < 8
    assert done.plan.candidate.effective_batch == free.plan.candidate.effective_batch
    assert done.receipt["training"]["steps"] == 4


def test_what_is_pinned_is_never_planned_around_and_the_phase_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps fit, the checkpoint does not: no other plan saves less, so the refusal stands."""
    monkeypatch.setenv(CARD, f"{16 << 20}:save")
    found, _ = dry_run(project, "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2")
    assert [one["code"] for one in found.receipt["tries"]] == ["gpu-oom"]
    assert "while saving a checkpoint" in found.verdict.reason.text
    assert [step.step for step in found.verdict.steps] == [1, 2]
    assert {one.phase for one in found.verdict.measured} >= {"first_step", "steady", "eval"}
