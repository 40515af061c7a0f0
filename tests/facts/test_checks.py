"""Every check of a dataset: its code and line from a tiny file, and that each code has a severity and a fix."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dataset import PAIR, model_facts, read, refused, write

import swift_autobatch.facts
from swift_autobatch.errors import InputError
from swift_autobatch.facts import repeats
from swift_autobatch.facts.codes import CODES, fix_for
from swift_autobatch.facts.conversation import Conversation, Turn
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.repeats import Repeats
from swift_autobatch.facts.shards import Limits
from swift_autobatch.progress import Silent
from swift_autobatch.records import Environment, ModelFacts

A, B = '{"query": "a", "response": "b"}', '{"query": "c", "response": "d"}'


def talk(*said: tuple[str, str]) -> str:
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}, ensure_ascii=False)


U, R = ("user", "q"), ("assistant", "a")

# file content -> (code, line) of everything that is told about it
TOLD: dict[str, tuple[str | bytes, list[tuple[str, int]]]] = {
    "clean": (f"{A}\n{B}\n", []),
    "two on a line": (f"{A} {B}\n", [("several-on-a-line", 1)]),
    "a list": (f"[{A},\n{B}]", [("list-in-jsonl", 1)]),
    "NaN": (f'{A}\n{{"query": "c", "response": "d", "score": NaN}}\n', [("nan", 2)]),
    "NaN in words": ('{"query": "c", "response": ": NaN"}\n' + A, []),
    "a bell": (f'{A}\n{{"query": "c", "response": "d\\u0007"}}', [("control-character", 2)]),
    "lost characters": (f'{A}\n{{"query": "c", "response": "d\ufffd"}}', [("replacement-character", 2)]),
    "kinds": (f'{A}\n{{"query": "c", "response": 5}}', [("type-drift", 2), ("not-text", 2)]),
    "whole numbers and fractions": (
        '{"query": "a", "response": "b", "n": 1}\n{"query": "c", "response": "d", "n": 1.5}',
        [],
    ),
    "copies": (f"{A}\n{B}\n{A}\n", [("duplicate", 3)]),
    "two questions": (f"{talk(U, U, R)}\n{talk(U, R)}", [("user-twice", 1)]),
    "an answer first": (f"{talk(R, U, R)}\n{talk(U, R)}", [("assistant-first", 1)]),
    "a question left": (f"{talk(U, R, U)}\n{talk(U, R)}", [("unanswered", 1)]),
    "only a question": (f"{talk(U)}\n{talk(U, R)}", [("no-assistant-turn", 1)]),
    "an empty question": (f'{A}\n{{"query": "", "response": "d"}}', [("empty-field", 2)]),
    "an empty answer": (f'{A}\n{{"query": "c", "response": " "}}', [("empty-answer", 2)]),
    "no messages": (f'{talk(U, R)}\n{{"messages": []}}', [("no-turns", 2)]),
    "another form": (
        f'{A}\n{{"instruction": "c", "output": "d"}}\n{talk(U, R)}',
        [("mixed-schema", 1), ("mixed-schema", 2)],
    ),
    "a mark in front": ("\ufeff" + A + "\n" + B, []),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_told(tmp_path: Path, model: ModelFacts, env: Environment, name: str) -> None:
    content, expected = TOLD[name]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    data = read(str(path), model, env)
    assert [(p.code, p.line) for p in data.problems] == expected
    assert data.kept + sum(p.drops_row for p in data.problems) == data.rows


# file content -> (code, line) of everything that stops the engine
STOPS: dict[str, tuple[str | bytes, list[tuple[str, int]]]] = {
    "commas at line ends": (f"{A},\n{B},\n", [("trailing-comma", 1), ("trailing-comma", 2)]),
    "a comma inside": (f'{A}\n{{"query": "c",}}', [("trailing-comma", 2)]),
    "cut lines": (f'{A}\n{{"query": "c", "resp\n{B}\n{{"query": "e"', [("cut-line", 2), ("cut-line", 4)]),
    "a Python dict": ("{'query': 'a', 'response': None}\n" + A, [("single-quotes", 1)]),
    "a raw control character": (f'{A}\n{{"query": "c\x01", "response": "d"}}', [("raw-control", 2)]),
    "a name twice": ('{"query": "a", "query": "b", "response": "c"}\n' + A, [("duplicate-name", 1)]),
    "half a pair": ('{"query": "\\ud800", "response": "c"}\n' + A, [("surrogate", 1)]),
    "a number": (f"{A}\n5\n", [("not-an-object", 2)]),
    "words": (f"{A}\nhello\n{B}\nthere\n", [("not-json", 2), ("not-json", 4)]),
    "UTF-16": (f"{A}\n{B}\n".encode("utf-16"), [("utf-16", 1)]),
    "UTF-16 without a mark": (f"{A}\n{B}\n".encode("utf-16-le"), [("utf-16", 1)]),
    "GB18030": ('{"query": "你好", "response": "好"}\n'.encode("gb18030") + A.encode(), [("gb18030", 1)]),
    "Windows-1252": ('{"query": "café", "response": "thé"}\n'.encode("cp1252"), [("windows-1252", 1)]),
    "a space before a list": (f" [{A}]", [("space-before-list", 1)]),
    "a list with a bad row": (
        f'[\n {A},\n {{"query": "c", "response": oops}},\n {B},\n]',
        [("not-json", 3), ("trailing-comma", 5)],
    ),
    "a list without a comma": (f"[\n{A}\n{B}\n]", [("missing-comma", 3)]),
}


@pytest.mark.parametrize("name", STOPS)
def test_what_stops_the_engine_is_named_in_every_place(
    tmp_path: Path, model: ModelFacts, env: Environment, name: str
) -> None:
    content, expected = STOPS[name]
    path = tmp_path / ("rows.json" if "list" in name else "rows.jsonl")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    error = refused(str(path), model, env)
    (_, line), *others = expected
    assert error.where == f"{path}:{line}"
    assert [figure.split(": ")[0] for figure in error.figures] == [f"{path.name}:{line}" for _, line in others]
    assert all(CODES[code].severity == "stops" for code, _ in expected)


def test_a_cell_that_is_never_closed(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    error = refused(write(tmp_path, "a.csv", 'query,response\na,b\n"c,d\ne,f\n'), model, env)
    assert error.where.endswith(":3")
    assert "never closed" in error.what


# last row of a file of 11 MiB -> what stops the engine there; each was tried with datasets 4.8.4
PAD = "x" * 100_000
LATE: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "a new column": ({}, {"extra": "1"}, "'extra' is not among"),
    "a new column of nulls": ({}, {"extra": None}, "'extra' is not among"),
    "a column less": ({"extra": "1"}, {}, None),
    "a text after nulls": ({"system": None}, {"system": "S"}, "held null"),
    "a fraction after whole numbers": ({"n": 1}, {"n": 1.5}, "held whole numbers"),
    "a text after whole numbers": ({"n": 1}, {"n": "x"}, "held whole numbers"),
    "a number after texts": ({"n": "x"}, {"n": 1}, None),
    "a new field": ({"t": [{"a": "b"}]}, {"t": [{"a": "b", "c": "d"}]}, "'c' inside 't'"),
    "a field less": ({"t": [{"a": "b", "c": "d"}]}, {"t": [{"a": "b"}]}, None),
}


def late_rows(early: dict[str, Any], late: dict[str, Any]) -> list[dict[str, Any]]:
    """112 rows that fill more than 10 MiB, and the one behind them."""
    rows: list[dict[str, Any]] = [{"query": f"{n}", "response": "r", "pad": PAD, **early} for n in range(112)]
    return [*rows, {"query": "last", "response": "r", "pad": "", **late}]


@pytest.mark.parametrize("name", LATE)
def test_what_the_first_10_mib_fix(tmp_path: Path, model: ModelFacts, env: Environment, name: str) -> None:
    early, late, words = LATE[name]
    rows = late_rows(early, late)
    path = write(tmp_path, "rows.jsonl", *rows)
    if words is None:
        assert read(path, model, env).kept == 113
        return
    error = refused(path, model, env)
    assert words in error.what
    assert error.where == f"{path}:113"
    assert read(write(tmp_path, "small.jsonl", rows[0], rows[-1]), model, env).kept == 2, "small: anything goes"


@pytest.mark.parametrize("name", ["a new column", "a fraction after whole numbers", "a column less"])
def test_a_file_read_in_parts_is_judged_the_same(tmp_path: Path, env: Environment, name: str) -> None:
    early, late, words = LATE[name]
    path = write(tmp_path, "rows.jsonl", *late_rows(early, late))
    limits = Limits(parallel_bytes=1, part_bytes=4 << 20)
    try:
        data = read_dataset(
            (path,),
            model_facts(None),
            replace(env, interpreter=sys.executable),
            system=None,
            progress=Silent(),
            limits=limits,
        )
        assert (words, data.kept) == (None, 113)
    except InputError as error:
        assert words is not None
        assert words in error.what
        assert error.where == f"{path}:113"


def test_parts_of_a_folder_share_the_columns_of_the_first(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", "a.jsonl", PAIR)
    write(tmp_path / "parts", "b.jsonl", {"prompt": "a", "completion": "b"})
    error = refused("parts", model, env)
    assert "'prompt' is not among" in error.what
    assert error.where == f"{tmp_path / 'parts' / 'b.jsonl'}:1"


# ----------------------------------------------------------------------------------------------------- the copies


def says(text: str) -> Conversation:
    return Conversation(system=None, turns=(Turn(role="user", content=text),), plain=True, media=False)


def repeated(words: list[int], at: int | None = None) -> Repeats:
    """The words one by one, or in two parts that are merged."""
    found, later = Repeats(), Repeats()
    for line, word in enumerate(words):
        if at is None or line < at:
            found.add("f", line, says(str(word)))
        else:
            later.add("f", line - at, says(str(word)))
    if at is not None:
        found.merge(later, at)
    return found


@settings(deadline=None)
@given(words=st.lists(st.integers(0, 30), max_size=60), at=st.integers(0, 60))
def test_copies_are_counted_exactly_in_one_piece_or_two(words: list[int], at: int) -> None:
    one, two = repeated(words), repeated(words, at)
    assert one.exact
    assert one.total() == len(words) - len(set(words)) == two.total()
    assert {copy[:2] for copy in one.copies} == {copy[:2] for copy in two.copies}
    for _, line, _, first in two.copies:
        assert words[line] == words[first]


def test_copies_are_estimated_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "ROOM", 500)
    found = repeated([n // 2 for n in range(20_000)])  # every text twice
    assert len(found._first) <= 500
    assert not found.exact
    assert found.total() == pytest.approx(10_000, rel=0.25)
    assert repeated(list(range(20_000))).total() == 0, "no row is taken for a copy that is none"


# ------------------------------------------------------------------------------------------------------ the table


def test_every_code_that_is_reported_stands_in_the_table() -> None:
    used = set()
    for path in Path(swift_autobatch.facts.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Fault", "RowError"):
                values = [word.value for word in node.keywords if word.arg == "code"] or node.args[:1]
                used |= {value.value for value in values if isinstance(value, ast.Constant)}
    assert len(used) > 20
    assert used <= set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_words_and_a_fix(code: str) -> None:
    assert CODES[code].means
    assert "{" not in fix_for(code, "rows.jsonl", 3).replace('{"', "").replace("{{", "")


def test_the_page_about_the_checks_is_up_to_date() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dataset-checks.md").read_text("utf-8")
    listed = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert {row[0].strip("| `"): row[1] for row in listed} == {code: entry.means for code, entry in CODES.items()}
    assert {row[0].strip("| `") for row in listed if row[-1] == "yes |"} == {c for c, e in CODES.items() if e.repairs}
