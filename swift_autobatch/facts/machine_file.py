"""Writes a machine as a JSON object (``autoswift env --json``) and reads it back (``--hardware FILE``)."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from swift_autobatch.errors import InputError
from swift_autobatch.records import Machine, Probes, replace
from swift_autobatch.tables import near

SCHEMA = "autoswift.machine/1"
REPORT_SCHEMA = "autoswift.doctor/1"
_HINT = "write one with: autoswift env --json > machine.json"
_REPORT_HINT = "write one with: autoswift doctor --json > report.json"


def dump_machine(machine: Machine) -> dict[str, Any]:
    """The machine as one JSON object: ``schema`` first, raw bytes, every field of the record."""
    plain = json.loads(json.dumps(dataclasses.asdict(machine), default=dict))
    return {"schema": SCHEMA, **plain}


def load_machine(path: str | Path) -> Machine:
    """Reads a hardware file; ``source`` of the result names it.

    Raises:
        InputError: no such file, not JSON, another schema, or keys that are unknown, missing or of the wrong
            type: all of them at once, each with its path (``gpus[0].total_bytes``).
    """
    return load_report(path)[0]


def load_report(path: str | Path) -> tuple[Machine, Probes | None]:
    """Reads a hardware file or a doctor's report; a hardware file has no probes.

    Raises:
        InputError: as ``load_machine``.
    """
    where = str(path)
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8-sig"), parse_constant=_refuse_constant)
    except OSError as error:
        raise InputError(f"cannot read the hardware file: {error.strerror}", where=where, hints=(_HINT,)) from error
    except ValueError as error:  # also UnicodeDecodeError
        raise InputError(f"the hardware file is not JSON: {error}", where=where, hints=(_HINT,)) from error
    probes = None
    if isinstance(raw, dict) and raw.get("schema") == REPORT_SCHEMA:
        probes = _probes(raw.get("probes"), where)
        raw = raw.get("machine")
    return replace(machine_from(raw, where), source=f"hardware file {where}"), probes


def _probes(raw: Any, where: str) -> Probes | None:
    problems: list[str] = []
    found = None if raw is None else _record(Probes, raw, "probes", problems)
    if problems:
        raise InputError(problems[0], where=where, figures=tuple(problems[1:]), hints=(_REPORT_HINT,))
    assert found is None or isinstance(found, Probes)
    return found


def machine_from(raw: Any, where: str) -> Machine:
    """The machine that a JSON object describes; the inverse of ``dump_machine``.

    Args:
        raw: a parsed JSON value.
        where: the file, for errors.

    Raises:
        InputError: as ``load_machine``.
    """
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        said = f"its schema is {schema!r}" if schema is not None else "it has no schema"
        raise InputError(f"not a hardware file: {said}, expected {SCHEMA!r}", where=where, hints=(_HINT,))
    problems: list[str] = []
    machine = _record(Machine, {key: value for key, value in raw.items() if key != "schema"}, "", problems)
    if machine is not None:
        problems.extend(_inconsistent(machine))
    if problems or machine is None:
        raise InputError(problems[0], where=where, figures=tuple(problems[1:]), hints=(_HINT,))
    assert isinstance(machine, Machine)
    return machine


def _inconsistent(machine: Machine) -> list[str]:
    """What no single key shows."""
    found = []
    if machine.processes < 1 or (machine.gpus and machine.processes != len(machine.gpus)):
        found.append(f"processes is {machine.processes}: one for each of {len(machine.gpus)} GPUs, at least 1")
    if (len(machine.gpus) > 1) == (machine.links == "none"):
        found.append(f"links is {machine.links!r} with {len(machine.gpus)} GPUs: 'none' for fewer than two, only")
    for number, gpu in enumerate(machine.gpus):
        if not 0 < gpu.free_bytes <= gpu.total_bytes:
            found.append(f"gpus[{number}].free_bytes is {gpu.free_bytes}: more than 0, at most {gpu.total_bytes}")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


# ----------------------------------------------------------------------------------------- records from JSON


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _record(kind: type, raw: Any, path: str, problems: list[str]) -> Any:
    """A record from a JSON object by its type hints; None, with the problems noted, where it cannot be."""
    if not isinstance(raw, dict):
        problems.append(f"{path or 'the file'} must be an object, not {_say(raw)}")
        return None
    before = len(problems)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    dot = f"{path}." if path else ""
    for key in raw:
        if key not in fields:
            alike = near(key, list(fields), 1)
            problems.append(f"unknown key {dot}{key}" + (f" (did you mean {alike[0]}?)" if alike else ""))
    values = {}
    for name, field in fields.items():
        if name in raw:
            values[name] = _value(_hints(kind)[name], raw[name], dot + name, problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{dot}{name} is missing")
    return kind(**values) if len(problems) == before else None


def _value(hint: Any, raw: Any, path: str, problems: list[str]) -> Any:
    """One JSON value checked against a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if raw is None:
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return _value(inner, raw, path, problems)
    if origin is Literal:
        return raw if raw in arguments else _wrong(f"one of {', '.join(map(repr, arguments))}", raw, path, problems)
    if origin is tuple:
        return _tuple(arguments, raw, path, problems)
    if dataclasses.is_dataclass(hint):
        return _record(hint if isinstance(hint, type) else type(hint), raw, path, problems)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(raw, dict):
            return _wrong("an object", raw, path, problems)
        return {key: _value(arguments[1], value, f"{path}.{key}", problems) for key, value in raw.items()}
    say, check = _SCALARS[hint]
    return (float(raw) if hint is float else raw) if check(raw) else _wrong(say, raw, path, problems)


def _tuple(arguments: tuple[Any, ...], raw: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(raw, list):
        return _wrong("a list", raw, path, problems)
    fixed = Ellipsis not in arguments
    if fixed and len(raw) != len(arguments):
        return _wrong(f"a list of {len(arguments)}", raw, path, problems)
    hints = arguments if fixed else (arguments[0],) * len(raw)
    return tuple(
        _value(hint, value, f"{path}[{number}]", problems)
        for number, (hint, value) in enumerate(zip(hints, raw, strict=True))
    )


def _wrong(say: str, raw: Any, path: str, problems: list[str]) -> None:
    problems.append(f"{path} must be {say}, not {_say(raw)}")


def _say(raw: Any) -> str:
    text = json.dumps(raw, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_whole(raw: Any) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0


def _is_number(raw: Any) -> bool:
    return isinstance(raw, (int, float)) and not isinstance(raw, bool) and math.isfinite(raw) and raw >= 0


_SCALARS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number of 0 or more", _is_whole),
    float: ("a number of 0 or more", _is_number),
    bool: ("true or false", lambda raw: isinstance(raw, bool)),
    str: ("text", lambda raw: isinstance(raw, str)),
}
