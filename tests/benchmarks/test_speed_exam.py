"""The speed exam on a small sample of published runs (each row names its source), and the rules of its score.

The bounds are twice what the predictor reaches on all rows, so that a term that breaks is seen and noise is not.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import exam
import pytest
import score_speed
import speed_cases
import speed_exam

SAMPLE = Path(__file__).parent / "sample_speeds.jsonl"
ROWS = exam.read(SAMPLE)
ANSWERS: dict[str, dict[str, Any]] = {row["id"]: speed_exam.answer(row) for row in ROWS}


def test_the_sample_is_predicted() -> None:
    rows = score_speed.score(ROWS, ANSWERS)
    assert not [row["id"] for row in rows if "skipped" in row]
    errors = sorted(math.exp(abs(row["error"])) - 1 for row in rows if "error" in row)
    assert len(errors) >= 19
    assert errors[len(errors) // 2] < 0.20
    assert errors[-1] < 0.80


def test_the_parts_of_a_step_are_its_seconds_and_the_two_figures_agree() -> None:
    for row in ROWS:
        answer = ANSWERS[row["id"]]
        assert sum(answer["terms"].values()) == pytest.approx(answer["step_s"])
        if row["seq_len_effective"] and row["task"] == "sft" and not row["packing"]:
            tokens = answer["samples_per_s"] * row["seq_len_effective"] / row["gpus"]
            if row["speed"]["length_known"]:
                assert tokens == pytest.approx(answer["tokens_per_s_per_gpu"], rel=0.01)


def test_a_packed_row_is_one_sample() -> None:
    packed = next(row for row in ROWS if row["id"] == "swift-train-long_text-sequence_parallel-v3.5.0")
    answer = ANSWERS[packed["id"]]
    tokens = answer["samples_per_s"] * packed["max_length"] / packed["gpus"]
    assert tokens == pytest.approx(answer["tokens_per_s_per_gpu"], rel=0.01)


def test_assumed_lengths_have_the_stated_moments_and_end_at_the_limit() -> None:
    whole = speed_cases.spread_over(1000, 500, 100_000, False)
    mean = sum(whole) / len(whole)
    assert mean == pytest.approx(1000, rel=0.02)
    assert math.sqrt(sum((n - mean) ** 2 for n in whole) / len(whole)) == pytest.approx(500, rel=0.05)
    dropped, cut = (speed_cases.spread_over(1000, 500, 800, cut) for cut in (False, True))
    assert max(dropped) <= 800
    assert max(cut) == 800
    assert sum(dropped) / len(dropped) < sum(cut) / len(cut) < mean


def case(name: str, tokens: float, **changes: Any) -> dict[str, Any]:
    speed = {"tokens_per_s_per_gpu": tokens, "samples_per_s": None, "confidence": "high"}
    plain = {"id": name, "group": "g", "gpu": "A100", "source": "s", "model": "m", "tuner": "lora"}
    return {**plain, "seq_len_effective": 1, "max_length": 1, "speed": speed, **changes}


def judged(pairs: list[tuple[float, float]], **changes: Any) -> dict[str, Any]:
    """The score of (measured, predicted) speeds in one group."""
    cases = [case(str(n), measured, **changes) for n, (measured, _) in enumerate(pairs)]
    answers = {str(n): {"id": str(n), "tokens_per_s_per_gpu": made} for n, (_, made) in enumerate(pairs)}
    return score_speed.summary(score_speed.score(cases, answers))["all"]


def test_twice_and_half_as_fast_are_equally_wrong() -> None:
    found = judged([(100, 200), (100, 50)])
    assert found["median_by_group"] == pytest.approx(1.0)
    assert found["bias_by_group"] == pytest.approx(0.0)


def test_p90_is_the_nearest_rank() -> None:
    found = judged([(100, 100 + n) for n in range(1, 11)])
    assert found["p90_by_group"] == pytest.approx(0.09)
    assert found["median_by_group"] == pytest.approx(0.055)


def test_order_is_judged_in_ranks_and_in_pairs() -> None:
    right = judged([(100, 1), (200, 2), (300, 3), (400, 4), (500, 5)])
    assert right["spearman_by_group"] == pytest.approx(1.0)
    assert right["pairs_right_by_group"] == 1.0
    assert right["pairs"] == 10
    constant = judged([(100 * n, 7) for n in range(1, 6)])
    assert constant["spearman_by_group"] == 0.0
    assert constant["pairs_right_by_group"] == 0.5
    assert judged([(100, 1), (105, 2)])["pairs"] == 0, "measured within 10 %: nothing to order"


def test_a_card_without_a_name_is_judged_in_pairs_only() -> None:
    found = judged([(100, 300), (200, 600)], gpu="80GB card")
    assert found["median_by_group"] is None
    assert found["pairs_right_by_group"] == 1.0


def test_a_figure_of_the_wrong_kind_counts_as_skipped() -> None:
    rows = score_speed.score([case("a", 100)], {"a": {"id": "a", "samples_per_s": 3.0}})
    assert rows[0]["skipped"]
    assert score_speed.summary(rows)["all"]["coverage"] == 0.0


def test_a_missed_target_is_named() -> None:
    words = speed_exam.missed({"all": {**judged([(100, 200), (200, 100)])}})
    assert any("median" in text for text in words)
    assert any("pairs" in text for text in words)
    assert not speed_exam.missed({"all": {**judged([(100.0 * n, 101.0 * n) for n in range(1, 8)])}})


def test_a_table_that_counts_the_rows_of_one_epoch_of_two_is_answered_in_its_own_figure() -> None:
    row = next(row for row in ROWS if row["group"] == "ms-swift-v1-benchmark")
    once, twice = (
        speed_exam.answer({**row, "group": group}) for group in (row["group"], "ms-swift-v2-tuner-benchmark")
    )
    assert twice["samples_per_s"] == pytest.approx(once["samples_per_s"] / 2)
    assert twice["step_s"] == pytest.approx(once["step_s"])
