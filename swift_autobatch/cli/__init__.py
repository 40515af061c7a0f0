"""The command line: parse, call ``api``, print, exit; no arithmetic.

One command a file, imported only when it is invoked: ``autoswift --help`` reads the table below and loads
nothing else. A test compares the table with the modules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

# Command -> (module of this package that holds it as ``command``, its one-line summary).
COMMANDS: dict[str, tuple[str, str]] = {
    "sft": ("sft", "Plan, prove and run a fine-tuning job: facts, plan, files, dry run, training."),
    "plan": ("plan", "Show what would run and why; nothing is written or started."),
    "render": ("render", "Write the files of the plan: run.sh, the DeepSpeed JSON, plan.json."),
    "dry-run": ("dry_run", "Run the gate alone: real steps of the real command on the costliest rows."),
    "rehearse": ("rehearse", "Prove on CPU processes, in small, that a recipe's very command starts."),
    "profile": (
        "profile",
        "Say what a dataset holds: rows, token lengths, problems, and what max_length and batch are worth.",
    ),
    "env": ("env", "Show what autoswift sees of this machine."),
    "doctor": ("doctor", "Check the machine and the environment, with the command that fixes what is wrong."),
    "explain": ("explain", "Say what ended a training, from any log or traceback."),
    "check": ("check", "Say what somebody's script or config does, what is odd about it, and what it needs."),
    "import": ("import_file", "Turn a script or config into a project recipe."),
    "recipes": ("recipes", "List, show and copy strategy recipes; check and compare recipe files."),
    "receipts": ("receipts", "List and show receipts: what was planned, what was measured, with which versions."),
    "completion": ("completion", "Print the script that completes commands and flags in a shell."),
    "version": ("version", "Show the versions of autoswift and of the engines."),
}

HELP = """Plan, prove and run ms-swift fine-tuning: the fastest strategy that fits your GPUs and your data.

    autoswift sft --dataset self_cognition.json

Answers go to stdout, everything else to stderr. `autoswift COMMAND --help` explains a command.
"""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"swift_autobatch.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from swift_autobatch.cli.errors import no_such_command

            raise no_such_command(args[0], list(COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"autoswift {version('swift-autobatch')}")
        ctx.exit(0)


cli = LazyGroup(
    name="autoswift",
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show autoswift's version and exit.",
        )
    ],
)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the ``autoswift`` command; exits with one of the codes of ``errors.py``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from swift_autobatch.cli.errors import run

    sys.exit(run(cli, arguments))
