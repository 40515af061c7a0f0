"""Every code of docs/dataset-checks.md from a small file, through ``autoswift profile``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from test_checks import LATE, STOPS, TOLD, A, B, R, U, late_rows, talk

from swift_autobatch.cli import main
from swift_autobatch.facts.codes import CODES

# What takes the engine's own encoder or a set of its registry; and "masked": the end mark of the last answer is learned
# even where its loss is off, so that only a template without one masks a whole row.
ELSEWHERE = {"engine-drops", "own-code", "masked"}
PICTURE = '{"query": "<image>a", "response": "b", "images": ["no.png"]}'
LONG = json.dumps({"query": "word " * 40_000, "response": "b"})
# code -> (file, content, flags) for what the tables of test_checks.py do not hold
MORE: dict[str, tuple[str, str | bytes, tuple[str, ...]]] = {
    "not-utf-8": ("rows.jsonl", A.encode() + b'\n{"query": "\xff\xfe\x81", "response": "\xff"}\n' + B.encode(), ()),
    "indented-large-file": (
        "rows.jsonl",
        "".join(json.dumps({"query": str(n), "response": "x" * 100_000}, indent=1) + "\n" for n in range(120)),
        (),
    ),
    "late-column": ("rows.jsonl", "\n".join(map(json.dumps, late_rows(*LATE["a new column"][:2]))), ()),
    "late-type": (
        "rows.jsonl",
        "\n".join(map(json.dumps, late_rows(*LATE["a text after whole numbers"][:2]))),
        (),
    ),
    "csv-cells": ("rows.csv", "query,response\na,b\nc,d,e\n", ()),
    "csv-quote": ("rows.csv", 'query,response\na,b\n"c,d\n', ()),
    "not-a-row": ("rows.json", f"[{A}, null, {B}]", ()),
    "history": ("rows.jsonl", f'{{"query": "a", "response": "b", "history": [5]}}\n{A}\n{B}', ()),
    "not-messages": ("rows.jsonl", f'{talk(U, R)}\n{{"messages": "x"}}\n{talk(U, R)}', ()),
    "unknown-role": ("rows.jsonl", f"{talk(U, R)}\n{talk(('robot', 'x'), R)}\n{talk(U, R)}", ()),
    "unpaired-turns": ("rows.jsonl", f"{talk(U, R)}\n{talk(U, ('system', 's'), R)}\n{talk(U, R)}", ()),
    "ambiguous-columns": ("rows.jsonl", '{"query": "a", "answer": "b", "output": "c"}', ()),
    "sampled": ("rows.jsonl#1", f"{A}\n{B}", ()),
    "placeholder": ("rows.jsonl", f'{A}\n{{"query": "who?", "response": "I am {{{{NAME}}}}"}}', ()),
    "over-context": ("rows.jsonl", f"{A}\n{LONG}", ()),
    "cut-answer": (
        "rows.jsonl",
        f"{A}\n{LONG}",
        ("--max_length", "200", "--truncation_strategy", "right"),
    ),
    "broken-image": ("rows.jsonl", f"{PICTURE}\n{A}", ("--model", "Qwen/Qwen2.5-VL-3B-Instruct")),
    "image-count": (
        "rows.jsonl",
        PICTURE.replace("<image>a", "<image><image>a"),
        ("--model", "Qwen/Qwen2.5-VL-3B-Instruct"),
    ),
    "long-image": (
        "rows.jsonl",
        json.dumps({"query": "<image>" * 12 + "a", "response": "b", "images": ["large.png"] * 12}) + "\n" + A,
        ("--model", "Qwen/Qwen2.5-VL-3B-Instruct"),
    ),
}


def case(code: str) -> tuple[str, str | bytes, tuple[str, ...]]:
    """The file that produces a code."""
    if code in MORE:
        return MORE[code]
    for name, (content, expected) in {**TOLD, **STOPS}.items():
        if code in [found for found, _ in expected]:
            return "rows.json" if "list" in name and code != "list-in-jsonl" else "rows.jsonl", content, ()
    raise LookupError(code)


@pytest.mark.parametrize("code", sorted(set(CODES) - ELSEWHERE))
def test_every_code_is_told_of_a_file(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content, flags = case(code)
    path = Path(name.partition("#")[0])
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if code == "long-image":
        Image.new("1", (4000, 4000)).save("large.png")
    if CODES[code].severity == "stops":
        status, _, err = run(capsys, "profile", name, "--gpus", "1x4090")
        assert status == 5
        assert "hint:" in err
        assert run(capsys, "profile", name, "--repair", "clean.jsonl")[0] == 0
        changes = [json.loads(line) for line in Path("clean.jsonl.changes.jsonl").read_text("utf-8").splitlines()]
        assert code in {change["code"] for change in changes}
        return
    status, out, err = run(capsys, "profile", name, "--gpus", "1x4090", "--json", *flags)
    assert status == 0, err
    told: dict[str, Any] = json.loads(out)
    assert code in told["problem_rows"]
    assert all(problem["line"] > 0 for problem in told["problems"] if problem["code"] == code)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(words)
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err
