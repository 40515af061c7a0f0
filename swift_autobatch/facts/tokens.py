"""Counts the tokens of rendered conversations, with the model's own tokenizer where its file is at hand.

Without one, UTF-8 bytes bound the length from above (no byte-level or byte-fallback vocabulary makes two tokens of
one byte) and bytes / 4 estimates it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from swift_autobatch.errors import InputError
from swift_autobatch.facts.conversation import Conversation, RowError
from swift_autobatch.facts.quick import Quick
from swift_autobatch.facts.template_table import AUTO_BOS, BOS, EOS, MARKERS, TEMPLATES, Template
from swift_autobatch.facts.templates import Piece, dated, render
from swift_autobatch.records import ModelFacts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ASSUMED = "assumed"  # the name of a counter without a tokenizer
LEAST_BYTES = 8  # text makes at least one token of as many bytes, taken together: prose takes 4.3-5.5 bytes a token
BYTES_PER_TOKEN = 4  # estimate for mixed text in a 100 k vocabulary (design: "bytes / 4")
# The longest row is planned for at this many times its estimate: prose takes a token every 4.3-5.5 bytes, code one
# every 3. Its bytes would be a bound (4 times the estimate) that text never comes near; max_length keeps to the bound.
WIDENED = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Tokens of one row: the best estimate, what to plan for, and an upper bound; all equal when the count is exact.

    ``prompt`` is how many tokens stand before the first label, 0 when they were not counted; ``prompt_least`` how many
    stand there at least.
    """

    tokens: int
    prompt: int
    planned: int
    bound: int
    supervised: int
    supervised_planned: int
    prompt_least: int = 0


class Counter(Protocol):
    """Counts rows in two steps: ``framed`` writes one out as it will be tokenized, ``count`` takes many of these."""

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def covers(self, talk: Conversation) -> bool:
        """Whether the row's tokens are counted, not estimated, where the counter is exact."""
        ...

    def framed(self, talk: Conversation, system: str | None) -> Any:
        """Raises RowError when the engine drops the row."""
        ...

    def count(self, rows: Sequence[Any]) -> Sequence[Count | RowError]:
        """The tokens of framed rows, or why the engine drops one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All that counting needs to know of a tokenizer besides its vocabulary; goes to worker processes."""

    file: Path  # in the form of tokenizer.json, as the engine loads it
    name: str
    template: Template
    eos_text: str
    special: Mapping[str, list[int]]  # ids behind BOS, EOS and AUTO_BOS
    ending: tuple[int, ...]  # ids of the template's suffix
    exact: bool


def tokenizer_file(model: ModelFacts) -> Path | None:
    """The model's tokenizer.json; None where it is not at hand."""
    file = Path(model.tokenizer_path) / "tokenizer.json" if model.tokenizer_path else None
    return file if file is not None and file.is_file() else None


def template_of(model: ModelFacts) -> Template:
    """The model's chat template; ChatML where it is not known."""
    return dated(TEMPLATES.get(model.swift_template or "") or TEMPLATES["chatml"])


def spec_of(file: Path, loaded: Path, tokenizer: Tokenizer, model: ModelFacts, *, same: bool) -> Spec:
    """What counting needs to know.

    Args:
        file: the model's tokenizer.json, beside which its other files lie.
        loaded: the tokenizer as the engine loads it: ``file``, or a copy that differs.
        tokenizer: the one in ``loaded``.
        model: its chat template; where that is not known, the count is not exact.
        same: ``loaded`` encodes as the engine does, for sure.
    """
    known = model.swift_template in TEMPLATES
    template = template_of(model)
    eos_text, special = _markers(file, tokenizer)
    ending: list[int] = []
    for text in template.suffix:
        ending += special[EOS] if text == EOS else tokenizer.encode(text, add_special_tokens=False).ids
    return Spec(
        file=loaded,
        name=str(file) if known else f"{file}, chat template assumed",
        template=template,
        eos_text=eos_text,
        special=special,
        ending=tuple(ending),
        exact=same and known and not (template.auto_bos and _closes(tokenizer)),
    )


def _closes(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer itself ends a text with a marker, which ChatML-like templates then use instead."""
    return bool(tokenizer.encode("a").ids[-1:] != tokenizer.encode("a", add_special_tokens=False).ids[-1:])


class Assumed:
    """No tokenizer at hand: bytes."""

    name = ASSUMED
    exact = False

    def __init__(self, template: Template) -> None:
        self._template = template

    def covers(self, talk: Conversation) -> bool:
        return talk.plain

    def framed(self, talk: Conversation, system: str | None) -> tuple[Piece, ...]:
        return render(talk, self._template, system)

    def count(self, rows: Sequence[tuple[Piece, ...]]) -> list[Count]:
        return [self._count(pieces) for pieces in rows]

    def _count(self, pieces: tuple[Piece, ...]) -> Count:
        sizes = [(1 if piece.text in MARKERS else len(piece.text.encode()), piece.weight > 0) for piece in pieces]
        total = sum(size for size, _ in sizes)
        learned = sum(size for size, supervised in sizes if supervised)
        before = sum(size for size, _ in takewhile(lambda piece: not piece[1], sizes))
        return Count(
            tokens=-(-total // BYTES_PER_TOKEN),
            prompt=0,
            planned=_widened(total),
            bound=total,
            supervised=-(-learned // BYTES_PER_TOKEN),
            supervised_planned=_widened(learned),
            prompt_least=before // LEAST_BYTES,
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
        self.exact = spec.exact
        self.name = spec.name
        self._quick_loader = quick
        self._quick: Quick | None = None
        self._tokenizer = tokenizer

    def covers(self, talk: Conversation) -> bool:
        return talk.plain

    def framed(self, talk: Conversation, system: str | None) -> tuple[Piece, ...]:
        return render(talk, self.spec.template, system, self.spec.eos_text)

    def count(self, rows: Sequence[tuple[Piece, ...]]) -> list[Count]:
        texts = [piece.text for pieces in rows for piece in pieces if piece.text not in MARKERS]
        ids = iter(self._ids(texts))
        return [self._count(pieces, ids) for pieces in rows]

    def _count(self, pieces: tuple[Piece, ...], ids: Iterator[list[int]]) -> Count:
        special = self.spec.special
        runs = [(special[p.text] if p.text in MARKERS else next(ids), p.weight > 0) for p in pieces]
        total = sum(len(run) for run, _ in runs)
        learned = _supervised(runs, list(self.spec.ending))
        prompt = sum(len(run) for run, _ in takewhile(lambda run: not run[1], runs))
        return Count(
            tokens=total,
            prompt=prompt,
            prompt_least=prompt,
            planned=total,
            bound=total,
            supervised=learned,
            supervised_planned=learned,
        )

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
        tokenizer = self._tokenizer = self._tokenizer or load(self.spec.file)
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


def load(file: Path) -> Tokenizer:
    """A tokenizer.json. Raises InputError where it cannot be read."""
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
