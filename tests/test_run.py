"""What a training run is judged by and what it says, without starting the engine (see test_real_engine.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from safetensors.torch import save_file

from swift_autobatch import checkpoint_files, engine, engine_log, run
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


def watching(heard: Heard, project: Path) -> run._Watch:
    return run._Watch(plan=jobs.plan(project), progress=heard, tail=engine_log.Tail(project))


def test_progress_shows_step_loss_accuracy_speed_memory_and_time_left(tmp_path: Path) -> None:
    heard = Heard()
    steps = [{"v": 1, "rank": 0, "event": "step", "step": n, "rss_bytes": n << 30, "tokens": 80} for n in (1, 2, 3)]
    (tmp_path / "telemetry-0.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps) + '{"v": 1, "ra')
    watch = watching(heard, tmp_path)
    watch.line(line("1.23456"))
    tokens = 8 * watch.plan.facts.data.mean_tokens / 2.2341
    assert heard.updates == [
        f"step 5/60, loss 1.235, token accuracy 0.5012, 2.234 s a step, {tokens:.3g} tokens/s, 3.00 GiB, 2m 3s left"
    ]
    assert heard.stages == []


@pytest.mark.parametrize(("loss", "grad_norm"), [("nan", "1.0"), ("0.0", "nan"), ("inf", "1.0")])
def test_a_loss_that_is_no_number_is_warned_of_once(tmp_path: Path, loss: str, grad_norm: str) -> None:
    heard = Heard()
    watch = watching(heard, tmp_path)
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
    assert found is None or str(said) in found.text


# What the engine's end and its log come to: the codes that recovery decides by.
KILLED = "torch.distributed.elastic: failed (exitcode: -9) local_rank: 1 (pid: 12)\n"
CASES = [
    ("CUDA out of memory. Tried to allocate 2.00 GiB.", {}, "gpu-oom", "asking for 2.00 GiB more"),
    ("MemoryError", {}, "host-oom", "the host ran out of memory"),
    (KILLED, {"oom_kills": 1}, "host-oom", "out-of-memory kills counted meanwhile: 1"),
    (KILLED, {"oom_kills": 0}, "killed", "a worker was killed by signal 9"),
    ("", {"exit_code": -9, "signal": 9, "oom_kills": 0}, "killed", "the engine was killed by signal 9"),
    ("", {"timed_out": True}, "stalled", "it hung and was stopped after"),
    ("OSError: [Errno 28] No space left on device", {}, "disk-full", "the disk is full"),
    ("DistNetworkError: EADDRINUSE", {}, "port", "rendezvous port"),
    ("ValueError: what is this", {}, "unfinished", "ValueError: what is this"),
]


@pytest.mark.parametrize(("log", "changes", "code", "said"), CASES)
def test_why_a_training_died(tmp_path: Path, log: str, changes: dict[str, Any], code: str, said: str) -> None:
    fields: dict[str, Any] = {"exit_code": 1, "signal": None, "timed_out": False, "seconds": 1.0, **changes}
    child, facts = ChildResult(**fields), scan(log)
    short = run._Failure(code="unfinished", text="the engine ended after 5 of 6 steps")
    found = run._explained(short, child, facts, jobs.plan(tmp_path), (), tmp_path)
    assert (found.code, said in found.text) == (code, True), found
    error = run._error(found, child, facts, tmp_path)
    assert (error.exit_code, error.code, error.child_exit) == (6, code, fields["exit_code"])
    assert error.figures[0] == f"engine exit code {fields['exit_code']}"
    assert error.hints[-1] == "the same command starts again"


def whole(folder: Path, *, cut: str | None = None) -> Path:
    """A checkpoint as the engine writes one, its parts from the real libraries; ``cut`` names a file left by half."""
    folder.mkdir(parents=True)
    torch.save({"state": [torch.zeros(64)]}, folder / "optimizer.pt")
    save_file({"weight": torch.zeros(64)}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    if cut:
        size = (folder / cut).stat().st_size
        with (folder / cut).open("r+b") as file:
            file.truncate(size // 2)
    return folder


def test_a_checkpoint_cut_short_is_passed_over(tmp_path: Path) -> None:
    assert checkpoint_files.last_whole(tmp_path) is None
    whole(tmp_path / "checkpoint-9")
    for number, cut in ((10, "model.safetensors"), (11, "optimizer.pt"), (12, "trainer_state.json")):
        why = checkpoint_files.broken(whole(tmp_path / f"checkpoint-{number}", cut=cut))
        assert why == f"{cut} is cut short"
    (tmp_path / "checkpoint-13").mkdir()
    assert "trainer_state.json, which is written last, is missing" in str(
        checkpoint_files.broken(tmp_path / "checkpoint-13")
    )
    assert checkpoint_files.last_whole(tmp_path) == tmp_path / "checkpoint-9"
    assert checkpoint_files.last_with_weights(tmp_path) == tmp_path / "checkpoint-12"  # its model is all there


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
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        "NPROC_PER_NODE": "2",
    }


def test_the_engine_writes_utf8_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    env = replace(jobs.environment(tmp_path), variables={"PYTHONUTF8": "0"})
    assert engine.child_env(env, {})["PYTHONUTF8"] == "0"


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
