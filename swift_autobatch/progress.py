"""Tells a person what is going on, on stderr only: stage lines always, moving figures only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """What long work reports to. ``stage`` prints one lasting line; ``update`` one line that is rewritten."""

    def stage(self, text: str) -> None: ...

    def update(self, text: str) -> None: ...

    def clear(self) -> None: ...


def bar(share: float, cells: int = 24) -> str:
    """A bar of ``cells`` characters, filled to ``share``."""
    full = round(max(0.0, min(1.0, share)) * cells)
    return "[" + "#" * full + "." * (cells - full) + "]"


class Silent:
    """Reports nothing: the default of the Python API and of tests."""

    def stage(self, text: str) -> None:
        pass

    def update(self, text: str) -> None:
        pass

    def clear(self) -> None:
        pass


class Stderr:
    """Stage lines on stderr; ``update`` rewrites one line, only when stderr is a terminal."""

    def __init__(self, write: Callable[[str], object] | None = None, terminal: bool | None = None) -> None:
        self._write = write or (lambda text: (sys.stderr.write(text), sys.stderr.flush()))
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._moving = False

    def stage(self, text: str) -> None:
        self.clear()
        self._write(text + "\n")

    def update(self, text: str) -> None:
        if self._terminal:
            self._write("\r\x1b[2K" + text[:119])
            self._moving = True

    def clear(self) -> None:
        if self._moving:
            self._write("\r\x1b[2K")
            self._moving = False
