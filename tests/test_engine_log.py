"""Reading what the engine leaves behind; the samples are lines of real runs of ms-swift 4.6.0."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from swift_autobatch import engine_log

LINE = (
    "{'loss': '6.962', 'grad_norm': '21.37', 'learning_rate': '0.0005', 'token_acc': '0', 'epoch': '0.5', "
    "'global_step/max_steps': '1/2', 'elapsed_time': '0s', 'remaining_time': '0s', 'train_speed(s/it)': '0.251962'}"
)
ROWS = (
    '{"loss": 6.96, "grad_norm": 21.3, "learning_rate": 0.0005, "token_acc": 0.0, "epoch": 0.5, '
    '"global_step/max_steps": "1/2", "elapsed_time": "0s", "remaining_time": "0s", "train_speed(s/it)": 0.25}\n'
    '{"loss": NaN, "grad_norm": NaN, "learning_rate": 0.0, "epoch": 1.0, "global_step/max_steps": "2/2"}\n'
    '{"train_runtime": 0.24, "train_loss": 5.68, "global_step/max_steps": "2/2"}\n'
    '{"train_dataset": "158.0", "model_parameter_info": "Qwen2", "global_step": 2, "log_history": []}\n'
    '{"loss": 1.0, "global_st'
)


def test_training_rows_are_read_and_the_others_left_out(tmp_path: Path) -> None:
    (tmp_path / "logging.jsonl").write_text(ROWS)
    rows = engine_log.read_rows(tmp_path / "logging.jsonl")
    steps = engine_log.steps(rows)
    assert len(rows) == 4
    assert [step.step for step in steps] == [1, 2]
    assert steps[0].token_acc == 0.0
    assert steps[1].loss is not None
    assert math.isnan(steps[1].loss)
    assert steps[1].token_acc is None


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert engine_log.read_rows(tmp_path / "nothing") == ()
    assert engine_log.read_log(tmp_path / "nothing") == ""


def test_a_printed_row_is_found_behind_a_progress_bar() -> None:
    row = engine_log.row_of_line("Train:  50%|#####     | 1/2 [00:00<00:00]" + LINE)
    assert row is not None
    assert engine_log.steps_made(row) == (1, 2)
    assert engine_log.row_of_line("{'loss': broken, 'global_step/max_steps': '1/2'}") is None
    assert engine_log.row_of_line("Using deepspeed: {'fp16': {'enabled': 'auto'}}") is None


def _row(rank: int, phase: str, event: str, **more: Any) -> dict[str, Any]:
    return {"v": 1, "t": more.pop("t", 0.0), "rank": rank, "phase": phase, "event": event, "step": 0, **more}


def test_telemetry_is_summed_over_ranks_and_maximised_over_time(tmp_path: Path) -> None:
    rows = {
        0: [
            _row(0, "load", "init", t=1.0, rss_bytes=100, gpu_reserved_bytes=None),
            _row(0, "first_step", "step", t=2.0, rss_bytes=150, gpu_reserved_bytes=7, step_s=2.0, supervised_tokens=5),
            _row(0, "steady", "step", t=3.0, rss_bytes=120, gpu_reserved_bytes=9, step_s=1.0),
            _row(0, "steady", "step", t=4.0, rss_bytes=130, gpu_reserved_bytes=8, step_s=3.0),
            _row(0, "steady", "log", t=5.0, rss_bytes=999, gpu_reserved_bytes=99),
        ],
        1: [_row(1, "steady", "step", t=3.5, rss_bytes=140, gpu_reserved_bytes=6, step_s=1.5, supervised_tokens=2)],
    }
    for rank, lines in rows.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"telemetry-{rank}.jsonl").write_text(text)
    found = engine_log.read_telemetry(tmp_path)
    by_phase = {item.phase: item for item in engine_log.measured(found)}
    assert list(by_phase) == ["load", "first_step", "steady"]
    assert by_phase["load"].gpu_reserved_bytes is None
    assert by_phase["steady"].gpu_reserved_bytes == 9
    assert (by_phase["steady"].rss_bytes, by_phase["steady"].rss_sum_bytes) == (140, 270)
    assert by_phase["steady"].seconds == 1.5
    assert engine_log.supervised_tokens(found) == 7
    assert engine_log.last_phase(found) == "steady"


def test_the_phase_at_death_is_the_one_being_worked_on() -> None:
    rows = [_row(0, "load", "init")]
    assert engine_log.last_phase([]) is None
    assert engine_log.last_phase(rows) == "load"
    assert engine_log.last_phase([*rows, _row(0, "load", "train_begin")]) == "first_step"
    assert engine_log.last_phase([*rows, _row(0, "first_step", "step")]) == "steady"
    assert engine_log.last_phase([*rows, _row(0, "save", "begin")]) == "save"
    assert engine_log.last_phase([*rows, _row(0, "save", "begin"), _row(0, "save", "pulse")]) == "save"
    assert engine_log.last_phase([*rows, _row(0, "save", "save")]) == "steady"  # done with it


def test_a_gpu_oom_under_torchrun_is_read_with_what_it_asked_for() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/x/site-packages/swift/cli/sft.py", line 26, in <module>\n'
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.45 GiB. GPU 1 has a total "
        "capacity of 23.65 GiB of which 812.44 MiB is free.\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    facts = engine_log.scan(text)
    assert facts.oom is not None
    assert facts.oom_asked == "1.45 GiB"
    assert facts.exceptions[0].startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert len(facts.exceptions) == 1  # the launcher's own ChildFailedError says nothing
    assert facts.frames == ("swift/cli/sft.py",)


def test_a_killed_worker_is_read_from_torchrun() -> None:
    text = "  exitcode  : -9 (pid: 6555)\n  traceback : Signal 9 (SIGKILL) received by PID 6555\n"
    assert engine_log.scan(text).killed_by == 9
    assert engine_log.scan("exitcode  : 1 (pid: 6555)").killed_by is None


def test_the_engines_filter_its_argument_errors_and_the_tail_are_read() -> None:
    text = (
        "[INFO:swift] Dataset filtered, origin length: 23, filtered dataset length: 21\n"
        "sft.py: error: argument --optim: invalid choice: 'bogus'\r"
        "Train:  50%|#####     | 1/2 [00:00<00:00]\r"
        "last words\n"
    )
    facts = engine_log.scan(text)
    assert facts.filtered == (23, 21)
    assert facts.argument_error == "argument --optim: invalid choice: 'bogus'"
    assert facts.tail[-1] == "last words"
    assert not any("%|" in line for line in facts.tail)


def test_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 1000 + b"\nend\n")
    assert engine_log.read_log(tmp_path / "log", limit=10).endswith("end\n")
    assert len(engine_log.read_log(tmp_path / "log", limit=10)) == 10
