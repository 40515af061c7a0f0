"""Sizes become polynomials exactly or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.records import MONOMIALS, bytes_at
from swift_autobatch.trace.fit import Fit, values

POINTS = ((101, 1103, 101 * 499), (113, 1499, 113 * 701), (127, 1801, 127 * 853), (139, 1999, 139 * 977))


def sizes(polynomial: tuple[int, ...], points: int) -> tuple[int, ...]:
    return tuple(bytes_at(polynomial, b=b, s=s, k=k) for b, s, k in POINTS[:points])


def fit(points: int) -> Fit:
    return Fit([values(b, s, k) for b, s, k in POINTS[:points]])


@given(st.integers(0, len(MONOMIALS) - 1), st.integers(1, 1 << 33))
def test_one_term_is_found_from_two_points(term: int, factor: int) -> None:
    wanted = tuple(factor if index == term else 0 for index in range(len(MONOMIALS)))
    assert fit(2).polynomial(sizes(wanted, 2)) == wanted


def test_padded_labels_are_two_terms() -> None:
    wanted = (0, 8, 0, 0, 0, 0, 8)  # 8 bytes a kept label and one more a row
    assert fit(2).polynomial(sizes(wanted, 2)) == wanted


@given(st.lists(st.integers(0, 6), min_size=2, max_size=3, unique=True), st.integers(1, 4096), st.integers(1, 64))
def test_sums_are_found_from_four_points(terms: list[int], factor: int, other: int) -> None:
    wanted = tuple((factor if index == terms[0] else other) if index in terms else 0 for index in range(7))
    assert fit(4).polynomial(sizes(wanted, 4)) == wanted


def test_a_large_sum_is_not_believed_from_two_points() -> None:
    assert fit(2).polynomial(sizes((0, 0, 0, 4096, 0, 0, 4096), 2)) is None


@pytest.mark.parametrize("block", [64, 128])
def test_what_is_rounded_up_has_no_polynomial_and_is_bounded(block: int) -> None:
    rounded = tuple(-(-s // block) * block * 4096 for _, s, _ in POINTS)
    assert fit(4).polynomial(rounded) is None
    near = fit(4).nearest(rounded)
    for size, (b, s, k) in zip(rounded, POINTS, strict=True):
        assert size <= bytes_at(near, b=b, s=s, k=k) <= 1.1 * size
