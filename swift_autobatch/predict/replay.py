"""Replays a traced stream through the allocator model: reserved memory, and the least pool that the run survives in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swift_autobatch.predict.allocator import Allocator, Block, rounded
from swift_autobatch.predict.footprints import Point
from swift_autobatch.records import Polynomial, StorageKind, Stream, bytes_at

_STEP_BYTES = 64 << 20  # how finely the least pool is sought: below what one card differs from another
_PROBES = 2  # pools between the least one found and the roomy one that are tried as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A stream cut into what happens once and the step that repeats; storages stand for themselves in both."""

    slots: tuple[int, ...]  # per storage: index into ``parts``
    parts: tuple[tuple[Polynomial, StorageKind], ...]  # unique
    start: tuple[int, ...]  # events of loading and the first step
    step: tuple[int, ...]  # events of a steady step
    updates: tuple[int, int]  # how many events of ``start`` and of ``step`` come before the optimizer's update
    heirs: tuple[tuple[int, int], ...]  # (storage that a step frees, the one it leaves for the next step to free)
    strays: tuple[int, ...]  # what a step leaves and nobody frees


def script(stream: Stream) -> Script:
    """Cuts a stream at the marks of its phases."""
    parts: dict[tuple[int, StorageKind], int] = {}
    slots = tuple([parts.setdefault(part, len(parts)) for part in stream.storages])
    first, last = _steady(stream)
    step = stream.events[first:last]
    heirs, strays = _heirs(stream, step)
    return Script(
        slots=slots,
        parts=tuple((stream.sizes[size], kind) for size, kind in parts),
        start=tuple(stream.events[:first]),
        step=tuple(step),
        updates=(_update(stream, 0, first), _update(stream, first, last) - first),
        heirs=heirs,
        strays=strays,
    )


def _steady(stream: Stream) -> tuple[int, int]:
    """First and last event of the steady step; both the end where there is none."""
    phases = [phase for _, phase, _ in stream.marks]
    end = len(stream.events)
    if "steady" not in phases:
        return end, end
    begins = phases.index("steady")
    after = (index for index, phase, _ in stream.marks[begins:] if phase != "steady")
    return stream.marks[begins][0], next(after, end)


def _update(stream: Stream, begin: int, end: int) -> int:
    """The event at which the optimizer's update between two events begins; the last one where none is marked."""
    marked = (index for index, _, place in stream.marks if place == "optimizer" and begin <= index < end)
    return next(marked, end)


def _heirs(stream: Stream, step: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Pairs what a step frees of the one before with what it leaves for the next, by kind and size."""
    born = {event for event in step if event >= 0}
    freed = [~event for event in step if event < 0]
    waiting: dict[tuple[int, StorageKind], list[int]] = {}
    for storage in sorted(born.difference(freed), reverse=True):
        waiting.setdefault(stream.storages[storage], []).append(storage)
    pairs = []
    for storage in freed:
        heirs = waiting.get(stream.storages[storage])
        if storage not in born and heirs:
            pairs.append((storage, heirs.pop()))
    return tuple(pairs), tuple(storage for left in waiting.values() for storage in left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job to replay.

    Args:
        script: what one step allocates.
        points: the micro batch of every step, first step first; at least one.
        shares: what a device holds of a kind of storage over what the stream holds (sharding, offload); 1 where
            nothing is said. 0 takes the kind away.
        beside: bytes of blocks that stay for the whole run beside the stream: buckets, masters, workspaces.
        gathered: bytes of blocks that every step holds until its update: sharded weights made whole.
        updates: bytes of blocks that the optimizer's update takes beside the stream, all of one moment together, moment
            after moment: what sharding reduces, casts and gathers there.
    """

    script: Script
    points: tuple[Point, ...]
    shares: Mapping[StorageKind, float] = field(default_factory=dict)
    beside: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()
    updates: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Peaks of one replay in bytes; ``survived`` is False where the pool was too small, and the peaks end there."""

    allocated_bytes: int
    reserved_bytes: int
    survived: bool
    retries: int  # times that cached segments were given back to go on


def replay(run: Run, *, limit: int | None = None, expandable: bool = False) -> Outcome:
    """Runs every step of a job through the allocator.

    Args:
        limit: bytes of the pool; None: as much as it asks for.
        expandable: with ``expandable_segments:True``.
    """
    allocator = Allocator(limit=limit, expandable=expandable)
    survived = _steps(run, allocator)
    return Outcome(
        allocated_bytes=allocator.allocated_peak,
        reserved_bytes=allocator.reserved_peak,
        survived=survived,
        retries=allocator.retries,
    )


def needs(run: Run, roomy: Outcome, *, expandable: bool = False) -> int:
    """The least pool, in bytes, that the run survives in, cached segments given back where it helps.

    A larger pool is not always enough where a smaller one is (blocks fall differently), so pools above the one
    found are tried too: the answer is the least tried pool above which every tried one is enough.

    Args:
        roomy: the replay of this run, or of one with the same peaks, without a limit.
    """
    found = _bisect(run, roomy.allocated_bytes - 1, roomy.reserved_bytes, expandable)
    for part in range(_PROBES, 0, -1):
        pool = found + (roomy.reserved_bytes - found) * part // (_PROBES + 1)
        if pool - found > _STEP_BYTES and not replay(run, limit=pool, expandable=expandable).survived:
            return _bisect(run, pool, roomy.reserved_bytes, expandable)
    return found


def _bisect(run: Run, short: int, enough: int, expandable: bool) -> int:
    """The least enough pool between one that is too small and one that is enough."""
    while enough - short > _STEP_BYTES:
        middle = (short + enough) // 2
        if replay(run, limit=middle, expandable=expandable).survived:
            enough = middle
        else:
            short = middle
    return enough


# ---------------------------------------------------------------------------------------------------- one run


def _steps(run: Run, allocator: Allocator) -> bool:
    """Whether every step of the job got what it asked for."""
    if _take(run.beside, allocator) is None:
        return False
    alive: list[Block | None] = [None] * len(run.script.slots)
    if not _section(run, 0, run.points[0], alive, allocator):
        return False
    return all(_again(run, point, alive, allocator) for point in run.points[1:])


def _again(run: Run, point: Point, alive: list[Block | None], allocator: Allocator) -> bool:
    if not _section(run, 1, point, alive, allocator):
        return False
    for freed, heir in run.script.heirs:
        alive[freed], alive[heir] = alive[heir], None
    for stray in run.script.strays:
        block, alive[stray] = alive[stray], None
        if block is not None:
            allocator.release(block)
    return True


def _section(run: Run, which: int, point: Point, alive: list[Block | None], allocator: Allocator) -> bool:
    """Loading and the first step (0), or one step more (1), each with what its update takes."""
    events, update = (run.script.start, run.script.step)[which], run.script.updates[which]
    sizes = _sizes(run, point)
    whole = _take(run.gathered, allocator)
    if whole is None or not _play(events[:update], sizes, alive, allocator):
        return False
    _give_back(whole, allocator)
    for moment in run.updates:
        blocks = _take(moment, allocator)
        if blocks is None:
            return False
        _give_back(blocks, allocator)
    return _play(events[update:], sizes, alive, allocator)


def _take(sizes: Sequence[int], allocator: Allocator) -> list[Block] | None:
    """Blocks of these sizes; None where one of them is not to be had."""
    taken = []
    for size in sizes:
        block = allocator.allocate(rounded(size)) if size else None
        if size and block is None:
            return None
        if block is not None:
            taken.append(block)
    return taken


def _give_back(blocks: Sequence[Block], allocator: Allocator) -> None:
    for block in blocks:
        allocator.release(block)


def _sizes(run: Run, point: Point) -> list[int]:
    """Bytes that each storage takes at one point, rounded; 0 where a device holds none of it."""
    sizes = []
    for polynomial, kind in run.script.parts:
        size = bytes_at(polynomial, b=point.b, s=point.s, k=point.k) * run.shares.get(kind, 1)
        sizes.append(rounded(int(size)) if size >= 1 else 0)
    return [sizes[slot] for slot in run.script.slots]


def _play(events: Sequence[int], sizes: Sequence[int], alive: list[Block | None], allocator: Allocator) -> bool:
    """Allocates and frees in order; False at the first allocation that fails."""
    allocate, release = allocator.allocate, allocator.release
    for event in events:
        if event >= 0:
            size = sizes[event]
            if size:
                block = allocate(size)
                if block is None:
                    return False
                alive[event] = block
        else:
            block = alive[~event]
            if block is not None:
                alive[~event] = None
                release(block)
    return True
