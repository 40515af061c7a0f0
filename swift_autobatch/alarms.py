"""What a running job is warned of: a loss that jumps or is no number, and memory that will not last to the end.

Pure functions over what was logged and measured so far, and the two records that remember it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from swift_autobatch.records import Plan
from swift_autobatch.units import show_gib

_REMEMBERED = 20  # logged losses that a new one is compared with
_FEWEST = 5  # logged losses, or measured steps, before anything is said of a trend
_JUMP = 2.0  # times the median of those before ...
_AT_LEAST = 0.5  # ... and this much above it: a loss near 0 doubles without meaning anything
_POINTS = 40  # steps a trend is taken from
_STEADY = 0.9  # share of all pairs of steps that must agree on a direction
_SETTLED = 2  # first steps, whose memory still builds up


def spike(before: Sequence[float], loss: float) -> bool:
    """Whether a logged loss is far above those before it; never among the first five."""
    if len(before) < _FEWEST:
        return False
    usual = median(before)
    return loss > max(_JUMP * usual, usual + _AT_LEAST)


@dataclass(slots=True)
class Losses:
    """The losses that were logged; each kind of alarm is given once, a jump again after a calm stretch."""

    before: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    not_a_number: bool = False
    jumping: bool = False

    def heard(self, at: str, loss: float | None, grad_norm: float | None) -> str | None:
        """The warning that this row deserves."""
        values = [value for value in (loss, grad_norm) if value is not None]
        if not all(math.isfinite(value) for value in values):
            first, self.not_a_number = not self.not_a_number, True
            return (
                f"loss {loss}, gradient norm {grad_norm} at step {at}: the engine goes on, but skips such steps; "
                "lower --learning_rate"
                if first
                else None
            )
        if loss is None:
            return None
        jumps = spike(tuple(self.before), loss)
        first, self.jumping = jumps and not self.jumping, jumps
        usual = median(self.before) if self.before else loss
        self.before.append(loss)
        if not first:
            return None
        return (
            f"loss {loss:.4g} at step {at}, where the {min(len(self.before) - 1, _REMEMBERED)} logged before it stand "
            f"at {usual:.4g}: a broken row, or a learning rate too high; lower --learning_rate if it stays there"
        )


# ----------------------------------------------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one optimizer step held at its peak, and how many padded tokens its largest micro batch had."""

    step: int
    held_bytes: int
    tokens: int


def slope(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """(the median slope over all pairs of points, the share of pairs that rise); (0, 0) without two places.

    Source: Theil (1950), Sen (1968): half of the points may be outliers and the slope still holds.
    """
    known = list(points)
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(known) for x2, y2 in known[i + 1 :] if x1 != x2]
    if not slopes:
        return 0.0, 0.0
    return median(slopes), sum(one > 0 for one in slopes) / len(slopes)


def growth(seen: Sequence[Held], *, budget_bytes: int, last_step: int) -> str | None:
    """The warning that memory grows from step to step and passes the budget before the job ends."""
    points = [(float(one.step), float(one.held_bytes)) for one in seen]
    if len(points) < _FEWEST:
        return None
    each, rising = slope(points)
    at, held = points[-1]
    if rising < _STEADY or each <= 0 or held + each * (last_step - at) <= budget_bytes:
        return None
    when = int(at + max(0.0, budget_bytes - held) / each)
    return (
        f"holds {show_gib(int(held))} and grows by {show_gib(int(each), 3)} a step: at this rate the "
        f"{show_gib(budget_bytes)} there are end at about step {when} of {last_step}; a checkpoint before that step "
        f"saves the work (--save_steps {max(1, int((when - at) / 2))})"
    )


def longest_to_come(seen: Sequence[Held], *, budget_bytes: int, met: int, tokens: int) -> str | None:
    """The warning that a micro batch of the longest rows, not met yet, will not fit by what shorter ones took.

    Args:
        met: padded tokens of the largest micro batch so far.
        tokens: those of the largest that the data can make.
    """
    known = [one for one in seen if one.tokens > 0]
    if len({one.tokens for one in known}) < _FEWEST or met >= tokens:
        return None
    each, rising = slope((float(one.tokens), float(one.held_bytes)) for one in known)
    top = max(known, key=lambda one: one.tokens)
    expected = top.held_bytes + each * (tokens - top.tokens)
    if rising < _STEADY or expected <= budget_bytes:
        return None
    return (
        f"took {show_gib(top.held_bytes)} for a micro batch of {top.tokens} tokens; the longest rows make one of "
        f"{tokens}, not met yet, which would take about {show_gib(int(expected))} of {show_gib(budget_bytes)}"
    )


@dataclass(slots=True)
class Memory:
    """Telemetry rows as they come, and the warnings that they deserve, each once."""

    plan: Plan
    card: dict[int, deque[Held]] = field(default_factory=dict)  # by rank, the latest steps
    host: deque[Held] = field(default_factory=lambda: deque(maxlen=_POINTS))  # all ranks together
    met: int = 0  # padded tokens of the largest micro batch so far
    first: int | None = None  # step
    resident: dict[int, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    last_step: int | None = None

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Takes new rows in; yields a warning for each trend that is new and ends badly."""
        for row in rows:
            self.last_step = row.get("max_steps", self.last_step)
            if row.get("event") == "step":
                self._note(row)
        yield from self._warnings()

    def held_bytes(self) -> int | None:
        """A device's memory in the last step, on the fullest one; on CPU the largest process."""
        cards = [seen[-1].held_bytes for seen in self.card.values() if seen]
        return max(cards) if cards else max(self.resident.values(), default=None)

    def _note(self, row: Mapping[str, Any]) -> None:
        rank, step, tokens = int(row["rank"]), int(row["step"]), int(row.get("tokens") or 0)
        reserved, resident = row.get("gpu_reserved_bytes"), row.get("rss_bytes")
        self.met = max(self.met, tokens)
        self.first = step if self.first is None else self.first
        if step - self.first < _SETTLED:
            return
        if isinstance(reserved, int):
            seen = self.card.setdefault(rank, deque(maxlen=_POINTS))
            seen.append(Held(step=step, held_bytes=reserved, tokens=tokens))
        if isinstance(resident, int):
            self.resident[rank] = resident
            if rank == 0:
                total = sum(self.resident.values())
                self.host.append(Held(step=step, held_bytes=total, tokens=tokens))

    def _warnings(self) -> Iterator[str]:
        prediction, total = self.plan.prediction, self.last_step or self.plan.total_steps
        card = prediction.budget_bytes - prediction.context_bytes - prediction.nccl_bytes
        tokens = self.plan.candidate.micro_batch * self.plan.candidate.max_tokens
        for rank, seen in self.card.items():
            yield from self._once(
                "card", f"rank {rank}'s card", growth(tuple(seen), budget_bytes=card, last_step=total)
            )
            ahead = longest_to_come(tuple(seen), budget_bytes=card, met=self.met, tokens=tokens)
            yield from self._once("row", f"rank {rank}", ahead)
        host = prediction.host_budget_bytes
        yield from self._once("host", "host RAM", growth(tuple(self.host), budget_bytes=host, last_step=total))

    def _once(self, kind: str, who: str, what: str | None) -> Iterator[str]:
        if what is not None and kind not in self.said:
            self.said.add(kind)
            yield f"memory may run out: {who} {what}"
