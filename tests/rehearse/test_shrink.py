"""A small model is the same architecture: on every text model of the catalogue, and where kinds differ."""

from __future__ import annotations

from typing import Any

import pytest

from swift_autobatch.errors import InputError
from swift_autobatch.facts.shape import read_shape, text_config
from swift_autobatch.rehearse.shrink import shrink
from swift_autobatch.tables import models

ROWS = {row.id: row.config for row in models().values()}
NO_ATTENTION = {"state-spaces/mamba-1.4b-hf"}
TEXT = {
    name: row
    for name, row in ROWS.items()
    if text_config(row) is row and "vision_config" not in row and name not in NO_ATTENTION
}


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_kinds_and_ratios_stay(degree: int) -> None:
    for name in TEXT:
        _is_the_same_in_small(name, degree)


def _is_the_same_in_small(name: str, degree: int) -> None:
    real, small = read_shape(TEXT[name], name), read_shape(shrink(TEXT[name], degree=degree, vocab=1024).config, name)
    assert small.params_text <= 30e6, name  # a second or two a step on two cores
    assert small.layers < real.layers or real.layers <= 3, name
    assert small.heads * real.kv_heads == real.heads * small.kv_heads, name  # query heads of a key head
    assert (real.kv_heads % degree != 0) or (small.kv_heads % degree == 0), name
    assert (small.tied, small.model_type, bool(small.experts)) == (real.tied, real.model_type, bool(real.experts)), name
    assert small.experts_per_token <= min(2, real.experts_per_token), name
    assert [linear for linear, _, _ in small.linears] == [linear for linear, _, _ in real.linears], name
    assert small.max_position == real.max_position, name


def test_the_catalogue_was_looked_through() -> None:
    assert len(TEXT) >= 154


def test_every_kind_of_layer_is_there() -> None:
    config: dict[str, Any] = {
        **TEXT["Qwen/Qwen2.5-7B-Instruct"],
        "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 25,
    }
    small = shrink(config).config
    assert small["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]
    assert small["num_hidden_layers"] == 4


def test_dense_layers_before_experts_leave_one_of_each() -> None:
    small = shrink(TEXT["deepseek-ai/DeepSeek-V3"]).config
    assert (small["num_hidden_layers"], small["first_k_dense_replace"]) == (3, 1)


def test_its_own_tokenizer_keeps_its_vocabulary() -> None:
    config = {**TEXT["Qwen/Qwen2.5-7B-Instruct"], "eos_token_id": 151645}
    own, stand_in = shrink(config).config, shrink(config, vocab=1024).config
    assert (own["vocab_size"], own["eos_token_id"]) == (152064, 151645)
    assert (stand_in["vocab_size"], stand_in["eos_token_id"]) == (1024, 2)


def test_what_is_smaller_is_said() -> None:
    changes = {what: (real, here) for what, real, here in shrink(TEXT["Qwen/Qwen3-30B-A3B"], vocab=1024).changes}
    assert changes["layers"] == ("48", "2")
    assert changes["experts"] == ("128", "4")
    assert changes["experts a token"] == ("8", "2")
    assert changes["vocabulary"] == ("151936", "1024")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"vision_config": {"depth": 2}}, "parts beside its language model"),
        ({"num_attention_heads": None}, "no attention heads"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "brings its own code"),
    ],
)
def test_what_cannot_be_shrunk_is_refused_with_a_way_out(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        shrink({**TEXT["Qwen/Qwen2.5-7B-Instruct"], **more}, name="X")
    assert says in error.value.what
    assert error.value.hints[0] == "rehearse the strategy alone: autoswift rehearse STRATEGY"
