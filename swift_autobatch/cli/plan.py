"""``autoswift plan``: what would run and why."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import (
    ENGINE_EPILOG,
    EngineCommand,
    json_option,
    planning_options,
    print_json,
    progress_of,
    request_of,
    verbose_option,
)


@click.command("plan", cls=EngineCommand, epilog=ENGINE_EPILOG)
@planning_options
@json_option
@verbose_option
def command(**params: Any) -> None:
    """Show what would run and why; nothing is written or started."""
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api
    from swift_autobatch.cli import show, text

    decided = api.plan(request, env, progress_of(params))
    if params["as_json"]:
        print_json(api.plan_json(decided))
    else:
        text.page(show.plan(decided, verbose=params["verbose"] > 0))
