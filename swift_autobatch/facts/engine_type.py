"""What ms-swift will make of a model: its type, its chat template, and whether it must be told.

The engine matches the last path component with its registry, then args.json, then ``architectures[0]``; several
candidates are refused ("Multiple possible types found"). Source: swift/model/model_meta.py,
swift/template/register.py; tables in data/dialects/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_autobatch.tables import engine_models

# Which of several candidate types is the plain one; the others are named products or other tasks.
_PLAIN_TYPE: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "QWenLMHeadModel": "qwen",
    "Phi3ForCausalLM": "phi3",
    "InternLM2ForCausalLM": "internlm2",
    "MiniCPMForCausalLM": "minicpm",
    "CohereForCausalLM": "c4ai",
    "Mistral3ForConditionalGeneration": "mistral3",
}

# (every one of these strings stands in the chat template) -> engine template; the first row that matches.
_TEMPLATE_MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|im_start|>", "enable_thinking"), "qwen3"),
    (("<|im_start|>", "You are Qwen, created by Alibaba Cloud"), "qwen2_5"),
    (("<|im_start|>", "You are a helpful assistant"), "qwen"),
    (("<|im_start|>", "<|im_sep|>"), "phi4"),
    (("<|im_start|>",), "chatml"),
    (("<|start_header_id|>", "Cutting Knowledge Date"), "llama3_2"),
    (("<|start_header_id|>",), "llama3"),
    (("<｜User｜>", "<think>"), "deepseek_r1"),
    (("<｜User｜>",), "deepseek_v2_5"),
    (("[SYSTEM_PROMPT]",), "mistral_2501"),
    (("[AVAILABLE_TOOLS]",), "mistral_nemo"),
    (("[INST]",), "llama"),
    (("<start_of_turn>",), "gemma"),
    (("[gMASK]", "<|observation|>"), "chatglm4"),
    (("<|user|>", "<|end|>"), "phi3"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineType:
    """``tell``: --model_type and --template (those that are not None) must be passed. ``reason`` says why."""

    model_type: str | None
    template: str | None
    tell: bool
    reason: str


def engine_type(
    name: str, architecture: str, folder: Path | None, twin: tuple[str | None, str | None] = (None, None)
) -> EngineType:
    """How the engine will see a model.

    Args:
        name: the id, or the path of a local folder, as it will be given to ``--model``.
        architecture: ``architectures[0]``.
        folder: where tokenizer files and args.json may be; None: nowhere at hand.
        twin: (type, template) of a catalogued model of the same family, used where nothing better is known.
    """
    known = engine_models()
    match = known.ids.get(last_component(name).lower())
    if match is not None:
        model_type, template = match
        if template is None and len(known.candidates[model_type]) == 1:
            template = known.candidates[model_type][0]
        return EngineType(model_type=model_type, template=template, tell=False, reason="registered")
    saved_type, saved_template = _saved_arguments(folder)
    if saved_type is not None:
        template = saved_template or _lone_template(saved_type)
        return EngineType(model_type=saved_type, template=template, tell=False, reason="args.json")
    return _by_architecture(architecture, saved_template or chat_template(folder), twin)


def last_component(name: str) -> str:
    """The name the engine looks up: hub snapshot folders and ``___`` for dots undone. Source: get_model_name."""
    name = name.rstrip("/")
    match = re.search(r"/models(?:--|/)(?:.+?--)?(.+?)/snapshots/", name)
    return match.group(1) if match else name.rsplit("/", 1)[-1].replace("___", ".")


def _saved_arguments(folder: Path | None) -> tuple[str | None, str | None]:
    """Type and template of args.json, which the engine writes beside what it trained and reads back.

    Types written before ms-swift 4 are ignored. Source: swift/arguments/base_args/base_args.py load_args_from_ckpt.
    """
    raw = (_read_json(folder / "args.json") if folder else None) or {}
    recent = re.match(r"(\d+)\.", str(raw.get("swift_version") or ""))
    model_type = raw.get("model_type") if recent and int(recent[1]) >= 4 else None
    template = raw.get("template")
    return (
        model_type if isinstance(model_type, str) else None,
        template if isinstance(template, str) else None,
    )


def _lone_template(model_type: str) -> str | None:
    candidates = engine_models().candidates.get(model_type, ())
    return candidates[0] if len(candidates) == 1 else None


def _by_architecture(architecture: str, template: str | None, twin: tuple[str | None, str | None]) -> EngineType:
    """``template`` is what the folder's own files say."""
    known = engine_models()
    types = known.architectures.get(architecture, ())
    plain = types[0] if len(types) == 1 else _PLAIN_TYPE.get(architecture)
    # A twin's type is another registered name of the same family, so it knows better than the table; a type that
    # is called like the template (mistral_nemo, phi4) better still.
    model_type = template if template in types else twin[0] if twin[0] in types else plain
    own = known.candidates.get(model_type or "", ())
    if len(types) == 1 and len(own) == 1:
        return EngineType(
            model_type=model_type, template=own[0], tell=False, reason=f"the only type for {architecture}"
        )
    template = _fitting(model_type, own, template or (twin[1] if twin[0] == model_type else None))
    if not types:
        reason = f"ms-swift knows no model type for {architecture or 'this architecture'}"
        said = f"its chat template is {template}" if template else "it would train with the template 'dummy'"
        return EngineType(model_type=None, template=template, tell=template is not None, reason=f"{reason}; {said}")
    reason = f"{architecture} fits {_counted(types, 'model type')}" if len(types) > 1 else _several(model_type, own)
    reason += " and none is the plain one: pass --model_type" if model_type is None else f", {model_type} is passed"
    if model_type is None:
        return EngineType(model_type=None, template=template, tell=template is not None, reason=reason)
    if template is None:
        reason += "; its chat template is not recognised: pass --template"
    return EngineType(model_type=model_type, template=template, tell=True, reason=reason)


def _fitting(model_type: str | None, own: tuple[str, ...], template: str | None) -> str | None:
    """The template to pass: a text template cannot serve a multimodal type, and GLM's marks are those of many."""
    if model_type in engine_models().multimodal and template not in own:
        return model_type if model_type in own else None
    if template == "chatglm4" and own and template not in own:
        return own[0]
    return own[0] if template is None and len(own) == 1 else template


def _counted(names: tuple[str, ...], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _several(model_type: str | None, templates: tuple[str, ...]) -> str:
    return f"{model_type} has {_counted(templates, 'template')}"


# ---------------------------------------------------------------------------------------------- chat template


def chat_template(folder: Path | None) -> str | None:
    """The engine's template for the chat template kept beside the tokenizer; None when it is not recognised."""
    text = _chat_template_text(folder) if folder else ""
    for marks, template in _TEMPLATE_MARKS:
        if text and all(mark in text for mark in marks):
            return template
    return None


def _chat_template_text(folder: Path) -> str:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    for name in ("chat_template.json", "tokenizer_config.json"):
        raw = _read_json(folder / name) or {}
        found = raw.get("chat_template")
        if isinstance(found, str):
            return found
        if isinstance(found, list):  # several named ones: the default
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            return str(named.get("default") or next(iter(named.values()), ""))
    return ""


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, None where there is none; these files only help and never fail a plan."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None
