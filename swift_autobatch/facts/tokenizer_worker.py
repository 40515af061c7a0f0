"""Reads a tokenizer in a process of its own: loading one takes memory that is never given back."""

from __future__ import annotations

from collections.abc import Callable

from swift_autobatch.facts.counters import Means, prepare
from swift_autobatch.records import Environment, ModelFacts

Task = tuple[ModelFacts, Environment]


def handler(_: None) -> Callable[[Task], Means]:
    """What ``workers.py`` asks for: a function from task to answer."""
    return lambda task: prepare(*task)
