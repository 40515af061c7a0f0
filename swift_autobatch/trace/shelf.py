"""Footprints of a model, kept on disk: traced in a child process where they are not there yet.

One file a model and set of library versions, ``<cache>/traces/<digest>.xz`` (footprint_file.py), and beside it
``<digest>.json`` with what could not be traced and why, so that nobody waits for the same refusal twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from swift_autobatch import footprint_file
from swift_autobatch.errors import InputError, MachineError
from swift_autobatch.process import run_child
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment, Footprint, FootprintKey

TRACER = 2  # raise it whenever the tracer would answer differently: what is on disk is then made anew
LIBRARIES = ("torch", "transformers", "peft", "accelerate", "ms-swift", "bitsandbytes")
_TIMEOUT_S = 300.0  # 72B takes 20 s on two idle cores; a model without end is not waited for
_TRACED = re.compile(r"traced (\d+) of (\d+)")
_LAST_WORDS = 200  # bytes of a failed child's log that may become a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceable:
    """A model that can be traced: the content of its config.json, or its folder where it brings code of its own."""

    config: Mapping[str, Any]
    folder: str | None = None  # only with code of its own
    params_total: int | None = None  # published, where the config is the catalogue's: a check on what is built


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What is known of a model: its footprints, and why others could not be made."""

    footprints: Mapping[FootprintKey, Footprint]
    refused: Mapping[FootprintKey, str]


def kept(model: Traceable, env: Environment, device: str = "cuda") -> Shelf:
    """What the cache holds of a model for the installed libraries; nothing is traced."""
    path = _path(model, env, device)
    return Shelf(footprints=_footprints(path), refused=_refusals(path))


def traced(
    model: Traceable, keys: Sequence[FootprintKey], env: Environment, progress: Progress, device: str = "cuda"
) -> Shelf:
    """What the cache holds, after tracing those of ``keys`` that it lacks.

    Args:
        model: what to build.
        keys: variants that are wanted.
        env: cache folder, interpreter and variables of the child.
        progress: told what is traced, and why something could not be.
        device: whose kernels are emulated, ``cuda`` or ``cpu``.

    Returns:
        footprints of the keys and of whatever was traced before; a key that is in neither mapping was not
        reached in time. A failure is never an error: the closed form answers.
    """
    path = _path(model, env, device)
    before = Shelf(footprints=_footprints(path), refused=_refusals(path))
    missing = [key for key in keys if key not in before.footprints and key not in before.refused]
    missing.sort(key=lambda key: (key.tuner, key.quant, key.checkpointing, key.deepspeed))  # alike ones share a model
    if not missing:
        return before
    new, failed = _child(model, missing, env, progress, device)
    after = Shelf(footprints={**before.footprints, **new.footprints}, refused={**before.refused, **new.refused})
    if new.footprints or new.refused:
        _keep(path, after)
    whole = after if not failed else Shelf(footprints=after.footprints, refused={**after.refused, **failed})
    for why in dict.fromkeys((*new.refused.values(), *failed.values())):
        progress.stage(f"not traced: {why}; the closed form answers")
    return whole


def digest(model: Traceable, device: str = "cuda") -> str:
    """sha256 over everything that changes the answer: the config, the libraries, the emulated device, the tracer."""
    content = {
        "config": model.config,
        "folder": model.folder,
        "versions": {name: _version(name) for name in LIBRARIES},
        "device": device,
        "tracer": TRACER,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------------------------------- on disk


def _path(model: Traceable, env: Environment, device: str) -> Path:
    return Path(env.cache_dir) / "traces" / f"{digest(model, device)}.xz"


def _footprints(path: Path) -> Mapping[FootprintKey, Footprint]:
    """A damaged file is as good as none: it is made anew."""
    try:
        return footprint_file.load(path.read_bytes(), str(path))
    except (OSError, InputError):
        return {}


def _refusals(path: Path) -> dict[FootprintKey, str]:
    try:
        rows = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return {FootprintKey(**row["key"]): row["why"] for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _keep(path: Path, shelf: Shelf) -> None:
    """Writes both files; a cache that cannot be written costs time the next time, no more."""
    rows = [{"key": dataclasses.asdict(key), "why": why} for key, why in shelf.refused.items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, footprint_file.dump(shelf.footprints.values()))
        _write(path.with_suffix(".json"), json.dumps(rows).encode())
    except OSError:
        return


def _write(path: Path, data: bytes) -> None:
    part = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    part.write_bytes(data)
    part.rename(path)


# ------------------------------------------------------------------------------------------------- the child


def _child(
    model: Traceable, keys: Sequence[FootprintKey], env: Environment, progress: Progress, device: str
) -> tuple[Shelf, dict[FootprintKey, str]]:
    """Traces in a child process; what it had finished counts even where it failed later.

    Returns:
        what will hold the next time too, and the keys that a failed child did not reach, with why it failed.
    """
    progress.stage("tracing the model on this CPU, without its weights (kept for the next time)")
    progress.update("tracing: loading torch and transformers")
    with _folder() as out:
        request = {
            "model": model.folder or dict(model.config),
            "keys": [dataclasses.asdict(key) for key in keys],
            "device": device,
            "params_total": model.params_total,
            "out": str(out),
        }
        (out / "request.json").write_text(json.dumps(request), encoding="utf-8")
        why = _run(out, env, _reporter(progress))
        progress.clear()
        found: dict[FootprintKey, Footprint] = {}
        refused: dict[FootprintKey, str] = {}
        failed: dict[FootprintKey, str] = {}
        for index, key in enumerate(keys):
            answer, refusal = out / f"{index}.footprint", out / f"{index}.why"
            if answer.exists():
                found |= footprint_file.load(answer.read_bytes(), str(answer))
            elif refusal.exists():
                refused[key] = refusal.read_text(encoding="utf-8")
            elif why:
                failed[key] = why
        return Shelf(footprints=found, refused=refused), failed


def _run(out: Path, env: Environment, on_line: Callable[[str], None]) -> str:
    """Runs the worker; why it failed as a whole, or nothing."""
    argv = (env.interpreter, "-m", "swift_autobatch.trace.worker", str(out / "request.json"))
    child_env = {**env.variables, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    log = out / "log"
    try:
        ended = run_child(
            argv, env=child_env, cwd=Path(env.cwd), log=log, on_line=on_line, timeout_s=_TIMEOUT_S, grace_s=2.0
        )
    except MachineError as error:
        return error.what
    if ended.timed_out:
        return f"the trace took more than {_TIMEOUT_S:.0f} s"
    if ended.exit_code != 0:
        words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return (
            f"the tracing process ended with code {ended.exit_code}: {words[-1][:_LAST_WORDS] if words else 'silent'}"
        )
    return ""


def _reporter(progress: Progress) -> Callable[[str], None]:
    def report(line: str) -> None:
        step = _TRACED.match(line)
        if step:
            progress.update(f"tracing: {step[1]} of {step[2]} variants")

    return report


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="autoswift-trace-") as name:
        yield Path(name)
