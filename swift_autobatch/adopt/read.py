"""Reads a file of any kind that we know into one job: scripts, YAMLs of three trainers, DeepSpeed JSON, recipes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from swift_autobatch.adopt import deepspeed_json, foreign, shell, today
from swift_autobatch.adopt.found import Adopted, Call, Finding, Kind, Setting
from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.recipe import layer, read_recipe
from swift_autobatch.yaml_file import PROJECT

_HINT = "a shell script with `swift sft`, a YAML of ms-swift, LLaMA-Factory or axolotl, a DeepSpeed JSON, or a recipe"
_OTHER_VERBS = "autoswift plans `swift sft` (and `swift pt` as the same); this is `{call}`"
_KEY = re.compile(r"^([A-Za-z_][\w-]*)\s*:")


def read(path: Path, shown: str, outside: Mapping[str, str] | None = None) -> Adopted:
    """The job that a file describes; of a script with several calls, the first one of ``swift sft``.

    Args:
        shown: the path as the user spelled it.
        outside: the environment that a script would run in.

    Raises:
        InputError: the file cannot be read, or is none of the kinds known.
        UsageError: a recipe that breaks its schema.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the file: {why}", where=shown, hints=(_HINT,)) from error
    if text.lstrip().startswith("{"):
        return _json(text, shown)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _yaml(text, path, shown)
    return _script(text, path, shown, outside)


def _script(text: str, path: Path, shown: str, outside: Mapping[str, str] | None) -> Adopted:
    calls = shell.read_calls(text, outside)
    planned = [call for call in calls if call.verb in ("sft", "pt")]
    if not planned:
        if calls:
            raise UsageError(
                _OTHER_VERBS.format(call=_spelled(calls[0])),
                where=f"{shown}:{calls[0].line}",
                hints=("name a script that calls swift sft",),
            )
        raise InputError("there is no call of swift in this file", where=shown, hints=(_HINT,))
    call = planned[0]
    more = tuple(
        Finding(level="note", line=other.line, text=f"another call, of {_spelled(other)}, is not looked at")
        for other in calls
        if other is not call
    )
    return _job(call, "shell script", path, shown, more)


def _spelled(call: Call) -> str:
    return call.verb if call.verb.startswith("megatron ") else f"swift {call.verb}"


def _job(call: Call, kind: Kind, path: Path, shown: str, more: tuple[Finding, ...] = ()) -> Adopted:
    flags = dict(call.flags)
    config = flags.pop("config", None)
    if config is not None:
        flags = {**_config(config, path), **flags}
    found, findings = today.bring_up_to_date(flags)
    return Adopted(
        kind=kind,
        path=shown,
        line=call.line,
        flags=found,
        env=call.env,
        nproc=_nproc(call.env),
        findings=_ordered((*call.findings, *findings, *_nodes(call), *more)),
        as_meant=call.as_meant,
    )


def _config(config: Setting, beside: Path) -> dict[str, Setting]:
    """Flags of the YAML that a script hands to the engine: ``swift sft config.yaml``."""
    path = beside.parent / config.words[0]
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"cannot read the script's own config: {error}", where=str(path), hints=("check it",)
        ) from error
    return {name: Setting(words=_words(value), line=config.line) for name, value in dict(document or {}).items()}


def _json(text: str, shown: str) -> Adopted:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"not valid JSON: {error}", where=shown, hints=("JSON has no comments and no last comma",)
        ) from error
    if not {"zero_optimization", "train_micro_batch_size_per_gpu", "fp16", "bf16"} & set(document):
        raise InputError("this JSON is no DeepSpeed config", where=shown, hints=(_HINT,))
    findings = tuple(deepspeed_json.examine(document, text))
    line = deepspeed_json.line_of(text, "zero_optimization")
    return Adopted(
        kind="DeepSpeed JSON",
        path=shown,
        line=line,
        flags={"deepspeed": Setting(words=(shown,), line=line)},
        env={},
        nproc=None,
        findings=_ordered(findings),
    )


def _yaml(text: str, path: Path, shown: str) -> Adopted:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {error}", where=shown, hints=("check the indentation",)) from error
    if not isinstance(document, dict):
        raise InputError("this YAML is no mapping of keys", where=shown, hints=(_HINT,))
    if document.get("schema") == PROJECT:
        return _recipe(path, shown)
    lines = _lines(text)
    name = foreign.format_of(document)
    if name is not None:
        flags, findings = foreign.translate(document, lines, name)
        call = Call(verb="sft", line=1, flags=flags, findings=findings)
        return _job(call, foreign.table(name)["name"], path, shown)
    if not {"model", "dataset", "model_id_or_path", "model_type"} & set(document):
        raise InputError("this YAML is of no kind that autoswift knows", where=shown, hints=(_HINT,))
    flags = {
        key: Setting(words=_words(value), line=lines.get(key, 1))
        for key, value in document.items()
        if value is not None
    }
    return _job(Call(verb="sft", line=1, flags=flags), "ms-swift YAML", path, shown)


def _recipe(path: Path, shown: str) -> Adopted:
    recipe = read_recipe(path, shown)
    settings = {name: Setting(words=_words(value.value), line=1) for name, value in layer(recipe).items()}
    nproc = settings.pop("nproc", None)
    return Adopted(
        kind="project recipe",
        path=shown,
        line=1,
        flags=settings,
        env={},
        nproc=int(nproc.words[0]) if nproc else None,
        findings=(),
    )


def _words(value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(_text(part) for part in parts)


def _text(part: Any) -> str:
    if isinstance(part, (dict, list)):
        return json.dumps(part, ensure_ascii=False)
    return str(part).lower() if isinstance(part, bool) else str(part)


def _lines(text: str) -> dict[str, int]:
    """The line of each top-level key."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY.match(line):
            found.setdefault(match[1], number)
    return found


def _nproc(env: Mapping[str, Setting]) -> int | None:
    """Processes, as the launcher or the visible cards say."""
    given = env.get("NPROC_PER_NODE")
    if given and given.words and given.words[0].isdigit():
        return int(given.words[0])
    return None


def _nodes(call: Call) -> Iterator[Finding]:
    """What a job on several nodes needs: an address that the other nodes reach, and equal processes on each."""
    nodes, address = call.env.get("NNODES"), call.env.get("MASTER_ADDR")
    if nodes is None or nodes.words[0] in ("", "1"):
        return
    if address is None or address.words[0] in ("127.0.0.1", "localhost", "::1"):
        shown = address.words[0] if address else "not set"
        yield Finding(
            level="error",
            line=(address or nodes).line,
            text=f"MASTER_ADDR is {shown}: the other {int(nodes.words[0]) - 1 if nodes.words[0].isdigit() else ''} "
            "nodes cannot reach it",
            fix="MASTER_ADDR=the address of node 0 in the network of the nodes",
        )
    if "NPROC_PER_NODE" not in call.env:
        yield Finding(
            level="warn",
            line=nodes.line,
            text="NPROC_PER_NODE is left open: every node must start the same number of processes",
            fix="NPROC_PER_NODE=the least number of cards of a node",
        )


def _ordered(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.line))
