"""The allocator model: cases worked by hand from PyTorch's rules, and properties of any sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.predict.allocator import Allocator, Block, rounded

KIB, MIB = 1 << 10, 1 << 20


def take(allocator: Allocator, size: int) -> Block:
    block = allocator.allocate(rounded(size))
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),  # the largest of the small pool
        (MIB + 1, 20 * MIB),
        (10 * MIB - 1, 20 * MIB),  # rounds to 10 MiB, which asks for itself
        (10 * MIB + 1, 12 * MIB),
        (31 * MIB, 32 * MIB),
    ],
)
def test_segments_by_size(size: int, segment: int) -> None:
    allocator = Allocator()
    take(allocator, size)
    assert allocator.reserved == (10 * MIB if size == 10 * MIB - 1 else segment)


def test_small_blocks_share_a_segment_until_it_is_full() -> None:
    allocator = Allocator()
    for _ in range(4096):
        take(allocator, 1)
    assert (allocator.allocated, allocator.reserved) == (2 * MIB, 2 * MIB)
    take(allocator, 1)
    assert allocator.reserved == 4 * MIB


def test_a_remainder_of_up_to_one_mib_stays_with_a_large_block() -> None:
    allocator = Allocator()
    take(allocator, 11 * MIB)  # segment of 12 MiB: 1 MiB is not more than 1 MiB
    assert allocator.allocated == 12 * MIB
    allocator = Allocator()
    take(allocator, 11 * MIB - 512)
    assert allocator.allocated == 11 * MIB - 512


def test_best_fit_takes_the_least_block_that_is_large_enough() -> None:
    allocator = Allocator()
    large, middle, small = (take(allocator, size * MIB) for size in (40, 30, 24))
    for block in (large, middle, small):
        allocator.release(block)
    assert take(allocator, 26 * MIB).address == middle.address


def test_blocks_of_different_size_leave_holes() -> None:
    """20 of 30 MiB taken again, then 30 asked for: a new segment, although 40 of 60 MiB are free."""
    allocator = Allocator()
    both = [take(allocator, 30 * MIB) for _ in range(2)]
    for block in both:
        allocator.release(block)
    for _ in range(2):
        take(allocator, 20 * MIB)
    take(allocator, 30 * MIB)
    assert (allocator.allocated, allocator.reserved) == (70 * MIB, 90 * MIB)


def test_neighbours_are_joined_again() -> None:
    allocator = Allocator()
    first, second, third = (take(allocator, 4 * MIB) for _ in range(3))
    for block in (first, third, second):
        allocator.release(block)
    assert take(allocator, 20 * MIB - 512).size == 20 * MIB
    assert allocator.reserved == 20 * MIB


def test_a_full_card_gives_back_whole_segments_and_tries_again() -> None:
    allocator = Allocator(limit=100 * MIB)
    blocks = [take(allocator, 30 * MIB) for _ in range(3)]
    for block in blocks[:2]:
        allocator.release(block)
    take(allocator, 60 * MIB)
    assert (allocator.reserved, allocator.reserved_peak, allocator.retries) == (90 * MIB, 90 * MIB, 1)


def test_a_split_segment_cannot_be_given_back() -> None:
    allocator = Allocator(limit=100 * MIB)
    whole = take(allocator, 60 * MIB)
    allocator.release(whole)
    take(allocator, 10 * MIB)
    assert allocator.allocate(60 * MIB) is None


def test_an_expandable_segment_grows_by_pages_and_reuses_what_fixed_ones_cannot() -> None:
    allocator = Allocator(expandable=True)
    both = [take(allocator, 30 * MIB) for _ in range(2)]
    assert allocator.reserved == 60 * MIB  # three pages of 20 MiB
    for block in both:
        allocator.release(block)
    for _ in range(2):
        take(allocator, 20 * MIB)
    take(allocator, 30 * MIB)
    assert (allocator.allocated, allocator.reserved) == (70 * MIB, 80 * MIB)


def test_pages_inside_a_free_block_are_given_back() -> None:
    allocator = Allocator(limit=120 * MIB, expandable=True)
    first, second, third = (take(allocator, 30 * MIB) for _ in range(3))
    assert allocator.reserved == 100 * MIB
    allocator.release(second)  # bytes 30 to 60 of the range: one whole page, 40 to 60
    assert take(allocator, 28 * MIB).address == second.address
    allocator.release(first)
    grown = take(allocator, 40 * MIB)  # page 0 to 20 is given back, the range grows behind the last block
    assert grown.address == third.address + third.size
    assert allocator.retries == 1
    assert allocator.reserved == 120 * MIB


def test_small_pool_of_an_expandable_segment_grows_by_two_mib() -> None:
    allocator = Allocator(expandable=True)
    take(allocator, 1)
    take(allocator, 2 * MIB)
    assert allocator.reserved == 2 * MIB + 20 * MIB


# -------------------------------------------------------------------------------------------------- properties

SIZES = st.one_of(st.integers(1, 2 * MIB), st.integers(MIB, 64 * MIB), st.sampled_from((MIB, 10 * MIB, 20 * MIB)))
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1 << 16)), max_size=120)


def played(allocator: Allocator, steps: list[tuple[bool, int, int]]) -> Iterator[list[Block]]:
    """Takes and gives back as the steps say; what is held, after each."""
    held: list[Block] = []
    for takes, size, choice in steps:
        if takes or not held:
            block = allocator.allocate(rounded(size))
            if block is not None:
                held.append(block)
        else:
            allocator.release(held.pop(choice % len(held)))
        yield held


def all_free(allocator: Allocator) -> list[Block]:
    return [block for pool in allocator.pools for _, _, block in pool.free]


@given(steps=STEPS, expandable=st.booleans(), limit=st.sampled_from((None, 100 * MIB, 400 * MIB)))
def test_no_byte_has_two_owners_and_none_is_lost(
    steps: list[tuple[bool, int, int]], expandable: bool, limit: int | None
) -> None:
    allocator = Allocator(limit=limit, expandable=expandable)
    for held in played(allocator, steps):
        free = all_free(allocator)
        ranges = sorted((block.address, block.address + block.size) for block in (*held, *free))
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
        assert allocator.allocated == sum(block.size for block in held)
        assert allocator.reserved == allocator.allocated + sum(block.size for block in free)
        assert allocator.reserved <= (limit or allocator.reserved)
        assert allocator.allocated_peak <= allocator.reserved_peak


@given(steps=STEPS, expandable=st.booleans())
def test_no_two_free_blocks_are_neighbours(steps: list[tuple[bool, int, int]], expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    for _ in played(allocator, steps):
        for block in all_free(allocator):
            for near in (block.before, block.after):
                assert near is None or not near.free or not near.mapped


@given(sizes=st.lists(SIZES, min_size=1, max_size=40), expandable=st.booleans(), random=st.randoms())
def test_frees_in_any_order_leave_the_same_state(sizes: list[int], expandable: bool, random: object) -> None:
    states = []
    for shuffles in (False, True):
        allocator = Allocator(expandable=expandable)
        blocks = [take(allocator, size) for size in sizes]
        if shuffles:
            random.shuffle(blocks)  # type: ignore[attr-defined]
        for block in blocks:
            allocator.release(block)
        states.append(
            (allocator.reserved, [[(size, address) for size, address, _ in pool.free] for pool in allocator.pools])
        )
    assert states[0] == states[1]


@given(steps=STEPS, expandable=st.booleans())
def test_everything_given_back_can_be_released_to_the_driver(
    steps: list[tuple[bool, int, int]], expandable: bool
) -> None:
    allocator = Allocator(limit=1 << 40, expandable=expandable)
    states = [list(held) for held in played(allocator, steps)]
    for block in states[-1] if states else ():
        allocator.release(block)
    assert allocator.allocate(1 << 41) is None  # too much: everything cached is given back first
    assert allocator.reserved == allocator.allocated == 0
