"""``autoswift completion``: the script that a shell sources."""

from __future__ import annotations

import click

_INSTALL = """Put one line into your shell's start-up file:

\b
    bash   ~/.bashrc                     eval "$(autoswift completion bash)"
    zsh    ~/.zshrc                      eval "$(autoswift completion zsh)"
    fish   ~/.config/fish/config.fish    autoswift completion fish | source"""


@click.command("completion", epilog=_INSTALL)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes commands and flags in a shell."""
    from click.shell_completion import ShellComplete, get_completion_class

    from swift_autobatch.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    # ShellComplete's own source(): the one for bash starts a bash to ask for its version.
    click.echo(ShellComplete.source(kind(cli, {}, "autoswift", "_AUTOSWIFT_COMPLETE")))
