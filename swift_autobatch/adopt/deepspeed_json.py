"""Looks at a DeepSpeed JSON as ms-swift 4.6 and DeepSpeed 0.19 will read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from swift_autobatch.adopt.found import Finding
from swift_autobatch.tables import near

# Keys that ms-swift fills in from its own flags; another value than `auto` stops the trainer when they differ.
# Source: transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig.trainer_config_process.
_FILLED: Mapping[str, str] = {
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "train_batch_size": "the product of batch, ranks and accumulation",
    "gradient_clipping": "--max_grad_norm",
}
# Source: deepspeed 0.19.8 runtime/zero/config.py, DeepSpeedZeroConfig: fields, and those marked deprecated.
_ZERO_KEYS = frozenset(
    """stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions
    allgather_bucket_size overlap_comm load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer
    sub_group_size cpu_offload_param cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size
    param_persistence_threshold model_persistence_threshold max_live_parameters max_reuse_distance
    gather_16bit_weights_on_model_save stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    stage3_gather_16bit_weights_on_model_save module_granularity_threshold stage3_module_granularity_threshold
    use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params stage3_gather_fp16_weights_on_model_save
    ignore_unused_parameters legacy_stage1 round_robin_gradients zero_hpz_partition_size zero_quantized_weights
    zero_quantized_nontrainable_weights zero_quantized_gradients mics_shard_size
    mics_hierarchical_params_gather memory_efficient_linear pipeline_loading_checkpoint override_module_apply
    log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory
    allgather_sequential stage3_allgather_sequential compute_grad_norm leaf_module parameter_alignment zenflow
    """.split()
)
_DEPRECATED: Mapping[str, str] = {
    "cpu_offload": '"offload_optimizer": {"device": "cpu"}',
    "cpu_offload_param": '"offload_param": {"device": "cpu"}',
    "stage3_gather_fp16_weights_on_model_save": '"stage3_gather_16bit_weights_on_model_save"',
}


def examine(document: Mapping[str, Any], text: str) -> Iterator[Finding]:
    """What of this file would stop, or surprise."""
    zero = document.get("zero_optimization")
    if not isinstance(zero, dict):
        yield Finding(
            level="error",
            line=1,
            text="there is no zero_optimization block, which the engine requires",
            fix='add "zero_optimization": {"stage": 2}',
        )
        return
    for key, flag in _FILLED.items():
        if str(document.get(key, "auto")).isdigit() and isinstance(document[key], str):
            yield Finding(
                level="error",
                line=line_of(text, key),
                text=f"{key} is the text {json.dumps(document[key])}, not a number",
                fix=f'"{key}": {document[key]}, or "auto"',
            )
            continue
        if document.get(key, "auto") != "auto":
            yield Finding(
                level="warn",
                line=line_of(text, key),
                text=f"{key} is {json.dumps(document[key])}: the trainer stops when it differs from {flag}",
                fix=f'"{key}": "auto"',
            )
    if "scheduler" in document:
        yield Finding(
            level="warn",
            line=line_of(text, "scheduler"),
            text="a scheduler in this file replaces --lr_scheduler_type and --warmup_ratio",
            fix="remove it",
        )
    if document.get("fp16", {}).get("enabled") is True and document.get("bf16", {}).get("enabled") is True:
        yield Finding(level="error", line=line_of(text, "fp16"), text="fp16 and bf16 are both on", fix="remove one")
    yield from _zero(zero, text)


def _zero(zero: Mapping[str, Any], text: str) -> Iterator[Finding]:
    for key in zero:
        if key in _DEPRECATED:
            yield Finding(
                level="warn",
                line=line_of(text, key),
                text=f"{key} is deprecated in DeepSpeed 0.19",
                fix=f"write {_DEPRECATED[key]}",
            )
        elif key not in _ZERO_KEYS:
            alike = near(key, sorted(_ZERO_KEYS), 1)
            yield Finding(
                level="error",
                line=line_of(text, key),
                text=f"zero_optimization has no key {key}",
                fix=f"did you mean {alike[0]}?" if alike else "remove it",
            )
    if zero.get("stage") == 1 and any(key in zero for key in ("offload_param",)):
        yield Finding(
            level="warn", line=line_of(text, "offload_param"), text="offload_param works with stage 3 only", fix=""
        )


def line_of(text: str, key: str) -> int:
    """The 1-based line on which a JSON key first stands."""
    at = text.find(f'"{key}"')
    return text.count("\n", 0, at) + 1 if at >= 0 else 1
