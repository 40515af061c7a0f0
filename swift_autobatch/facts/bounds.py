"""How many tokens a row can have at most, from its bytes alone; None where no such bound is known.

Byte-level BPE starts from bytes and only ever joins, so it makes at most one token a byte; BPE with byte fallback
starts from characters or their bytes. Normalisation may lengthen a text first: NFC at most threefold (U+1D160), and
only text that is not normalised already; the blank that SentencePiece puts before a text is one token more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

from swift_autobatch.facts.conversation import Conversation
from swift_autobatch.facts.template_table import MARKERS, Template

UNBOUNDED = 1 << 60
_NFC_GROWTH = 3
_PART_TOKENS = 8  # a prefix blank for every stretch of text between two special tokens, generously


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bytes of the frame around a row: once, and for every turn."""

    row_bytes: int
    turn_bytes: int

    def tokens(self, talk: Conversation, size: int, *, normal: bool) -> int:
        """No row like this has more tokens.

        Args:
            talk: the row; one with tools or media is not bounded, because its text is written anew.
            size: UTF-8 bytes of all its turns and its system prompt.
            normal: the text is in NFC.
        """
        if not talk.plain:
            return UNBOUNDED
        return size * (1 if normal else _NFC_GROWTH) + self.row_bytes + self.turn_bytes * (len(talk.turns) + 1)

    def answer_tokens(self, talk: Conversation, *, normal: bool) -> int:
        """No row like this has more labels."""
        if not talk.plain:
            return UNBOUNDED
        size = sum(text_bytes(turn.content) for turn in talk.turns if turn.role == "assistant")
        return size * (1 if normal else _NFC_GROWTH) + self.turn_bytes * (len(talk.turns) + 1)


def text_bytes(text: str) -> int:
    """UTF-8 bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A row's turns and system prompt in UTF-8 bytes and in characters. ``normal``: all of it is in NFC."""

    size: int
    characters: int
    normal: bool


def size_of(talk: Conversation) -> Size:
    """How much text a row holds."""
    size = characters = 0
    normal = True
    for text in [turn.content for turn in talk.turns] + ([talk.system] if talk.system else []):
        size += text_bytes(text)
        characters += len(text)
        normal = normal and (text.isascii() or is_normalized("NFC", text))
    return Size(size=size, characters=characters, normal=normal)


def bound_for(file: Path, template: Template, system: str | None) -> Bound | None:
    """The bound of a tokenizer.json under a chat template; None where its kind is not known to have one."""
    if not _bounded(json.loads(file.read_bytes())):
        return None
    once = (*template.prefix, *template.system_prefix, template.default_system or "", system or "")
    each = (
        *template.prompt,
        *template.chat_sep,
        *template.suffix,
        template.non_thinking_prefix,
        template.thinking_prefix,
    )
    return Bound(row_bytes=_size(once) + _PART_TOKENS, turn_bytes=_size(each) + _PART_TOKENS)


def _size(texts: tuple[str, ...]) -> int:
    return sum(1 if text in MARKERS else text_bytes(text) for text in texts)


def _bounded(document: dict[str, Any]) -> bool:
    model = document.get("model") or {}
    if model.get("type") != "BPE" or model.get("dropout"):
        return False
    normalizers = _steps(document.get("normalizer"), "normalizers")
    parts = _steps(document.get("pre_tokenizer"), "pretokenizers")
    level = any(part.get("type") == "ByteLevel" for part in parts)
    if level:
        return all(step.get("type") == "NFC" for step in normalizers)
    blanks = all(
        step.get("type") == "Prepend" or (step.get("type") == "Replace" and step.get("pattern") == {"String": " "})
        for step in normalizers
    )
    kinds = {part.get("type") for part in parts}
    return bool(model.get("byte_fallback")) and blanks and kinds <= {"Metaspace", "Split", "Digits"}


def _steps(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if not step:
        return []
    return list(step[name]) if step.get("type") == "Sequence" else [step]
