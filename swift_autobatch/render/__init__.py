"""Plan -> DeepSpeed JSON, swift argv, environment, script; byte-identical for equal input; never reads the machine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swift_autobatch import arguments
from swift_autobatch.errors import MachineError, UsageError
from swift_autobatch.records import Artefacts, Plan
from swift_autobatch.render.engine_config import configs
from swift_autobatch.render.plan_json import candidate_json, facts_json, plan_json, prediction_json
from swift_autobatch.render.recipe_yaml import asked_yaml, measured_figures, recipe_yaml
from swift_autobatch.render.script import script
from swift_autobatch.tables import DIALECT, dialect, dialect_of

__all__ = [
    "asked_yaml",
    "candidate_json",
    "facts_json",
    "flatten",
    "may_write",
    "measured_figures",
    "plan_json",
    "plugin",
    "prediction_json",
    "recipe_yaml",
    "render",
    "resolve",
    "spoken",
    "to_json",
    "write",
    "write_file",
]

_INSIDE = Path(__file__).parent.parent / "inside"
_BESIDE = (
    "autoswift_meter.py",
    "autoswift_paths.py",
    "autoswift_stop.py",
)  # what telemetry.py imports from its own folder


def render(plan: Plan) -> Artefacts:
    """The files and the command of a plan. Paths start with ``$ROOT``, ``$RUN`` or ``$HOME``."""
    args = {flag: arg.value for flag, arg in plan.engine_args.items()}
    argv = flatten(spoken(args, plan.facts.machine.software.versions.get("ms-swift")))
    env = {name: var.value for name, var in plan.env.items()}
    files = {
        "plan.json": to_json(plan_json(plan)),
        "run.sh": script(plan, argv, env),
    }
    deepspeed, fsdp = configs(plan.candidate, args)
    if deepspeed is not None:
        files["ds.json"] = to_json(deepspeed)
    if fsdp is not None:
        files["fsdp.json"] = to_json(fsdp)
    for word in argv:
        if word.startswith(f"{arguments.OWN}/plugins/"):
            name = word.removeprefix(f"{arguments.OWN}/")
            files[name] = plugin(Path(name).name)
    files |= {f"plugins/{name}": plugin(name) for name in _BESIDE}
    return Artefacts(files=files, argv=argv, env=env)


def spoken(args: Mapping[str, str | tuple[str, ...]], version: str | None) -> dict[str, str | tuple[str, ...]]:
    """Arguments as an installed engine spells them; what it does not have is left out (misfits.py refuses pins of it).

    Args:
        version: of the engine on the machine that was planned for; None: the one that autoswift plans in.
    """
    engine = dialect(dialect_of(version) or DIALECT)
    return {engine.names.get(flag, flag): value for flag, value in args.items() if flag not in engine.absent}


def plugin(name: str) -> str:
    """The text of a file that runs inside the engine."""
    return (_INSIDE / name).read_text(encoding="utf-8")


def flatten(args: Mapping[str, str | Sequence[str]]) -> tuple[str, ...]:
    """Engine arguments as words: ``--flag value`` or ``--flag value value``."""
    words: list[str] = []
    for flag, value in args.items():
        words.append(f"--{flag}")
        words += [value] if isinstance(value, str) else list(value)
    return tuple(words)


def to_json(document: Any) -> str:
    """Stable JSON text: two blanks, keys in the order given, one newline at the end."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def resolve(
    artefacts: Artefacts, *, root: Path, run: Path, home: str, port: int, devices: str | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command and environment with every placeholder replaced.

    Args:
        port: a free TCP port for torchrun.
        devices: the value for CUDA_VISIBLE_DEVICES; None keeps the rendered default.
    """
    places = {"$ROOT": str(root), "$RUN": str(run), "$HOME": home}
    argv = tuple(_place(word, places) for word in artefacts.argv)
    env = {}
    for name, value in artefacts.env.items():
        if name == "MASTER_PORT":
            value = str(port)
        elif name == "CUDA_VISIBLE_DEVICES" and value.startswith("${"):
            value = devices if devices is not None else value.partition(":-")[2].removesuffix("}")
        env[name] = _place(value, places)
    return argv, env


def _place(word: str, places: Mapping[str, str]) -> str:
    for name, folder in places.items():
        if word == name or word.startswith(name + "/"):
            return folder + word[len(name) :]
    return word


def write(files: Mapping[str, str], folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Writes files below ``folder``, each to a temporary name and then renamed.

    Raises:
        UsageError: a file is there already and ``force`` is not set; nothing is written.
        MachineError: the disk refuses.
    """
    targets = {folder / name: text for name, text in files.items()}
    for path in targets:
        may_write(path, force=force)
    for path, text in targets.items():
        write_file(path, text)
    return tuple(targets)


def may_write(path: Path, *, force: bool) -> None:
    """Refuses to overwrite a file unasked; called before anything long is done for it.

    Raises:
        UsageError: it exists and ``force`` is not set, or it is a folder.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", where=str(path), hints=(f"name a file: {path / 'recipe.yaml'}",))
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists and would be overwritten", where=str(path.parent), hints=("add --force", "another place")
        )


def write_file(path: Path, text: str) -> None:
    """Writes one file whole or not at all.

    Raises:
        MachineError: the disk is full or the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        mode = 0o755 if path.suffix == ".sh" else 0o644
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise MachineError(
            f"cannot write {path.name}: {error.strerror or error}",
            where=str(path.parent),
            hints=("--output-dir on a disk with room and write permission",),
        ) from error
