"""config.json -> the same architecture in small: fewer layers, narrower; pure.

What decides whether a strategy starts is kept: the kind of every layer, how many query heads share a key head, whether
experts are routed and how many of them a token takes (up to two), tied embeddings, positions, and whether the parallel
degree divides the heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift_autobatch.errors import InputError

LAYERS = 2
HEAD_DIM = 16
_EXPERTS = 4
_EXPERTS_USED = 2
_NARROWEST = 64  # hidden size; NF4 works in blocks of 64

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
_HEAD_KEYS = ("num_attention_heads", "n_head", "num_heads")
_KV_KEYS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_DIM_KEYS = ("head_dim", "kv_channels")
_WIDTH_KEYS = (
    "intermediate_size",
    "ffn_hidden_size",
    "n_inner",
    "d_ff",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "intermediate_size_mlp",
)
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_USED_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_VOCAB_KEYS = ("vocab_size", "padded_vocab_size")
# Of latent attention (DeepSeek-V2 and V3): ranks and widths of the parts of a head.
_LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
_TOWERS = ("vision_config", "audio_config", "thinker_config", "text_config", "llm_config")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_OTHER_VALUES = frozenset({"_name_or_path", "transformers_version", "quantization_config", "auto_map"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """A small config.json and what of the real one it changed: (what, real, here)."""

    config: Mapping[str, Any]
    changes: tuple[tuple[str, str, str], ...]


def shrink(config: Mapping[str, Any], *, degree: int = 1, vocab: int | None = None, name: str = "") -> Shrunk:
    """The same architecture in small.

    Args:
        config: a parsed config.json.
        degree: ranks that share one row or one matrix in the rehearsal; what it divides it still divides.
        vocab: tokens of the stand-in tokenizer; None: the model's own tokenizer is used, so its vocabulary stays.
        name: the model, for errors.

    Raises:
        InputError: a model with towers for images or sound, or one whose code lies in its own folder.
    """
    _refuse(config, name)
    small = {key: value for key, value in config.items() if key not in _OTHER_VALUES}
    layers = _layers(small)
    hidden, shares = _heads(small, degree)
    _widths(small, float(shares), degree)
    _experts(small, degree)
    _vocabulary(small, vocab)
    _fit_lists(small, layers)
    small["use_cache"] = False
    for key in _HIDDEN_KEYS:
        if key in small:
            small[key] = hidden
    return Shrunk(config=small, changes=tuple(_changes(config, small)))


def _refuse(config: Mapping[str, Any], name: str) -> None:
    towers = [key for key in _TOWERS if isinstance(config.get(key), Mapping)]
    hints = ("rehearse the strategy alone: autoswift rehearse STRATEGY", "or --model, a text model of the same size")
    if towers:
        raise InputError(
            f"{name} has parts beside its language model ({', '.join(towers)}), and only language models are shrunk",
            where="--model",
            hints=hints,
        )
    if not (_first(config, _HEAD_KEYS) and _first(config, _HIDDEN_KEYS)):
        raise InputError(
            f"{name} has no attention heads, and only such decoders are shrunk", where="--model", hints=hints
        )
    if isinstance(config.get("auto_map"), Mapping) and "AutoModelForCausalLM" in config["auto_map"]:
        raise InputError(f"{name} brings its own code, which cannot be shrunk", where="--model", hints=hints)


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((int(config[key]) for key in keys if config.get(key)), None)


def _set(config: dict[str, Any], keys: tuple[str, ...], value: int) -> None:
    for key in keys:
        if config.get(key):
            config[key] = value


def _layers(small: dict[str, Any]) -> int:
    """As many layers as show every kind: two, or up to the last kind that appears."""
    there = _first(small, _LAYER_KEYS) or LAYERS
    wanted = LAYERS
    kinds = small.get("layer_types")
    if isinstance(kinds, list) and kinds:
        wanted = max(wanted, 1 + max(kinds.index(kind) for kind in set(kinds)))
    for period in ("full_attention_interval", "sliding_window_pattern", "decoder_sparse_step"):
        wanted = max(wanted, int(small.get(period) or 0))
    for dense in ("first_k_dense_replace", "num_dense_layers"):  # the first ones have no experts: leave one of them
        if small.get(dense):
            small[dense], wanted = 1, max(wanted, 1 + LAYERS)
    layers = min(there, wanted)
    _set(small, _LAYER_KEYS, layers)
    for key in ("max_window_layers",):
        if key in small and isinstance(small[key], int):
            small[key] = min(small[key], layers)
    return layers


def _heads(small: dict[str, Any], degree: int) -> tuple[int, float]:
    """Fewer heads in the same grouping; returns the hidden size and how much of the old one it is."""
    hidden, heads = _first(small, _HIDDEN_KEYS) or 0, _first(small, _HEAD_KEYS) or 1  # a model without is refused
    keys = _first(small, _KV_KEYS) or (1 if small.get("multi_query") else heads)
    fewer = _fewest(keys, degree)
    heads_now = heads * fewer // keys
    width = max(HEAD_DIM, -(-_NARROWEST // heads_now))
    width += width % 2
    was = _first(small, _HEAD_DIM_KEYS) or hidden // heads
    _set(small, _HEAD_KEYS, heads_now)
    _set(small, _KV_KEYS, fewer)
    _set(small, _HEAD_DIM_KEYS, width)
    for key, value in _LATENT.items():
        if small.get(key):
            small[key] = value
    _rope(small, was, width)
    return heads_now * width, heads_now * width / hidden


def _fewest(keys: int, degree: int) -> int:
    """The smallest divisor of the key heads, at least two where there are two, that the degree still divides."""
    for count in range(min(2, keys), keys):
        if keys % count == 0 and (keys % degree != 0 or count % degree == 0):
            return count
    return keys


def _rope(small: dict[str, Any], was: int, width: int) -> None:
    """Lists with a factor for each half of a head (longrope) follow its width."""
    for key in ("rope_scaling", "rope_parameters"):
        scaling = small.get(key)
        if isinstance(scaling, Mapping):
            small[key] = {
                name: value[: width // 2] if isinstance(value, list) and len(value) == was // 2 else value
                for name, value in scaling.items()
            }


def _widths(small: dict[str, Any], share: float, degree: int) -> None:
    step = math.lcm(16, degree)
    for key in _WIDTH_KEYS:
        if isinstance(small.get(key), int) and small[key] > 0:
            small[key] = max(2 * step, round(small[key] * share / step) * step)


def _experts(small: dict[str, Any], degree: int) -> None:
    experts, used = _first(small, _EXPERT_KEYS), _first(small, _USED_KEYS)
    if not experts or experts < 2:
        return
    now = min(experts, max(_EXPERTS, degree))
    _set(small, _EXPERT_KEYS, now)
    _set(small, _USED_KEYS, min(used or 1, _EXPERTS_USED))
    for key, value in (("n_group", 1), ("topk_group", 1)):
        if small.get(key):
            small[key] = value
    if isinstance(small.get("mlp_only_layers"), list):
        small["mlp_only_layers"] = [layer for layer in small["mlp_only_layers"] if layer < LAYERS]


def _vocabulary(small: dict[str, Any], vocab: int | None) -> None:
    if vocab is None:
        return
    _set(small, _VOCAB_KEYS, vocab)
    for key in _TOKENS:
        if key in small:
            small[key] = 2 if key == "eos_token_id" else 0


def _fit_lists(small: dict[str, Any], layers: int) -> None:
    """Lists with an entry for each layer keep the first ones."""
    for key, value in small.items():
        if isinstance(value, list) and len(value) > layers and key.startswith(("layer", "mlp_layer")):
            small[key] = value[:layers]


_NAMES = (
    ("layers", _LAYER_KEYS),
    ("hidden size", _HIDDEN_KEYS),
    ("heads", _HEAD_KEYS),
    ("key heads", _KV_KEYS),
    ("feed-forward width", ("intermediate_size", "ffn_hidden_size", "n_inner")),
    ("experts", _EXPERT_KEYS),
    ("experts a token", _USED_KEYS),
    ("vocabulary", _VOCAB_KEYS),
)


def _changes(config: Mapping[str, Any], small: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for what, keys in _NAMES:
        was, now = _first(config, keys), _first(small, keys)
        if was is not None and now is not None and was != now:
            found.append((what, str(was), str(now)))
    if config.get("quantization_config"):
        found.append(("checkpoint", "quantised", "16-bit: its kernels exist on GPUs only"))
    return found
