"""examples/project/: its recipe holds on the class of machine that it names, and its Makefile runs here for real."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swift_autobatch import api
from swift_autobatch.recipe import check_file, read_recipe
from swift_autobatch.request import build_request, read_environment
from swift_autobatch.units import GIB

PROJECT = Path(__file__).parents[1] / "examples" / "project"
AUTOSWIFT = Path(sys.executable).parent / "autoswift"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the example somewhere else."""
    folder = tmp_path / "a project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("output"))
    monkeypatch.chdir(folder)
    return folder


def test_the_rows_and_the_recipe_are_in_order() -> None:
    assert check_file(PROJECT / "recipe.yaml") == "autoswift.recipe/1"
    rows = [json.loads(line) for line in (PROJECT / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == read_recipe(PROJECT / "recipe.yaml").data["rows"] == 36
    for row in rows:
        command = json.loads(row["response"])
        assert set(command) <= {"do", "when", "what"}
        assert command["do"] in ("alarm", "remind", "timer", "event", "cancel")


def test_the_committed_decision_holds_on_its_class(project: Path) -> None:
    """Red when the planner or the renderer changed: `make recipe` in examples/project writes it anew."""
    env = read_environment()
    machine = api.machine_json(api.machine(build_request({"nproc": 1}, (), env), env))
    machine["host"].update(ram_total_bytes=16 * GIB, ram_budget_bytes=12 * GIB)
    (project / "machine.json").write_text(json.dumps({**machine, "gpus": [], "links": "none", "processes": 1}))
    request = build_request({"recipe": "recipe.yaml", "locked": True, "hardware": "machine.json"}, (), env)
    recipe = read_recipe(project / "recipe.yaml")
    decided = api.plan(request, env)
    assert decided.machine_class == recipe.machine_class == "1xcpu-ram16"
    assert decided.facts.data.digest == recipe.data["digest"]
    places = ("model", "dataset", "output_dir", "external_plugins", "callbacks")
    args = {flag: arg.value for flag, arg in decided.engine_args.items() if flag not in places}
    assert args == {flag: value for flag, value in recipe.arguments.items() if flag not in places}


def make(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["make", *words, f"AUTOSWIFT={AUTOSWIFT}"], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def receipt(project: Path) -> Mapping[str, Any]:
    """The newest receipt below output/."""
    newest = max(project.glob("output/*/*/autoswift/receipt.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    return found


@pytest.mark.engine
def test_both_targets_run_here(project: Path) -> None:
    proved = make(project, "dry-run")
    assert "recipe recipe.yaml" in proved.stderr  # taken as it stands, or what no longer holds on this machine
    assert receipt(project)["verdict"] == "pass"
    trained = make(project, "train", "ARGS=--skip-dry-run")
    assert "\nDone\n  trained " in trained.stdout
    training = receipt(project)["training"]
    assert training["done"]
    assert training["token_acc"] > 0.9
    assert (Path(training["checkpoint"]) / "model.safetensors").is_file()


@pytest.mark.engine
def test_a_dry_run_writes_a_recipe_with_what_it_measured(project: Path) -> None:
    make(project, "recipe", "ARGS=--global-batch 4")
    recipe = read_recipe(project / "recipe.yaml")
    assert recipe.request["global_batch"] == 4
    assert recipe.measured["by"] == "dry run"
    assert 10**8 < recipe.measured["device_bytes"] <= recipe.measured["host_bytes"] < 10**10
    assert recipe.measured["step_s"] > 0
    told = make(project, "plan", "ARGS=--locked").stderr
    assert f"planned for {recipe.machine_class}, taken as it stands" in told
