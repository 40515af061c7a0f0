"""run.sh: the whole job as a person would write it; runs without autoswift."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from swift_autobatch.records import Plan

_PLACEHOLDERS = ("$ROOT", "$RUN", "$HOME")
_FREE_PORT = "python3 -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])'"


def script(plan: Plan, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """The shell script of a plan: comments, environment, one flag a line."""
    candidate = plan.candidate
    lines = [
        "#!/usr/bin/env bash",
        f"# {plan.facts.model.id}: {candidate.tuner}, strategy {candidate.strategy}, for {plan.machine_class}.",
        f"# Effective batch {candidate.effective_batch} = {candidate.micro_batch} a device x {candidate.dp} ranks"
        f" x {candidate.accumulation} accumulation. Plan {plan.digest[:8]}.",
        "# Written by autoswift; needs ms-swift 4.6 only. Start it in the project folder, or set ROOT.",
        "set -euo pipefail",
        'RUN="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"',
        'ROOT="${ROOT:-$PWD}"',
        "export RUN ROOT",
        *_must_exist(argv),
        "",
        *(() if "NPROC_PER_NODE" in env else ("unset NPROC_PER_NODE NNODES  # one process, without torchrun",)),
        *(f"export {name}={_value(name, value)}" for name, value in env.items()),
        "",
        'cd "$ROOT"',
        "exec swift sft \\",
        " \\\n".join(f"    {line}" for line in _flags(argv)),
    ]
    return "\n".join(lines) + "\n"


def _must_exist(argv: Sequence[str]) -> list[str]:
    paths = sorted({value.split("#")[0] for value in argv if value.startswith("$ROOT/")})
    return [
        f'[ -e {_quote(path)} ] || {{ echo "{path} is not there: start this in the project folder" >&2; exit 2; }}'
        for path in paths
    ]


def _flags(argv: Sequence[str]) -> list[str]:
    """One line per flag with its values."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += " " + _quote(word)
    return lines


def _value(name: str, value: str) -> str:
    if name == "MASTER_PORT" and value == "${MASTER_PORT:-free}":
        return f'"${{MASTER_PORT:-$({_FREE_PORT})}}"'
    if value.startswith("${" + name + ":-") and value.endswith("}"):
        return f'"{value}"'
    return _quote(value)


def _quote(word: str) -> str:
    for name in _PLACEHOLDERS:
        if word == name:
            return f'"{name}"'
        if word.startswith(name + "/"):
            return f'"{name}"/' + shlex.quote(word[len(name) + 1 :])
    return shlex.quote(word)
