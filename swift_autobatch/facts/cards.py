"""Which row of the catalogue a card is, by the driver's name or by what a person types; assumed machines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from swift_autobatch.errors import UsageError
from swift_autobatch.facts.host import GFLOPS_PER_CORE, MEMORY_GB_S
from swift_autobatch.interconnect import MOST_CARDS, Links, assumed_links, row_gpu
from swift_autobatch.records import Host, Machine, Software, replace
from swift_autobatch.tables import GpuRow, gpus, near
from swift_autobatch.units import MIB, from_gib, gib, show_gib

_TOLERANCE = 0.03  # ECC and driver versions move the reported size by up to 2 %

RAM_PER_CARD_GIB = 64  # of an assumed machine
CORES_PER_CARD = 8
RESERVE_BYTES = 512 * MIB  # of an assumed card: what the driver keeps when the card is idle


# ------------------------------------------------------------------------------------------ by driver's name


def match_card(name: str, total_bytes: int) -> tuple[GpuRow | None, str]:
    """The catalogue row of a card that the driver reports, and what had to be assumed ('' for nothing).

    The name must match exactly (A10 is not A100, 4090 is not 4090 D), then the memory within 3 %. Half or double
    the memory on the same name is the same chip with other memory chips; anything else under that name is
    another chip (RTX 3060 8 GB) and unknown.
    """
    wanted = _bare(name)
    rows = [row for row in gpus().values() if wanted in {_bare(other) for other in row.smi_names}]
    for row in rows:
        if any(_close(total_bytes, mib * MIB) for mib in (row.memory_mib, *row.memory_mib_alternates)):
            return row, ""
    for row in rows:
        size = row.memory_mib * MIB
        if _close(total_bytes, 2 * size) or _close(total_bytes, size / 2):
            return row, (
                f"{name} reports {show_gib(total_bytes)} where {row.name} has {show_gib(size)}: "
                "its compute rate and bandwidth are assumed to be that card's"
            )
    known = f"as {rows[0].name} has {show_gib(rows[0].memory_mib * MIB)}" if rows else "by that name"
    return None, f"{name} with {show_gib(total_bytes)} is not in the catalogue ({known}): its speed is unknown"


def _bare(name: str) -> str:
    """A driver's name without the vendor, which newer drivers put in front."""
    return re.sub(r"^nvidia\s+", "", name.strip().lower())


def _close(one: float, two: float) -> bool:
    return abs(one - two) <= _TOLERANCE * two


# --------------------------------------------------------------------------------------- by what people type


def find_card(text: str) -> GpuRow:
    """The catalogue row that a person means: ``4090``, ``RTX 4090 D``, ``A100-80G``, ``Tesla V100-SXM2-32GB``.

    Raises:
        UsageError: nothing by that name, or several; the hints name them.
    """
    key = _key(text)
    for row in gpus().values():
        if key in _keys(row):
            return row
    several = [row for row in gpus().values() if key and any(_begins(other, key) for other in _keys(row))]
    if len(several) > 1:
        raise UsageError(
            f"{text!r} could be any of {len(several)} cards",
            where="--gpus",
            hints=tuple(f"{_short(row)}  ({row.name})" for row in several[:8]),
        )
    names = _names()
    alike = [_short(row) for row in several] or _alike(text)
    raise UsageError(
        f"no card named {text!r} in the catalogue",
        where="--gpus",
        hints=(
            f"did you mean {', '.join(alike)}?" if alike else f"for example {', '.join(names[:40:5])}",
            "for any other card describe the machine in a file: autoswift env --json there, then --hardware FILE",
        ),
    )


def _names() -> list[str]:
    return [_short(row) for row in gpus().values() if row.vendor == "nvidia"]


def _alike(text: str) -> list[str]:
    """Short names of cards that are spelled alike, best first."""
    by_key = {_key(name): name for name in _names()}
    return [by_key[key] for key in near(_key(text), list(by_key))]


def _key(name: str) -> str:
    """What is left of a card's name when spelling is taken away: 'NVIDIA RTX 4090 D' and '4090d' are the same."""
    text = re.sub(r"\b(nvidia|geforce|tesla|quadro|gpu)\b", " ", name.lower())
    text = re.sub(r"rtx(?=[\s_-]*\w)", "", text)
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?<=\d)\s*gi?b\b", "g", text))


def _keys(row: GpuRow) -> frozenset[str]:
    return frozenset(_key(name) for name in (row.name, *row.smi_names, *row.aliases))


def _begins(whole: str, start: str) -> bool:
    """``a100`` begins ``a10080g``; ``a10`` does not begin ``a100``: a number is never cut."""
    return whole.startswith(start) and not (start[-1].isdigit() and whole[len(start) : len(start) + 1].isdigit())


def _short(row: GpuRow) -> str:
    return row.aliases[0] if row.aliases else row.name


# ------------------------------------------------------------------------------------------- assumed machine


def assumed_machine(spec: str, software: Software) -> Machine:
    """The machine that ``--gpus`` describes: ``4x4090``, ``2xA100-80G,ram=512``.

    Args:
        spec: ``<n>x<card>[,ram=<GiB>]``, GiB for the whole host.
        software: of this machine; the other is assumed to have the same.

    Raises:
        UsageError: bad syntax, no cards, an unknown or ambiguous card, one that CUDA cannot run.
    """
    count, row, ram_gib = _parse(spec)
    total = row.memory_mib * MIB
    links, link_gb_s = assumed_links(row, count)
    ram = from_gib(ram_gib or RAM_PER_CARD_GIB * count)
    gpu = row_gpu(row, index=0, name=row.name, uuid=None, total_bytes=total, free_bytes=total - RESERVE_BYTES)
    cores = CORES_PER_CARD * count
    host = Host(
        cpu_cores=cores,
        ram_total_bytes=ram,
        ram_budget_bytes=ram,
        ram_source=f"--gpus {spec}" if ram_gib else "assumed",
        shm_bytes=None,
        disk_free_bytes=None,
        gflops=cores * GFLOPS_PER_CORE,
        memory_gb_s=MEMORY_GB_S,
    )
    return Machine(
        gpus=tuple(replace(gpu, index=index) for index in range(count)),
        links=links,
        link_gb_s=link_gb_s,
        host=host,
        software=software,
        visible_devices=None,
        processes=count,
        assumed=_assumptions(row, count, links, link_gb_s, host, ram_given=ram_gib is not None),
        source=f"--gpus {spec}",
    )


def _parse(spec: str) -> tuple[int, GpuRow, float | None]:
    card_text, *options = (part.strip() for part in spec.split(","))
    match = re.fullmatch(r"(\d+)\s*[xX×*]\s*(\S.*)", card_text)
    if match is None:
        known = any(_key(card_text) in _keys(row) for row in gpus().values())
        counted = re.match(r"\W*\d*\s*[x×*]", card_text, re.IGNORECASE)  # the number is what is wrong
        meant = [card_text] if known else [] if counted else _alike(card_text)
        hint = f"write {f'1x{meant[0]}' if meant else '4x4090'}"
        raise UsageError(f"{spec!r} is not <number>x<card>[,ram=<GiB>]", where="--gpus", hints=(hint,))
    count = int(match[1])
    if not 1 <= count <= MOST_CARDS:
        raise UsageError(
            f"{count} cards is outside 1 to {MOST_CARDS}, what one machine holds",
            where="--gpus",
            hints=(f"write {min(max(count, 1), MOST_CARDS)}x{match[2]}",),
        )
    row = find_card(match[2])
    if row.vendor != "nvidia" or row.compute_capability is None:
        raise UsageError(f"{row.name} is not a CUDA card, and autoswift plans for those only", where="--gpus")
    return count, row, _ram(options, f"{count}x{match[2]}")


def _ram(options: Sequence[str], card: str) -> float | None:
    """Host RAM in GiB from the options after the card; None when not given."""
    found: float | None = None
    for option in options:
        match = re.fullmatch(r"ram\s*=\s*(\d+(?:\.\d+)?)\s*(?:g|gb|gib)?", option, re.IGNORECASE)
        if match is not None and found is not None:
            raise UsageError(
                f"ram is given twice, {found:g} and {match[1]} GiB",
                where="--gpus",
                hints=(f"write {card},ram={match[1]}",),
            )
        if match is None or not 1 <= float(match[1]) <= 2**15:
            raise UsageError(
                f"{option!r} is not ram=<GiB>" if match is None else f"{option!r} is outside 1 to 32768 GiB",
                where="--gpus",
                hints=(f"write {card},ram=256",),
            )
        found = float(match[1])
    return found


def _assumptions(
    row: GpuRow, count: int, links: Links, link_gb_s: float | None, host: Host, *, ram_given: bool
) -> tuple[str, ...]:
    joined = {"none": "", "nvlink": "NVLink", "pcie": "PCIe with peer-to-peer", "nop2p": "PCIe without peer-to-peer"}
    lines = [
        f"{count} x {row.name}: {show_gib(row.memory_mib * MIB)} a card, "
        f"{show_gib(RESERVE_BYTES, 1)} of it kept by the driver, the rest free"
    ]
    if row.confidence != "high":
        lines.append(f"the compute rate and bandwidth of {row.name} are of {row.confidence} confidence ({row.source})")
    if link_gb_s is not None:
        lines.append(f"cards joined by {joined[links]}, {link_gb_s:.0f} GB/s a card in one direction")
    if not ram_given:
        lines.append(f"host RAM {gib(host.ram_total_bytes):.0f} GiB ({RAM_PER_CARD_GIB} a card): say ram=GiB if not")
    lines.append(f"{host.cpu_cores} CPU cores ({CORES_PER_CARD} a card), {speed_of(host)}")
    lines.append("software as on this machine; /dev/shm and free disk not checked")
    return tuple(lines)


def speed_of(host: Host) -> str:
    """The host's assumed speed in words."""
    return f"{host.gflops:.0f} GFLOP/s in fp32 and {host.memory_gb_s:.0f} GB/s of host memory"
