"""Sizes measured at a few points -> polynomials in b, s and k, exact or said not to be."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from swift_autobatch.records import MONOMIALS, Polynomial

Sizes = tuple[int, ...]  # bytes of one storage at each point
_MOST_TERMS = 3
_SURE_BYTES = 16 << 20  # larger ones of several terms are believed only where a further point agrees


def values(b: int, s: int, k: int) -> Polynomial:
    """What the monomials are at a point."""
    return (1, b, s, b * s, s * s, b * s * s, k)


class Fit:
    """Finds the polynomial of each distinct row of sizes once.

    Args:
        points: the monomials' values (:func:`values`) at each point, in the order of the sizes. b, s and k / b are
            distinct primes at every point, so that a size of one term divides by its monomial and by no other.
    """

    def __init__(self, points: Sequence[Polynomial]) -> None:
        self._points = tuple(points)
        self._found: dict[Sizes, Polynomial | None] = {}

    def polynomial(self, sizes: Sizes) -> Polynomial | None:
        """The polynomial, None where none of up to three terms with whole coefficients passes through all points."""
        if sizes not in self._found:
            self._found[sizes] = self._search(sizes)
        return self._found[sizes]

    def nearest(self, sizes: Sizes) -> Polynomial:
        """One term that is nowhere below the sizes and exceeds them least."""
        scaled = [
            (max(-(-size // point[term]) for size, point in zip(sizes, self._points, strict=True)), term)
            for term in range(len(MONOMIALS))
        ]

        def excess(choice: tuple[int, int]) -> int:
            factor, term = choice
            return sum(factor * point[term] for point in self._points)

        factor, term = min(scaled, key=excess)
        return _poly({term: factor})

    def _search(self, sizes: Sizes) -> Polynomial | None:
        for count in range(1, _MOST_TERMS + 1):
            unsure = count > 1 and count >= len(sizes) and max(sizes) > _SURE_BYTES
            if count > len(sizes) or unsure:
                return None
            choices = [self._solve(sizes, terms) for terms in combinations(range(len(MONOMIALS)), count)]
            found = [choice for choice in choices if choice is not None]
            if found:  # sums are the rule, differences (a shift by one) the exception
                return min(found, key=lambda choice: (min(choice) < 0, sum(map(abs, choice))))
        return None

    def _solve(self, sizes: Sizes, terms: tuple[int, ...]) -> Polynomial | None:
        """Whole coefficients of ``terms`` through the first points, when the other points agree."""
        rows = [[Fraction(point[term]) for term in terms] for point in self._points[: len(terms)]]
        found = _gauss(rows, [Fraction(size) for size in sizes[: len(terms)]])
        if found is None or any(value.denominator != 1 or value == 0 for value in found):
            return None
        result = _poly(dict(zip(terms, (int(value) for value in found), strict=True)))
        agree = all(
            sum(a * b for a, b in zip(result, point, strict=True)) == size
            for size, point in zip(sizes, self._points, strict=True)
        )
        return result if agree and (len(terms) == 1 or max(result) > 0) else None


def _poly(terms: dict[int, int]) -> Polynomial:
    return tuple(terms.get(index, 0) for index in range(len(MONOMIALS)))


def _gauss(rows: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Solves a small square system; None where it has no single solution."""
    size = len(rows)
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for column in range(size):
        pivot = next((index for index in range(column, size) if table[index][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        lead = table[column][column]
        table[column] = [value / lead for value in table[column]]
        for index in range(size):
            factor = table[index][column]
            if index != column and factor:
                table[index] = [a - factor * b for a, b in zip(table[index], table[column], strict=True)]
    return [row[size] for row in table]
