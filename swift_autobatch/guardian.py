"""Finds and stops every process of one job; also the guardian that does so when autoswift itself dies.

Run as a script (``python guardian.py READ_FD JOB GRACE_S``) it waits until its pipe says that the job is
over (one byte) or that the process holding the other end is gone (end of file, even after SIGKILL); in the
second case it stops the job. It is a child in its own session, so a terminal's Ctrl-C never reaches it.

A job is recognised by an environment variable that every descendant inherits, not by its process group:
torchrun starts each worker in a session of its own (torch/distributed/elastic/multiprocessing,
``start_new_session``), so a signal to the group of ``swift`` never reaches the processes that train.

Standard library only (``psutil`` off Linux, where there is no /proc), so that the guardian starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

JOB_VARIABLE = "AUTOSWIFT_JOB"
_POLL_S = 0.05
_PROC = Path("/proc")


def members(job: str) -> tuple[int, ...]:
    """Process ids, ourselves excluded, whose environment carries the job's marker. Zombies have none left."""
    found = _members_proc(job) if _PROC.joinpath("self/environ").exists() else _members_psutil(job)
    return tuple(pid for pid in found if pid != os.getpid())


def _members_proc(job: str) -> list[int]:
    marker = f"{JOB_VARIABLE}={job}".encode()
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                if marker in entry.joinpath("environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _members_psutil(job: str) -> list[int]:
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(JOB_VARIABLE) == job:
                found.append(process.pid)
    return found


def signal_all(job: str, number: int) -> int:
    """Sends one signal to every process of the job; returns how many were reached."""
    reached = 0
    for pid in members(job):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            reached += 1
    return reached


def stop(job: str, grace_s: float) -> bool:
    """SIGTERM to all, then SIGKILL to what is left after ``grace_s`` seconds. True: nothing is alive any more."""
    deadline = time.monotonic() + grace_s
    signal_all(job, signal.SIGTERM)
    while time.monotonic() < deadline:
        if not members(job):
            return True
        time.sleep(_POLL_S)
    for _ in range(int(10 / _POLL_S)):  # a process may fork while we look: look again until nobody is there
        if not signal_all(job, signal.SIGKILL):
            return True
        time.sleep(_POLL_S)
    return not members(job)


def watch(read_fd: int, job: str, grace_s: float) -> None:
    """Blocks on the pipe; stops the job when the other end closes without having said that all is well."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if os.read(read_fd, 1):
        return
    for _ in range(3):  # the engine may have been between fork and exec, when it did not carry the marker yet
        stop(job, grace_s)
        time.sleep(0.2)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
