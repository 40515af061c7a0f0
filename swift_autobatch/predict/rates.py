"""How fast a machine's parts are: data/speed.yaml as attributes, and the rates of its slowest device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache

from swift_autobatch import tables
from swift_autobatch.records import Gpu, Machine
from swift_autobatch.units import GB, MIB

UNKNOWN_TFLOPS = 100.0
UNKNOWN_GB_S = 800.0
UNKNOWN_LINK_GB_S = 8.0
UNKNOWN_PCIE_GB_S = 12.0
_EMULATED_BF16 = 8  # chips without bf16 convert and multiply in fp32: an eighth of the fp16 rate


@dataclass(frozen=True, slots=True)
class Rates:
    """The coefficients of data/speed.yaml; see there for units and sources."""

    wave_outputs: float
    attention_half_tokens: float
    traffic_efficiency: float
    cache_speedup: float
    kernel_s: float
    op_s: float
    backward_op_s: float
    cpu_op_s: float
    dequantise_efficiency: float
    link_efficiency: float
    network_gb_s: float
    hidden: float
    host_adam_efficiency: float
    cpu_gemm_efficiency: float


@cache
def _defaults() -> Rates:
    return Rates(**{field.name: tables.coefficients("speed")[field.name].value for field in fields(Rates)})


def rates(calibration: Mapping[str, float] | None) -> Rates:
    """The coefficients of the step time, those that this machine has measured replaced by name."""
    if not calibration:
        return _defaults()
    own = {field.name: calibration.get(field.name, getattr(_defaults(), field.name)) for field in fields(Rates)}
    return Rates(**own)


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's device: dense 16-bit products and fused attention in FLOP/s, memory and host bus in bytes/s."""

    matmul: float
    attention: float
    memory: float
    bus: float
    cache: float  # bytes of the second-level cache


@lru_cache(maxsize=256)
def gpu_device(gpus: tuple[Gpu, ...], bf16: bool, found: Rates) -> Device:
    """Rates of the slowest card.

    Args:
        gpus: at least one card.
        bf16: products run in bfloat16, which chips before Ampere emulate.
        found: the coefficients.
    """
    devices = [_card(gpu, bf16, found) for gpu in set(gpus)]
    return Device(
        matmul=min(device.matmul for device in devices),
        attention=min(device.attention for device in devices),
        memory=min(device.memory for device in devices),
        bus=min(device.bus for device in devices),
        cache=min(device.cache for device in devices),
    )


def _card(gpu: Gpu, bf16: bool, found: Rates) -> Device:
    chip = tables.chip(gpu.card, gpu.compute_capability)
    peak = (gpu.tflops_16bit or UNKNOWN_TFLOPS) * 1e12
    if bf16 and not gpu.bf16_native:
        peak /= _EMULATED_BF16
    return Device(
        matmul=peak * chip.matmul,
        attention=peak * chip.attention,
        memory=(gpu.bandwidth_gb_s or UNKNOWN_GB_S) * GB * found.traffic_efficiency,
        bus=(gpu.pcie_gb_s or UNKNOWN_PCIE_GB_S) * GB * found.link_efficiency,
        cache=chip.l2_mib * MIB,
    )


def cpu_device(machine: Machine, ranks: int, bf16: bool, found: Rates) -> Device:
    """One rank's share of the host; bf16 products are converted, because no bf16 units are assumed."""
    rate = machine.host.gflops * 1e9 * found.cpu_gemm_efficiency * (0.5 if bf16 else 1.0) / ranks
    memory = machine.host.memory_gb_s * GB * found.traffic_efficiency / ranks
    return Device(matmul=rate, attention=rate, memory=memory, bus=memory, cache=0.0)


def link(machine: Machine, on_cpu: bool, ranks: int, found: Rates) -> float:
    """Bytes per second that a collective moves through one rank, between the ranks of one machine."""
    if on_cpu:
        return machine.host.memory_gb_s * GB / (4 * ranks)  # gloo: copies through sockets
    crossings = 2 if machine.links == "nop2p" else 1  # without P2P every byte goes through host memory
    return (machine.link_gb_s or UNKNOWN_LINK_GB_S) * GB * found.link_efficiency / crossings
