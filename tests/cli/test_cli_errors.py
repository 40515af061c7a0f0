"""The edge: one error in one form, one exit code, no traceback unless asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from swift_autobatch import errors
from swift_autobatch.cli import cli, main
from swift_autobatch.cli.errors import EXIT_CODES, format_error, run, verbosity

EVERY_ERROR = [
    (errors.AutoswiftError("w"), 70),
    (errors.UsageError("w"), 2),
    (errors.NotLegalError("w"), 2),
    (errors.NothingFitsError("w"), 3),
    (errors.GateError("w"), 4),
    (errors.InputError("w"), 5),
    (errors.MachineError("w"), 5),
    (errors.TrainingError("w", child_exit=1), 6),
    (errors.Interrupted(2), 130),
    (errors.Interrupted(15), 143),
    (KeyboardInterrupt(), 130),
    (click.Abort(), 130),
    (click.UsageError("w"), 2),
    (click.ClickException("w"), 2),
    (ZeroDivisionError("w"), 70),
]


def raising(error: BaseException) -> click.Command:
    def body() -> None:
        raise error

    return click.Command("boom", callback=body)


@pytest.mark.parametrize(("error", "code"), EVERY_ERROR, ids=lambda value: type(value).__name__)
def test_every_error_has_its_exit_code_and_goes_to_stderr(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raising(error), []) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip()
    assert "Traceback" not in err
    assert code in EXIT_CODES or code == 143


def test_every_error_class_is_covered() -> None:
    classes = {type(error) for error, _ in EVERY_ERROR}
    assert {value for value in vars(errors).values() if isinstance(value, type)} <= classes


@pytest.mark.parametrize("error", [ZeroDivisionError("why"), errors.InputError("why")])
def test_vv_shows_the_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    command = raising(error)
    command.params.append(click.Option(["-v", "verbose"], count=True, expose_value=False))
    run(command, ["-vv"])
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_one_line_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raising(ValueError("first\nsecond")), []) == 70
    assert capsys.readouterr().err == (
        "error: a bug of autoswift: ValueError: first\nhint: run with -vv for the traceback, and report it\n"
    )


def test_the_form_of_an_error() -> None:
    error = errors.NothingFitsError(
        "nothing fits", where="rows.jsonl:3", figures=("needs 30 GiB (weights)",), hints=("first", "second")
    )
    assert format_error(error, color=False) == (
        "error: nothing fits (rows.jsonl:3)\n  needs 30 GiB (weights)\nhint: first\nhint: second"
    )
    assert "\x1b[" in format_error(error, color=True)


def test_where_is_not_said_twice() -> None:
    error = errors.UsageError("--max_length needs a value", where="--max_length")
    assert format_error(error, color=False) == "error: --max_length needs a value"


@pytest.mark.parametrize(
    ("argv", "level"), [([], 0), (["-v"], 1), (["-vv"], 2), (["-v", "-v"], 2), (["-verbose"], 0), (["--v"], 0)]
)
def test_verbosity(argv: list[str], level: int) -> None:
    assert verbosity(argv) == level


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (["pln"], "error: there is no command 'pln'", "hint: did you mean `autoswift plan`?"),
        (["recipes", "shw"], "error: no such command 'shw'", "hint: "),
        (["recipes", "ls", "--jsn"], "error: no such option", "hint: "),
        (["recipes", "show"], "error: missing argument 'NAME'", "hint: "),
        (["plan", "--strategy"], "error: --strategy needs a value", "hint: write --strategy NAME"),
        (["plan", "--strategy", "--json"], "error: --strategy needs a value", "hint: "),
        (["plan", "--json=1"], "error: --json takes no value", "hint: write --json"),
        (["plan", "--nproc", "1", "--nproc", "2"], "error: --nproc is given twice", "hint: "),
        (["plan", "--output-dir", "a", "--output_dir", "b"], "error: --output-dir is given twice", "hint: "),
        (["plan", "--max_lenght", "3"], "error: neither autoswift nor ms-swift", "hint: did you mean --max_length"),
        (["sft", "--sft_type", "lora"], "error: --sft_type does not exist", "hint: write --tuner_type"),
        (["dry-run", "--global_batch", "x"], "error: --global-batch needs a whole number", "hint: "),
        (["render", "rows.json"], "error: unexpected word 'rows.json'", "hint: a dataset is given as"),
        (["env", "--nproc", "x"], "error: --nproc needs a whole number", "hint: "),
    ],
)
def test_usage_errors_come_in_our_form(
    argv: list[str], what: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(what), err
    assert f"\n{hint}" in err
    assert "Usage:" not in err


@pytest.mark.parametrize("words", [[], ["recipes"]])
def test_no_command_is_answered_with_the_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: autoswift")
    assert "error:" not in err


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--trace", "false"], "--trace takes no value, not 'false'", "write --trace, or leave it out"),
        (["--dataset", "a.jsonl", "--gpus", "1x4090", "-x"], "no such option: -x", "two dashes"),
        (["--dataset", "a.jsonl", "-x"], "no such option: -x", "--system='-x'"),
        (["--gpus", "1x4090", "b.jsonl"], "--gpus takes one value: 'b.jsonl' is one too many", "--dataset b.jsonl"),
        (["b.jsonl"], "unexpected word 'b.jsonl'", "--dataset b.jsonl"),
        (["--prefer", "fast"], "--prefer does not know 'fast'", "one of: auto, speed"),
    ],
)
def test_a_word_that_belongs_nowhere_becomes_no_dataset(
    words: list[str], says: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {says}" in err
    assert hint in err
    assert "did you mean" not in err


def test_a_variable_that_is_like_nothing_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOSWIFT_FOO", "1")
    assert run(cli, ["plan"]) == 2
    err = capsys.readouterr().err
    assert "a flag --foo (environment AUTOSWIFT_FOO)" in err
    assert "hint: unset AUTOSWIFT_FOO" in err


def test_usage_errors_load_no_stage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "swift_autobatch.api", raising=False)
    with pytest.raises(SystemExit):
        main(["plan", "--sft_type", "lora"])
    assert "swift_autobatch.api" not in sys.modules


EMPTY = [
    (("plan", "--dataset", ""), "--dataset is given an empty value"),
    (("sft", "--model=", "--dataset", "rows.jsonl"), "--model is given an empty value"),
    (("plan", "--dataset", "rows.jsonl", " "), "the word after 'rows.jsonl' is empty"),
    (("plan", "--output-dir", ""), "--output-dir is given an empty value"),
    (("plan", "--deepspeed", ""), "--deepspeed is given an empty value"),
    (("plan", "--sweep", ""), "--sweep is given an empty value"),
    (("profile", ""), "the word after 'profile' is empty"),
    (("profile", "rows.jsonl", "--plot", ""), "--plot is given an empty value"),
    (("profile", "rows.jsonl", "--repair="), "--repair is given an empty value"),
    (("rehearse", ""), "the word after 'rehearse' is empty"),
    (("check", ""), "the word after 'check' is empty"),
    (("import", "rows.jsonl", "-o", ""), "-o is given an empty value"),
    (("explain", ""), "the word after 'explain' is empty"),
    (("env", "--gpus", ""), "--gpus is given an empty value"),
]


@pytest.mark.parametrize(("words", "said"), EMPTY)
def test_an_empty_word_is_never_the_current_folder_nor_a_default(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"query": "a", "response": "b"}\n' * 9)
    with pytest.raises(SystemExit) as caught:
        main(words)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert f"error: {said}" in err
    assert "hint: a shell variable that is not set gives one" in err


def test_an_empty_system_prompt_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(("plan", "--system", "", "--gpus", "1x4090"))
    assert caught.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize("forced", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_rows_and_paths_of_any_script_are_written_whatever_the_locale(tmp_path: Path, forced: dict[str, str]) -> None:
    row = '{"query": "你是谁？", "response": "我是小模型"}\n'
    (tmp_path / "数据.jsonl").write_text(row * 3, encoding="utf-8")
    env = {**os.environ, "LANG": "C", "LC_ALL": "C", **forced}
    code = "import sys; from swift_autobatch.cli import main; main(sys.argv[1:])"

    def told(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-c", code, *words, "--gpus", "1x4090"]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=120, check=False)
        return done.returncode, (done.stdout + done.stderr).decode("utf-8")

    status, said = told("profile", "数据.jsonl")
    assert (status, "数据.jsonl" in said, "█" in said) == (0, True, True)
    status, said = told("plan", "--dataset", "没有.jsonl")
    assert (status, "没有.jsonl" in said) == (5, True)
