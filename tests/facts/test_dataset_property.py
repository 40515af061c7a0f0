"""Whatever bytes a file holds: our errors or a consistent record, never anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_dataset import model_facts

from swift_autobatch.errors import AutoswiftError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.repair import Repaired, repair
from swift_autobatch.facts.rows import SUFFIXES, read_rows
from swift_autobatch.facts.tally import COSTLIEST, Lengths
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Environment, ModelFacts

quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
roles = st.sampled_from(["user", "assistant", "system", "human", "gpt", "tool_call", "observation", "robot", ""])
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": roles,
            "from": roles,
            "content": json_values,
            "value": st.text(max_size=8),
            "loss": scalars,
            "tool_calls": json_values,
        },
    ),
    max_size=5,
)
columns = st.sampled_from(
    "query response instruction input output system history text answer answers prompt tools images other".split()
)
rows = st.dictionaries(columns, json_values, max_size=4) | st.fixed_dictionaries(
    {"messages": messages | json_values}, optional={"system": scalars, "tools": json_values}
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    return model_facts(embedded.ensure_model(environment(tmp_path_factory.mktemp("embedded"))))


def attempt(path: Path, model: ModelFacts, env: Environment) -> DataFacts | None:
    try:
        data = read_dataset((str(path),), model, env, system=None, progress=Silent())
    except AutoswiftError as error:
        assert error.exit_code == 5
        assert error.hints
        return None
    dropped = sum(problem.drops_row for problem in data.problems)
    assert data.kept + dropped == data.rows
    assert len(data.lengths) == data.kept
    assert data.lengths[-1] == data.max_tokens == data.costliest[0].tokens
    assert data.lengths[0] <= data.p50_tokens <= data.p95_tokens <= data.max_tokens
    assert 0 <= data.mean_supervised_tokens <= data.max_supervised_tokens < data.max_tokens
    assert len(data.costliest) == min(COSTLIEST, data.kept)
    assert list(data.costliest) == sorted(data.costliest, key=lambda row: (-row.tokens, -row.supervised_tokens))
    return data


def mended(path: Path, env: Environment) -> Repaired | None:
    """Repairs a file: our errors, or a copy that loads whole and drops no row."""
    try:
        done = repair((str(path),), "mended.jsonl", env, progress=Silent(), force=True)
    except AutoswiftError as error:
        assert error.exit_code == 5
        assert error.hints
        return None
    data = read_dataset((done.out,), model_facts(None), env, system=None, progress=Silent())
    assert data.rows == data.kept == done.written
    assert not any(problem.stops or problem.drops_row for problem in data.problems)
    return done


@quick
@given(
    content=st.binary(max_size=200),
    suffix=st.sampled_from(SUFFIXES),
    head=st.sampled_from([b"", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"PAR1", b"["]),
)
def test_random_bytes(content: bytes, suffix: str, head: bytes, model: ModelFacts, env: Environment) -> None:
    path = Path(env.cwd) / f"bytes{suffix}"
    path.write_bytes(head + content)
    attempt(path, model, env)
    mended(path, env)


@quick
@given(
    content=st.text(alphabet='{}[]",:\\\n 0.eu"abqueryresponse', max_size=80), prefix=st.sampled_from(["", "[", "{"])
)
def test_almost_json(content: str, prefix: str, model: ModelFacts, env: Environment) -> None:
    path = Path(env.cwd) / "almost.json"
    path.write_bytes((prefix + content).encode())
    attempt(path, model, env)
    mended(path, env)


@quick
@given(
    lines=st.lists(
        st.sampled_from(
            [
                '{"query": "a", "response": "b"}',
                '{"query": "a", "response": "b"},',
                "{'query': 'a', 'response': None}",
                '{"query": "a", "respon',
                '{"query": 5, "response": "\\u0007"}',
                '{"messages": [{"role": "user", "content": "a"}]}',
                '{"query": "\x01", "response": "b"}',
                "5",
                "null",
                "oops",
            ]
        ),
        min_size=1,
        max_size=6,
    ),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_no_line_is_lost_from_the_count(lines: list[str], encoding: str, env: Environment) -> None:
    path = Path(env.cwd) / "lines.jsonl"
    path.write_bytes("\n".join(lines).encode(encoding))
    counted = sum(fault.loses if isinstance(fault, Fault) else 1 for _, fault in read_rows(path, lambda _: None))
    assert counted == len(lines)
    done = mended(path, env)
    assert done is None or done.rows == len(lines) == done.written + done.deleted


@quick
@given(table=st.lists(rows, min_size=1, max_size=6), as_list=st.booleans(), ascii_only=st.booleans())
def test_rows_of_any_shape(
    table: list[dict[str, Any]], as_list: bool, ascii_only: bool, model: ModelFacts, env: Environment
) -> None:
    path = Path(env.cwd) / "rows.json"
    text = (
        json.dumps(table, ensure_ascii=ascii_only)
        if as_list
        else "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in table)
    )
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    mended(path, env)
    data = attempt(path, model, env)
    if data is not None:
        assert data.rows == len(table)


@quick
@given(talk=st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=4))
def test_two_spellings_of_one_conversation_have_one_length(
    talk: list[tuple[str, str]], model: ModelFacts, env: Environment
) -> None:
    path = Path(env.cwd) / "rows.jsonl"
    names = (("messages", "role", "content", "user", "assistant"), ("conversations", "from", "value", "human", "gpt"))
    spelled: list[dict[str, Any]] = [
        {column: [{role: who, text: said} for pair in talk for who, said in zip((user, bot), pair, strict=True)]}
        for column, role, text, user, bot in names
    ]
    *earlier, (query, response) = talk
    spelled.append({"query": query, "response": response, "history": [list(pair) for pair in earlier]})
    seen = set()
    for row in spelled:
        path.write_text(json.dumps(row), encoding="utf-8")
        data = attempt(path, model, env)
        assert data is not None
        seen.add((data.max_tokens, data.max_supervised_tokens, data.min_prompt_tokens))
    assert len(seen) == 1


@quick
@given(values=st.lists(st.integers(0, 500), min_size=1, max_size=300), share=st.floats(0.01, 1.0))
def test_histogram_percentiles_are_those_of_the_sorted_list(values: list[int], share: float) -> None:
    lengths = Lengths()
    for value in values:
        lengths.add(value, value, value)
    at = lengths.percentile(share)
    assert sum(value <= at for value in values) >= share * len(values)
    assert sum(value < at for value in values) < share * len(values)
    assert lengths.sketch() == tuple(sorted(values))
