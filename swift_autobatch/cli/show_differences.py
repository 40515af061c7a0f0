"""What people read on stdout of ``recipes diff``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from swift_autobatch.cli import text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.differences import Difference, Side
from swift_autobatch.units import show_gib, show_seconds


def differences(found: Difference) -> list[str]:
    """The two names, then what they set otherwise, then what each needs."""
    columns = text.width()
    changed: list[str] = []
    for name, here, there in found.settings:
        words = f"{name}: {_said(here)} | {_said(there)}"
        changed += text.wrapped(words, columns, "      ", "  ")
    return joined(
        [
            text.wrapped(f"{found.one.path} ({found.one.kind}) | {found.other.path} ({found.other.kind})", columns),
            section("Set otherwise", changed or ["  nothing"]),
            section(
                "Needs",
                [line for row in _needs(found.one, found.other) for line in text.wrapped(row, columns, "    ", "  ")],
            ),
        ]
    )


def _said(value: str | None) -> str:
    return "(not set)" if value is None else value or "''"


def _needs(one: Side, other: Side) -> list[str]:
    rows = [f"figures: {one.why} | {other.why}"]
    if one.machine_class or other.machine_class:
        rows.append(f"machine class: {one.machine_class or 'unknown'} | {other.machine_class or 'unknown'}")
    for name, here, there, shown in (
        ("a device", one.device_bytes, other.device_bytes, show_gib),
        ("the host", one.host_bytes, other.host_bytes, show_gib),
        ("a step", one.step_s, other.step_s, show_seconds),
    ):
        if here is None and there is None:
            continue
        sides = " | ".join("unknown" if value is None else shown(value) for value in (here, there))
        ratio = f" ({there / here:.2f} x)" if here and there else ""
        rows.append(f"{name}: {sides}{ratio}")
    return rows


def as_json(found: Difference) -> dict[str, Any]:
    """``autoswift.recipes-diff/1``: bytes and seconds as they are."""
    settings = [{"name": name, "one": here, "other": there} for name, here, there in found.settings]
    return {
        "schema": "autoswift.recipes-diff/1",
        "one": asdict(found.one),
        "other": asdict(found.other),
        "settings": settings,
    }
