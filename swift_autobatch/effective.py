"""Which loss, attention kernel, precision and optimizer will really run under a candidate's flags.

The engine falls back silently: Liger's fused loss is dropped under sequence parallel, an fp32 checkpoint trains
under fp16 AMP, an 8-bit optimizer becomes DeepSpeedCPUAdam under offload. The predictor and the plan both read
this record, so that what is predicted is what runs.
"""

from __future__ import annotations

from typing import Literal

from swift_autobatch.records import Candidate, Effective, Machine, ModelFacts

# Architectures whose forward has no `logits_to_keep`: the engine then sends every row through the head.
# Source: transformers 5.19 models/*/modeling_*.py, and the remote-code models of ms-swift's registry.
NO_LOGITS_TO_KEEP = frozenset(
    "QWenLMHeadModel ChatGLMModel ChatGLMForConditionalGeneration BaichuanForCausalLM BaiChuanForCausalLM "
    "InternLMForCausalLM InternLM2ForCausalLM InternLM3ForCausalLM InternVLChatModel MiniCPMForCausalLM "
    "MiniCPMV DeepseekForCausalLM T5ForConditionalGeneration MT5ForConditionalGeneration "
    "Phi3VForCausalLM LlavaLlamaForCausalLM Qwen2_5OmniForConditionalGeneration "
    "Qwen3OmniMoeForConditionalGeneration XverseForCausalLM OrionForCausalLM AquilaForCausalLM".split()
)

# What `--optim` names, by the update that runs. Source: transformers OptimizerNames, trainer_optimizer.py.
_OPTIMIZERS = {
    "adamw_torch_fused": "fused-adamw",
    "adamw_torch": "foreach-adamw",
    "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
    "adamw_torch_8bit": "adamw-8bit",
    "adamw_torch_4bit": "adamw-4bit",
    "paged_adamw": "paged-adamw",
    "paged_adamw_32bit": "paged-adamw",
    "paged_adamw_8bit": "paged-adamw-8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "lion_32bit": "lion",
    "lion_8bit": "lion-8bit",
    "paged_lion_8bit": "lion-8bit",
}
_FLASH_NAMES = frozenset({"flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4"})
_FLASH_MAX_HEAD_DIM = 256  # FlashAttention 2 and PyTorch's copy of it


def effective(candidate: Candidate, model: ModelFacts, machine: Machine) -> Effective:
    """Resolves the code paths of one candidate.

    Args:
        candidate: every knob fixed.
        model: shape of the model; its architecture decides whether the head can skip rows.
        machine: the weakest card's chip decides which attention kernels exist.

    Returns:
        the paths, with one note for each that differs from what the flags suggest.

    Source: ms-swift 4.6 seq2seq_trainer.py and mixin.py (loss), transformers sdpa_attention.py (attention),
    model_args.py `_init_mixed_precision` (precision), accelerate accelerator.py (offloaded optimizer).
    """
    notes: list[str] = []
    precision = _precision(candidate, notes)
    loss, rows = _loss(candidate, model, notes)
    return Effective(
        attention=_attention(candidate, model, machine, precision, notes),
        loss=loss,
        logits_rows=rows,
        precision=precision,
        optimizer=_optimizer(candidate, notes),
        notes=tuple(notes),
    )


def _precision(candidate: Candidate, notes: list[str]) -> str:
    """bf16, fp16-amp or fp32; the engine turns fp16 AMP on for fp16 and for fp32 checkpoints."""
    if candidate.torch_dtype == "bfloat16":
        return "bf16"
    if candidate.device == "cpu":
        if candidate.torch_dtype == "float16":
            notes.append("fp16 is inert on CPU: products run in fp32")
        return "fp32"
    if candidate.torch_dtype == "float32":
        notes.append("a float32 model trains under fp16 mixed precision, not in fp32")
    return "fp16-amp"


def _loss(candidate: Candidate, model: ModelFacts, notes: list[str]) -> tuple[str, Literal["supervised", "all"]]:
    """The cross-entropy path and which rows reach the vocabulary projection."""
    if candidate.sp > 1:
        if candidate.liger:
            notes.append("Liger's fused cross-entropy is off under sequence parallel")
        return "bf16_logits", "all"
    able = model.architecture not in NO_LOGITS_TO_KEEP
    keep = able and candidate.use_logits_to_keep is not False
    if not able:
        notes.append(f"{model.architecture} has no logits_to_keep: every token reaches the vocabulary projection")
    loss = "liger_fused" if candidate.liger else "hf_fp32_logits"
    return loss, "supervised" if keep else "all"


def _attention(candidate: Candidate, model: ModelFacts, machine: Machine, precision: str, notes: list[str]) -> str:
    """The attention kernel, by what PyTorch's dispatcher finds on this chip for these inputs."""
    asked = candidate.attn_impl
    if asked in _FLASH_NAMES:
        return "flash_attention_2"
    if asked == "eager" or (asked is not None and asked.startswith("eager")):
        return "eager"
    if candidate.device == "cpu":
        return "sdpa-flash"  # PyTorch's CPU kernel takes any float type, grouped heads and masks
    masked = candidate.micro_batch > 1 and not (candidate.packing or candidate.padding_free)
    ampere = all(gpu.compute_capability >= (8, 0) for gpu in machine.gpus)
    if not masked and ampere and precision != "fp32" and max(model.head_dim, model.widest_head) <= _FLASH_MAX_HEAD_DIM:
        return "sdpa-flash"
    grouped = model.kv_heads != model.heads
    if not masked and grouped:
        # transformers passes enable_gqa when there is no mask; only the flash kernels take it.
        notes.append("no fused attention kernel for grouped heads here: scores are quadratic in length (sdpa math)")
        return "sdpa-math"
    if masked:
        notes.append("a padded batch takes the memory-efficient kernel, with a mask quadratic in length")
    return "sdpa-efficient"


def _optimizer(candidate: Candidate, notes: list[str]) -> str:
    """The update that really runs, and where."""
    named = _OPTIMIZERS.get(candidate.optim, candidate.optim)
    if candidate.offload and candidate.uses_deepspeed:
        if candidate.optim not in ("adamw_torch", "adamw_torch_fused"):
            notes.append(f"--optim {candidate.optim} is replaced by DeepSpeedCPUAdam under optimizer offload")
        return "deepspeed-cpu-adam"
    if candidate.offload and candidate.uses_fsdp:
        return f"host-{named}"
    if named == "fused-adamw" and candidate.device == "cpu":
        return "fused-adamw"
    return named
