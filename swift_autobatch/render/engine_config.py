"""A candidate's DeepSpeed and FSDP configs.

``auto`` stands wherever the Trainer owns the value: a number that differs from its own argument is refused at train
start (transformers/integrations/deepspeed.py:133-260). The rest equals ms-swift's presets (swift/config/*.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift_autobatch.arguments import DEEPSPEED_FILE, FSDP_FILE
from swift_autobatch.records import Candidate

_ZERO12_BUCKET = 200_000_000  # elements; swift/config/zero2.json
_ZERO3_LIMIT = 1_000_000_000  # elements; swift/config/zero3.json


def configs(
    candidate: Candidate, args: Mapping[str, str | tuple[str, ...]]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The DeepSpeed and the FSDP JSON that autoswift writes; None where there is none or the user pins another."""
    deepspeed = deepspeed_config(candidate) if args.get("deepspeed") == DEEPSPEED_FILE else None
    return deepspeed, fsdp_config(candidate) if args.get("fsdp") == FSDP_FILE else None


def deepspeed_config(candidate: Candidate) -> dict[str, Any] | None:
    """The DeepSpeed JSON of a candidate; None when it does not use DeepSpeed."""
    if not candidate.uses_deepspeed:
        return None
    return {
        "fp16": {
            "enabled": "auto",
            "loss_scale": 0,
            "loss_scale_window": 1000,
            "initial_scale_power": 16,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "bf16": {"enabled": "auto"},
        "zero_optimization": _zero3(candidate) if candidate.zero_stage == 3 else _zero12(candidate),
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 2000,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "wall_clock_breakdown": False,
    }


def _offload(candidate: Candidate) -> dict[str, Any]:
    return {"device": "cpu" if candidate.offload else "none", "pin_memory": True}


def _zero12(candidate: Candidate) -> dict[str, Any]:
    bucket = candidate.bucket_elements or _ZERO12_BUCKET
    return {
        "stage": candidate.zero_stage,
        "offload_optimizer": _offload(candidate),
        "allgather_partitions": True,
        "allgather_bucket_size": bucket,
        "overlap_comm": False,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
        "contiguous_gradients": True,
    }


def _zero3(candidate: Candidate) -> dict[str, Any]:
    return {
        "stage": 3,
        "offload_optimizer": _offload(candidate),
        "offload_param": _offload(candidate),
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": _ZERO3_LIMIT,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": _ZERO3_LIMIT,
        "stage3_max_reuse_distance": _ZERO3_LIMIT,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def fsdp_config(candidate: Candidate) -> dict[str, Any] | None:
    """The FSDP2 JSON that ``--fsdp FILE`` reads; None when the candidate does not use FSDP."""
    if not candidate.uses_fsdp:
        return None
    return {
        "fsdp": "full_shard auto_wrap" + (" offload" if candidate.offload else ""),
        "fsdp_config": {
            "fsdp_version": 2,
            "reshard_after_forward": True,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "cpu_ram_efficient_loading": True,
            # Sharded, the engine writes no model that `swift infer` could load (transformers/trainer.py, save_model).
            "state_dict_type": "FULL_STATE_DICT",
            "activation_checkpointing": candidate.gradient_checkpointing,
        },
    }
