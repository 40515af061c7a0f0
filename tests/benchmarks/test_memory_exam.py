"""The memory exam on a small sample of published runs (each row names its source): it runs, covers and is right.

The bounds are twice what the predictor reaches on all rows, so that a term that breaks is seen and noise is not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cases
import exam
import memory_exam
import pytest
import score

SAMPLE = Path(__file__).parent / "sample_cases.jsonl"
ROWS = exam.read(SAMPLE)
ANSWERS: dict[str, dict[str, Any]] = {row["id"]: memory_exam.answer(row) for row in ROWS}
UNKNOWN_TUNER = "lora (LLM) + full (ViT)"


def test_every_row_is_answered_and_only_the_unknown_tuner_is_skipped() -> None:
    skipped = {row["id"] for row in ROWS if "skipped" in ANSWERS[row["id"]]}
    assert skipped == {row["id"] for row in ROWS if row["tuner"] == UNKNOWN_TUNER}
    assert len(skipped) == 1
    assert all(UNKNOWN_TUNER in ANSWERS[name]["skipped"] for name in skipped)


def test_meters_are_ordered() -> None:
    for answer in ANSWERS.values():
        if "skipped" not in answer:
            assert 0 < answer["allocated_gib"] <= answer["reserved_gib"] < answer["driver_gib"]


def test_a_model_without_a_shape_is_costed_from_its_size_and_says_so() -> None:
    assumed = {row["model"] for row in ROWS if ANSWERS[row["id"]].get("assumed_shape")}
    assert assumed == {"Tele-AI/telechat-7B"}
    model, is_assumed = cases.model_of("nobody/ever-saw-this", 7.0)
    assert is_assumed
    assert model.params_total == 7_000_000_000
    assert "assumed" in model.source
    with pytest.raises(cases.Skip, match="catalogue"):
        cases.model_of("nobody/ever-saw-this", None)


def test_the_sample_is_predicted() -> None:
    rows = score.score(ROWS, ANSWERS)
    errors = [abs(row["error"]) for row in rows if row.get("kind") == "exact"]
    assert len(errors) >= 18
    assert sum(errors) / len(errors) < 0.15
    assert max(errors) < 0.40
    assert not [row["id"] for row in rows if row.get("called_fit")]
    assert not [row["id"] for row in rows if row.get("refused")]


def test_every_engine_says_where_its_facts_come_from() -> None:
    for row in ROWS:
        if row["tuner"] != UNKNOWN_TUNER:
            assert len(cases.express(row)[2].source) > 8


@pytest.mark.parametrize("key", sorted(set(ROWS[0]) - {"id", "model", "source", "group", "tool", "tuner", "task"}))
def test_a_row_that_leaves_something_out_is_still_answered(key: str) -> None:
    for row in ROWS[:12]:
        answer = memory_exam.answer({**row, key: None})
        assert answer["allocated_gib"] > 0 or answer["skipped"]


def test_the_command_writes_one_prediction_a_row_and_prints_the_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "predictions.jsonl"
    monkeypatch.setattr(sys, "argv", ["memory_exam.py", str(SAMPLE), "-o", str(output), "--json"])
    found = score.summary(score.score(ROWS, ANSWERS))
    assert memory_exam.main() == (1 if memory_exam.missed(found) else 0)
    written = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in written] == [row["id"] for row in ROWS]
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["memory_exam.py", str(SAMPLE), "-o", str(output)])
    memory_exam.main()
    assert "skipped 1: tuner" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("low", "high", "error"),
    [(9.0, 11.0, 0.0), (5.0, 8.0, -0.2), (15.0, 16.0, 0.25), (12.0, 12.0, 0.0)],
)
def test_the_error_is_the_distance_to_the_nearer_edge(low: float, high: float, error: float) -> None:
    assert score.distance(low, high, 10.0, 12.0) == pytest.approx(error)


def test_a_missed_target_is_named_and_fails_the_exam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met = score.summary(score.score(ROWS, ANSWERS))
    met = {**met, "trainer": {**met["trainer"], "upper_under": 0}}
    assert not memory_exam.missed(met)
    worse = {**met["trainer"], "oom_called_fit": 3, "upper": 100, "upper_under": 4, "within_10pct": 0.5}
    assert memory_exam.missed({**met, "trainer": worse}) == [
        "trainer: share within 10 % 0.5 is below 0.65",
        "trainer: out-of-memory runs called fit 3 is above 2",
        "trainer: share of under-called runs 0.04 is above 0.03",
    ]
    small = tmp_path / "cases.jsonl"
    exam.write(small, [{**row, "peak_lo_gib": 900.0, "peak_hi_gib": 900.0} for row in ROWS if row["tier"] == "A"])
    monkeypatch.setattr(sys, "argv", ["memory_exam.py", str(small), "-o", str(tmp_path / "out.jsonl"), "--json"])
    assert memory_exam.main() == 1


def test_what_a_row_says_of_its_script_is_read() -> None:
    row = next(row for row in ROWS if row["tool"] == "ms-swift" and row["task"] == "sft")
    plain, grown, spread = (
        cases.express({**row, **changes})
        for changes in (
            {},
            {"tuner": "llamapro", "lora_targets": None},
            {"gpus": 4, "deepspeed": "device_map", "notes": "4 visible cards, 2 process(es)"},
        )
    )
    assert grown[0].model.layers == plain[0].model.layers + 4
    assert (grown[2].trained_layers, grown[2].targets) == (4, ())
    assert (spread[1].parallel, spread[1].pp, spread[1].dp) == ("ddp", 2, 2)
    assert not plain[2].pairs
    assert cases.express({**row, "id": "swift-v2-dpo-lora-v1.6.0"})[2].pairs
    stated = {**row, "per_device_batch": None, "gpus": 8, "grad_accum": 1, "quote": "8 cards, batch size 32"}
    assert cases.express(stated)[1].micro_batch == 4


@pytest.mark.parametrize(
    ("model", "version", "kernel", "eager"),
    [
        ("TigerResearch/tigerbot-13b-chat", "v1.3.0", None, True),
        ("TigerResearch/tigerbot-13b-chat", "v1.5.0", None, False),
        ("TigerResearch/tigerbot-13b-chat", "v1.3.0", "flash_attn", False),
        ("ZhipuAI/chatglm3-6b", "v1.3.0", None, False),
        ("xverse/XVERSE-65B", "v1.5.0", None, True),
        ("xverse/XVERSE-65B", "v3.0.0", None, False),
    ],
)
def test_old_versions_build_the_matrix_of_scores(model: str, version: str, kernel: str | None, eager: bool) -> None:
    row = next(row for row in ROWS if row["tool"] == "ms-swift" and row["task"] == "sft")
    source = f"modelscope/ms-swift examples/sft.sh@{version}"
    case = {**row, "model": model, "params_b": 13.0, "source": source, "attn_impl": kernel, "lora_targets": None}
    assert (cases.profile(case).attention == "eager") is eager
