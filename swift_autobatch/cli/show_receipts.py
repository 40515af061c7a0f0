"""What people read of receipts: the list, and one with planned beside measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swift_autobatch import history
from swift_autobatch.cli import text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.units import show_gib, show_seconds

Receipt = Mapping[str, Any]


def listed(found: Sequence[tuple[Path, Receipt]], *, columns: int | None = None) -> list[str]:
    """One line a receipt, under its class of machine."""
    columns = columns or text.width()
    if not found:
        return text.wrapped("no receipts yet: autoswift dry-run leaves one", columns, "", "")
    classes = dict.fromkeys(one["machine_class"] for _, one in found)
    parts = [section(name, _table([pair for pair in found if pair[1]["machine_class"] == name])) for name in classes]
    note = "memory and step: measured over predicted; autoswift receipts show NAME"
    return joined([*parts, text.wrapped(note, columns, "", "")])


def _table(found: Sequence[tuple[Path, Receipt]]) -> list[str]:
    body = []
    for path, one in found:
        ratio = history.seen(one)
        body.append([path.stem, one["strategy"], outcome(one), _share(ratio.memory), _share(ratio.step)])
    return text.table(["name", "strategy", "outcome", "memory", "step"], body)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def outcome(receipt: Receipt) -> str:
    """The last thing that is known of the job, in one or two words."""
    training = receipt.get("training")
    if training is None:
        return f"dry run {receipt['verdict']}"
    if training["done"]:
        return "trained"
    return str(training["reason"]["code"])


def shown(
    receipt: Receipt, changed: Sequence[tuple[str, str | None, str | None]], *, columns: int | None = None
) -> list[str]:
    """A receipt whole: what it was, what it came to, predicted beside measured, the versions."""
    columns = columns or text.width()
    training = receipt.get("training")
    pairs = [
        ("written", receipt["written"]),
        ("model", receipt["model"]),
        ("machine", receipt["machine_class"]),
        ("strategy", receipt["strategy"]),
        ("dry run", f"{receipt['verdict']}: {receipt['reason']['text']}"),
        *([] if training is None else [("training", _training(training))]),
        ("files", receipt["folder"]),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(receipt["versions"].items()))
    drifted = [f"no longer the same here: {history.drift_text(changed)}"] if changed else []
    return joined(
        [
            text.rows(pairs, columns),
            section("Predicted and measured", _phases(receipt)),
            section("Died and gone on from", text.bullets(_died(training or {}), columns)),
            section("Versions", text.wrapped(versions, columns) + text.bullets(drifted, columns)),
        ]
    )


def _training(training: Mapping[str, Any]) -> str:
    if not training["done"]:
        return f"{training['reason']['code']}: {training['reason']['text']}"
    return f"{training['steps']} steps in {show_seconds(training['seconds'])}, {training['checkpoint'] or 'not saved'}"


def _died(training: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['text']}; from {Path(one['checkpoint']).name if one['checkpoint'] else 'the start'} with batch "
        + " x ".join(str(number) for number in one["batch"])
        for one in training.get("died", [])
    ]


def _phases(receipt: Receipt) -> list[str]:
    """A device's peak by phase; on CPU the device is the host."""
    predicted = receipt["predicted"]["phases"]
    on_cpu = "cpu-" in receipt["machine_class"]
    body = []
    for who, found in (("dry run", receipt.get("measured")), ("training", receipt.get("training"))):
        for name, phase in ((found or {}).get("phases") or {}).items():
            wanted = predicted.get(name, {})
            planned = wanted.get("host_bytes" if on_cpu else "gpu_bytes")
            measured = phase.get("rss_sum_bytes" if on_cpu else "gpu_reserved_bytes")
            body.append(
                [
                    f"{who}, {name.replace('_', ' ')}",
                    "-" if planned is None else show_gib(planned),
                    "-" if measured is None else show_gib(measured),
                    show_seconds(phase["step_s"]) if phase.get("step_s") is not None else "-",
                ]
            )
    head = ["phase", "RAM, all ranks" if on_cpu else "a card", "measured", "time"]
    return text.table(head, body) if body else []
