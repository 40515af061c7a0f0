"""The problems of a dataset by their codes: how many rows each was found on, where, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swift_autobatch.facts.codes import fix_for
from swift_autobatch.records import DataFacts, Problem

_PLACES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """All problems of one code. ``text`` says what is wrong with the first of them, ``fix`` what helps there."""

    code: str
    rows: int
    effect: str  # stops the engine | dropped | trained all the same
    text: str
    places: tuple[str, ...]  # file:line, the file by its name
    fix: str

    @property
    def sentence(self) -> str:
        """Everything but what helps."""
        return f"{self.code}, {self.rows} ({self.effect}): {self.text}. At {', '.join(self.places)}."


def trained(data: DataFacts) -> str:
    """``45 of 50 train, 5 are for evaluation``."""
    apart = f", {data.evaluated_rows} are for evaluation" if data.evaluated_rows else ""
    return f"{data.kept} of {data.rows} train{apart}"


def told(data: DataFacts, places: int | None = _PLACES) -> tuple[Told, ...]:
    """One entry a code: what drops rows first, then what most rows have.

    Args:
        places: how many to name of each; None: all that are listed.
    """
    listed: dict[str, list[Problem]] = {}
    for problem in data.problems:
        listed.setdefault(problem.code, []).append(problem)
    times = dict(data.problem_rows)
    found = [_told(code, problems, times.get(code, len(problems)), places) for code, problems in listed.items()]
    drops = {code for code, problems in listed.items() if problems[0].drops_row}
    return tuple(sorted(found, key=lambda one: (one.code not in drops, -one.rows)))


def _told(code: str, problems: list[Problem], rows: int, places: int | None) -> Told:
    first = problems[0]
    return Told(
        code=code,
        rows=rows,
        effect="stops the engine" if first.stops else "dropped" if first.drops_row else "trained all the same",
        text=first.text,
        places=tuple(f"{Path(problem.file).name}:{problem.line}" for problem in problems[:places]),
        fix=fix_for(code, first.file, first.line),
    )
