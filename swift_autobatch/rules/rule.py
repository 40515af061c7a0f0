"""What a rule is: the condition, why it holds, the smallest edit that satisfies it, and the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from swift_autobatch.records import Candidate, Facts, Machine, Sourced
from swift_autobatch.tables import dialect

Value = str | tuple[str, ...]
Kind = Literal["engine", "hardware", "software", "data", "planner"]


@dataclass(frozen=True, slots=True)
class Cite:
    """A line of an installed package: a test holds that ``says`` still stands within three lines of it."""

    path: str  # below site-packages
    line: int
    says: str


@dataclass(frozen=True, slots=True)
class Flags:
    """The engine flags that a person pinned; what is not pinned has the engine's default."""

    pins: Mapping[str, Sourced[Value]] = field(default_factory=dict)

    def has(self, flag: str) -> bool:
        """Whether the flag was given."""
        return flag in self.pins

    def text(self, flag: str) -> str:
        """The value as text, the engine's default where it was not given; several values joined by blanks."""
        if flag in self.pins:
            value = self.pins[flag].value
            return value if isinstance(value, str) else " ".join(value)
        row = dialect().flags.get(flag)
        default = row.default if row is not None else None
        if isinstance(default, list):
            return " ".join(map(str, default))
        return str(default).lower() if isinstance(default, bool) else "" if default is None else str(default)

    def on(self, flag: str) -> bool:
        """Whether a boolean flag is true."""
        return self.text(flag).lower() in ("true", "1", "yes")

    def off(self, flag: str) -> bool:
        """Whether a boolean flag was given as false."""
        return self.has(flag) and not self.on(flag)

    def number(self, flag: str) -> float | None:
        """The value as a number; None where it is none."""
        try:
            return float(self.text(flag))
        except ValueError:
            return None


When = Callable[[Candidate, Facts, Flags], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition that makes a candidate illegal. ``proof`` is words where no line and no run can be given."""

    id: str
    kind: Kind = "engine"
    about: tuple[str, ...]  # flags that can break it, those first that are given up last
    when: When  # True: the candidate breaks this rule
    why: str
    fix: str  # the smallest edit, as flags
    cites: tuple[Cite, ...] = ()
    reproduced: str = ""  # the case of tests/test_rules_engine.py that shows the engine's behaviour
    proof: str = ""

    def proofs(self) -> tuple[str, ...]:
        """The proofs in words."""
        lines = tuple(f"`{cite.path}:{cite.line}` {cite.says!r}" for cite in self.cites)
        ran = (f"reproduced with the engine: {self.reproduced}",) if self.reproduced else ()
        return (*lines, *ran, *((self.proof,) if self.proof else ()))


# ---------------------------------------------------------------------- what a machine has, for rules and the doctor


def lacks(machine: Machine, distribution: str) -> bool:
    """Whether a package is known to be absent."""
    return machine.software.versions.get(distribution) is None


def read_here(machine: Machine) -> bool:
    """Software rules bind on a machine whose software was read, not on an assumed one."""
    return not machine.source.startswith("assumed")


def without_bf16(machine: Machine) -> str | None:
    """The first card that only emulates bf16. By compute capability: torch's is_bf16_supported() says yes to all."""
    return next((gpu.name for gpu in machine.gpus if not gpu.bf16_native), None)


def without_flash(machine: Machine) -> str | None:
    """The first card that FlashAttention 2 has no kernels for."""
    return next((gpu.name for gpu in machine.gpus if not gpu.flash_attention), None)


def cannot_compile_offload(machine: Machine) -> str | None:
    """What DeepSpeed's CPU optimizer cannot be compiled without; None: nothing is missing."""
    if machine.software.compiler is None:
        return "a C++ compiler"
    return "nvcc" if machine.gpus and machine.software.nvcc is None else None
