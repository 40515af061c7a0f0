"""Cards by the driver's name and by what people type; the machine that --gpus describes."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.errors import UsageError
from swift_autobatch.facts.cards import RESERVE_BYTES, assumed_machine, find_card, match_card
from swift_autobatch.interconnect import assumed_links, pcie_gb_s, row_gpu
from swift_autobatch.records import Software
from swift_autobatch.tables import gpus
from swift_autobatch.units import GIB, MIB

SOFTWARE = Software(versions={}, python="3.11.7", driver=None, cuda_driver=None, compiler=None, nvcc=None)
CUDA_ROWS = [row for row in gpus().values() if row.vendor == "nvidia"]


def test_every_row_is_visited_and_counted() -> None:
    assert len(gpus()) == 62
    assert len(CUDA_ROWS) == 57
    assert all(row.compute_capability and row.bandwidth_gb_s and row.tflops_16bit for row in CUDA_ROWS)


@pytest.mark.parametrize("row", CUDA_ROWS, ids=lambda row: row.name)
def test_the_driver_name_and_every_reported_size_lead_to_the_row(row) -> None:
    for name, mib in itertools.product(row.smi_names, (row.memory_mib, *row.memory_mib_alternates)):
        assert match_card(name, mib * MIB) == (row, "")


@pytest.mark.parametrize("row", list(gpus().values()), ids=lambda row: row.name)
def test_every_spelling_of_a_row_means_that_row_only(row) -> None:
    for spelling in (row.name, *row.aliases, *row.smi_names):
        assert find_card(spelling) is row
        assert find_card(spelling.lower().replace(" ", "-")) is row


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "GeForce RTX 4090"),
        ("RTX4090", "GeForce RTX 4090"),
        ("RTX 4090 D", "GeForce RTX 4090 D"),
        ("4090d", "GeForce RTX 4090 D"),
        ("A100-80G", "A100 SXM4 80GB"),
        ("a100-80gb", "A100 SXM4 80GB"),
        ("A100 80GB PCIe", "A100 PCIe 80GB"),
        ("a100-40g", "A100 SXM4 40GB"),
        ("H100", "H100 SXM5 80GB"),
        ("h200", "H200 SXM5 141GB"),
        ("T4", "Tesla T4"),
        ("v100-32g", "V100 SXM2 32GB"),
        ("A10", "A10"),
        ("A10G", "A10G"),
        ("L4", "L4"),
        ("a6000", "RTX A6000"),
        ("5090", "GeForce RTX 5090"),
    ],
)
def test_what_people_type(typed: str, name: str) -> None:
    assert find_card(typed).name == name


@pytest.mark.parametrize(("typed", "meanings"), [("a100", 4), ("v100", 4), ("A100 SXM", 2), ("A100 PCIe", 2)])
def test_an_ambiguous_card_is_refused_with_all_its_meanings(typed: str, meanings: int) -> None:
    with pytest.raises(UsageError, match=f"could be any of {meanings} cards") as caught:
        find_card(typed)
    found = {find_card(hint.split("  ")[0]).name for hint in caught.value.hints}
    assert len(found) == meanings


@pytest.mark.parametrize("typed", ["Foo", "409", "4090ti", "9090", "rtx"])
def test_an_unknown_card_is_refused_with_names_that_work(typed: str) -> None:
    with pytest.raises(UsageError, match=r"no card named|could be any") as caught:
        find_card(typed)
    names = caught.value.hints[0].removeprefix("did you mean ").removeprefix("for example ").removesuffix("?")
    for name in names.split(", ")[:3]:
        assert find_card(name.split("  ")[0])


def test_the_same_chip_with_twice_the_memory_is_said_and_another_chip_is_unknown() -> None:
    row, assumed = match_card("NVIDIA GeForce RTX 4090", 49140 * MIB)
    assert row is gpus()["GeForce RTX 4090"]
    assert "47.99 GiB" in assumed
    row, assumed = match_card("NVIDIA GeForce RTX 3060", 8192 * MIB)
    assert row is None
    assert "speed is unknown" in assumed
    row, assumed = match_card("NVIDIA Foo 9000", 8192 * MIB)
    assert row is None
    assert "not in the catalogue" in assumed


@pytest.mark.parametrize(
    ("spec", "links", "link_gb_s"),
    [
        ("1x4090", "none", None),
        ("4x4090", "nop2p", 31.5),
        ("2x3090", "nop2p", 31.5),
        ("8xH100", "nvlink", 450.0),
        ("4xA100-80G", "nvlink", 300.0),
        ("2xA100 80GB PCIe", "pcie", 31.5),
        ("2xT4", "pcie", 15.8),
        ("8xV100-32G", "nvlink", 150.0),
        ("2xA6000", "pcie", 31.5),
        ("2xTITAN RTX", "nop2p", 15.8),
    ],
)
def test_links_of_assumed_machines(spec: str, links: str, link_gb_s: float | None) -> None:
    machine = assumed_machine(spec, SOFTWARE)
    assert (machine.links, machine.link_gb_s) == (links, link_gb_s)


def test_an_assumed_machine_says_everything_it_assumes() -> None:
    machine = assumed_machine("4x4090", SOFTWARE)
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2, 3]
    assert machine.processes == 4
    assert machine.gpus[0].total_bytes == 24564 * MIB
    assert machine.gpus[0].free_bytes == 24564 * MIB - RESERVE_BYTES
    assert machine.host.ram_budget_bytes == 256 * GIB
    assert machine.machine_class == "4xrtx-4090-24-nop2p-ram256"
    said = "\n".join(machine.assumed)
    for word in ("4 x GeForce RTX 4090", "without peer-to-peer", "host RAM 256 GiB", "32 CPU cores", "/dev/shm"):
        assert word in said


def test_a_given_ram_is_taken_and_not_called_assumed() -> None:
    machine = assumed_machine("1x4090,ram=96", SOFTWARE)
    assert machine.host.ram_budget_bytes == 96 * GIB
    assert not any("host RAM" in line for line in machine.assumed)
    assert machine.machine_class == "1xrtx-4090-24-ram64"


def test_a_card_of_low_confidence_is_said() -> None:
    assert any("low confidence" in line for line in assumed_machine("1xA10G", SOFTWARE).assumed)


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("0x4090", "write 1x4090"),
        ("100x4090", "write 16x4090"),
        ("4090", "write 1x4090"),
        ("4x", "write 4x4090"),
        ("", "write 4x4090"),
        ("-1x4090", "write 4x4090"),
        ("4x4090,ram=lots", "write 4x4090,ram=256"),
        ("4x4090,ram=0", "write 4x4090,ram=256"),
        ("4x4090,ram=64,ram=128", "write 4x4090,ram=128"),
        ("A200", "write 1xh200"),
        ("4x4090,", "write 4x4090,ram=256"),
        ("4x4090,disk=3", "write 4x4090,ram=256"),
    ],
)
def test_bad_specs_are_usage_errors_whose_hint_works(spec: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        assumed_machine(spec, SOFTWARE)
    assert caught.value.hints == (hint,)
    assert caught.value.where == "--gpus"
    assumed_machine(hint.removeprefix("write "), SOFTWARE)


def test_cards_that_cuda_cannot_run_are_refused() -> None:
    with pytest.raises(UsageError, match="not a CUDA card"):
        assumed_machine("1x910b", SOFTWARE)


@given(spec=st.text(max_size=24))
def test_no_spec_raises_anything_but_a_usage_error(spec: str) -> None:
    with contextlib.suppress(UsageError):
        assert assumed_machine(spec, SOFTWARE).gpus


def test_machine_classes_tell_all_catalogue_cards_apart() -> None:
    one = assumed_machine("2x4090", SOFTWARE)
    classes = set()
    for row in CUDA_ROWS:
        size = row.memory_mib * MIB
        gpu = row_gpu(row, index=0, name=row.name, uuid=None, total_bytes=size, free_bytes=size)
        links, rate = assumed_links(row, 2)
        classes.add(replace(one, gpus=(gpu, gpu), links=links, link_gb_s=rate).machine_class)
    assert len(classes) == len(CUDA_ROWS)


@pytest.mark.parametrize(("ram_gib", "ram"), [(62.7, 64), (64, 64), (24, 16), (15.6, 16), (503, 512), (0.5, 1)])
def test_host_ram_in_the_machine_class_forgives_what_the_firmware_keeps(ram_gib: float, ram: int) -> None:
    machine = assumed_machine("1x4090", SOFTWARE)
    host = replace(machine.host, ram_total_bytes=int(ram_gib * GIB))
    assert replace(machine, host=host).machine_class.endswith(f"-ram{ram}")
    assert replace(machine, gpus=(), processes=2, host=host).machine_class == f"2xcpu-ram{ram}"


def test_mixed_cards_are_both_named() -> None:
    machine = assumed_machine("2x4090", SOFTWARE)
    other = assumed_machine("1x3090", SOFTWARE).gpus[0]
    mixed = replace(machine, gpus=(machine.gpus[0], other))
    assert mixed.machine_class == "1xrtx-3090-24+1xrtx-4090-24-nop2p-ram128"


def test_pcie_rates() -> None:
    assert pcie_gb_s(4, 16) == 31.5
    assert pcie_gb_s(4, 8) == 15.8
    assert pcie_gb_s(None, 16) is None
    assert pcie_gb_s(4, None) is None


@pytest.mark.parametrize(("spec", "alike"), [("1xRTX4090Ti", "4090"), ("1xRTX5095", "5090"), ("2xH1000", "h100")])
def test_an_unknown_card_is_answered_with_those_spelled_alike(spec: str, alike: str) -> None:
    with pytest.raises(UsageError) as caught:
        assumed_machine(spec, SOFTWARE)
    assert alike in caught.value.hints[0].removeprefix("did you mean ").rstrip("?").split(", ")
