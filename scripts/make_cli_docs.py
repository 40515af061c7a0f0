"""Writes docs/cli.md from the commands themselves.

python scripts/make_cli_docs.py            # rewrite the file
python scripts/make_cli_docs.py --check    # print what differs; exit 1 when the file is stale
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from swift_autobatch.cli import COMMANDS, cli
from swift_autobatch.cli.errors import EXIT_CODES
from swift_autobatch.engine_flags import OWNED
from swift_autobatch.tables import dialect

TARGET = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH = 100


def pages(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """(command path, help text) of a command and of those below it, in the order of the table."""
    context = click.Context(command, info_name=path.split(" ")[-1], parent=parent, max_content_width=WIDTH)
    context.terminal_width = WIDTH
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from pages(below, f"{path} {name}", context)


def build() -> str:
    """The whole page."""
    engine = dialect()
    lines = [
        "# The command line",
        "",
        "<!-- Written by scripts/make_cli_docs.py from the commands themselves; a test fails when it is stale. -->",
        "",
        "The answer goes to stdout, everything else to stderr. `--json` prints one object with a `schema` key, raw "
        "bytes and seconds.",
        "",
        "## Engine flags",
        "",
        f"`sft`, `plan`, `render` and `dry-run` take every flag of `swift sft` (ms-swift {engine.version}: "
        f"{len(engine.flags)} flags) in its own spelling; kebab-case is understood, abbreviations are refused, and so "
        "is a flag given twice. A flag that is given pins its decision: the planner plans around it. Flags and the "
        "types of their values are checked before the engine is imported, and "
        f"{len(engine.renamed)} names of older versions are answered with the name of today.",
        "",
        "`--model`, `--dataset` and `--output_dir` mean the same to autoswift and to the engine. These engine flags "
        "are not yours to set:",
        "",
        *(f"- `--{name}`: {why}" for name, why in OWNED.items()),
        "",
        "## Environment",
        "",
        "Every option that shapes a plan or a run, and every engine flag, is also read from `AUTOSWIFT_<NAME>` in "
        "capitals with underscores: "
        "`AUTOSWIFT_GLOBAL_BATCH=64`, `AUTOSWIFT_MAX_LENGTH=2048`, `AUTOSWIFT_DATASET='a.jsonl b.jsonl'` (split as a "
        "shell would). An unknown name is an error. `NPROC_PER_NODE` sets `--nproc`, `CUDA_VISIBLE_DEVICES` the "
        "devices, `NO_COLOR` turns colours off.",
        "",
        "Precedence, low to high: default, strategy recipe, project recipe, `AUTOSWIFT_*`, flag. "
        "`autoswift plan -v` shows where every value comes from.",
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
        "An error is one sentence after `error:`, then figures, then `hint:` lines with the least change first.",
        "",
        "## Commands",
        "",
        *(f"- [`{name}`](#autoswift-{name}): {summary}" for name, (_, summary) in COMMANDS.items()),
    ]
    for path, text in pages(cli, "autoswift"):
        lines += ["", f"### {path}", "", "```text", text.rstrip(), "```"]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print what differs and exit 1 when the file is stale")
    text = build()
    if not parser.parse_args(argv).check:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
        print(f"{TARGET}: {len(text.splitlines())} lines")
        return 0
    old = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    difference = list(difflib.unified_diff(old.splitlines(), text.splitlines(), "committed", "now", lineterm=""))
    print("\n".join(difference) if difference else f"{TARGET.name} is current")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
