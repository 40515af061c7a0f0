"""Every check of the doctor says what is wrong and what to do, and is silent about what it cannot know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_autobatch import api, doctor
from swift_autobatch.facts.cards import assumed_machine
from swift_autobatch.facts.machine_file import dump_machine, load_report
from swift_autobatch.facts.probes import read_probes, unmet
from swift_autobatch.facts.software import read_software
from swift_autobatch.records import Check, Machine, Probes, replace
from swift_autobatch.units import GIB, MIB
from tests import builders

SOUND = Probes(
    torch_error=None,
    torch_cuda="12.6",
    torch_sees_gpu=True,
    torch_archs=("sm_75", "sm_80", "sm_86", "sm_90", "compute_90"),
    flash_attn_error=None,
    nvcc_cuda="12.4",
    ninja=True,
    wants=(),
    free_inodes=10**6,
    memlock_bytes=None,
    infiniband=False,
    wsl=False,
    port=True,
)


def machine(tmp_path: Path, gpus: str = "2xA100-80G", **versions: str | None) -> Machine:
    """A machine with everything installed, as two A100 would have it."""
    software = read_software(builders.environment(tmp_path))
    installed = {**software.versions, "flash-attn": "2.8.3", "bitsandbytes": "0.50.2", **versions}
    whole = replace(software, versions=installed, compiler="/usr/bin/g++", nvcc="/usr/local/cuda/bin/nvcc")
    found = assumed_machine(gpus, whole)
    host = replace(found.host, shm_bytes=8 * GIB, disk_free_bytes=500 * GIB)
    return replace(found, host=host, software=replace(whole, cuda_driver="12.8"))


def check(found: tuple[Check, ...], name: str) -> Check:
    return next(one for one in found if one.id == name)


def test_a_sound_machine_passes_everything(tmp_path: Path) -> None:
    found = doctor.examine(machine(tmp_path), SOUND)
    assert {one.status for one in found} <= {"pass", "skipped"}
    assert len(found) == len(doctor.CHECKS) == 19


Change = Callable[[Machine], Machine]


def host(**changes: Any) -> Change:
    return lambda m: replace(m, host=replace(m.host, **changes))


def software(**changes: Any) -> Change:
    return lambda m: replace(m, software=replace(m.software, **changes))


def versions(**changes: str | None) -> Change:
    named = {name.replace("_", "-"): version for name, version in changes.items()}
    return lambda m: replace(m, software=replace(m.software, versions={**m.software.versions, **named}))


def gpu(**changes: Any) -> Change:
    return lambda m: replace(m, gpus=tuple(replace(one, **changes) for one in m.gpus))


def same(m: Machine) -> Machine:
    return m


CASES: tuple[tuple[str, Change, dict[str, Any], str, str], ...] = (
    ("engine", versions(ms_swift=None), {}, "fail", "not installed"),
    ("engine", versions(ms_swift="3.12.6"), {}, "warn", "rendered in its flags"),
    ("engine", versions(ms_swift="2.6.1"), {}, "fail", "known for 4.6 and 3.12 only"),
    ("versions", same, {"wants": ("ms-swift wants transformers<5.20.0, 5.21.0 is installed",)}, "warn", "5.21.0"),
    ("torch", versions(torch=None), {}, "fail", "not installed"),
    ("torch", same, {"torch_error": "OSError: libcudart.so.12"}, "fail", "libcudart"),
    ("torch-gpu", same, {"torch_cuda": None, "torch_sees_gpu": False}, "fail", "CPU build"),
    ("torch-gpu", software(cuda_driver="11.8"), {"torch_sees_gpu": False}, "fail", "11.8"),
    ("torch-kernels", gpu(compute_capability=(12, 0)), {"torch_archs": ("sm_80", "sm_90")}, "fail", "sm_120"),
    ("devices", gpu(free_bytes=40 * GIB), {}, "warn", "in use"),
    ("bf16", gpu(bf16_native=False, name="Tesla T4"), {}, "warn", "float16"),
    ("flash-attention", same, {"flash_attn_error": "ImportError: undefined symbol"}, "fail", "undefined symbol"),
    ("flash-attention", versions(flash_attn=None), {}, "pass", "PyTorch's own"),
    ("deepspeed", versions(deepspeed=None), {}, "warn", "no ZeRO"),
    ("offload", software(compiler=None), {"ninja": False}, "warn", "a C++ compiler and ninja"),
    ("offload", software(nvcc=None), {}, "warn", "nvcc"),
    ("offload", same, {"nvcc_cuda": "11.8"}, "warn", "11.8"),
    ("quantisation", versions(bitsandbytes=None), {}, "warn", "no QLoRA"),
    ("links", lambda m: replace(m, links="nop2p"), {}, "warn", "host memory"),
    ("host-ram", host(ram_budget_bytes=4 * GIB, ram_source="cgroup memory.max"), {}, "warn", "cgroup"),
    ("shared-memory", host(shm_bytes=64 * MIB), {}, "warn", "/dev/shm"),
    ("disk", host(disk_free_bytes=100 * MIB), {}, "fail", "free"),
    ("disk", host(disk_free_bytes=10 * GIB), {}, "warn", "7B"),
    ("disk", same, {"free_inodes": 3}, "warn", "only 3 files"),
    ("locked-memory", same, {"infiniband": True, "memlock_bytes": 65536}, "warn", "64 KiB"),
    ("wsl", same, {"wsl": True}, "warn", "WSL"),
    ("port", same, {"port": False}, "fail", "port"),
    (
        "devices",
        lambda m: replace(m, gpus=(), links="none", processes=1),
        {"other_accelerator": "AMD ROCm"},
        "warn",
        "AMD",
    ),
    ("interfaces", same, {"no_interface": "NCCL_SOCKET_IFNAME=eth9"}, "fail", "eth9"),
)


@pytest.mark.parametrize(("name", "change", "probes", "status", "says"), CASES)
def test_what_is_wrong_is_said(
    tmp_path: Path, name: str, change: Change, probes: dict[str, Any], status: str, says: str
) -> None:
    found = check(doctor.examine(change(machine(tmp_path)), replace(SOUND, **probes)), name)
    assert found.status == status
    assert says in found.text
    assert found.fix or status != "fail"


def test_every_check_is_tried_in_a_state_that_is_not_sound() -> None:
    tried = {name for name, *_ in CASES}
    assert tried == {name for name, _ in doctor.CHECKS}


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((8, 9), ("sm_80", "sm_86"), True),  # binary code of the same major version
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90",), False),
        ((12, 0), ("sm_90", "compute_90"), True),  # compiled for it when loaded
        ((9, 0), ("sm_90a",), True),
        ((7, 0), ("sm_75", "compute_90"), False),
    ],
)
def test_kernels_run_where_the_driver_says(capability: tuple[int, int], archs: tuple[str, ...], runs: bool) -> None:
    assert doctor._runs_on(capability, archs) is runs


def test_a_hardware_file_has_no_probes(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(dump_machine(machine(tmp_path))))
    found, probes = load_report(path)
    assert probes is None
    assert check(doctor.examine(found, probes), "port").status == "skipped"


def test_a_report_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    was = machine(tmp_path)
    report = api.Examination(machine=was, probes=SOUND, checks=doctor.examine(was, SOUND))
    path.write_text(json.dumps(api.examination_json(report)))
    found, probes = load_report(path)
    assert probes == SOUND
    assert doctor.examine(found, probes) == report.checks


def test_this_environment_is_tried_out_for_real(tmp_path: Path) -> None:
    """The engine is installed here, so its imports and its requirements hold."""
    env = replace(builders.environment(tmp_path), interpreter=__import__("sys").executable)
    found = read_probes(env, read_software(env))
    assert found.torch_error is None
    assert found.port
    assert not found.wants


def test_a_broken_torch_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    env = builders.environment(tmp_path)
    broken = replace(env, interpreter=__import__("sys").executable, variables={"PYTHONPATH": str(tmp_path)})
    found = read_probes(broken, read_software(env))
    assert found.torch_error is not None
    assert "libcudart" in found.torch_error


def test_requirements_that_do_not_hold_are_named(tmp_path: Path) -> None:
    found = read_software(builders.environment(tmp_path))
    old = replace(found, versions={**found.versions, "transformers": "99.0"})
    assert any(line.startswith("ms-swift wants transformers") and "99.0" in line for line in unmet(old))


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        ("eth0", False),
        ("eth", False),
        ("=eth0", False),
        ("^lo", False),
        ("ib0", True),
        ("ib0,eth0", False),
        ("", False),
    ],
)
def test_interfaces_are_looked_up_as_nccl_does(tmp_path: Path, value: str, missing: bool) -> None:
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    env = replace(builders.environment(tmp_path), variables={"NCCL_SOCKET_IFNAME": value})
    none = replace(read_software(env), versions={})
    found = read_probes(env, none, tmp_path)
    assert (found.no_interface is not None) is missing
    assert found.other_accelerator == "AMD ROCm"
