"""Versions and compilers, found by the given environment and not by ours."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from builders import environment

from swift_autobatch.facts.software import DISTRIBUTIONS, read_software


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_versions_are_the_installed_ones(tmp_path: Path) -> None:
    found = read_software(environment(tmp_path))
    assert set(found.versions) == set(DISTRIBUTIONS)
    assert found.versions["ms-swift"] == metadata.version("ms-swift")
    assert found.versions["torch"] == metadata.version("torch")


def test_compilers_come_from_the_environment_given(tmp_path: Path) -> None:
    env = environment(tmp_path)
    gcc, own = executable(tmp_path / "bin/g++"), executable(tmp_path / "other/my-c++")
    nvcc = executable(tmp_path / "cuda/bin/nvcc")
    bare = replace(env, variables={"PATH": str(tmp_path / "empty")})
    assert read_software(bare).compiler is None
    assert read_software(replace(env, variables={"PATH": str(tmp_path / "bin")})).compiler == gcc
    chosen = replace(env, variables={"PATH": str(tmp_path / "bin"), "CXX": own, "CUDA_HOME": str(tmp_path / "cuda")})
    assert (read_software(chosen).compiler, read_software(chosen).nvcc) == (own, nvcc)
    assert read_software(replace(env, variables={})).compiler is None


def test_no_engine_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from pathlib import Path\n"
        "from builders import environment\n"
        "from swift_autobatch.facts.software import read_software\n"
        "from swift_autobatch.facts.hardware import read_machine\n"
        f"env = environment(Path({str(tmp_path)!r}))\n"
        "read_machine(env, read_software(env), None)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert not set(done.stdout.split()) & {"torch", "transformers", "deepspeed", "swift", "datasets", "numpy"}
