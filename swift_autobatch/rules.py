"""The one list of what is legal: id, when, why, fix, proof. Read by candidates, the doctor and adopt.

``proof`` names the engine's line (package path: line, ms-swift 4.6.0, transformers 5.19, deepspeed 0.19.8) or a
test here that reproduces the engine's behaviour on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from swift_autobatch.records import Candidate, Facts, Illegal

FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
UNRENDERED = "megatron-not-rendered"
# Model types that liger-kernel 0.6 patches; on others its fused loss never runs.
# Source: liger_kernel/transformers/monkey_patch.py MODEL_TYPE_TO_APPLY_LIGER_FN.
LIGER_TYPES = frozenset(
    "gemma gemma2 gemma3_text gemma3 glm4 glm4v granite internvl llama llama4 llama4_text llava mistral mixtral mllama "
    "mllama_text_model olmo2 paligemma phi3 qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text qwen3 qwen3_moe "
    "smollm3".split()
)
FLASH_MAX_HEAD_DIM = 256
# Checkpoints whose weights are packed integers; others are made 16-bit on the way in, or may be.
PACKED = ("gptq", "awq", "aqlm", "bnb", "hqq")
_WRAPPED_BY_SEQUENCE_PARALLEL = (None, "sdpa", "flash_attn", "flash_attention_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition that makes a candidate illegal."""

    id: str
    when: Callable[[Candidate, Facts], bool]  # True: the candidate breaks this rule
    why: str
    fix: str  # the smallest edit, as flags
    proof: str


def _flash(candidate: Candidate) -> bool:
    return candidate.attn_impl in FLASH


def _packed(candidate: Candidate, facts: Facts) -> bool:
    """Whether the base is packed integers: quantised on the way in, or a checkpoint that is already."""
    return candidate.quant != "none" or facts.model.quantised in PACKED


def _ulysses_remainder(candidate: Candidate, facts: Facts) -> bool:
    """True when the degree does not divide the KV heads, so that the rest becomes ring attention."""
    heads = facts.model.kv_heads or facts.model.heads
    return candidate.sp > 1 and gcd(heads, candidate.sp) < candidate.sp


def _here(facts: Facts) -> bool:
    """Software rules bind on a machine whose software was read, not on an assumed one."""
    return not facts.machine.source.startswith("assumed")


def _lacks(facts: Facts, distribution: str) -> bool:
    return facts.machine.software.versions.get(distribution) is None


RULES: tuple[Rule, ...] = (
    Rule(
        id="parallel-needs-ranks",
        when=lambda c, f: c.world > 1 and c.parallel == "none",
        why="several processes with no parallel method train the same rows several times",
        fix="--strategy multi-ddp, or --nproc 1",
        proof="torchrun with WORLD_SIZE > 1 always builds DDP in accelerate",
    ),
    Rule(
        id="ddp-needs-two",
        when=lambda c, f: c.parallel == "ddp" and c.world < 2,
        why="data parallel over one process is a plain run",
        fix="--parallel-method none",
        proof="definition",
    ),
    Rule(
        id="fsdp-needs-two",
        when=lambda c, f: c.uses_fsdp and c.world < 2,
        why="FSDP works only in distributed training, and this machine offers one process",
        fix="--parallel-method deepspeed, or more devices",
        proof="transformers/trainer.py:479 'Using fsdp only works in distributed training'",
    ),
    Rule(
        id="fsdp-offload-unproved",
        when=lambda c, f: c.parallel == "fsdp2_offload" and c.device == "cpu",
        why="FSDP2 CPU offload has no meaning where the device is the CPU",
        fix="--fsdp fsdp2",
        proof="torch.distributed.fsdp CPUOffloadPolicy moves shards to the CPU",
    ),
    Rule(
        id="fsdp-quantised",
        when=lambda c, f: c.uses_fsdp and _packed(c, f),
        why="FSDP2 shards 4-bit weights only with bnb_4bit_quant_storage set to the compute dtype",
        fix="--parallel-method deepspeed, or drop the quantisation",
        proof="ms-swift examples/train/multi-gpu/fsdp_qlora; untested here, so refused",
    ),
    Rule(
        id="quant-full",
        when=lambda c, f: c.tuner == "full" and c.quant != "none",
        why="a quantised base cannot be trained in full: integer weights take no gradient",
        fix="--tuner_type lora, or drop the quantisation",
        proof="swift/pipelines/train/tuner.py:410 'only Tensors of floating point dtype can require gradients'",
    ),
    Rule(
        id="quantised-full",
        when=lambda c, f: c.tuner == "full" and f.model.quantised in PACKED,
        why="the checkpoint is quantised: packed weights take no gradient, and the trainer wants adapters",
        fix="--tuner_type lora, or name the checkpoint that is not quantised",
        proof="transformers/trainer_utils.py:131 'You cannot perform fine-tuning on purely quantized models'",
    ),
    Rule(
        id="quant-zero3",
        when=lambda c, f: _packed(c, f) and c.zero_stage == 3,
        why="ZeRO-3 does not shard quantised weights; it crashes on several cards and is useless on one",
        fix="--deepspeed zero2 with the quantisation, or ZeRO-3 without it",
        proof="transformers/modeling_utils.py:1437 skips zero.Init for quantised weights; modelscope/ms-swift#5422",
    ),
    Rule(
        id="quant-of-quantised",
        when=lambda c, f: c.quant != "none" and f.model.quantised is not None,
        why="the checkpoint is quantised already",
        fix="drop --quant_method and --quant_bits",
        proof="swift/utils/hf_config.py:190-222 reads the checkpoint's own quantization_config",
    ),
    Rule(
        id="bf16-needs-ampere",
        when=lambda c, f: c.torch_dtype == "bfloat16" and any(not gpu.bf16_native for gpu in f.machine.gpus),
        why="bf16 is emulated below compute capability 8.0: no error, very slow",
        fix="--torch_dtype float16",
        proof="torch/cuda/__init__.py:191 is_bf16_supported(including_emulation=True) answers True on V100 and T4",
    ),
    Rule(
        id="fp16-on-cpu-deepspeed",
        when=lambda c, f: c.device == "cpu" and c.torch_dtype == "float16",
        why="fp16 does not train on a CPU",
        fix="--torch_dtype float32 or bfloat16",
        proof="deepspeed/runtime/engine.py:2004 'Type fp16 is not supported on your device'",
    ),
    Rule(
        id="fp16-full-weights",
        when=lambda c, f: c.tuner == "full" and c.torch_dtype == "float16" and not c.uses_deepspeed,
        why="full tuning of fp16 weights cannot unscale fp16 gradients without fp32 masters",
        fix="--deepspeed zero2 (fp32 masters), or --torch_dtype float32",
        proof="torch/amp/grad_scaler.py 'Attempting to unscale FP16 gradients.'",
    ),
    Rule(
        id="flash-needs-ampere",
        when=lambda c, f: _flash(c) and any(not gpu.flash_attention for gpu in f.machine.gpus),
        why="FlashAttention 2 needs Ampere or newer",
        fix="--attn_impl sdpa",
        proof="flash-attn setup.py builds sm_80 and newer only",
    ),
    Rule(
        id="flash-on-cpu",
        when=lambda c, f: _flash(c) and c.device == "cpu",
        why="FlashAttention does not run on a CPU",
        fix="--attn_impl sdpa",
        proof="transformers/modeling_utils.py:1593",
    ),
    Rule(
        id="flash-head-width",
        when=lambda c, f: _flash(c) and max(f.model.head_dim, f.model.widest_head) > FLASH_MAX_HEAD_DIM,
        why="FlashAttention 2 takes heads of up to 256, and this model has wider ones",
        fix="--attn_impl sdpa, and no packing",
        proof="flash-attn csrc/flash_attn/flash_api.cpp 'head dimension at most 256'",
    ),
    Rule(
        id="flash-not-installed",
        when=lambda c, f: _flash(c) and bool(f.machine.gpus) and c.parallel != "megatron" and _lacks(f, "flash-attn"),
        why="the flash-attn package is not installed",
        fix="pip install 'swift-autobatch[flash]', or drop what asks for it (--attn_impl, --packing, --strategy)",
        proof="transformers/modeling_utils.py:1580-1653 ImportError at model load",
    ),
    Rule(
        id="padding-free-needs-flash",
        when=lambda c, f: (c.packing or c.padding_free) and not _flash(c),
        why="packing and padding_free need an explicit flash attention; none and sdpa are refused",
        fix="drop --packing and --padding_free, or install flash-attn and add --attn_impl flash_attention_2",
        proof="swift/arguments/sft_args.py:186-197",
    ),
    Rule(
        id="group-by-length-packing",
        when=lambda c, f: c.group_by_length and c.packing,
        why="packed rows have no length column to group by",
        fix="drop --group_by_length",
        proof="swift/dataset/packing.py:178-181",
    ),
    Rule(
        id="sp-divides-world",
        when=lambda c, f: c.world % (c.sp * c.tp * c.pp * c.cp) != 0,
        why="the parallel degrees must divide the number of processes",
        fix="--sequence_parallel_size (or --deepspeed_autotp_size) that divides the process count",
        proof="swift/sequence_parallel/sequence_parallel.py:655-669 bare AssertionError",
    ),
    Rule(
        id="sp-ring-needs-padding-free",
        when=lambda c, f: _ulysses_remainder(c, f) and not c.padding_free,
        why="the degree does not divide the KV heads, and the rest (ring attention) needs padding_free",
        fix="--padding_free true --attn_impl flash_attention_2, or a degree that divides the KV heads",
        proof="swift/sequence_parallel/sequence_parallel.py:378-380",
    ),
    Rule(
        id="sp-attention",
        when=lambda c, f: c.sp > 1 and c.attn_impl not in _WRAPPED_BY_SEQUENCE_PARALLEL,
        why="sequence parallel wraps sdpa and flash_attention_2 only; with another kernel shards never meet",
        fix="--attn_impl sdpa",
        proof="swift/sequence_parallel/sequence_parallel.py:272-276",
    ),
    Rule(
        id="sp-logits-to-keep",
        when=lambda c, f: c.sp > 1 and c.use_logits_to_keep is True,
        why="use_logits_to_keep cannot be forced under sequence parallel",
        fix="drop --use_logits_to_keep",
        proof="swift/trainers/mixin.py:1274 NotImplementedError",
    ),
    Rule(
        id="sp-with-tp",
        when=lambda c, f: c.sp > 1 and c.tp > 1,
        why="the engine builds one mesh: sequence parallel or AutoTP, not both",
        fix="drop one of the two",
        proof="swift/sequence_parallel/sequence_parallel.py:655 uses the whole world",
    ),
    Rule(
        id="autotp-full-only",
        when=lambda c, f: c.tp > 1 and c.parallel != "megatron" and c.tuner != "full",
        why="DeepSpeed AutoTP splits full-parameter models only; LoRA has no tensor parallel in swift sft",
        fix="--tuner_type full, or ZeRO-3 for LoRA",
        proof="ms-swift docs, deepspeed_autotp_size; not checked in sft_args.py:276-280",
    ),
    Rule(
        id="autotp-zero3",
        when=lambda c, f: c.tp > 1 and c.zero_stage == 3,
        why="AutoTP works with ZeRO-0, 1 and 2 only",
        fix="--deepspeed zero2",
        proof="deepspeed 0.19.8 rejects the zero_optimization.gather_16bit_weights_on_model_save that swift writes",
    ),
    Rule(
        id="autotp-needs-deepspeed",
        when=lambda c, f: c.tp > 1 and c.parallel != "megatron" and not c.uses_deepspeed,
        why="deepspeed_autotp_size without --deepspeed is silently ignored",
        fix="--deepspeed zero1",
        proof="swift/arguments/sft_args.py:276",
    ),
    Rule(
        id="autotp-kv-heads",
        when=lambda c, f: c.tp > max(1, f.model.kv_heads) and c.parallel != "megatron",
        why="AutoTP beyond the number of KV heads does not split attention: a warning, no gain",
        fix="a --deepspeed_autotp_size within the KV heads",
        proof="deepspeed/runtime/engine.py:1046",
    ),
    Rule(
        id="offload-needs-compiler",
        when=lambda c, f: c.uses_deepspeed and c.offload and _here(f) and f.machine.software.compiler is None,
        why="DeepSpeed's CPUAdam is compiled on first use and there is no C++ compiler",
        fix="install g++ (apt-get install g++), or a strategy without offload",
        proof="deepspeed/ops/op_builder/builder.py:107-126",
    ),
    Rule(
        id="offload-needs-nvcc",
        when=lambda c, f: (
            c.uses_deepspeed and c.offload and _here(f) and c.device == "gpu" and f.machine.software.nvcc is None
        ),
        why="with a CUDA torch DeepSpeed compiles CPUAdam with nvcc, and there is none",
        fix="install the CUDA toolkit of torch's version, or a strategy without offload",
        proof="deepspeed/ops/op_builder/builder.py:571-577, deepspeedai/DeepSpeed#2772",
    ),
    Rule(
        id="offload-8bit-optimizer",
        when=lambda c, f: c.uses_deepspeed and c.offload and "8bit" in c.optim,
        why="under offload any 8-bit optimizer is silently replaced by CPUAdam without decoupled weight decay",
        fix="drop --optim, or drop the offload",
        proof="accelerate/accelerator.py:2373-2384, accelerate/utils/deepspeed.py:29-62",
    ),
    Rule(
        id="deepspeed-not-installed",
        when=lambda c, f: c.uses_deepspeed and _lacks(f, "deepspeed"),
        why="deepspeed is not installed",
        fix="pip install deepspeed, or --parallel-method fsdp",
        proof="swift/arguments/sft_args.py:252 require_version('deepspeed')",
    ),
    Rule(
        id="bitsandbytes-not-installed",
        when=lambda c, f: c.quant != "none" and _lacks(f, "bitsandbytes"),
        why="bitsandbytes is not installed",
        fix="pip install bitsandbytes, or drop the quantisation",
        proof="transformers/quantizers/quantizer_bnb_4bit.py",
    ),
    Rule(
        id="8bit-optimizer-not-installed",
        when=lambda c, f: "8bit" in c.optim and _lacks(f, "bitsandbytes"),
        why="bitsandbytes, which 8-bit optimizers are made of, is not installed",
        fix="pip install bitsandbytes, or drop --optim",
        proof="transformers/trainer_optimizer.py 'Trainer tried to instantiate bnb optimizer but bnb is not installed'",
    ),
    Rule(
        id="liger-not-installed",
        when=lambda c, f: c.liger and _lacks(f, "liger-kernel"),
        why="liger-kernel is not installed",
        fix="pip install 'swift-autobatch[liger]', or drop --use_liger_kernel",
        proof="swift/trainers/arguments.py:258 AssertionError",
    ),
    Rule(
        id="liger-on-cpu",
        when=lambda c, f: c.liger and c.device == "cpu",
        why="Liger's kernels are compiled for an accelerator",
        fix="drop --use_liger_kernel",
        proof="liger_kernel/ops/*.py are triton.jit functions",
    ),
    Rule(
        id="liger-model",
        when=lambda c, f: c.liger and f.model.hf_model_type not in LIGER_TYPES,
        why="liger-kernel has no kernels for this model type: nothing is fused, without an error",
        fix="drop --use_liger_kernel",
        proof="liger_kernel/transformers/monkey_patch.py _apply_liger_kernel_to_instance returns for unknown types",
    ),
    Rule(
        id="rows-fewer-than-ranks",
        when=lambda c, f: 0 < f.data.kept < c.dp,
        why="fewer rows than data-parallel ranks: the engine makes no step and exits 0",
        fix="more rows, or fewer processes (--nproc)",
        proof="swift/dataloader/shard.py:24 total_samples // world_size",
    ),
    Rule(
        id="megatron-heads",
        when=lambda c, f: (
            c.parallel == "megatron" and c.tp > 1 and (f.model.heads % c.tp != 0 or f.model.kv_heads % c.tp != 0)
        ),
        why="Megatron splits whole attention and KV heads over the tensor-parallel ranks",
        fix="a tensor-parallel degree that divides the KV heads",
        proof="megatron/core/transformer/transformer_config.py __post_init__: num_query_groups % tensor size",
    ),
    Rule(
        id="megatron-layers",
        when=lambda c, f: c.parallel == "megatron" and f.model.layers % c.pp != 0,
        why="the pipeline stages must hold equally many layers",
        fix="a pipeline degree that divides the layers",
        proof="megatron/core/transformer/transformer_config.py: num_layers % pipeline_model_parallel_size",
    ),
    Rule(
        id="megatron-experts",
        when=lambda c, f: (
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
        when=lambda c, f: c.parallel == "megatron" and c.quant != "none",
        why="megatron sft trains no quantised base",
        fix="--parallel-method deepspeed, or drop the quantisation",
        proof="swift/megatron/arguments/megatron_args.py has no quant_method",
    ),
    Rule(
        id=UNRENDERED,
        when=lambda c, f: c.parallel == "megatron",
        why="megatron sft is not rendered by this version",
        fix="--parallel-method deepspeed or fsdp",
        proof="docs/limits.md",
    ),
)


def check(candidate: Candidate, facts: Facts) -> Illegal | None:
    """The first rule that ``candidate`` breaks on this machine, model and data; None when it is legal."""
    for rule in RULES:
        if rule.when(candidate, facts):
            return Illegal(candidate=candidate, rule=rule.id, why=rule.why, fix=rule.fix)
    return None


def broken(candidate: Candidate, facts: Facts) -> int:
    """How many rules ``candidate`` breaks."""
    return sum(rule.when(candidate, facts) for rule in RULES)


def find(rule_id: str) -> Rule:
    """The rule with this id.

    Raises:
        KeyError: there is none.
    """
    return {rule.id: rule for rule in RULES}[rule_id]
