"""What people read on stdout of ``env`` and ``recipes ls``."""

from __future__ import annotations

from collections.abc import Sequence

from swift_autobatch.cli import text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.records import Check, Gpu, Machine, Strategy
from swift_autobatch.units import show_gib

_LINKS = {
    "none": "none: fewer than two cards",
    "nvlink": "NVLink between all cards",
    "pcie": "PCIe, peer-to-peer",
    "nop2p": "PCIe, no peer-to-peer between the cards",
}


def machine(found: Machine, *, verbose: bool = False, columns: int | None = None) -> list[str]:
    """What autoswift sees: devices, links, host, engines."""
    columns = columns or text.width()
    host = found.host
    pairs = [
        ("class", found.machine_class),
        ("seen by", found.source),
        ("links", _LINKS[found.links] + (f", {found.link_gb_s:.0f} GB/s a card each way" if found.link_gb_s else "")),
        ("processes", str(found.processes)),
        ("CPU", f"{host.cpu_cores} cores"),
        (
            "host RAM",
            f"{show_gib(host.ram_budget_bytes)} of {show_gib(host.ram_total_bytes)} usable ({host.ram_source})",
        ),
        ("/dev/shm", show_gib(host.shm_bytes)),
        ("free disk", show_gib(host.disk_free_bytes)),
        ("CUDA_VISIBLE_DEVICES", "unset" if found.visible_devices is None else repr(found.visible_devices)),
    ]
    software = found.software
    tools = [
        ("python", software.python),
        ("driver", software.driver or "none"),
        ("CUDA (driver)", software.cuda_driver or "none"),
        ("C++ compiler", software.compiler or "none"),
        ("nvcc", software.nvcc or "none"),
        *((name, number or "not installed") for name, number in software.versions.items()),
    ]
    return joined(
        [
            ["Machine", *text.rows(pairs, columns)],
            section(
                "Devices",
                [line for gpu in found.gpus for line in _gpu(gpu, columns, verbose)]
                or ["  no accelerator: plans are for the CPU"],
            ),
            ["Software", *text.rows(tools, columns)],
            section("Assumed", text.bullets(found.assumed, columns)),
        ]
    )


def _gpu(gpu: Gpu, columns: int, verbose: bool) -> list[str]:
    major, minor = gpu.compute_capability
    words = [
        f"{gpu.name}: {show_gib(gpu.free_bytes)} free of {show_gib(gpu.total_bytes)}, sm_{major}{minor}",
        "bf16" if gpu.bf16_native else "no native bf16",
        "FlashAttention" if gpu.flash_attention else "no FlashAttention",
        *([f"{gpu.tflops_16bit:.0f} TFLOPS"] if gpu.tflops_16bit else []),
        *([f"{gpu.bandwidth_gb_s:.0f} GB/s"] if gpu.bandwidth_gb_s else []),
        *([f"({gpu.source})"] if verbose else []),
    ]
    return text.wrapped(", ".join(words), columns, indent="     ", first=f"  {gpu.index}  ")


def strategies(table: Sequence[Strategy], *, columns: int | None = None) -> list[str]:
    """The strategy table: name and summary."""
    return text.rows([(row.name, row.summary) for row in table], columns or text.width())


def checks(found: Sequence[Check], *, columns: int | None = None) -> list[str]:
    """The doctor's page: what fails and warns with its fix, then what passes and what was skipped."""
    columns = columns or text.width()
    lines: list[str] = []
    for status in ("fail", "warn", "pass"):
        for check in found:
            if check.status == status:
                lines += text.wrapped(f"{check.id}: {check.text}", columns, "        ", f"  {status:5} ")
                lines += text.wrapped(check.fix, columns, "             ", "        fix: ") if check.fix else []
    skipped = ", ".join(check.id for check in found if check.status == "skipped")
    if skipped:
        lines += text.wrapped(skipped, columns, "          ", "  skipped ")
    counts = {status: sum(check.status == status for check in found) for status in ("pass", "warn", "fail", "skipped")}
    return [*lines, "", ", ".join(f"{count} {status}" for status, count in counts.items())]
