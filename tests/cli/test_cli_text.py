"""Rows, bars, wrapping and commands, to the letter."""

from __future__ import annotations

import io
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.cli import text


@given(st.floats(-1, 2), st.integers(1, 60))
def test_a_bar_keeps_its_width(share: float, cells: int) -> None:
    assert len(text.bar(share, cells)) == cells


def test_bars_grow_in_half_cells() -> None:
    assert text.bar(0, 4) == "    "
    assert text.bar(0.5, 4) == "██  "
    assert text.bar(0.625, 4) == "██▌ "
    assert text.bar(1, 4) == "████"


def test_rows_align_and_wrap_under_the_value() -> None:
    assert text.rows([("a", "one two"), ("long", "three")], 12) == ["  a     one", "        two", "  long  three"]


def test_table_aligns_numbers_to_the_right() -> None:
    assert text.table(["name", "n"], [["a", "10"], ["bb", "9"]]) == ["  name   n", "  a     10", "  bb     9"]


@given(
    st.lists(st.sampled_from(["--flag", "value", "$ROOT/a b", "it's", '{"a": 1}', ""]), min_size=1), st.integers(20, 90)
)
def test_a_printed_command_means_the_same_words(words: list[str], columns: int) -> None:
    lines = text.command(["swift", "sft", *words], columns)
    joined = "\n".join(lines).replace("\\\n", "")
    assert shlex.split(joined) == ["swift", "sft", *words]


def test_variables_stand_before_the_command_and_stay_expandable() -> None:
    shown = text.command(["swift", "sft"], 80, {"DEVICES": "${DEVICES:-0}", "DIR": "$RUN/a b", "WORD": "x y"})
    assert shown == ["  DEVICES=${DEVICES:-0} DIR=$RUN/'a b' WORD='x y' swift sft"]


def test_placeholders_stay_expandable() -> None:
    assert text.quoted("$ROOT/my rows.jsonl") == "$ROOT/'my rows.jsonl'"
    assert text.quoted("$RUN") == "$RUN"
    assert text.quoted("${CUDA_VISIBLE_DEVICES:-0,1}") == "${CUDA_VISIBLE_DEVICES:-0,1}"
    assert text.quoted("price $5") == "'price $5'"


def test_a_stream_without_blocks_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    text.page(["a " + text.bar(0.75, 2)])
    stream.flush()
    assert stream.buffer.getvalue() == b"a #+\n"  # type: ignore[attr-defined]


def test_chinese_text_is_wrapped_by_screen_columns() -> None:
    from rich.cells import cell_len

    lines = text.wrapped("我是 Ember，港灯团队做的小助手。" * 8, 40, indent="    ", first="  = ")
    assert len(lines) > 3
    assert all(cell_len(line) <= 40 for line in lines)
    assert "".join(line[4:] for line in lines).replace(" ", "") == "我是Ember，港灯团队做的小助手。" * 8
