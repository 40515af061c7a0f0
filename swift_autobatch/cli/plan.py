"""``autoswift plan``: what would run and why; over a range; on which cards of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swift_autobatch.cli.options import EngineCommand, Words, planning, print_json, progress_of, request_of
from swift_autobatch.errors import UsageError

if TYPE_CHECKING:
    from swift_autobatch.records import Environment, Request

_NEEDS = (("plot", "sweep"), ("prices", "fit"))  # an option that means nothing without the other


@click.command("plan", cls=EngineCommand)
@planning
@click.option("--sweep", cls=Words, metavar="AXIS", help="Plan over a range: gpus 1..8, or length 1024..32768.")
@click.option("--plot", metavar="FILE", help="With --sweep: draw it (.png, .svg, .pdf; needs matplotlib).")
@click.option("--fit", is_flag=True, help="List the cards of the catalogue that hold the job, the smallest first.")
@click.option("--prices", metavar="FILE", help="With --fit: YAML of card: price per hour; the cheapest epoch first.")
def command(**params: Any) -> None:
    """Show what would run and why; nothing is written or started."""
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    for option, other in _NEEDS:
        if params[option] and not params[other]:
            raise UsageError(f"--{option} needs --{other}", where=f"--{option}", hints=(f"add --{other}",))
    if params["sweep"] and params["fit"]:
        raise UsageError("--sweep and --fit are two questions", where="--fit", hints=("ask one at a time",))
    if params["sweep"] or params["fit"]:
        _explore(request, env, params)
        return
    from swift_autobatch import api
    from swift_autobatch.cli import show, text

    decided = api.plan(request, env, progress_of(params))
    if params["as_json"]:
        print_json(api.plan_json(decided))
    else:
        text.page(show.plan(decided, verbose=params["verbose"] > 0))


def _explore(request: Request, env: Environment, params: dict[str, Any]) -> None:
    from swift_autobatch import explore
    from swift_autobatch.cli import show_explore, text

    progress = progress_of(params)
    if params["sweep"]:
        swept = explore.sweep_of(request, env, params["sweep"], params["plot"], progress)
        document, lines = explore.sweep_json(swept), show_explore.sweep(swept)
    else:
        offers = explore.fit(request, env, params["prices"], progress)
        document, lines = explore.fit_json(offers), show_explore.offers(offers)
    if params["as_json"]:
        print_json(document)
    else:
        text.page(lines)
