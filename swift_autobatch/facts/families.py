"""How model families build a decoder layer: a table by ``model_type``, read by ``shape.py``.

Source of every row: ``models/<model_type>/modeling_<model_type>.py`` of transformers 5.19 (for remote-code models
their ``modeling_*.py``), proved against the published parameter counts of data/models.jsonl by tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One way to build a decoder layer.

    A bias is True, False, or the key of config.json that says so. ``qkv`` and ``mlp`` name the modules:
    ``qkv`` of one name is a fused projection; the last of ``mlp`` is the way back to the hidden size.
    """

    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    mlp_in_widths: tuple[int, ...] = (1, 1)  # of each module but the last, in intermediate sizes
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: Literal["", "head", "full"] = ""  # one weight for each head dimension, or for each output
    qk_norm_key: str = ""  # the key of config.json that turns it on; empty: always on
    norms: int = 2  # of hidden size, per layer
    norm_weights: int = 1  # 2: a LayerNorm with bias
    final_norm: bool = True
    head_bias: bool = False
    tied: bool = False  # when config.json does not say
    linear_modules: bool = True  # False: Conv1D, which LoRA all-linear does not see
    extra_per_layer: int = 0  # loose parameters
    extra_per_head: int = 0  # loose parameters a head and layer (attention sinks)
    expert_biases: bool = False  # experts and router have biases
    half_width: bool = False  # intermediate_size counts gate and up together
    positions: bool = False  # learned position embeddings
    embedding_norm: bool = False
    gated_query: bool = False  # q_proj is twice as wide: the attention output is gated
    fused_delta: bool = False  # linear-attention inputs fused as qkvz and ba (Qwen3-Next)


_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
_PLAIN = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = replace(_LLAMA, qk_norm="head", mlp_bias=False)
_GEMMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", tied=True)
_GLM = Family(qkv_bias="attention_bias", mlp=("gate_up_proj", "down_proj"), mlp_in_widths=(2,))
_NEOX = Family(
    qkv=("query_key_value",),
    out="dense",
    mlp=("dense_h_to_4h", "dense_4h_to_h"),
    mlp_in_widths=(1,),
    norm_weights=2,
)
_TWO = Family(mlp=("up_proj", "down_proj"), mlp_in_widths=(1,))
_DELTA = replace(_QWEN3, gated_query=True)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": _PLAIN,
        "ministral3": _PLAIN,
        "mixtral": _PLAIN,
        "minicpm": replace(_PLAIN, tied=True),
        "minicpmv": _PLAIN,
        "minicpm3": replace(_PLAIN, tied=True),
        "internlm": replace(_PLAIN, qkv_bias="bias", out_bias="bias"),
        "internlm3": replace(_PLAIN, qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
        "internlm2": Family(qkv=("wqkv",), out="wo", mlp=("w1", "w3", "w2"), qkv_bias="bias", out_bias="bias"),
        "smollm3": replace(_LLAMA, tied=True),
        "granite": _LLAMA,
        "granitemoe": replace(_LLAMA, mlp_bias=False),
        "seed_oss": replace(_LLAMA, out_bias="attention_out_bias"),
        "mimo": _QWEN2,
        "qwen": Family(qkv=("c_attn",), out="c_proj", mlp=("w1", "w2", "c_proj"), qkv_bias=True, half_width=True),
        "qwen2": _QWEN2,
        "qwen2_moe": _QWEN2,
        "qwen2_vl": _QWEN2,
        "qwen2_vl_text": _QWEN2,
        "qwen2_5_vl": _QWEN2,
        "qwen2_5_vl_text": _QWEN2,
        "qwen2_5_omni_text": _QWEN2,
        "qwen3": _QWEN3,
        "qwen3_moe": _QWEN3,
        "qwen3_vl_text": _QWEN3,
        "qwen3_vl_moe_text": _QWEN3,
        "qwen3_omni_moe_text": _QWEN3,
        "qwen3_next": replace(_DELTA, fused_delta=True),
        "qwen3_5_text": _DELTA,
        "qwen3_5_moe_text": _DELTA,
        "gemma": _GEMMA,
        "gemma2": replace(_GEMMA, norms=4),
        "gemma3_text": replace(_GEMMA, norms=4, qk_norm="head"),
        "phi": Family(
            out="dense",
            mlp=("fc1", "fc2"),
            mlp_in_widths=(1,),
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            norms=1,
            norm_weights=2,
            head_bias=True,
        ),
        "phi3": Family(qkv=("qkv_proj",), mlp=("gate_up_proj", "down_proj"), mlp_in_widths=(2,)),
        "phi3_v": Family(qkv=("qkv_proj",), mlp=("gate_up_proj", "down_proj"), mlp_in_widths=(2,)),
        "glm": _GLM,
        "glm4": replace(_GLM, norms=4),
        "glm4v_text": replace(_GLM, norms=4, qkv_bias=True),
        "glm4_moe": Family(qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm"),
        "glm4v_moe_text": Family(qkv_bias="attention_bias"),
        "glm4_moe_lite": _PLAIN,
        "chatglm": replace(
            _GLM,
            qkv=("query_key_value",),
            out="dense",
            mlp=("dense_h_to_4h", "dense_4h_to_h"),
            qkv_bias="add_qkv_bias",
        ),
        "baichuan": Family(qkv=("W_pack",)),
        "deepseek": _PLAIN,
        "deepseek_v2": _PLAIN,
        "deepseek_v3": _PLAIN,
        "kimi_k2": _PLAIN,
        "mistral4": _PLAIN,
        "stablelm": Family(qkv_bias="use_qkv_bias", norm_weights=2),
        "olmo": Family(qkv_bias="attention_bias", out_bias="attention_bias", norms=0, final_norm=False),
        "olmo2": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full"),
        "olmo3": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full"),
        "cohere": Family(norms=1, qk_norm="full", qk_norm_key="use_qk_norm", tied=True),
        "falcon": replace(_NEOX, qkv_bias="bias", out_bias="bias", mlp_bias="bias", norms=1, tied=True),
        "gpt_neox": replace(_NEOX, qkv_bias=True, out_bias=True, mlp_bias=True),
        "bloom": replace(_NEOX, qkv_bias=True, out_bias=True, mlp_bias=True, tied=True, embedding_norm=True),
        "gpt_bigcode": Family(
            qkv=("c_attn",),
            out="c_proj",
            mlp=("c_fc", "c_proj"),
            mlp_in_widths=(1,),
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            norm_weights=2,
            tied=True,
            positions=True,
        ),
        "gpt2": Family(
            qkv=("c_attn",),
            out="c_proj",
            mlp=("c_fc", "c_proj"),
            mlp_in_widths=(1,),
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            norm_weights=2,
            tied=True,
            positions=True,
            linear_modules=False,
        ),
        "starcoder2": Family(
            mlp=("c_fc", "c_proj"),
            mlp_in_widths=(1,),
            qkv_bias="use_bias",
            out_bias="use_bias",
            mlp_bias="use_bias",
            norm_weights=2,
            tied=True,
        ),
        "apertus": replace(_TWO, qk_norm="head", extra_per_layer=2),
        "arcee": _TWO,
        "gpt_oss": Family(qkv_bias="attention_bias", out_bias="attention_bias", extra_per_head=1, expert_biases=True),
    }
)

# What a model type not in the table is read as; the result is marked as an estimate.
UNKNOWN = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
