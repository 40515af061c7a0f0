"""A tokenizer as the engine loads it, which is not always what its tokenizer.json says.

transformers 5 takes from the file only the vocabulary where ``tokenizer_class`` names a class that builds itself, and
lets that class split the text in its own way: SmolLM2 says GPT2Tokenizer and loses "every digit alone", Llama 2 gets
another rule for the blank before a text. Where the file agrees with its class it is taken as it stands; else the
installed engine is asked once, in a process of its own, and what it loads is kept by content.

Source: transformers 5.19 tokenization_utils_tokenizers.py ``convert_to_native_format``,
models/auto/tokenization_auto.py ``AutoTokenizer.from_pretrained``, models/*/tokenization_*.py for the table.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from swift_autobatch.facts.encoder import versions

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_NFC = {"type": "NFC"}
_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_BARE_LEVEL = {**_LEVEL, "use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _in_turn(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: Mapping[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": dict(pattern), "behavior": behavior, "invert": False}


# class -> (normalizer, pre-tokenizer, whether BPE joins unknown characters and falls back to bytes)
BUILT: Mapping[str, tuple[Any, Any, bool]] = MappingProxyType(
    {
        "Qwen2Tokenizer": (_NFC, _in_turn(_split({"Regex": _QWEN2}, "Isolated"), _BARE_LEVEL), False),
        "Qwen3_5Tokenizer": (_NFC, _in_turn(_split({"Regex": _QWEN3_5}, "Isolated"), _BARE_LEVEL), False),
        "GPT2Tokenizer": (None, _LEVEL, False),
        "GPTNeoXTokenizer": (_NFC, _LEVEL, False),
        "CohereTokenizer": (_NFC, _in_turn(_DIGITS, _LEVEL), False),
        "GemmaTokenizer": (
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            _split({"String": " "}, "MergedWithPrevious"),
            True,
        ),
        "LlamaTokenizer": (
            None,
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
            True,
        ),
    }
)
# Classes that take tokenizer.json as it stands.
_AS_IT_STANDS = ("PreTrainedTokenizer", "TokenizersBackend")
# model_type -> the class that is built whatever tokenizer_config.json says.
_FORCED: Mapping[str, str] = MappingProxyType(
    {
        "qwen2": "Qwen2Tokenizer",
        "qwen3_5": "Qwen3_5Tokenizer",
        "qwen3_5_moe": "Qwen3_5Tokenizer",
        "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    }
)


def settled(tokenizer: Tokenizer, folder: Path) -> bool:
    """Whether the engine surely encodes text as a tokenizer.json says.

    Args:
        tokenizer: the file, read.
        folder: where its config.json and tokenizer_config.json lie.
    """
    config, model = _object(folder / "tokenizer_config.json"), _object(folder / "config.json")
    remote = config.get("auto_map")
    if isinstance(remote, dict | list) and remote:  # code of the model's own
        return False
    named = str(config.get("tokenizer_class") or model.get("tokenizer_class") or "").removesuffix("Fast")
    forced = _FORCED.get(str(model.get("model_type")))
    if forced is None and named in _AS_IT_STANDS:
        return True
    built = BUILT.get(forced or named)
    return built is not None and _pipeline(tokenizer) == built


def as_loaded(file: Path, tokenizer: Tokenizer, cache_dir: Path, save: Callable[[Path], bool]) -> Path | None:
    """A file in the form of tokenizer.json that encodes as the engine does; None where there is none.

    Args:
        file: the model's own tokenizer.json.
        tokenizer: the same, read.
        cache_dir: keeps what the engine loads, by content and version.
        save: asks the engine to write its tokenizer to a path; False where it cannot.
    """
    if settled(tokenizer, file.parent):
        return file
    kept = cache_dir / "tokenizers" / f"{_digest(file)}.json"
    if kept.is_file():
        return kept
    fresh = kept.with_suffix(f".{os.getpid()}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        if not save(fresh):
            return None
        fresh.replace(kept)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            fresh.unlink()
    return kept


def _pipeline(tokenizer: Tokenizer) -> tuple[Any, Any, bool] | None:
    """What stands around the vocabulary; None where its BPE has a way of its own."""
    model = tokenizer.model
    if type(model).__name__ != "BPE" or model.dropout or model.ignore_merges or model.fuse_unk != model.byte_fallback:
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    return _step(tokenizer.normalizer), _step(tokenizer.pre_tokenizer), bool(model.fuse_unk)


def _step(part: Any) -> Any:
    return None if part is None else _without_offsets(json.loads(part.__getstate__()))


def _without_offsets(step: dict[str, Any]) -> dict[str, Any]:
    """Offsets are of no matter for ids."""
    step = {name: value for name, value in step.items() if name != "trim_offsets"}
    if "pretokenizers" in step:
        step["pretokenizers"] = [_without_offsets(inner) for inner in step["pretokenizers"]]
    return step


def _digest(file: Path) -> str:
    summary = hashlib.sha256()
    for name in (file.name, "tokenizer_config.json", "config.json"):
        with suppress(OSError):
            summary.update((file.parent / name).read_bytes())
        summary.update(name.encode())
    summary.update(repr(versions()).encode())
    return summary.hexdigest()[:32]


def _object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}
