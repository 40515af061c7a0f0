"""Bad input through the public command: one error with where and a hint, the right exit code, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_autobatch.cli import main

GOOD = '{"query": "who are you?", "response": "Ember"}\n' * 20
GPUS = ("--gpus", "1x4090")


def missing(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    return ("--dataset", "rowz.jsonl", *GPUS)


def malformed(folder: Path) -> tuple[str, ...]:
    (folder / "bad.jsonl").write_text(GOOD + '{"query": "a", "response": "b",}\n' + GOOD)
    return ("--dataset", "bad.jsonl", *GPUS)


def empty(folder: Path) -> tuple[str, ...]:
    (folder / "empty.jsonl").touch()
    return ("--dataset", "empty.jsonl", *GPUS)


def wrong_columns(folder: Path) -> tuple[str, ...]:
    (folder / "columns.jsonl").write_text('{"frage": "wer?", "antwort": "ich"}\n')
    return ("--dataset", "columns.jsonl", *GPUS)


def no_config(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    (folder / "model").mkdir()
    return ("--dataset", "rows.jsonl", "--model", "./model", *GPUS)


def not_a_machine(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    (folder / "machine.json").write_text(json.dumps({"schema": "something/1"}))
    return ("--dataset", "rows.jsonl", "--hardware", "machine.json")


def unknown_card(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    return ("--dataset", "rows.jsonl", "--gpus", "4x4900")


def no_cards(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    return ("--dataset", "rows.jsonl", "--gpus", "0x4090")


def twice(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    return ("--dataset", "rows.jsonl", *GPUS, "--max_length", "512", "--max-length", "1024")


def renamed(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    return ("--dataset", "rows.jsonl", *GPUS, "--train_type", "lora")


def no_rule_allows(folder: Path) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text(GOOD)
    return (
        *("--dataset", "rows.jsonl", "--gpus", "2x4090", "--deepspeed", "zero3"),
        *("--quant_method", "bnb", "--quant_bits", "4"),
    )


def with_rows(*words: str) -> Callable[[Path], tuple[str, ...]]:
    """Good rows, and these words after them."""

    def arguments(folder: Path) -> tuple[str, ...]:
        (folder / "rows.jsonl").write_text(GOOD)
        return ("--dataset", "rows.jsonl", *GPUS, *words)

    return arguments


def data(name: str, text: str) -> Callable[[Path], tuple[str, ...]]:
    """A dataset of that name and text; no file where there is no text."""

    def arguments(folder: Path) -> tuple[str, ...]:
        (folder / "other.jsonl").write_text(GOOD)
        if text:
            (folder / name).write_text(text)
        return ("--dataset", name, *GPUS)

    return arguments


# what: (arguments, exit code, where it points, a word of the hint)
CASES: dict[str, tuple[Callable[[Path], tuple[str, ...]], int, str, str]] = {
    "missing dataset": (missing, 5, "rowz.jsonl", "rows.jsonl"),
    "malformed JSON line": (malformed, 5, "bad.jsonl:21", "line 21"),
    "empty file": (empty, 5, "empty.jsonl", "one JSON object a line"),
    "wrong columns": (wrong_columns, 5, "columns.jsonl:1", "rename"),
    "model folder without config.json": (no_config, 5, "model", "config.json"),
    "a hardware file that is not one": (not_a_machine, 5, "machine.json", "env --json"),
    "a card that does not exist": (unknown_card, 2, "--gpus", "4090"),
    "no cards": (no_cards, 2, "--gpus", "1x4090"),
    "a flag given twice": (twice, 2, "--max", "keep one"),
    "a flag of ms-swift 3": (renamed, 2, "--train_type", "--tuner_type"),
    "semicolons": (data("s.csv", "query;response\na;b\n"), 5, "s.csv", "separated by ';'"),
    "tabs": (data("s.csv", "query\tresponse\na\tb\n"), 5, "s.csv", "separated by tabs"),
    "a line of names alone": (data("s.csv", "query,response\n"), 5, "s.csv", "add rows such as who are you?,"),
    "an empty csv": (data("s.csv", " "), 5, "s.csv", "query,response"),
    "names of another trainer": (data("identity,alpaca", ""), 5, "identity,alpaca", "--dataset identity alpaca"),
    "a share of all rows": (with_rows("--split_dataset_ratio", "1.0"), 2, "--split_dataset_ratio", "0."),
    "rows to evaluate on that are not there": (with_rows("--val_dataset", "v.jsonl"), 2, "--val_dataset", "path"),
    "a combination that no rule allows": (no_rule_allows, 2, "--deepspeed", "zero2"),
}


# About a machine that is not here, which only a plan can be for.
ELSEWHERE = frozenset(
    {
        "a hardware file that is not one",
        "a card that does not exist",
        "no cards",
        "a combination that no rule allows",
    }
)
TRIED = [
    (case, verb) for case in CASES for verb in ("plan", "sft", "dry-run") if verb == "plan" or case not in ELSEWHERE
]


@pytest.mark.parametrize(("case", "verb"), TRIED)
def test_bad_input(
    case: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, exit_code, where, hint = CASES[case]
    monkeypatch.chdir(tmp_path)
    words = arguments(tmp_path)
    if verb != "plan":  # the same mistakes on this machine, where sft and dry-run really run
        words = tuple(word for word in words if word not in ("--gpus", "1x4090", "2x4090"))
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([verb, *words])
    shown = capsys.readouterr()
    assert ended.value.code == exit_code, shown.err
    assert not shown.out
    errors = [line for line in shown.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, shown.err
    assert where in errors[0]
    assert any(hint in line for line in shown.err.splitlines() if line.startswith("hint:")), shown.err
    assert "Traceback" not in shown.err
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
