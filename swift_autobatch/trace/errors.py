"""Why a trace was not made."""

from __future__ import annotations


class CannotTrace(Exception):
    """The trace cannot answer for this model or variant; one sentence says why, and the closed form answers."""
