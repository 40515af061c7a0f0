"""The table of ms-swift's scripts: the author's configuration and the pick, on the sample's scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exam
import pytest
import scripts_table

SAMPLE = Path(__file__).parent / "sample_speeds.jsonl"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in exam.read(SAMPLE)}
ROWS = {name: scripts_table.compare(case) for name, case in CASES.items() if case["group"] in scripts_table.GROUPS}


def test_only_scripts_of_the_engine_are_in_the_table() -> None:
    page = scripts_table.table(list(CASES.values()))
    lines = [text for text in page.splitlines() if text.startswith("| ")]
    assert len(lines) == 1 + len(ROWS) == 6
    assert all(text.count(" | ") == 7 for text in lines)
    assert "fsdpqlora" not in page


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_pick_fits_trains_what_the_author_trained_and_is_explained(row: scripts_table.Row) -> None:
    assert row.pick is not None
    assert row.picked is not None
    assert row.picked.fits
    assert row.pick.tuner == row.author.tuner
    assert row.pick.packing == row.author.packing
    assert row.pick.max_length == row.author.max_length
    assert row.pick.effective_batch == row.author.effective_batch
    assert scripts_table.sentence(row)


def test_a_pick_is_not_slower_than_an_author_who_fits_and_runs_what_we_run() -> None:
    for row in ROWS.values():
        assert row.pick is not None
        assert row.picked is not None
        if row.predicted.fits and row.author.parallel != "megatron":
            ours = scripts_table.seconds_of(row, row.pick, row.picked)
            assert ours <= 1.02 * scripts_table.seconds_of(row, row.author, row.predicted)


def test_words_say_what_differs() -> None:
    zero3 = ROWS["swiftdoc-quickstart-14b-zero3"]
    assert scripts_table.words_of(zero3.author) == "zero3, 1 x 2, ckpt, packing"
    assert "faster" in scripts_table.sentence(zero3)
    assert "collectives" in scripts_table.sentence(zero3)
    assert "Megatron is not run" in scripts_table.sentence(ROWS["swiftdoc-quickstart-14b-megatron"])


def test_other_training_than_sft_has_no_pick() -> None:
    case = {**CASES["swiftdoc-quickstart-14b-zero3"], "task": "dpo"}
    row = scripts_table.compare(case)
    assert row.pick is None
    assert scripts_table.sentence(row) == "dpo is not planned"
