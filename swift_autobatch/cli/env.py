"""``autoswift env``: what autoswift sees of this machine."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import json_option, print_json, request_of, verbose_option


@click.command("env")
@click.option("--gpus", metavar="NxCARD", help="Show cards that are not here: 4x4090, 8xH100,ram=1024.")
@click.option("--hardware", metavar="FILE", help="Show the machine of a file written by `autoswift env --json`.")
@click.option("--nproc", metavar="N", help="Processes a plan may use. Default: one per visible device.")
@json_option
@verbose_option
def command(**params: Any) -> None:
    """Show what autoswift sees of this machine.

    With --json the output can be saved and planned for elsewhere: `autoswift plan --hardware FILE`.
    """
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api
    from swift_autobatch.cli import show_machine, text

    found = api.machine(request, env)
    if params["as_json"]:
        print_json(api.machine_json(found))
    else:
        text.page(show_machine.machine(found, verbose=params["verbose"] > 0))
