"""``autoswift profile``: what the datasets hold, and what max_length, batch and packing are worth on them."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import (
    ENGINE_EPILOG,
    EngineCommand,
    json_option,
    planning_options,
    print_json,
    progress_of,
    request_of,
    verbose_option,
)


class ProfileCommand(EngineCommand):
    """Takes datasets without ``--dataset`` too: the words before the first option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((at for at, word in enumerate(args) if word.startswith("-")), len(args))
        return super().parse_args(ctx, ["--dataset", *args] if first else args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "DATASET... [OPTIONS] [ANY swift sft FLAG]")


@click.command("profile", cls=ProfileCommand, epilog=ENGINE_EPILOG)
@click.option("--full", is_flag=True, help="Count every row of a large file, not a sample and its longest rows.")
@click.option("--plot", metavar="FILE", help="Draw the token lengths into a .png file.")
@click.option("--repair", metavar="OUT", help="Write a clean copy to OUT.jsonl and a list of what changed beside it.")
@planning_options
@json_option
@verbose_option
def command(**params: Any) -> None:
    """Say what a dataset holds: rows, token lengths, problems, and what max_length and batch are worth.

    With --repair nothing is profiled: the copy is written, and the data stay as they are. --model_name and
    --model_author fill in {{NAME}} and {{AUTHOR}}.

    --json prints a dataset card without a word of the rows; `autoswift plan --dataset card.json` plans with it.
    """
    request, env = request_of(params)  # first: a wrong flag is refused before any stage is loaded
    from swift_autobatch import api
    from swift_autobatch.cli import plot, show_profile, show_repair, text

    if params["repair"]:
        done = api.repair(request, env, params["repair"], progress_of(params))
        if params["as_json"]:
            print_json(api.repair_json(done))
        else:
            text.page(show_repair.repaired(done))
        return
    target = plot.target(params["plot"], env, force=request.force) if params["plot"] else None
    found = api.profile(request, env, progress_of(params), full=params["full"])
    if target:
        plot.draw(found.facts.data, target)
    if params["as_json"]:
        print_json(api.profile_json(found))
    else:
        text.page(show_profile.profile(found, verbose=params["verbose"] > 0))
