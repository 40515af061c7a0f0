"""What people read on stdout of a rehearsal."""

from __future__ import annotations

from swift_autobatch.cli import text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.records import Verdict
from swift_autobatch.rehearse import Rehearsal
from swift_autobatch.units import show_seconds


def rehearsal(made: Rehearsal, found: Verdict, folder: str, *, columns: int | None = None) -> list[str]:
    """The verdict, the steps, and everything that the rehearsal does otherwise than the job."""
    columns = columns or text.width()
    head = text.wrapped(
        f"rehearsal: {found.verdict}: {found.reason.text} ({show_seconds(found.seconds)})", columns, "  ", ""
    )
    of = f"of {made.real.candidate.strategy} for {made.real.facts.model.id} on {made.real.machine_class}"
    steps = [
        [str(step.step), *("-" if value is None else f"{value:.4g}" for value in (step.loss, step.grad_norm))]
        for step in found.steps
    ]
    differing = [[one.what, _short(one.real, columns), _short(one.here, columns)] for one in made.differences]
    return joined(
        [
            [*head, *text.wrapped(of, columns, "  ", "")],
            section("Steps", text.table(["step", "loss", "grad norm"], steps) if steps else []),
            section("Not as in the job", text.table(["what", "job", "rehearsal"], differing)),
            section("Assumed", text.bullets(made.real.facts.machine.assumed, columns)),
            text.wrapped(f"kept in {folder}", columns, "  ", ""),
        ]
    )


def _short(value: str, columns: int) -> str:
    """A value that fits a third of the line; a path keeps its end."""
    room = max(12, (columns - 37) // 2)  # beside the longest flag and two gaps
    return value if len(value) <= room else f"...{value[3 - room :]}"
