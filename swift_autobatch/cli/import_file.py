"""``autoswift import``: a script or config as a project recipe."""

from __future__ import annotations

import click


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", metavar="RECIPE", required=True, help="The recipe to write.")
@click.option("--force", is_flag=True, help="Overwrite a file that exists; leave out what cannot be taken over.")
def command(file: str, output: str, force: bool) -> None:
    """Turn a script or config into a project recipe.

    FILE is what `autoswift check` reads. The recipe asks for what the file asks for, in today's flags; `autoswift sft
    --recipe RECIPE` plans what it leaves open. Nothing is written where a line cannot be taken over (exit 2).
    """
    from swift_autobatch import review
    from swift_autobatch.cli import show_review
    from swift_autobatch.request import read_environment

    path, adopted = review.import_file(file, output, read_environment(), force=force)
    for line in show_review.findings(adopted, columns=100):
        click.echo(line, err=True)
    click.echo(path)
