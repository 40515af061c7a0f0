"""Rows that ``--split_dataset_ratio`` holds out are not trained: every figure that counts rows follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_autobatch import api
from swift_autobatch.cli import main
from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.facts.card import dump_card, load_facts
from swift_autobatch.facts.sampling import set_apart
from swift_autobatch.records import Plan, Sourced
from swift_autobatch.request import build_request, read_environment


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("rows.jsonl", 50), ("one.jsonl", 1)):
        lines = [json.dumps({"query": f"what is {n}?", "response": f"it is {n}"}) for n in range(rows)]
        (tmp_path / name).write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)


def plan(*words: str) -> Plan:
    env = read_environment()
    return api.plan(build_request({"gpus": "1x4090"}, ("--dataset", "rows.jsonl", *words), env), env)


def test_rows_that_evaluate_are_not_trained(capsys: pytest.CaptureFixture[str]) -> None:
    decided = plan("--split_dataset_ratio", "0.5")
    assert (decided.facts.data.rows, decided.facts.data.kept, decided.facts.data.evaluated_rows) == (50, 25, 25)
    assert (decided.steps_per_epoch, plan().steps_per_epoch) == (2, 4)
    with pytest.raises(SystemExit):
        main(("plan", "--dataset", "rows.jsonl", "--gpus", "1x4090", "--split_dataset_ratio", "0.5"))
    out, _ = capsys.readouterr()
    assert "25 of 50 train, 25 are for evaluation" in out
    assert "will not train" not in out, "held out is not dropped"


@pytest.mark.parametrize(
    "words", ["--val_dataset rows.jsonl", "--streaming true --max_steps 9", "--eval_strategy no", "--save_strategy no"]
)
def test_nothing_is_held_out_where_the_engine_holds_nothing_out(words: str) -> None:
    assert plan("--split_dataset_ratio", "0.5", *words.split()).facts.data.kept == 50


def test_a_card_is_split_by_the_plan_that_reads_it() -> None:
    data = plan("--split_dataset_ratio", "0.2").facts.data
    card = load_facts(json.loads(json.dumps(dump_card(data))), "card.json")
    assert (data.kept, set_apart(card, {}).kept) == (40, 50)
    assert set_apart(card, {"split_dataset_ratio": Sourced(value="0.5", source="flag")}).kept == 25


@pytest.mark.parametrize("ratio", ["1", "-0.1", "1.5"])
def test_a_ratio_that_leaves_nothing_is_a_usage_error(ratio: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        plan("--split_dataset_ratio", ratio)


def test_one_row_cannot_be_split() -> None:
    env = read_environment()
    words = ("--dataset", "one.jsonl", "--split_dataset_ratio", "0.5")
    with pytest.raises(InputError, match="leaves no row to train on"):
        api.plan(build_request({"gpus": "1x4090"}, words, env), env)


def test_rows_to_evaluate_must_be_there() -> None:
    with pytest.raises(UsageError, match="--val_dataset: no such file"):
        plan("--val_dataset", "nope.jsonl")
    assert plan("--val_dataset", "rows.jsonl#5").facts.data.kept == 50
