"""``autoswift receipts ls|show`` as a user runs them, on receipts of this very machine's state folder."""

from __future__ import annotations

from pathlib import Path

import jobs
import public_command
import pytest
from test_receipt import finished, verdict

from swift_autobatch import receipt


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    plan, env = jobs.plan(tmp_path), jobs.environment(tmp_path)
    for name, run in (("20260101-000000-aaaaaaaa", None), ("20260102-000000-bbbbbbbb", finished(tmp_path))):
        receipt.record(plan, folder=tmp_path / name, env=env, verdict=verdict(tmp_path / name), run=run)
    return tmp_path


def test_ls_and_show(kept: Path) -> None:
    listed = public_command.run(kept, "receipts", "ls")
    assert (listed.exit_code, listed.stderr) == (0, "")
    lines = listed.stdout.splitlines()
    assert lines[0] == "1xcpu-ram16"
    assert [line.split()[:4] for line in lines[2:4]] == [
        ["20260101-000000-aaaaaaaa", "cpu", "dry", "run"],
        ["20260102-000000-bbbbbbbb", "cpu", "trained", "0%"],
    ]
    assert max(len(line) for line in lines) <= 80
    shown = public_command.run(kept, "receipts", "show")
    assert shown.exit_code == 0
    assert "training  3 steps in 30 s" in shown.stdout
    assert "training, first step" in shown.stdout
    assert "no longer the same here" in shown.stdout  # the plan of these tests has no peft
    first = public_command.run(kept, "receipts", "show", "20260101", "--json")
    assert first.json["folder"].endswith("aaaaaaaa")
    every = public_command.run(kept, "receipts", "ls", "--json").json
    assert (every["schema"], len(every["receipts"])) == ("autoswift.receipts/1", 2)
    assert [sorted(one) for one in every["receipts"]] == [["name", "path", "receipt"]] * 2


def test_a_name_that_is_none_is_an_input_error_with_a_hint_that_works(kept: Path) -> None:
    done = public_command.run(kept, "receipts", "show", "nope")
    assert done.exit_code == 5
    assert "there is no receipt 'nope'" in done.stderr
    assert "hint: autoswift receipts ls lists them" in done.stderr
