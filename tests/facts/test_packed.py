"""Bytes a parameter in checkpoints that are quantised already, and what they make of a prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch.facts.packed import packed_bytes
from swift_autobatch.predict import predict
from swift_autobatch.records import Prediction


@pytest.mark.parametrize(
    ("config", "name", "method", "each"),
    [
        ({"bits": 4, "group_size": 128}, "m", "gptq", 0.5 + 2.5 / 128),
        ({"bits": 8, "group_size": 32}, "m", "gptq", 1 + 3 / 32),
        ({"bits": 4, "group_size": -1}, "m", "gptq", 0.5),
        ({"w_bit": 4, "q_group_size": 64}, "m", "awq", 0.5 + 2.5 / 64),
        (None, "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq", 1 + 3 / 128),
        (None, "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq", 0.5 + 2.5 / 128),
        (None, "Qwen/Qwen2.5-14B-Instruct-AWQ", "awq", 0.5 + 2.5 / 128),
        ({"load_in_8bit": True}, "m", "bnb", 1.0),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": False}, "m", "bnb", 0.5 + 4 / 64),
        (None, "unsloth/Qwen2.5-7B-bnb-4bit", "bnb", 0.5 + 1 / 64 + 4 / 16384),
        ({"weight_block_size": [128, 128]}, "m", "fp8", None),
        (None, "Qwen/Qwen2.5-7B-Instruct", None, None),
    ],
)
def test_bytes_a_parameter(config: dict[str, Any] | None, name: str, method: str | None, each: float | None) -> None:
    assert packed_bytes(config, name, method) == (None if each is None else pytest.approx(each))


def terms(prediction: Prediction) -> dict[str, int]:
    return {term.name: term.bytes for term in prediction.terms}


def test_a_packed_checkpoint_needs_less_and_its_products_take_longer(tmp_path: Path) -> None:
    whole = builders.facts(tmp_path, "1x4090", "Qwen/Qwen2.5-7B-Instruct")
    packed = builders.facts(tmp_path, "1x4090", "Qwen/Qwen2.5-7B-Instruct-AWQ")
    assert packed.model.packed_bytes == pytest.approx(0.5 + 2.5 / 128)
    candidate = builders.candidate(max_tokens=120)
    before, after = predict(replace(whole, footprints={}), candidate), predict(packed, candidate)
    linears = 28 * (3584 * (3584 * 2 + 2 * 512) + 3 * 3584 * 18944)
    saved = terms(before)["weights"] - terms(after)["weights"]
    assert saved == pytest.approx(linears * (2 - 0.5 - 2.5 / 128), rel=1e-6)
    assert after.step_s > before.step_s
    assert not any("16-bit weights" in note for note in after.assumptions)
    assert "awq checkpoint" in next(term.why for term in after.terms if term.name == "weights")


def test_a_footprint_without_images_says_so(tmp_path: Path) -> None:
    from swift_autobatch import tables
    from swift_autobatch.footprint_file import model_digest

    seen = builders.facts(tmp_path, "1xA100-80G", "Qwen/Qwen2.5-VL-7B-Instruct")
    traced = replace(seen, footprints=tables.footprints(model_digest(seen.model)))
    made = predict(traced, builders.candidate(max_tokens=120))
    assert made.traced
    assert any("images are left out" in note for note in made.assumptions)
    text = builders.facts(tmp_path, "1xA100-80G", "Qwen/Qwen2.5-7B-Instruct")
    text = replace(text, footprints=tables.footprints(model_digest(text.model)))
    assert not any("images" in note for note in predict(text, builders.candidate(max_tokens=120)).assumptions)
