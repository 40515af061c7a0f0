"""Tries out what package metadata cannot tell: imports in a child process, limits, a port."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from swift_autobatch.process import Answer, ask, free_port
from swift_autobatch.records import Environment, Probes, Software

_IMPORT_TIMEOUT_S = 120.0  # a cold disk; 4 s when warm
_ENGINE = ("ms-swift", "transformers", "peft", "trl", "accelerate", "deepspeed")

# In a child: torch takes seconds to import and a broken flash-attn can end the process.
_TORCH = """
import json, torch
seen = torch.cuda.is_available()
archs = torch.cuda.get_arch_list() if torch.version.cuda else []
print(json.dumps({"cuda": torch.version.cuda, "seen": seen, "archs": archs}))
"""


def read_probes(env: Environment, software: Software, root: Path = Path("/")) -> Probes:
    """Tries the environment out; seconds, because torch is imported in a child.

    Args:
        env: its interpreter, variables and ``cwd`` are what a run would have.
        software: which packages are installed; what is absent is not tried.
        root: where /proc and /sys are; tests replay recorded trees.
    """
    torch, torch_error = _torch(env) if software.versions.get("torch") else ({}, None)
    flash = _imported(env, "flash_attn") if software.versions.get("flash-attn") else None
    return Probes(
        torch_error=torch_error,
        torch_cuda=torch.get("cuda"),
        torch_sees_gpu=torch.get("seen"),
        torch_archs=tuple(torch.get("archs", ())),
        flash_attn_error=flash,
        nvcc_cuda=_nvcc_cuda(software.nvcc),
        ninja=_runs(env, "ninja", "--version"),
        wants=tuple(unmet(software)),
        free_inodes=_free_inodes(env.cwd),
        memlock_bytes=_memlock(),
        infiniband=any((root / "sys/class/infiniband").glob("*")),
        wsl="microsoft" in _text(root / "proc/version").lower(),
        port=_port(),
        other_accelerator=_other_accelerator(root),
        no_interface=_no_interface(env, root),
    )


def unmet(software: Software) -> Iterator[str]:
    """``ms-swift wants transformers<5.20.0, 5.21.0 is installed``, for each requirement that does not hold."""
    for name in _ENGINE:
        for text in _requires(name):
            with contextlib.suppress(InvalidRequirement):
                wanted = Requirement(text)
                found = software.versions.get(wanted.name)
                outside = wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})
                if found and not outside and not wanted.specifier.contains(found, prereleases=True):
                    yield f"{name} wants {wanted.name}{wanted.specifier}, {found} is installed"


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _python(env: Environment, code: str) -> Answer:
    folder = Path(env.home) if Path(env.home).is_dir() else Path("/")  # a folder named torch beside us is not torch
    return ask((env.interpreter, "-c", code), env=env.variables, cwd=folder, timeout_s=_IMPORT_TIMEOUT_S)


def _torch(env: Environment) -> tuple[dict[str, Any], str | None]:
    """What torch says of itself, or why it cannot be imported."""
    done = _python(env, _TORCH)
    try:
        return dict(json.loads(done.out.splitlines()[-1])), None
    except (ValueError, IndexError):
        return {}, _why(done)


def _imported(env: Environment, module: str) -> str | None:
    """Why a module cannot be imported; None: it can."""
    done = _python(env, f"import {module}")
    return None if done.exit_code == 0 else _why(done)


def _why(done: Answer) -> str:
    """The last line of a traceback, or how the process ended."""
    lines = [line.strip() for line in done.err.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"the process ended with code {done.exit_code}"


def _nvcc_cuda(nvcc: str | None) -> str | None:
    if nvcc is None:
        return None
    done = ask((nvcc, "--version"), env={}, cwd=Path("/"), timeout_s=20)
    match = re.search(r"release (\d+\.\d+)", done.out)
    return match[1] if match else None


def _runs(env: Environment, *command: str) -> bool:
    """Whether a program can be started as the engine would: from PATH, or beside the interpreter."""
    path = os.pathsep.join((str(Path(env.interpreter).parent), env.variables.get("PATH", "")))
    program = shutil.which(command[0], path=path)
    if program is None:
        return False
    return ask((program, *command[1:]), env={"PATH": path}, cwd=Path("/"), timeout_s=20).exit_code == 0


def _free_inodes(folder: str) -> int | None:
    with contextlib.suppress(OSError, AttributeError):
        found = os.statvfs(folder)
        return found.f_favail if found.f_files else None  # btrfs and the like have no fixed number
    return None


def _memlock() -> int | None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return None if limit == resource.RLIM_INFINITY else limit
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


# Device files of accelerators that this version does not plan for.
_OTHERS = (("AMD ROCm", "dev/kfd"), ("Ascend NPU", "dev/davinci0"), ("Intel Gaudi", "dev/accel/accel0"))


def _other_accelerator(root: Path) -> str | None:
    if platform.system() == "Darwin":
        return "Apple MPS"
    return next((name for name, device in _OTHERS if (root / device).exists()), None)


def _no_interface(env: Environment, root: Path) -> str | None:
    """NCCL takes names as beginnings of names unless '=' stands before them; '^' excludes instead of choosing."""
    there = [path.name for path in (root / "sys/class/net").glob("*")]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = env.variables.get(variable, "")
        wanted = [name.strip() for name in value.removeprefix("=").split(",") if name.strip()]
        if not there or not wanted or value.startswith("^"):
            continue
        if not any(name == one or name.startswith(one) for one in wanted for name in there):
            return f"{variable}={value}"
    return None


def _port() -> bool:
    with contextlib.suppress(OSError):
        return free_port() > 0
    return False
