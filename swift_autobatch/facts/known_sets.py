"""What ms-swift knows of a dataset by its name alone: columns that it renames, or code of its own that reads the rows.

The engine knows a set by its hub id, and a folder by its last name, wherever it lies.

Source: ms-swift 4.6 swift/dataset/data/dataset_info.json, swift/dataset/dataset/{llm,mllm}.py, dataset_syntax.py
``get_dataset_name`` and ``_get_matched_dataset_meta``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

_SNAPSHOT = re.compile(r"/datasets--.+?--(.+?)/snapshots/")
_ID = re.compile(r"(?:ms|hf)_dataset_id\s*=\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """``columns``: renamed before the rows are read. ``own_code``: only the engine itself can read the rows exactly."""

    columns: Mapping[str, str] = field(default_factory=dict)
    own_code: bool = False


def known(name: str) -> Known:
    """What the engine does to a dataset of this id or folder; nothing where it is not installed."""
    columns, coded = _sets()
    short = _short(name)
    return Known(columns=columns.get(short, {}), own_code=short in coded and short not in columns)


def _short(name: str) -> str:
    match = _SNAPSHOT.search(name)
    return match[1] if match else PurePath(name.rstrip("/")).name


@lru_cache(maxsize=1)
def _sets() -> tuple[Mapping[str, Mapping[str, str]], frozenset[str]]:
    """Short name -> columns, and the short names of sets with code of their own."""
    spec = find_spec("swift")  # the package is found, not imported
    if spec is None or not spec.origin:
        return {}, frozenset()
    folder = Path(spec.origin).parent / "dataset"
    try:
        entries: list[dict[str, Any]] = json.loads((folder / "data" / "dataset_info.json").read_text("utf-8"))
        code = "".join(path.read_text("utf-8") for path in sorted((folder / "dataset").glob("*.py")))
    except (OSError, ValueError):
        return {}, frozenset()
    columns = {
        _short(entry[hub]): entry.get("columns", {})
        for entry in entries
        for hub in ("ms_dataset_id", "hf_dataset_id")
        if entry.get(hub)
    }
    return columns, frozenset(_short(name) for name in _ID.findall(code))
