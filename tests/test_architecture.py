"""The walls of the house: who may import whom, and how little a command loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "swift_autobatch"

# Each layer may import itself and the lower ones. A new module must be put in here, or the first test is red.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"units", "errors", "progress"}),
    frozenset({"records", "tables", "process", "workers", "guardian", "yaml_file", "footprint_file", "interconnect"}),
    frozenset({"request", "engine_flags", "deepspeed_config", "recipe", "facts", "strategies", "trace"}),
    frozenset({"rules", "effective", "pins", "misfits", "machines", "even_rows", "doctor"}),
    frozenset({"candidates", "predict", "schedule", "checkpoints", "arguments"}),
    frozenset({"planner", "mend", "worth", "shortfall", "search", "refusal", "reasons", "history"}),
    frozenset({"render", "decision", "whatif", "sweep", "buying"}),
    frozenset({"gate", "engine", "engine_log", "telemetry", "adopt"}),
    frozenset(
        {"run", "receipt", "ask", "committed", "tracing", "rehearse", "recovery", "alarms", "checkpoint_files"}
        | {"calibration", "proving", "scan"}
    ),
    frozenset({"api", "review"}),
    frozenset({"explore", "differences", "plot"}),
    frozenset({"cli"}),
)
PURE = frozenset(
    {
        "rules",
        "deepspeed_config",
        "doctor",
        "effective",
        "pins",
        "misfits",
        "candidates",
        "predict",
        "checkpoints",
        "schedule",
        "arguments",
        "planner",
        "mend",
        "worth",
        "shortfall",
        "search",
        "refusal",
        "reasons",
        "history",
        "whatif",
        "sweep",
        "buying",
        "machines",
        "even_rows",
        "render",
        "decision",
    }
)
NEVER_FROM_PURE = frozenset({"facts", "process", "guardian", "trace"})
HEAVY = frozenset({"torch", "transformers", "deepspeed", "swift", "datasets", "peft", "accelerate", "bitsandbytes"})


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path


def room(name: str) -> str:
    """The top name of a module: ``facts/model.py`` -> ``facts``."""
    return name.split("/")[0].removesuffix(".py")


def layer_of(top: str) -> int:
    return next(index for index, names in enumerate(LAYERS) if top in names)


def own_imports(path: Path) -> set[str]:
    """Top names of our own modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "swift_autobatch":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("swift_autobatch.")}
    return found


def all_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


CHECKED = [(name, path) for name, path in modules() if name not in ("__init__.py", "__main__.py")]


def test_every_module_has_a_layer() -> None:
    placed = frozenset().union(*LAYERS)
    unplaced = {room(name) for name, _ in CHECKED if not name.startswith("inside/")} - placed
    assert not unplaced


@pytest.mark.parametrize(("name", "path"), CHECKED, ids=[name for name, _ in CHECKED])
def test_imports_go_down_only(name: str, path: Path) -> None:
    imports = own_imports(path)
    if name.startswith("inside/"):
        assert not imports, "inside/ runs in the engine's process and imports nothing of ours"
        return
    mine = layer_of(room(name))
    upward = {other for other in imports if other in frozenset().union(*LAYERS) and layer_of(other) > mine}
    assert not upward
    if room(name) in PURE:
        assert not imports & NEVER_FROM_PURE


@pytest.mark.parametrize(("name", "path"), CHECKED, ids=[name for name, _ in CHECKED])
def test_heavy_libraries_stay_inside(name: str, path: Path) -> None:
    if not name.startswith(("inside/", "trace/")):
        assert not all_imports(path) & HEAVY


@pytest.mark.parametrize(("name", "path"), CHECKED, ids=[name for name, _ in CHECKED])
def test_one_place_starts_children_and_one_reads_the_environment(name: str, path: Path) -> None:
    imports = all_imports(path)
    if name not in ("process.py", "guardian.py"):
        assert "subprocess" not in imports
        assert "multiprocessing" not in imports
    if name != "request.py" and not name.startswith("inside/"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        }
        assert not used & {"environ", "getenv"}


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules that ``autoswift ARGUMENTS`` loads."""
    code = (
        "import sys\n"
        "from swift_autobatch.cli import main\n"
        f"sys.argv = ['autoswift', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("LOADED"))
    return set(line.split()[1:])


def test_help_loads_next_to_nothing() -> None:
    loaded = loaded_by("--help")
    assert not loaded & (HEAVY | {"numpy", "yaml", "rich", "jsonschema", "tokenizers", "pynvml", "psutil"})


def test_plan_on_a_catalogued_model_loads_no_torch(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query": "hello", "response": "world"}\n' * 20)
    loaded = loaded_by("plan", "--gpus", "1x4090", "--model", "Qwen/Qwen2.5-7B-Instruct", "--dataset", str(rows))
    assert not loaded & HEAVY


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by their bare name, and refuses to collect the second."""
    names = [path.name for path in (PACKAGE.parent / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
