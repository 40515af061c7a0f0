"""Finds the file behind a dataset as the user spelled it: ``path``, ``~/path`` or ms-swift's ``path#500``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from swift_autobatch.errors import InputError
from swift_autobatch.facts.rows import SUFFIXES
from swift_autobatch.records import Environment
from swift_autobatch.tables import near


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One dataset as the user spelled it. ``sample``: ms-swift's ``path#500``, rows to draw; None: all."""

    path: Path
    sample: int | None


def resolve(spelled: str, env: Environment) -> Source:
    """Finds the file behind ``path`` or ``path#500``.

    Raises:
        InputError: no such file, a folder, a hub id, or a kind of file that is not read.
    """
    try:
        return _resolve(spelled, env)
    except OSError as error:  # a name too long, a folder that may not be searched
        raise InputError(
            f"cannot look for the dataset: {error.strerror or error}",
            where=f"--dataset {spelled[:80]}",
            hints=("check the path and its permissions",),
        ) from error


def _resolve(spelled: str, env: Environment) -> Source:
    path, sample = _absolute(spelled, env), None
    name, mark, count = spelled.rpartition("#")
    if mark and not path.exists():
        path, sample = _absolute(name, env), _sample(spelled, count)
        spelled = name
    if path.is_dir():
        files = sorted(child.name for child in path.iterdir() if child.suffix in SUFFIXES)
        raise InputError(
            "the dataset is a folder, not a file",
            where=str(path),
            hints=(f"--dataset {path / files[0]}",) if files else ("pass a .json, .jsonl or .csv file",),
        )
    if not path.is_file():
        raise _missing(spelled, path)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"cannot read {path.suffix or 'a file without a suffix'}: rows come from .json, .jsonl or .csv files",
            where=str(path),
            hints=(f"convert it to {path.stem}.jsonl, one JSON object a line",),
        )
    return Source(path=path, sample=sample)


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


def _missing(spelled: str, path: Path) -> InputError:
    hub = re.fullmatch(r"(?:(hf|ms)::)?([\w.-]+/[\w.-]+)(?::[\w./-]+)?", spelled, re.ASCII | re.IGNORECASE)
    if hub and Path(spelled).suffix not in SUFFIXES and not path.parent.is_dir():
        tool = "hf" if (hub[1] or "").lower() == "hf" else "modelscope"
        return InputError(
            f"{spelled} looks like a hub dataset, and only local files are profiled today",
            where="--dataset",
            hints=(
                f"{tool} download {hub[2]} --repo-type dataset --local-dir data",
                "then pass one of its files: --dataset data/FILE.jsonl",
            ),
        )
    folder = path.parent
    names = [child.name for child in folder.iterdir() if child.is_file()] if folder.is_dir() else []
    close = near(path.name, names) or tuple(sorted(name for name in names if Path(name).suffix in SUFFIXES)[:3])
    return InputError(
        "the dataset does not exist" if names or folder.is_dir() else f"the folder {folder} does not exist",
        where=str(path),
        hints=tuple(f"--dataset {folder / name}" for name in close) or ("check the path given to --dataset",),
    )
