"""A machine survives the round trip through JSON, and a file that is none is refused with the key's path."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.errors import InputError
from swift_autobatch.facts.cards import assumed_machine
from swift_autobatch.facts.machine_file import dump_machine, load_machine, machine_from
from swift_autobatch.records import Gpu, Host, Machine, Software, replace

SOFTWARE = Software(
    versions={"torch": "2.13.0", "vllm": None},
    python="3.11.7",
    driver=None,
    cuda_driver="12.4",
    compiler=None,
    nvcc=None,
)
COUNT = st.integers(0, 2**48)
RATE = st.floats(0, 1e6, allow_nan=False)
TEXT = st.text(max_size=12)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any consistent machine."""
    n = draw(st.integers(0, 4))
    total = draw(st.integers(1, 2**40))
    gpus = tuple(
        Gpu(
            index=index,
            name=draw(TEXT),
            card=draw(st.none() | TEXT),
            uuid=draw(st.none() | TEXT),
            total_bytes=total,
            free_bytes=draw(st.integers(1, total)),
            compute_capability=(draw(st.integers(0, 20)), draw(st.integers(0, 9))),
            bf16_native=draw(st.booleans()),
            flash_attention=draw(st.booleans()),
            tflops_16bit=draw(st.none() | RATE),
            bandwidth_gb_s=draw(st.none() | RATE),
            pcie_gb_s=draw(st.none() | RATE),
            source=draw(TEXT),
        )
        for index in range(n)
    )
    host = Host(
        cpu_cores=draw(COUNT),
        ram_total_bytes=draw(COUNT),
        ram_budget_bytes=draw(COUNT),
        ram_source=draw(TEXT),
        shm_bytes=draw(st.none() | COUNT),
        disk_free_bytes=draw(st.none() | COUNT),
        gflops=draw(RATE),
        memory_gb_s=draw(RATE),
    )
    return Machine(
        gpus=gpus,
        links="none" if n < 2 else draw(st.sampled_from(["nvlink", "pcie", "nop2p"])),
        link_gb_s=draw(st.none() | RATE),
        host=host,
        software=replace(SOFTWARE, versions=draw(st.dictionaries(TEXT, st.none() | TEXT, max_size=3))),
        visible_devices=draw(st.none() | TEXT),
        processes=n or draw(st.integers(1, 8)),
        assumed=tuple(draw(st.lists(TEXT, max_size=3))),
        source=draw(TEXT),
    )


@given(machine=machines())
def test_load_of_dump_is_the_same_machine(machine: Machine) -> None:
    text = json.dumps(dump_machine(machine))
    assert machine_from(json.loads(text), "machine.json") == machine


def test_a_file_is_named_as_the_source(tmp_path: Path) -> None:
    machine = assumed_machine("2x4090", SOFTWARE)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(dump_machine(machine)))
    loaded = load_machine(path)
    assert loaded == replace(machine, source=f"hardware file {path}")
    assert loaded.machine_class == machine.machine_class


def test_the_keys_are_frozen() -> None:
    plain = dump_machine(assumed_machine("2x4090", SOFTWARE))
    assert list(plain) == ("schema gpus links link_gb_s host software visible_devices processes assumed source".split())
    assert list(plain["gpus"][0]) == (
        "index name card uuid total_bytes free_bytes compute_capability bf16_native flash_attention tflops_16bit "
        "bandwidth_gb_s pcie_gb_s source".split()
    )
    assert list(plain["host"]) == (
        "cpu_cores ram_total_bytes ram_budget_bytes ram_source shm_bytes disk_free_bytes gflops memory_gb_s".split()
    )
    assert list(plain["software"]) == "versions python driver cuda_driver compiler nvcc".split()


def edited(path: str, value: Any) -> dict[str, Any]:
    """A valid object with one value changed; the path is dotted, numbers index lists."""
    plain = copy.deepcopy(dump_machine(assumed_machine("2x4090", SOFTWARE)))
    *folders, last = path.split(".")
    inner: Any = plain
    for name in folders:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    inner[last] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("gpus.1.total_bytes", "24 GB", 'gpus[1].total_bytes must be a whole number of 0 or more, not "24 GB"'),
        ("gpus.0.free_bytes", -1, "gpus[0].free_bytes must be a whole number of 0 or more, not -1"),
        ("gpus.0.total_bytes", 1.5, "gpus[0].total_bytes must be a whole number"),
        ("gpus.0.total_bytes", True, "gpus[0].total_bytes must be a whole number"),
        ("gpus.0.bf16_native", "yes", "gpus[0].bf16_native must be true or false"),
        ("gpus.0.name", 4090, "gpus[0].name must be text, not 4090"),
        ("gpus.0.compute_capability", [8], "gpus[0].compute_capability must be a list of 2"),
        ("gpus.0.totl_bytes", 1, "unknown key gpus[0].totl_bytes (did you mean total_bytes?)"),
        ("gpus", {}, "gpus must be a list"),
        ("gpus.0", 7, None),
        ("host.gflops", None, "host.gflops must be a number"),
        ("host", 3, "host must be an object"),
        ("links", "nvlnk", "links must be one of 'none', 'nvlink', 'pcie', 'nop2p'"),
        ("links", "none", "links is 'none' with 2 GPUs"),
        ("processes", 0, "processes is 0"),
        ("gpus.0.free_bytes", 2**40, "gpus[0].free_bytes is"),
        ("software.versions", {"torch": 2.13}, "software.versions.torch must be text"),
        ("assumed", "x", "assumed must be a list"),
        ("colour", "red", "unknown key colour"),
    ],
)
def test_one_wrong_value_is_named_by_its_path(path: str, value: Any, message: str | None) -> None:
    if path == "gpus.0":
        plain = edited("gpus", [7])
        message = "gpus[0] must be an object, not 7"
    else:
        plain = edited(path, value)
    with pytest.raises(InputError) as caught:
        machine_from(plain, "machine.json")
    assert message is not None
    assert message in caught.value.what
    assert caught.value.where == "machine.json"
    assert caught.value.hints


def test_all_problems_come_at_once() -> None:
    plain = edited("host.gflops", "fast")
    del plain["software"]["python"]
    plain["gpus"][0]["index"] = "first"
    with pytest.raises(InputError) as caught:
        machine_from(plain, "machine.json")
    said = "\n".join((caught.value.what, *caught.value.figures))
    for path in ("gpus[0].index", "host.gflops", "software.python is missing"):
        assert path in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not JSON"),
        ("", "is not JSON"),
        ("[]", "it has no schema"),
        ("{}", "it has no schema"),
        ('{"schema": "autoswift.plan/1"}', "its schema is 'autoswift.plan/1'"),
        ('{"schema": NaN}', "NaN is not a number"),
    ],
)
def test_files_that_are_no_hardware_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_machine(path)
    assert caught.value.exit_code == 5


def test_a_missing_file_a_folder_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x81")
    for path in (tmp_path / "no", tmp_path, tmp_path / "bytes"):
        with pytest.raises(InputError):
            load_machine(path)


@given(
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
    )
)
@pytest.mark.parametrize("path", ["gpus", "host", "software", "links", "processes", "gpus.0.total_bytes", "assumed"])
def test_nothing_in_a_value_raises_anything_else(path: str, raw: Any) -> None:
    with contextlib.suppress(InputError):
        assert machine_from(edited(path, raw), "machine.json").processes >= 1
