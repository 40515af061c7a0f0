"""Every kind of file, folder and sample against ms-swift's own loader and template, in one child process."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from builders import environment
from test_checks import LATE, STOPS, TOLD, late_rows
from test_dataset import model_facts
from test_dataset_engine import engine
from test_sources import FOLDERS

from swift_autobatch.errors import InputError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.repair import repair
from swift_autobatch.facts.sampling import set_apart
from swift_autobatch.facts.tally import COSTLIEST
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Sourced

ROWS = [{"query": f"question {n}", "response": "word " * (n + 1)} for n in range(7)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
PERSONA = [
    {"query": "who are you?", "response": "I am {{NAME}} by {{AUTHOR}}", "tag": "en"},
    {"query": "你是谁?", "response": "我是{{NAME}}", "tag": "zh"},
]
Job = dict[str, Any]


def files(folder: Path) -> list[str]:
    """Files of every kind."""
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, folder / "rows.parquet")
    talks = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
    pq.write_table(pa.Table.from_pylist(talks), folder / "talks.parquet")
    with pa.OSFile(str(folder / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    with pa.OSFile(str(folder / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    plain: dict[str, bytes] = {
        "lines.txt": b"one\n\ntwo\n  \nthree",
        "returns.txt": b"one\r\ntwo\r\n",
        "mark.txt": "\ufeffone\ntwo\n".encode(),
        "rows.gz.jsonl": gzip.compress(LINES.encode()),
        "rows.zst.jsonl": zstandard.compress(LINES.encode()),
        "cells.gz.csv": gzip.compress(b"query,response\na,b\n"),
        "twice.csv": b"query,query,response\na,b,c\n",
        "open.csv": b'query,response\na,b\n"c,d\ne,f\n',
        "short.csv": b"query,response\na\nb,c\n",
        "ROWS.JSONL": LINES.encode(),
        "rows.jsonl.gz": gzip.compress(LINES.encode()),
        "rows.tsv": b"query\tresponse\na\tb\n",
        "rows.ndjson": LINES.encode(),
    }
    for name, (content, _) in TOLD.items():
        plain[f"told {name}.jsonl"] = content if isinstance(content, bytes) else content.encode()
    for name, (content, _) in STOPS.items():
        suffix = "json" if "list" in name else "jsonl"
        plain[f"stops {name}.{suffix}"] = content if isinstance(content, bytes) else content.encode()
    for name, (early, late, _) in LATE.items():
        plain[f"late {name}.jsonl"] = "".join(json.dumps(row) + "\n" for row in late_rows(early, late)).encode()
    for name, written in plain.items():
        (folder / name.replace(" ", "_")).write_bytes(written)
    return sorted(path.name for path in folder.iterdir())


def folders(folder: Path) -> list[str]:
    for name, (parts, _) in FOLDERS.items():
        for part in parts:
            path = folder / name.replace(" ", "_").replace(",", "") / part
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(LINES.encode()) if part.endswith(".gz") else LINES.encode())
    for name, content in {"a": ROWS[0], "b": {"prompt": "a", "completion": "b"}}.items():
        (folder / "columns").mkdir(exist_ok=True)
        (folder / "columns" / f"{name}.jsonl").write_text(json.dumps(content))
    return sorted(path.name for path in folder.iterdir())


def ours(model: Path, job: Job, folder: Path) -> list[list[int]]:
    """Tokens and labels of every row that we keep."""
    load = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in job.get("load", {}).items()
    }
    load["dataset_shuffle"] = str(load.pop("shuffle", False)).lower()
    pins = {name: Sourced(value=value, source="flag") for name, value in load.items()}
    names = tuple(job["file"]) if isinstance(job["file"], list) else (job["file"],)
    data = read_dataset(names, model_facts(model), environment(folder), system=None, progress=Silent(), pins=pins)
    assert data.counted_rows == data.kept
    if data.kept > COSTLIEST:
        return [[length] for length in data.lengths]
    return sorted([row.tokens, row.supervised_tokens] for row in data.costliest)


def held_out_of(job: Job, model: Path, folder: Path) -> DataFacts:
    """The facts of a job with the rows that its split_dataset_ratio holds out."""
    names = tuple(job["file"]) if isinstance(job["file"], list) else (job["file"],)
    data = read_dataset(names, model_facts(model), environment(folder), system=None, progress=Silent())
    return set_apart(data, {name: Sourced(value=str(value), source="flag") for name, value in job["load"].items()})


def same(mine: list[list[int]], theirs: list[list[int]]) -> bool:
    """All tokens and labels; of a file with more rows than are kept, all tokens."""
    columns = len(mine[0])
    return mine == sorted(row[:columns] for row in theirs)


@pytest.mark.engine
def test_what_we_keep_is_what_the_engine_keeps(tmp_path: Path) -> None:
    model = embedded.ensure_model(environment(tmp_path))
    base = {"template": "qwen2_5", "system": None}
    jobs: list[Job] = []
    for make in (files, folders):
        folder = tmp_path / make.__name__
        folder.mkdir()
        jobs += [{"file": str(folder / name), **base} for name in make(folder)]
    rows, persona = tmp_path / "rows.jsonl", tmp_path / "self-cognition"
    rows.write_text(LINES)
    persona.mkdir()
    (persona / "a.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in PERSONA))
    names = {"model_name": ["小名", "Ann"], "model_author": ["作者", "Bo"]}
    jobs += [{"file": str(where), "load": names, **base} for where in (persona, f"{persona}:empty_think")]
    (tmp_path / "renamed.jsonl").write_text('{"Frage": "a", "Antwort": "b c"}\n')
    jobs.append(
        {"file": f"{tmp_path}/renamed.jsonl", "load": {"columns": {"frage": "query", "antwort": "response"}}, **base}
    )
    for shuffle in (False, True):
        jobs += [{"file": f"{rows}#{n}", "load": {"shuffle": shuffle}, **base} for n in (1, 3, 7, 9, 17)]
    named = tmp_path / "MathInstruct"
    named.mkdir()
    (named / "a.jsonl").write_text(json.dumps({"instruction": "a", "input": "left out", "output": "b"}))
    jobs.append({"file": str(named), **base})
    jobs.append({"file": [f"{rows}#3", f"{tmp_path}/files/rows.parquet#12"], "load": {"shuffle": True}, **base})
    both = [str(rows), f"{tmp_path}/files/rows.parquet#12"]
    split = [
        {"file": file, "load": {"split_dataset_ratio": ratio}, **base}
        for file, ratio in ((str(rows), 0.5), (str(rows), 0.05), (f"{rows}#3", 0.5), (f"{rows}#17", 0.5), (both, 0.3))
    ]
    found = engine(model, [*jobs, *split], tmp_path)
    assert [held_out_of(job, model, tmp_path).kept for job in split] == [len(one["rows"]) for one in found[len(jobs) :]]
    differ: list[str] = []
    for job, theirs in zip(jobs, found[: len(jobs)], strict=True):
        try:
            mine: Any = ours(model, job, tmp_path)
        except InputError as error:
            mine = error.what
        agree = isinstance(mine, list) and same(mine, theirs["rows"]) if theirs.get("rows") else isinstance(mine, str)
        if not agree:
            differ.append(f"{job['file']} {job.get('load', '')}: {str(mine)[:200]}; the engine: {str(theirs)[:200]}")
    assert not differ, "\n".join(differ)


@pytest.mark.engine
def test_the_engine_trains_every_row_of_a_repaired_file(tmp_path: Path) -> None:
    model = embedded.ensure_model(environment(tmp_path))
    jobs: list[Job] = []
    written = []
    for index, (name, (content, _)) in enumerate({**TOLD, **STOPS}.items()):
        path = tmp_path / f"{index}.{'json' if 'list' in name else 'jsonl'}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        done = repair((str(path),), f"clean{index}.jsonl", environment(tmp_path), progress=Silent(), force=False)
        jobs.append({"file": done.out, "template": "qwen2_5", "system": None})
        written.append(done.written)
    for job, rows, theirs in zip(jobs, written, engine(model, jobs, tmp_path), strict=True):
        assert len(theirs["rows"]) == rows, job
        assert all(labels > 0 for _, labels in theirs["rows"])
        assert same(ours(model, job, tmp_path), theirs["rows"])
