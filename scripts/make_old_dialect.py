"""Writes swift_autobatch/data/dialects/ms-swift-3.12.json from the wheels, without installing or importing them.

    python scripts/make_old_dialect.py            # downloads both wheels, rewrites the file and prints what differs
    python scripts/make_old_dialect.py --check    # prints what differs; exit 1 when the file is stale

ms-swift 3.12 wants a transformers that cannot stand beside that of 4.6, so its parser is not built: the fields of the
argument classes are read from the source with ``ast``, as ``HfArgumentParser`` would take them. A test holds this
reading of the installed 4.6 against the parser that 4.6 itself builds.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from make_dialect import RENAMED, dump

DATA = Path(__file__).parents[1] / "swift_autobatch" / "data" / "dialects"
TARGET = DATA / "ms-swift-3.12.json"
WHEELS = ("ms-swift==3.12.6", "transformers==4.57.6")

# A name of 4.6 that 3.12 spells otherwise; every one is checked to exist on both sides.
NAMES = {
    "tuner_type": "train_type",
    "eval_metric": "metric",
    "safe_serialization": "save_safetensors",
}


@dataclass(frozen=True)
class Module:
    """One source file: its dataclasses, and where the names that it uses come from."""

    classes: Mapping[str, ast.ClassDef]
    imported: Mapping[str, tuple[str, str]]  # name here -> (package, name there)


def read_module(path: Path) -> Module:
    """The classes and imports of a source file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name: ((node.module or "").split(".")[0] if not node.level else "swift", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return Module(classes={node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}, imported=imported)


def read_tree(root: Path) -> dict[str, dict[str, tuple[ast.ClassDef, Module]]]:
    """package -> class name -> its definition, of the files that hold argument classes."""
    found: dict[str, dict[str, tuple[ast.ClassDef, Module]]] = {"swift": {}, "transformers": {}}
    files = {
        "swift": [
            *sorted((root / "swift").glob("llm/argument/**/*.py")),
            *sorted((root / "swift").glob("arguments/**/*.py")),
            *sorted((root / "swift").glob("ray_utils/*.py")),
            root / "swift" / "trainers" / "arguments.py",
            *sorted((root / "swift").glob("ray/*.py")),
        ],
        "transformers": sorted((root / "transformers").glob("training_args*.py")),
    }
    for package, paths in files.items():
        for path in paths:
            module = read_module(path)
            for name, node in module.classes.items():
                found[package].setdefault(name, (node, module))
    return found


def fields(tree: Mapping[str, Mapping[str, Any]], package: str, name: str) -> dict[str, tuple[str, ast.expr | None]]:
    """Field -> (annotation, default) of a dataclass and its bases, later ones overriding."""
    node, module = tree[package][name]
    found: dict[str, tuple[str, ast.expr | None]] = {}
    for base in reversed(node.bases):
        spelled = ast.unparse(base)
        where, there = ("swift", spelled) if spelled in module.classes else module.imported.get(spelled, ("", ""))
        where = package if package == "transformers" and where != "swift" else where
        if there in tree.get(where, {}):
            found.update(fields(tree, where, there))
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = (ast.unparse(line.annotation), line.value)
    return found


def _parts(annotation: str) -> set[str]:
    """The members of an annotation: ``Optional[Union[str, int]]`` -> {None, str, int}."""
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _parts(node.value)
    if isinstance(node, ast.BinOp):
        return _parts(ast.unparse(node.left)) | _parts(ast.unparse(node.right))
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).split(".")[-1]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Optional":
            return {"None"} | _parts(ast.unparse(node.slice))
        if outer == "Union":
            return {part for one in inner for part in _parts(ast.unparse(one))}
        if outer == "Literal":
            return {"Literal:" + json.dumps([ast.literal_eval(one) for one in inner])}
        if outer.lower() == "list":
            return {"list"} | _parts(ast.unparse(node.slice))
        return {outer.lower()}
    return {ast.unparse(node)}


def _default(value: ast.expr | None) -> Any:
    """A default as JSON; None where it cannot be read from the source."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "dataclasses.field"):
        named = {word.arg: word.value for word in value.keywords}
        factory = named.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return _default(factory.body)
        if factory is not None:
            return [] if ast.unparse(factory) == "list" else None
        return _default(named.get("default"))
    try:
        return None if value is None else ast.literal_eval(value)
    except ValueError:
        return None


def _is_field(value: ast.expr | None) -> bool:
    """Whether the parser takes it: not ``field(init=False)``."""
    if not isinstance(value, ast.Call):
        return True
    return not any(word.arg == "init" and ast.unparse(word.value) == "False" for word in value.keywords)


def row(annotation: str, value: ast.expr | None) -> dict[str, Any]:
    """One flag as the dialect has it."""
    parts = _parts(annotation)
    literal = next((json.loads(part[8:]) for part in parts if part.startswith("Literal:")), [])
    default = _default(value)
    choices = [str(choice) for choice in literal if choice is not None and choice is not False]
    kind = "json" if "dict" in parts else "str"
    if not choices and kind == "str" and "str" not in parts:
        kind = next((name for name in ("bool", "int", "float") if name in parts), "str")
    found: dict[str, Any] = {"kind": kind}
    if "list" in parts:
        found["many"] = True
    if default in (None, "") or "None" in parts:
        found["optional"] = True
    if default not in (None, ""):
        found["default"] = default
    if choices:
        found["choices"] = choices
    return found


def flags(root: Path, name: str) -> dict[str, dict[str, Any]]:
    """The flags of an argument class below a folder that holds ``swift`` and ``transformers``."""
    return {
        field: row(annotation, value)
        for field, (annotation, value) in sorted(fields(read_tree(root), "swift", name).items())
        if not field.startswith("_") and _is_field(value) and not annotation.startswith("ClassVar")
    }


def unpacked(folder: Path) -> Path:
    """Both wheels, downloaded and unpacked."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *WHEELS]
    subprocess.run(command, check=True, timeout=600)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, members=[name for name in archive.namelist() if name.endswith(".py")])
    return folder


def build(root: Path) -> dict[str, Any]:
    """The dialect of 3.12 below ``root``, with what of 4.6 it spells otherwise or does not have."""
    found = flags(root, "TrainArguments")
    today: dict[str, Any] = json.loads((DATA / "ms-swift-4.6.json").read_text(encoding="utf-8"))["flags"]
    names = {new: old for new, old in NAMES.items() if old in found and new in today and new not in found}
    absent = sorted(set(today) - set(found) - set(names))
    return {
        "schema": "autoswift.dialect/1",
        "version": "3.12.6",
        "source": f"{' and '.join(WHEELS)}: fields of TrainArguments; written by scripts/make_old_dialect.py",
        "flags": found,
        "renamed": {old: words for old, words in sorted(RENAMED.items()) if old not in found},
        "names": names,
        "absent": absent,
    }


def written(dialect: Mapping[str, Any]) -> str:
    """As the other dialects are written, and the two tables of differences."""
    text = dump(dict(dialect))
    tables = [f'  "names": {json.dumps(dialect["names"])}', f'  "absent": {json.dumps(dialect["absent"])}']
    return text.rstrip().removesuffix("}").rstrip() + ",\n" + ",\n".join(tables) + "\n}\n"


def difference(old: str, new: str) -> Iterable[str]:
    """What a new reading changes, line by line."""
    return difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "read", lineterm="")


def _root(folder: str | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield unpacked(Path(scratch))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print what differs and exit 1 when the file is stale")
    parser.add_argument("--unpacked", metavar="DIR", help="a folder with both wheels unpacked, instead of a download")
    options = parser.parse_args(argv)
    text = ""
    for root in _root(options.unpacked):
        text = written(build(root))
    old = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    lines = list(difference(old, text))
    print("\n".join(lines) if lines else f"{TARGET.name} is current")
    if options.check:
        return 1 if lines else 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
