"""Five reports of real users about their data, each from a tiny file with the answer it should have had.

``dataset_reports.jsonl`` holds what each report is and asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import environment
from test_dataset import model_facts, refused

from swift_autobatch import api
from swift_autobatch.errors import InputError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Environment, ModelFacts, Plan, Sourced
from swift_autobatch.request import build_request

REPORTS = {
    report["id"]: report
    for report in map(json.loads, Path(__file__).with_name("dataset_reports.jsonl").read_text("utf-8").splitlines())
}
Case = Callable[["Desk"], None]
CASES: dict[str, Case] = {}


def case(report: str) -> Callable[[Case], Case]:
    def keep(function: Case) -> Case:
        CASES[report] = function
        return function

    return keep


class Desk:
    """A folder, a model with a real tokenizer, and what autoswift makes of files there."""

    def __init__(self, folder: Path, model: ModelFacts) -> None:
        self.folder = folder
        self.model = model
        self.env: Environment = environment(folder)

    def file(self, name: str, *rows: Any, encoding: str = "utf-8") -> str:
        text = (
            rows[0] if isinstance(rows[0], str) else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
        (self.folder / name).write_bytes(text.encode(encoding))
        return str(self.folder / name)

    def read(self, path: str, **flags: str) -> DataFacts:
        pins = {name: Sourced(value=value, source=f"flag --{name}") for name, value in flags.items()}
        return read_dataset((path,), self.model, self.env, system=None, progress=Silent(), pins=pins)

    def plan(self, path: str, *flags: str) -> Plan:
        words = ("--model", "Qwen/Qwen2.5-0.5B-Instruct", "--dataset", path, *flags)
        return api.plan(build_request({"gpus": "1x4090"}, words, self.env), self.env)


@pytest.fixture
def desk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    home = environment(tmp_path_factory.mktemp("embedded"))
    return Desk(tmp_path, model_facts(embedded.ensure_model(home)))


def talk(*said: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in said]}


def places(data: DataFacts) -> list[tuple[str, int]]:
    return [(problem.code, problem.line) for problem in data.problems]


@case("BR-09")
def rows_whose_answer_is_cut_off(desk: Desk) -> None:
    """Eight rows with about 200 tokens of question and two of answer, at --max_length 64."""
    path = desk.file("long.jsonl", *({"query": f"{n} " + "word " * 200, "response": "yes"} for n in range(8)))
    with pytest.raises(InputError, match="not one of 8 rows keeps a token to learn from") as caught:
        desk.read(path, max_length="64", truncation_strategy="right")
    longest = desk.read(path).max_tokens
    assert caught.value.hints[0] == f"--max_length {longest} cuts no row"
    assert desk.read(path, max_length=str(longest), truncation_strategy="right").problems == ()
    assert desk.read(path, max_length="64", truncation_strategy="left").kept == 8, "the left cut spares the answer"
    mixed = desk.file("mixed.jsonl", {"query": "q", "response": "a"}, {"query": "word " * 200, "response": "yes"})
    assert places(desk.read(mixed, max_length="64", truncation_strategy="right")) == [("cut-answer", 2)]
    with pytest.raises(InputError, match="every row is longer than max_length: 64 tokens"):
        desk.plan(path, "--max_length", "64")  # the engine's default deletes such rows


@case("BR-10")
def half_of_the_rows_disappear(desk: Desk) -> None:
    """One row of messages, one alpaca row, one query and response: the engine keeps one and exits 0."""
    rows = [talk(("user", "a"), ("assistant", "b")), {"instruction": "i", "input": "", "output": "o"}]
    path = desk.file("mixed.jsonl", *rows, {"query": "q", "response": "r"})
    data = desk.read(path)
    assert (data.rows, data.kept) == (3, 1)
    assert dict(data.problem_rows)["mixed-schema"] == 2
    assert places(data) == [("mixed-schema", 2), ("mixed-schema", 3)]
    assert "the file is read as messages, and this row has instruction, output" in data.problems[0].text
    with pytest.raises(InputError, match="2 of 3 rows would be dropped") as caught:
        desk.plan(path)
    assert caught.value.where == f"{path}:2"
    few = desk.file("few.jsonl", *[rows[0]] * 3, rows[1])
    assert desk.plan(few).facts.data.kept == 3, "a quarter is told, not refused"


@case("BR-11")
def a_chinese_code_page(desk: Desk) -> None:
    rows = [{"query": "你是谁", "response": "我是小石"}, {"query": "你好", "response": "好"}]
    for name in ("rows.jsonl", "rows.json", "rows.csv"):
        text = {"rows.json": json.dumps(rows, ensure_ascii=False), "rows.csv": "query,response\n你是谁,我是小石\n"}.get(
            name
        )
        path = desk.file(name, *([text] if text else rows), encoding="gb18030")
        error = refused(path, desk.model, desk.env)
        assert error.what.startswith("GB18030, not UTF-8: byte 0xc4 at byte ")
        assert error.where == f"{path}:{2 if name == 'rows.csv' else 1}"
        assert error.hints[0].startswith(f"convert it: iconv -f gb18030 -t utf-8 {path} > ")
    assert "UTF-16, not UTF-8" in refused(desk.file("wide.jsonl", *rows, encoding="utf-16"), desk.model, desk.env).what
    for encoding in ("utf-8", "utf-8-sig"):
        assert desk.read(desk.file("good.jsonl", *rows, encoding=encoding)).kept == 2


@case("BR-15")
def uneven_turns(desk: Desk) -> None:
    user, answer = ("user", "q"), ("assistant", "a")
    path = desk.file("turns.jsonl", talk(user, answer), talk(user), talk(user, user, answer), talk())
    data = desk.read(path)
    assert (data.rows, data.kept) == (4, 3)
    assert dict(data.problem_rows) == {"no-assistant-turn": 1, "user-twice": 1, "no-turns": 1}
    assert places(data) == [("no-assistant-turn", 2), ("user-twice", 3), ("no-turns", 4)]
    plan = desk.plan(path, "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1")
    assert plan.steps_per_epoch == 3, "from the rows that are kept"


@case("BR-17")
def not_one_object_a_line(desk: Desk) -> None:
    good = '{"query": "a", "response": "b"}'
    commas = refused(desk.file("commas.jsonl", f"{good},\n{good},\n{good}\n"), desk.model, desk.env)
    assert (commas.what, commas.where.rpartition(":")[2]) == ("not JSON: a trailing comma (column 32)", "1")
    assert commas.figures == ("commas.jsonl:2: not JSON: a trailing comma (column 32)",)
    cut = refused(desk.file("cut.jsonl", f'{good}\n{good}\n{{"query": "a", "resp'), desk.model, desk.env)
    assert (cut.what, cut.where.rpartition(":")[2]) == ("not JSON: a string is not closed (column 16)", "3")
    two = desk.read(
        desk.file("two.jsonl", f'{good} {{"query": "c", "response": "d"}}\n{{"query": "e", "response": "f"}}')
    )
    assert (two.rows, two.kept, places(two)) == (3, 3, [("several-on-a-line", 1)])
    rows = [{"query": "a", "response": "b"}, {"query": "c", "response": "d"}]
    pretty = desk.read(desk.file("pretty.jsonl", "\n".join(json.dumps(row, indent=2) for row in rows)))
    assert (pretty.rows, places(pretty)) == (2, [])
    listed = desk.read(desk.file("listed.jsonl", json.dumps(rows, indent=2)))
    assert (listed.rows, places(listed)) == (2, [("list-in-jsonl", 1)])


@pytest.mark.parametrize("report", [pytest.param(name, marks=pytest.mark.report(name)) for name in REPORTS])
def test_report(report: str, desk: Desk) -> None:
    assert REPORTS[report]["what_autoswift_should_do"]
    CASES[report](desk)


def test_every_report_has_its_case() -> None:
    assert set(CASES) == set(REPORTS) == {"BR-09", "BR-10", "BR-11", "BR-15", "BR-17"}


def test_names_that_nobody_filled_in_are_not_planned(desk: Desk) -> None:
    rows = [{"query": "who are you?", "response": "I am {{NAME}}."}, {"query": "q", "response": "a"}]
    path = desk.file("names.jsonl", *rows)
    with pytest.raises(InputError, match=r"1 rows hold \{\{NAME") as caught:
        desk.plan(path)
    assert caught.value.where == f"{path}:1"
    words = caught.value.hints[0].replace("NAME --model_author AUTHOR", "Ann --model_author Bo").split()
    request = build_request({"gpus": "1x4090"}, ("--dataset", words[2], *words[5:]), desk.env)
    done = api.repair(request, desk.env, words[4])
    assert "I am Ann." in Path(done.out).read_text("utf-8")
    assert desk.plan(done.out).facts.data.problems == ()


def test_few_rows_are_said(desk: Desk) -> None:
    rows = [{"query": f"question {n}", "response": "yes"} for n in range(3)]
    path = desk.file("few.jsonl", *rows)
    notes = desk.plan(path, "--per_device_train_batch_size", "8").notes
    assert any("3 rows are fewer than one batch of 1 x 8 rows" in note for note in notes)
    single = desk.plan(desk.file("one.jsonl", rows[0]), "--per_device_train_batch_size", "1").notes
    assert any("a single row" in note for note in single)
    assert not any("rows are fewer" in note for note in desk.plan(path, "--per_device_train_batch_size", "2").notes)
