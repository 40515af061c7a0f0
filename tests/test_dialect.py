"""The table of the engine's flags: sound in itself, and the same as the installed engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from swift_autobatch.engine_flags import BETTER_VALUES, MINIMUM, OWNED, PATHS, PRESETS
from swift_autobatch.tables import Flag, dialect

SCRIPT = Path(__file__).parent.parent / "scripts" / "make_dialect.py"


def test_counts_of_the_table() -> None:
    assert dialect().version == "4.6.0"
    assert len(dialect().flags) == 331
    assert len(dialect().renamed) == 93


@pytest.mark.parametrize("flag", dialect().flags.values(), ids=lambda flag: flag.name)
def test_every_row_is_well_formed(flag: Flag) -> None:
    assert flag.kind in {"bool", "int", "float", "str", "json"}
    assert not (flag.choices and flag.kind != "str")
    assert flag.default is not None or flag.optional or flag.many
    if flag.choices and flag.default is not None:
        assert flag.default in flag.choices


@pytest.mark.parametrize("old", dialect().renamed)
def test_old_names_lead_to_flags_that_exist(old: str) -> None:
    assert old not in dialect().flags
    words = dialect().renamed[old]
    named = re.findall(r"--(\w+)", words.split("`")[0])
    assert named or words.startswith("nothing")
    assert set(named) <= set(dialect().flags)


def test_tables_of_exceptions_name_flags_that_exist() -> None:
    for table in (OWNED, MINIMUM, PATHS, PRESETS, [name for name, _ in BETTER_VALUES]):
        assert set(table) <= set(dialect().flags)


@pytest.mark.engine
def test_the_committed_dialect_is_the_installed_engine() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.engine
def test_the_engine_accepts_what_we_accept_and_refuses_what_we_refuse() -> None:
    """Our reading of types against the engine's own parser: one process, many values."""
    code = """
import json, sys
from swift.arguments import SftArguments
from transformers import HfArgumentParser
parser = HfArgumentParser([SftArguments])
answers = []
for words in json.load(sys.stdin):
    try:
        parser.parse_args(words)
        answers.append(True)
    except SystemExit:
        answers.append(False)
print("ANSWERS", json.dumps(answers))
"""
    import json

    from swift_autobatch.engine_flags import parse
    from swift_autobatch.errors import UsageError

    cases = [[f"--{flag.name}", value] for flag in dialect().flags.values() for value in ("1", "0.5", "true", "word")]
    cases = [case for case in cases if case[0][2:] not in {*OWNED, *MINIMUM}]
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout.split("ANSWERS ")[1])
    ours = []
    for case in cases:
        try:
            parse(case, dialect())
            ours.append(True)
        except UsageError:
            ours.append(False)
    assert [case for case, a, b in zip(cases, theirs, ours, strict=True) if a != b] == []
    assert 0.2 < sum(ours) / len(ours) < 1
