"""``autoswift dry-run``: the gate alone."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import EngineCommand, planning, print_json, progress_of, request_of


@click.command("dry-run", cls=EngineCommand)
@planning
@click.option("--scan", is_flag=True, help="Measure accumulation 8, 16, 32 and other micro batches; print the table.")
def command(**params: Any) -> None:
    """Run the gate alone: real steps of the real command on the costliest rows.

    Exit 0 when the plan holds; 4 when it does not or nothing could be decided. Nothing is trained to keep.
    """
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api
    from swift_autobatch.cli import show_run, text

    if params["scan"]:
        measured = api.scan(request, env, progress_of(params))
        if params["as_json"]:
            print_json(api.scan_json(measured))
        else:
            text.page(show_run.scan(measured.plan, measured.points, str(measured.folder)))
        return
    outcome = api.dry_run(request, env, progress_of(params))
    if params["as_json"]:
        print_json(outcome.receipt)
    else:
        text.page(show_run.verdict(outcome.plan, outcome.verdict, str(outcome.folder)))
    if outcome.verdict.verdict != "pass":
        raise api.gate_error(outcome.verdict)
