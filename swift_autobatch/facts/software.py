"""Which engines are installed and what can be compiled, from package metadata; imports none of them."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata
from pathlib import Path

from swift_autobatch.facts import driver
from swift_autobatch.records import Environment, Software

# What decides which code path runs, or is worth saying in a bug report.
DISTRIBUTIONS = (
    "ms-swift",
    "torch",
    "transformers",
    "deepspeed",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "tokenizers",
    "safetensors",
    "bitsandbytes",
    "flash-attn",
    "flash-attn-3",
    "kernels",
    "liger-kernel",
    "megatron-core",
    "mcore-bridge",
    "transformer-engine",
    "modelscope",
    "huggingface-hub",
    "vllm",
    "ninja",
    "mpi4py",
    "qwen-vl-utils",
    "tensorboard",
    "nvidia-ml-py",
)
_COMPILERS = ("c++", "g++", "clang++")


def read_software(env: Environment) -> Software:
    """What is installed beside us.

    Args:
        env: its PATH, CXX and CUDA_HOME decide which compilers the engine would find.

    Returns:
        Versions by distribution name (None: absent), the driver's and CUDA driver's version (None: no driver),
        and the paths of a C++ compiler and nvcc (None: nothing to compile DeepSpeed's operators with).
    """
    versions = driver.read_versions()
    return Software(
        versions={name: _version(name) for name in DISTRIBUTIONS},
        python=platform.python_version(),
        driver=versions.driver if versions else None,
        cuda_driver=versions.cuda if versions else None,
        compiler=_compiler(env),
        nvcc=_nvcc(env),
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _compiler(env: Environment) -> str | None:
    """The C++ compiler that torch's extension builder would use: CXX, else c++ and its usual names."""
    chosen = env.variables.get("CXX")
    names = (chosen,) if chosen else _COMPILERS
    return next((found for name in names if (found := _which(name, env))), None)


def _nvcc(env: Environment) -> str | None:
    """nvcc of CUDA_HOME or CUDA_PATH first, as torch and DeepSpeed look it up, then of PATH."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        candidate = Path(env.variables.get(variable, "")) / "bin" / "nvcc"
        if env.variables.get(variable) and candidate.is_file():
            return str(candidate)
    return _which("nvcc", env) or next((path for path in ("/usr/local/cuda/bin/nvcc",) if Path(path).is_file()), None)


def _which(name: str, env: Environment) -> str | None:
    # An empty PATH is not "unset": shutil.which would fall back to os.environ for None, never for "".
    return shutil.which(name, path=env.variables.get("PATH", ""))
