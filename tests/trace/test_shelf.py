"""A model that nobody knows is traced, kept and planned with; one that cannot be traced says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_autobatch.progress import Silent
from swift_autobatch.records import Environment, FootprintKey, bytes_at, replace
from swift_autobatch.request import read_environment
from swift_autobatch.trace import Traceable, kept, traced
from swift_autobatch.trace.shelf import digest

ODD = {  # odd heads and widths, experts, tied: of nobody's making
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 288,
    "intermediate_size": 500,
    "moe_intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 40,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "vocab_size": 1031,
    "tie_word_embeddings": True,
}
KEY = FootprintKey(
    tuner="lora",
    quant="none",
    checkpointing=True,
    loss="hf_fp32_logits",
    attention="sdpa-flash",
    dtype="bfloat16",
    optimizer="fused-adamw",
    accumulates=False,
    lora_rank=8,
    dropout=True,
)


class Said(Silent):
    """Keeps the lasting lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return replace(read_environment(), cache_dir=str(tmp_path / "cache"), cwd=str(tmp_path))


@pytest.mark.engine
def test_an_odd_mixture_of_experts_is_traced_once(env: Environment) -> None:
    model = Traceable(config=ODD)
    said = Said()
    shelf = traced(model, [KEY], env, said)
    footprint = shelf.footprints[KEY]
    assert any("experts" in note for note in footprint.stream.notes)
    # 288 x 1031 tied once; 3 layers of attention, its two norms of a head, six experts, router and norms; 2 bytes each
    attention = 288 * 40 * (9 + 3 + 3 + 9) + 2 * 40
    experts = 6 * 3 * 288 * 104 + 288 * 6
    buffers = footprint.weights_bytes - 2 * (288 * 1031 + 288 + 3 * (attention + experts + 2 * 288))
    assert 0 <= buffers <= 4096  # rotary frequencies
    assert all(one.gradients_bytes <= footprint.adapters_bytes for one in footprint.instants)
    again = Said()
    assert traced(model, [KEY], env, again).footprints[KEY] == footprint
    assert not again.lines, "what is on disk is not traced again"
    assert kept(model, env).footprints[KEY] == footprint


@pytest.mark.engine
def test_what_cannot_be_traced_says_why_and_is_not_tried_again(env: Environment) -> None:
    model = Traceable(config={**ODD, "model_type": "wombat"})
    said = Said()
    shelf = traced(model, [KEY], env, said)
    assert KEY not in shelf.footprints
    assert "wombat" in shelf.refused[KEY]
    assert said.lines[-1].startswith("not traced: ")
    assert said.lines[-1].endswith("the closed form answers")
    again = Said()
    assert traced(model, [KEY], env, again).refused == shelf.refused
    assert not again.lines


@pytest.mark.engine
def test_a_shape_that_gives_another_count_is_refused(env: Environment) -> None:
    shelf = traced(Traceable(config=ODD, params_total=5_000_000), [KEY], env, Silent())
    assert "instead of 5,000,000" in shelf.refused[KEY]


@pytest.mark.engine
def test_longer_rows_and_more_kept_labels_never_take_less(env: Environment) -> None:
    keys = [KEY, replace(KEY, checkpointing=False), replace(KEY, tuner="full", lora_rank=0, dropout=False)]
    found = traced(Traceable(config=ODD), keys, env, Silent()).footprints
    for key in keys:
        for one in found[key].instants:
            sizes = [bytes_at(one.passing, b=b, s=512, k=b * 512) for b in (1, 2, 4)]
            assert sizes == sorted(sizes)


def test_a_damaged_cache_is_as_good_as_none(env: Environment) -> None:
    model = Traceable(config=ODD)
    folder = Path(env.cache_dir) / "traces"
    folder.mkdir(parents=True)
    (folder / f"{digest(model)}.xz").write_bytes(b"not a footprint")
    (folder / f"{digest(model)}.json").write_text(json.dumps([{"key": {}, "why": 3}]))
    shelf = kept(model, env)
    assert (dict(shelf.footprints), dict(shelf.refused)) == ({}, {})


def test_the_cache_knows_configs_and_devices_apart() -> None:
    model = Traceable(config=ODD)
    other = Traceable(config={**ODD, "num_hidden_layers": 4})
    assert len({digest(model), digest(other), digest(model, "cpu")}) == 3


def test_a_child_that_cannot_start_is_a_sentence(env: Environment) -> None:
    said = Said()
    shelf = traced(Traceable(config=ODD), [KEY], replace(env, interpreter="/nowhere/python"), said)
    assert "cannot start" in shelf.refused[KEY]
    assert not kept(Traceable(config=ODD), env).refused, "another time it may start"
