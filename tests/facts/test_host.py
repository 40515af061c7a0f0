"""Host memory and cores from recorded /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import environment

from swift_autobatch.facts.host import read_host
from swift_autobatch.records import Host
from swift_autobatch.units import GIB


def tree(root: Path, files: dict[str, str], mem_total_gib: int = 64, available_gib: int = 60) -> Path:
    """A recorded machine: /proc/meminfo and what else is given."""
    kib = 2**20
    meminfo = f"MemTotal: {mem_total_gib * kib} kB\nMemFree: 1 kB\nMemAvailable: {available_gib * kib} kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def host(tmp_path: Path, files: dict[str, str]) -> Host:
    return read_host(environment(tmp_path), tree(tmp_path / "root", files))


def test_without_limits_it_is_memavailable(tmp_path: Path) -> None:
    found = host(tmp_path, {"proc/self/cgroup": "0::/\n"})
    assert (found.ram_total_bytes, found.ram_budget_bytes) == (64 * GIB, 60 * GIB)
    assert found.ram_source == "MemAvailable"
    assert found.gflops == 30 * found.cpu_cores


def test_version_2_max_less_use_without_page_cache(tmp_path: Path) -> None:
    found = host(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/job/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/user.slice/job/memory.high": "max\n",
            "sys/fs/cgroup/user.slice/job/memory.current": f"{6 * GIB}\n",
            "sys/fs/cgroup/user.slice/job/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
        },
    )
    assert (found.ram_total_bytes, found.ram_budget_bytes) == (16 * GIB, 12 * GIB)
    assert found.ram_source == "cgroup /sys/fs/cgroup/user.slice/job/memory.max"


def test_version_2_the_tightest_parent_and_memory_high_count(tmp_path: Path) -> None:
    found = host(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/job/memory.max": f"{32 * GIB}\n",
            "sys/fs/cgroup/user.slice/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/memory.high": f"{8 * GIB}\n",
            "sys/fs/cgroup/user.slice/memory.current": f"{3 * GIB}\n",
        },
    )
    assert found.ram_budget_bytes == 5 * GIB
    assert found.ram_source.endswith("user.slice/memory.high")


def test_version_1_and_its_word_for_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:devices:/\n4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{50 * GIB}\n",
    }
    assert host(tmp_path, files).ram_source == "MemAvailable"
    limited = {
        **files,
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/docker/abc/memory.stat": "total_inactive_file 0\n",
    }
    assert host(tmp_path, limited).ram_budget_bytes == 3 * GIB


def test_in_a_container_the_path_is_the_hosts_and_the_mount_holds_the_limit(tmp_path: Path) -> None:
    found = host(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/not/here\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        },
    )
    assert found.ram_budget_bytes == 6 * GIB


def test_a_full_group_leaves_nothing_not_less(tmp_path: Path) -> None:
    found = host(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
        },
    )
    assert found.ram_budget_bytes == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_cores_are_affinity_cut_by_quota(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    assert host(tmp_path, files).cpu_cores == (cores or len(os.sched_getaffinity(0)))


def test_without_proc_psutil_is_asked(tmp_path: Path) -> None:
    found = read_host(environment(tmp_path), tmp_path / "nothing")
    assert found.ram_total_bytes > 0
    assert found.ram_source == "MemAvailable"


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert read_host(environment(tmp_path / "later" / "on"), tree(tmp_path / "root", {})).disk_free_bytes
