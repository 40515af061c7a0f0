"""The table of the engine's flags: sound in itself, and the same as the installed engine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swift_autobatch.engine_flags import BETTER_VALUES, MINIMUM, OWNED, PATHS, PRESETS
from swift_autobatch.tables import DIALECT, DIALECTS, Flag, dialect, dialect_of

SCRIPT = Path(__file__).parent.parent / "scripts" / "make_dialect.py"
OLD_SCRIPT = SCRIPT.with_name("make_old_dialect.py")
OLD = "ms-swift-3.12"


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


def test_the_dialect_follows_the_installed_version() -> None:
    assert dialect_of("4.6.0") == dialect_of("4.6.2.dev0") == dialect_of(None) == DIALECT
    assert dialect_of("3.12.6") == OLD
    assert dialect_of("3.1.2") is dialect_of("5.0") is None


def test_every_dialect_says_what_becomes_of_every_flag_of_today() -> None:
    for name in DIALECTS.values():
        engine = dialect(name)
        today = set(dialect().flags)
        assert engine.absent <= today
        assert set(engine.names) <= today
        assert {engine.names.get(flag, flag) for flag in today - engine.absent} <= set(engine.flags)
    old = dialect(OLD)
    assert (old.version, len(old.flags), len(old.absent)) == ("3.12.6", 346, 22)
    assert old.names == {"tuner_type": "train_type", "eval_metric": "metric", "safe_serialization": "save_safetensors"}


def test_the_reading_of_sources_finds_what_the_parser_has() -> None:
    """3.12 is read from its source; the same reading of the installed 4.6 must give the flags of its own parser."""
    sys.path.insert(0, str(OLD_SCRIPT.parent))
    try:
        import make_old_dialect
    finally:
        sys.path.pop(0)
    package = importlib.util.find_spec("swift")
    assert package is not None
    read = make_old_dialect.flags(Path(str(package.origin)).parents[1], "SftArguments")
    parsed = dialect().flags
    assert set(read) - set(parsed) == {"liger_kernel_config", "parallelism_config"}  # fields that no text converts to
    assert set(parsed) <= set(read)
    kinds = {name: (read[name]["kind"], flag.kind) for name, flag in parsed.items()}
    assert {name for name, (one, other) in kinds.items() if one != other} == {"include_num_input_tokens_seen"}
    lists = {name for name, flag in parsed.items() if read[name].get("many", False) != flag.many}
    assert lists == {"optim_target_modules"}


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
