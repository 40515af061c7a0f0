"""What is behind a dataset as the user spells it: folders, packed files, hub caches, renamed columns, filled-in names.

The expectations of ``FOLDERS`` are what ms-swift 4.6.0 with datasets 4.8.4 made of these very folders.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from test_dataset import PAIR, read, refused, write

from swift_autobatch.errors import InputError
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.folder import train_files
from swift_autobatch.facts.spelling import resolve
from swift_autobatch.progress import Silent
from swift_autobatch.records import Environment, ModelFacts, Sourced

LINES = "".join(json.dumps({"query": f"q{n}", "response": f"r{n}"}) + "\n" for n in range(3))


# name of the test -> (files in the folder, those that are trained; or words of the refusal)
FOLDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...] | str]] = {
    "parts": (("part-0.jsonl", "part-1.jsonl"), ("part-0.jsonl", "part-1.jsonl")),
    "a split by name": (("train.jsonl", "test.jsonl"), ("train.jsonl",)),
    "a split within names": (("my_train_set.jsonl", "extra.jsonl"), ("my_train_set.jsonl",)),
    "splits by folder": (("train/a.jsonl", "dev/b.jsonl", "other/c.jsonl"), ("train/a.jsonl",)),
    "shards": (
        ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "x.jsonl"),
        ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"),
    ),
    "below and beside": (
        ("a.jsonl", "readme.md", "sub/b.jsonl", ".hid.jsonl", "_x.jsonl"),
        ("_x.jsonl", "a.jsonl", "sub/b.jsonl"),
    ),
    "files about the data": (("a.jsonl", "dataset_info.json", "config.json", "data.jsonl"), ("a.jsonl", "data.jsonl")),
    "two kinds, equally many": (("a.jsonl", "b.csv"), ("a.jsonl",)),
    "tab separated": (("a.tsv",), ("a.tsv",)),
    "ndjson": (("a.ndjson",), ("a.ndjson",)),
    "packed": (("a.jsonl.gz", "b.jsonl.gz"), ("a.jsonl.gz", "b.jsonl.gz")),
    "only a test split": (("test.jsonl",), "no training files"),
    "mostly images": (("a.jsonl", "img.png", "i2.png"), "takes the folder for images"),
    "nothing": (("notes.md",), "holds no file of rows"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_files_of_a_folder(tmp_path: Path, name: str) -> None:
    files, expected = FOLDERS[name]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(LINES)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected) as caught:
            train_files(tmp_path)
        assert caught.value.hints
    else:
        assert tuple(path.relative_to(tmp_path).as_posix() for path in train_files(tmp_path)) == expected


def test_subsets_that_a_readme_describes(tmp_path: Path) -> None:
    for name in ("en/a.jsonl", "zh/b.jsonl", "zh/test.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LINES)
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files: en/*.jsonl\n- config_name: zh\n  data_files:\n"
        "  - split: train\n    path: zh/b.jsonl\n  - split: test\n    path: zh/test.jsonl\n---\n# Rows\n"
    )
    assert train_files(tmp_path, "en") == (tmp_path / "en/a.jsonl",)
    assert train_files(tmp_path, "zh") == (tmp_path / "zh/b.jsonl",)
    with pytest.raises(InputError, match="no subset 'default'") as caught:
        train_files(tmp_path)
    assert caught.value.hints == (f"--dataset {tmp_path}:en", f"--dataset {tmp_path}:zh")


def test_a_folder_is_read_as_one_table(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    (tmp_path / "rows").mkdir()
    write(tmp_path / "rows", "a.jsonl", PAIR, {"query": "a", "response": "b"})
    write(
        tmp_path / "rows", "b.jsonl", {"query": "c", "response": "d"}, {"query": "a longer question", "response": None}
    )
    data = read("rows", model, env)
    assert (data.rows, data.kept) == (4, 4)
    assert data.files == (str(tmp_path / "rows"),)
    assert [(Path(p.file).name, p.line, p.code) for p in data.problems] == [("b.jsonl", 2, "no-assistant-turn")]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_content_is_read_whatever_the_name(
    tmp_path: Path, model: ModelFacts, env: Environment, pack: Any
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(pack(LINES.encode()))
    (tmp_path / "cells.csv").write_bytes(pack(b"query,response\na,b\n"))
    assert read("rows.jsonl", model, env).rows == 3
    assert read("cells.csv", model, env).rows == 1


def test_packed_names_are_refused_with_the_name_that_works(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(LINES.encode()))
    error = refused("rows.jsonl.gz", model, env)
    assert error.hints[0] == f"mv {packed} {tmp_path / 'rows.gz.jsonl'}"
    packed.rename(tmp_path / "rows.gz.jsonl")
    assert read("rows.gz.jsonl", model, env).rows == 3
    (tmp_path / "cut.jsonl").write_bytes(gzip.compress(LINES.encode())[:-12])
    assert "cannot read the dataset" in refused("cut.jsonl", model, env).what


@pytest.mark.parametrize(
    ("name", "hint"), [("ROWS.JSONL", "ROWS.jsonl"), ("rows.ndjson", "rows.jsonl"), ("rows.tsv", "folder")]
)
def test_names_that_the_engine_does_not_know(
    tmp_path: Path, model: ModelFacts, env: Environment, name: str, hint: str
) -> None:
    (tmp_path / name).write_text(LINES)
    error = refused(name, model, env)
    assert "the engine reads .json, .jsonl, .csv, .parquet, .arrow, .txt files" in error.what
    assert hint in error.hints[0]


def test_parquet_arrow_and_text(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [{"query": f"q{n}", "response": "r" * n} for n in range(1200)]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    as_lines = read(write(tmp_path, "a.jsonl", *rows), model, env)
    for name in ("a.parquet", "stream.arrow", "file.arrow"):
        data = read(name, model, env)
        assert data.lengths == as_lines.lengths
        assert [row.line for row in data.costliest] == [row.line for row in as_lines.costliest]
    text = read(write(tmp_path, "a.txt", "one\n\ntwo\r\n  \nthree"), model, env)
    assert text.rows == 5
    assert {row.record["text"] for row in text.costliest} == {"one", "", "two", "  ", "three"}


def test_hub_ids_are_found_in_the_caches(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    assert "it is in no cache here" in refused("someone/rows", model, env).what
    snapshot = Path(env.home) / ".cache/huggingface/hub/datasets--someone--rows/snapshots/abc"
    snapshot.mkdir(parents=True)
    write(snapshot, "train.jsonl", PAIR)
    found = resolve("someone/rows#500", env)
    assert (found.name, found.files, found.sample) == ("someone/rows", (snapshot / "train.jsonl",), 500)
    other = Path(env.home) / ".cache/modelscope/datasets/someone/rows"
    other.mkdir(parents=True)
    write(other, "data.jsonl", PAIR, PAIR)
    assert resolve("someone/rows", env).files == (other / "data.jsonl",), "the engine asks ModelScope first"
    assert resolve("hf::someone/rows", env).files == (snapshot / "train.jsonl",)
    assert resolve("hf::someone/rows", env).name == "hf::someone/rows"


def test_columns_are_renamed(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    path = write(tmp_path, "a.jsonl", {"Frage": "a", "Antwort": "b"})
    assert "no column to train on" in refused(path, model, env).what
    pins = {"columns": Sourced(value='{"frage": "query", "ANTWORT": "response"}', source="flag --columns")}
    data = read_dataset((path,), model, env, system=None, progress=Silent(), pins=pins)
    assert data.kept == 1
    assert data.costliest[0].record == {"query": "a", "response": "b"}
    pins = {"columns": Sourced(value="frage=query", source="flag --columns")}
    with pytest.raises(InputError, match="--columns must be a JSON object"):
        read_dataset((path,), model, env, system=None, progress=Silent(), pins=pins)


def test_names_go_into_the_engines_own_self_cognition_set(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [
        {"query": "who are you?", "response": "I am {{NAME}} by {{AUTHOR}}", "tag": "en"},
        {"query": "你是谁?", "response": "我是{{NAME}}", "tag": "zh"},
    ]
    (tmp_path / "self-cognition").mkdir()
    write(tmp_path / "self-cognition", "a.jsonl", *rows)
    write(tmp_path, "mine.jsonl", *rows)
    pins = {
        "model_name": Sourced(value=("小名", "Ann"), source="flag"),
        "model_author": Sourced(value="Bo", source="flag"),
    }

    def answers(path: str, **more: Any) -> tuple[set[str], set[str]]:
        data = read_dataset((path,), model, env, system=None, progress=Silent(), **more)
        return {row.record["response"] for row in data.costliest}, {problem.code for problem in data.problems}

    assert answers("self-cognition", pins=pins) == ({"I am Ann by Bo", "我是小名"}, set())
    as_it_stands = {"I am {{NAME}} by {{AUTHOR}}", "我是{{NAME}}"}
    assert answers("self-cognition") == (as_it_stands, {"placeholder"})
    assert answers("mine.jsonl", pins=pins) == (as_it_stands, {"placeholder"}), "the engine fills its own set only"
    assert answers("self-cognition:empty_think", pins=pins)[0] == {
        "<think>\n\n</think>\n\nI am Ann by Bo",
        "<think>\n\n</think>\n\n我是小名",
    }


def test_what_the_engine_knows_by_a_name(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = {"instruction": "a", "input": "left out", "output": "b"}
    for name in ("MathInstruct", "mine", "alpaca-gpt4-data-zh"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "a.jsonl", rows, {**rows, "output": "c"})
    renamed = read("MathInstruct", model, env)
    assert renamed.costliest[0].record == {"query": "a", "input": "left out", "response": "b"}
    assert renamed.max_tokens < read("mine", model, env).max_tokens, "there the input belongs to the question"
    own = read("alpaca-gpt4-data-zh", model, env)
    assert [problem.code for problem in own.problems] == ["own-code"]


# ------------------------------------------------------------------------------------------------ words that help


TAB = "\t"


@pytest.mark.parametrize("mark", [";", TAB, "|"])
def test_a_csv_with_another_separator_is_told_with_a_command_that_mends_it(
    tmp_path: Path, model: ModelFacts, env: Environment, mark: str
) -> None:
    path = write(tmp_path, "rows of 'mine'.csv", f'query{mark}response\n"a{mark} b"{mark}c, d\ne{mark}f\n')
    hint = refused(path, model, env).hints[0]
    assert hint.startswith(f"its columns are separated by {'tabs' if mark == TAB else repr(mark)}, the engine reads")
    command = hint[hint.index("python -c") :].replace("python", sys.executable, 1)
    assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=60, check=False).returncode == 0
    found = read(str(tmp_path / "rows of 'mine'.commas.csv"), model, env)
    assert (found.rows, found.kept) == (2, 2)
    assert found.costliest[0].record == {"query": f"a{mark} b", "response": "c, d"}


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("head.csv", "query,response\n", "add rows such as"),
        ("empty.csv", "", "the line query,response"),
        ("list.json", "[]", "a list of objects"),
        ("rows.jsonl", "\n", "one JSON object a line"),
        ("text.txt", "", "one text a line"),
    ],
)
def test_what_an_empty_file_lacks_is_said_for_its_kind(
    tmp_path: Path, model: ModelFacts, env: Environment, name: str, text: str, word: str
) -> None:
    assert word in refused(write(tmp_path, name, text), model, env).hints[0]


def test_only_files_with_nearly_the_name_are_offered(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    near, _ = write(tmp_path, "rows.json", json.dumps([PAIR])), write(tmp_path, "train.jsonl", json.dumps(PAIR))
    assert refused("rowz.jsonl", model, env).hints == (f"--dataset {near}",)
    assert refused("nope.jsonl", model, env).hints == ("check the path given to --dataset",)
