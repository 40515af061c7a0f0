"""Options that several commands share, each declared once, and the command class that lets engine flags through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from swift_autobatch.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from swift_autobatch.progress import Progress
    from swift_autobatch.records import Environment, Request

# What `request.OPTIONS` understands, as click sees it: values stay text, request.py reads and checks them.
PLANNING: tuple[tuple[str, str | None, str], ...] = (
    ("--strategy", "NAME", "Force a strategy recipe (`autoswift recipes ls`). Default: the fastest that fits."),
    ("--parallel-method", "METHOD", "auto, deepspeed, fsdp, megatron or none. Default: auto."),
    ("--prefer", "WHAT", "auto, speed, quality, memory or fewest-gpus. Default: auto (docs: what it decides)."),
    ("--global-batch", "N", "Target effective batch: micro batch x ranks x accumulation. Default: 16."),
    ("--lr-scaling", "RULE", "How the learning rate follows the batch: sqrt, linear or none. Default: sqrt."),
    ("--lr-base", "LR@BATCH", "A learning rate and the batch it is right at. Default: the engine's own, at 16."),
    ("--nproc", "N", "Processes to use. Default: one per visible device."),
    ("--gpus", "NxCARD", "Plan for cards that are not here: 4x4090, 8xH100,ram=1024 (host RAM in GiB)."),
    ("--hardware", "FILE", "Plan for the machine of a file written by `autoswift env --json`."),
    ("--recipe", "FILE", "Run what a project recipe decided; on another class of machine: plan it again and say so."),
    ("--locked", None, "With --recipe: stop instead of planning again."),
    ("--save-recipe", "FILE", "Write the decision as a project recipe, once all went well."),
    ("--output-dir", "DIR", "Where run folders go; the same as --output_dir. Default: ./output/<model>."),
    ("--gate-timeout", "SECONDS", "Give up on the dry run after this long. Default: 1800."),
    ("--on-failure", "WHAT", "After a death in training: resume, replan or stop (docs/run.md). Default: resume."),
    ("--stall-timeout", "SECONDS", "Training that says nothing for this long counts as hung. Default: 1800."),
    ("--tries", "N", "Dry runs at most; after one that ran out of memory the plan is made again. Default: 3."),
    ("--skip-dry-run", None, "Train without proving the plan first."),
    ("--trace", None, "Trace a model that nothing is known of, 10 to 20 s once. sft and dry-run always do, for a GPU."),
    ("--no-ask", None, "Do not ask the trained model who it is."),
    ("--fix", None, "Apply the smallest edit that makes a refused combination of flags legal, and say so."),
    ("--force", None, "Overwrite files that exist."),
)

ENGINE_EPILOG = """Any flag of `swift sft` may be given in its own spelling (--max_length 2048, --lora_rank 64). It pins
that decision: the planner plans around it and says so. Abbreviations are refused.

Options that shape a plan or a run are also read from AUTOSWIFT_<NAME>, below flags: AUTOSWIFT_GLOBAL_BATCH=64,
AUTOSWIFT_MAX_LENGTH=2048."""

_ENGINE_ROWS = [
    (
        "--model ID|FOLDER",
        "A model id, or a local folder with config.json. Default: Qwen/Qwen2.5-7B-Instruct on a GPU.",
    ),
    (
        "--dataset DATA...",
        "Files (.jsonl .json .csv .parquet .arrow .txt), folders, cached hub ids; DATA#500 draws 500 rows. "
        "Default: the built-in self-cognition rows.",
    ),
    ("--FLAG VALUE...", "Any flag of `swift sft` (ms-swift 4.6)."),
]


class Words(click.Option):
    """An option whose value is all words up to the next option: ``--sweep gpus 1..8``."""


class EngineCommand(click.Command):
    """A command that takes our options and, beside them, any engine flag.

    click's own ``ignore_unknown_options`` would take ``-1`` in ``--max_steps -1`` for an option, let the last of
    two equal options win and know only one spelling; so the words are parted here. ``params["engine_argv"]``
    receives the engine's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"epilog": ENGINE_EPILOG, **kwargs})

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Our options, the engine's flags once a letter of them stands there, and files after any of these."""
        from click.shell_completion import CompletionItem

        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("--") and len(incomplete) > 2:
            from swift_autobatch.tables import dialect

            wanted = incomplete[2:].replace("-", "_")
            found += [CompletionItem(f"--{name}") for name in sorted(dialect().flags) if name.startswith(wanted)]
        return found if incomplete.startswith("-") else [*found, CompletionItem(incomplete, type="file")]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes a line that is not finished: nothing to refuse yet
            return super().parse_args(ctx, [])
        ours, engine = self._part(list(args))
        rest = super().parse_args(ctx, ours)
        ctx.params["engine_argv"] = tuple(engine)
        return rest

    def _part(self, words: list[str]) -> tuple[list[str], list[str]]:
        known = {name: param for param in self.params for name in param.opts}
        seen: set[str] = set()
        ours: list[str] = []
        engine: list[str] = []
        after = ""  # our option that was read last, while no engine flag has followed it
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            kebab = "--" + name[2:].replace("_", "-")
            if word in ("-h", "--help") or (word.startswith("-v") and set(word[1:]) == {"v"}):
                ours.append(word)
            elif word.startswith("--") and kebab in known:
                if kebab in seen:
                    raise UsageError(f"{kebab} is given twice", where=word, hints=("keep one of them",))
                seen.add(kebab)
                ours += self._ours(known[kebab], kebab, value if equals else None, words)
                after = kebab
            elif word.startswith("--"):
                engine.append(word)
                after = ""
            elif after:
                raise _stray(word, after, known[after])
            else:
                engine.append(word)
        return ours, engine

    @staticmethod
    def _ours(param: click.Parameter, name: str, value: str | None, words: list[str]) -> list[str]:
        """One of our options with its value, taken from after ``=`` or from the next word."""
        if getattr(param, "is_flag", False) or getattr(param, "count", False):
            if value is not None:
                raise UsageError(f"{name} takes no value", where=f"{name}={value}", hints=(f"write {name}",))
            return [name]
        if value is None:
            if not words or words[0].startswith("--"):
                metavar = getattr(param, "metavar", None) or "VALUE"
                raise UsageError(f"{name} needs a value", where=name, hints=(f"write {name} {metavar}",))
            value = words.pop(0)
        while isinstance(param, Words) and words and not words[0].startswith("--"):
            value += f" {words.pop(0)}"
        return [f"{name}={value}"]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] [ANY swift sft FLAG]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Job"):
            formatter.write_dl(_ENGINE_ROWS)
        super().format_options(ctx, formatter)


def _stray(word: str, after: str, param: click.Parameter) -> UsageError:
    """A word behind one of our options that takes no more of them; without this it would be the engine's."""
    if word.startswith("-"):
        return UsageError(f"no such option: {word}", where=word, hints=("options start with two dashes",))
    if getattr(param, "is_flag", False):
        return UsageError(
            f"{after} takes no value, not {word!r}", where=after, hints=(f"write {after}, or leave it out",)
        )
    return UsageError(
        f"{after} takes one value: {word!r} is one too many",
        where=after,
        hints=(f"a dataset is given as: --dataset {word}", f"put a value with spaces in quotes: {after} '...'"),
    )


def _values_of(name: str, metavar: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What a shell offers after an option."""

    def offer(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        if metavar in ("FILE", "DIR"):
            return [CompletionItem(incomplete, type=metavar.lower())]
        return [value for value in _known_values(name) if value.startswith(incomplete)]

    return offer


def _known_values(name: str) -> Sequence[str]:
    from swift_autobatch import request

    if name == "--strategy":
        from swift_autobatch.strategies import shipped_folder

        return sorted(path.stem for path in shipped_folder().glob("*.yaml"))
    choices = {
        "--parallel-method": request.PARALLEL_METHODS,
        "--prefer": request.PREFERENCES,
        "--lr-scaling": request.LR_SCALINGS,
        "--on-failure": request.ON_FAILURE,
    }
    return choices.get(name, ())


def planning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every option that shapes a Request."""
    for name, metavar, text in reversed(PLANNING):
        kind: dict[str, Any] = {"is_flag": True} if metavar is None else {"metavar": metavar, "type": str}
        if metavar is not None:
            kind["shell_complete"] = _values_of(name, metavar)
        function = click.option(name, help=text, **kind)(function)
    return function


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: raw bytes and seconds.")(
        function
    )


def verbose_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``-v`` (the source of every value) and ``-vv`` (tracebacks)."""
    return click.option("-v", "--verbose", count=True, help="Show where every value comes from; -vv: also tracebacks.")(
        function
    )


def planning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what every command that plans takes: the options of a Request, ``--json`` and ``-v``."""
    return planning_options(json_option(verbose_option(function)))


def request_of(params: Mapping[str, Any]) -> tuple[Request, Environment]:
    """The Request and Environment of a command's parameters."""
    from swift_autobatch.request import OPTIONS, build_request, read_environment

    env = read_environment()
    options = {name: params[name] for name in OPTIONS if name in params}
    return build_request(options, params.get("engine_argv", ()), env), env


def progress_of(params: Mapping[str, Any]) -> Progress:
    """Where long work reports to: stderr."""
    from swift_autobatch.progress import Stderr

    return Stderr()


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    import json

    click.echo(json.dumps(document, ensure_ascii=False, indent=2))
