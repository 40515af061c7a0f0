"""What a training run is judged by and what it says, without starting the engine (see test_real_engine.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import engine, run
from swift_autobatch.engine_log import scan, steps
from swift_autobatch.process import ChildResult
from swift_autobatch.records import replace


class Heard:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.updates: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def update(self, text: str) -> None:
        self.updates.append(text)

    def clear(self) -> None:
        pass


def line(loss: str, grad_norm: str = "1.0", at: str = "5/60") -> str:
    row = {
        "loss": loss,
        "grad_norm": grad_norm,
        "token_acc": "0.5012",
        "global_step/max_steps": at,
        "remaining_time": "2m 3s",
        "train_speed(s/it)": "2.2341",
    }
    return f"Train:   8%|8  | 5/60 [00:11<02:03]     {row}"


def test_progress_shows_step_loss_accuracy_speed_and_time_left() -> None:
    heard = Heard()
    run._Watch(heard).line(line("1.23456"))
    assert heard.updates == ["step 5/60, loss 1.235, token accuracy 0.5012, 2.234 s a step, 2m 3s left"]
    assert heard.stages == []


@pytest.mark.parametrize(("loss", "grad_norm"), [("nan", "1.0"), ("0.0", "nan"), ("inf", "1.0")])
def test_a_loss_that_is_no_number_is_warned_of_once(loss: str, grad_norm: str) -> None:
    heard = Heard()
    watch = run._Watch(heard)
    for _ in range(3):
        watch.line(line(loss, grad_norm))
    watch.line("some other output")
    assert len(heard.stages) == 1
    assert "5/60" in heard.stages[0]


def row(at: str, loss: float | None = 1.0, grad_norm: float = 1.0) -> dict[str, Any]:
    return {"global_step/max_steps": at, **({} if loss is None else {"loss": loss, "grad_norm": grad_norm})}


@pytest.mark.parametrize(
    ("rows", "exit_code", "pins", "said"),
    [
        ([row("5/6"), row("6/6", None)], 0, {}, None),
        ([row("5/6"), row("6/6", None)], 1, {}, None),  # everything was trained: the exit code alone is no failure
        ([], 0, {}, "without an optimizer step"),
        ([row("0/6", None)], 0, {}, "without an optimizer step"),
        ([row("5/6")], 1, {}, "after 5 of 6 steps"),
        ([row("5/6")], 0, {}, "after 5 of 6 steps"),
        ([row("5/6")], 0, {"callbacks": "early_stop"}, None),
        ([row("6/6", float("nan"))], 0, {}, "diverged"),
        ([row("6/6", 0.0, float("nan"))], 0, {}, "diverged"),
    ],
)
def test_success_is_what_was_trained(
    tmp_path: Path, rows: list[dict[str, Any]], exit_code: int, pins: dict[str, str], said: str | None
) -> None:
    child = ChildResult(exit_code=exit_code, signal=None, timed_out=False, seconds=1.0)
    found = run._failure(jobs.plan(tmp_path, pins=pins), child, tuple(rows), steps(rows))
    assert (found is None) == (said is None)
    assert said is None or said in str(found)


def test_the_error_has_the_childs_code_the_last_words_and_a_way_on(tmp_path: Path) -> None:
    child = ChildResult(exit_code=1, signal=None, timed_out=False, seconds=1.0)
    log = scan("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    error = run._error("the engine ended after 5 of 6 steps", child, log, tmp_path, tmp_path / "checkpoint-4")
    assert error.exit_code == 6
    assert error.child_exit == 1
    assert error.figures[0] == "engine exit code 1"
    assert "Tried to allocate 2.00 GiB" in error.figures[1]
    assert "GPU ran out of memory" in error.what
    assert error.hints[-1] == f"--resume_from_checkpoint {tmp_path / 'checkpoint-4'} goes on from there"


def test_the_last_checkpoint_is_the_one_with_weights(tmp_path: Path) -> None:
    assert run.last_checkpoint(tmp_path) is None
    for name, weights in (("checkpoint-9", True), ("checkpoint-10", True), ("checkpoint-20", False)):
        (tmp_path / name).mkdir()
        if weights:
            (tmp_path / name / "model.safetensors").write_bytes(b"")
    assert run.last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_the_infer_command_loads_adapters_or_a_whole_model(tmp_path: Path) -> None:
    full, lora = jobs.plan(tmp_path), jobs.plan(tmp_path, tuner="lora")
    assert run.infer_argv(full, Path("/c")) == (
        *("swift", "infer", "--model", "/c"),
        *("--model_type", "qwen2", "--template", "qwen2_5"),
    )
    assert run.infer_argv(lora, Path("/c")) == ("swift", "infer", "--adapters", "/c")
    known = replace(full, facts=replace(full.facts, model=replace(full.facts.model, pass_model_type=False)))
    assert run.infer_argv(known, Path("/c")) == ("swift", "infer", "--model", "/c")


def test_foreign_launcher_variables_do_not_reach_the_engine(tmp_path: Path) -> None:
    env = replace(jobs.environment(tmp_path), variables={"PATH": "/bin", "RANK": "3", "PAI_TRAINING_JOB_ID": "x"})
    assert engine.child_env(env, {"NPROC_PER_NODE": "2"}) == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "NPROC_PER_NODE": "2",
    }


@pytest.mark.parametrize(("visible", "world", "used"), [(None, 2, None), ("", 1, None), ("3,5,7", 2, "3,5")])
def test_as_many_devices_as_processes(tmp_path: Path, visible: str | None, world: int, used: str | None) -> None:
    plan = jobs.plan(tmp_path, world=world, parallel="ddp")
    plan = replace(plan, facts=replace(plan.facts, machine=replace(plan.facts.machine, visible_devices=visible)))
    assert engine.devices(plan) == used


def test_what_was_started_is_kept(tmp_path: Path) -> None:
    """``true`` stands in for an interpreter without the engine: it starts, says nothing and ends."""
    plan = jobs.plan(tmp_path, world=2, parallel="ddp")
    from swift_autobatch import render

    env = replace(jobs.environment(tmp_path), interpreter="/bin/true")
    engine.train(plan, render.render(plan), root=tmp_path, run=tmp_path / "r", env=env, on_line=print)
    kept = json.loads((tmp_path / "r/autoswift/launch.json").read_text())
    assert kept["argv"][:4] == ["/bin/true", "-m", "swift.cli.main", "sft"]
    assert kept["env"]["MASTER_PORT"] == str(kept["port"])
    assert not any("$RUN" in word or "$ROOT" in word for word in kept["argv"])
