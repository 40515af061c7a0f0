"""Attention x packing x sequence parallel x Liger."""

from __future__ import annotations

from math import gcd

from swift_autobatch.records import Candidate, Facts
from swift_autobatch.rules.rule import Cite, Rule, without_flash
from swift_autobatch.tables import engine_models

FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
# Model types that liger-kernel 0.6 patches; on others its fused loss never runs.
# Source: liger_kernel/transformers/monkey_patch.py MODEL_TYPE_TO_APPLY_LIGER_FN.
LIGER_TYPES = frozenset(
    "gemma gemma2 gemma3_text gemma3 glm4 glm4v granite internvl llama llama4 llama4_text llava mistral mixtral mllama "
    "mllama_text_model olmo2 paligemma phi3 qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text qwen3 qwen3_moe "
    "smollm3".split()
)
FLASH_MAX_HEAD_DIM = 256
_WRAPPED_BY_SEQUENCE_PARALLEL = (None, "sdpa", "flash_attn", "flash_attention_2")
_SP = "swift/sequence_parallel/sequence_parallel.py"


def _flash(candidate: Candidate) -> bool:
    return candidate.attn_impl in FLASH


def _ulysses_remainder(candidate: Candidate, facts: Facts) -> bool:
    """True when the degree does not divide the KV heads, so that the rest becomes ring attention."""
    heads = facts.model.kv_heads or facts.model.heads
    return candidate.sp > 1 and gcd(heads, candidate.sp) < candidate.sp


def _no_packing(facts: Facts) -> bool:
    """Whether the template of the model's type is one that the engine cannot pack."""
    return facts.model.swift_model_type in engine_models().unpackable


RULES: tuple[Rule, ...] = (
    Rule(
        id="flash-needs-ampere",
        kind="hardware",
        about=("attn_impl", "packing", "padding_free"),
        when=lambda c, f, p: _flash(c) and without_flash(f.machine) is not None,
        why="FlashAttention 2 needs Ampere or newer",
        fix="--attn_impl sdpa",
        proof="flash-attn setup.py builds sm_80 and newer only",
        cites=(Cite("transformers/modeling_utils.py", 1577, "requires compute capability"),),
    ),
    Rule(
        id="flash-on-cpu",
        kind="hardware",
        about=("attn_impl", "packing", "padding_free"),
        when=lambda c, f, p: _flash(c) and c.device == "cpu",
        why="FlashAttention does not run on a CPU",
        fix="--attn_impl sdpa",
        cites=(Cite("transformers/modeling_utils.py", 1570, "is not available on CPU"),),
    ),
    Rule(
        id="flash-head-width",
        kind="hardware",
        about=("attn_impl", "packing", "padding_free"),
        when=lambda c, f, p: _flash(c) and max(f.model.head_dim, f.model.widest_head) > FLASH_MAX_HEAD_DIM,
        why="FlashAttention 2 takes heads of up to 256, and this model has wider ones",
        fix="--attn_impl sdpa, and no packing",
        proof="flash-attn csrc/flash_attn/flash_api.cpp 'head dimension at most 256'",
    ),
    Rule(
        id="padding-free-needs-flash",
        about=("packing", "padding_free", "attn_impl"),
        when=lambda c, f, p: (c.packing or c.padding_free) and not _flash(c),
        why="packing and padding_free need an explicit flash attention; none and sdpa are refused",
        fix="drop --packing and --padding_free, or install flash-attn and add --attn_impl flash_attention_2",
        cites=(Cite("swift/arguments/sft_args.py", 196, "feature requires a flash attention implementation"),),
        reproduced="packing without flash attention",
    ),
    Rule(
        id="packing-template",
        about=("packing", "padding_free"),
        when=lambda c, f, p: (c.packing or c.padding_free) and _no_packing(f),
        why="the chat template of this model supports neither packing nor padding_free",
        fix="drop --packing and --padding_free",
        cites=(Cite("swift/pipelines/train/sft.py", 78, "does not support padding free or packing"),),
    ),
    Rule(
        id="group-by-length-packing",
        about=("group_by_length", "packing"),
        when=lambda c, f, p: c.group_by_length and c.packing,
        why="packed rows have no length column to group by",
        fix="drop --group_by_length",
        cites=(
            Cite("swift/dataset/packing.py", 178, "def __getitem__(self, index)"),
            Cite("swift/trainers/mixin.py", 1445, "train_dataset['lengths']"),
        ),
    ),
    Rule(
        id="sp-divides-world",
        about=("sequence_parallel_size", "deepspeed_autotp_size"),
        when=lambda c, f, p: c.world % (c.sp * c.tp * c.pp * c.cp) != 0,
        why="the parallel degrees must divide the number of processes",
        fix="--sequence_parallel_size (or --deepspeed_autotp_size) that divides the process count",
        cites=(Cite(_SP, 665, "init_device_mesh("),),
        reproduced="sequence parallel 2 over one process",
    ),
    Rule(
        id="sp-ring-needs-padding-free",
        about=("sequence_parallel_size", "padding_free"),
        when=lambda c, f, p: _ulysses_remainder(c, f) and not c.padding_free,
        why="the degree does not divide the KV heads, and the rest (ring attention) needs padding_free",
        fix="--padding_free true --attn_impl flash_attention_2, or a degree that divides the KV heads",
        cites=(Cite(_SP, 380, "needs --padding_free true"), Cite(_SP, 264, "SDPA does not support Ring attention")),
    ),
    Rule(
        id="sp-attention",
        about=("attn_impl", "sequence_parallel_size"),
        when=lambda c, f, p: c.sp > 1 and c.attn_impl not in _WRAPPED_BY_SEQUENCE_PARALLEL,
        why="sequence parallel wraps sdpa and flash_attention_2 only; with another kernel shards never meet",
        fix="--attn_impl sdpa",
        cites=(Cite(_SP, 274, "ALL_ATTENTION_FUNCTIONS['flash_attention_2'] = partial("),),
    ),
    Rule(
        id="sp-logits-to-keep",
        about=("use_logits_to_keep", "sequence_parallel_size"),
        when=lambda c, f, p: c.sp > 1 and c.use_logits_to_keep is True,
        why="use_logits_to_keep cannot be forced under sequence parallel",
        fix="drop --use_logits_to_keep",
        cites=(Cite("swift/trainers/mixin.py", 1274, "raise NotImplementedError()"),),
    ),
    Rule(
        id="sp-padding-left",
        about=("padding_side", "sequence_parallel_size"),
        when=lambda c, f, p: c.sp > 1 and p.text("padding_side") == "left",
        why="sequence parallel pads on the right only",
        fix="drop --padding_side",
        cites=(Cite("swift/template/base.py", 2078, 'padding_side must be "right"'),),
    ),
    Rule(
        id="sp-with-tp",
        about=("sequence_parallel_size", "deepspeed_autotp_size"),
        when=lambda c, f, p: c.sp > 1 and c.tp > 1,
        why="the engine builds one mesh: sequence parallel or AutoTP, not both",
        fix="drop one of the two",
        cites=(Cite(_SP, 656, "self.dp_world_size = world_size // self.world_size"),),
    ),
    Rule(
        id="liger-on-cpu",
        kind="hardware",
        about=("use_liger_kernel",),
        when=lambda c, f, p: c.liger and c.device == "cpu",
        why="Liger's kernels are compiled for an accelerator",
        fix="drop --use_liger_kernel",
        proof="liger_kernel/ops/*.py are triton.jit functions",
    ),
    Rule(
        id="liger-model",
        about=("use_liger_kernel",),
        when=lambda c, f, p: c.liger and f.model.hf_model_type not in LIGER_TYPES,
        why="liger-kernel has no kernels for this model type: nothing is fused, without an error",
        fix="drop --use_liger_kernel",
        proof="liger_kernel/transformers/monkey_patch.py _apply_liger_kernel_to_instance returns for unknown types",
    ),
)
