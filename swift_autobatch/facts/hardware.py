"""What this machine has: the cards a run would see, how they are joined, and the host around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swift_autobatch.errors import MachineError, UsageError
from swift_autobatch.facts import driver
from swift_autobatch.facts.cards import match_card, speed_of
from swift_autobatch.facts.driver import DriverCard, DriverView
from swift_autobatch.facts.host import read_host
from swift_autobatch.interconnect import Links, pcie_gb_s
from swift_autobatch.records import Environment, Gpu, Host, Machine, Software
from swift_autobatch.tables import GpuRow

_NVLINK_GB_S = 25.0  # one link, one direction, NVLink 2 to 4; source: NVIDIA V100, A100, H100 whitepapers


def read_machine(
    env: Environment,
    software: Software,
    nproc: int | None,
    *,
    read_view: Callable[[], DriverView | None] = driver.read_view,
    root: Path = Path("/"),
) -> Machine:
    """The cards that CUDA_VISIBLE_DEVICES leaves, their links, and the host.

    Args:
        env: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are honoured; ``cwd`` decides which disk is measured.
        software: as ``read_software`` found it.
        nproc: ranks the user asked for; None: one a visible card, or one on a machine without cards.
        read_view: what the driver says; tests replay a recorded machine.
        root: where /proc and /sys are; tests replay recorded trees.

    Raises:
        UsageError: more ranks than visible cards, or fewer than one.
        MachineError: a MIG slice is selected, or the driver is broken.
    """
    wanted = env.variables.get("CUDA_VISIBLE_DEVICES")
    view = read_view()
    if view is not None and view.problem is not None and wanted not in ("", "-1"):
        raise _broken(view.problem)
    cards = visible_cards(view.cards if view else (), wanted)
    used = _first(cards, nproc, wanted)
    described = [_describe(card) for card in used]
    links, link_gb_s = _links(view, used, [one.row for one in described])
    host = read_host(env, root)
    return Machine(
        gpus=tuple(one.gpu for one in described),
        links=links,
        link_gb_s=link_gb_s,
        host=host,
        software=software,
        visible_devices=wanted,
        processes=len(used) or nproc or 1,
        assumed=_assumptions(env, view, described, links, host),
    )


# -------------------------------------------------------------------------------------- CUDA_VISIBLE_DEVICES


def visible_cards(cards: Sequence[DriverCard], wanted: str | None) -> tuple[DriverCard, ...]:
    """The cards a CUDA process sees, in its order.

    Args:
        cards: all cards of the machine.
        wanted: CUDA_VISIBLE_DEVICES; None: unset, all cards. Empty or -1: none. Indices or UUID prefixes; the
            first one that is unknown or ambiguous hides itself and all that follow; one given twice hides all.

    Raises:
        MachineError: a MIG slice.

    Source: CUDA C++ Programming Guide, environment variables; torch/cuda/__init__.py _parse_visible_devices.
    """
    if wanted is None:
        return tuple(cards)
    if wanted.startswith("MIG-"):
        raise _mig("CUDA_VISIBLE_DEVICES names a MIG slice")
    by_uuid = wanted.startswith("GPU-")
    words = wanted.split(",") if by_uuid else [_leading_number(word) for word in wanted.split(",")]
    words = list(itertools.takewhile(lambda word: word.startswith("GPU-") == by_uuid and word != "", words))
    if len(set(words)) < len(words):
        return ()
    found: list[DriverCard] = []
    for word in words:
        hits = [card for card in cards if (card.uuid.startswith(word) if by_uuid else card.index == int(word))]
        if len(hits) != 1:
            break
        if hits[0] in found:
            return ()
        found.append(hits[0])
    return tuple(found)


def _leading_number(word: str) -> str:
    """A card's index as C's strtoul reads it: leading digits count, the rest is ignored; empty for none or below 0."""
    digits = "".join(itertools.takewhile(str.isdecimal, word.strip().removeprefix("+")))
    return str(int(digits)) if digits.isascii() and digits else ""


def limit(machine: Machine, nproc: int | None) -> Machine:
    """A described machine (a file, the catalogue) with ``nproc`` ranks: its first cards, or CPU processes.

    Raises:
        UsageError: more ranks than it has cards.
    """
    if nproc is None or nproc == machine.processes:
        return machine
    if machine.gpus and nproc > len(machine.gpus):
        raise UsageError(
            f"{nproc} processes need {nproc} GPUs and the machine to plan for has {len(machine.gpus)}",
            where="--nproc",
            hints=(f"--nproc {len(machine.gpus)} or less", "drop --nproc to use every card"),
        )
    alone = nproc == 1 or not machine.gpus
    return replace(
        machine,
        gpus=machine.gpus[:nproc],
        processes=nproc,
        links="none" if alone else machine.links,
        link_gb_s=None if alone else machine.link_gb_s,
    )


def _first(cards: Sequence[DriverCard], nproc: int | None, wanted: str | None) -> tuple[DriverCard, ...]:
    """The cards a run of ``nproc`` ranks uses: one a rank, the first ones."""
    if nproc is not None and nproc < 1:
        raise UsageError(f"{nproc} processes cannot train", where="NPROC_PER_NODE", hints=("ask for 1 or more",))
    if cards and nproc is not None and nproc > len(cards):
        seen = f"CUDA_VISIBLE_DEVICES={wanted} leaves" if wanted is not None else "this machine has"
        raise UsageError(
            f"{nproc} processes need {nproc} GPUs and {seen} {len(cards)}",
            where="NPROC_PER_NODE",
            hints=(f"ask for {len(cards)} or leave it out",)
            + (("name more cards in CUDA_VISIBLE_DEVICES",) if wanted is not None else ()),
        )
    chosen = tuple(cards[:nproc])
    for card in chosen:
        if card.mig:
            raise _mig(f"GPU {card.index} ({card.name}) is split into MIG slices")
    return chosen


def _mig(what: str) -> MachineError:
    return MachineError(
        f"{what}, and autoswift plans for whole cards only",
        where="CUDA_VISIBLE_DEVICES",
        hints=(
            "select a card that is not split: CUDA_VISIBLE_DEVICES=<index>",
            "or plan for the slice with --hardware FILE: autoswift env --json on any machine, its memory edited",
        ),
    )


def _broken(problem: str) -> MachineError:
    return MachineError(
        f"the NVIDIA driver is installed and does not answer: {problem}",
        where="NVML",
        hints=("run nvidia-smi: it must list the cards first", "or plan for another machine: --gpus 1x4090"),
    )


# ----------------------------------------------------------------------------------------------------- cards


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    gpu: Gpu
    row: GpuRow | None
    assumed: str


def _describe(card: DriverCard) -> _Described:
    """A card with the catalogue's speed where it is known, None where it is not."""
    row, assumed = match_card(card.name, card.total_bytes)
    recent = card.compute_capability >= (8, 0)  # Ampere: bfloat16 units, FlashAttention 2
    gpu = Gpu(
        index=card.index,
        name=card.name,
        card=row.name if row else None,
        uuid=card.uuid,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        compute_capability=card.compute_capability,
        bf16_native=row.bf16_native if row else recent,
        flash_attention=row.flash_attention if row else recent,
        tflops_16bit=row.tflops_16bit if row else None,
        bandwidth_gb_s=row.bandwidth_gb_s if row else None,
        pcie_gb_s=_pcie(card, row),
        source=f"NVML; {row.source}" if row else "NVML; not in gpus.jsonl",
    )
    return _Described(gpu=gpu, row=row, assumed=assumed)


def _pcie(card: DriverCard, row: GpuRow | None) -> float | None:
    """The slot as the driver sees it (a x8 riser halves it), else the card's own."""
    return pcie_gb_s(card.pcie_gen, card.pcie_lanes) or (pcie_gb_s(row.pcie_gen, row.pcie_lanes) if row else None)


# ----------------------------------------------------------------------------------------------------- links


def _links(
    view: DriverView | None, used: Sequence[DriverCard], rows: Sequence[GpuRow | None]
) -> tuple[Links, float | None]:
    """The weakest link between any two cards, and one card's one-direction rate over it, 10**9 bytes per second.

    A ring is as fast as its slowest pair: NVLink bridges that join pairs of four cards make it PCIe.
    """
    if view is None or len(used) < 2:
        return "none", None
    indices = sorted(card.index for card in used)
    kinds = {view.links.get(pair, "nop2p") for pair in itertools.combinations(indices, 2)}
    if kinds == {"nvlink"}:
        rates = [_nvlink(card, row) for card, row in zip(used, rows, strict=True)]
        return "nvlink", min((rate for rate in rates if rate), default=None)
    rates = [_pcie(card, row) for card, row in zip(used, rows, strict=True)]
    known = [rate for rate in rates if rate is not None]
    return "nop2p" if "nop2p" in kinds else "pcie", min(known) if len(known) == len(used) else None


def _nvlink(card: DriverCard, row: GpuRow | None) -> float | None:
    """The catalogue's figure (both directions) halved; for unknown cards the active links at 25 GB/s each."""
    return row.nvlink_gb_s / 2 if row and row.nvlink_gb_s else card.nvlinks * _NVLINK_GB_S or None


# ----------------------------------------------------------------------------------------------- assumptions


def _assumptions(
    env: Environment, view: DriverView | None, described: Sequence[_Described], links: Links, host: Host
) -> tuple[str, ...]:
    lines = list(dict.fromkeys(one.assumed for one in described if one.assumed))
    for row in {one.row.name: one.row for one in described if one.row}.values():
        if row.confidence != "high":
            lines.append(f"the speed of {row.name} is of {row.confidence} confidence ({row.source})")
    if links == "nvlink" and any(one.row is None for one in described):
        lines.append(f"NVLink at {_NVLINK_GB_S:.0f} GB/s a link in one direction")
    lines.extend(_order(env, view))
    lines.append(f"host speed: {speed_of(host)}")
    return tuple(lines)


def _order(env: Environment, view: DriverView | None) -> list[str]:
    """Different cards: CUDA counts the fastest first, the driver by bus, so that index 0 may be another card."""
    indexed = not env.variables.get("CUDA_VISIBLE_DEVICES", "0").startswith("GPU-")
    if view is None or len({card.name for card in view.cards}) < 2 or not indexed:
        return []
    if env.variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    return ["GPU indices count in bus order; CUDA counts the fastest card first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"]
