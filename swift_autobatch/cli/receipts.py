"""``autoswift receipts``: what was planned and measured before, on this machine."""

from __future__ import annotations

import click

from swift_autobatch.cli.options import json_option, print_json


@click.group("receipts")
def command() -> None:
    """List and show receipts: what was planned, what was measured, with which versions.

    Every dry run and training leaves one beside its files and one in the state folder.
    """


@command.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List the receipts by class of machine, oldest first."""
    from swift_autobatch import api
    from swift_autobatch.cli import show_receipts, text
    from swift_autobatch.request import read_environment

    found = api.receipts(read_environment())
    if as_json:
        print_json(api.receipts_json(found))
    else:
        text.page(show_receipts.listed(found))


@command.command("show")
@click.argument("name", default="last")
@json_option
def show_one(name: str, as_json: bool) -> None:
    """Show one receipt: its NAME in the list, a file, a run folder, or `last`."""
    from swift_autobatch import api
    from swift_autobatch.cli import show_receipts, text
    from swift_autobatch.request import read_environment

    found, changed = api.one_receipt(name, read_environment())
    if as_json:
        print_json(found)
    else:
        text.page(show_receipts.shown(found, changed))
