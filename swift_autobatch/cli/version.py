"""``autoswift version``: autoswift and the engines it drives."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import click

from swift_autobatch.cli.options import json_option, print_json

ENGINES = ("ms-swift", "torch", "transformers", "deepspeed", "peft", "bitsandbytes", "flash-attn", "liger-kernel")


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Show the versions of autoswift and of the engines."""
    found = {name: _version(name) for name in ("swift-autobatch", *ENGINES)}
    if as_json:
        print_json({"schema": "autoswift.version/1", "versions": found})
        return
    for name, number in found.items():
        click.echo(f"{name:16} {number or 'not installed'}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
