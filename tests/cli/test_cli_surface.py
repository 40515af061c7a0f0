"""The surface that users build on: commands, options, exit codes, JSON keys; and how little ``--help`` loads."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from swift_autobatch.cli import COMMANDS, cli
from swift_autobatch.cli.errors import EXIT_CODES
from swift_autobatch.cli.options import PLANNING
from swift_autobatch.request import OPTIONS

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
HEAVY = ("torch", "transformers", "swift", "deepspeed", "datasets", "numpy", "yaml", "rich", "jsonschema", "tokenizers")


def describe(command: click.Command) -> dict[str, Any]:
    """What a command accepts: options with their value's name, arguments, and the commands below it."""
    options = {
        param.opts[-1]: param.metavar or ("count" if param.count else "flag" if param.is_flag else "VALUE")
        for param in command.params
        if isinstance(param, click.Option)
    }
    arguments = [str(param.name) for param in command.params if isinstance(param, click.Argument)]
    found: dict[str, Any] = {"options": dict(sorted(options.items()))}
    if arguments:
        found["arguments"] = arguments
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = {name: command.get_command(context, name) for name in command.list_commands(context)}
        found["commands"] = {name: describe(one) for name, one in below.items() if one is not None}
    return found


def same_as_golden(name: str, found: Any, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_commands_options_and_exit_codes_are_frozen(request: pytest.FixtureRequest) -> None:
    surface = {"exit_codes": {str(code): words for code, words in EXIT_CODES.items()}, **describe(cli)}
    same_as_golden("surface.json", surface, request)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_static_table_says_what_the_module_says(name: str) -> None:
    module, summary = COMMANDS[name]
    command = import_module(f"swift_autobatch.cli.{module}").command
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == summary


def test_every_command_module_is_in_the_table() -> None:
    folder = ROOT / "swift_autobatch" / "cli"
    holding = {path.stem for path in folder.glob("*.py") if "\n@click." in path.read_text(encoding="utf-8")}
    assert {module for module, _ in COMMANDS.values()} == holding


def test_every_option_of_a_request_is_declared_once() -> None:
    declared = [name[2:].replace("-", "_") for name, _, _ in PLANNING]
    assert declared == list(OPTIONS)
    switches = {name[2:].replace("-", "_") for name, metavar, _ in PLANNING if metavar is None}
    assert switches == {name for name, option in OPTIONS.items() if option.is_switch}


@pytest.mark.parametrize("script", ["make_cli_docs.py"])
def test_generated_pages_are_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("argv", "shown"), [(["--help"], "Commands:"), (["--version"], "autoswift ")])
def test_help_loads_nothing_heavy(argv: list[str], shown: str) -> None:
    code = f"""
import sys
sys.argv = ["autoswift", *{argv!r}]
from swift_autobatch.cli import main
try:
    main()
finally:
    print("LOADED", " ".join(sorted(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert shown in done.stdout
    loaded = set(done.stderr.split("LOADED ")[1].split())
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith("swift_autobatch.")} - {
        "swift_autobatch.cli",
        "swift_autobatch.cli.errors",
        "swift_autobatch.errors",
    }


def test_a_reader_that_goes_away_is_no_error() -> None:
    """``autoswift --help | head -1``: quiet, and the code that a shell gives to SIGPIPE."""
    code = (
        "import sys, os\n"
        "from swift_autobatch.cli import main\n"
        "os.close(1)\n"
        "read, write = os.pipe()\n"
        "os.close(read)\n"
        "assert write == 1 or os.dup2(write, 1) == 1\n"
        "main(['--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_plan_json_keys_are_frozen(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query": "hello", "response": "world"}\n' * 20, encoding="utf-8")
    argv = ["plan", "--gpus", "2x4090", "--model", "Qwen/Qwen2.5-7B-Instruct", "--dataset", str(rows), "--json"]
    document = answer(argv, capsys)
    assert document["schema"] == "autoswift.plan/1"
    same_as_golden("plan-keys.json", keys(document), request)


def test_env_json_keys_are_frozen(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["env", "--gpus", "2x4090", "--json"], capsys)
    assert document["schema"] == "autoswift.machine/1"
    same_as_golden("env-keys.json", keys(document), request)


def test_recipes_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["recipes", "ls", "--json"], capsys)
    assert document["schema"] == "autoswift.strategies/1"
    names = [row["name"] for row in document["strategies"]]
    assert "single-lora" in names
    shown = answer(["recipes", "show", "single-lora", "--json"], capsys)
    assert (shown["schema"], shown["name"]) == ("autoswift.strategy/1", "single-lora")


def answer(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    from swift_autobatch.cli.errors import run

    code = run(cli, argv)
    out, err = capsys.readouterr()
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# Mappings whose keys are data (flag names, versions), not part of the contract.
_OPEN = frozenset({"arguments", "environment", "versions", "time_terms"})


def keys(value: Any) -> Any:
    """The shape of a document: keys, sorted, and of a list the shape of its first element."""
    if isinstance(value, dict):
        return {key: "..." if key in _OPEN else keys(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [keys(value[0])] if value and isinstance(value[0], (dict, list)) else []
    return "..."
