"""Our token and label counts against ms-swift's own, row by row, on files of every shape."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import environment
from test_dataset import model_facts

from swift_autobatch.errors import InputError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.template_table import TEMPLATES
from swift_autobatch.progress import Silent

CHILD = Path(__file__).with_name("engine_lengths.py")
SYSTEMS = (None, "Be brief.", "")

Row = dict[str, Any]


def talk(*said: str | None, **more: Any) -> Row:
    """A messages row: user and assistant in turn, starting with the user; None leaves a turn out."""
    roles = ("user", "assistant") * len(said)
    return {"messages": [{"role": r, "content": s} for r, s in zip(roles, said, strict=False) if s is not None], **more}


def masked(row: Row, *turns: int) -> Row:
    for turn in turns:
        row["messages"][turn]["loss"] = False
    return row


def twice(row: Row) -> Row:
    return {"messages": [message for message in row["messages"] for _ in range(2)]}


# Rows that are framed by every template and every system prompt.
FRAMED: dict[str, list[Row]] = {
    "pairs": [
        {"query": "who?", "response": "me"},
        {"query": "who?", "response": "it ends in its own mark<|im_end|>"},
        {"query": "a", "response": "b", "history": [["c", "d"], ["e", "f"]]},
        {"query": "a", "response": "b", "system": "be nice"},
        {"query": "a", "response": "b", "system": ""},
        {"query": "see <image> here", "response": "你好 cafe\u0301"},
    ],
    "alpaca": [
        {"instruction": "hi", "input": "", "output": "yo"},
        {"instruction": "add", "input": "1 2", "output": "3"},
        {"instruction": "q", "input": None, "output": None},
        {"instruction": "x", "input": "", "output": ""},
    ],
    "messages": [
        talk("a", "b", "c", "d"),
        {"messages": [{"role": "system", "content": "S"}, *talk("a", "b")["messages"]]},
        twice(talk("a", "b", "c", "d")),
        talk("a"),
        talk(None, "a"),
        talk("a", "", "c", "d"),
        talk("a", "b", "c"),
        talk("a", "<think>\nhm\n</think>\n\nb", "c", "plain"),
    ],
    "losses": [
        masked(talk("a", "b b b", "c", "d"), 1),
        masked(talk("a", "b b b"), 1),
        masked(twice(talk("a", "b b b")), 3),
    ],
}

# Files as they lie on disk, read with the embedded model's own template.
FILES: dict[str, str] = {
    "broken_rows.jsonl": "\n".join(
        json.dumps(row)
        for row in (
            talk("a", "b"),
            {"messages": [*talk("a")["messages"], {"role": "system", "content": "s"}, *talk(None, "b")["messages"]]},
            {"messages": [*talk("a")["messages"], {"role": "robot", "content": "b"}]},
            {"messages": [{"role": "user", "content": None}, *talk(None, "b")["messages"]]},
            {"messages": []},
            {"messages": [{"role": "system", "content": "only"}]},
        )
    ),
    "sharegpt.jsonl": '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n'
    '{"conversations": [{"from": "human", "value": "a"}, {"from": "bot", "value": "c d"}], "system": "S"}\n',
    "named.jsonl": '{"conversations": [{"human": "a", "assistant": "b"}, {"human": "c", "assistant": "d"}]}',
    "parts.jsonl": '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},'
    ' {"role": "assistant", "content": "b"}]}',
    "answers.jsonl": '{"question": "a", "answer": ["b", "c"]}\n{"question": "d", "answer": ["e"]}',
    "history_text.jsonl": '{"query": "a", "response": "b", "history": "[[\'c\', \'d\']]"}',
    "two_queries.jsonl": '{"query": "Q", "prompt": "P", "response": "R"}',
    "ambiguous.jsonl": '{"query": "Q", "answer": "A", "output": "O"}',
    "upper_case.jsonl": '{"Query": "Q", "Answer": "A"}',
    "numbers.jsonl": '{"question": "a", "answer": 2}\n{"question": "b", "answer": 3}',
    "other_columns_later.jsonl": '{"query": "a", "response": "b"}\n{"prompt": "a", "completion": "b"}',
    "null_row.jsonl": '{"query": "a", "response": "b"}\nnull\n',
    "nan.jsonl": '{"query": "a", "response": "b"}\n{"query": "a", "response": NaN}\n',
    "two_on_a_line.jsonl": '{"query": "a", "response": "b"} {"query": "c", "response": "d e"}\n',
    "blank_lines.jsonl": '\n{"query": "a", "response": "b"}\r\n\r\n{"query": "c", "response": "d"}\n\n',
    "emoji.jsonl": '{"query": "a", "response": "\\ud83d\\ude00"}',
    "texts.json": '["a", "b c"]',
    "indented_list.json": json.dumps([{"query": "a", "response": "b"}] * 2, indent=2),
    "one_object.json": json.dumps({"query": "a", "response": "b"}, indent=2),
    "mark.jsonl": '\ufeff{"query": "a", "response": "b"}',
    "mark.csv": "\ufeffquery,response\na,b\n",
    "cells.csv": 'query,response\na,b\n"c, d","e\nf"\ng,\nh\n',
    "numbers.csv": "question,answer\n1+1,2\n1+2,3\n",
    "some_numbers.csv": "question,answer\n1+1,2\n1+2,x\n",
    "odd_numbers.csv": "question,answer\nq,nan\nr,1_000\n",
    "yes_no.csv": "question,answer\nq,True\nr,False\n",
    "system.csv": "system,query,response\n,a,b\nS,a,b\n",
    "messages.csv": 'messages\n"[{""role"":""user"",""content"":""a""},{""role"":""assistant"",""content"":""b""}]"\n',
}

# Files that stop the engine's loader or leave it nothing to train on: we must refuse them too.
REFUSED: dict[str, str] = {
    "empty.jsonl": "",
    "header.csv": "query,response\n",
    "inside.json": '{"data": [{"query": "a", "response": "b"}]}',
    "space_before.json": '\n [{"query": "a", "response": "b"},\n {"query": "c", "response": "d"}]',
    "mark.json": '\ufeff[{"query": "a", "response": "b"}]',
    "number_row.jsonl": '{"query": "a", "response": "b"}\n5\n',
    "list_row.jsonl": '{"query": "a", "response": "b"}\n[1]\n',
    "half_pair.jsonl": '{"query": "a", "response": "b"}\n{"query": "a", "response": "\\ud800"}\n',
    "same_name.jsonl": '{"query": "a", "query": "bb", "response": "b"}\n',
    "comma.jsonl": '{"query": "a", "response": "b",}\n',
}


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says how the weather is 天气",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '{"name": "weather", "arguments": {"city": "Köln"}}'

# Rows with tools, whose form is each template's own.
TOOLED: list[Row] = [
    talk("a", "b", tools=[TOOL]),
    {"tools": [TOOL], "messages": [*talk("rain?")["messages"], {"role": "tool_call", "content": CALL}]},
    {
        "tools": [TOOL, TOOL],
        "messages": [
            {"role": "system", "content": "S"},
            *talk("rain?", "I look.")["messages"],
            {"role": "tool_call", "content": CALL},
            {"role": "tool_response", "content": '{"rain": true}'},
            *talk(None, "yes")["messages"],
        ],
    },
    {
        "tools": [TOOL],
        "messages": [
            *talk("rain?")["messages"],
            {"role": "tool_call", "content": CALL},
            {"role": "tool_call", "content": CALL},
            {"role": "tool_response", "content": "yes"},
            {"role": "tool_response", "content": "no"},
            *talk(None, "who knows", "thanks", "<think>\nhm\n</think>\n\nbye")["messages"],
        ],
    },
]

# What stands around words in the families' tokenizers.
MARKS = re.compile(r"<\|?[^<>\s{}]+?\|?>|</?s>|\[/?[A-Z_]+\]|<｜[^｜]+｜>|<</?SYS>>")


def with_markers(folder: Path, copy: Path) -> Path:
    """The embedded tokenizer with every family's special tokens as tokens of their own."""
    from tokenizers import AddedToken, Tokenizer

    shutil.copytree(folder, copy)
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    texts = [
        text
        for template in TEMPLATES.values()
        for part in (template.prefix, template.system_prefix, template.prompt, template.chat_sep, template.suffix)
        for text in part
    ]
    names = sorted({name for text in texts for name in MARKS.findall(text)})
    assert {"<s>", "</s>", "<bos>", "[INST]", "[/INST]", "<|eot_id|>", "<eoa>", "<start_of_turn>"} <= set(names)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.save(str(copy / "tokenizer.json"))
    return copy


def with_bos(folder: Path, copy: Path) -> Path:
    """The embedded tokenizer with a beginning marker that it adds by itself, as Llama's does."""
    from tokenizers import Tokenizer, processors

    shutil.copytree(folder, copy)
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config |= {"bos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(copy / "tokenizer.json"))
    return copy


def engine(model: Path, jobs: list[dict[str, Any]], home: Path) -> list[dict[str, Any]]:
    env = {**os.environ, "MODELSCOPE_CACHE": str(home / "modelscope"), "HF_HOME": str(home / "hf")}
    env |= {"HF_HUB_OFFLINE": "1"}
    child = subprocess.run(
        [sys.executable, str(CHILD)],
        input=json.dumps({"model": str(model), "jobs": jobs}),
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(child.stdout.strip().splitlines()[-1])
    assert len(answers) == len(jobs)
    return answers


def ours(model: Path, job: dict[str, Any], folder: Path) -> list[list[int]]:
    facts = replace(model_facts(model), swift_template=job["template"])
    env = replace(environment(folder), interpreter=sys.executable)
    data = read_dataset((job["file"],), facts, env, system=job["system"], progress=Silent())
    assert data.exact
    assert len(data.costliest) == data.kept
    return [[row.tokens, row.supervised_tokens] for row in data.costliest]


@pytest.mark.engine
def test_every_template_and_system_prompt(tmp_path: Path) -> None:
    plain = with_markers(embedded.ensure_model(environment(tmp_path)), tmp_path / "plain")
    jobs = []
    for name, rows in FRAMED.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        jobs += [{"file": str(path), "template": t, "system": s} for t in TEMPLATES for s in SYSTEMS]
    compared = 0
    for model in (plain, with_bos(plain, tmp_path / "bos")):
        # deepseek writes the tokenizer's beginning marker: without one the engine itself fails
        mine = [job for job in jobs if model != plain or job["template"] != "deepseek"]
        answers = engine(model, mine, tmp_path)
        assert not {
            (job["template"], found["error"]) for job, found in zip(mine, answers, strict=True) if "error" in found
        }
        for job, theirs in zip(mine, answers, strict=True):
            assert sorted(ours(model, job, tmp_path)) == sorted(theirs["rows"]), job
            compared += len(theirs["rows"])
    assert compared > 2000


@pytest.mark.engine
def test_rows_and_templates_that_are_left_to_the_engine(tmp_path: Path) -> None:
    """Tools under a template that is known here, and a template that is not: the engine's encoder counts those."""
    model = with_markers(embedded.ensure_model(environment(tmp_path)), tmp_path / "model")
    rows = {"tools": TOOLED, "all": [row for name in ("messages", "losses") for row in FRAMED[name]] + TOOLED}
    for name, table in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, table)), encoding="utf-8")
    jobs: list[dict[str, Any]] = [
        {"file": str(tmp_path / "tools.jsonl"), "template": "qwen2_5", "system": None},
        {"file": str(tmp_path / "all.jsonl"), "template": "glm4_5", "system": "Be brief."},
    ]
    assert "glm4_5" not in TEMPLATES
    for job, theirs in zip(jobs, engine(model, jobs, tmp_path), strict=True):
        assert len(theirs["rows"]) >= len(TOOLED) - 1
        assert sorted(ours(model, job, tmp_path)) == sorted(theirs["rows"]), job


@pytest.mark.engine
def test_every_kind_of_file(tmp_path: Path) -> None:
    model = embedded.ensure_model(environment(tmp_path))
    (tmp_path / "rows").mkdir()
    for name, text in {**FILES, **REFUSED}.items():
        (tmp_path / "rows" / name).write_text(text, encoding="utf-8", newline="")
    jobs = [
        {"file": str(tmp_path / "rows" / name), "template": "qwen2_5", "system": None} for name in {**FILES, **REFUSED}
    ]
    for job, theirs in zip(jobs, engine(model, jobs, tmp_path), strict=True):
        name = Path(job["file"]).name
        if theirs.get("rows"):
            assert name not in REFUSED
            assert sorted(ours(model, job, tmp_path)) == sorted(theirs["rows"]), name
        else:
            with pytest.raises(InputError):
                ours(model, job, tmp_path)
