"""A disk too small for the checkpoints is told before anything is launched; nothing here starts the engine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jobs
import public_command
import pytest

from swift_autobatch import checkpoints

MIB = 1 << 20


def test_a_disk_that_cannot_hold_the_checkpoints_is_refused(tmp_path: Path) -> None:
    """The output folder is a disk of 64 MiB in a private mount namespace; the demonstration's checkpoints need more."""
    if subprocess.run(("unshare", "--mount", "--map-root-user", "true"), check=False, capture_output=True).returncode:
        pytest.skip("no small disk can be made here: unshare --mount is not allowed")
    (tmp_path / "output").mkdir()
    script = 'mount -t tmpfs -o size=64m small output && "$@"; code=$?; find output; exit $code'
    wrapped = ("unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(public_command.AUTOSWIFT))
    done = subprocess.run((*wrapped, "sft"), cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "error: the checkpoints of this job need up to 0.16 GiB of disk and 0.06 GiB are free" in done.stderr
    assert "hint: --save_only_model true" in done.stderr
    assert done.stdout.split() == ["output"]  # not even a run folder


def test_the_hint_of_a_small_disk_is_enough(tmp_path: Path) -> None:
    plan, asked = jobs.plan(tmp_path), jobs.request()
    model = plan.facts.model
    whole = checkpoints.disk_needed(plan.candidate, model, asked)
    bare = checkpoints.disk_needed(plan.candidate, model, jobs.request(save_only_model="true"))
    assert whole == 4 * 3 * 4 * model.params_total  # four checkpoints of weights and two states in fp32
    assert bare == whole / 3
    measured = checkpoints.disk_needed(plan.candidate, model, asked, 50 * MIB)
    assert measured == 200 * MIB
