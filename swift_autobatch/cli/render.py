"""``autoswift render``: the files of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swift_autobatch.cli.options import EngineCommand, planning, print_json, progress_of, request_of


@click.command("render", cls=EngineCommand)
@planning
def command(**params: Any) -> None:
    """Write the files of the plan: run.sh, the DeepSpeed JSON, plan.json.

    They go to DIR/autoswift, DIR being --output-dir or the current folder. run.sh is readable and runs
    without autoswift.
    """
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api

    folder = Path(env.cwd, request.output_dir.value or ".")
    written = api.render_files(request, env, folder, force=request.force, progress=progress_of(params))
    if params["as_json"]:
        print_json({"schema": "autoswift.rendered/1", "files": [str(path) for path in written]})
    else:
        for path in written:
            click.echo(path)
