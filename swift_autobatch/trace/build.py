"""Builds the model that the engine would train, with weights that take no memory: config.json -> meta tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from swift_autobatch.records import FootprintKey
from swift_autobatch.trace import quantised
from swift_autobatch.trace.errors import CannotTrace

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SHORTEST = 1100  # tokens; every row that is traced is longer, and shorter than the next usual window (2047)
_HEADS = ("lm_head", "score", "v_head", "classifier", "output_layer", "embed_out")
_FROZEN_TOWERS = ("visual", "vision_tower", "vision_model", "multi_modal_projector", "audio_tower", "aligner", "merger")
_MAMBA = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
_NO_QUANTISED = "a checkpoint quantised with {} cannot be traced: its kernels exist on GPUs only"


def config_of(source: Mapping[str, Any] | str) -> Any:
    """The transformers configuration of a config.json's content or of a model folder.

    Raises:
        CannotTrace: this transformers does not know the model type, or refuses the values.
    """
    import transformers

    try:
        if isinstance(source, str):
            return transformers.AutoConfig.from_pretrained(source, trust_remote_code=_has_code(source))
        values = dict(source)
        return transformers.AutoConfig.for_model(values.pop("model_type", ""), **values)
    except Exception as error:
        raise CannotTrace(
            f"transformers {transformers.__version__} cannot read this config.json: {_first(error)}"
        ) from error


def _has_code(folder: str) -> bool:
    return any(Path(folder).glob("*.py"))


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def build(config: Any, key: FootprintKey, notes: set[str], check: Callable[[int], None] = lambda count: None) -> Any:
    """The model on meta tensors, frozen and adapted as ms-swift does it.

    Args:
        config: from :func:`config_of`; not changed.
        key: tuner, quantisation, dtype and kernels.
        notes: receives a sentence for everything that is not as the engine has it.
        check: called with the number of parameters; may raise CannotTrace.

    Raises:
        CannotTrace: the architecture cannot be built, adapted or quantised here.
    """
    _refuse_quantised(config)
    model = _whole(config, key)
    check(sum(parameter.numel() for parameter in model.parameters()))
    _say_windows(config, key, notes)
    model.config.use_cache = False
    if key.quant == "nf4":
        quantised.to_nf4(model, DTYPES[key.dtype], _skipped(model))
    elif key.quant != "none":
        raise CannotTrace("LLM.int8 is not traced: its kernels depend on the values")
    if key.checkpointing:
        _checkpoint(model)
    return _adapted(model, key, notes) if key.tuner == "lora" else _trained(model)


def _refuse_quantised(config: Any) -> None:
    method = getattr(config, "quantization_config", None) or {}
    name = method.get("quant_method") if isinstance(method, dict) else getattr(method, "quant_method", None)
    if name:
        raise CannotTrace(_NO_QUANTISED.format(name))


def _say_windows(config: Any, key: FootprintKey, notes: set[str]) -> None:
    """SDPA takes a mask only in layers with a window that is shorter than the rows: which side was traced."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if not window or getattr(text, "use_sliding_window", True) is False or key.attention in ("eager",):
        return
    side = (
        f"of at most {window} tokens hold no mask" if window < SHORTEST else f"longer than {window} tokens hold a mask"
    )
    notes.add(f"attention looks back {window} tokens: rows {side}, unlike the traced ones")


def _whole(config: Any, key: FootprintKey) -> Any:
    import transformers
    from transformers.initialization import no_init_weights

    attention = "eager" if key.attention == "eager" else "sdpa"
    last: Exception | None = None
    for family in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText):
        for implementation in dict.fromkeys((attention, "eager")):
            try:
                with torch.device("meta"), no_init_weights():
                    model = family.from_config(
                        config,
                        dtype=DTYPES[key.dtype],
                        attn_implementation=implementation,
                        trust_remote_code=hasattr(config, "auto_map"),
                    )
                model.tie_weights()  # left out with the initial values
                return model
            except Exception as error:
                last = last or error
    assert last is not None
    raise CannotTrace(f"the model cannot be built from its config.json: {_first(last)}") from last


def _checkpoint(model: Any) -> None:
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model.enable_input_require_grads()
    except Exception as error:
        raise CannotTrace(f"this architecture has no gradient checkpointing: {_first(error)}") from error


# ---------------------------------------------------------------------------------------------------- tuners


def _in_tower(name: str) -> bool:
    return any(part in _FROZEN_TOWERS for part in name.split("."))


def _skipped(model: Any) -> frozenset[str]:
    """Linears that bitsandbytes leaves alone: the vocabulary projection and whatever shares its weight."""
    head = model.get_output_embeddings()
    return frozenset(name for name, module in model.named_modules() if module is head)


def targets(model: Any) -> list[str]:
    """Full names of what LoRA ``all-linear`` reaches: every module whose class is called "...Linear...", no heads,
    no towers. Source: ms-swift utils/transformers_utils.py `find_all_linears`."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if "linear" in type(module).__name__.lower()
        and module is not head
        and not any(word in name for word in _HEADS)
        and not _in_tower(name)
        and not (getattr(model.config, "model_type", "") in _MAMBA and name.endswith(("out_proj", "conv1d")))
    ]


def _adapted(model: Any, key: FootprintKey, notes: set[str]) -> Any:
    from peft import LoraConfig, get_peft_model

    model.requires_grad_(False)
    names = targets(model)
    if not names:
        raise CannotTrace("LoRA finds no linear module in this architecture")
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=key.lora_rank,
        lora_alpha=32,
        lora_dropout=0.05 if key.dropout else 0.0,
        target_modules=_as_regex(names),
    )
    try:
        adapted = get_peft_model(model, lora)
    except Exception as error:
        raise CannotTrace(f"PEFT cannot adapt this architecture: {_first(error)}") from error
    dtype = DTYPES[key.dtype] if key.deepspeed else torch.float32
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    if getattr(model.config, "num_experts", None) or getattr(model.config, "num_local_experts", None):
        notes.add("fused experts are traced as ms-swift trains them: in 16 bits and without adapters")
    return adapted


def _as_regex(names: list[str]) -> str:
    """A pattern of exactly these modules, layer numbers folded: PEFT matches a list by suffix, which reaches more."""
    folded = {re.sub(r"(?<=\.)\d+(?=\.)", "<n>", name) for name in names}
    return "|".join(sorted(re.escape(name).replace("<n>", r"\d+") for name in folded))


def _trained(model: Any) -> Any:
    """Full tuning: all but the towers, which ms-swift freezes."""
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not _in_tower(name))
    return model
