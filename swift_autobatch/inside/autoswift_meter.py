"""Beside ``telemetry.py`` inside ``swift``: the file of one rank, and what its process holds now and at its peak.

Imports nothing of autoswift's own package: it is copied to the run folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_PULSE_S = 1.0
_QUIET_S = 30.0  # a row at least this often, so that a time-out can say when each rank was last alive
_GROWTH = 64 << 20  # bytes of resident memory that are worth a row of their own


class Rows:
    """The file of one rank. Every write is flushed; the first failure ends the writing."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.error: str | None = None
        self.said: set[str] = set()
        folder = os.environ.get("AUTOSWIFT_TELEMETRY_DIR")
        self.path = Path(folder) / f"telemetry-{self.rank}.jsonl" if folder else None
        if self.path is None:
            self.fail("AUTOSWIFT_TELEMETRY_DIR is not set")

    def fail(self, why: object) -> None:
        self.error = str(why)
        self.say(f"off: {why}")

    def say(self, what: str) -> None:
        if what not in self.said:
            self.said.add(what)
            print(f"autoswift: telemetry of rank {self.rank}: {what}", file=sys.stderr, flush=True)

    def write(self, row: dict[str, Any]) -> None:
        if self.error is None and self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except (OSError, ValueError, TypeError) as error:
                self.fail(error)

    def row(self, phase: str, event: str, step: int) -> dict[str, Any]:
        """The keys that every row begins with."""
        began = {"v": 1, "t": time.time(), "rank": self.rank, "phase": phase, "event": event, "step": step}
        return {**began, "loss": None, "grad_norm": None}


class Meter:
    """Peaks since the last ``restart``, of this process; /dev/shm and the control group are this machine's, now."""

    def __init__(self) -> None:
        self.wake()

    def wake(self) -> None:
        """Looks again whether this process has a card: before the model is loaded it has none."""
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()

    def read(self) -> dict[str, int | None]:
        allocated = reserved = driver = pinned = None
        if self.cuda:
            allocated = torch.cuda.max_memory_allocated()
            reserved = torch.cuda.max_memory_reserved()
            free, total = torch.cuda.mem_get_info()
            driver = total - free
            pinned = _pinned()
        return {
            "gpu_allocated_bytes": allocated,
            "gpu_reserved_bytes": reserved,
            "driver_bytes": driver,
            "rss_bytes": peak_rss(),
            "pinned_bytes": pinned,
            "shm_bytes": _shm(),
            "cgroup_bytes": _cgroup(),
        }

    def restart(self) -> None:
        """A new phase: peaks count from here. Linux forgets VmHWM when 5 is written to clear_refs."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        with contextlib.suppress(OSError):  # else the resident peak is that of the whole life of the process
            Path("/proc/self/clear_refs").write_text("5")


class Pulse(threading.Thread):
    """Calls ``beat`` when resident memory has grown, and now and then anyway, until the process ends."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="autoswift-pulse")
        self.beat = beat

    def run(self) -> None:
        last, at = 0, time.monotonic()
        while True:
            time.sleep(_PULSE_S)
            held = _status_bytes("VmRSS") or 0
            if held > last + max(_GROWTH, last // 20) or time.monotonic() - at > _QUIET_S:
                last, at = held, time.monotonic()
                self.beat()


class Card:
    """A simulated card for tests on machines without one: ``AUTOSWIFT_SIMULATED_CARD=BYTES[:PHASE]``.

    What the process holds in RAM beyond ``base`` counts as allocated on it. Above BYTES (in PHASE, where one is named)
    the words of PyTorch's own error are raised, as its allocator would.
    """

    def __init__(self, base: int) -> None:
        size, _, self.phase = os.environ.get("AUTOSWIFT_SIMULATED_CARD", "").partition(":")
        self.size = int(size) if size else None
        self.base = base

    def check(self, phase: str) -> None:
        if self.size is None or self.phase not in ("", phase):
            return
        held = max(0, (peak_rss() or 0) - self.base)
        if held > self.size:
            asked, mib = held - self.size, 1 << 20
            error = torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {asked / mib:.2f} MiB. GPU 0 has a total capacity of "
                f"{self.size / mib:.2f} MiB of which 0.00 MiB is free. Including non-PyTorch memory, this process has "
                f"{self.size / mib:.2f} MiB memory in use. Of the allocated memory {self.size / mib:.2f} MiB is "
                "allocated by PyTorch, and 0.00 MiB is reserved by PyTorch but unallocated."
            )
            raise error


def peak_rss() -> int | None:
    """Resident bytes of this process at their peak since the last restart."""
    peak = _status_bytes("VmHWM")
    return peak if peak is not None else _peak_rss_elsewhere()


def _status_bytes(key: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _peak_rss_elsewhere() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _pinned() -> int | None:
    """Host memory that PyTorch keeps pinned for copies to the card, at its peak."""
    try:
        return int(torch.cuda.host_memory_stats()["allocated_bytes.peak"])
    except (AttributeError, KeyError, RuntimeError):  # PyTorch before 2.7
        return None


def _shm() -> int | None:
    try:
        disk = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def _cgroup() -> int | None:
    """What the control group of this process is charged with, without cached files that can be dropped at once."""
    for folder, now, cached in (
        (_cgroup_folder(), "memory.current", "inactive_file"),
        (Path("/sys/fs/cgroup"), "memory.current", "inactive_file"),
        (Path("/sys/fs/cgroup/memory"), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return int((folder / now).read_text()) - int(stat.get(cached, 0))
        except (OSError, ValueError):
            continue
    return None


def _cgroup_folder() -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    inside = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return Path("/sys/fs/cgroup") / inside.lstrip("/")
