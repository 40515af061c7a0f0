"""The README's commands work as written: every block marked ``<!-- run -->`` is executed in a copy of the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- (run|engine) -->\n```(bash|python)\n(.*?)```", re.S)
BLOCKS = [(kind, language, text) for kind, language, text in BLOCK.findall(README)]


def execute(language: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", text] if language == "bash" else [sys.executable, "-c", text]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_readme_has_blocks_to_run() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("text", [text for kind, _, text in BLOCKS if kind == "run" and _ == "bash"])
def test_command(text: str, tmp_path: Path) -> None:
    done = execute("bash", text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("text", [text for kind, language, text in BLOCKS if kind == "run" and language == "python"])
def test_python(text: str, tmp_path: Path) -> None:
    done = execute("python", text, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
@pytest.mark.parametrize(
    ("language", "text"), [(language, text) for kind, language, text in BLOCKS if kind == "engine"]
)
def test_engine_command(language: str, text: str, tmp_path: Path) -> None:
    done = execute(language, text, tmp_path)
    assert done.returncode == 0, done.stderr


def test_files_named_in_the_readme_exist() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_figures_named_in_the_readme_hold() -> None:
    """Counts in the text are counted, so that they cannot go stale."""
    from swift_autobatch import tables

    assert f"takes any of {len(tables.gpus())} cards" in README.replace("\n", " ")
    assert f"the {len(tables.models())} model ids" in README.replace("\n", " ")
    assert f"has {len(tables.dialect().flags)} flags" in README.replace("\n", " ")
