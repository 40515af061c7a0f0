"""The edge: every error ends here as ``error:``, figures and ``hint:`` lines on stderr, and one exit code."""

from __future__ import annotations

import codecs
import io
import os
import sys
import textwrap
from collections.abc import Sequence

import click

from swift_autobatch.errors import AutoswiftError, Interrupted, UsageError

BUG_EXIT = 70
SIGINT_EXIT = 130
SIGPIPE_EXIT = 141  # 128 + 13: the reader of our output went away

# What docs/cli.md says, in the order of the numbers.
EXIT_CODES: dict[int, str] = {
    0: "done",
    2: "the command itself is wrong: a flag, a value, a combination that no rule allows",
    3: "nothing fits this machine",
    4: "the dry run refused the plan or could not decide; nothing was launched",
    5: "the environment or an input cannot be used",
    6: "training failed after the dry run passed; the engine's own code is in the message",
    70: "a bug of ours; run again with -vv for the traceback",
    130: "stopped by Ctrl-C (143: by SIGTERM, 141: the reader of the output closed the pipe)",
}


def verbosity(argv: Sequence[str]) -> int:
    """How many ``v`` were given, also when parsing failed before a command could count them."""
    return sum(len(word) - 1 for word in argv if word.startswith("-v") and set(word[1:]) == {"v"})


def run(command: click.Command, argv: Sequence[str]) -> int:
    """Runs a click command and turns whatever it raises into an exit code."""
    verbose = verbosity(argv) >= 2
    _speak_utf8()
    try:
        _refuse_empty(argv)
        result = command.main(args=list(argv), prog_name="autoswift", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except AutoswiftError as error:
        return _report(error, verbose)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return UsageError.exit_code
    except click.UsageError as error:
        return _report(from_click(error), verbose)
    except click.ClickException as error:
        return _report(UsageError(error.format_message()), verbose)
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nstopped", err=True)
        return SIGINT_EXIT
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != 1:
            return int(error.code or 0)  # click has answered a shell that completes a command line
        # click itself turns a closed pipe into SystemExit(1). Python would complain again when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return SIGPIPE_EXIT
    except Exception as error:
        return _report_bug(error, verbose)


def _speak_utf8() -> None:
    """Writes UTF-8 where the locale knows ASCII only: a row or a path in any other script would become ``???``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _refuse_empty(argv: Sequence[str]) -> None:
    """Refuses an empty word, which a path would take for the current folder.

    Raises:
        UsageError: with the option, or the word, that it follows.
    """
    for before, word in zip(("autoswift", *argv), argv, strict=False):
        name, equals, value = word.partition("=")
        is_assigned = bool(equals) and name.startswith("--") and not value.strip()
        if word.strip() and not is_assigned:
            continue
        from swift_autobatch.engine_flags import EMPTY_MEANS, is_empty

        option = name if is_assigned else before
        if not option.startswith("-"):
            hint = "a shell variable that is not set gives one: set it, or leave it out"
            raise UsageError(f"the word after {option!r} is empty", where="the command line", hints=(hint,))
        if option.removeprefix("--").replace("-", "_") not in EMPTY_MEANS:
            raise is_empty(option, option)


def from_click(error: click.UsageError) -> UsageError:
    """One of click's own complaints in our form: a sentence without a full stop, and hints."""
    hints = [f"`{error.ctx.command_path} --help` lists the options"] if error.ctx else []
    what, _, guess = error.format_message().partition("Did you mean")
    if guess:
        hints.insert(0, f"did you mean{guess}")
    what = what.strip().rstrip(".")
    return UsageError(what[:1].lower() + what[1:], hints=tuple(hints))


def no_such_command(name: str, commands: Sequence[str]) -> UsageError:
    """The error for an unknown command, with the nearest ones."""
    import difflib

    likely = difflib.get_close_matches(name, commands, n=2, cutoff=0.62)
    hints = (f"did you mean `autoswift {likely[0]}`?",) if likely else ()
    return UsageError(f"there is no command {name!r}", hints=(*hints, f"one of: {', '.join(commands)}"))


def format_error(error: AutoswiftError, color: bool) -> str:
    """The text of an error.

    ::

        error: --max_lenght is no flag of ms-swift 4.6.0 (flag --max_lenght)
          a figure with its unit and source
        hint: did you mean --max_length?
    """
    where = "" if not error.where or error.where in error.what else f" ({error.where})"
    lines = [_label("error:", "red", color) + f" {error.what}{where}"]
    for figure in error.figures:
        inside = "  " + figure[: len(figure) - len(figure.lstrip())]
        lines += textwrap.wrap(
            figure.strip(), 100, initial_indent=inside, subsequent_indent=inside + "  ", break_long_words=False
        )
    lines += [_label("hint:", "cyan", color) + f" {hint}" for hint in error.hints]
    return "\n".join(lines)


def _label(word: str, fg: str, color: bool) -> str:
    return click.style(word, fg=fg, bold=True) if color else word


def wants_color(stream: object) -> bool:
    """Whether to colour: a terminal, and no ``NO_COLOR`` (click does not honour it by itself)."""
    from swift_autobatch.request import read_environment

    is_terminal = getattr(stream, "isatty", lambda: False)()
    return bool(is_terminal) and not read_environment().variables.get("NO_COLOR")


def _report(error: AutoswiftError, verbose: bool) -> int:
    if verbose:
        _traceback()
    if isinstance(error, Interrupted):
        click.echo(error.what, err=True)
        for hint in error.hints:
            click.echo(f"hint: {hint}", err=True)
        return error.exit_code
    click.echo(format_error(error, wants_color(sys.stderr)), err=True, color=True)
    return error.exit_code


def _report_bug(error: Exception, verbose: bool) -> int:
    if verbose:
        _traceback()
    what = f"a bug of autoswift: {type(error).__name__}: {error}".splitlines()[0]
    click.echo(f"error: {what}", err=True)
    click.echo("hint: run with -vv for the traceback, and report it", err=True)
    return BUG_EXIT


def _traceback() -> None:
    import traceback

    traceback.print_exc(file=sys.stderr)
