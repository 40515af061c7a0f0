"""Children end with us: normally, on time-out, on a signal and when we are killed; their output is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from swift_autobatch import guardian, process
from swift_autobatch.errors import Interrupted, MachineError

# A child as torchrun is one: it starts a worker in a session of its own, which ignores SIGTERM.
_TREE = """
import subprocess, sys, time
worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('worker', flush=True); "
worker += "time.sleep(120)"
subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
print("parent", flush=True)
time.sleep({sleep})
"""


def _run(code: str, tmp_path: Path, **options: object) -> tuple[process.ChildResult, list[str]]:
    lines: list[str] = []
    result = process.run_child(
        (sys.executable, "-c", textwrap.dedent(code)),
        env={**os.environ, "TEST_MARK": str(tmp_path)},
        cwd=tmp_path,
        log=tmp_path / "child.log",
        on_line=lines.append,
        **options,  # type: ignore[arg-type]
    )
    return result, lines


def _alive_with(text: str) -> list[int]:
    """Processes whose environment holds ``text``, found without the code under test."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_output_of_both_streams_reaches_the_log_and_the_caller(tmp_path: Path) -> None:
    result, lines = _run(
        """
        import sys
        print("one", flush=True)
        sys.stderr.write("10%\\r20%\\rtwo\\n"); sys.stderr.flush()
        sys.stdout.write("no newline"); sys.exit(3)
        """,
        tmp_path,
    )
    assert (result.exit_code, result.signal, result.timed_out) == (3, None, False)
    assert lines == ["one", "10%", "20%", "two", "no newline"]
    assert (tmp_path / "child.log").read_bytes() == b"one\n10%\r20%\rtwo\nno newline"


def test_a_line_split_between_reads_is_one_line(tmp_path: Path) -> None:
    _, lines = _run(
        """
        import sys, time
        sys.stdout.write("he"); sys.stdout.flush(); time.sleep(0.4); print("llo \\u00e9")
        """,
        tmp_path,
    )
    assert lines == ["hello é"]


def test_timeout_stops_a_worker_in_another_session(tmp_path: Path) -> None:
    began = time.monotonic()
    result, lines = _run(_TREE.format(sleep=120), tmp_path, timeout_s=1.0, grace_s=0.5)
    assert result.timed_out
    assert "worker" in lines
    assert time.monotonic() - began < 10
    assert _alive_with(f"TEST_MARK={tmp_path}") == []


def test_silence_is_a_timeout_of_its_own(tmp_path: Path) -> None:
    result, _ = _run("import time; print('x', flush=True); time.sleep(60)", tmp_path, idle_s=0.6, grace_s=0.5)
    assert result.timed_out
    assert result.seconds < 10


def test_an_orphan_that_outlives_its_parent_is_stopped(tmp_path: Path) -> None:
    result, _ = _run(_TREE.format(sleep=0), tmp_path, grace_s=0.3)
    assert result.exit_code == 0
    assert not result.timed_out
    assert _alive_with(f"TEST_MARK={tmp_path}") == []


def test_death_by_signal_is_named(tmp_path: Path) -> None:
    result, _ = _run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert (result.exit_code, result.signal) == (-9, 9)


@pytest.mark.parametrize(("code", "number"), [(-9, 9), (137, 9), (247, 9), (143, 15), (1, None), (2, None), (0, None)])
def test_signal_of(code: int, number: int | None) -> None:
    assert process.signal_of(code) == number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_us_stops_the_job_and_is_raised(tmp_path: Path, number: signal.Signals) -> None:
    def on_line(line: str) -> None:
        if line == "worker":
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stop:
        process.run_child(
            (sys.executable, "-c", _TREE.format(sleep=120)),
            env={**os.environ, "TEST_MARK": str(tmp_path)},
            cwd=tmp_path,
            log=tmp_path / "child.log",
            on_line=on_line,
            grace_s=0.5,
        )
    assert stop.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert _alive_with(f"TEST_MARK={tmp_path}") == []


_ENDS_WHEN_ASKED = """
import pathlib, time
print("worker", flush=True)
while not pathlib.Path("stop").exists():
    time.sleep(0.02)
print("saved", flush=True)
"""


@pytest.mark.parametrize(("signals", "patience_s", "saves"), [(1, 30.0, True), (2, 30.0, False), (1, 0.0, False)])
def test_a_child_that_is_asked_may_end_by_itself(tmp_path: Path, signals: int, patience_s: float, saves: bool) -> None:
    """Asked at the first signal and given time; a second one ends the patience."""
    lines: list[str] = []
    asked: list[int] = []

    def on_line(line: str) -> None:
        lines.append(line)
        for _ in range(signals if line == "worker" else 0):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_stop() -> float:
        asked.append(1)
        if saves:
            (tmp_path / "stop").touch()
        return patience_s

    began = time.monotonic()
    with pytest.raises(Interrupted):
        process.run_child(
            (sys.executable, "-c", _ENDS_WHEN_ASKED),
            env={**os.environ, "TEST_MARK": str(tmp_path)},
            cwd=tmp_path,
            log=tmp_path / "child.log",
            on_line=on_line,
            on_stop=on_stop,
            grace_s=0.5,
        )
    assert time.monotonic() - began < 15
    assert asked == [1]
    assert ("saved" in lines) == saves
    assert _alive_with(f"TEST_MARK={tmp_path}") == []


def test_sigkill_of_us_leaves_nothing_alive(tmp_path: Path) -> None:
    marker = f"TEST_MARK={tmp_path}"
    code = f"""
        import os, sys
        from pathlib import Path
        from swift_autobatch import process
        process.run_child(
            (sys.executable, "-c", {_TREE.format(sleep=120)!r}), env=dict(os.environ), cwd=Path("."),
            log=Path({str(tmp_path / "child.log")!r}), on_line=lambda line: print(line, flush=True), grace_s=0.5)
    """
    parent = subprocess.Popen(
        (sys.executable, "-c", textwrap.dedent(code)),
        env={**os.environ, "TEST_MARK": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    while parent.stdout.readline().strip() != "worker":
        assert parent.poll() is None
    assert len(_alive_with(marker)) == 4  # us, the guardian, the child and its worker
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while _alive_with(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _alive_with(marker) == []


def test_a_program_that_does_not_exist_is_a_machine_error(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot start /no/such/program"):
        process.run_child(("/no/such/program",), env={}, cwd=tmp_path, log=tmp_path / "x.log")


def test_a_log_that_cannot_be_opened_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="log file cannot be written"):
        process.run_child(("true",), env={}, cwd=tmp_path, log=tmp_path / "file" / "x.log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_and_does_not_stop_the_child(tmp_path: Path) -> None:
    lines: list[str] = []
    result = process.run_child(
        (sys.executable, "-c", "print('a'); print('b')"),
        env={**os.environ, "TEST_MARK": str(tmp_path)},
        cwd=tmp_path,
        log=Path("/dev/full"),
        on_line=lines.append,
    )
    assert result.exit_code == 0
    assert result.log_error is not None
    assert "No space left" in result.log_error
    assert lines == ["a", "b"]


def test_the_child_carries_a_marker_that_only_its_job_has(tmp_path: Path) -> None:
    _, first = _run(f"import os; print(os.environ[{guardian.JOB_VARIABLE!r}])", tmp_path)
    _, second = _run(f"import os; print(os.environ[{guardian.JOB_VARIABLE!r}])", tmp_path)
    assert first != second


def test_free_port_can_be_bound() -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", process.free_port()))
