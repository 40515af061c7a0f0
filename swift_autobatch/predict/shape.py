"""Counts of a model that no candidate changes, and what of its linears adapters reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from swift_autobatch.records import ModelFacts


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts of one model that no candidate changes; parameters unless the name says otherwise."""

    h: int
    layers: int
    q: int
    k: int
    i: int  # active intermediate width: experts_per_token experts together on MoE
    vocab: int
    linears: int  # of all layers: what NF4, int8 and all-linear LoRA reach
    linear_io: int  # sum of in + out over the linears of all layers: LoRA parameters per unit of rank
    largest_linear: int
    layer: int  # one decoder layer, all experts
    embedding: int
    head: int  # the untied output projection, 0 when tied
    tower: int  # vision tower and projector
    active_layers: int  # decoder layers' parameters that one token meets
    total: int
    gated: bool  # gate and up beside each other (SwiGLU), against one product in and one out


@lru_cache(maxsize=256)
def shape(model: ModelFacts) -> Shape:
    """Counts the invariants of a model once.

    On MoE the active width is what remains of the active parameters after attention, over three projections
    of hidden width, so that shared experts and unusual expert sizes need no field of their own.
    """
    body = model.params_total - model.params_embedding - model.params_lm_head - model.params_vision
    active = max(1, body - (model.params_total - model.params_active))
    q, k = _heads(model)
    width = model.intermediate
    if model.experts:
        attention = sum(a * b for name, a, b in model.linears if _place(model, name, a).startswith("attention"))
        width = max(model.hidden // 8, round((active / model.layers - attention) / (3 * model.hidden)))
    return Shape(
        h=model.hidden,
        layers=model.layers,
        q=q,
        k=k,
        i=width,
        vocab=model.vocab,
        linears=model.layers * sum(a * b for _, a, b in model.linears),
        linear_io=model.layers * sum(a + b for _, a, b in model.linears),
        largest_linear=max((a * b for _, a, b in model.linears), default=0),
        layer=body // model.layers,
        embedding=model.params_embedding,
        head=model.params_lm_head,
        tower=model.params_vision,
        active_layers=active,
        total=model.params_total,
        gated=bool(model.experts) or _gated(model),
    )


def _heads(model: ModelFacts) -> tuple[int, int]:
    """Widths of queries and of keys; those of attention's output and of values are taken as equal to them.

    Multi-head latent attention expands its latents to whole heads, keys wider than values: the mean of each pair
    stands for both. Source: transformers modeling_deepseek_v2.py, where nothing but the expanded heads is attended.
    """
    linears = {name: (a, b) for name, a, b in model.linears}
    if "kv_b_proj" not in linears:
        return model.heads * model.head_dim, model.kv_heads * model.head_dim
    latent, expanded = linears["kv_b_proj"]
    query = linears.get("q_b_proj", linears.get("q_proj", (0, 0)))[1]
    rope = linears.get("kv_a_proj_with_mqa", (0, latent))[1] - latent
    values = expanded - (query - model.heads * rope)  # what is not the keys' part without positions
    return (query + values) // 2, (query + values) // 2


def _gated(model: ModelFacts) -> bool:
    """Whether what feeds the last product is twice as wide as what comes out of it; True where nobody says."""
    into = sum(b for name, a, b in model.linears if _place(model, name, a) == "mlp in")
    return not into or into >= 2 * model.intermediate


_INTO_ATTENTION = frozenset(
    "q_proj k_proj v_proj c_attn W_pack query_key_value qkv_proj wqkv q_a_proj kv_a_proj_with_mqa in_proj_qkv "
    "in_proj_z in_proj_b in_proj_a in_proj_qkvz in_proj_ba".split()
)
_LATENTS = frozenset({"q_b_proj", "kv_b_proj"})  # they read a few hundred numbers a token
_OUT_OF_ATTENTION = frozenset("o_proj dense wo out_proj".split())


def _place(model: ModelFacts, name: str, width: int) -> str:
    """Where a linear stands in its layer, by name and input width."""
    if name in _INTO_ATTENTION:
        return "attention in"
    if name in _LATENTS:
        return "attention latents"
    if name in _OUT_OF_ATTENTION or (name == "c_proj" and width == model.heads * model.head_dim):
        return "attention out"
    return "mlp in" if width == model.hidden else "mlp out"


@dataclass(frozen=True, slots=True)
class Reach:
    """How many adapted linears of one layer read what."""

    hidden: int  # the hidden state, each for itself
    hidden_inputs: int  # distinct hidden states that they read: attention's, the MLP's
    attention: int  # attention's output
    mlp: int  # the product of gate and up


@lru_cache(maxsize=1024)
def reach(model: ModelFacts, targets: tuple[str, ...] | None) -> Reach:
    """Counts the linears that adapters reach; ``targets`` None is all of them."""
    places = [_place(model, name, a) for name, a, _ in model.linears if targets is None or name in targets]
    into = [place for place in places if place.endswith(" in")]
    return Reach(
        hidden=len(into),
        hidden_inputs=len(set(into)),
        attention=places.count("attention out"),
        mlp=places.count("mlp out"),
    )
