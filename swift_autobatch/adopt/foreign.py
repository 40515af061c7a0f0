"""Translates the YAML of LLaMA-Factory and axolotl into the engine's flags, by one table for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from swift_autobatch.adopt.found import Finding, Setting

_TABLES = Path(__file__).parent.parent / "data" / "adopt"
FORMATS = ("llamafactory", "axolotl")
_STAGE = re.compile(r"(?:zero|z)_?([0123])", re.IGNORECASE)


@cache
def table(name: str) -> Mapping[str, Any]:
    """The translation table of one format."""
    rows: Mapping[str, Any] = yaml.safe_load((_TABLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return rows


def format_of(document: Mapping[str, Any]) -> str | None:
    """Which trainer a YAML is written for; None: neither."""
    for name in FORMATS:
        keys = table(name)["recognised_by"]
        if keys[0] in document and any(key in document for key in keys[1:]):
            return name
    return None


def translate(
    document: Mapping[str, Any], lines: Mapping[str, int], name: str
) -> tuple[dict[str, Setting], tuple[Finding, ...]]:
    """The document's keys as flags of the engine.

    Args:
        document: the YAML as read.
        lines: the line of each top-level key.
        name: one of ``FORMATS``.
    """
    flags: dict[str, Setting] = {}
    findings: list[Finding] = []
    keys = table(name)["keys"]
    for key, value in document.items():
        line = lines.get(key, 1)
        row = keys.get(key)
        if row is None:
            text = f"{key} has no counterpart here and is left out"
            findings.append(Finding(level="warn", line=line, text=text, fix="check whether the job needs it"))
            continue
        if "drop" in row:
            findings.append(Finding(level="note", line=line, text=f"{key} is left out: {row['drop']}"))
            continue
        for flag, words in _translated(key, value, row, line, flags, findings):
            flags[flag] = Setting(words=words, line=line)
    return flags, tuple(findings)


def _translated(
    key: str,
    value: Any,
    row: Mapping[str, Any],
    line: int,
    flags: Mapping[str, Setting],
    findings: list[Finding],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    text = _text(value)
    if "suffix_of" in row and row["suffix_of"] in flags:
        names = flags[row["suffix_of"]].words
        yield row["suffix_of"], tuple(f"{name}#{text}" for name in names)
        return
    if "paths_of" in row:
        found = [str(one[row["paths_of"]]) for one in value or () if isinstance(one, dict) and row["paths_of"] in one]
        if found:
            yield row["to"], tuple(found)
        return
    if text in row.get("cases", {}):
        for flag, word in row["cases"][text].items():
            yield flag, (str(word),)
        return
    if "otherwise" in row or "to" not in row:
        why = row.get("otherwise", f"{key}: {text} is not known here")
        findings.append(Finding(level="error", line=line, text=f"{key}: {text}: {why}"))
        return
    if value is None:
        return
    if row.get("deepspeed_file"):
        yield row["to"], (_preset(text, line, findings),)
        return
    yield row["to"], _words(value, row)


def _words(value: Any, row: Mapping[str, Any]) -> tuple[str, ...]:
    values = row.get("values", {})
    parts = value if isinstance(value, list) else [value]
    if row.get("split"):
        parts = [piece for part in parts for piece in _text(part).split(row["split"])]
    translated = [values.get(_text(part).strip(), _text(part).strip()) for part in parts]
    return tuple(str(word) for word in translated if word not in (None, ""))


def _preset(path: str, line: int, findings: list[Finding]) -> str:
    """The engine's own preset for another trainer's DeepSpeed file, told by its name: ds_z3_offload_config.json."""
    stage = _STAGE.search(Path(path).name)
    if stage is None:
        return path
    offload = "offload" in path.lower() or "cpu" in path.lower()
    preset = f"zero{stage[1]}" + ("_offload" if offload and stage[1] in "23" else "")
    text = f"deepspeed {path} is taken for ms-swift's own {preset}"
    findings.append(Finding(level="note", line=line, text=text, fix="--deepspeed FILE keeps the file itself"))
    return preset


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
