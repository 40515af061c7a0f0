"""Looks at a DeepSpeed JSON as ms-swift 4.6 and DeepSpeed 0.19 will read it, and says on which line what is odd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swift_autobatch.adopt.found import Finding
from swift_autobatch.deepspeed_config import faults


def examine(document: Mapping[str, Any], text: str) -> Iterator[Finding]:
    """What of this file would stop, or surprise."""
    for fault in faults(document):
        yield Finding(level=fault.level, line=line_of(text, fault.key), text=fault.text, fix=fault.fix)


def line_of(text: str, key: str) -> int:
    """The 1-based line on which a JSON key first stands."""
    at = text.find(f'"{key}"')
    return text.count("\n", 0, at) + 1 if at >= 0 else 1
