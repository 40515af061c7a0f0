"""Gate, run and ask with the real ``swift sft`` and ``swift infer`` on the embedded model; 20 s each on 2 cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import engine_log, render
from swift_autobatch.errors import TrainingError
from swift_autobatch.gate import run_gate
from swift_autobatch.records import Plan, Sourced, Verdict
from swift_autobatch.run import run_training

pytestmark = pytest.mark.engine


def dry_run(project: Path, plan: Plan, timeout_s: float = 300) -> Verdict:
    return run_gate(
        plan,
        render.render(plan),
        root=project,
        run=project / "output" / "run",
        env=jobs.environment(project),
        timeout_s=timeout_s,
    )


def effective(verdict: Verdict) -> Any:
    return engine_log.effective(engine_log.read_telemetry(Path(verdict.folder) / "autoswift"))


def test_lora_passes_and_is_measured(tmp_path: Path) -> None:
    """The job splits off rows and saves: so does the dry run, and it reads back what it saved."""
    pins = {"split_dataset_ratio": "0.1"}
    plan = jobs.plan(tmp_path, build=True, tuner="lora", micro_batch=2, accumulation=4, pins=pins)
    verdict = dry_run(tmp_path, plan)
    assert (verdict.verdict, verdict.reason.code) == ("pass", "pass"), verdict.reason
    assert [step.step for step in verdict.steps] == [1, 2]
    phases = {item.phase: item for item in verdict.measured}
    assert set(phases) == {"load", "first_step", "steady", "eval", "save", "resume"}
    assert verdict.checkpoint_bytes is not None
    assert verdict.checkpoint_bytes > 4 * 100_000  # adapters and two states
    assert all((item.seconds or 0) > 0 for item in phases.values())
    assert "evaluated, saved, read the checkpoint back" in verdict.reason.text
    assert all(100e6 < (item.rss_sum_bytes or 0) < 8e9 for item in phases.values())
    assert phases["first_step"].gpu_reserved_bytes is None
    found = effective(verdict)
    assert found["dtypes"] == {"float32": found["parameters"]}
    assert 0 < found["trainable_parameters"] < found["parameters"] / 5
    rows = engine_log.read_telemetry(Path(verdict.folder) / "autoswift")
    seen = engine_log.observed(rows)
    assert seen is not None
    assert seen["logits_rows"] == seen["needed_rows"] < seen["row_tokens"]  # only what the loss needs
    shapes = [row["shape"] for row in rows if row["event"] == "step"]
    assert len(shapes) == 2
    assert all(shape[0] == 2 and shape == shapes[0] for shape in shapes)  # the costliest batch, every time
    assert len((Path(verdict.folder) / "probe.jsonl").read_text().splitlines()) == 2 * 2 * 2
    assert not list(Path(verdict.folder).glob("checkpoint-*"))


def test_deepspeed_that_accelerate_drops_is_refused(tmp_path: Path) -> None:
    """ACCELERATE_USE_CPU makes accelerate train with plain DDP under --deepspeed zero2, without a word."""
    plan = jobs.plan(tmp_path, build=True, world=2, parallel="zero2", micro_batch=1, accumulation=2)
    plan = replace(plan, env={**plan.env, "ACCELERATE_USE_CPU": Sourced(value="true", source="test")})
    verdict = dry_run(tmp_path, plan)
    assert (verdict.verdict, verdict.reason.code) == ("fail", "silently-off"), verdict.reason
    assert "zero stage is None, planned 2" in verdict.reason.text


def _claim(plan: Plan, tokens: int) -> Plan:
    """The same plan with rows that claim to be ``tokens`` long: a counter that is wrong, which the gate must notice."""
    rows = tuple(replace(row, tokens=tokens) for row in plan.facts.data.costliest)
    return replace(plan, facts=replace(plan.facts, data=replace(plan.facts.data, costliest=rows)))


def test_rows_that_the_engine_drops_are_refused(tmp_path: Path) -> None:
    rows: Sequence[dict[str, Any]] = (*jobs.ROWS[:4], jobs.turn("Tell me.", "A long story. " * 200))
    verdict = dry_run(tmp_path, _claim(jobs.plan(tmp_path, rows, build=True, max_length=200), 200))
    assert (verdict.verdict, verdict.reason.code) == ("fail", "rows-dropped"), verdict.reason


def test_a_flag_that_the_engine_refuses_is_named(tmp_path: Path) -> None:
    verdict = dry_run(tmp_path, jobs.plan(tmp_path, build=True, pins={"optim": "bogus"}))
    assert (verdict.verdict, verdict.reason.code) == ("fail", "engine-arguments"), verdict.reason
    assert "--optim" in verdict.reason.text


def test_no_end_within_the_time_limit_is_a_refusal(tmp_path: Path) -> None:
    verdict = dry_run(tmp_path, jobs.plan(tmp_path, build=True), timeout_s=4)
    assert (verdict.verdict, verdict.reason.code) == ("fail", "timeout"), verdict.reason
    assert verdict.seconds >= 4


def test_telemetry_that_cannot_be_written_leaves_the_training_alone_and_the_verdict_open(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, build=True)
    nowhere = Sourced(value="/dev/null/nowhere", source="test")
    verdict = dry_run(tmp_path, replace(plan, env={**plan.env, "AUTOSWIFT_TELEMETRY_DIR": nowhere}))
    assert (verdict.verdict, verdict.reason.code) == ("unknown", "unknown"), verdict.reason
    assert len(verdict.steps) == 2
    assert "nothing was measured" in verdict.reason.text


def test_an_engine_that_dies_in_training_is_an_error_with_its_words(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, build=True, pins={"resume_from_checkpoint": "/no/such/checkpoint-3"})
    with pytest.raises(TrainingError) as error:
        run_training(
            plan, _written(plan, tmp_path), root=tmp_path, run=tmp_path / "run", env=jobs.environment(tmp_path)
        )
    assert error.value.exit_code == 6
    assert error.value.child_exit == 1
    assert error.value.figures[0] == "engine exit code 1"
    assert "/no/such/checkpoint-3" in error.value.what
    assert error.value.where.endswith("autoswift/swift.log")


def _written(plan: Plan, project: Path) -> Any:
    artefacts = render.render(plan)
    render.write(artefacts.files, project / "run" / "autoswift")
    return artefacts
