"""``autoswift explain``: what ended a training, from its log."""

from __future__ import annotations

import click

from swift_autobatch.cli.options import json_option, print_json


@click.command("explain")
@click.argument("log", metavar="LOG")
@json_option
@click.pass_context
def command(ctx: click.Context, log: str, as_json: bool) -> None:
    """Say what ended a training, from any log or traceback.

    LOG is a file, a run folder, or `-` for standard input. Logs of other machines and of plain `swift sft` are read as
    well. Exit 4 when nothing in it ends a training.
    """
    from swift_autobatch import api
    from swift_autobatch.request import read_environment

    found = api.explain(log, read_environment())
    if as_json:
        print_json(api.explanation_json(found))
    else:
        from swift_autobatch.cli import show_run, text

        text.page(show_run.postmortem(found))
    ctx.exit(4 if found.code == "unknown" else 0)
