"""A file read in parts says the same as one read from end to end; a sample finds the same costliest rows."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import environment
from test_dataset import model_facts

from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.shards import Limits
from swift_autobatch.facts.strata import SAMPLED, Strata, confidence
from swift_autobatch.facts.tally import COSTLIEST
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Environment, ModelFacts

WHOLE = Limits(parallel_bytes=1 << 50)
PARTS = Limits(parallel_bytes=1, part_bytes=3000)
SAMPLE = Limits(parallel_bytes=1, sampled_bytes=1, part_bytes=50_000)
WORDS = "the cat 你好，世界 sat on 42 mats\n\n <|im_end|> naïve cafe\u0301 😀 \u1d15e x".split(" ")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return replace(environment(tmp_path_factory.mktemp("shards")), interpreter=sys.executable)


@pytest.fixture(scope="module")
def model(env: Environment) -> ModelFacts:
    return model_facts(embedded.ensure_model(env))


def read(path: Path, model: ModelFacts, env: Environment, limits: Limits, *, full: bool = False) -> DataFacts:
    return read_dataset((str(path),), model, env, system=None, progress=Silent(), full=full, limits=limits)


def rows(count: int, seed: int, sigma: float = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=max(1, int(chance.lognormvariate(2.5, sigma)))))

    return [{"query": text(), "response": text()} for _ in range(count)]


def odd_lines() -> list[str]:
    """What the fast reader hands to the careful one, and what the engine drops or doubts."""
    return [
        '{"query": "spaced" , "response" : "names"}',
        '{"query": "nan", "response": NaN}',
        "null",
        "",
        '{"query": "two", "response": "on"} {"query": "one", "response": "line"}',
        '{"query": "\\ud83d\\ude00 escaped", "response": "pair"}',
        '{"query": "none"}',
        '{"query": 5, "response": "number"}',
        '{"query": "{{NAME}}?", "response": ""}',
        '{"query": "in a \\"string\\": x", "response": "y"}',
    ]


def test_parts_add_up_to_the_whole(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows(300, 1)]
    for at, odd in enumerate(odd_lines() * 12):
        lines.insert(1 + at * 3, odd)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    whole, parts = read(path, model, env, WHOLE), read(path, model, env, PARTS)
    for name in DataFacts.__slots__:
        assert getattr(parts, name) == getattr(whole, name), name
    assert whole.kept < whole.rows
    assert len(whole.problems) > len(odd_lines())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sample_finds_the_costliest_rows(tmp_path: Path, model: ModelFacts, env: Environment, seed: int) -> None:
    path = tmp_path / "rows.jsonl"
    table = rows(12_000, seed, 0.25)
    for row in table[::40]:
        row["response"] *= 20 + seed
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in table), encoding="utf-8")
    full, sample = read(path, model, env, SAMPLE, full=True), read(path, model, env, SAMPLE)
    assert sample.counted_rows < 0.8 * full.counted_rows == 0.8 * 12_000
    assert sample.costliest == full.costliest
    assert len(full.costliest) == COSTLIEST
    assert (sample.rows, sample.kept, sample.problems) == (full.rows, full.kept, full.problems)
    assert sample.max_tokens == full.max_tokens
    assert sample.max_supervised_tokens == full.max_supervised_tokens
    assert full.confidence is None
    assert sample.confidence is not None
    for name in ("p50_tokens", "p90_tokens", "p95_tokens", "p99_tokens", "mean_tokens", "mean_supervised_tokens"):
        assert getattr(sample, name) == pytest.approx(getattr(full, name), rel=0.02), name
    again = read(path, model, env, replace(SAMPLE, part_bytes=170_000))
    assert again == sample, "how the file was cut must not matter"


def test_rows_of_one_size_are_all_counted(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    """No row can be passed over when every row may be the longest: the bound keeps nothing back."""
    chance = random.Random(5)
    table = [{"query": "q", "response": "".join(chance.choices("abcdefgh ", k=400))} for _ in range(9000)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in table), encoding="utf-8")
    full, sample = read(path, model, env, SAMPLE, full=True), read(path, model, env, SAMPLE)
    assert sample.costliest == full.costliest


def test_an_object_over_several_lines_is_read_as_a_whole(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row, indent=1) for row in rows(40, 4)), encoding="utf-8")
    assert read(path, model, env, PARTS) == read(path, model, env, WHOLE)


def test_the_sample_does_not_depend_on_the_order_of_parts() -> None:
    places = [(0, at * 100, at) for at in range(3000)]
    one, first, second = Strata(), Strata(), Strata()
    for place in places:
        one.add(500, 500, place, 0)
    for place in places[1500:]:
        second.add(500, 500, place, 0)
    for place in places[:1500]:
        first.add(500, 500, place, 0)
    second.merge(first)
    (stratum,), (other,) = one.classes.values(), second.classes.values()
    assert sorted(stratum.kept) == sorted(other.kept)
    assert (stratum.rows, len(stratum.kept)) == (3000, SAMPLED)


def test_the_stated_confidence_holds() -> None:
    """Of 200 samples, the true median lies within the stated distance in 95 %, give or take chance."""
    chance = random.Random(7)
    truth = sorted(int(chance.lognormvariate(5, 1)) + 1 for _ in range(20_000))
    median, inside = truth[9_999], 0
    for _ in range(200):
        sample = sorted(chance.sample(truth, 800))
        said = 100 * confidence({0: sample}, {0: 20_000}).off[0.5]
        inside += abs(sample[399] - median) / sample[399] * 100 <= said + 0.05
    assert 180 <= inside <= 200
