"""``autoswift doctor``: is the machine sound, and its environment."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import json_option, print_json, progress_of, request_of, verbose_option


@click.command("doctor")
@click.option("--hardware", metavar="FILE", help="Examine a report from elsewhere: `autoswift doctor --json`.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Check the machine and the environment, with the command that fixes what is wrong.

    fail: a training cannot start. warn: it starts, and a strategy is missing or slow. Exit 5 when a check fails.
    """
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api
    from swift_autobatch.cli import show_machine, text

    found = api.examine(request, env, progress_of(params))
    if params["as_json"]:
        print_json(api.examination_json(found))
    else:
        text.page(show_machine.checks(found.checks))
    ctx.exit(0 if found.sound else 5)
