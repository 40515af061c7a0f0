"""Finds what is behind a dataset as the user spelled it: ``path#500``, ``folder:subset``, ``hf::owner/name``.

Source: ms-swift 4.6 swift/dataset/dataset_syntax.py ``DatasetSyntax.parse``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.conversation import RowError
from swift_autobatch.facts.folder import train_files
from swift_autobatch.facts.hub_cache import cached_dataset, chosen_hub
from swift_autobatch.facts.known_sets import known
from swift_autobatch.facts.lines import Fault, Update
from swift_autobatch.facts.persona import OWN, Persona, persona_for
from swift_autobatch.facts.rows import FOLDER_SUFFIXES, SUFFIXES, read_rows
from swift_autobatch.facts.schema import PACKED, Schema, judged
from swift_autobatch.records import Environment, Sourced
from swift_autobatch.tables import near

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
Pins = Mapping[str, Sourced[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One dataset as the user spelled it.

    ``name`` is what the engine is to be given, without ``#N``; ``path`` the file or folder behind it; ``files`` what
    is read, in order, as one table. ``sample``: rows to draw, None: all. ``persona``: the names that the engine writes
    into the rows of its own self-cognition set.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    sample: int | None = None
    persona: Persona | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # renamed: name in the file -> the engine's name
    own_code: bool = False  # the engine reads this set with code of its own: the rows here are its rows by assumption

    def rows(self, file: Path, update: Update, schema: Schema) -> Iterator[tuple[int, Any]]:
        """Yields (line, row or Fault) of one of the files, each row as the engine hands it to its reading.

        Args:
            file: one of ``files``.
            update: receives every unpacked byte of the file once, in order.
            schema: the columns of the files before; learns those of the first.
        """
        for line, row in judged(file, read_rows, update, schema):
            if isinstance(row, dict) and (self.columns or self.persona):
                yield line, self._made(row)
            else:
                yield line, row

    def _made(self, row: dict[str, Any]) -> dict[str, Any] | Fault:
        try:
            renamed = _renamed(row, self.columns) if self.columns else row
            return self.persona.fill(renamed) if self.persona else renamed
        except RowError as error:
            return Fault(code=error.code, text=error.text, loses=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelled:
    """The parts of ``hf::name:subset#sample``."""

    name: str
    subsets: tuple[str, ...] = ()
    sample: int | None = None
    hub: str | None = None  # hf | ms


def resolve(spelled: str, env: Environment, pins: Pins | None = None) -> Source:
    """Finds the file or files behind one value of ``--dataset``.

    Args:
        spelled: as the engine takes it; ``~/`` is understood too.
        env: the folder that paths are relative to, and the hubs' caches.
        pins: engine flags: model_name, model_author, use_hf.

    Raises:
        InputError: no such file, a hub id that is not in a cache, or a kind of file that the engine does not read.
    """
    pins = pins or {}
    try:
        parts = _parse(spelled, env)
        path = _absolute(parts.name, env)
        columns = _columns(pins)
        if path.is_file():
            return Source(name=str(path), path=path, files=(_readable(path),), sample=parts.sample, columns=columns)
        found = _folder(parts, str(path), path, pins) if path.is_dir() else _cached(parts, spelled, env, pins)
        source = found or _missing(parts, path)
        about = known(source.name.partition(":")[0] if path.is_dir() else parts.name)
        return replace(source, columns={**about.columns, **columns}, own_code=about.own_code and source.persona is None)
    except OSError as error:  # a name too long, a folder that may not be searched
        raise InputError(
            f"cannot look for the dataset: {error.strerror or error}",
            where=f"--dataset {spelled[:80]}",
            hints=("check the path and its permissions",),
        ) from error


def _parse(spelled: str, env: Environment) -> _Spelled:
    """What exists on disk under a name is meant by it, whatever marks the name holds."""

    def exists(name: str) -> bool:
        return _absolute(name, env).exists()

    name, hub = spelled, None
    if not exists(name) and "::" in name:
        before, _, name = name.partition("::")
        hub = before.lower() if before.lower() in ("hf", "ms") else None
    sample = None
    if not exists(name) and "#" in name:
        name, _, count = name.rpartition("#")
        sample = _sample(spelled, count)
    subsets: tuple[str, ...] = ()
    if not exists(name) and ":" in name:
        name, _, named = name.partition(":")
        subsets = tuple(subset.strip() for subset in named.split("/") if subset.strip())
    return _Spelled(name=name.strip(), subsets=subsets, sample=sample, hub=hub)


def _folder(parts: _Spelled, name: str, path: Path, pins: Pins) -> Source:
    persona = persona_for(name, parts.subsets, pins)
    subsets = ("default",) if persona is not None else parts.subsets or ("default",)
    files = tuple(file for subset in subsets for file in train_files(path, subset))
    return Source(
        name=":".join((name, "/".join(parts.subsets))) if parts.subsets else name,
        path=path,
        files=files,
        sample=parts.sample,
        persona=persona,
    )


def _cached(parts: _Spelled, spelled: str, env: Environment, pins: Pins) -> Source | None:
    """A hub's dataset that one of the hubs' clients has already downloaded."""
    name = OWN if parts.name == OWN.rpartition("/")[2] else parts.name
    if not _HUB_ID.fullmatch(name):
        return None
    hub = chosen_hub(env, pins)
    hub = hub if parts.hub is None else replace(hub, hugging_face=parts.hub == "hf")
    folder = cached_dataset(name, env, hub)
    if folder is None:
        return None
    source = _folder(replace(parts, name=name), name, folder, pins)
    return replace(source, name=spelled.rpartition("#")[0] if parts.sample is not None else spelled)


def _columns(pins: Pins) -> Mapping[str, str]:
    """``--columns '{"in the file": "query"}'``."""
    pin = pins.get("columns")
    if pin is None or not pin.value:
        return {}
    try:
        found = json.loads(pin.value) if isinstance(pin.value, str) else pin.value
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found.values()):
        raise InputError(
            "--columns must be a JSON object of names",
            where="--columns",
            hints=('--columns \'{"question column": "query", "answer column": "response"}\'',),
        )
    return MappingProxyType(dict(found))


def _renamed(row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Names compare in lower case; of two columns that are to get one name neither does.

    Source: ms-swift 4.6 swift/dataset/preprocessor/core.py ``safe_rename_columns``.
    """
    actual = {name.lower(): name for name in row}
    renames = {actual[name.lower()]: to for name, to in columns.items() if name.lower() in actual}
    times = Counter(renames.values())
    return {renames[name] if times[renames.get(name, "")] == 1 else name: value for name, value in row.items()}


def _readable(path: Path) -> Path:
    if path.suffix in SUFFIXES:
        return path
    inner = Path(path.stem).suffix
    if path.suffix in PACKED and inner in SUFFIXES:
        renamed = path.with_name(f"{Path(path.stem).stem}{path.suffix}{inner}")
        raise InputError(
            f"the engine goes by the last suffix, and {path.suffix} is none that it knows; it unpacks by content",
            where=str(path),
            hints=(f"mv {path} {renamed}", f"{'gunzip' if path.suffix == '.gz' else 'zstd -d'} {path}"),
        )
    hints = (f"convert it to {path.stem}.jsonl, one JSON object a line",)
    if path.suffix.lower() in SUFFIXES:
        hints = (f"mv {path} {path.with_suffix(path.suffix.lower())}",)
    elif path.suffix == ".ndjson":
        hints = (f"mv {path} {path.with_suffix('.jsonl')}",)
    elif path.suffix == ".tsv":
        hints = ("put it alone into a folder and pass the folder: the engine reads .tsv there",)
    raise InputError(
        f"cannot read {path.suffix or 'a file without a suffix'}: the engine reads {', '.join(SUFFIXES)} files",
        where=str(path),
        hints=hints,
    )


def _absolute(spelled: str, env: Environment) -> Path:
    if spelled.startswith("~/"):
        return Path(env.home) / spelled[2:]
    return Path(env.cwd) / spelled


def _sample(spelled: str, count: str) -> int:
    if not count.isascii() or not count.isdigit() or int(count) == 0:
        raise InputError(
            f"the number of rows after '#' must be a whole number above 0, not {count!r}",
            where=f"--dataset {spelled}",
            hints=(f"--dataset {spelled.rpartition('#')[0]}#500",),
        )
    return int(count)


def _missing(parts: _Spelled, path: Path) -> Source:
    suffixed = Path(parts.name).suffix in (*FOLDER_SUFFIXES, *PACKED)
    if _HUB_ID.fullmatch(parts.name) and not suffixed and not path.parent.is_dir():
        tool = "hf" if parts.hub == "hf" else "modelscope"
        raise InputError(
            f"{parts.name} looks like a hub dataset, and it is in no cache here; nothing is downloaded for a profile",
            where="--dataset",
            hints=(
                f"{tool} download {parts.name} --repo-type dataset --local-dir data/{parts.name.rpartition('/')[2]}",
                f"then pass that folder: --dataset data/{parts.name.rpartition('/')[2]}",
            ),
        )
    folder = path.parent
    names = [child.name for child in folder.iterdir() if child.is_file()] if folder.is_dir() else []
    stems = {Path(name).stem: name for name in sorted(names)}
    close = [f"--dataset {folder / stems[stem]}" for stem in near(path.stem, list(stems), cutoff=0.7)]
    raise InputError(
        "the dataset does not exist" if names or folder.is_dir() else f"the folder {folder} does not exist",
        where=str(path),
        hints=(*close, *_of_a_registry(parts.name)) or ("check the path given to --dataset",),
    )


def _of_a_registry(name: str) -> tuple[str, ...]:
    """For a bare word: other trainers register datasets under names, and here a dataset is data."""
    if "/" in name or Path(name).suffix:
        return ()
    words = "a name that another trainer's list of datasets knows is not known here"
    several = f"; several are given as --dataset {' '.join(name.split(','))}" if "," in name else ""
    return (f"{words}: name its file, or its hub id OWNER/NAME{several}",)
