"""The processes that count: what goes wrong in one is said, and nothing waits for ever."""

from __future__ import annotations

import sys
from types import MappingProxyType

import pytest

from swift_autobatch.errors import MachineError
from swift_autobatch.workers import Workers


def workers(variables: dict[str, str] | None = None, interpreter: str = sys.executable) -> Workers:
    return Workers(
        "swift_autobatch.facts.tokenizer_worker", None, count=1, interpreter=interpreter, variables=variables or {}
    )


def test_a_task_that_cannot_be_sent_is_an_error() -> None:
    with workers() as started, pytest.raises(TypeError, match="pickle"):
        list(started.map([MappingProxyType({"a": "b"})]))


def test_a_task_that_fails_is_an_error_with_its_reason() -> None:
    with workers() as started, pytest.raises(RuntimeError, match="TypeError: prepare"):
        list(started.map(["not a pair"]))


def test_a_process_that_does_not_start_is_an_error() -> None:
    with workers(interpreter="/bin/false") as started, pytest.raises(MachineError, match="ended by itself"):
        list(started.map([("a", "b")]))
