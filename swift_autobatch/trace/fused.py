"""Liger's fused kernels as stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swift_autobatch.records import FootprintKey
from swift_autobatch.trace.errors import CannotTrace


@contextmanager
def liger(model: Any, key: FootprintKey, notes: set[str]) -> Iterator[None]:
    """Puts Liger's kernels into a model where the key asks for them."""
    if key.loss == "liger_fused":
        raise CannotTrace("Liger kernels are not traced yet")
    yield
