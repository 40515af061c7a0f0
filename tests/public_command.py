"""Runs ``autoswift`` as a user does: the console script as a child process, in a project folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs

from swift_autobatch import engine_log
from swift_autobatch.facts import embedded

AUTOSWIFT = Path(sys.executable).with_name("autoswift")


@dataclass(frozen=True, kw_only=True)
class Done:
    """A finished command."""

    exit_code: int
    stdout: str
    stderr: str
    project: Path

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    def run_folder(self) -> Path:
        """The one run folder below the project's output folder."""
        (folder,) = self.project.glob("output/*/*")
        return folder

    def gate_folder(self) -> Path:
        return self.run_folder() / "autoswift" / "gate" / "1"

    def telemetry_files(self) -> list[Path]:
        return sorted((self.gate_folder() / "autoswift").glob("telemetry-*.jsonl"))

    def effective(self) -> Any:
        """What really ran in the dry run, as told from inside the engine."""
        return engine_log.effective(engine_log.read_telemetry(self.gate_folder() / "autoswift"))


def run(project: Path, *words: str, timeout_s: float = 300) -> Done:
    """Runs ``autoswift WORDS`` in ``project`` to its end."""
    done = subprocess.run(
        (str(AUTOSWIFT), *words), cwd=project, env=dict(os.environ), text=True, capture_output=True, timeout=timeout_s
    )
    return Done(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, project=project)


def dry_run(project: Path, *words: str) -> Done:
    """``autoswift dry-run`` of the embedded model, named as any other model would be, so that nothing is pinned."""
    model = embedded.ensure_model(jobs.environment(project))
    return run(project, "dry-run", "--json", "--model", str(model), *words)


def receipt(done: Done) -> Any:
    """The receipt that a command left in its run folder."""
    return json.loads((done.run_folder() / "autoswift" / "receipt.json").read_text(encoding="utf-8"))


def alive(mark: str) -> list[int]:
    """Processes whose environment holds ``NAME=value``; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
