"""Encodes text seven times as fast as the ``tokenizers`` library, with the same ids, proved before it is used.

``tiktoken`` merges any two neighbours that together are in the vocabulary, by the rank of what they become;
``tokenizers`` merges only the pairs that are listed, by their place in the list. The two agree on every text where,
for every token, merging its own bytes by rank ends in the pair that is listed for it: as long as no merge crosses
the ends of a stretch, what happens inside it depends on the stretch alone. :func:`quick_for` checks that for every
token of the vocabulary, and lets both libraries encode every character of the Basic Multilingual Plane and every
emoji between letters, digits, blanks and quotes, because each has Unicode tables of its own. What remains outside
(other planes, text that NFC would change) is left to ``tokenizers``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import is_normalized

from swift_autobatch.facts.byte_level import plain_bytes

if TYPE_CHECKING:
    from tiktoken import Encoding
    from tokenizers import Tokenizer

# Other planes than the probed ones: rare scripts, rare Chinese characters, private use.
_UNPROBED = re.compile("[\U00010000-\U0001efff\U0001fb00-\U0010ffff]")
# The pattern of ByteLevel without one of its own. Source: tokenizers src/pre_tokenizers/byte_level.rs.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same behind Digits(individual_digits): every digit alone, and the text before it ends there.
_GPT2_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_NEEDED = (*range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1))  # bytes of every text that is not left out
_PROOF = 2  # raised when the proof changes


class Quick:
    """A proved encoding."""

    def __init__(self, encoding: Encoding, *, normalizes: bool, unspelled: str = "") -> None:
        """``unspelled``: control characters that the vocabulary has no byte for; ``tokenizers`` leaves them out."""
        self._encoding = encoding
        self._unspelled = re.compile(f"[{re.escape(unspelled)}]") if unspelled else None
        self._normalizes = normalizes

    def knows(self, text: str) -> bool:
        """Whether the proof covers a text."""
        if self._unspelled is not None and self._unspelled.search(text):
            return False
        if text.isascii():
            return True
        return not _UNPROBED.search(text) and not (self._normalizes and not is_normalized("NFC", text))

    def ids(self, text: str) -> list[int]:
        """Token ids as ``tokenizers`` gives them; added tokens such as <|im_end|> are found in the text."""
        return self._encoding.encode(text, allowed_special="all", disallowed_special=())


def quick_for(file: Path, tokenizer: Callable[[], Tokenizer], cache_dir: Path | None) -> Quick | None:
    """The fast encoding of a tokenizer.json; None where equality is not proved.

    Args:
        file: tokenizer.json.
        tokenizer: loads the same; only the proof needs it.
        cache_dir: keeps the outcome of the proof (seconds) by the file's sha256 and the libraries' versions.
    """
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        return None
    content = file.read_bytes()
    kept = cache_dir / "tokenizers" / _name(content) if cache_dir else None
    found = _load(kept) if kept and kept.is_file() else None
    if found is None:
        found = _prove(json.loads(content), tokenizer())
        if kept:
            _save(found, kept)
    return _quick(found) if found.tokens else None


def prove(file: Path, tokenizer: Callable[[], Tokenizer], cache_dir: Path) -> None:
    """Leaves the outcome of the proof in the cache, unless it is there."""
    with suppress(ImportError):
        kept = cache_dir / "tokenizers" / _name(file.read_bytes())
        if not kept.is_file():
            quick_for(file, tokenizer, cache_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Translation:
    """A tokenizer.json as tiktoken wants it; no tokens where it cannot be or equality is not proved."""

    pattern: str = ""
    added: dict[str, int] = field(default_factory=dict)
    normalizes: bool = False
    tokens: dict[bytes, int] = field(default_factory=dict)


def _quick(found: _Translation) -> Quick:
    from tiktoken import Encoding

    encoding = Encoding("quick", pat_str=found.pattern, mergeable_ranks=found.tokens, special_tokens=dict(found.added))
    unspelled = "".join(chr(byte) for byte in range(0x80) if bytes([byte]) not in found.tokens)
    return Quick(encoding, normalizes=found.normalizes, unspelled=unspelled)


def _prove(document: Any, tokenizer: Tokenizer) -> _Translation:
    pattern = _pattern(document)
    tokens = _tokens(document) if pattern else None
    if pattern is None or tokens is None:
        return _Translation()
    added = {token["content"]: token["id"] for token in document.get("added_tokens") or ()}
    found = _Translation(pattern=pattern, added=added, normalizes=bool(document.get("normalizer")), tokens=tokens)
    return found if _merges_agree(document, tokens) and _probe(_quick(found), tokenizer) else _Translation()


def _name(content: bytes) -> str:
    versions = f"{version('tiktoken')}-{version('tokenizers')}-{sys.version_info[0]}.{sys.version_info[1]}-{_PROOF}"
    return hashlib.sha256(content + versions.encode()).hexdigest()[:32]


def _load(kept: Path) -> _Translation | None:
    """The outcome as :func:`_save` wrote it; None where the file is not whole."""
    try:
        head, *lines = kept.read_bytes().splitlines()
        document = json.loads(head)
        tokens = {b64decode(token): int(number) for token, number in (line.split() for line in lines)}
        if document.pop("size") != len(tokens):
            return None
        return _Translation(**document, tokens=tokens)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _save(found: _Translation, kept: Path) -> None:
    head = {"pattern": found.pattern, "added": found.added, "normalizes": found.normalizes, "size": len(found.tokens)}
    lines = [json.dumps(head).encode(), *(b64encode(token) + b" %d" % number for token, number in found.tokens.items())]
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(b"\n".join(lines))
        fresh.replace(kept)


# ------------------------------------------------------------------------------------------ what can be translated


def _pattern(document: Any) -> str | None:
    """The regular expression that parts a text, when that and byte-level BPE are all there is."""
    model = document.get("model") or {}
    odd = [model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")]
    if model.get("type") != "BPE" or any(odd) or (document.get("normalizer") or {"type": "NFC"}) != {"type": "NFC"}:
        return None
    if not _plain_added(document.get("added_tokens") or ()):
        return None
    return _parting(document.get("pre_tokenizer") or {})


def _plain_added(added: Any) -> bool:
    """Whether added tokens are found as they stand, wherever they stand, and none starts another."""
    names = sorted(token["content"] for token in added)
    flags = ("single_word", "lstrip", "rstrip")
    return (
        not any(token.get(flag) for token in added for flag in flags)
        and all((name and name.isascii()) or is_normalized("NFC", name) for name in names)
        and not any(longer.startswith(shorter) for shorter, longer in pairwise(names))
    )


def _parting(parts: Any) -> str | None:
    steps = parts.get("pretokenizers") if parts.get("type") == "Sequence" else [parts]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    *before, level = steps
    own = level.get("use_regex", True)
    if not before:
        return _GPT2 if own else None
    (first, *more) = before
    if more:
        return None
    if first.get("type") == "Digits" and first.get("individual_digits") and own:
        return _GPT2_DIGITS
    split = first.get("type") == "Split" and first.get("behavior") == "Isolated" and not first.get("invert")
    return first.get("pattern", {}).get("Regex") if split and not own else None


def _tokens(document: Any) -> dict[bytes, int] | None:
    """Bytes -> id of every token, ids in the order of the merges; None where they are not."""
    vocabulary: dict[str, int] = document["model"]["vocab"]
    added = {token["content"] for token in document.get("added_tokens") or ()}
    try:
        tokens = {plain_bytes(name): number for name, number in vocabulary.items() if name not in added}
    except KeyError:
        return None
    made = {plain_bytes(left + right) for left, right in _merges(document)}
    if (
        any(bytes([byte]) not in tokens for byte in _NEEDED)
        or any(len(token) > 1 and token not in made for token in tokens)
        or made - set(tokens)
    ):
        return None
    order = list(dict.fromkeys(tokens[plain_bytes(left + right)] for left, right in _merges(document)))
    return tokens if all(one < other for one, other in pairwise(order)) else None


def _merges(document: Any) -> Iterator[tuple[str, str]]:
    for merge in document["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


# -------------------------------------------------------------------------------------------------------- the proof


def _merges_agree(document: Any, tokens: dict[bytes, int]) -> bool:
    """Whether every token's bytes, merged by rank, end in a pair that is listed first for it."""
    pairs: dict[bytes, tuple[bytes, bytes]] = {}
    for left, right in _merges(document):
        one, other = plain_bytes(left), plain_bytes(right)
        pairs.setdefault(one + other, (one, other))
    return all(_last_pair(token, tokens) == pair for token, pair in pairs.items())


def _last_pair(token: bytes, tokens: dict[bytes, int]) -> tuple[bytes, ...]:
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        ranks = [tokens.get(one + other, sys.maxsize) for one, other in pairwise(parts)]
        lowest = min(ranks)
        if lowest == sys.maxsize:
            break
        at = ranks.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts)


# Blocks whose inner characters are alike to both libraries: CJK, Hangul, surrogates, private use.
_ALIKE = ((0x3500, 0x4D00), (0x4F00, 0x9F00), (0xAD00, 0xD700), (0xD800, 0xE000), (0xE100, 0xF800))


def _probe(quick: Quick, tokenizer: Tokenizer) -> bool:
    """Whether both libraries give the same ids around every character that is not left to ``tokenizers``."""
    codes = [*range(0x10000), *range(0x1F000, 0x1FB00)]
    seen = [chr(code) for code in codes if not any(low <= code < high for low, high in _ALIKE)]
    texts = [f"x{c}{c} {c}1'{c}\n{c} \n" for c in seen]
    texts = [text for text in texts if quick.knows(text)]
    lines = ["".join(texts[at : at + 32]) for at in range(0, len(texts), 32)]
    lines = [line for line in lines if quick.knows(line)]
    theirs = tokenizer.encode_batch(lines, add_special_tokens=False)
    return all(quick.ids(line) == encoding.ids for line, encoding in zip(lines, theirs, strict=True))
