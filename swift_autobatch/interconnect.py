"""What the catalogue says of a card's speed, and how cards of one kind are usually joined."""

from __future__ import annotations

from typing import Literal

from swift_autobatch.records import Gpu
from swift_autobatch.tables import GpuRow

MOST_CARDS = 16  # of one machine, which is all that is planned for
Links = Literal["none", "nvlink", "pcie", "nop2p"]

# One PCIe lane, one direction, after line coding, 10**9 bytes per second. Source: PCI-SIG base specifications.
_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def pcie_gb_s(generation: int | None, lanes: int | None) -> float | None:
    """One direction between host and card, 10**9 bytes per second; None when generation or width is unknown."""
    lane = _PCIE_LANE_GB_S.get(generation or 0)
    return round(lane * lanes, 1) if lane and lanes else None


def row_gpu(row: GpuRow, *, index: int, name: str, uuid: str | None, total_bytes: int, free_bytes: int) -> Gpu:
    """A card whose speed comes from the catalogue; its memory from the caller, bytes."""
    assert row.compute_capability is not None  # the callers refuse other rows
    return Gpu(
        index=index,
        name=name,
        card=row.name,
        uuid=uuid,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        compute_capability=row.compute_capability,
        bf16_native=row.bf16_native,
        flash_attention=row.flash_attention,
        tflops_16bit=row.tflops_16bit,
        bandwidth_gb_s=row.bandwidth_gb_s,
        pcie_gb_s=pcie_gb_s(row.pcie_gen, row.pcie_lanes),
        source=row.source,
    )


def assumed_links(row: GpuRow, count: int) -> tuple[Links, float | None]:
    """How cards of one kind are usually joined, and one card's one-direction rate, 10**9 bytes per second.

    NVLink only where a switch or mesh joins all cards; bridges join pairs and are sold apart, so not assumed.
    GeForce and TITAN drivers refuse peer-to-peer over PCIe: traffic goes through host memory.
    """
    if count == 1:
        return "none", None
    if "NVSwitch" in row.p2p or row.p2p.startswith(("NVLink +", "NVLink 72", "NVLink-C2C")):
        return "nvlink", row.nvlink_gb_s / 2
    consumer = row.name.startswith(("GeForce", "TITAN"))
    return "nop2p" if consumer else "pcie", pcie_gb_s(row.pcie_gen, row.pcie_lanes)
