"""The clean copy: what becomes of every kind of row, the list of changes, and that nothing is left to repair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_checks import STOPS, TOLD, talk
from test_dataset import model_facts, read, write

from swift_autobatch.cli import main
from swift_autobatch.errors import AutoswiftError, UsageError
from swift_autobatch.facts.codes import CODES
from swift_autobatch.facts.repair import Repaired, repair
from swift_autobatch.progress import Silent
from swift_autobatch.records import Environment, Sourced

A = {"query": "a", "response": "b"}
U, R = ("user", "q"), ("assistant", "a")


def clean(env: Environment, *paths: str, **more: Any) -> tuple[Repaired, list[Any], list[tuple[int, str, str]]]:
    """What repair says, the rows of the copy, and (line, code, action) of its list."""
    done = repair(paths, "clean.jsonl", env, progress=Silent(), force=True, **more)
    rows = [json.loads(line) for line in Path(done.out).read_text("utf-8").splitlines()]
    changes = [json.loads(line) for line in Path(done.list_of_changes).read_text("utf-8").splitlines()]
    assert all(set(change) == {"file", "line", "code", "action", "text"} for change in changes)
    return done, rows, [(change["line"], change["code"], change["action"]) for change in changes]


@pytest.mark.parametrize("name", [*TOLD, *STOPS])
def test_the_copy_of_every_bad_file_needs_no_repair(tmp_path: Path, env: Environment, name: str) -> None:
    content, expected = {**TOLD, **STOPS}[name]
    path = tmp_path / ("rows.json" if name in STOPS and "list" in name else "rows.jsonl")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    done, rows, changes = clean(env, str(path))
    assert path.read_bytes() == before
    data = read(done.out, model_facts(None), env)
    assert data.rows == data.kept == len(rows) == done.written
    assert not any(problem.stops or problem.drops_row for problem in data.problems)
    assert not any(CODES[problem.code].repairs for problem in data.problems)
    assert done.rows == done.written + done.deleted
    assert {code for code, _ in expected if CODES[code].repairs} <= {code for _, code, _ in changes}


@pytest.mark.parametrize(
    ("lines", "expected", "changes"),
    [
        ([json.dumps(A) + ","], [A], [(1, "trailing-comma", "mended")]),
        (["{'query': 'a', 'response': 'b'}"], [A], [(1, "single-quotes", "mended")]),
        ([json.dumps(A), '{"query": "c", "resp'], [A], [(2, "cut-line", "deleted")]),
        ([json.dumps(A), json.dumps(A)], [A], [(2, "duplicate", "deleted")]),
        ([json.dumps(A), '{"query": "c", "response": ""}'], [A], [(2, "empty-answer", "deleted")]),
        ([json.dumps(A), '{"query": "c", "response": null}'], [A], [(2, "no-assistant-turn", "deleted")]),
        (['{"query": "a", "response": "b\\u0007"}'], [A], [(1, "control-character", "mended")]),
        ([json.dumps(A), talk(("robot", "x"))], None, None),
    ],
)
def test_rows_stay_in_their_form_where_all_have_one(
    tmp_path: Path, env: Environment, lines: list[str], expected: list[Any] | None, changes: list[Any] | None
) -> None:
    done, rows, found = clean(env, write(tmp_path, "rows.jsonl", "\n".join(lines)))
    if expected is None:
        assert done.written >= 1
    else:
        assert (rows, found) == (expected, changes)
        assert not done.rewritten


def test_several_forms_become_one(tmp_path: Path, env: Environment) -> None:
    rows = [
        json.loads(talk(U, R)),
        {"instruction": "i", "input": "", "output": "o"},
        {"query": "c", "response": "d", "system": "S"},
        {"query": "1+1", "response": 2},
    ]
    done, copy, changes = clean(env, write(tmp_path, "rows.jsonl", *rows))
    assert done.rewritten
    assert copy == [
        rows[0],
        {"messages": [{"role": "user", "content": "i"}, {"role": "assistant", "content": "o"}]},
        {
            "messages": [
                {"role": "system", "content": "S"},
                *json.loads(talk(("user", "c"), ("assistant", "d")))["messages"],
            ]
        },
        json.loads(talk(("user", "1+1"), ("assistant", "2"))),
    ]
    assert changes == [(line, "mixed-schema", "mended") for line in (2, 3, 4)]


def test_rows_that_lose_the_columns_of_others_become_messages(tmp_path: Path, env: Environment) -> None:
    """Without the first row 'prompt' would be the question, and it is no text."""
    rows = [{"query": None}, {"output": None, "prompt": {}, "response": 5}]
    done, copy, _ = clean(env, write(tmp_path, "rows.jsonl", *rows))
    assert done.rewritten
    assert copy == [{"messages": [{"role": "assistant", "content": "5"}]}]


def test_numbers_and_roles_are_spelled_as_meant(tmp_path: Path, env: Environment) -> None:
    rows = [
        json.loads(talk(U, R)),
        {"messages": [{"role": "User", "content": "1+1"}, {"role": "Assistant", "content": 2}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "robot", "content": "y"}]},
    ]
    _, copy, changes = clean(env, write(tmp_path, "rows.jsonl", *rows))
    assert changes[0][1:] == ("unknown-role", "deleted"), "a role and a number at once: two guesses in one row"
    assert copy[0] == rows[0]
    assert changes[-1] == (3, "unknown-role", "deleted")
    _, copy, _ = clean(env, write(tmp_path, "sums.csv", "question,answer\n1+1,2\n1+2,3\n"))
    assert [row["answer"] for row in copy] == ["2", "3"]


def test_a_question_behind_the_last_answer_goes(tmp_path: Path, env: Environment) -> None:
    _, copy, changes = clean(env, write(tmp_path, "rows.jsonl", talk(U, R, ("user", "and?"))))
    assert copy == [json.loads(talk(U, R))]
    assert changes == [(1, "unanswered", "mended")]


def test_names_are_filled_in_when_given(tmp_path: Path, env: Environment) -> None:
    rows = [
        {"query": "who?", "response": "I am {{NAME}}."},
        {"query": "你是谁", "response": "我是{{NAME}}，来自{{AUTHOR}}。"},
    ]
    path = write(tmp_path, "rows.jsonl", *rows)
    assert clean(env, path)[1] == rows
    pins = {
        "model_name": Sourced(value=("小石", "Pebble"), source="flag"),
        "model_author": Sourced(value="Bo", source="flag"),
    }
    assert [row["response"] for row in clean(env, path, pins=pins)[1]] == ["I am Pebble.", "我是小石，来自Bo。"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "rows.jsonl", f"{json.dumps(A)},\n{json.dumps(A)}\n")

    def run(*words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["profile", "rows.jsonl", "--gpus", "1x4090", *words])
        return (ended.value.code, *capsys.readouterr())

    code, _, err = run()
    assert code == 5
    assert "--repair clean.jsonl writes a clean copy" in err
    code, out, _ = run("--repair", "clean.jsonl")
    assert code == 0
    assert "1 of 2 rows written" in out
    assert "trailing-comma" in out
    assert "duplicate" in out
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    code, out, _ = run("--repair", "clean.jsonl", "--force", "--json")
    document = json.loads(out)
    assert (document["schema"], document["written"], document["deleted"]) == ("autoswift.repair/1", 1, 1)
    assert document["changes"] == {"trailing-comma": 1, "duplicate": 1}


def test_nothing_is_overwritten(tmp_path: Path, env: Environment) -> None:
    path = write(tmp_path, "rows.jsonl", A)

    def refused(out: str) -> UsageError:
        with pytest.raises(UsageError) as caught:
            repair((path,), out, env, progress=Silent(), force=False)
        assert caught.value.hints
        return caught.value

    assert "would replace the data" in refused("rows.jsonl").what
    assert "no name for" in refused("rows.csv").what
    assert "cannot write there" in refused("missing/rows.jsonl").what
    repair((path,), "new.jsonl", env, progress=Silent(), force=False)
    assert "exists" in refused("new.jsonl").what
    broken = write(tmp_path, "none.jsonl", {"query": "a", "response": None})
    with pytest.raises(AutoswiftError, match="none of the 1 rows"):
        repair((broken,), "other.jsonl", env, progress=Silent(), force=False)
    assert sorted(file.name for file in tmp_path.glob("*other*")) == []
    assert sorted(file.name for file in tmp_path.glob(".*")) == []
