"""Footprints of one model as one small file: written by the tracer, shipped in data/footprints/, read by the plan.

A file is an LZMA stream of: the length of a header (4 bytes, little-endian), the header (JSON: one object a variant),
and every variant's events as tokens. Layers repeat, and the tokens are made so that their repetition shows:

- an allocation is the pair (size, kind) that it asks for; storages are numbered in order, so its number is implied;
- a free counts from the newest storage alive, or says that it takes the same place, counted from the oldest, as the
  free before it (``AGAIN``: gradients dropped first to last) or the one below (``BELOW``: last to first).
"""

from __future__ import annotations

import hashlib
import json
import lzma
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from typing import Any, TypeVar, overload

from swift_autobatch.errors import InputError
from swift_autobatch.records import STORAGE_KINDS, Footprint, FootprintKey, Instant, ModelFacts, Stream

T = TypeVar("T")
AGAIN, BELOW = 0, 1  # tokens; then 2 + 2 x pair for an allocation, 3 + 2 x distance for a free
_FORMAT = 1
# Tokens are 16-bit or 32-bit numbers: LZMA is told their alignment.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 2, "lp": 1, "pb": 1}]


def dump(footprints: Iterable[Footprint]) -> bytes:
    """Every variant of one model, compressed; a variant given twice is written once, as given last."""
    variants, bodies = [], []
    for footprint in {footprint.key: footprint for footprint in footprints}.values():
        header, tokens = _written(footprint)
        variants.append(header)
        bodies.append(tokens.tobytes())
    head = json.dumps({"format": _FORMAT, "variants": variants}, separators=(",", ":")).encode()
    raw = b"".join((len(head).to_bytes(4, "little"), head, *bodies))
    return lzma.compress(raw, format=lzma.FORMAT_XZ, filters=_FILTERS)


def load(data: bytes, where: str) -> Mapping[FootprintKey, Footprint]:
    """The variants of a file by their key; each is decoded when it is first asked for.

    Args:
        where: the file, for errors.

    Raises:
        InputError: the file is damaged, or of another version of this program.
    """
    try:
        raw = lzma.decompress(data)
        size = int.from_bytes(raw[:4], "little")
        header = json.loads(raw[4 : 4 + size])
        if header["format"] != _FORMAT:
            raise ValueError(f"format {header['format']}, not {_FORMAT}")
        return _Shelf(header["variants"], raw[4 + size :])
    except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"not a file of footprints: {error}", where=where, hints=("delete it: it is made anew",)
        ) from error


def model_digest(model: ModelFacts) -> str:
    """What two models of the same shape share, however they are called: the name of their file of footprints."""
    shape = [getattr(model, name) for name in _SHAPE]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]


_SHAPE = (
    *("architecture", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "tied"),
    *("params_total", "params_active", "params_vision", "linears", "experts", "experts_per_token", "quantised"),
)


class _Shelf(Mapping[FootprintKey, Footprint]):
    """Variants of one file, decoded on demand."""

    def __init__(self, variants: Sequence[Mapping[str, Any]], body: bytes) -> None:
        self._entries: dict[FootprintKey, tuple[Mapping[str, Any], int]] = {}
        self._read: dict[FootprintKey, Footprint] = {}
        self._body = body
        start = 0
        for variant in variants:
            self._entries[FootprintKey(**variant["key"])] = (variant, start)
            start += variant["tokens"] * variant["width"]
        if start != len(body):
            raise ValueError(f"{len(body)} bytes of events instead of {start}")

    def __getitem__(self, key: FootprintKey) -> Footprint:
        if key not in self._read:
            variant, start = self._entries[key]
            tokens = array("H" if variant["width"] == 2 else "I")
            tokens.frombytes(self._body[start : start + variant["tokens"] * variant["width"]])
            self._read[key] = _read(key, variant, tokens)
        return self._read[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[FootprintKey]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _Later(Sequence[T]):
    """A part of a stream that is decoded when it is first looked at: most plans need the instants alone."""

    def __init__(self, decode: Callable[[], Sequence[T]]) -> None:
        self._decode = decode

    @cached_property
    def _items(self) -> tuple[T, ...]:
        return tuple(self._decode())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (_Later, tuple)) and self._items == tuple(other)

    def __hash__(self) -> int:
        return hash(self._items)


def _written(footprint: Footprint) -> tuple[dict[str, Any], array[int]]:
    stream = footprint.stream
    pairs: dict[tuple[int, str], int] = {}
    slots = [pairs.setdefault(storage, len(pairs)) for storage in stream.storages]
    tokens = list(_tokens(stream.events, slots))
    wide = max(tokens, default=0) > 0xFFFF
    header = {
        "key": asdict(footprint.key),
        "weights_bytes": footprint.weights_bytes,
        "adapters_bytes": footprint.adapters_bytes,
        "instants": [
            [one.phase, one.place, one.gradients_bytes, one.optimizer_bytes, one.passing] for one in footprint.instants
        ],
        "sizes": stream.sizes,
        "pairs": [(size, STORAGE_KINDS.index(kind)) for size, kind in pairs],
        "marks": stream.marks,
        "notes": stream.notes,
        "versions": dict(stream.versions),
        "tokens": len(tokens),
        "width": 4 if wide else 2,
    }
    return header, array("I" if wide else "H", tokens)


def _tokens(events: Sequence[int], slots: Sequence[int]) -> Iterator[int]:
    alive: list[int] = []
    last = 0
    for event in events:
        if event >= 0:
            alive.append(event)
            yield 2 + 2 * slots[event]
            continue
        place = _place(alive, ~event)
        if place == last:
            yield AGAIN
        elif place == last - 1:
            yield BELOW
        else:
            yield 3 + 2 * (len(alive) - 1 - place)
        last = place
        del alive[place]


def _place(alive: Sequence[int], storage: int) -> int:
    """Where a storage stands among those alive: most are near the end."""
    for place in range(len(alive) - 1, -1, -1):
        if alive[place] == storage:
            return place
    raise ValueError(f"storage {storage} is freed and not alive")


def _read(key: FootprintKey, variant: Mapping[str, Any], tokens: Sequence[int]) -> Footprint:
    pairs = [(size, STORAGE_KINDS[kind]) for size, kind in variant["pairs"]]
    decoded = cache(lambda: _events(tokens))
    stream = Stream(
        sizes=tuple(tuple(size) for size in variant["sizes"]),
        storages=_Later(lambda: [pairs[slot] for slot in decoded()[1]]),
        events=_Later(lambda: decoded()[0]),
        marks=tuple((index, phase, place) for index, phase, place in variant["marks"]),
        notes=tuple(variant["notes"]),
        versions=variant["versions"],
    )
    return Footprint(
        key=key,
        weights_bytes=variant["weights_bytes"],
        adapters_bytes=variant["adapters_bytes"],
        instants=tuple(
            Instant(
                phase=phase,
                place=place,
                gradients_bytes=gradients,
                optimizer_bytes=optimizer,
                passing=tuple(passing),
            )
            for phase, place, gradients, optimizer, passing in variant["instants"]
        ),
        stream=stream,
    )


def _events(tokens: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """The events, and each storage's pair."""
    alive: list[int] = []
    events: list[int] = []
    slots: list[int] = []
    last = 0
    for token in tokens:
        if token > BELOW and not token & 1:
            alive.append(len(slots))
            events.append(len(slots))
            slots.append((token - 2) >> 1)
            continue
        if token > BELOW:
            last = len(alive) - 1 - ((token - 3) >> 1)
        elif token == BELOW:
            last -= 1
        events.append(~alive.pop(last))
    return tuple(events), slots
