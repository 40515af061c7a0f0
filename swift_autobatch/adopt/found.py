"""What reading somebody else's file yields: a job in the engine's flags of today, and what was odd about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["error", "warn", "note"]
Kind = Literal[
    "shell script", "ms-swift YAML", "DeepSpeed JSON", "LLaMA-Factory YAML", "axolotl YAML", "project recipe"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark on one line. error: it would not run, or not as written; warn: it surprises; note: renamed."""

    level: Level
    line: int
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value with the line it stands on."""

    words: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the engine as it stands: before names are brought up to date."""

    verb: str  # sft, pt, rlhf ...
    line: int
    flags: Mapping[str, Setting]
    env: Mapping[str, Setting] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    as_meant: bool = False  # the shell would cut it short; read with the flags that it would lose


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A job read from a file, in flags of the engine of today. ``nproc`` is None where nobody says."""

    kind: Kind
    path: str
    line: int  # where the job starts
    flags: Mapping[str, Setting]
    env: Mapping[str, Setting]
    nproc: int | None
    findings: tuple[Finding, ...]
    as_meant: bool = False  # see Call
