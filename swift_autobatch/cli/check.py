"""``autoswift check``: what somebody's script or config does, and what is odd about it."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import json_option, print_json, progress_of


@click.command("check")
@click.argument("file", metavar="FILE")
@click.option("--gpus", metavar="NxCARD", help="Predict for cards that are not here: 4x4090, 8xH100,ram=1024.")
@click.option("--hardware", metavar="FILE", help="Predict for the machine of a file: `autoswift env --json`.")
@click.option("--nproc", metavar="N", help="Processes. Default: as the script says, else one per device.")
@click.option("--fix", is_flag=True, help="Cost a job that is not legal after the smallest edit that makes it so.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, file: str, as_json: bool, **options: Any) -> None:
    """Say what somebody's script or config does, what is odd about it, and what it needs.

    FILE is a shell script with `swift sft` (of any version), a YAML of ms-swift, LLaMA-Factory or axolotl, a DeepSpeed
    JSON, or a project recipe. Exit 2 when it would not run as it is written: a flag that is refused, a combination that
    is not legal, or memory that the machine does not have.
    """
    from swift_autobatch import review
    from swift_autobatch.cli import show_review, text
    from swift_autobatch.request import read_environment

    found = review.review(file, options, read_environment(), progress_of(options))
    if as_json:
        print_json(show_review.as_json(found))
    else:
        text.page(show_review.review(found))
    wrong = any(one.level == "error" for one in found.adopted.findings)
    ctx.exit(2 if wrong or found.runs is False else 0)
