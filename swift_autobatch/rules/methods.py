"""Tuner x quantisation x parallel method x precision x optimizer."""

from __future__ import annotations

from swift_autobatch.records import Candidate, Facts
from swift_autobatch.rules.rule import Cite, Rule, without_bf16

_QUANT = ("quant_method", "quant_bits")

# Checkpoints whose weights are packed integers; others are made 16-bit on the way in, or may be.
PACKED = ("gptq", "awq", "aqlm", "bnb", "hqq")


def _packed(candidate: Candidate, facts: Facts) -> bool:
    """Whether the base is packed integers: quantised on the way in, or a checkpoint that is already."""
    return candidate.quant != "none" or facts.model.quantised in PACKED


RULES: tuple[Rule, ...] = (
    Rule(
        id="parallel-needs-ranks",
        about=("deepspeed", "fsdp"),
        when=lambda c, f, p: c.world > 1 and c.parallel == "none",
        why="several processes with no parallel method train the same rows several times",
        fix="--strategy multi-ddp, or --nproc 1",
        proof="torchrun with WORLD_SIZE > 1 always builds DDP in accelerate",
    ),
    Rule(
        id="ddp-needs-two",
        about=(),
        when=lambda c, f, p: c.parallel == "ddp" and c.world < 2,
        why="data parallel over one process is a plain run",
        fix="--parallel-method none",
        proof="definition",
    ),
    Rule(
        id="fsdp-needs-two",
        about=("fsdp",),
        when=lambda c, f, p: c.uses_fsdp and c.world < 2,
        why="FSDP works only in distributed training, and this machine offers one process",
        fix="--parallel-method deepspeed, or more devices",
        cites=(Cite("transformers/trainer.py", 479, "Using fsdp only works in distributed training"),),
        reproduced="fsdp over one process",
    ),
    Rule(
        id="fsdp-offload-unproved",
        kind="planner",
        about=("fsdp",),
        when=lambda c, f, p: c.parallel == "fsdp2_offload" and c.device == "cpu",
        why="FSDP2 CPU offload has no meaning where the device is the CPU",
        fix="--fsdp fsdp2",
        proof="torch.distributed.fsdp CPUOffloadPolicy moves shards to the CPU",
    ),
    Rule(
        id="fsdp-quantised",
        kind="planner",
        about=(*_QUANT, "fsdp"),
        when=lambda c, f, p: c.uses_fsdp and _packed(c, f),
        why="FSDP2 shards 4-bit weights only with bnb_4bit_quant_storage set to the compute dtype",
        fix="--parallel-method deepspeed, or drop the quantisation",
        proof="ms-swift's fsdp_qlora example sets it; untested here, so refused",
    ),
    Rule(
        id="quant-full",
        about=("tuner_type", *_QUANT),
        when=lambda c, f, p: c.tuner == "full" and c.quant != "none",
        why="a quantised base cannot be trained in full: integer weights take no gradient",
        fix="--tuner_type lora, or drop the quantisation",
        cites=(Cite("swift/pipelines/train/tuner.py", 410, "model.requires_grad_(True)"),),
        reproduced="full tuning of 4-bit weights",
    ),
    Rule(
        id="quantised-full",
        about=("tuner_type",),
        when=lambda c, f, p: c.tuner == "full" and f.model.quantised in PACKED,
        why="the checkpoint is quantised: packed weights take no gradient, and the trainer wants adapters",
        fix="--tuner_type lora, or name the checkpoint that is not quantised",
        cites=(Cite("transformers/trainer_utils.py", 131, "fine-tuning on purely quantized models"),),
    ),
    Rule(
        id="quant-zero3",
        about=(*_QUANT, "deepspeed"),
        when=lambda c, f, p: _packed(c, f) and c.zero_stage == 3,
        why="ZeRO-3 does not shard quantised weights; it crashes on several cards and is useless on one",
        fix="--deepspeed zero2 with the quantisation, or ZeRO-3 without it",
        cites=(Cite("transformers/modeling_utils.py", 1437, "is_deepspeed_zero3_enabled() and not _is_quantized"),),
        proof="modelscope/ms-swift#5422",
    ),
    Rule(
        id="quant-of-quantised",
        about=_QUANT,
        when=lambda c, f, p: c.quant != "none" and f.model.quantised is not None,
        why="the checkpoint is quantised already",
        fix="drop --quant_method and --quant_bits",
        cites=(Cite("swift/utils/hf_config.py", 193, "quantization_config"),),
    ),
    Rule(
        id="bf16-needs-ampere",
        kind="hardware",
        about=("torch_dtype", "bf16"),
        when=lambda c, f, p: c.torch_dtype == "bfloat16" and without_bf16(f.machine) is not None,
        why="bf16 is emulated below compute capability 8.0: no error, very slow",
        fix="--torch_dtype float16",
        cites=(Cite("torch/cuda/__init__.py", 191, "including_emulation: bool = True"),),
    ),
    Rule(
        id="tf32-needs-ampere",
        kind="hardware",
        about=("tf32",),
        when=lambda c, f, p: p.on("tf32") and (c.device == "cpu" or without_bf16(f.machine) is not None),
        why="--tf32 true needs a card of compute capability 8.0 or newer",
        fix="drop --tf32",
        cites=(Cite("transformers/training_args.py", 1650, "--tf32 requires Ampere"),),
        reproduced="tf32 without Ampere",
    ),
    Rule(
        id="fp16-on-cpu-deepspeed",
        about=("torch_dtype", "fp16"),
        when=lambda c, f, p: c.device == "cpu" and c.torch_dtype == "float16",
        why="fp16 does not train on a CPU",
        fix="--torch_dtype float32 or bfloat16",
        cites=(Cite("deepspeed/runtime/engine.py", 2004, "Type fp16 is not supported on your device"),),
    ),
    Rule(
        id="bf16-on-cpu-unsaid",
        about=("use_cpu",),
        when=lambda c, f, p: c.device == "cpu" and c.torch_dtype == "bfloat16" and p.off("use_cpu"),
        why="bf16 on a CPU needs --use_cpu true",
        fix="drop --use_cpu: autoswift sets it where there is no accelerator",
        cites=(Cite("transformers/training_args.py", 1747, "Your setup doesn't support bf16/gpu"),),
        reproduced="bf16 without an accelerator",
    ),
    Rule(
        id="fp16-full-weights",
        about=("torch_dtype", "tuner_type"),
        when=lambda c, f, p: c.tuner == "full" and c.torch_dtype == "float16" and not c.uses_deepspeed,
        why="full tuning of fp16 weights cannot unscale fp16 gradients without fp32 masters",
        fix="--deepspeed zero2 (fp32 masters), or --torch_dtype float32",
        cites=(Cite("torch/amp/grad_scaler.py", 275, "Attempting to unscale FP16 gradients."),),
    ),
    Rule(
        id="device-map-parallel",
        about=("device_map", "deepspeed", "fsdp", "use_liger_kernel"),
        when=lambda c, f, p: (
            p.has("device_map") and (c.world > 1 or c.zero_stage == 3 or c.uses_fsdp or c.uses_deepspeed)
        ),
        why="--device_map spreads one model over the cards, and a parallel method gives every process its own card",
        fix="drop --device_map",
        cites=(
            Cite(
                "transformers/integrations/accelerate.py", 135, "Zero-3 is not compatible with passing a `device_map`"
            ),
            Cite("accelerate/accelerator.py", 1820, "in any distributed mode"),
        ),
    ),
    Rule(
        id="auto-find-batch-zero3",
        about=("auto_find_batch_size", "deepspeed"),
        when=lambda c, f, p: p.on("auto_find_batch_size") and c.zero_stage == 3,
        why="--auto_find_batch_size does not work with ZeRO-3",
        fix="drop --auto_find_batch_size: the planner finds the batch",
        cites=(Cite("transformers/trainer.py", 903, "isn't supported yet with DeepSpeed Zero-3"),),
    ),
    Rule(
        id="load-best-save-only",
        about=("save_only_model", "load_best_model_at_end", "deepspeed", "fsdp"),
        when=lambda c, f, p: (
            p.on("save_only_model") and p.on("load_best_model_at_end") and (c.uses_deepspeed or c.uses_fsdp)
        ),
        why="with DeepSpeed or FSDP the best model cannot be loaded from a checkpoint of weights alone",
        fix="drop --save_only_model, or --load_best_model_at_end",
        cites=(Cite("transformers/trainer.py", 894, "along with `load_best_model_at_end`"),),
        reproduced="best model from weights alone under DeepSpeed",
    ),
    Rule(
        id="fsdp-sharded-save",
        about=("save_only_model", "fsdp"),
        when=lambda c, f, p: c.uses_fsdp and p.on("save_only_model") and p.text("fsdp") == "fsdp2",
        why="the engine's own fsdp2 preset saves sharded states, which cannot be saved as weights alone",
        fix="drop --fsdp: autoswift writes a config that saves whole states; or drop --save_only_model",
        cites=(Cite("swift/arguments/sft_args.py", 347, "is not compatible with save_only_model=True"),),
        reproduced="weights alone from the fsdp2 preset",
    ),
    Rule(
        id="hpz-without-zero3",
        about=("zero_hpz_partition_size", "deepspeed"),
        when=lambda c, f, p: p.has("zero_hpz_partition_size") and c.zero_stage != 3,
        why="--zero_hpz_partition_size is a part of ZeRO-3; without it the flag is ignored without a word",
        fix="--deepspeed zero3, or drop --zero_hpz_partition_size",
        cites=(Cite("swift/arguments/sft_args.py", 271, "self.zero_hpz_partition_size is not None"),),
        reproduced="hpz without DeepSpeed is ignored",
    ),
    Rule(
        id="autotp-full-only",
        about=("deepspeed_autotp_size", "tuner_type"),
        when=lambda c, f, p: c.tp > 1 and c.parallel != "megatron" and c.tuner != "full",
        why="DeepSpeed AutoTP splits full-parameter models only; LoRA has no tensor parallel in swift sft",
        fix="--tuner_type full, or ZeRO-3 for LoRA",
        proof="ms-swift's documentation of deepspeed_autotp_size; not checked by the engine",
    ),
    Rule(
        id="autotp-zero3",
        about=("deepspeed_autotp_size", "deepspeed"),
        when=lambda c, f, p: c.tp > 1 and c.zero_stage == 3,
        why="AutoTP works with ZeRO-0, 1 and 2 only",
        fix="--deepspeed zero2",
        cites=(Cite("swift/arguments/sft_args.py", 280, "gather_16bit_weights_on_model_save"),),
        proof="DeepSpeed refuses that key beside its other name in the ZeRO-3 preset",
        reproduced="AutoTP with ZeRO-3",
    ),
    Rule(
        id="autotp-needs-deepspeed",
        about=("deepspeed_autotp_size", "fsdp"),
        when=lambda c, f, p: c.tp > 1 and c.parallel != "megatron" and not c.uses_deepspeed,
        why="deepspeed_autotp_size without --deepspeed is silently ignored",
        fix="--deepspeed zero1",
        cites=(Cite("swift/arguments/sft_args.py", 276, "self.deepspeed_autotp_size is not None"),),
        reproduced="AutoTP without DeepSpeed is ignored",
    ),
    Rule(
        id="autotp-kv-heads",
        about=("deepspeed_autotp_size",),
        when=lambda c, f, p: c.tp > max(1, f.model.kv_heads) and c.parallel != "megatron",
        why="AutoTP beyond the number of KV heads does not split attention: a warning, no gain",
        fix="a --deepspeed_autotp_size within the KV heads",
        cites=(Cite("deepspeed/runtime/engine.py", 1046, "tp_size > num_kv_heads"),),
    ),
    Rule(
        id="offload-8bit-optimizer",
        about=("optim", "deepspeed"),
        when=lambda c, f, p: c.uses_deepspeed and c.offload and "8bit" in c.optim,
        why="under offload any 8-bit optimizer is silently replaced by CPUAdam without decoupled weight decay",
        fix="drop --optim, or drop the offload",
        cites=(Cite("accelerate/utils/deepspeed.py", 41, "import DeepSpeedCPUAdam"),),
    ),
    Rule(
        id="layerwise-one-process",
        about=("optim",),
        when=lambda c, f, p: c.optim.endswith("layerwise") and c.world > 1,
        why="layer-wise optimizers work in one process only",
        fix="drop --optim, or --nproc 1",
        cites=(Cite("transformers/trainer_optimizer.py", 117, "does not support DDP at this time"),),
    ),
    Rule(
        id="unsloth-one-process",
        about=("tuner_backend",),
        when=lambda c, f, p: p.text("tuner_backend") == "unsloth" and c.world > 1,
        why="unsloth is used by the engine for one process only here: its loader ignores the parallel method",
        fix="drop --tuner_backend, or --nproc 1",
        kind="planner",
        cites=(Cite("swift/model/register.py", 45, "def load_by_unsloth"),),
    ),
)
