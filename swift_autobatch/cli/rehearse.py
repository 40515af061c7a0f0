"""``autoswift rehearse``: a plan's very command on CPU processes, with the same architecture in small."""

from __future__ import annotations

from typing import Any

import click

from swift_autobatch.cli.options import ENGINE_EPILOG, EngineCommand, planning, print_json, progress_of, request_of


class RehearseCommand(EngineCommand):
    """Takes the recipe before the first option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and not args[0].startswith("-")
        rest = super().parse_args(ctx, args[1:] if named else args)
        ctx.params["word"] = args[0] if named else None
        return rest

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[RECIPE] [OPTIONS] [ANY swift sft FLAG]")


@click.command("rehearse", cls=RehearseCommand, epilog=ENGINE_EPILOG)
@planning
def command(**params: Any) -> None:
    """Prove on CPU processes, in small, that a recipe's very command starts.

    RECIPE is a strategy of `autoswift recipes ls`, a file of one, or a project recipe. A strategy is rehearsed on the
    smallest machine that it is for, with the built-in model and data; --gpus, --model and --dataset say otherwise.
    Without RECIPE the plan for this machine, or for --gpus, is rehearsed.

    The architecture keeps its kinds of layers, head grouping, experts and ties with fewer and narrower layers; up to
    4 processes run the engine's own DeepSpeed, FSDP2, sequence or tensor parallel code for 2 optimizer steps. What
    differs from the job is listed. Exit 0 when it runs; 4 when it does not.
    """
    from swift_autobatch.request import read_environment

    word = params.pop("word")
    if word is not None:
        from swift_autobatch.rehearse.target import is_project_recipe, one_recipe

        if is_project_recipe(word, read_environment().cwd):
            one_recipe(word, params["recipe"])
            params["recipe"], word = word, None
    request, env = request_of(params)
    from swift_autobatch import api
    from swift_autobatch.cli import show_rehearsal, text

    outcome = api.rehearsed(word, request, env, progress_of(params))
    if params["as_json"]:
        print_json(api.rehearsal_json(outcome))
    else:
        text.page(show_rehearsal.rehearsal(outcome.rehearsal, outcome.verdict, str(outcome.folder)))
    if outcome.verdict.verdict != "pass":
        raise api.gate_error(outcome.verdict, "rehearsal")
