"""What a person asks of plans that nothing will run: sweeps, and which cards of the catalogue hold a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from swift_autobatch import api, buying, render, sweep
from swift_autobatch.buying import COUNTS, Offer
from swift_autobatch.errors import UsageError
from swift_autobatch.facts.cards import assumed_machine
from swift_autobatch.facts.prices import read_prices
from swift_autobatch.facts.software import read_software
from swift_autobatch.pins import pinned_fields
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import Candidate, Environment, Machine, Prediction, Request, Software, Sourced, replace
from swift_autobatch.sweep import Sweep
from swift_autobatch.tables import gpus

_OLDEST = (7, 0)  # Volta: torch's CUDA builds start there


def sweep_of(
    request: Request, env: Environment, over: str, plot: str | None = None, progress: Progress | None = None
) -> Sweep:
    """Plans the job over a range of cards or row lengths.

    Args:
        over: ``gpus 1..8``, ``length`` and the like.
        plot: a picture to write; None: none.

    Raises:
        UsageError: a range that nobody understands, or a picture that exists and ``force`` is not set.
    """
    axis, values = sweep.parse(over)
    if plot:
        render.may_write(Path(env.cwd, plot), force=request.force)
    asked, facts = api.read_facts(request, env, progress or Silent())
    pins = pinned_fields(asked, Path(env.cwd))
    found = sweep.sweep(asked, facts, api.strategies(env), pins, axis, values)
    if plot:
        from swift_autobatch.plot import plot_sweep

        plot_sweep(found, Path(env.cwd, plot))
    return found


def sweep_json(found: Sweep) -> dict[str, Any]:
    """A sweep as ``autoswift.sweep/1``."""
    points = [
        {"value": one.value, **_plan_json(one.candidate, one.prediction), "why": one.why or None}
        for one in found.points
    ]
    return {"schema": "autoswift.sweep/1", "axis": found.axis, "points": points}


def fit(
    request: Request, env: Environment, prices: str | None = None, progress: Progress | None = None
) -> tuple[Offer, ...]:
    """The cards of the catalogue that hold the job; with a price list, those it names, the cheapest epoch first.

    Raises:
        UsageError: a machine is named beside, or the price list is wrong.
    """
    for flag, given in (("--gpus", request.gpus), ("--hardware", request.hardware_file), ("--nproc", request.nproc)):
        if given.value is not None:
            raise UsageError(f"--fit tries every card, and {flag} names a machine", where=flag, hints=(f"drop {flag}",))
    listed = None if prices is None else read_prices(Path(env.cwd, prices), prices)
    software = read_software(env)
    first = next(_machines(software, listed))[0]
    asked, facts = api.read_facts(
        replace(request, gpus=Sourced(value=_spec(first), source="--fit")), env, _or(progress)
    )
    _or(progress).stage("planning the job for the cards of the catalogue: a few seconds")
    pins = pinned_fields(asked, Path(env.cwd))
    return buying.offers(asked, facts, api.strategies(env), pins, _machines(software, listed), listed)


def fit_json(found: Sequence[Offer]) -> dict[str, Any]:
    """Offers as ``autoswift.fit/1``."""
    return {
        "schema": "autoswift.fit/1",
        "offers": [
            {
                **{name: value for name, value in asdict(one).items() if name not in ("candidate", "prediction")},
                **_plan_json(one.candidate, one.prediction),
            }
            for one in found
        ],
    }


def _or(progress: Progress | None) -> Progress:
    return progress or Silent()


def _machines(software: Software, prices: Mapping[str, float] | None) -> Iterator[tuple[Machine, ...]]:
    """For each card that torch runs on (and that has a price, where there are prices) 1, 2, 4 and 8 of it."""
    for row in gpus().values():
        usable = row.vendor == "nvidia" and (row.compute_capability or (0, 0)) >= _OLDEST
        if usable and (prices is None or row.name in prices):
            yield tuple(assumed_machine(f"{count}x{row.name}", software) for count in COUNTS)


def _spec(machine: Machine) -> str:
    return f"{len(machine.gpus)}x{machine.gpus[0].card}"


def _plan_json(candidate: Candidate | None, prediction: Prediction | None) -> dict[str, Any]:
    return {
        "candidate": None if candidate is None else render.candidate_json(candidate),
        "prediction": None if prediction is None else render.prediction_json(prediction),
    }
