"""Megatron: predicted and explained, not rendered."""

from __future__ import annotations

from swift_autobatch.rules.rule import Rule

UNRENDERED = "megatron-not-rendered"

RULES: tuple[Rule, ...] = (
    Rule(
        id="megatron-heads",
        about=(),
        when=lambda c, f, p: (
            c.parallel == "megatron" and c.tp > 1 and (f.model.heads % c.tp != 0 or f.model.kv_heads % c.tp != 0)
        ),
        why="Megatron splits whole attention and KV heads over the tensor-parallel ranks",
        fix="a tensor-parallel degree that divides the KV heads",
        proof="megatron/core/transformer/transformer_config.py __post_init__: num_query_groups % tensor size",
    ),
    Rule(
        id="megatron-layers",
        about=(),
        when=lambda c, f, p: c.parallel == "megatron" and f.model.layers % c.pp != 0,
        why="the pipeline stages must hold equally many layers",
        fix="a pipeline degree that divides the layers",
        proof="megatron/core/transformer/transformer_config.py: num_layers % pipeline_model_parallel_size",
    ),
    Rule(
        id="megatron-experts",
        about=(),
        when=lambda c, f, p: (
            c.parallel == "megatron"
            and c.ep > 1
            and (f.model.experts % c.ep != 0 or not f.model.experts or (c.world // c.pp) % c.ep != 0)
        ),
        why="expert parallel needs experts, and a degree that divides them and the ranks of a pipeline stage",
        fix="an expert-parallel degree that divides both",
        proof="megatron/core/transformer/moe/moe_layer.py: num_moe_experts % expert_model_parallel_size",
    ),
    Rule(
        id="megatron-quantised",
        about=("quant_method", "quant_bits"),
        when=lambda c, f, p: c.parallel == "megatron" and c.quant != "none",
        why="megatron sft trains no quantised base",
        fix="--parallel-method deepspeed, or drop the quantisation",
        proof="swift/megatron/arguments/megatron_args.py has no quant_method",
    ),
    Rule(
        id=UNRENDERED,
        kind="planner",
        about=(),
        when=lambda c, f, p: c.parallel == "megatron",
        why="megatron sft is not rendered by this version",
        fix="--parallel-method deepspeed or fsdp",
        proof="docs/limits.md",
    ),
)
