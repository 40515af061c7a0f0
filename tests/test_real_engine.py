"""Gate, run and ask with the real ``swift sft`` and ``swift infer`` on the embedded model; 20 s each on 2 cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import engine_log, receipt, render
from swift_autobatch.ask import ask
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
    plan = jobs.plan(tmp_path, build=True, tuner="lora", micro_batch=2, accumulation=4)
    verdict = dry_run(tmp_path, plan)
    assert (verdict.verdict, verdict.reason.code) == ("pass", "pass"), verdict.reason
    assert [step.step for step in verdict.steps] == [1, 2]
    phases = {item.phase: item for item in verdict.measured}
    assert set(phases) == {"load", "first_step", "steady"}
    assert all(100e6 < (item.rss_sum_bytes or 0) < 8e9 for item in phases.values())
    assert phases["first_step"].gpu_reserved_bytes is None
    found = effective(verdict)
    assert found["dtypes"] == {"float32": found["parameters"]}
    assert 0 < found["trainable_parameters"] < found["parameters"] / 5
    rows = engine_log.read_telemetry(Path(verdict.folder) / "autoswift")
    shapes = [row["shape"] for row in rows if row["event"] == "step"]
    assert len(shapes) == 2
    assert all(shape[0] == 2 and shape == shapes[0] for shape in shapes)  # the costliest batch, every time
    assert len((Path(verdict.folder) / "probe.jsonl").read_text().splitlines()) == 2 * 2 * 2
    assert not list(Path(verdict.folder).glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("parallel", "stage", "fsdp"),
    [("zero3", 3, False), ("zero2", 2, False), ("ddp", None, False), ("fsdp2", None, True)],
)
def test_two_processes_really_shard(tmp_path: Path, parallel: str, stage: int | None, fsdp: bool) -> None:
    plan = jobs.plan(tmp_path, build=True, world=2, parallel=parallel, micro_batch=1, accumulation=2)
    verdict = dry_run(tmp_path, plan)
    assert verdict.verdict == "pass", verdict.reason
    found = effective(verdict)
    assert (found["world_size"], found["zero_stage"], found["fsdp"]) == (2, stage, fsdp)
    steady = next(item for item in verdict.measured if item.phase == "steady")
    assert steady.rss_sum_bytes is not None
    assert steady.rss_bytes is not None
    assert steady.rss_bytes < steady.rss_sum_bytes < 2.2 * steady.rss_bytes


def test_deepspeed_that_accelerate_drops_is_refused(tmp_path: Path) -> None:
    """ACCELERATE_USE_CPU makes accelerate train with plain DDP under --deepspeed zero2, without a word."""
    plan = jobs.plan(tmp_path, build=True, world=2, parallel="zero2", micro_batch=1, accumulation=2)
    plan = replace(plan, env={**plan.env, "ACCELERATE_USE_CPU": Sourced(value="true", source="test")})
    verdict = dry_run(tmp_path, plan)
    assert (verdict.verdict, verdict.reason.code) == ("fail", "silently-off"), verdict.reason
    assert "zero stage is None, planned 2" in verdict.reason.text


def test_a_learning_rate_of_1e20_is_refused(tmp_path: Path) -> None:
    verdict = dry_run(tmp_path, jobs.plan(tmp_path, build=True, pins={"learning_rate": "1e20"}))
    assert (verdict.verdict, verdict.reason.code) == ("fail", "nan-loss"), verdict.reason
    assert verdict.child_exit == 0  # the engine itself is content
    assert "step 2 of 2" in verdict.reason.text


def test_a_dataset_of_masked_labels_is_refused(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"hello there {n}"}]} for n in range(12)]
    verdict = dry_run(tmp_path, jobs.plan(tmp_path, rows, build=True))
    assert (verdict.verdict, verdict.reason.code) == ("fail", "zero-loss"), verdict.reason
    assert verdict.child_exit == 0


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
    assert 4 <= verdict.seconds < 20


def test_telemetry_that_cannot_be_written_leaves_the_training_alone_and_the_verdict_open(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, build=True)
    nowhere = Sourced(value="/dev/null/nowhere", source="test")
    verdict = dry_run(tmp_path, replace(plan, env={**plan.env, "AUTOSWIFT_TELEMETRY_DIR": nowhere}))
    assert (verdict.verdict, verdict.reason.code) == ("unknown", "unknown"), verdict.reason
    assert len(verdict.steps) == 2
    assert "nothing was measured" in verdict.reason.text


def test_a_whole_job_trains_and_the_model_answers(tmp_path: Path) -> None:
    answer = "I am Ada, at your service."
    rows = [jobs.turn(f"{word}, who are you?", answer) for word in ("Hi", "Hello", "Hey", "Well", "So", "Now") * 4]
    plan = jobs.plan(tmp_path, rows, build=True, pins={"num_train_epochs": "12", "save_steps": "10"})
    folder, env = tmp_path / "output" / "run", jobs.environment(tmp_path)
    artefacts = render.render(plan)
    render.write(artefacts.files, folder / "autoswift")
    done = run_training(plan, artefacts, root=tmp_path, run=folder, env=env)
    assert done.child_exit == 0
    assert done.checkpoint == str(folder / f"checkpoint-{plan.total_steps}")
    first, last = done.steps[0].loss, done.steps[-1].loss
    assert first is not None
    assert last is not None
    assert last < first / 10
    assert {item.phase for item in done.measured} == {"load", "first_step", "steady", "save"}
    assert done.infer_command == f"swift infer --model {done.checkpoint} --model_type qwen2 --template qwen2_5"
    questions = (("Hi, who are you?", answer), ("So, who are you?", "someone else"))
    answers = ask(done, plan, questions, env)
    assert [item.answer for item in answers] == [answer, answer]
    assert [item.matches for item in answers] == [True, False]
    kept = receipt.record(plan, folder=folder, env=env, verdict=None, run=replace(done, answers=answers))
    assert kept["training"]["answers"][0]["answer"] == answer


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


def _alive(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_sigkill_of_us_leaves_no_trainer_alive(tmp_path: Path) -> None:
    """Two torchrun workers, each in a session of its own: nobody may outlive us."""
    code = f"""
        from pathlib import Path
        import jobs
        from swift_autobatch import render, run
        project = Path({str(tmp_path)!r})
        plan = jobs.plan(project, build=True, world=2, parallel="zero2", micro_batch=1, accumulation=1,
                         pins={{"num_train_epochs": "1000"}})
        artefacts = render.render(plan)
        render.write(artefacts.files, project / "run" / "autoswift")
        run.run_training(plan, artefacts, root=project, run=project / "run", env=jobs.environment(project))
    """
    mark = f"TEST_MARK={tmp_path}"
    parent = subprocess.Popen(
        (sys.executable, "-c", textwrap.dedent(code)),
        env={**os.environ, "TEST_MARK": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)},
    )
    telemetry = tmp_path / "run" / "autoswift" / "telemetry-1.jsonl"
    deadline = time.monotonic() + 240
    while not (telemetry.exists() and '"event": "step"' in telemetry.read_text()):
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert len(_alive(mark)) >= 6  # us, the guardian, swift, torchrun, two workers
    launch = json.loads((tmp_path / "run/autoswift/launch.json").read_text())
    assert launch["env"]["NPROC_PER_NODE"] == "2"
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while _alive(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _alive(mark) == []
