"""Brings flags of older engines up to date, and checks every flag against the engine of today."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from swift_autobatch import engine_flags
from swift_autobatch.adopt.found import Finding, Setting
from swift_autobatch.errors import UsageError
from swift_autobatch.tables import dialect

_TABLE = Path(__file__).parent.parent / "data" / "adopt" / "ms-swift-old.yaml"
_DEFAULT = "left out: it is the default"
_OURS = re.compile(r"^\$RUN(/|$)|^autoswift_telemetry$")  # what autoswift itself added to a run.sh
_SURPRISES: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("quant_bits", "-quant_method"): (
        "--quant_bits without --quant_method is silently ignored: the model trains unquantised",
        "add --quant_method bnb",
    ),
    ("-max_length",): (
        "max_length is left open: it is the model's own limit, and the longest row of the data decides the memory",
        "--max_length, from the lengths of the data: autoswift profile",
    ),
    ("packing", "-attn_impl"): (
        "packing needs FlashAttention and the engine refuses it without --attn_impl flash_attn",
        "add --attn_impl flash_attn",
    ),
    ("use_liger_kernel", "sequence_parallel_size"): (
        "Liger's fused cross-entropy is off under sequence parallel, without a word",
        "drop --use_liger_kernel",
    ),
}


@cache
def renames() -> Mapping[str, Mapping[str, Any]]:
    """The table of old names; every row says what becomes of it."""
    raw = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    table: Mapping[str, Mapping[str, Any]] = raw["renames"]
    return table


def bring_up_to_date(flags: Mapping[str, Setting]) -> tuple[dict[str, Setting], tuple[Finding, ...]]:
    """Flags as the engine of today spells them.

    Args:
        flags: as they stand, by name without dashes.

    Returns:
        the flags that the engine of today knows and takes, and a finding for every other one.
    """
    found: dict[str, Setting] = {}
    findings: list[Finding] = []
    for name, setting in flags.items():
        if any(_OURS.search(word) for word in setting.words):
            continue
        for new, words in _translated(name, setting, findings):
            checked = _checked(new, Setting(words=words, line=setting.line), findings)
            if checked is None:
                continue
            if new == "dataset" and new in found:
                checked = Setting(words=(*found[new].words, *checked.words), line=found[new].line)
            found[new] = checked
    findings += _surprises(found, flags)
    return found, tuple(findings)


def _translated(name: str, setting: Setting, findings: list[Finding]) -> Iterator[tuple[str, tuple[str, ...]]]:
    row = renames().get(name)
    words = setting.words
    value = " ".join(words).strip("'\"")
    if row is None:
        new = _one_to_one(name)
        if new is not None:
            findings.append(_renamed(name, new, setting.line))
        yield new or name, words
        return
    if "drop" in row:
        findings.append(Finding(level="note", line=setting.line, text=f"--{name} is left out: {row['drop']}"))
        return
    if "count_of" in row:
        findings.append(_renamed(name, f"dataset {row['count_of']}#{value}", setting.line))
        yield "dataset", (f"{row['count_of']}#{value}",)
        return
    cases = {**row.get("also", {}), **row.get("cases", {})}
    key = value.lower() if value.lower() in cases else value
    if key in cases:
        yield from _case(name, value, cases[key], setting.line, findings)
        return
    values = row.get("values", {})
    new = row.get("to", name)
    changed = tuple(str(values.get(word, word)) for word in words if values.get(word, word) is not None)
    if new != name or changed != words:
        findings.append(_renamed(f"{name} {value}", " ".join((new, *changed)) if changed else _DEFAULT, setting.line))
    if changed or not words:
        yield new, changed


def _case(
    name: str, value: str, becomes: Mapping[str, str], line: int, findings: list[Finding]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    words = " ".join(f"--{flag} {word}" for flag, word in becomes.items())
    findings.append(_renamed(f"{name} {value}", words.removeprefix("--") or _DEFAULT, line))
    for flag, word in becomes.items():
        yield flag, (word,)


def _one_to_one(name: str) -> str | None:
    """The new name of an old flag whose values did not change; None where today's name is the same, or is none."""
    engine = dialect()
    if name in engine.flags:
        return None
    words = engine.renamed.get(name, "").split()
    return words[0].removeprefix("--") if len(words) == 1 and words[0].startswith("--") else None


def _renamed(old: str, new: str, line: int) -> Finding:
    becomes = new if new == _DEFAULT else f"--{new}"
    return Finding(level="note", line=line, text=f"--{old} is {becomes} in ms-swift {dialect().version}", fix="")


def _checked(name: str, setting: Setting, findings: list[Finding]) -> Setting | None:
    """The setting as the engine takes it, booleans normalised; None, with a finding, where it does not."""
    where = f"--{name}"
    try:
        flag = engine_flags.find(name, dialect())
        words = setting.words or (("true",) if flag.kind == "bool" else ())
        value = engine_flags.check(flag, [word.strip("'\"") for word in words], where)
    except UsageError as error:
        fix = error.hints[0] if error.hints else ""
        findings.append(Finding(level="error", line=setting.line, text=error.what, fix=fix))
        return None
    return Setting(words=(value,) if isinstance(value, str) else value, line=setting.line)


def _surprises(found: Mapping[str, Setting], as_written: Mapping[str, Setting]) -> Iterator[Finding]:
    """Combinations that run and do something else than they say; ``-flag`` means: not given."""
    line = min((setting.line for setting in as_written.values()), default=1)
    for names, (text, fix) in _SURPRISES.items():
        given = [name for name in names if not name.startswith("-")]
        absent = [name[1:] for name in names if name.startswith("-")]
        on = all(name in found and found[name].words not in (("false",), ("1",)) for name in given)
        if on and not any(name in found for name in absent):
            at = found[given[0]].line if given else line
            yield Finding(level="warn", line=at, text=text, fix=fix)
