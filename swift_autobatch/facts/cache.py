"""Keeps what was found out about large data, so that the second plan is instant.

The quick key is each file's path, size, time of change and inode, together with everything else that the answer
depends on: the tokenizer's file, the template, the flags that change rows, and this version. A file whose time of
change moved although its content did not is digested (about a second per gigabyte) and found by its sha256.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from swift_autobatch.facts.card import load_facts
from swift_autobatch.records import DataFacts

_FORM = 1  # raised when what is kept, or how rows are judged, changes
_CHUNK = 1 << 20


class Cache:
    """The answers to one question about some files."""

    def __init__(self, folder: Path, files: Sequence[Path], question: Mapping[str, Any]) -> None:
        """``question``: whatever else the answer depends on, JSON-ready."""
        self._folder = folder / "datasets"
        self._files = files
        self._question = {**question, "form": _FORM, "version": version("swift-autobatch")}

    def find(self) -> DataFacts | None:
        """The kept answer; None where there is none that surely still holds."""
        quick = self._path("quick", [_stamp(file) for file in self._files])
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            if quick.is_file():
                return self._load(quick.read_text())
            if any(self._folder.glob("content-*")):
                name = self._content(_digest(self._files)).name
                found = self._load(name)
                self._write(quick, name)
                return found
        return None

    def keep(self, data: DataFacts) -> None:
        """Keeps an answer; a cache that cannot be written is no error."""
        content = self._content(data.digest)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(content, json.dumps(asdict(data), ensure_ascii=False))
            self._write(self._path("quick", [_stamp(file) for file in self._files]), content.name)

    def _load(self, name: str) -> DataFacts:
        return load_facts(json.loads((self._folder / name).read_text(encoding="utf-8")))

    def _content(self, digest: str) -> Path:
        return self._path("content", [digest, *map(str, self._files)])

    def _path(self, kind: str, parts: list[Any]) -> Path:
        key = json.dumps([parts, self._question], sort_keys=True, default=str)
        return self._folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    @staticmethod
    def _write(path: Path, text: str) -> None:
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)


def stamp_of(file: Path | None) -> list[Any]:
    """A file as the quick key knows it; [] for none."""
    return _stamp(file) if file else []


def _stamp(file: Path) -> list[Any]:
    found = file.stat()
    return [str(file), found.st_size, found.st_mtime_ns, found.st_ino]


def _digest(files: Sequence[Path]) -> str:
    """The digest of :class:`DataFacts`: sha256 over the files' bytes, in their order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
