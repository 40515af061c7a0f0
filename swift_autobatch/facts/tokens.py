"""Counts the tokens of rendered conversations, with the model's own tokenizer where its file is at hand.

Without one, UTF-8 bytes bound the length from above (no byte-level or byte-fallback vocabulary makes two tokens of
one byte) and bytes / 4 estimates it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from swift_autobatch.errors import InputError
from swift_autobatch.facts.quick import Quick, quick_for
from swift_autobatch.facts.templates import AUTO_BOS, BOS, EOS, MARKERS, TEMPLATES, Piece, Template, dated
from swift_autobatch.records import ModelFacts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES_PER_TOKEN = 4  # estimate for mixed text in a 100 k vocabulary (design: "bytes / 4")
# The longest row is planned for at this many times its estimate: prose takes a token every 4.3-5.5 bytes, code one
# every 3. Its bytes would be a bound (4 times the estimate) that text never comes near; max_length keeps to the bound.
WIDENED = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Tokens of one row: the best estimate, what to plan for, and an upper bound; all equal when the count is exact.

    ``prompt`` is how many tokens stand before the first label; 0 when they were not counted.
    """

    tokens: int
    prompt: int
    planned: int
    bound: int
    supervised: int
    supervised_planned: int


class Counter(Protocol):
    """Counts rows of pieces. ``eos_text`` and ``template`` are what rendering needs."""

    name: str
    exact: bool
    template: Template
    eos_text: str

    def count(self, rows: Sequence[tuple[Piece, ...]]) -> list[Count]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All that counting needs to know of a tokenizer besides its vocabulary; goes to worker processes."""

    file: Path
    template: Template
    eos_text: str
    special: Mapping[str, list[int]]  # ids behind BOS, EOS and AUTO_BOS
    ending: tuple[int, ...]  # ids of the template's suffix
    exact: bool

    @property
    def name(self) -> str:
        return str(self.file) if self.exact else f"{self.file}, chat template assumed"


def counter_for(model: ModelFacts) -> Counter:
    """The best counter for a model.

    Returns:
        An exact one when tokenizer.json is at hand and the template is known; one that counts the text exactly and
        assumes a ChatML frame when only the template is unknown; else the assumed one.

    Raises:
        InputError: tokenizer.json is there and cannot be read.
    """
    file = tokenizer_file(model)
    if file is None:
        return assumed_counter(model)
    tokenizer = _load(file)
    return Counted(_spec(file, tokenizer, model), tokenizer=tokenizer)


def tokenizer_file(model: ModelFacts) -> Path | None:
    """The model's tokenizer.json; None where it is not at hand."""
    file = Path(model.tokenizer_path) / "tokenizer.json" if model.tokenizer_path else None
    return file if file is not None and file.is_file() else None


def prepare(file: Path, model: ModelFacts, cache_dir: Path) -> Spec:
    """Reads a tokenizer once for all that will count with it, and proves, or not, that tiktoken may do it (seconds).

    Raises:
        InputError: tokenizer.json cannot be read.
    """
    tokenizer = _load(file)
    quick_for(file, lambda: tokenizer, cache_dir)
    return _spec(file, tokenizer, model)


def assumed_counter(model: ModelFacts) -> Assumed:
    """The counter of a model whose tokenizer is not at hand."""
    return Assumed(template_of(model))


def template_of(model: ModelFacts) -> Template:
    """The model's chat template; ChatML where it is not known."""
    return dated(TEMPLATES.get(model.swift_template or "") or TEMPLATES["chatml"])


def counter_of(spec: Spec, cache_dir: Path | None) -> Counter:
    """The counter behind a spec, for large data; it loads what it counts with when it counts."""
    return Counted(spec, quick=lambda: quick_for(spec.file, lambda: _load(spec.file), cache_dir))


def _spec(file: Path, tokenizer: Tokenizer, model: ModelFacts) -> Spec:
    known = model.swift_template in TEMPLATES
    template = template_of(model)
    eos_text, special = _markers(file, tokenizer)
    ending: list[int] = []
    for text in template.suffix:
        ending += special[EOS] if text == EOS else tokenizer.encode(text, add_special_tokens=False).ids
    return Spec(
        file=file,
        template=template,
        eos_text=eos_text,
        special=special,
        ending=tuple(ending),
        exact=known and not (template.auto_bos and _closes(tokenizer)),
    )


def _closes(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer itself ends a text with a marker, which ChatML-like templates then use instead."""
    return bool(tokenizer.encode("a").ids[-1:] != tokenizer.encode("a", add_special_tokens=False).ids[-1:])


class Assumed:
    """No tokenizer at hand: bytes."""

    name = "assumed"
    exact = False
    eos_text = ""

    def __init__(self, template: Template) -> None:
        self.template = template

    def count(self, rows: Sequence[tuple[Piece, ...]]) -> list[Count]:
        return [self._count(pieces) for pieces in rows]

    def _count(self, pieces: tuple[Piece, ...]) -> Count:
        sizes = [(1 if piece.text in MARKERS else len(piece.text.encode()), piece.weight > 0) for piece in pieces]
        total = sum(size for size, _ in sizes)
        learned = sum(size for size, supervised in sizes if supervised)
        return Count(
            tokens=-(-total // BYTES_PER_TOKEN),
            prompt=0,
            planned=_widened(total),
            bound=total,
            supervised=-(-learned // BYTES_PER_TOKEN),
            supervised_planned=_widened(learned),
        )


def _widened(size_bytes: int) -> int:
    return min(size_bytes, math.ceil(size_bytes / BYTES_PER_TOKEN * WIDENED))


class Counted:
    """The model's tokenizer, through the ``tokenizers`` library (transformers' AutoTokenizer imports torch)."""

    def __init__(
        self,
        spec: Spec,
        *,
        quick: Callable[[], Quick | None] | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.spec = spec
        self.template = spec.template
        self.eos_text = spec.eos_text
        self.exact = spec.exact
        self.name = spec.name
        self._quick_loader = quick
        self._quick: Quick | None = None
        self._tokenizer = tokenizer

    def count(self, rows: Sequence[tuple[Piece, ...]]) -> list[Count]:
        texts = [piece.text for pieces in rows for piece in pieces if piece.text not in MARKERS]
        ids = iter(self._ids(texts))
        counts = []
        for pieces in rows:
            runs = [
                (self.spec.special[piece.text] if piece.text in MARKERS else next(ids), piece.weight > 0)
                for piece in pieces
            ]
            total = sum(len(run) for run, _ in runs)
            learned = _supervised(runs, list(self.spec.ending))
            prompt = sum(len(run) for run, _ in takewhile(lambda run: not run[1], runs))
            counts.append(
                Count(
                    tokens=total,
                    prompt=prompt,
                    planned=total,
                    bound=total,
                    supervised=learned,
                    supervised_planned=learned,
                )
            )
        return counts

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if self._quick_loader is not None:
            self._quick, self._quick_loader = self._quick_loader(), None
        if self._quick is None:
            return self._slow_ids(texts)
        quick = self._quick
        found = [quick.ids(text) if quick.knows(text) else None for text in texts]
        others = iter(self._slow_ids([text for text, ids in zip(texts, found, strict=True) if ids is None]))
        return [next(others) if ids is None else ids for ids in found]

    def _slow_ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        tokenizer = self._tokenizer = self._tokenizer or _load(self.spec.file)
        encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]


def _supervised(runs: list[tuple[list[int], bool]], ending: list[int]) -> int:
    """Labelled tokens: the answers, and the end marker after each even where the engine wrote it unlabelled.

    Source: ms-swift 4.6 swift/template/base.py ``_add_dynamic_eos``; the first token of a row is never a label.
    """
    merged: list[tuple[list[int], bool]] = []
    for run, supervised in runs:
        if merged and merged[-1][1] == supervised:
            merged[-1] = (merged[-1][0] + run, supervised)
        elif run:
            merged.append((run, supervised))
    total = sum(len(run) for run, supervised in merged if supervised)
    for (_, before), (run, supervised) in pairwise(merged):
        if before and not supervised and ending and run[: len(ending)] == ending:
            total += len(ending)
    return total - 1 if merged and merged[0][1] else total


def _load(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(
            f"tokenizer.json cannot be read: {str(error).partition(chr(10))[0]}",
            where=str(file),
            hints=("copy tokenizer.json of the base model into this folder",),
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _markers(file: Path, tokenizer: Tokenizer) -> tuple[str, dict[str, list[int]]]:
    """The end marker as text, and the ids behind BOS, EOS and AUTO_BOS."""
    try:
        config = json.loads((file.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    names = {key: _content(config.get(key)) if isinstance(config, dict) else "" for key in ("bos_token", "eos_token")}
    ids = {key: tokenizer.token_to_id(name) for key, name in names.items()}
    added = tokenizer.encode("a").ids
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    start = added[: added.index(plain[0])] if plain and plain[0] in added else []
    special = {
        BOS: [ids["bos_token"] or 0],
        EOS: [ids["eos_token"] or 0],
        AUTO_BOS: start,
    }
    return names["eos_token"], special


def _content(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
