"""What people read, to the letter, within 80 columns when piped. ``--update-golden`` rewrites the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plan_example as example
import pytest

from swift_autobatch.cli import show, show_machine, show_run, text
from swift_autobatch.records import PhaseMemory

GOLDEN = Path(__file__).parent / "golden"

PAGES = {
    "plan": lambda: show.plan(example.PLAN, columns=80),
    "plan-v": lambda: show.plan(example.PLAN, verbose=True, columns=80),
    "dry-run": lambda: show_run.verdict(example.PLAN, example.VERDICT, "/run", columns=80),
    "sft": lambda: show_run.finished(example.PLAN, example.RUN, "/run", columns=80),
    "env": lambda: show_machine.machine(example.MACHINE, verbose=True, columns=80),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_as_agreed(name: str, request: pytest.FixtureRequest) -> None:
    lines = [line.rstrip() for line in PAGES[name]()]
    assert max(len(line) for line in lines) <= 80
    shown = "\n".join(lines) + "\n"
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_verbose_names_the_source_of_every_value() -> None:
    shown = "\n".join(show.plan(example.PLAN, verbose=True, columns=80))
    for name, found in example.PLAN.engine_args.items():
        assert f"--{name} " in shown
        assert found.source in shown


def test_memory_lines_show_every_term_and_the_budget() -> None:
    shown = show.plan(example.PLAN, columns=80)
    for name in ("weights", "adapters", "logits", "context", "expected", "budget"):
        assert any(line.strip().startswith(name) for line in shown), name


def test_nothing_measured_and_nothing_saved_is_said() -> None:
    run = replace(example.RUN, measured=(), checkpoint=None, infer_command=None, answers=(), steps=())
    shown = "\n".join(show_run.finished(example.PLAN, run, "/run", columns=80))
    assert "peak unknown" in shown
    assert "none was saved" in shown
    assert "What it answers" not in shown


def test_on_cpu_memory_is_counted_per_process() -> None:
    plan = replace(example.PLAN, candidate=replace(example.CANDIDATE, device="cpu", tuner="full"))
    shown = "\n".join(show_run.finished(plan, example.RUN, "/run", columns=80))
    assert "peak 4.50 GiB a process" in shown
    assert "  model " in shown
    phases = (PhaseMemory(phase="load", gpu_bytes=0, host_bytes=1),)
    plan = replace(plan, prediction=replace(example.PREDICTION, phases=phases))
    table = "\n".join(show_run.verdict(plan, example.VERDICT, "/run", columns=80))
    assert "a process" in table


def test_width_is_80_when_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert text.width() == 80
