"""A training that breaks in every way a machine knows, through the public command and the real engine on CPU.

In each: the right verdict and exit code, nothing of the job left alive, nothing saved lost, and a way on that works.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import public_command
import pytest
from public_command import AUTOSWIFT, Done

from swift_autobatch import checkpoint_files

pytestmark = pytest.mark.engine

PLUGIN = Path(__file__).parent / "faulty.py"
JOB = ("--no-ask", "--external_plugins", "faulty.py", "--callbacks", "faulty", "--max_steps", "8", "--save_steps", "2")
SFT = ("sft", "--skip-dry-run", "--logging_steps", "1", *JOB)


@pytest.fixture(autouse=True)
def _faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(PLUGIN, tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TEST_MARK", str(tmp_path))


def run(
    project: Path,
    fault: str,
    *words: str,
    wrapped: tuple[str, ...] = (),
    before: Callable[[], None] | None = None,
    timeout_s: float = 600,  # three launches in a row; far more than an idle machine needs
) -> Done:
    """``autoswift WORDS`` with a fault, to its end; nothing of it may be alive then."""
    command = subprocess.Popen(
        (*wrapped, str(AUTOSWIFT), *words),
        cwd=project,
        env={**os.environ, "FAULT": fault},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=before,
    )
    (project / "autoswift.pid").write_text(str(command.pid))
    try:
        stdout, stderr = command.communicate(timeout=timeout_s)
    finally:
        command.kill()
    assert public_command.alive(f"TEST_MARK={project}") == []
    return Done(exit_code=command.returncode, stdout=stdout, stderr=stderr, project=project)


def losses(folder: Path) -> dict[int, list[float]]:
    """Every loss that was logged for each step, in order of time."""
    found: dict[int, list[float]] = {}
    for line in (folder / "logging.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "loss" in row:
            found.setdefault(int(row["global_step/max_steps"].split("/")[0]), []).append(row["loss"])
    return found


def whole(folder: Path) -> list[int]:
    """Steps of the checkpoints that can be gone on from, newest first."""
    return [step for step, path in checkpoint_files.checkpoints(folder) if checkpoint_files.broken(path) is None]


def way_on(done: Done) -> tuple[str, ...]:
    """The flags that the last hint names, as a person would copy them."""
    match = re.search(r"hint: the same command with (--resume_from_checkpoint .*) goes on from there", done.stderr)
    assert match, done.stderr
    return tuple(shlex.split(match[1]))


def reason(done: Done, folder: Path | None = None) -> Any:
    receipt = json.loads(((folder or done.run_folder()) / "autoswift" / "receipt.json").read_text())
    return receipt["training"]["reason"]["code"]


def test_out_of_memory_and_then_a_rank_killed_while_it_saves(tmp_path: Path) -> None:
    """Two deaths of one job, each gone on from: a smaller plan after the first, a whole checkpoint after both."""
    done = run(tmp_path, "oom@3,killed-saving@6", *SFT, "--nproc", "2")
    assert done.exit_code == 0, done.stderr
    folder = done.run_folder()
    training = public_command.receipt(done)["training"]
    assert (training["done"], training["steps"]) == (True, 8)
    first, second = training["died"]
    assert (first["code"], second["code"]) == ("gpu-oom", "killed")
    assert "asking for 2.00 GiB more" in first["text"]
    assert [Path(one["checkpoint"]).name for one in (first, second)] == ["checkpoint-2", "checkpoint-4"]
    assert (first["batch"], second["batch"]) == ([4, 2, 2], [4, 2, 2])  # from 8 x 2 x 1: the same effective batch
    assert "checkpoint-6 is not whole (trainer_state.json, which is written last, is missing)" in done.stderr
    assert (Path(second["folder"]) / "checkpoint-6" / "optimizer.pt").is_file()
    assert (Path(first["folder"]) / "swift.log").is_file()
    for step, seen in losses(folder).items():  # made again, on the same rows, whatever the micro batch
        assert seen == pytest.approx(seen[:1] * len(seen), rel=1e-3), step
    assert sorted(losses(folder)) == list(range(1, 9))
    assert whole(folder) == [8, 6]
    assert done.stderr.count("going on (") == 2
    again = run(tmp_path, "none@0", "plan", "--nproc", "2")
    assert "1 receipt of this model" in " ".join(again.stdout.split())


def test_sigterm_saves_first_and_its_last_line_goes_on(tmp_path: Path) -> None:
    """Stopped in step 5 of 8 by a cluster; the second command is the hint's, and its telemetry cannot be written."""
    done = run(tmp_path, "terminate@4", *SFT)
    assert done.exit_code == 143, done.stderr
    folder = done.run_folder()
    assert reason(done) == "interrupted"
    assert whole(folder) == [5, 4]  # 5 is no multiple of --save_steps: it was saved because we were asked to stop
    assert "a checkpoint first" in done.stderr
    again = run(tmp_path, "no-telemetry@0", *SFT, *way_on(done))
    assert again.exit_code == 0, again.stderr
    (later,) = [path for path in tmp_path.glob("output/*/*") if path != folder]
    assert sorted(losses(later)) == [6, 7, 8]
    training = json.loads((later / "autoswift" / "receipt.json").read_text())["training"]
    assert (training["done"], training["steps"], training["phases"]) == (True, 8, {})
    assert "nothing was measured" in again.stderr


def test_a_killed_launcher_is_no_orphaned_worker_and_a_way_on(tmp_path: Path) -> None:
    done = run(tmp_path, "launcher@3", *SFT, "--nproc", "2", "--on-failure", "stop")
    assert done.exit_code == 6, done.stderr
    assert reason(done) == "killed"
    assert done.stderr.count("error:") == 1
    assert whole(done.run_folder()) == [2]
    assert way_on(done)[1].endswith("checkpoint-2")


def test_a_worker_that_hangs_is_stopped(tmp_path: Path) -> None:
    done = run(tmp_path, "hang@3", *SFT, "--stall-timeout", "30", "--on-failure", "stop")
    assert done.exit_code == 6, done.stderr
    assert reason(done) == "stalled"
    assert "last seen: rank 0 steady step 3" in done.stderr
    assert whole(done.run_folder()) == [2]
    assert way_on(done)[1].endswith("checkpoint-2")


def test_a_disk_that_fills_up_keeps_what_was_saved(tmp_path: Path) -> None:
    """The run folder is on a small disk of its own, in a private mount namespace; another job fills it."""
    if subprocess.run(("unshare", "--mount", "--map-root-user", "true"), check=False, capture_output=True).returncode:
        pytest.skip("no small disk can be made here: unshare --mount is not allowed")
    (tmp_path / "output").mkdir()
    # What was saved is copied out of the small disk, which is gone with its namespace.
    mount, keep = "mount -t tmpfs -o size=256m small output", "rm -f output/*/*/*-elses; cp -a output kept"
    script = f'{mount} && "$@"; code=$?; {keep}; exit $code'
    wrapped = ("unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh")
    done = run(tmp_path, "fill-disk@3", *SFT, wrapped=wrapped)
    assert done.exit_code == 6, done.stderr
    assert "the disk is full" in done.stderr
    assert "hint: free some space" in done.stderr
    kept = Path(os.environ["XDG_STATE_HOME"], "autoswift/receipts")  # elsewhere, so it is not lost
    (receipt,) = kept.glob("*/*.json")
    assert json.loads(receipt.read_text())["training"]["reason"]["code"] == "disk-full"
    (folder,) = tmp_path.glob("kept/*/*")
    assert whole(folder) == [2]
    assert way_on(done)[1].endswith("checkpoint-2")


def test_a_port_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        done = run(tmp_path, "none@0", "dry-run", *JOB, "--nproc", "2")
    assert done.exit_code == 4, done.stderr
    assert public_command.receipt(done)["reason"]["code"] == "port"
    assert "hint: " in done.stderr


def test_a_host_memory_limit_that_the_save_breaks_is_refused_before_the_job(tmp_path: Path) -> None:
    """The steps fit, the save does not: only a dry run that saves can know."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))

    done = run(tmp_path, "greedy-save@0", "dry-run", *JOB, before=limit)
    assert done.exit_code == 4, done.stderr
    found = public_command.receipt(done)
    assert (found["verdict"], found["reason"]["code"]) == ("fail", "host-kill")
    assert "while saving a checkpoint" in found["reason"]["text"]
    assert found["measured"]["steps"] == 2
