"""The machine around the cards: RAM that may really be used, CPU cores, /dev/shm, disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from swift_autobatch.records import Environment, Host

# Dense fp32 rate of one modern x86 core with AVX2 in a real torch matmul, 10**9 per second; assumed, not measured.
GFLOPS_PER_CORE = 30.0
MEMORY_GB_S = 20.0


def read_host(env: Environment, root: Path = Path("/")) -> Host:
    """Host memory, cores, /dev/shm and disk as the processes of this run will find them.

    Args:
        env: ``cwd`` decides which disk is measured.
        root: where /proc and /sys are; tests replay recorded trees.

    Source: MemAvailable of /proc/meminfo; cgroup v1 ``memory.limit_in_bytes`` and v2 ``memory.max`` and
    ``memory.high`` from our own group up to the root, less what is in use and cannot be reclaimed.
    """
    total, available = _physical(root)
    limits = list(_cgroup_memory(root))
    budget, source = min([(available, "MemAvailable"), *((free, name) for _, free, name in limits)])
    cores = _cores(root)
    return Host(
        cpu_cores=cores,
        ram_total_bytes=min([total, *(limit for limit, _, _ in limits)]),
        ram_budget_bytes=max(0, budget),
        ram_source=source,
        shm_bytes=_free(root / "dev/shm"),
        disk_free_bytes=_free(Path(env.cwd)),
        gflops=cores * GFLOPS_PER_CORE,
        memory_gb_s=MEMORY_GB_S,
    )


def _physical(root: Path) -> tuple[int, int]:
    """MemTotal and MemAvailable, bytes."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        import psutil  # not Linux, or a kernel before 3.14

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """(controllers, path) of every cgroup we are in; controllers is empty for version 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers, path


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and all its parents that exist below the mount.

    In a container the path of /proc/self/cgroup is often the host's: then only the mount itself exists, and it
    is the container's own group.
    """
    folder = mount / path.strip("/")
    for candidate in (folder, *folder.parents):
        if candidate.is_dir():
            yield candidate
        if candidate == mount:
            return


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int, str]]:
    """(limit, what is left of it, which file says so) of every memory limit that holds for us, bytes."""
    for controllers, path in _groups(root):
        if not controllers:
            for mount in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"):
                for folder in _upwards(mount, path):
                    used = _used(folder, "memory.current", "inactive_file")
                    for name in ("memory.max", "memory.high"):
                        yield from _limit(folder, name, used, root)
        elif "memory" in controllers.split(","):
            for folder in _upwards(root / "sys/fs/cgroup/memory", path):
                used = _used(folder, "memory.usage_in_bytes", "total_inactive_file")
                yield from _limit(folder, "memory.limit_in_bytes", used, root)


def _limit(folder: Path, name: str, used: int, root: Path) -> Iterator[tuple[int, int, str]]:
    limit = _number(folder / name)
    if limit is not None and limit < 2**60:  # version 1 writes 2**63 rounded to a page for "none"
        yield limit, limit - used, f"cgroup /{(folder / name).relative_to(root)}"


def _used(folder: Path, name: str, reclaimable: str) -> int:
    """Bytes charged to the group, without the page cache that the kernel gives back first."""
    used = _number(folder / name) or 0
    try:
        rows = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, used - int(rows.get(reclaimable, 0)))
    except (OSError, ValueError):
        return used


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cores(root: Path) -> int:
    """CPU cores that this process may use: the least of affinity and cgroup quotas, at least 1."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for controllers, path in _groups(root):
        if not controllers:
            folders = list(_upwards(root / "sys/fs/cgroup", path))
        elif "cpu" in controllers.split(","):
            folders = [
                folder for name in ("cpu", "cpu,cpuacct") for folder in _upwards(root / "sys/fs/cgroup" / name, path)
            ]
        else:
            continue
        cores = min([cores, *(quota for folder in folders for quota in _quota(folder))])
    return max(1, int(cores))


def _quota(folder: Path) -> Iterator[float]:
    """Cores granted by a group: version 2 ``cpu.max``, version 1 ``cpu.cfs_quota_us``."""
    try:
        words = (folder / "cpu.max").read_text().split()
        quota, period = int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):
        quota = _number(folder / "cpu.cfs_quota_us") or 0
        period = _number(folder / "cpu.cfs_period_us") or 0
    if quota > 0 and period > 0:
        yield quota / period


def _free(folder: Path) -> int | None:
    """Bytes free for us on the file system of a folder, or of its nearest parent that exists."""
    for candidate in (folder, *folder.parents):
        try:
            return shutil.disk_usage(candidate).free
        except OSError:
            continue
    return None
