"""Parameter counts and linear modules by formula, against published totals and against the real classes."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from swift_autobatch.errors import InputError
from swift_autobatch.facts.families import FAMILIES
from swift_autobatch.facts.shape import read_shape
from swift_autobatch.tables import ModelRow, models

ROWS = list({row.id: row for row in models().values()}.values())

# Rows whose total the formula does not reach, with the reason. Everything else must be exact to the last parameter.
NOT_BY_FORMULA = {
    "LiquidAI/LFM2-350M": "short convolutions",
    "LiquidAI/LFM2-8B-A1B": "short convolutions",
    "LiquidAI/LFM2-VL-450M": "short convolutions",
    "ai21labs/Jamba-v0.1": "Mamba layers",
    "ibm-granite/granite-4.0-tiny-preview": "Mamba layers",
    "state-spaces/mamba-1.4b-hf": "Mamba layers",
    "bigscience/T0_3B": "encoder and decoder",
    "bigscience/mt0-xxl": "encoder and decoder",
    "Alibaba-NLP/gte-reranker-modernbert-base": "encoder",
    "Qwen/Qwen3-Embedding-8B": "no lm_head",
    "google/gemma-4-26B-A4B": "two head sizes, dense and expert MLP side by side",
    "google/gemma-4-31B": "two head sizes",
    "google/gemma-4-12B-it": "two head sizes",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "shared expert without a key",
    "arcee-ai/Trinity-Nano-Preview": "gated attention",
    "Qwen/Qwen2.5-Omni-7B": "talker",
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": "talker",
    "llava-hf/llava-v1.6-mistral-7b-hf": "4096 parameters of the image newline are not counted as vision",
    "llava-hf/LLaVA-NeXT-Video-7B-hf": "4096 parameters of the image newline are not counted as vision",
}


def test_every_row_is_visited() -> None:
    assert len(ROWS) == 195
    assert len(NOT_BY_FORMULA) == 19
    assert set(NOT_BY_FORMULA) <= {row.id for row in ROWS}


@pytest.mark.parametrize("row", [row for row in ROWS if row.id not in NOT_BY_FORMULA], ids=lambda row: row.id)
def test_the_formula_gives_the_published_total(row: ModelRow) -> None:
    shape = read_shape(row.config, row.id)
    vision = row.breakdown["vision_and_projector"]
    assert shape.exact
    assert shape.params_text + vision == row.params_total
    assert shape.params_active + vision == (row.params_active or row.params_total)
    norm = 2 * shape.hidden if shape.model_type == "bloom" else 0  # the catalogue counts Bloom's embedding norm in
    assert shape.params_embedding + norm == row.breakdown["input_embedding"]
    assert shape.params_lm_head == row.breakdown["lm_head_untied"]
    assert shape.tied == row.tied


@pytest.mark.parametrize("name", sorted(NOT_BY_FORMULA))
def test_the_exceptions_are_still_needed(name: str) -> None:
    row = models()[name.lower()]
    try:
        shape = read_shape(row.config, row.id)
    except InputError:
        return
    assert shape.params_text + row.breakdown["vision_and_projector"] != row.params_total


@pytest.mark.parametrize(
    ("name", "linears"),
    [
        (
            "Qwen/Qwen2.5-7B-Instruct",
            "q_proj 3584 3584|k_proj 3584 512|v_proj 3584 512|o_proj 3584 3584|"
            "gate_proj 3584 18944|up_proj 3584 18944|down_proj 18944 3584",
        ),
        (
            "microsoft/Phi-3-mini-4k-instruct",
            "qkv_proj 3072 9216|o_proj 3072 3072|gate_up_proj 3072 16384|down_proj 8192 3072",
        ),
        ("Qwen/Qwen3-30B-A3B", "q_proj 2048 4096|k_proj 2048 512|v_proj 2048 512|o_proj 4096 2048"),
        (
            "Qwen/Qwen-1_8B-Chat",
            "c_attn 2048 6144|c_proj 2048 2048|w1 2048 5504|w2 2048 5504|c_proj 5504 2048",
        ),
        (
            "deepseek-ai/DeepSeek-V2-Lite-Chat",
            "q_proj 2048 3072|kv_a_proj_with_mqa 2048 576|kv_b_proj 512 4096|o_proj 2048 2048|"
            "gate_proj 2048 2816|up_proj 2048 2816|down_proj 2816 2048",
        ),
        (
            "tiiuae/falcon-7b",
            "query_key_value 4544 4672|dense 4544 4544|dense_h_to_4h 4544 18176|dense_4h_to_h 18176 4544",
        ),
        (
            "EleutherAI/pythia-160m",
            "query_key_value 768 2304|dense 768 768|dense_h_to_4h 768 3072|dense_4h_to_h 3072 768",
        ),
    ],
)
def test_linear_modules_of_one_layer(name: str, linears: str) -> None:
    shape = read_shape(models()[name.lower()].config, name)
    assert "|".join(" ".join(map(str, linear)) for linear in shape.linears) == linears


# ------------------------------------------------------------------------------------ against the real classes

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# What these classes call their sizes; keys of other families would be ignored by them and read by us.
N_STYLE = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_inner": 96, "n_positions": 64, "vocab_size": 128}
NO_KV = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
BLOOM = {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128}

BUILT: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "attention_bias": True, "mlp_bias": True},
    "mistral": BASE,
    "mixtral": {**BASE, **LOCAL_EXPERTS},
    "minicpm3": {**BASE, **LATENT},
    "smollm3": BASE,
    "granite": BASE,
    "granitemoe": {**BASE, **LOCAL_EXPERTS},
    "seed_oss": {**BASE, "head_dim": 16, "attention_bias": True},
    "qwen2": BASE,
    "qwen2_moe": {**BASE, **EXPERTS, "shared_expert_intermediate_size": 48},
    "qwen3": {**BASE, "head_dim": 32},
    "qwen3_moe": {**BASE, **EXPERTS, "head_dim": 32},
    "qwen3_next": {**BASE, **EXPERTS, **DELTA, "shared_expert_intermediate_size": 32},
    "qwen3_5_text": {**BASE, **DELTA},
    "qwen3_5_moe_text": {**BASE, **EXPERTS, **DELTA, "shared_expert_intermediate_size": 32},
    "gemma": {**BASE, "head_dim": 32},
    "gemma2": {**BASE, "head_dim": 32},
    "gemma3_text": {**BASE, "head_dim": 32},
    "phi": BASE,
    "phi3": BASE,
    "glm": {**BASE, "head_dim": 16, "attention_bias": True},
    "glm4": {**BASE, "head_dim": 16, "attention_bias": True},
    "glm4_moe": {**BASE, **ROUTED, "head_dim": 16, "use_qk_norm": True},
    "glm4_moe_lite": {**BASE, **LATENT, **ROUTED},
    "deepseek_v2": {**BASE, **LATENT, **ROUTED},
    "deepseek_v3": {**BASE, **LATENT, **ROUTED},
    "stablelm": {**BASE, "use_qkv_bias": True},
    "olmo": BASE,
    "olmo2": BASE,
    "olmo3": BASE,
    "cohere": {**BASE, "use_qk_norm": True},
    "falcon": {**NO_KV, "ffn_hidden_size": 256, "intermediate_size": 256, "multi_query": True},
    "gpt_neox": NO_KV,
    "bloom": BLOOM,
    "gpt_bigcode": N_STYLE,
    "gpt2": N_STYLE,
    "starcoder2": BASE,
    "apertus": BASE,
    "arcee": BASE,
    "gpt_oss": {**BASE, **LOCAL_EXPERTS, "head_dim": 16},
}


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_counts_and_linear_modules_are_those_of_the_real_classes() -> None:
    """Builds each family on the meta device, without weights, and compares to the last parameter."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    wrong = []
    for model_type, sizes in BUILT.items():
        config = AutoConfig.for_model(model_type, **sizes)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        shape = read_shape(config.to_dict(), model_type)
        count = sum(parameter.numel() for parameter in model.parameters())
        layers: dict[str, list[tuple[str, int, int]]] = collections.defaultdict(list)
        for name, module in model.named_modules():
            parts = name.split(".")
            number = next((part for part in parts if part.isdigit()), None)
            if isinstance(module, torch.nn.Linear) and number is not None:
                layers[number].append((parts[-1], module.in_features, module.out_features))
        kinds = collections.Counter(tuple(sorted(linears)) for linears in layers.values())
        commonest = kinds.most_common(1)[0][0] if kinds else ()
        ours = (shape.params_text, tuple(sorted(shape.linears)), shape.tied)
        if ours != (count, commonest, bool(config.tie_word_embeddings)):
            wrong.append((model_type, shape.params_text - count, ours[1], commonest))
    assert not wrong
    assert set(BUILT) <= set(FAMILIES)
    assert len(BUILT) == 40


# -------------------------------------------------------------------------------------------------- bad config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": "28"}, "num_hidden_layers is '28'"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_attention_heads": -1}, "num_attention_heads is -1"),
        ({"hidden_size": [1], "vocab_size": {}}, "hidden_size is"),
    ],
)
def test_wrong_sizes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_shape({"model_type": "qwen2", **BASE, **changes}, "x/config.json")
    assert message in caught.value.what
    assert caught.value.where == "x/config.json"


def test_missing_sizes_are_all_named() -> None:
    with pytest.raises(InputError, match="it lacks hidden_size, num_hidden_layers, num_attention_heads, vocab_size"):
        read_shape({"model_type": "qwen2"}, "x/config.json")


def test_odd_values_elsewhere_do_not_break_reading() -> None:
    odd = {"layer_types": 5, "mlp_only_layers": "x", "thinker_config": 3, "text_config": [], "rope_scaling": None}
    assert read_shape({"model_type": "qwen2", **BASE, **odd}, "x").hidden == 64


def test_an_unknown_family_is_an_estimate() -> None:
    shape = read_shape({"model_type": "brand_new", **BASE}, "x")
    assert not shape.exact
    assert shape.params_text == read_shape({"model_type": "llama", **BASE}, "x").params_text


SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "vocab_size": 100,
    "intermediate_size": 128,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads is 7, no multiple of num_key_value_heads, which is 3"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0, and must be a whole number"),
        ({"num_hidden_layers": 24.5}, "num_hidden_layers is 24.5, and must be a whole number"),
        ({"head_dim": -8}, "head_dim is -8"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok is 8, more than there are experts"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(changes: dict[str, Any], said: str) -> None:
    assert read_shape(SMALL, "config.json").kv_heads == 3
    with pytest.raises(InputError) as caught:
        read_shape({**SMALL, **changes}, "m/config.json")
    assert said in caught.value.what
    assert caught.value.where == "m/config.json"
