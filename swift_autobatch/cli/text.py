"""Small pieces of plain text: rows, bars, wrapped paragraphs and a command that can be copied. No colours."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import click

PIPED_WIDTH = 80
MAX_WIDTH = 100
_FULL, _HALF, _EMPTY = "█", "▌", " "


def width() -> int:
    """Columns to use: 80 when piped, the terminal's up to 100 otherwise."""
    if not sys.stdout.isatty():
        return PIPED_WIDTH
    return max(40, min(MAX_WIDTH, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns))


def page(lines: Iterable[str]) -> None:
    """Prints lines on stdout, in ASCII where the stream can do no more."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    for line in lines:
        plain = line.replace(_FULL, "#").replace(_HALF, "+") if not _can(line, encoding) else line
        click.echo(plain.rstrip())


def _can(line: str, encoding: str) -> bool:
    try:
        line.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def section(title: str, lines: list[str]) -> list[str]:
    """A title and its lines; nothing at all when there are no lines."""
    return [title, *lines] if lines else []


def joined(parts: Sequence[list[str]]) -> list[str]:
    """Non-empty parts with one blank line between them."""
    lines: list[str] = []
    for part in parts:
        if part:
            lines += ["", *part] if lines else part
    return lines


def wrapped(text: str, columns: int, indent: str = "  ", first: str | None = None) -> list[str]:
    """A paragraph within ``columns`` of the screen; words (paths, flags) are never broken, Chinese text may be."""
    if not text.isascii():
        return _wrapped_wide(text, columns, indent, indent if first is None else first)
    return textwrap.wrap(
        " ".join(text.split()),
        columns,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped_wide(text: str, columns: int, indent: str, first: str) -> list[str]:
    """The same for text whose characters may take two columns each; ``textwrap`` counts characters."""
    from rich.console import Console  # 40 ms: only for such text
    from rich.text import Text

    room = max(10, columns - max(len(indent), len(first)))
    lines = Text(" ".join(text.split())).wrap(Console(width=columns), room)
    return [(indent if number else first) + line.plain.rstrip() for number, line in enumerate(lines)]


def bullets(items: Iterable[str], columns: int) -> list[str]:
    """One ``- `` paragraph an item."""
    return [line for item in items for line in wrapped(item, columns, indent="    ", first="  - ")]


def rows(pairs: Sequence[tuple[str, str]], columns: int) -> list[str]:
    """``name  value`` lines with the values aligned and wrapped under themselves."""
    wide = max((len(name) for name, _ in pairs), default=0)
    lines: list[str] = []
    for name, value in pairs:
        lines += wrapped(value, columns, indent=" " * (wide + 4), first=f"  {name:{wide}}  ") or [f"  {name}"]
    return lines


def bar(share: float, cells: int) -> str:
    """A bar of ``cells`` columns, filled to ``share`` (0 to 1) in half cells."""
    halves = round(max(0.0, min(1.0, share)) * cells * 2)
    text = _FULL * (halves // 2) + _HALF * (halves % 2)
    return text + _EMPTY * (cells - len(text))


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned by their widest cell: the first to the left, the others to the right."""
    every = [head, *body]
    wide = [max(len(row[column]) for row in every) for column in range(len(head))]
    return [
        "  " + "  ".join(f"{cell:{'<' if column == 0 else '>'}{wide[column]}}" for column, cell in enumerate(row))
        for row in every
    ]


def command(words: Sequence[str], columns: int, variables: Mapping[str, str] | None = None) -> list[str]:
    """A shell command over several lines, each flag kept with its values; placeholders stay expandable.

    Args:
        words: the command and its arguments.
        variables: the environment to set for it, before quoting.
    """
    groups = [f"{name}={quoted(value)}" for name, value in (variables or {}).items()]
    for word in words:
        if groups and not word.startswith("--") and groups[-1].startswith("--"):
            groups[-1] += " " + quoted(word)
        else:
            groups.append(quoted(word))
    lines = ["  "]
    for group in groups:
        if len(lines[-1].strip()) and len(lines[-1]) + len(group) + 3 > columns:
            lines[-1] = lines[-1].rstrip() + " \\"
            lines.append("      ")
        lines[-1] += group + " "
    return [line.rstrip() for line in lines]


def quoted(word: str) -> str:
    """A word quoted for a shell, with a leading ``$ROOT/`` or the like left to be expanded."""
    if word.startswith("$") and "/" in word:
        name, _, rest = word.partition("/")
        return f"{name}/{shlex.quote(rest)}"
    if word.startswith("${") or word in ("$ROOT", "$RUN", "$HOME"):
        return word
    return shlex.quote(word)
