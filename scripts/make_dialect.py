"""Writes swift_autobatch/data/dialects/ms-swift-4.6.json from the installed ms-swift.

    python scripts/make_dialect.py            # rewrite the file
    python scripts/make_dialect.py --check    # print what differs; exit 1 when the file is stale

The flags are read from the very parser that ``swift sft`` builds (``HfArgumentParser([SftArguments])``), so a
flag that exists as a dataclass field but cannot be given on a command line is left out. Old names are the table
below: fields of the argument classes of ms-swift 2.6.1, 3.4.1, 3.9.3, 3.12.5 and 4.2.0 that 4.6.0 no longer has,
with the new name from the release notes of 3.0 where they give one.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import enum
import json
import re
import sys
import typing
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "swift_autobatch" / "data" / "dialects" / "ms-swift-4.6.json"

# Old name -> what to write now. Words that start with "--" are flags to type; every flag named is checked to exist.
RENAMED = {
    # ms-swift 3.x -> 4.x
    "train_type": "--tuner_type",
    "metric": "--eval_metric",
    "eval_datasets": "--eval_dataset",
    "eval_datasets_args": "--eval_dataset_args",
    "swanlab_lark_webhook_url": "--swanlab_webhook_url",
    "swanlab_lark_secret": "--swanlab_secret",
    "ckpt_dir": "--adapters for an adapter, --model for full weights",
    "lora_modules": "--adapters",
    "merge_lora": "nothing here: merge afterwards with `swift export --merge_lora true`",
    # ms-swift 2.x -> 3.x (ReleaseNote 3.0, "Parameter Differences")
    "sft_type": "--tuner_type",
    "model_id_or_path": "--model",
    "model_cache_dir": "--model with the local folder",
    "template_type": "--template",
    "quantization_bit": "--quant_method bnb --quant_bits 4 (or 8)",
    "bnb_4bit_comp_dtype": "--bnb_4bit_compute_dtype float16 | bfloat16 | float32",
    "hqq_dynamic_config_path": "--quant_method hqq (its dynamic config is gone)",
    "check_model_is_latest": "--check_model",
    "batch_size": "--per_device_train_batch_size",
    "eval_batch_size": "--per_device_eval_batch_size",
    "acc_steps": "--gradient_accumulation_steps",
    "use_flash_attn": "--attn_impl flash_attn",
    "dtype": "--torch_dtype bfloat16 | float16 | float32",
    "add_output_dir_suffix": "--add_version",
    "train_dataset_sample": "--dataset NAME#COUNT",
    "val_dataset_sample": "--val_dataset NAME#COUNT",
    "self_cognition_sample": "--dataset swift/self-cognition#COUNT",
    "train_dataset_mix_ratio": "--dataset with both datasets, each as NAME#COUNT",
    "train_dataset_mix_ds": "--dataset with both datasets, each as NAME#COUNT",
    "custom_train_dataset_path": "--dataset",
    "custom_val_dataset_path": "--val_dataset",
    "dataset_test_ratio": "--split_dataset_ratio",
    "dataset_seed": "--data_seed",
    "streaming_val_size": "--val_dataset",
    "streaming_buffer_size": "--shuffle_buffer_size",
    "preprocess_num_proc": "--dataset_num_proc",
    "check_dataset_strategy": "--strict true to stop at a bad row, or nothing: autoswift checks every row beforehand",
    "tools_prompt": "--agent_template",
    "rescale_image": "--max_pixels",
    "use_loss_scale": "--loss_scale",
    "loss_scale_config_path": "--loss_scale",
    "loss_name": "--loss_type",
    "additional_trainable_parameters": "--trainable_parameters",
    "lora_target_modules": "--target_modules (ALL is now all-linear)",
    "lora_target_regex": "--target_regex",
    "lora_modules_to_save": "--modules_to_save",
    "lora_dropout_p": "--lora_dropout",
    "lora_bias_trainable": "--lora_bias",
    "lora_lr_ratio": "--lorap_lr_ratio",
    "init_lora_weights": "--init_weights",
    "boft_target_modules": "--target_modules",
    "boft_modules_to_save": "--modules_to_save",
    "vera_target_modules": "--target_modules",
    "vera_modules_to_save": "--modules_to_save",
    "ia3_target_modules": "--target_modules",
    "ia3_modules_to_save": "--modules_to_save",
    "ia3_feedforward_modules": "--target_modules",
    "neftune_alpha": "--neftune_noise_alpha",
    "neftune_backend": "--neftune_noise_alpha alone",
    "use_liger": "--use_liger_kernel",
    "vit_use_gc": "--vit_gradient_checkpointing",
    "sequence_parallel": "--sequence_parallel_size",
    "test_oom_error": "nothing: `autoswift dry-run` trains on the costliest rows",
    "gpu_memory_fraction": "nothing: the planner keeps a reserve on every card",
    "evaluation_strategy": "--eval_strategy",
    "save_safetensors": "--safe_serialization",
    "only_save_model": "--save_only_model",
    "push_hub_strategy": "--hub_strategy",
    "deepspeed_config_path": "--deepspeed",
    "device_map_config": "--device_map",
    "device_map_config_path": "--device_map",
    "device_max_memory": "--max_memory",
    "fsdp_num": "--fsdp fsdp2",
    "do_sample": "--temperature (0 is greedy)",
    "model_layer_cls_name": "nothing: FSDP2 wraps the layers by itself",
    "metric_warmup_step": "--callbacks perf_log",
    "train_sampler_random": "--train_dataloader_shuffle",
    "train_backend": "nothing here: Megatron has its own command, `megatron sft`",
    "tp": "--deepspeed_autotp_size (full tuning with ZeRO 2 or lower)",
    "pp": "nothing here: pipeline parallel belongs to `megatron sft`",
    "min_lr": "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 1e-6}'",
    # names of transformers that are gone, and of other trainers
    "no_cuda": "--use_cpu",
    "overwrite_output_dir": "nothing: every run gets its own folder",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "attn_implementation": "--attn_impl",
    "model_name_or_path": "--model",
    "adapter_name_or_path": "--adapters",
    "finetuning_type": "--tuner_type",
    "lora_target": "--target_modules",
    "cutoff_len": "--max_length",
    "flash_attn": "--attn_impl flash_attn",
    "load_in_4bit": "--quant_method bnb --quant_bits 4",
    "load_in_8bit": "--quant_method bnb --quant_bits 8",
}


def _holds(hint: Any, wanted: type) -> bool:
    """Whether a type hint is ``wanted`` or a union or alias that contains it."""
    if hint is wanted or typing.get_origin(hint) is wanted:
        return True
    return any(_holds(part, wanted) for part in typing.get_args(hint))


def _kind(action: argparse.Action, hint: Any) -> str:
    if getattr(action.type, "__name__", "") == "string_to_bool":
        return "bool"
    if action.type in (int, float):
        return action.type.__name__
    return "json" if _holds(hint, dict) else "str"


def _plain(value: Any) -> Any:
    """A default as JSON: enums by value, everything else as it stands."""
    return getattr(value, "value", value)


def _reachable(parser: argparse.ArgumentParser, action: argparse.Action, kind: str) -> bool:
    """Whether any text can be given for this flag (some fields have types that no text converts to)."""
    if kind != "json" and action.type is not None and not hasattr(action.type, "__dataclass_fields__"):
        return True
    try:
        parser._get_values(action, ["{}"])  # type: ignore[attr-defined]
    except argparse.ArgumentError:
        return False
    return True


def _flag(action: argparse.Action, hint: Any) -> dict[str, Any]:
    kind = _kind(action, hint)
    row: dict[str, Any] = {"kind": kind}
    if action.nargs == "+":
        row["many"] = True
    if action.default in (None, "") or type(None) in typing.get_args(hint):
        row["optional"] = True
    if action.default not in (None, ""):
        row["default"] = _plain(action.default)
    allowed = action.choices or ()
    if isinstance(action.type, type) and issubclass(action.type, enum.Enum):
        allowed = [member.value for member in action.type]  # the parser converts, it does not list them
    choices = [str(choice) for choice in allowed if choice is not None]
    if choices:
        row["choices"] = choices
    return row


def build() -> dict[str, Any]:
    """The dialect of the installed engine. Imports ms-swift (and so torch): about 12 s."""
    import swift
    import transformers
    from swift.arguments import SftArguments

    # Before the parser: it rewrites the types of the fields in place.
    hints = typing.get_type_hints(SftArguments)
    order = {field.name: hints[field.name] for field in dataclasses.fields(SftArguments)}
    parser = transformers.HfArgumentParser([SftArguments])
    flags = {}
    for action in parser._actions:
        name = action.dest
        if name not in order or any(option.startswith("--no_") for option in action.option_strings):
            continue
        if _reachable(parser, action, _kind(action, order[name])):
            flags[name] = _flag(action, order[name])
    return {
        "schema": "autoswift.dialect/1",
        "version": swift.__version__,
        "source": f"ms-swift {swift.__version__}, transformers {transformers.__version__}: "
        "HfArgumentParser([SftArguments]); written by scripts/make_dialect.py",
        "flags": dict(sorted(flags.items())),
        "renamed": dict(sorted(RENAMED.items())),
    }


def dump(dialect: dict[str, Any]) -> str:
    """One flag a line, so that a new engine version reads as a diff."""
    head = {key: dialect[key] for key in ("schema", "version", "source")}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    for key in ("flags", "renamed"):
        rows = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in dialect[key].items()]
        lines.append(f'  "{key}": {{\n' + ",\n".join(rows) + "\n  }" + ("," if key == "flags" else ""))
    return "{\n" + "\n".join(lines) + "\n}\n"


def mistakes(dialect: dict[str, Any]) -> list[str]:
    """What is wrong with the table of old names: an old name that still works, or a new one that does not exist."""
    flags = dialect["flags"]
    found = [f"{old} is listed as renamed but still exists" for old in dialect["renamed"] if old in flags]
    for old, words in dialect["renamed"].items():
        named = re.findall(r"--(\w+)", words.split("`")[0])
        found += [f"{old}: --{name} does not exist" for name in named if name not in flags]
    return found


def main(argv: list[str]) -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="print what differs and exit 1 when the file is stale")
    options = arguments.parse_args(argv)
    dialect = build()
    for mistake in mistakes(dialect):
        print(f"error: {mistake}", file=sys.stderr)
        return 1
    text = dump(dialect)
    if not options.check:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
        print(f"{TARGET}: {len(dialect['flags'])} flags, {len(dialect['renamed'])} old names")
        return 0
    old = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    difference = list(difflib.unified_diff(old.splitlines(), text.splitlines(), "committed", "installed", lineterm=""))
    print("\n".join(difference) if difference else f"{TARGET.name} is current")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
