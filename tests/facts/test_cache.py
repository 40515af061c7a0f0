"""What large data were found to hold is kept, and believed only while nothing it depends on has changed."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import environment
from test_dataset import model_facts

from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.shards import Limits
from swift_autobatch.records import DataFacts, Environment, ModelFacts

LARGE = Limits(parallel_bytes=1)
TAKEN = "taken from the cache"


class Heard:
    """Collects stage lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def update(self, text: str) -> None:
        pass

    def clear(self) -> None:
        pass


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return replace(environment(tmp_path), interpreter=sys.executable)


@pytest.fixture
def model(env: Environment) -> ModelFacts:
    return model_facts(embedded.ensure_model(env))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    table = [{"query": "who are you?", "response": f"I am Ember {at}", "x": 1.5} for at in range(100)]
    path.write_text("\n".join(json.dumps(row) for row in [*table, {"query": 3}]) + "\n")
    return path


def read(
    rows: Path, model: ModelFacts, env: Environment, *, system: str | None = None, full: bool = False
) -> tuple[DataFacts, bool]:
    """The facts, and whether they came from the cache."""
    heard = Heard()
    data = read_dataset((str(rows),), model, env, system=system, progress=heard, full=full, limits=LARGE)
    return data, any(TAKEN in line for line in heard.lines)


def test_the_second_time_it_is_taken_from_the_cache(rows: Path, model: ModelFacts, env: Environment) -> None:
    first, from_cache = read(rows, model, env)
    assert not from_cache
    again, from_cache = read(rows, model, env)
    assert from_cache
    assert again == first
    assert again.costliest[0].record == first.costliest[0].record


def test_a_touched_file_is_known_by_its_content_and_a_changed_one_is_read(
    rows: Path, model: ModelFacts, env: Environment
) -> None:
    first, _ = read(rows, model, env)
    os.utime(rows, (1, 1))
    again, from_cache = read(rows, model, env)
    assert from_cache
    assert again == first
    text = rows.read_text().replace("Ember 7", "Ember 8")
    rows.write_text(text)
    changed, from_cache = read(rows, model, env)
    assert not from_cache
    assert changed.digest != first.digest


def test_another_question_is_not_answered_from_it(rows: Path, model: ModelFacts, env: Environment) -> None:
    read(rows, model, env)
    for other in (
        read(rows, model, env, system="Be brief."),
        read(rows, model, env, full=True),
        read(rows, replace(model, swift_template="chatml"), env),
        read(rows, replace(model, max_position=3), env),
    ):
        assert not other[1]


def test_a_broken_entry_is_not_believed(rows: Path, model: ModelFacts, env: Environment) -> None:
    first, _ = read(rows, model, env)
    for path in (Path(env.cache_dir) / "datasets").glob("content-*"):
        path.write_text(path.read_text()[:-50])
    again, from_cache = read(rows, model, env)
    assert not from_cache
    assert again == first
