"""config.json -> the shape of a decoder and its parameter counts, by closed form; no weights, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.families import FAMILIES, UNKNOWN, Family
from swift_autobatch.facts.impossible import refuse_impossible

Config = Mapping[str, Any]
Linear = tuple[str, int, int]

_TEXT_KEYS = ("text_config", "llm_config", "language_config")
# The same quantity under the names that families give it, most common first.
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "kv_channels", "d_kv")
_WIDER_HEADS = ("global_head_dim", "swa_head_dim", "v_head_dim")  # of some layers, or of values
_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff")
_VOCAB = ("padded_vocab_size", "vocab_size")
_POSITIONS = ("max_position_embeddings", "seq_length", "n_positions", "max_seq_len", "model_max_length")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder's shape; ``params_*`` count parameters, ``params_text`` all of the language model."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    max_position: int
    experts: int
    experts_per_token: int
    linears: tuple[Linear, ...]  # of the commonest kind of layer
    params_embedding: int
    params_lm_head: int
    params_text: int
    params_active: int  # per token, of params_text
    exact: bool  # the family is known and the formula proved
    widest_head: int = 0  # where heads have several widths; 0: head_dim


def text_config(config: Config) -> Config:
    """The part of a config.json that describes the language model; the whole for text-only models."""
    thinker = config.get("thinker_config")
    inner = thinker if isinstance(thinker, Mapping) else config
    return next((inner[key] for key in _TEXT_KEYS if isinstance(inner.get(key), Mapping)), inner)


def read_shape(config: Config, where: str) -> Shape:
    """The decoder's shape and parameter counts.

    Args:
        config: a parsed config.json.
        where: its path, for errors.

    Raises:
        InputError: keys missing or of the wrong type, all named; sizes that no model can have.
    """
    text = text_config(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    family = FAMILIES.get(model_type, UNKNOWN)
    size = _sizes(text, family, where)
    tied = _tied(config, text, family)
    embedding = size.vocab * size.hidden
    head = 0 if tied else embedding + (size.vocab if family.head_bias else 0)
    layer = _Layer(text, family, size)
    trunk = layer.trunk()
    outside = embedding + head + _loose(text, family, size)
    return Shape(
        model_type=model_type,
        hidden=size.hidden,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        intermediate=size.intermediate,
        vocab=size.vocab,
        tied=tied,
        max_position=_first(text, _POSITIONS) or _first(config, _POSITIONS) or 0,
        experts=size.experts,
        experts_per_token=size.experts_used,
        linears=layer.linears() if family.linear_modules else (),
        params_embedding=embedding,
        params_lm_head=head,
        params_text=outside + trunk,
        params_active=outside + trunk - layer.idle_experts(),
        exact=model_type in FAMILIES and "talker_config" not in config,
        widest_head=_widest(text, size.head_dim),
    )


# ----------------------------------------------------------------------------------------------------- sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int
    experts_used: int


def _widest(text: Config, head_dim: int) -> int:
    """The widest head of any layer, for queries and keys (MLA: with and without position) and values; 0: head_dim."""
    latent = sum(_first(text, (name,)) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    widest = max(head_dim, latent, *(_first(text, (name,)) or 0 for name in _WIDER_HEADS))
    return widest if widest > head_dim else 0


def _first(config: Config, names: tuple[str, ...]) -> int | None:
    """The first of these keys that holds a number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
    return None


def _items(config: Config, name: str) -> list[Any]:
    value = config.get(name)
    return value if isinstance(value, list) else []


def _sizes(text: Config, family: Family, where: str) -> _Sizes:
    needed = {"hidden": _HIDDEN, "layers": _LAYERS, "heads": _HEADS, "vocab": _VOCAB}
    found = {name: _first(text, keys) for name, keys in needed.items()}
    missing = [keys[-1] if name == "vocab" else keys[0] for name, keys in needed.items() if (found[name] or 0) < 1]
    if missing:
        wrong = [key for key in missing if key in text]
        said = f"{missing[0]} is {text[missing[0]]!r}" if wrong else f"it lacks {', '.join(missing)}"
        raise InputError(
            f"config.json does not describe a decoder with attention: {said}",
            where=where,
            hints=("use the config.json that came with the model, unedited", "or name the model by its id"),
        )
    whole = (*needed.values(), _KV_HEADS, _HEAD_DIM, _INTERMEDIATE)
    refuse_impossible(text, whole, _HEADS, _KV_HEADS, _EXPERTS, _EXPERTS_USED, where)
    hidden, layers, heads, vocab = (int(found[name] or 0) for name in needed)
    experts = _first(text, _EXPERTS) or 0
    kv_heads = _first(text, _KV_HEADS) or heads
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        kv_heads = 1 if "multi_query_group_num" not in text else kv_heads
    intermediate = _first(text, _INTERMEDIATE) or 4 * hidden
    return _Sizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_first(text, _HEAD_DIM) or hidden // heads,
        intermediate=intermediate // 2 if family.half_width else intermediate,
        vocab=vocab,
        experts=experts,
        experts_used=(_first(text, _EXPERTS_USED) or 0) if experts else 0,
    )


def _tied(config: Config, text: Config, family: Family) -> bool:
    """Outer key first; older files keep it inside the text part only. Source: Qwen2VLConfig, LlavaConfig."""
    said = [part["tie_word_embeddings"] for part in (config, text) if part.get("tie_word_embeddings") is not None]
    return any(said) if said else family.tied


def _loose(text: Config, family: Family, size: _Sizes) -> int:
    """Parameters outside embedding, head and layers."""
    norm = size.hidden * family.norm_weights
    positions = size.hidden * (_first(text, _POSITIONS) or 0) if family.positions else 0
    return norm * (int(family.final_norm) + int(family.embedding_norm)) + positions


# ---------------------------------------------------------------------------------------------------- layers


def _says(config: Config, answer: bool | str) -> bool:
    return bool(config.get(answer)) if isinstance(answer, str) else answer


class _Layer:
    """The parameters and linear modules of the layers of one decoder."""

    def __init__(self, text: Config, family: Family, size: _Sizes) -> None:
        self.text, self.family, self.size = text, family, size
        self.expert_width = _first(text, ("moe_intermediate_size",)) or size.intermediate
        kinds = [str(kind) for kind in _items(text, "layer_types")]
        interval = _first(text, ("full_attention_interval",))
        if _first(text, ("linear_num_value_heads",)) and not kinds:
            interval = interval or 4
            kinds = ["full" if (n + 1) % interval == 0 else "linear_attention" for n in range(size.layers)]
        self.delta_layers = kinds.count("linear_attention")
        self.moe_layers = self._moe_layers() if size.experts else 0

    def trunk(self) -> int:
        """All decoder layers together."""
        size, family = self.size, self.family
        full = size.layers - self.delta_layers
        norms = 2 if self.text.get("new_decoder_architecture") else family.norms  # Falcon 40B and later
        loose = norms * size.hidden * family.norm_weights + family.extra_per_layer
        attention = _weights(self.attention()) + self._attention_extras()
        delta = _weights(self.delta()) + self._delta_extras() if self.delta_layers else 0
        dense = self._biased(self.mlp(size.intermediate), family.mlp_bias)
        moe = self._expert() * size.experts + self._router() + _weights(self.shared()) if size.experts else 0
        return (
            size.layers * loose
            + full * attention
            + self.delta_layers * delta
            + (size.layers - self.moe_layers) * dense
            + self.moe_layers * moe
        )

    def linears(self) -> tuple[Linear, ...]:
        """The nn.Linear modules of the commonest kind of layer; experts and routers are not nn.Linear."""
        attention = self.delta() if self.delta_layers * 2 > self.size.layers else self.attention()
        dense = self.moe_layers * 2 <= self.size.layers
        return (*attention, *(self.mlp(self.size.intermediate) if dense else self.shared()))

    def idle_experts(self) -> int:
        """Expert parameters that one token does not touch."""
        return self.moe_layers * (self.size.experts - self.size.experts_used) * self._expert()

    def attention(self) -> tuple[Linear, ...]:
        size, family = self.size, self.family
        if _first(self.text, ("kv_lora_rank",)):
            return self._latent()
        q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
        out = (family.out, q, size.hidden)
        if len(family.qkv) == 1:
            return ((family.qkv[0], size.hidden, q + 2 * kv), out)
        widths = (2 * q if family.gated_query else q, kv, kv)
        return (*((name, size.hidden, width) for name, width in zip(family.qkv, widths, strict=True)), out)

    def _latent(self) -> tuple[Linear, ...]:
        """Multi-head latent attention (DeepSeek): low-rank q and kv."""
        text, size = self.text, self.size
        nope, rope = (_first(text, (name,)) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
        value, rank = _first(text, ("v_head_dim",)) or size.head_dim, _first(text, ("kv_lora_rank",)) or 0
        q_rank, q_width = _first(text, ("q_lora_rank",)), size.heads * (nope + rope)
        query = (
            (("q_a_proj", size.hidden, q_rank), ("q_b_proj", q_rank, q_width))
            if q_rank
            else (("q_proj", size.hidden, q_width),)
        )
        return (
            *query,
            ("kv_a_proj_with_mqa", size.hidden, rank + rope),
            ("kv_b_proj", rank, size.heads * (nope + value)),
            ("o_proj", size.heads * value, size.hidden),
        )

    def _attention_extras(self) -> int:
        """Biases, q and k norms, sinks of one attention block."""
        size, family, text = self.size, self.family, self.text
        ranks = (_first(text, ("kv_lora_rank",)) or 0) + (_first(text, ("q_lora_rank",)) or 0)
        if _first(text, ("kv_lora_rank",)):
            return ranks  # the norms on the low-rank activations
        q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
        normed = not family.qk_norm_key or bool(text.get(family.qk_norm_key))
        return (
            ((q + 2 * kv) if _says(text, family.qkv_bias) else 0)
            + (size.hidden if _says(text, family.out_bias) else 0)
            + {"": 0, "head": 2 * size.head_dim, "full": q + kv}[family.qk_norm if normed else ""]
            + family.extra_per_head * size.heads
        )

    def delta(self) -> tuple[Linear, ...]:
        """Gated delta rule (Qwen3-Next, Qwen3.5): the linear modules of a linear-attention layer."""
        hidden, (keys, values, v_heads) = self.size.hidden, self._delta_sizes()
        if self.family.fused_delta:
            inputs: tuple[Linear, ...] = (
                ("in_proj_qkvz", hidden, 2 * keys + 2 * values),
                ("in_proj_ba", hidden, 2 * v_heads),
            )
        else:
            inputs = (
                ("in_proj_qkv", hidden, 2 * keys + values),
                ("in_proj_z", hidden, values),
                ("in_proj_b", hidden, v_heads),
                ("in_proj_a", hidden, v_heads),
            )
        return (*inputs, ("out_proj", values, hidden))

    def _delta_sizes(self) -> tuple[int, int, int]:
        get = {name: _first(self.text, (f"linear_{name}",)) or 0 for name in _DELTA_KEYS}
        keys = get["num_key_heads"] * get["key_head_dim"]
        return keys, get["num_value_heads"] * get["value_head_dim"], get["num_value_heads"]

    def _delta_extras(self) -> int:
        keys, values, v_heads = self._delta_sizes()
        kernel = _first(self.text, ("linear_conv_kernel_dim",)) or 4
        return (2 * keys + values) * kernel + 2 * v_heads + (_first(self.text, ("linear_value_head_dim",)) or 0)

    def mlp(self, width: int) -> tuple[Linear, ...]:
        hidden, (*ins, back) = self.size.hidden, self.family.mlp
        return (
            *((name, hidden, width * times) for name, times in zip(ins, self.family.mlp_in_widths, strict=True)),
            (back, width, hidden),
        )

    def shared(self) -> tuple[Linear, ...]:
        """The expert that every token passes, with its gate where it has one."""
        count, width = _first(self.text, ("n_shared_experts",)) or 0, self.expert_width
        one = _first(self.text, ("shared_expert_intermediate_size",))
        if not count and not one:
            return ()
        gate = (("shared_expert_gate", self.size.hidden, 1),) if one else ()
        return (*self.mlp(one or count * width), *gate)

    def _expert(self) -> int:
        own = self.mlp(self.expert_width)
        return self._biased(own, self.family.expert_biases)

    def _router(self) -> int:
        return self.size.experts * (self.size.hidden + int(self.family.expert_biases))

    def _biased(self, linears: tuple[Linear, ...], bias: bool | str) -> int:
        return _weights(linears) + (sum(out for _, _, out in linears) if _says(self.text, bias) else 0)

    def _moe_layers(self) -> int:
        """Layers with experts: all, but the first few, or by stride."""
        text, layers = self.text, self.size.layers
        first_dense = _first(text, ("first_k_dense_replace", "num_dense_layers")) or 0
        stride = _first(text, ("decoder_sparse_step", "moe_layer_freq")) or 1
        only_dense = set(_items(text, "mlp_only_layers"))
        return sum(1 for n in range(first_dense, layers) if (n + 1) % stride == 0 and n not in only_dense)


_DELTA_KEYS = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")


def _weights(linears: tuple[Linear, ...]) -> int:
    return sum(inputs * outputs for _, inputs, outputs in linears)
