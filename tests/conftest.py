"""Shared fixtures: every test has its own HOME, caches and state, and no AUTOSWIFT_* or launcher variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from goldens import Golden
from hypothesis import HealthCheck, settings

# A busy machine must not decide: no deadlines, and slow generation is no failure.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

_LAUNCHER_VARIABLES = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Points HOME and the XDG folders at a fresh directory so that no test sees or leaves a user's files."""
    home = tmp_path_factory.mktemp("home")
    for name in (*_LAUNCHER_VARIABLES, *(key for key in os.environ if key.startswith("AUTOSWIFT_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # no test asks a hub but those that play one
    return home


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where DeepSpeed's CPUAdam is compiled (a minute on 2 cores), for all tests: their homes are thrown away."""
    return tmp_path_factory.mktemp("torch_extensions")


@pytest.fixture(autouse=True)
def _extensions(compiled_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(compiled_once))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files, then review the diff")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """How many of the public bug reports have been decided in this run, and by a written reason not."""
    passed: set[str] = set()
    failed: set[str] = set()
    for word, found in (("passed", passed), ("failed", failed)):
        for report in terminalreporter.stats.get(word, []):
            found.update(value for name, value in getattr(report, "user_properties", ()) if name == "bug report")
    if passed or failed:
        from reports.undecided import REPORTS, UNDECIDED

        decided = passed - failed - set(UNDECIDED)
        terminalreporter.write_line(
            f"bug reports: {len(decided)} of {REPORTS} decided, {len(UNDECIDED)} left by a written reason"
            + (f", failing: {', '.join(sorted(failed))}" if failed else "")
        )


@pytest.fixture(autouse=True)
def _bug_report(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers("report"):
        request.node.user_properties.append(("bug report", mark.args[0]))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(update=request.config.getoption("--update-golden"))
