"""What the driver says becomes a Machine: CUDA_VISIBLE_DEVICES, links, unknown cards, broken drivers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import Card, Recorded, four_4090

from swift_autobatch.errors import MachineError, UsageError
from swift_autobatch.facts import driver
from swift_autobatch.facts.hardware import read_machine, visible_cards
from swift_autobatch.records import Environment, Machine, Software
from swift_autobatch.units import MIB

SOFTWARE = Software(versions={}, python="3.11.7", driver=None, cuda_driver=None, compiler=None, nvcc=None)


def read(env: Environment, recorded: Recorded, nproc: int | None = None, visible: str | None = None) -> Machine:
    variables = dict(env.variables) | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    machine = read_machine(
        replace(env, variables=variables), SOFTWARE, nproc, read_view=lambda: driver.read_view(recorded)
    )
    assert recorded.open == 0, "NVML is shut down again"
    return machine


def test_four_cards(env: Environment) -> None:
    machine = read(env, four_4090())
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2, 3]
    gpu = machine.gpus[0]
    assert (gpu.card, gpu.total_bytes, gpu.free_bytes) == ("GeForce RTX 4090", 24564 * MIB, 24164 * MIB)
    assert (gpu.compute_capability, gpu.bf16_native, gpu.flash_attention) == ((8, 9), True, True)
    assert (gpu.tflops_16bit, gpu.bandwidth_gb_s, gpu.pcie_gb_s) == (165.2, 1008, 31.5)
    assert gpu.source == "NVML; gpus.jsonl: GeForce RTX 4090"
    assert (machine.links, machine.link_gb_s, machine.processes) == ("nop2p", 31.5, 4)
    assert machine.accelerator == "gpu"
    assert any(line.startswith("host speed") for line in machine.assumed)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 2", [1, 2]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("1,x,2", [1]),
        ("x", []),
        ("1,1", []),
        ("1,4,1", []),  # torch looks for repeats before it looks for cards
        ("1gpu,2", [1, 2]),
        ("GPU-aaaa1111-0", [0]),
        ("GPU-bbbb", [2]),
        ("GPU-cccc,GPU-aaaa2", [3, 1]),
        ("GPU-aaaa", []),  # two cards begin so
        ("GPU-bbbb,GPU-zzzz,GPU-cccc", [2]),
        ("GPU-bbbb,0", [2]),
        ("GPU-bbbb,GPU-bbbb3333", []),
        ("0,GPU-bbbb", [0]),
    ],
)
def test_visible_devices_as_cuda_reads_them(env: Environment, visible: str | None, seen: list[int]) -> None:
    machine = read(env, four_4090(), visible=visible)
    assert [gpu.index for gpu in machine.gpus] == seen
    assert machine.visible_devices == visible
    assert machine.processes == max(1, len(seen))
    assert machine.accelerator == ("gpu" if seen else "cpu")


@given(wanted=st.text(alphabet="0123 ,-+GPUabc", max_size=12))
def test_visible_cards_are_distinct_and_real(wanted: str) -> None:
    view = driver.read_view(four_4090())
    assert view is not None
    cards = visible_cards(view.cards, wanted)
    assert len({card.index for card in cards}) == len(cards)
    assert set(cards) <= set(view.cards)


@pytest.mark.engine
def test_visible_devices_agree_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own parser over the same words, cut at the number of cards as torch does."""
    import random

    import torch.cuda as cuda

    view = driver.read_view(four_4090())
    assert view is not None
    uuids = [card.uuid for card in view.cards]
    random.seed(7)
    pieces = ["0", "1", "2", "3", "4", "-1", "", " 1", "2x", "x", "+3", *uuids, "GPU-bbbb", "GPU-aaaa", "GPU-zzzz"]
    for _ in range(3000):
        wanted = ",".join(random.choices(pieces, k=random.randint(1, 4)))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
        parsed = cuda._parse_visible_devices()
        if parsed and isinstance(parsed[0], str):
            expected = cuda._transform_uuid_to_ordinals(parsed, uuids)
        else:
            expected = []
            for index in parsed:
                if index >= len(uuids):
                    break
                expected.append(index)
        assert [card.index for card in visible_cards(view.cards, wanted)] == expected, wanted


def test_fewer_processes_keep_the_first_cards(env: Environment) -> None:
    machine = read(env, four_4090(), nproc=2, visible="3,1,0")
    assert [gpu.index for gpu in machine.gpus] == [3, 1]
    assert machine.processes == 2


def test_more_processes_than_cards(env: Environment) -> None:
    with pytest.raises(UsageError, match="3 processes need 3 GPUs and CUDA_VISIBLE_DEVICES=0,1 leaves 2") as caught:
        read(env, four_4090(), nproc=3, visible="0,1")
    assert caught.value.hints[0] == "ask for 2 or leave it out"
    with pytest.raises(UsageError, match="cannot train"):
        read(env, four_4090(), nproc=0)


def test_processes_on_a_machine_without_cards(env: Environment) -> None:
    assert read(env, Recorded(()), nproc=2).processes == 2
    assert read(env, Recorded(())).processes == 1


def test_no_driver_is_no_machine_with_gpus_and_a_broken_one_is_an_error(env: Environment) -> None:
    real = Recorded(())
    for code in (real.NVML_ERROR_LIBRARY_NOT_FOUND, real.NVML_ERROR_DRIVER_NOT_LOADED):
        assert read(env, Recorded((), init_error=code)).gpus == ()
    for broken in (
        Recorded((), init_error=real.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
        Recorded((), query_error=real.NVML_ERROR_GPU_IS_LOST),
    ):
        with pytest.raises(MachineError, match="does not answer"):
            read(env, broken)
        assert read(env, broken, visible="").gpus == ()


def test_this_machine_is_read(env: Environment) -> None:
    machine = read_machine(env, SOFTWARE, None)
    assert machine.host.cpu_cores >= 1
    assert 0 < machine.host.ram_budget_bytes <= machine.host.ram_total_bytes


def test_mig_is_refused_only_when_it_would_be_used(env: Environment) -> None:
    cards = Recorded(
        (
            Card("NVIDIA A100-SXM4-80GB", 81920, "GPU-a", (8, 0), mig=True),
            Card("NVIDIA A100-SXM4-80GB", 81920, "GPU-b", (8, 0), mig=False),
        )
    )
    with pytest.raises(MachineError, match="split into MIG"):
        read(env, cards)
    assert [gpu.uuid for gpu in read(env, cards, visible="1").gpus] == ["GPU-b"]
    with pytest.raises(MachineError, match="MIG slice"):
        read(env, cards, visible="MIG-1234")


def test_an_unknown_card_has_no_speed_and_that_is_said(env: Environment) -> None:
    machine = read(env, Recorded((Card("NVIDIA Future 9000", 65536, "GPU-f", (13, 0), pcie=None),)))
    gpu = machine.gpus[0]
    assert (gpu.card, gpu.tflops_16bit, gpu.bandwidth_gb_s, gpu.pcie_gb_s) == (None, None, None, None)
    assert gpu.bf16_native
    assert gpu.flash_attention
    assert any("speed is unknown" in line for line in machine.assumed)
    assert machine.machine_class.startswith("1xfuture-9000-64-ram")


def test_turing_has_no_bf16(env: Environment) -> None:
    gpu = read(env, Recorded((Card("Tesla T4", 15360, "GPU-t", (7, 5), pcie=(3, 16)),))).gpus[0]
    assert (gpu.card, gpu.bf16_native, gpu.flash_attention) == ("Tesla T4", False, False)


def test_links_are_the_weakest_pair(env: Environment) -> None:
    a100 = [Card("NVIDIA A100-SXM4-80GB", 81920, f"GPU-{n}", (8, 0), nvlinks=12) for n in range(3)]
    nvlink, read_cap = 2, 0
    pairs = ((0, 1), (0, 2), (1, 2))
    switched = Recorded(tuple(a100), {(*pair, nvlink): 0 for pair in pairs})
    assert (read(env, switched).links, read(env, switched).link_gb_s) == ("nvlink", 300.0)
    bridged = Recorded(tuple(a100), {(0, 1, nvlink): 0, (0, 2, read_cap): 0, (1, 2, read_cap): 0})
    assert (read(env, bridged).links, read(env, bridged).link_gb_s) == ("pcie", 31.5)
    assert read(env, bridged, visible="1,0").links == "nvlink"
    split = Recorded(tuple(a100), {(0, 1, nvlink): 0, (0, 2, read_cap): 0})
    assert read(env, split).links == "nop2p"
    assert read(env, split, visible="2").links == "none"


def test_nvlink_of_an_unknown_card_is_counted(env: Environment) -> None:
    cards = tuple(Card("NVIDIA Future 9000", 65536, f"GPU-{n}", (13, 0), nvlinks=4) for n in range(2))
    machine = read(env, Recorded(cards, {(0, 1, 2): 0}))
    assert (machine.links, machine.link_gb_s) == ("nvlink", 100.0)
    assert any("25 GB/s a link" in line for line in machine.assumed)


def test_a_narrow_slot_slows_the_card(env: Environment) -> None:
    cards = tuple(Card("NVIDIA GeForce RTX 4090", 24564, f"GPU-{n}", pcie=(4, lanes)) for n, lanes in ((0, 16), (1, 4)))
    machine = read(env, Recorded(cards))
    assert [gpu.pcie_gb_s for gpu in machine.gpus] == [31.5, 7.9]
    assert machine.link_gb_s == 7.9


def test_the_order_of_different_cards_is_warned_about(env: Environment) -> None:
    cards = Recorded((Card("Tesla T4", 15360, "GPU-t", (7, 5)), Card("NVIDIA GeForce RTX 4090", 24564, "GPU-f")))
    assert any("CUDA_DEVICE_ORDER" in line for line in read(env, cards).assumed)
    fixed = replace(env, variables=dict(env.variables) | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not any("CUDA_DEVICE_ORDER" in line for line in read(fixed, cards).assumed)
    assert not any("CUDA_DEVICE_ORDER" in line for line in read(env, cards, visible="GPU-f").assumed)


def test_versions_without_cards() -> None:
    view = driver.read_versions(four_4090())
    assert view is not None
    assert (view.driver, view.cuda, view.cards) == ("550.90.07", "12.4", ())
