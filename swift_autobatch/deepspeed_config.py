"""What of a DeepSpeed JSON would stop ms-swift 4.6 with DeepSpeed 0.19, or surprise: the one list of it.

``--deepspeed FILE`` takes the errors as a refusal, ``autoswift check FILE`` shows everything with its line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from swift_autobatch.tables import near

STAGES = (0, 1, 2, 3)
_DEVICES = ("none", "cpu", "nvme")

# Keys that ms-swift fills in from its own flags; another value than `auto` stops the trainer when they differ.
# Source: transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig.trainer_config_process.
FILLED: Mapping[str, str] = {
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "train_batch_size": "the product of batch, ranks and accumulation",
    "gradient_clipping": "--max_grad_norm",
}

FLAGS: Mapping[str, str] = {  # those of them that one flag says
    key: flag.removeprefix("--") for key, flag in FILLED.items() if flag.startswith("--")
}

Kind = Literal["whole", "switch", "block", "removed"]
# Source: deepspeed 0.19.8 runtime/zero/config.py, DeepSpeedZeroConfig: its fields with their types.
_KINDS: Mapping[Kind, str] = {
    "whole": """reduce_bucket_size allgather_bucket_size sub_group_size prefetch_bucket_size param_persistence_threshold
        model_persistence_threshold max_live_parameters max_reuse_distance stage3_prefetch_bucket_size
        stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_live_parameters
        stage3_max_reuse_distance module_granularity_threshold stage3_module_granularity_threshold
        zero_hpz_partition_size""",
    "switch": """contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm
        compute_grad_norm load_from_fp32_weights elastic_checkpoint cpu_offload_param cpu_offload_use_pin_memory
        cpu_offload gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save
        use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params allgather_sequential
        stage3_allgather_sequential stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1
        round_robin_gradients parameter_alignment zero_quantized_weights zero_quantized_nontrainable_weights
        zero_quantized_gradients memory_efficient_linear pipeline_loading_checkpoint override_module_apply
        log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory""",
    "block": "offload_param offload_optimizer zenflow leaf_module",
    # Source: deepspeed 0.19.8 runtime/config.py _REMOVED_ZERO_CONFIG_KEYS.
    "removed": "mics_shard_size mics_hierarchical_params_gather zeropp_loco_param",
}
ZERO_KEYS: Mapping[str, Kind] = {key: kind for kind, keys in _KINDS.items() for key in keys.split()}
_OPTIONAL = frozenset(  # null is taken for them, and for no other
    "overlap_comm offload_param offload_optimizer zenflow cpu_offload_param cpu_offload_use_pin_memory "
    "cpu_offload".split()
)
_DEPRECATED: Mapping[str, str] = {
    "cpu_offload": '"offload_optimizer": {"device": "cpu"}',
    "cpu_offload_param": '"offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": '"pin_memory": true inside offload_optimizer',
    "stage3_gather_fp16_weights_on_model_save": '"stage3_gather_16bit_weights_on_model_save"',
}
_REPLACED: Mapping[str, tuple[str, ...]] = {  # old and new together are refused
    "cpu_offload": ("offload_optimizer",),
    "cpu_offload_param": ("offload_param",),
    "stage3_gather_fp16_weights_on_model_save": (
        "stage3_gather_16bit_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
    ),
}
# Source: deepspeed 0.19.8 runtime/zero/offload_config.py, fields of the two classes.
OFFLOAD_KEYS: Mapping[str, frozenset[str]] = {
    "offload_param": frozenset("device nvme_path buffer_count buffer_size max_in_cpu pin_memory".split()),
    "offload_optimizer": frozenset(
        "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio super_offload "
        "cpuadam_cores_perc".split()
    ),
}
# Source: deepspeed 0.19.8 runtime/config.py _REMOVED_TOP_LEVEL_CONFIG_KEYS.
REMOVED = frozenset(
    "nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity "
    "graph_harvesting curriculum_learning progressive_layer_drop".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One remark on one key. error: the engine stops; warn: it does something else than the file seems to say."""

    level: Literal["error", "warn"]
    key: str  # as it is spelled in the file, the innermost one
    text: str
    fix: str


def faults(document: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Everything that is wrong with a DeepSpeed config, or odd, in the order of the file's own keys.

    Args:
        document: the parsed JSON object, of any content.
    """
    zero = document.get("zero_optimization")
    if not isinstance(zero, dict):
        missing = "zero_optimization" not in document
        said = "there is no zero_optimization block" if missing else f"zero_optimization is {_shown(zero)}"
        return (
            _error(
                "zero_optimization",
                f"{said}, and the engine requires one",
                'add "zero_optimization": {"stage": 2}' if missing else 'write "zero_optimization": {"stage": 2}',
            ),
            *_top(document),
        )
    return (*_top(document), *_stage(zero), *_zero(zero))


def method(document: Mapping[str, Any]) -> str:
    """The parallel method of a config without errors: ``zero2_offload``, ``zero3``."""
    zero = document["zero_optimization"]
    stage = zero.get("stage", 0)
    blocks = [zero[key] for key in _counted(stage) if isinstance(zero.get(key), dict)]
    offloads = zero.get("cpu_offload") is True or any(block.get("device") in ("cpu", "nvme") for block in blocks)
    return f"zero{stage}" + ("_offload" if offloads and stage > 1 else "")


def reduce_bucket(document: Mapping[str, Any]) -> int | None:
    """Elements of the reduce bucket that a ZeRO-1 or 2 config names; None: the preset's, or filled in later."""
    zero = document["zero_optimization"]
    found = zero.get("reduce_bucket_size")
    return int(found) if zero.get("stage") in (1, 2) and found not in (None, "auto") else None


def asked(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the config decides beside DeepSpeed: engine flag -> its value, as the trainer compares them at its start."""
    found = {FLAGS[key]: document[key] for key in FLAGS if document.get(key, "auto") != "auto"}
    for dtype, name in (("bf16", "bfloat16"), ("fp16", "float16")):
        if (document.get(dtype) or {}).get("enabled") is True:
            found["torch_dtype"] = name
    return found


def _counted(stage: int) -> tuple[str, ...]:
    """Offload blocks that the stage heeds: parameters are offloaded by stage 3 alone."""
    return ("offload_optimizer", "offload_param") if stage == 3 else ("offload_optimizer",)


def _error(key: str, text: str, fix: str) -> Fault:
    return Fault(level="error", key=key, text=text, fix=fix)


def _warn(key: str, text: str, fix: str) -> Fault:
    return Fault(level="warn", key=key, text=text, fix=fix)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _top(document: Mapping[str, Any]) -> Iterator[Fault]:
    for key, value in document.items():
        if key in FILLED and value != "auto":
            yield _filled(key, value)
        elif key in REMOVED:
            yield _error(key, f"DeepSpeed 0.19 has no {key} any more and stops at it", f"remove {key}")
        elif key in ("fp16", "bf16", "optimizer", "scheduler") and not isinstance(value, dict):
            yield _error(key, f"{key} is {_shown(value)}, not a block", f"remove {key}")
        elif key in ("fp16", "bf16") and value.get("enabled", False) not in (True, False, "auto"):
            yield _error(key, f"{key}.enabled is {_shown(value['enabled'])}", '"enabled": "auto"')
        elif key == "scheduler":
            yield _warn(
                key, "a scheduler in this file replaces --lr_scheduler_type and --warmup_ratio", "remove scheduler"
            )
        elif key == "optimizer":
            yield _warn(key, "an optimizer in this file replaces --optim", "remove optimizer")
    both = [document.get(dtype) for dtype in ("fp16", "bf16")]
    if all(isinstance(block, dict) and block.get("enabled") is True for block in both):
        yield _error("fp16", "fp16 and bf16 are both on", '"enabled": "auto" in both')


def _filled(key: str, value: Any) -> Fault:
    if not _number(value) or value <= 0:
        kind = f"the text {_shown(value)}" if isinstance(value, str) else _shown(value)
        digits = isinstance(value, str) and value.isdigit()
        fix = f'"{key}": {value}, or "auto"' if digits else f'"{key}": "auto"'
        return _error(key, f"{key} is {kind}, not a number above 0", fix)
    return _warn(
        key, f"{key} is {_shown(value)}: the trainer stops when it differs from {FILLED[key]}", f'"{key}": "auto"'
    )


def _stage(zero: Mapping[str, Any]) -> Iterator[Fault]:
    stage = zero.get("stage", 0)
    if type(stage) is not int or stage not in STAGES:
        yield _error(
            "stage",
            f"zero_optimization.stage is {_shown(stage)}; DeepSpeed has 0, 1, 2 and 3",
            'write "stage": 2 (or 3 to shard the weights as well)',
        )


def _zero(zero: Mapping[str, Any]) -> Iterator[Fault]:
    stage = zero.get("stage", 0)
    for key, value in zero.items():
        if key == "stage":
            continue
        kind = ZERO_KEYS.get(key)
        if kind is None:
            alike = near(key, [*ZERO_KEYS, "stage"], 1, 0.6)
            fix = f"did you mean {alike[0]}?" if alike else f"remove {key}"
            yield _error(key, f"zero_optimization has no key {key}", fix)
        elif kind == "removed":
            yield _error(key, f"DeepSpeed 0.19 has no zero_optimization.{key} any more", f"remove {key}")
        elif f"stage3_{key}" in zero:  # two names of one field
            yield _error(key, f"{key} and stage3_{key} stand side by side", f"remove {key}")
        elif key in _REPLACED and any(new in zero for new in _REPLACED[key]):
            yield _error(key, f"{key} and its new name stand side by side", f"remove {key}")
        elif value == "auto" or (value is None and key in _OPTIONAL):
            continue  # the trainer fills it in, or DeepSpeed drops it
        elif kind == "whole" and not (_number(value) and value >= 0 and value == int(value)):
            yield _error(key, f"{key} is {_shown(value)}, not a whole number", f"remove {key}: it has a good default")
        elif key == "reduce_bucket_size" and value < 1:
            yield _error(key, "reduce_bucket_size is 0 elements", f"remove {key}: it has a good default")
        elif kind == "switch" and not isinstance(value, bool):
            yield _error(key, f"{key} is {_shown(value)}, not true or false", f'"{key}": true')
        elif kind == "block" and not isinstance(value, dict):
            yield _error(key, f"{key} is {_shown(value)}, not a block", f'"{key}": {{}}, or remove it')
        elif key in OFFLOAD_KEYS:
            yield from _offload(key, value, stage)
        elif kind == "block" and value:
            yield _warn(key, f"what stands in {key} is not checked here, and not planned for", f"remove {key}")
        elif key in _DEPRECATED:
            yield _warn(key, f"{key} is deprecated in DeepSpeed 0.19", f"write {_DEPRECATED[key]}")
    if zero.get("compute_grad_norm") is False and stage not in (1, 2):
        yield _error("compute_grad_norm", "compute_grad_norm false works with stages 1 and 2 only", "remove it")


def _offload(name: str, block: Mapping[str, Any], stage: Any) -> Iterator[Fault]:
    for key, value in block.items():
        if key not in OFFLOAD_KEYS[name]:
            alike = near(key, sorted(OFFLOAD_KEYS[name]), 1, 0.6)
            fix = f"did you mean {alike[0]}?" if alike else f"remove {key}"
            yield _error(key, f"{name} has no key {key}", fix)
        elif value == "auto" or (value is None and key == "nvme_path"):
            continue
        elif key == "device" and value not in _DEVICES:
            yield _error(key, f"{name}.device is {_shown(value)}; there are none, cpu and nvme", '"device": "cpu"')
        elif key in ("pin_memory", "pipeline_read", "pipeline_write", "fast_init", "super_offload"):
            if not isinstance(value, bool):
                yield _error(key, f"{name}.{key} is {_shown(value)}, not true or false", f'"{key}": true')
        elif key in ("ratio", "cpuadam_cores_perc"):
            if not _number(value) or not 0 <= value <= 1:
                yield _error(key, f"{name}.{key} is {_shown(value)}, not a number from 0 to 1", f'"{key}": 1.0')
            elif key == "ratio" and value < 1 and stage != 3:
                yield _error(key, "a part of the optimizer states is offloaded by stage 3 only", '"ratio": 1.0')
        elif key == "nvme_path":
            if not isinstance(value, str):
                yield _error(key, f"{name}.nvme_path is {_shown(value)}, not a folder", "write the folder in quotes")
        elif key != "device" and not (_number(value) and value >= 0 and value == int(value)):
            yield _error(key, f"{name}.{key} is {_shown(value)}, not a whole number", f"remove {key}")
    if block.get("device", "none") == "nvme" and not block.get("nvme_path"):
        yield _error("device", f"{name} goes to nvme and names no folder", 'add "nvme_path": "/local/nvme"')
    if name == "offload_param" and block.get("device", "none") not in ("none", None) and stage != 3:
        yield _warn(
            name,
            f"offload_param is ignored by stage {_shown(stage)}: parameters are offloaded by stage 3 alone",
            '"stage": 3, or remove offload_param',
        )
