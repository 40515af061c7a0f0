"""``autoswift profile``: what it says of data, the card that stands for them, and what a max_length is worth."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from swift_autobatch import api
from swift_autobatch.cli import main
from swift_autobatch.facts.card import dump_card
from swift_autobatch.records import DataFacts, Environment, Request
from swift_autobatch.request import build_request, read_environment

GPUS = ("--gpus", "1x4090")
SECRET = "xylophone"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chance = random.Random(3)
    table: list[dict[str, Any]] = [
        {"query": f"{SECRET}?", "response": "word " * max(1, int(chance.lognormvariate(4, 1)))} for _ in range(400)
    ]
    table += [{"query": "no answer"}, {"query": 7, "response": "number"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in table), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*words: str) -> tuple[Request, Environment]:
    env = read_environment()
    return build_request({"gpus": "1x4090"}, words, env), env


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(words)
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def test_what_people_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profile", "rows.jsonl", *GPUS)
    assert code == 0
    assert "401 of 402 train" in out
    assert "rows.jsonl:402" in out, "the dropped row, by its place"
    assert "not-text, 1 (dropped)" in out
    assert "no-assistant-turn, 1 (trained all the same)" in out
    assert "what no row needs is free" in out
    assert "assumed" in out
    assert max(map(len, out.splitlines())) <= 80
    assert SECRET not in out


def test_the_card_holds_no_word_of_a_row_and_plans_the_same(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profile", "rows.jsonl", "--json", *GPUS)
    assert code == 0
    card = json.loads(out)
    assert card["schema"] == "autoswift.data/1"
    assert SECRET not in out
    assert "record" not in json.dumps(card["costliest"])
    (project / "card.json").write_text(out)
    with_rows, with_card = api.plan(*asked("--dataset", "rows.jsonl")), api.plan(*asked("--dataset", "card.json"))
    assert with_card.candidate == with_rows.candidate
    assert with_card.prediction == with_rows.prediction
    assert with_card.digest == with_rows.digest
    assert with_card.engine_args == with_rows.engine_args
    again = dump_card(with_card.facts.data)
    assert {name: card[name] for name in again} == json.loads(json.dumps(again))


def test_a_card_cannot_be_trained_or_proved(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "profile", "rows.jsonl", "--json", *GPUS)
    (project / "card.json").write_text(out)
    for command in ("sft", "dry-run"):
        code, _, err = run(capsys, command, "--dataset", "card.json")
        assert code == 5
        assert "a dataset card holds no rows" in err
        assert "autoswift plan" in err
    code, _, err = run(capsys, "plan", "--dataset", "card.json", "rows.jsonl", *GPUS)
    assert code == 5
    assert "stands alone" in err


@pytest.mark.parametrize("change", [{"lengths": []}, {"lengths": [9, 3]}, {"rows": None, "kept": None}, {"files": 3}])
def test_a_broken_card_is_refused(project: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]) -> None:
    _, out, _ = run(capsys, "profile", "rows.jsonl", "--json", *GPUS)
    card = json.loads(out) | change
    card = {name: value for name, value in card.items() if value is not None}
    (project / "card.json").write_text(json.dumps(card))
    code, _, err = run(capsys, "plan", "--dataset", "card.json", *GPUS)
    assert code == 5
    assert "the dataset card cannot be read" in err
    assert "Traceback" not in err


def test_an_unused_max_length_is_free_and_a_short_one_saves_by_what_it_drops(project: Path) -> None:
    found = api.profile(*asked("--dataset", "rows.jsonl"))
    assert found.worth is not None
    choices = found.worth.lengths
    assert [choice.max_length for choice in choices] == sorted({choice.max_length for choice in choices})
    data: DataFacts = found.facts.data
    unused = choices[-1]
    longest = next(choice for choice in choices if choice.max_length >= data.max_tokens)
    assert unused.why == "unused"
    assert unused.rows_over == 0 == longest.rows_over
    assert (unused.demand_bytes, unused.step_s, unused.epoch_s) == (
        longest.demand_bytes,
        longest.step_s,
        longest.epoch_s,
    )
    for shorter, longer in pairwise(choices):
        assert shorter.rows_over >= longer.rows_over
        assert shorter.tokens_lost >= longer.tokens_lost
        assert shorter.demand_bytes <= longer.demand_bytes
        assert shorter.epoch_s <= longer.epoch_s
    for choice in choices:
        assert choice.rows_over == sum(length > choice.max_length for length in data.lengths)
    wastes = [one.waste for one in found.worth.padding]
    assert wastes[0] == pytest.approx(0)
    assert wastes == sorted(wastes)
    assert found.worth.packing_gain >= 1


def test_a_picture(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="--plot needs matplotlib")
    code, _, _ = run(capsys, "profile", "rows.jsonl", "--plot", "lengths.png", *GPUS)
    assert code == 0
    assert (project / "lengths.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run(capsys, "profile", "rows.jsonl", "--plot", "lengths.png", *GPUS)
    assert code == 2
    assert "exists" in err
    code, _, err = run(capsys, "profile", "rows.jsonl", "--plot", "lengths.jpg", *GPUS)
    assert code == 2
    assert ".png" in err


@pytest.mark.parametrize("command", ["plan", "profile"])
def test_both_commands_name_each_problem_with_its_place(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = [{"query": f"<image>{i}?", "response": f"cat {i}", "images": [f"no{i}.png"]} for i in range(12)]
    table = [*seen, *([{"query": "who are you?", "response": "Ember"}] * 28)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in table), encoding="utf-8")
    code, out, _ = run(capsys, command, "--dataset", "rows.jsonl", "--model", "Qwen/Qwen2.5-VL-3B-Instruct", *GPUS)
    assert code == 0
    words = " ".join(out.split())
    assert "broken-image, 12 (trained all the same): no0.png: No such file" in words
    assert "At rows.jsonl:1, rows.jsonl:2, rows.jsonl:3. fix: correct the path" in words
    assert "duplicate, 27 (trained all the same): says the same as line 13." in words
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("times", [1, 3])
def test_estimated_lengths_are_one_measure(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"query": "what is it?", "response": "it is forty two"}\n' * times)
    code, out, _ = run(capsys, "profile", "rows.jsonl", *GPUS)
    assert code == 0
    found = re.search(r"P50 (\d+), .*longest (\d+), planned for as (\d+); (\d+)\s+in all", out.replace("\n  ", " "))
    assert found is not None, out
    half, longest, planned, total = map(int, found.groups())
    assert (half, total) == (longest, longest * times)
    assert planned > longest
    bars = re.findall(r"^ +(\d+)-(\d+) +(\d+) +\S", out, re.MULTILINE)
    assert bars == [(str(longest), str(longest), str(times))]
    assert re.search(rf"rows.jsonl:1 {planned}.* planned for", out)


def test_rows_that_are_cut_are_said_and_answers_that_go_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = ("plan", "--dataset", "rows.jsonl", *GPUS, "--truncation_strategy", "right", "--max_length")
    code, out, _ = run(capsys, *cut, "40")
    assert code == 0
    assert "cut to 40" in " ".join(out.split())
    code, _, err = run(capsys, *cut, "10")
    assert code == 5
    assert "keeps a token to learn from: at least" in err
    whole = re.search(r"--max_length (\d+) cuts no row", err)
    assert whole is not None
    code, out, _ = run(capsys, *cut, whole[1])
    assert code == 0
    assert "cut to" not in out


def test_rows_for_evaluation_do_not_train(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(run(capsys, "plan", "--dataset", "rows.jsonl", *GPUS, "--json")[1])
    split = ("--dataset", "rows.jsonl", *GPUS, "--split_dataset_ratio", "0.5")
    half = json.loads(run(capsys, "plan", *split, "--json")[1])
    assert half["steps"]["total"] < 0.6 * whole["steps"]["total"]
    assert "201 of 402 train, 200 are for evaluation" in " ".join(run(capsys, "plan", *split)[1].split())
    none = json.loads(run(capsys, "plan", *split, "--eval_strategy", "no", "--json")[1])
    assert none["steps"]["total"] == whole["steps"]["total"]


def test_a_split_that_leaves_nothing_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "one.jsonl").write_text('{"query": "q", "response": "r"}\n')
    code, out, err = run(capsys, "plan", "--dataset", "one.jsonl", *GPUS, "--split_dataset_ratio", "0.1")
    assert (code, out) == (5, "")
    assert "leaves no row to train on" in err
