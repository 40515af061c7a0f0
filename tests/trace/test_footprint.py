"""A stream's instants hold its peak at every size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.records import STORAGE_KINDS, Stream, bytes_at
from swift_autobatch.trace.instants import instants

CONSTANT = ("gradients", "optimizer")


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Random runs: storages are allocated in order, and freed at random later moments."""
    sizes = []
    storages = []
    for index in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(STORAGE_KINDS[2:]))
        factor = draw(st.integers(1, 1 << 20))
        term = 0 if kind in CONSTANT else draw(st.integers(0, 6))
        sizes.append(tuple(factor * (term == at) for at in range(7)))
        storages.append((index, kind))
    events: list[int] = []
    alive: list[int] = []
    for index in range(len(storages)):
        while alive and draw(st.booleans()):
            events.append(~alive.pop(draw(st.integers(0, len(alive) - 1))))
        events.append(index)
        alive.append(index)
    turn = draw(st.integers(0, len(events)))
    marks = ((0, "first_step", "forward"), (turn, "steady", "forward"))
    return Stream(sizes=tuple(sizes), storages=tuple(storages), events=tuple(events), marks=marks)


def replayed(stream: Stream, b: int, s: int, k: int) -> int:
    """The peak, storage by storage."""
    alive = peak = 0
    for event in stream.events:
        size = stream.sizes[stream.storages[max(event, ~event)][0]]
        alive += bytes_at(size, b=b, s=s, k=k) * (1 if event >= 0 else -1)
        peak = max(peak, alive)
    return peak


@given(streams(), st.integers(1, 16), st.integers(1, 8192), st.floats(0, 1))
def test_no_instant_is_lost(stream: Stream, b: int, s: int, kept: float) -> None:
    k = max(1, round(b * s * kept))
    best = max(
        item.gradients_bytes + item.optimizer_bytes + bytes_at(item.passing, b=b, s=s, k=k) for item in instants(stream)
    )
    peak = replayed(stream, b, s, k)
    assert peak <= best
    assert best - peak <= len(stream.sizes) * max(peak, 1) / 256


def test_what_another_instant_exceeds_is_dropped() -> None:
    """Two hills of the same kind: the lower one can never be the peak."""
    low, high = (0, 0, 0, 10_000, 0, 0, 0), (0, 0, 0, 20_000, 0, 0, 0)
    stream = Stream(
        sizes=(low, high),
        storages=((0, "passing"), (1, "passing")),
        events=(0, ~0, 1, ~1),
        marks=((0, "steady", "forward"), (2, "steady", "backward")),
    )
    assert [(one.place, one.passing) for one in instants(stream)] == [("backward", high)]
