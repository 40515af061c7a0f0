"""Reads a tokenizer in a process of its own: loading one takes memory that is never given back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swift_autobatch.facts.tokens import Spec, prepare
from swift_autobatch.records import ModelFacts

Task = tuple[Path, ModelFacts, Path]  # tokenizer.json, model, cache folder


def handler(_: None) -> Callable[[Task], Spec]:
    """What ``workers.py`` asks for: a function from task to answer."""
    return lambda task: prepare(*task)
