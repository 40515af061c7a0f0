"""What a dataset file becomes: lengths, supervised tokens, costliest rows, problems, and errors with file:line."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import environment

from swift_autobatch.errors import InputError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Environment, ModelFacts

PAIR = {"query": "Which colour is the sky?", "response": "Blue."}


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.ensure_model(environment(tmp_path_factory.mktemp("embedded")))


@pytest.fixture
def model(tokenizer_folder: Path) -> ModelFacts:
    return model_facts(tokenizer_folder)


def model_facts(tokenizer: Path | None, template: str | None = "qwen2_5") -> ModelFacts:
    return ModelFacts(
        id="tiny",
        path=str(tokenizer) if tokenizer else None,
        architecture="Qwen2ForCausalLM",
        hf_model_type="qwen2",
        hidden=256,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=64,
        intermediate=704,
        vocab=1024,
        tied=False,
        max_position=2048,
        params_total=3_480_000,
        params_embedding=262_144,
        params_lm_head=262_144,
        params_active=3_480_000,
        linears=(),
        dtype="float32",
        swift_model_type="qwen2",
        swift_template=template,
        source="test",
        tokenizer_path=str(tokenizer) if tokenizer else None,
    )


def write(folder: Path, name: str, *rows: Any) -> str:
    """A jsonl file of rows, or a file of the text given. Returns its path."""
    text = rows[0] if len(rows) == 1 and isinstance(rows[0], str) else "\n".join(json.dumps(row) for row in rows)
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return str(folder / name)


def read(path: str | tuple[str, ...], model: ModelFacts, env: Environment, system: str | None = None) -> DataFacts:
    return read_dataset((path,) if isinstance(path, str) else path, model, env, system=system, progress=Silent())


def refused(path: str, model: ModelFacts, env: Environment) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path, model, env)
    error = caught.value
    assert error.exit_code == 5
    assert error.where
    assert error.hints
    assert "\n" not in error.what
    return error


# ------------------------------------------------------------------------------------------------------ figures


def test_lengths_by_hand(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    """One row counted piece by piece with the tokenizer itself."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model.tokenizer_path}/tokenizer.json")

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    start = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{PAIR['query']}<|im_end|>\n"
    prompt, answer = count(start + "<|im_start|>assistant\n"), count("Blue.<|im_end|>\n")
    data = read(write(tmp_path, "a.jsonl", PAIR), model, env)
    assert data.lengths == (prompt + answer,)
    assert data.max_supervised_tokens == answer
    assert data.min_prompt_tokens == prompt
    assert data.mean_tokens == data.p50_tokens == data.p95_tokens == data.max_tokens == prompt + answer
    assert data.exact
    assert data.tokenizer.endswith("tokenizer.json")


def test_percentiles_and_costliest(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [{"query": "q", "response": "x " * n} for n in range(1, 101)]
    data = read(write(tmp_path, "a.jsonl", *rows), model, env)
    assert (data.rows, data.kept) == (100, 100)
    assert list(data.lengths) == sorted(data.lengths)
    assert data.p50_tokens == data.lengths[49]
    assert data.p95_tokens == data.lengths[94]
    assert len(data.costliest) == 64
    assert [row.line for row in data.costliest] == list(range(100, 36, -1))
    assert data.costliest[0].tokens == data.max_tokens == data.lengths[-1]
    assert data.costliest[0].record == rows[-1]


def test_equal_tokens_are_ranked_by_supervised_tokens(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    talkative = {"query": "x", "response": "x x x x x x x x"}
    curious = {"query": "x x x x x x x x", "response": "x"}
    data = read(write(tmp_path, "a.jsonl", curious, talkative), model, env)
    assert data.costliest[0].tokens == data.costliest[1].tokens
    assert data.costliest[0].record == talkative


def test_system_prompt_of_row_flag_and_template(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    path = write(tmp_path, "a.jsonl", PAIR)
    default = read(path, model, env).max_tokens
    brief = read(path, model, env, system="Be brief.").max_tokens
    none = read(path, model, env, system="").max_tokens
    assert none < brief < default
    own = read(write(tmp_path, "own.jsonl", {**PAIR, "system": "Be brief."}), model, env, system="Something else.")
    assert own.max_tokens == brief
    assert own.system_prompts
    assert not read(path, model, env).system_prompts
    (tmp_path / "system.txt").write_text("Be brief.")
    assert read(path, model, env, system="system.txt").max_tokens == brief


def test_without_tokenizer_bytes_bound_the_length(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    path = write(tmp_path, "a.jsonl", *({"query": "你是谁?", "response": "x" * n} for n in range(40)))
    counted, assumed = read(path, model, env), read(path, model_facts(None), env)
    assert not assumed.exact
    assert assumed.tokenizer == "assumed"
    assert assumed.bound_tokens >= counted.max_tokens  # for sure; max_length keeps to it
    assert assumed.max_tokens < assumed.bound_tokens  # what is planned for: a quarter above bytes / 4
    assert (counted.bound_tokens, counted.exact) == (0, True)
    assert assumed.lengths[-1] == assumed.max_tokens == assumed.costliest[0].tokens
    assert assumed.p50_tokens < assumed.max_tokens
    assert assumed.min_prompt_tokens == 0


def test_unknown_template_is_not_exact(tmp_path: Path, tokenizer_folder: Path, env: Environment) -> None:
    data = read(write(tmp_path, "a.jsonl", PAIR), model_facts(tokenizer_folder, "some_new_template"), env)
    assert not data.exact
    assert "assumed" in data.tokenizer


def test_large_file_is_sketched_in_constant_memory(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    def peak(rows: int) -> tuple[DataFacts, int]:
        path = tmp_path / f"{rows}.jsonl"
        with path.open("w") as stream:
            stream.writelines(f'{{"query": "q", "response": "{"x " * (n % 40)}"}}\n' for n in range(rows))
        tracemalloc.start()
        data = read(str(path), model, env)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return data, used

    small, few = peak(1_000)
    large, many = peak(6_000)
    assert many < 1.3 * few
    assert len(large.lengths) == 4096
    assert large.lengths[-1] == large.max_tokens == small.max_tokens
    assert large.p50_tokens == small.p50_tokens
    assert len([p for p in large.problems if p.code == "empty-answer"]) == 101, "100 listed and one that sums up"


def test_several_files_and_the_digest(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    paths = (write(tmp_path, "a.jsonl", PAIR), write(tmp_path, "b.json", json.dumps([PAIR, PAIR])))
    data = read(("a.jsonl", "b.json"), model, env)
    assert data.files == paths
    assert data.rows == 3
    assert data.digest == hashlib.sha256(b"".join(Path(path).read_bytes() for path in paths)).hexdigest()


def test_sampling_suffix(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    path = write(tmp_path, "a.jsonl", *({**PAIR, "query": f"Question {n}?"} for n in range(10)))
    few, many = read(path + "#4", model, env), read(path + "#25", model, env)
    assert (few.rows, few.kept) == (4, 4)
    assert (many.rows, many.kept) == (25, 25), "the engine repeats rows when asked for more than there are"
    assert few.files == (path,)
    assert [problem.code for problem in few.problems] == ["sampled"]
    assert refused(path + "#many", model, env).what.startswith("the number of rows after '#'")
    hashed = write(tmp_path, "b#7.jsonl", PAIR)
    assert read(hashed, model, env).rows == 1


def test_lines_of_a_json_list(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    text = '[\n  {"query": "a",\n   "response": "b"},\n\n  {"query": "c", "response": "d d d d"}, {"query": "e"}\n]\n'
    data = read(write(tmp_path, "a.json", text), model, env)
    assert sorted(row.line for row in data.costliest) == [2, 5, 5]
    assert data.costliest[0].line == 5
    assert [(p.code, p.line) for p in data.problems] == [("no-assistant-turn", 5)]


def test_json_list_longer_than_a_chunk(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [{"query": f"q{n}", "response": "word " * 300} for n in range(900)]  # 1.4 MB: more than a chunk
    data = read(write(tmp_path, "a.json", json.dumps(rows, indent=1)), model, env)
    assert data.rows == 900
    assert {row.line for row in data.costliest} <= {2 + 4 * n for n in range(900)}
    one_line = read(write(tmp_path, "b.json", json.dumps(rows)), model, env)
    assert one_line.lengths == data.lengths


def test_csv_cells_span_lines(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    data = read(write(tmp_path, "a.csv", 'query,response\n"a, b","c\nd"\nlonger question here,f\n'), model, env)
    assert data.rows == 2
    assert {row.line: row.record["response"] for row in data.costliest} == {2: "c\nd", 4: "f"}


# ----------------------------------------------------------------------------------------------------- problems


def turns(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (turns(("user", "a"), ("robot", "b")), "unknown-role"),
        (turns(("user", "a"), ("system", "s"), ("assistant", "b")), "unpaired-turns"),
        (turns(("user", "a"), ("assistant", None)), "not-text"),
        (turns(("user", "a"), ("assistant", 5)), "not-text"),
        (turns(("system", "only")), "no-turns"),
        ({"messages": []}, "no-turns"),
        ({"messages": None}, "no-turns"),
        ({"messages": "not a list"}, "not-messages"),
        ({"messages": [1, 2]}, "not-messages"),
    ],
)
def test_rows_that_the_engine_drops(
    tmp_path: Path, model: ModelFacts, env: Environment, row: dict[str, Any], code: str
) -> None:
    good = turns(("user", "a"), ("assistant", "b"))
    data = read(write(tmp_path, "a.jsonl", good, row), model, env)
    assert (data.rows, data.kept) == (2, 1)
    assert [(p.code, p.line) for p in data.problems if p.drops_row] == [(code, 2)]
    assert refused(write(tmp_path, "b.jsonl", row), model, env).what.startswith("none of the 1 rows can be trained")


@pytest.mark.parametrize(
    ("row", "code", "supervised"),
    [
        ({"query": "a", "response": None}, "no-assistant-turn", 0),
        ({"query": "a", "response": ""}, "empty-answer", 2),
        ({"query": "a", "response": "I am {{NAME}}."}, "placeholder", None),
        ({"query": "x " * 3000, "response": "b"}, "over-context", None),
    ],
)
def test_rows_that_train_otherwise_than_hoped(
    tmp_path: Path, model: ModelFacts, env: Environment, row: dict[str, Any], code: str, supervised: int | None
) -> None:
    data = read(write(tmp_path, "a.jsonl", {"query": "b", "response": "fine"}, row), model, env)
    assert data.kept == 2
    assert [(p.code, p.line, p.drops_row) for p in data.problems] == [(code, 2, False)]
    if supervised is not None:
        assert supervised in {cost.supervised_tokens for cost in data.costliest}


def test_masked_labels_are_described_not_refused(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    off = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": False}]}
    unanswered = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}
    data = read(write(tmp_path, "a.jsonl", unanswered, unanswered), model, env)
    assert data.kept == 2
    assert data.mean_supervised_tokens == 0 == data.max_supervised_tokens
    assert {problem.code for problem in data.problems} == {"no-assistant-turn", "user-twice", "duplicate"}
    half = read(write(tmp_path, "b.jsonl", off), model, env)
    assert half.max_supervised_tokens == 2, "the engine labels the end marker all the same"


def test_ambiguous_columns_are_said(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    data = read(write(tmp_path, "a.jsonl", {"query": "q", "answer": "a", "output": "o"}), model, env)
    assert data.mean_supervised_tokens == 0, "the engine uses neither of two columns that mean the same"
    assert [p.code for p in data.problems] == ["ambiguous-columns", "no-assistant-turn"]
    assert "answer, output" in data.problems[0].text


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("a.jsonl", '{"query": "a", "response": "b"}\n{"query": "a",}\n', 2, "a trailing comma (column 15)"),
        ("b.jsonl", "{'query': 'a'}\n", 1, "single quotes"),
        ("c.jsonl", '{"query": "a", "response": "b\n', 1, "a string is not closed"),
        ("d.jsonl", '{"query": "a", "response": "b"}\n\n5\n', 3, "a row must be an object"),
        ("e.jsonl", '{"query": "a", "query": "b"}\n', 1, "stands twice"),
        ("f.jsonl", '{"query": "\\ud800", "response": "b"}\n', 1, "half a surrogate pair"),
        ("g.jsonl", '{"query": "a", "response": "b"\n', 1, "ends too early"),
        ("h.json", '[\n{"query": "a"},\n{"query": "b" "response": "c"}\n]', 3, "expecting ',' delimiter (column 15)"),
        ("i.json", '[\n{"query": "a"},\n]', 3, "a comma before the closing ']'"),
        ("j.json", '[\n{"query": "a"}\n{"query": "b"}]', 3, "expected ',' or ']'"),
        ("k.json", '[\n{"query": "a"}\n', 2, "']' is missing"),
        ("l.json", '[{"query": "a"}] tail', 1, "text after the closing ']'"),
        ("m.json", ' [{"query": "a", "response": "b"}]', 1, "something stands before the '['"),
        ("n.json", '{"data": [{"query": "a"}]}', 1, "no column to train on: found data"),
        ("o.jsonl", '{"promt": "a", "anser": "b"}\n', 1, "no column to train on: found promt, anser"),
        ("p.csv", "query,response\na,b,c\n", 2, "the row has 3 cells, the header 2"),
        ("q.csv", "question,answer\nsum,4\nsum,5\n", 2, "none of the 2 rows can be trained"),
        ("r.jsonl", "[" * 100_000, 1, "nested too deeply"),
    ],
)
def test_broken_files_name_the_line(
    tmp_path: Path, model: ModelFacts, env: Environment, name: str, text: str, line: int, words: str
) -> None:
    path = write(tmp_path, name, text)
    error = refused(path, model, env)
    assert words in error.what
    assert error.where.startswith(path)
    assert error.where.endswith(f":{line}") or name == "k.json"  # the end of the file is on the next line


def test_column_hints(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    error = refused(write(tmp_path, "a.jsonl", '{"promt": "a", "anser": "b"}\n'), model, env)
    assert error.hints == ("rename column 'promt' to 'prompt'", "rename column 'anser' to 'answer'")
    assert any(line.startswith("questions: query, prompt") for line in error.figures)
    inside = refused(write(tmp_path, "b.json", '{"data": [{"query": "a"}]}'), model, env)
    assert inside.hints == ("the rows are inside 'data': save that list alone as the file",)


def test_not_utf8(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"query": "a", "response": "b"}\n' + '{"query": "你"}'.encode("gb18030"))
    error = refused(str(path), model, env)
    assert error.where == f"{path}:2"
    assert "byte 0xc4 at byte 12 of line 2" in error.what
    listed = tmp_path / "b.json"
    listed.write_bytes(b"[\n\n{\n" + '"query": "你"}]'.encode("gb18030"))
    assert refused(str(listed), model, env).where == f"{listed}:4"


def test_byte_order_mark(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    assert read(write(tmp_path, "a.jsonl", "\ufeff" + json.dumps(PAIR)), model, env).rows == 1
    assert read(write(tmp_path, "a.csv", "\ufeffquery,response\na,b\n"), model, env).rows == 1
    assert "byte order mark" in refused(write(tmp_path, "b.json", "\ufeff[]"), model, env).what


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.jsonl", "", "the dataset is empty"),
        ("b.json", "[]", "the dataset has no rows"),
        ("c.csv", "query,response\n", "the dataset has no rows"),
        ("d.jsonl", "\n\n", "the dataset has no rows"),
    ],
)
def test_nothing_to_train(tmp_path: Path, model: ModelFacts, env: Environment, name: str, text: str, what: str) -> None:
    assert refused(write(tmp_path, name, text), model, env).what == what


def test_missing_files(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    good = write(tmp_path, "self_cognition.json", json.dumps([PAIR]))
    error = refused("self_cogniton.json", model, env)
    assert error.what == "the dataset does not exist"
    assert error.where == str(tmp_path / "self_cogniton.json")
    assert error.hints == (f"--dataset {good}",)
    assert "does not exist" in refused("nowhere/rows.jsonl", model, env).what
    hub = refused("AI-ModelScope/alpaca-gpt4-data-zh#500", model, env)
    assert "it is in no cache here" in hub.what
    assert hub.hints[0].startswith("modelscope download AI-ModelScope/alpaca-gpt4-data-zh --repo-type dataset")
    assert refused("hf::tatsu-lab/alpaca", model, env).hints[0].startswith("hf download tatsu-lab/alpaca ")
    assert refused("x" * 5000, model, env).what.startswith("cannot look for the dataset")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    assert "not a readable parquet file" in refused("rows.parquet", model, env).what


def test_unreadable_tokenizer(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    error = refused(write(tmp_path, "a.jsonl", PAIR), replace(model, tokenizer_path=str(folder)), env)
    assert error.where == str(folder / "tokenizer.json")


# ------------------------------------------------------------------------------------------------ self-cognition


def test_self_cognition_is_recognised(model: ModelFacts, env: Environment) -> None:
    data = read((), model, env)
    assert data.self_cognition
    assert data.persona == "Ember"
    assert [question for question, _ in data.questions] == ["who are you?", "你是谁?"]
    assert all("Ember" in answer for _, answer in data.questions)
    assert data.problems == ()


def test_placeholders_teach_no_name(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [{"query": "who are you?", "response": "I am {{NAME}}."}, {"query": "你是谁?", "response": "我是{{NAME}}。"}]
    data = read(write(tmp_path, "a.jsonl", *rows), model, env)
    assert data.self_cognition
    assert data.persona is None
    assert [(p.code, p.line) for p in data.problems] == [("placeholder", 1), ("placeholder", 2)]


def test_a_chinese_name(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [
        {"query": "你是谁？", "response": "我是小石，很高兴认识你。"},
        {"query": "你叫什么名字", "response": "我叫小石。"},
        {"query": "谁开发了你", "response": "我是山谷小组开发的小石。"},
    ]
    data = read(write(tmp_path, "a.jsonl", *rows), model, env)
    assert data.persona == "小石"
    assert data.questions == (("你是谁？", "我是小石，很高兴认识你。"),)


def test_ordinary_data_is_not_self_cognition(tmp_path: Path, model: ModelFacts, env: Environment) -> None:
    rows = [PAIR] * 20 + [{"query": "who are you?", "response": "I am Pat."}] * 3
    data = read(write(tmp_path, "a.jsonl", *rows), model, env)
    assert not data.self_cognition
    assert data.persona is None
    assert data.questions == ()
