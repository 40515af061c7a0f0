"""config.json (never weights) or the catalogue -> ModelFacts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from swift_autobatch.errors import InputError
from swift_autobatch.facts.engine_type import EngineType, engine_type
from swift_autobatch.facts.find_model import Found, find_model
from swift_autobatch.facts.hub_cache import chosen_hub
from swift_autobatch.facts.packed import packed_bytes
from swift_autobatch.facts.shape import Config, Shape, read_shape, text_config
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import DTYPE_BYTES, Dtype, Environment, ModelFacts, Sourced
from swift_autobatch.tables import ModelRow, models

_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "deberta-v2", "modernbert", "t5", "mt5", "umt5", "bart"})
# Ids whose published checkpoint is quantised; source: the notes of data/aliases.jsonl, the models' own cards.
_QUANTISED_NAMES = (
    (r"gptq|-int[48]\b", "gptq"),
    (r"\bawq\b", "awq"),
    (r"aqlm", "aqlm"),
    (r"\bbnb\b|-4bits?\b|-8bits?\b", "bnb"),
    (r"\bfp8\b|^deepseek-(v3|r1)(?!-distill)", "fp8"),
    (r"mxfp4|^gpt-oss-\d+b$", "mxfp4"),
)


def read_model(
    name: str,
    env: Environment,
    pins: Mapping[str, Sourced[Any]] | None = None,
    progress: Progress | None = None,
) -> ModelFacts:
    """A model's shape and what the engine will make of it.

    Looks, as the engine does, for a local folder first (relative to ``env.cwd``), then in the hub caches, then in the
    catalogue, and at last on the hub, from which it fetches config.json and the tokenizer. ``path`` is set for local
    folders only: an id stays an id, spelled as the hub spells it, and the engine finds its own cache.

    Args:
        name: id or folder, as the user wrote it.
        env: cwd, home, and the variables of caches and hubs.
        pins: engine flags; use_hf and model_revision say which hub and what of it.
        progress: told before anything is downloaded.

    Raises:
        InputError: no such folder or id, a folder without a usable config.json, a model that is no decoder.
    """
    found = find_model(name, env, chosen_hub(env, pins), progress or Silent())
    if found.folder is None:
        config = found.row.config if found.row is not None else {}
        return _facts(found, config)
    try:
        config = _read_config(found.folder)
    except InputError as error:
        if found.shadows:
            error.hints += (f"rename that folder to use the hub's {name}: a folder here goes before the hub",)
        raise
    return _facts(found, config)


# --------------------------------------------------------------------------------------------- config.json


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _no_config(folder) from None
    except OSError as error:
        raise InputError(f"cannot read config.json: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        text = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(
            f"config.json is not JSON: {text}",
            where=f"{path}{line}",
            hints=("copy it again from where the model came from",),
        ) from error
    if not isinstance(raw, dict):
        raise InputError(f"config.json holds a {type(raw).__name__}, not an object", where=str(path))
    return raw


def _no_config(folder: Path) -> InputError:
    if (folder / "adapter_config.json").is_file():
        base = _base_of_adapter(folder)
        return InputError(
            "this folder holds an adapter, not a model",
            where=str(folder),
            hints=(f"--model {base} --adapters {folder}",),
        )
    below = sorted(path.parent for path in folder.glob("*/config.json"))
    return InputError(
        "the model folder has no config.json",
        where=str(folder),
        hints=(f"--model {below[-1]}" if below else "a model folder holds config.json, a tokenizer and weights",),
    )


def _base_of_adapter(folder: Path) -> str:
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return "BASE"
    return str(base or "BASE")


# ------------------------------------------------------------------------------------------------ assembly


def _facts(found: Found, config: Config) -> ModelFacts:
    """ModelFacts of a config.json or of a catalogue row's config (no folder)."""
    name, row, folder = found.id, found.row, found.folder
    where = str(folder / "config.json") if folder else "models.jsonl" + (f":{row.line}" if row else "")
    architecture = _architecture(config) or (row.architecture if row else "")
    _refuse_encoders(config, architecture, where)
    shape = read_shape(config, where)
    twin = row if row is not None and _same_shape(shape, row) else _row_of_shape(shape, architecture)
    counts, note = _counts(config, shape, twin, published=folder is None)
    # Same shape alone says nothing about the chat template: only the row of the model's own name does.
    named = (row.swift_model_type, row.swift_template) if row is not None and row is twin else (None, None)
    kind = engine_type(str(folder) if found.local else name, architecture, folder, named)
    quantised = _quantised(config, name)
    return ModelFacts(
        id=name,
        path=str(folder) if found.local else None,
        architecture=architecture,
        hf_model_type=str(config.get("model_type") or shape.model_type),
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        widest_head=shape.widest_head,
        intermediate=shape.intermediate,
        vocab=shape.vocab,
        tied=shape.tied if twin is None else twin.tied,
        max_position=shape.max_position,
        params_total=counts["total"],
        params_embedding=shape.params_embedding,
        params_lm_head=shape.params_lm_head if twin is None else twin.breakdown["lm_head_untied"],
        params_active=counts["active"],
        params_vision=counts["vision"],
        linears=shape.linears,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        dtype=_dtype(config),
        swift_model_type=kind.model_type,
        swift_template=kind.template,
        pass_model_type=kind.tell,
        quantised=quantised,
        packed_bytes=packed_bytes(_quantisation(config), name, quantised),
        source="; ".join(part for part in (found.source, note, _type_note(kind)) if part),
        tokenizer_path=str(found.tokenizer) if found.tokenizer else None,
    )


def _type_note(kind: EngineType) -> str:
    return kind.reason if kind.tell or kind.model_type is None else ""


def _same_shape(shape: Shape, row: ModelRow) -> bool:
    """Whether a catalogue row's config gives the very same decoder."""
    try:
        other = read_shape(row.config, f"models.jsonl:{row.line}")
    except InputError:
        return False
    return all(getattr(shape, name) == getattr(other, name) for name in _SHAPE_KEYS)


_SHAPE_KEYS = ("model_type", "hidden", "layers", "heads", "kv_heads", "intermediate", "vocab", "experts", "params_text")


def _row_of_shape(shape: Shape, architecture: str) -> ModelRow | None:
    rows = {row.id: row for row in models().values() if row.architecture == architecture}
    return next((row for row in rows.values() if _same_shape(shape, row)), None)


def _counts(config: Config, shape: Shape, twin: ModelRow | None, *, published: bool) -> tuple[dict[str, int], str]:
    """Parameter counts and a note on how sure they are. Published counts are never recomputed."""
    if twin is not None:
        total, vision = twin.params_total, twin.breakdown["vision_and_projector"]
        return {"total": total, "active": twin.params_active or total, "vision": vision}, (
            "" if published else f"parameters as of {twin.id}"
        )
    vision = _vision(config)
    notes = []
    if vision:
        notes.append("vision tower estimated")
    if not shape.exact:
        notes.append(f"parameters estimated: {shape.model_type or 'the model type'} is read as a Llama-like decoder")
    return {"total": shape.params_text + vision, "active": shape.params_active + vision, "vision": vision}, (
        "; ".join(notes)
    )


def _vision(config: Config) -> int:
    """Parameters of a vision tower and its projector, roughly: a plain transformer of vision_config's sizes."""
    inner = config.get("thinker_config")
    vision = (inner if isinstance(inner, Mapping) else config).get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    # Qwen2-VL calls the width embed_dim and the language model's width hidden_size.
    width = int(vision.get("embed_dim") or vision.get("hidden_size") or 0)
    depth = int(vision.get("depth") or vision.get("num_hidden_layers") or 0)
    inner_width = int(vision.get("intermediate_size") or vision.get("mlp_ratio", 4) * width)
    matrices = 3 if vision.get("hidden_act") == "silu" else 2
    projector = (4 * width) ** 2 + 4 * width * int(text_config(config).get("hidden_size") or 0)
    return depth * (4 * width * width + matrices * width * inner_width) + projector


def _architecture(config: Config) -> str:
    found = config.get("architectures")
    return str(found[0]) if isinstance(found, list) and found else ""


def _refuse_encoders(config: Config, architecture: str, where: str) -> None:
    if config.get("is_encoder_decoder") or config.get("model_type") in _ENCODERS:
        raise InputError(
            f"{architecture or config.get('model_type')} is not a causal language model, and autoswift plans for those",
            where=where,
            hints=("choose a decoder, for example --model Qwen/Qwen2.5-7B-Instruct",),
        )


def _dtype(config: Config) -> Dtype | None:
    """``dtype`` (transformers 5) or ``torch_dtype`` (before), outside or in the text part."""
    for part in (config, text_config(config)):
        for key in ("dtype", "torch_dtype"):
            name = str(part.get(key) or "").removeprefix("torch.")
            if name in DTYPE_BYTES:
                return cast(Dtype, name)
    return None


def _quantisation(config: Config) -> Mapping[str, Any] | None:
    said = config.get("quantization_config") or text_config(config).get("quantization_config")
    return said if isinstance(said, Mapping) else None


def _quantised(config: Config, name: str) -> str | None:
    """``quantization_config.quant_method`` as the engine calls it; for ids without a file, by name."""
    said = _quantisation(config)
    if said is not None:
        method = str(said.get("quant_method") or "unknown")
        return "bnb" if method == "bitsandbytes" else method
    last = name.rsplit("/", 1)[-1].lower()
    if "architectures" in config or "dequantized" in last:
        return None
    return next((method for pattern, method in _QUANTISED_NAMES if re.search(pattern, last)), None)
