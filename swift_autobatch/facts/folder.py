"""Which files of a folder the engine trains: those that its loader takes for the split named ``train``.

Source: ms-swift 4.6 swift/dataset/loader.py ``_load_repo_dataset`` (subset ``default``, split ``train``); datasets
data_files.py ``ALL_SPLIT_PATTERNS`` and ``ALL_DEFAULT_PATTERNS``, load.py ``infer_module_for_data_files_list``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import yaml

from swift_autobatch.errors import InputError
from swift_autobatch.facts.rows import FOLDER_SUFFIXES

# The kind of builder behind a suffix; kinds that are not in READ are not rows of text.
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        ".csv": "csv",
        ".tsv": "csv",
        ".json": "json",
        ".jsonl": "json",
        ".ndjson": "json",
        ".parquet": "parquet",
        ".arrow": "arrow",
        ".txt": "text",
        ".xml": "xml",
        ".h5": "hdf5",
        ".hdf5": "hdf5",
        **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"), "images"),
        **dict.fromkeys((".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus", ".aac"), "audio"),
        **dict.fromkeys((".mp4", ".mkv", ".mov", ".avi", ".webm"), "video"),
        ".pdf": "pdf",
        ".tar": "webdataset",
        ".zip": "an archive",
    }
)
_READ = ("csv", "json", "parquet", "arrow", "text")
_FAVOURITES = (".parquet", ".jsonl", ".json", ".csv")  # of kinds that are equally common
_IGNORED = (
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
)
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": ("train", "training"),
        "validation": ("validation", "valid", "dev", "val"),
        "test": ("test", "testing", "eval", "evaluation"),
    }
)
_SHARD = re.compile(r"data/(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}.*\..*")
_SEPARATOR = "[-._ 0-9]"


def train_files(folder: Path, subset: str = "default") -> tuple[Path, ...]:
    """The files that the engine reads, in its order.

    Args:
        folder: a local folder, or a snapshot in a hub's cache.
        subset: a configuration that README.md describes; without such a description there is ``default`` alone.

    Raises:
        InputError: no file of it would be trained, and which one to pass instead.
    """
    described = _described(folder)
    if described:
        return _configured(folder, subset, described)
    if subset != "default":
        raise InputError(
            f"the folder has no subset {subset!r}: only 'default', which is all of it",
            where=str(folder),
            hints=(f"--dataset {folder}",),
        )
    found = _splits(folder)
    if not found:
        raise _nothing(folder)
    return _of_one_kind(folder, found)


def _of_one_kind(folder: Path, found: Mapping[str, list[str]]) -> tuple[Path, ...]:
    kinds = {split: _kind(names) for split, names in found.items()}
    if "train" not in found:
        named = found[next(iter(found))]
        raise InputError(
            f"the folder has no training files: its names say {', '.join(sorted(found))}",
            where=str(folder),
            hints=(f"--dataset {folder / named[0]}", f"mv {folder / named[0]} {folder / 'train.jsonl'}"),
        )
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{split}: {kind}" for split, kind in kinds.items())
        raise InputError(
            f"the folder's splits are files of different kinds ({said}): the engine reads none of them",
            where=str(folder),
            hints=tuple(f"--dataset {folder / name}" for name in found["train"][:3]),
        )
    kind = kinds["train"]
    if kind not in _READ:
        rows = [name for name in found["train"] if _of_kind(name, "json") or _of_kind(name, "csv")]
        raise InputError(
            f"the engine takes the folder for {kind}, which is most of its files: no rows come of it",
            where=str(folder),
            hints=tuple(f"--dataset {folder / name}" for name in rows[:2]) or ("pass the file that holds the rows",),
        )
    return tuple(folder / name for name in found["train"] if _of_kind(name, kind))


def _splits(folder: Path) -> dict[str, list[str]]:
    """Files by split, by the first rule that finds any: shards in data/, folder names, file names; else all train."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and _visible(path, folder)
    )
    names = [name for name in names if any(suffix in _KINDS for suffix in _suffixes(name))]
    rules: tuple[Callable[[str], str | None], ...] = (_by_shard, _by_folder, _by_name, lambda _: "train")
    for rule in rules:
        found: dict[str, list[str]] = {}
        for name in names:
            split = rule(name)
            if split:
                found.setdefault(split, []).append(name)
        if found:
            return found
    return {}


def _visible(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    hidden = any(part.startswith(".") for part in parts) or any(part.startswith("__") for part in parts[:-1])
    return not hidden and path.name not in _IGNORED


def _by_shard(name: str) -> str | None:
    match = _SHARD.fullmatch(name)
    return match["split"] if match else None


def _by_folder(name: str) -> str | None:
    parents = PurePosixPath(name).parts[:-1]
    return _keyword(rf"(?:.*{_SEPARATOR})?(?:{{}})(?:{_SEPARATOR}.*)?", parents)


def _by_name(name: str) -> str | None:
    return _keyword(rf"(?:.*{_SEPARATOR})?(?:{{}}){_SEPARATOR}.*", (PurePosixPath(name).name,))


def _keyword(pattern: str, parts: tuple[str, ...]) -> str | None:
    for split, words in _SPLITS.items():
        whole = re.compile(pattern.format("|".join(words)))
        if any(whole.fullmatch(part) for part in parts):
            return split
    return None


def _suffixes(name: str) -> list[str]:
    return ["." + part for part in PurePosixPath(name).name.split(".")[1:]]


def _kind(names: list[str]) -> str:
    """The kind that most files are of; of a draw the favourite, then the last in the alphabet."""
    times = Counter(
        (suffix.lower(), PurePosixPath(name).name in _METADATA) for name in names for suffix in _suffixes(name)
    )

    def rank(entry: tuple[tuple[str, bool], int]) -> tuple[Any, ...]:
        (suffix, metadata), count = entry
        return (not metadata, count, *(suffix == one for one in _FAVOURITES), suffix)

    for (suffix, _), _ in sorted(times.items(), key=rank, reverse=True):
        if suffix in _KINDS:
            return _KINDS[suffix]
    return "nothing"


def _of_kind(name: str, kind: str) -> bool:
    return any(_KINDS.get(suffix) == kind for suffix in _suffixes(name))


# --------------------------------------------------------------------------------------- what README.md describes


def _described(folder: Path) -> list[dict[str, Any]]:
    """The ``configs`` of README.md's heading that name their files."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        head = text.split("---", 2)[1] if text.startswith("---") else ""
        data = yaml.safe_load(head)
    except (OSError, UnicodeDecodeError, IndexError, yaml.YAMLError):
        return []
    configs = data.get("configs") if isinstance(data, dict) else None
    named = [one for one in configs if isinstance(one, dict)] if isinstance(configs, list) else []
    return named if any("data_files" in one or "data_dir" in one for one in named) else []


def _configured(folder: Path, subset: str, configs: list[dict[str, Any]]) -> tuple[Path, ...]:
    by_name = {str(one.get("config_name")): one for one in configs}
    if subset not in by_name:
        raise InputError(
            f"README.md of the folder describes no subset {subset!r}",
            where=str(folder),
            figures=(f"it describes: {', '.join(by_name)}",),
            hints=tuple(f"--dataset {folder}:{name}" for name in list(by_name)[:3]),
        )
    config = by_name[subset]
    base = folder / str(config.get("data_dir") or "")
    patterns = _train_patterns(config.get("data_files", "**"))
    names = {path for pattern in patterns for path in base.glob(pattern) if path.is_file() and _visible(path, folder)}
    files = [path for path in sorted(names) if any(suffix in FOLDER_SUFFIXES for suffix in _suffixes(path.name))]
    if not files:
        raise InputError(
            f"subset {subset!r} has no training files here",
            where=str(folder / "README.md"),
            figures=(f"it names: {', '.join(patterns) or 'no split train'}",),
            hints=("download the files, or pass one of another split by its own name",),
        )
    return tuple(files)


def _train_patterns(value: Any) -> list[str]:
    entries = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        entries = [{"split": split, "path": path} for split, path in value.items()]
    found: list[str] = []
    for entry in entries:
        path = entry.get("path") if isinstance(entry, dict) and entry.get("split", "train") == "train" else entry
        found += [str(one) for one in (path if isinstance(path, list) else [path]) if isinstance(one, str)]
    return found


def _nothing(folder: Path) -> InputError:
    return InputError(
        "the folder holds no file of rows",
        where=str(folder),
        figures=(f"rows come from: {', '.join(FOLDER_SUFFIXES)}",),
        hints=("pass the file that holds them: --dataset FILE.jsonl",),
    )
