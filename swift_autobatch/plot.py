"""Draws a sweep as a picture; the only user of matplotlib, which is imported when a picture is asked for."""

from __future__ import annotations

from pathlib import Path

from swift_autobatch.errors import MachineError, UsageError
from swift_autobatch.sweep import Sweep
from swift_autobatch.units import gib

_LABELS = {"gpus": "cards", "length": "tokens of every row"}


def plot_sweep(found: Sweep, path: Path) -> None:
    """Writes a picture of the sweep: memory a card against its budget, and tokens per second, over the axis.

    Raises:
        MachineError: matplotlib is not installed, or the file cannot be written.
        UsageError: no point of the sweep has a plan, or matplotlib knows no picture by this suffix.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MachineError(
            "a picture needs matplotlib, which is not installed",
            where="--plot",
            hints=("pip install 'swift-autobatch[plot]'", "drop --plot: the table says the same"),
        ) from error
    points = [(one.value, one.candidate, one.prediction) for one in found.points if one.candidate and one.prediction]
    if not points:
        raise UsageError("no point of the sweep has a plan to draw", where="--plot", hints=("drop --plot",))
    values = [value for value, _, _ in points]
    figure = Figure(figsize=(8, 6), layout="constrained")
    memory, speed = figure.subplots(2, 1, sharex=True)
    memory.plot(values, [gib(made.demand_bytes) for _, _, made in points], "o-", label="needs (p99)")
    memory.plot(values, [gib(made.budget_bytes) for _, _, made in points], "--", label="budget")
    memory.set_ylabel("GiB a card")
    memory.legend()
    speed.plot(values, [made.tokens_per_s for _, _, made in points], "o-")
    speed.set_ylabel("tokens/s")
    speed.set_xlabel(_LABELS[found.axis])
    if found.axis == "length":
        speed.set_xscale("log", base=2)
    for value, candidate, made in points:
        speed.annotate(candidate.strategy, (value, made.tokens_per_s), fontsize=7, rotation=30)
    try:
        figure.savefig(path)
    except OSError as error:
        raise MachineError(
            f"the picture cannot be written: {error.strerror or error}", where=str(path), hints=("another --plot FILE",)
        ) from error
    except ValueError as error:  # a suffix that matplotlib does not know
        raise UsageError(
            f"no picture is called {path.name}", where="--plot", hints=("--plot sweep.png, .svg or .pdf",)
        ) from error
