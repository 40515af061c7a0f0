"""``autoswift sft``: the whole road."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import EngineCommand, planning, print_json, progress_of, request_of


@click.command("sft", cls=EngineCommand)
@planning
def command(**params: Any) -> None:
    """Plan, prove and run a fine-tuning job: facts, plan, files, dry run, training.

    After a refusal by the dry run nothing is launched. The last lines say where the model is, what was
    measured and how to ask it something.
    """
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api
    from swift_autobatch.cli import show_run, text

    outcome = api.sft(request, env, progress_of(params))
    if params["as_json"]:
        print_json(outcome.receipt)
    else:
        text.page(show_run.finished(outcome.plan, outcome.run, str(outcome.folder)))
