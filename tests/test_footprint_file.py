"""Footprints survive their file, whatever they hold; damaged files are refused with where they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.errors import InputError
from swift_autobatch.footprint_file import dump, load
from swift_autobatch.records import (
    MONOMIALS,
    STORAGE_KINDS,
    Footprint,
    FootprintKey,
    Instant,
    StorageKind,
    Stream,
)

KEY = FootprintKey(
    tuner="lora",
    quant="none",
    checkpointing=True,
    loss="hf_fp32_logits",
    attention="sdpa-flash",
    dtype="bfloat16",
    optimizer="fused-adamw",
    accumulates=True,
    lora_rank=8,
    dropout=True,
)
SIZE = st.tuples(*[st.integers(0, 1 << 40)] * len(MONOMIALS))


@st.composite
def footprints(draw: st.DrawFn, rank: int = 8) -> Footprint:
    sizes = tuple(draw(st.lists(SIZE, min_size=1, max_size=6, unique=True)))
    storages: list[tuple[int, StorageKind]] = []
    events: list[int] = []
    alive: list[int] = []
    for choice in draw(st.lists(st.integers(-40, 20), max_size=150)):
        if choice < 0 and alive:
            events.append(~alive.pop(choice % len(alive)))
        else:
            storages.append((abs(choice) % len(sizes), STORAGE_KINDS[abs(choice) % len(STORAGE_KINDS)]))
            alive.append(len(storages) - 1)
            events.append(alive[-1])
    return Footprint(
        key=replace(KEY, lora_rank=rank),
        weights_bytes=draw(st.integers(0, 1 << 40)),
        adapters_bytes=draw(st.integers(0, 1 << 40)),
        instants=(Instant(phase="steady", place="loss", gradients_bytes=1, optimizer_bytes=2, passing=sizes[0]),),
        stream=Stream(
            sizes=sizes,
            storages=tuple(storages),
            events=tuple(events),
            marks=((0, "load", "load"), (len(events), "steady", "forward")),
            notes=("nothing is known of this kernel",),
            versions={"torch": "2.13.0"},
        ),
    )


@given(first=footprints(rank=8), second=footprints(rank=16))
def test_what_is_read_is_what_was_written(first: Footprint, second: Footprint) -> None:
    shelf = load(dump((first, second)), "here")
    assert dict(shelf) == {first.key: first, second.key: second}


def test_more_pairs_than_two_bytes_count() -> None:
    sizes = tuple((size, 0, 0, 0, 0, 0, 0) for size in range(40_000))
    stream = Stream(
        sizes=sizes,
        storages=tuple((index, "passing") for index in range(len(sizes))),
        events=tuple(range(len(sizes))),
        marks=(),
    )
    footprint = Footprint(key=KEY, weights_bytes=0, adapters_bytes=0, instants=(), stream=stream)
    assert load(dump((footprint,)), "here")[KEY] == footprint


@pytest.mark.parametrize("change", [lambda data: data[:40], lambda data: b"", lambda data: data[:-9] + b"damaged!!"])
def test_a_damaged_file_is_named(change: object) -> None:
    footprint = Footprint(
        key=KEY,
        weights_bytes=0,
        adapters_bytes=0,
        instants=(),
        stream=Stream(sizes=(), storages=(), events=(), marks=()),
    )
    with pytest.raises(InputError) as caught:
        load(change(dump((footprint,))), "cache/model.xz")  # type: ignore[operator]
    assert caught.value.where == "cache/model.xz"
