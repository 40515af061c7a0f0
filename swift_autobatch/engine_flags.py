"""Reads ``swift sft`` flags as ms-swift would, but stricter: every flag and value is checked before any import.

The engine accepts abbreviations silently, lets the last of two equal flags win, repairs malformed JSON into a
different one, and reports an unknown flag only after seconds of imports. Here each of these is one error that
names the flag and what to write instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swift_autobatch.errors import UsageError
from swift_autobatch.records import Sourced
from swift_autobatch.tables import Dialect, Flag, near

Value = str | tuple[str, ...]

# Flags that the engine has and autoswift sets itself; a user's value would break the run folder or the launch.
OWNED: Mapping[str, str] = {
    "add_version": "autoswift gives every run its own folder; choose where with --output-dir",
    "local_rank": "the launcher sets it; choose the number of processes with --nproc",
    "ignore_args_error": "autoswift checks every flag itself",
    "hub_token": "it would be written into run.sh, recipes and receipts; set MODELSCOPE_API_TOKEN or HF_TOKEN instead",
}

# Flags to which an empty text says something: no system prompt, nothing before the answer. Behind any other flag it is
# a variable that the shell found unset (--dataset "$DATA"), and would stand for the current folder or for a default.
EMPTY_MEANS = frozenset({"system", "response_prefix"})

# Values that a person writes in good faith and the engine rejects only after loading the model.
BETTER_VALUES: Mapping[tuple[str, str], str] = {
    ("tuner_type", "qlora"): "--tuner_type lora --quant_method bnb --quant_bits 4",
    ("target_modules", "ALL"): "--target_modules all-linear",
    ("truncation_strategy", "truncation_left"): "--truncation_strategy left",
    ("deepspeed", "default-zero2"): "--deepspeed zero2",
    ("deepspeed", "default-zero3"): "--deepspeed zero3",
    ("fsdp", "full_shard auto_wrap"): "--fsdp fsdp2",
}

# swift/arguments/tuner_args.py and swift/pipelines/train/tuner.py:350: any other word dies after the model is loaded,
# unless a plugin of the user's brings it.
TUNERS = frozenset(
    "lora full lora_llm longlora adalora llamapro adapter vera boft fourierft reft bone ia3 dummy unsloth".split()
)

# Presets that the engine knows by name (swift/arguments/sft_args.py, _init_deepspeed and _init_fsdp).
PRESETS: Mapping[str, tuple[str, ...]] = {
    "deepspeed": ("zero0", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"),
    "fsdp": ("fsdp2",),
}

# Files that must exist when the run starts; a hub id is not accepted here by the engine.
PATHS = frozenset({"external_plugins", "custom_register_path", "resume_from_checkpoint"})
# Like a dataset: a file or folder, or a hub id, perhaps with a subset and a sample. A name with an ending is a file.
_DATA = frozenset({"val_dataset", "cached_dataset", "cached_val_dataset"})

# The least value that makes sense, where the engine would fail late or loop for ever.
MINIMUM: Mapping[str, int] = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "max_length": 1,
    "lora_rank": 1,
    "logging_steps": 1,
    "sequence_parallel_size": 1,
    "deepspeed_autotp_size": 1,
    "dataloader_num_workers": 0,
    "learning_rate": 0,
    "warmup_ratio": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "split_dataset_ratio": 0,
    "lora_dropout": 0,
}

# Values that must stay below this.
BELOW: Mapping[str, float] = {"split_dataset_ratio": 1, "lora_dropout": 1, "warmup_ratio": 1}

# Values that must be above zero, or one word of the engine's for "not set".
POSITIVE: Mapping[str, str | None] = {
    "num_train_epochs": None,
    "max_steps": "-1",
    "save_steps": None,
    "lora_alpha": None,
}

_TRUE = frozenset({"yes", "true", "t", "y", "1"})  # transformers/hf_argparser.py, string_to_bool
_FALSE = frozenset({"no", "false", "f", "n", "0"})
_OPTION = re.compile(r"--|-[A-Za-z]")  # -1 and - are values
_INT = re.compile(r"[+-]?\d+")


def shown(value: Value) -> str:
    """A value as a person would type it."""
    return value if isinstance(value, str) else " ".join(value)


def split_name(token: str) -> tuple[str, str | None]:
    """``--max-length=2048`` -> (``max_length``, ``2048``); the value is None without ``=``."""
    name, equals, value = token[2:].partition("=")
    return name.replace("-", "_"), value if equals else None


def parse(argv: Sequence[str], dialect: Dialect, ours: Iterable[str] = ()) -> dict[str, Value]:
    """Reads engine flags: ``--flag value``, ``--flag=value``, many values, bare booleans, ``--no_flag``.

    Args:
        argv: what stands after ``autoswift sft`` without autoswift's own options.
        dialect: the engine's flags.
        ours: autoswift's own option names, for the hints only.

    Returns:
        Values by the engine's own flag name, checked by :func:`check`; booleans are ``true`` or ``false``.

    Raises:
        UsageError: an unknown, renamed, abbreviated, repeated or owned flag; a stray word; a bad value.
    """
    found: dict[str, Value] = {}
    index = 0
    while index < len(argv):
        token = argv[index]
        if not token.startswith("--") or token == "--":
            raise _stray(token, found)
        name, value = split_name(token)
        index += 1
        values = [] if value is None else [value]
        while value is None and index < len(argv) and not _OPTION.match(argv[index]):
            values.append(argv[index])
            index += 1
        flag, values = _resolve(name, values, dialect, ours)
        if flag.name in found:
            raise UsageError(f"--{flag.name} is given twice", where=token, hints=("keep one of them",))
        found[flag.name] = check(flag, values, where=f"--{flag.name}")
    return found


def _stray(token: str, found: Mapping[str, Value]) -> UsageError:
    if token.startswith("-") and len(token) > 1 and token != "--":
        return UsageError(
            f"no such option: {token}",
            where=token,
            hints=(
                "engine flags start with two dashes",
                "a value that starts with a dash is written after '=': --system='-x'",
            ),
        )
    after = list(found)[-1:] if found else []
    if after:
        hint = f"--{after[0]} takes the value after '='; put further words under their own flag"
    else:
        hint = f"a dataset is given as: --dataset {token}"
    return UsageError(f"unexpected word {token!r}", where=token, hints=(hint,))


def _resolve(name: str, values: list[str], dialect: Dialect, ours: Iterable[str]) -> tuple[Flag, list[str]]:
    """The flag of a name, with ``--no_x`` turned into ``x false`` and a bare boolean into ``true``."""
    if name.startswith("no_") and name not in dialect.flags:
        positive = dialect.flags.get(name[3:])
        if positive is not None and positive.kind == "bool":
            if values:
                raise UsageError(
                    f"--{name} takes no value", where=f"--{name}", hints=(f"write --{positive.name} false",)
                )
            return positive, ["false"]
    flag = find(name, dialect, ours)
    if not values and flag.kind == "bool":
        return flag, ["true"]
    return flag, values


def find(name: str, dialect: Dialect, ours: Iterable[str] = (), where: str = "") -> Flag:
    """The engine flag of that name.

    Raises:
        UsageError: unknown (near names), renamed (the new name), abbreviated (the full one), owned by autoswift.
    """
    where = where or f"--{name}"
    if name in OWNED:
        raise UsageError(f"--{name} is not yours to set", where=where, hints=(OWNED[name],))
    flag = dialect.flags.get(name)
    if flag is not None:
        return flag
    words = dialect.renamed.get(name)
    if words is not None:
        hint = f"write {words}"
        raise UsageError(f"--{name} does not exist in ms-swift {dialect.version}", where=where, hints=(hint,))
    kebab = [own.replace("_", "-") for own in ours]
    starts = [*sorted(full for full in dialect.flags if full.startswith(name))]
    starts += [own for own in kebab if own.startswith(name.replace("_", "-"))]
    if starts and len(name) > 2:
        raise UsageError(
            f"--{name} is an abbreviation, which autoswift does not accept",
            where=where,
            hints=(f"write {' or '.join('--' + full for full in starts[:4])}",),
        )
    likely = near(name, [*dialect.flags, *(own.replace("-", "_") for own in kebab), *dialect.renamed])
    likely = tuple(dict.fromkeys(_today(other, dialect, kebab) for other in likely))
    hints = [f"did you mean {' or '.join(likely)}?"] if likely else []
    if where.startswith("environment "):
        hints.append(f"unset {where.removeprefix('environment ')}")
    hints = hints or ["`swift sft --help` lists the engine's flags"]
    raise UsageError(
        f"neither autoswift nor ms-swift {dialect.version} has a flag --{name}", where=where, hints=tuple(hints)
    )


def _today(name: str, dialect: Dialect, kebab: Sequence[str]) -> str:
    """How a near name is written now: its own spelling, or the words that replaced it."""
    if name in dialect.renamed:
        return dialect.renamed[name].split(" ")[0] if dialect.renamed[name].startswith("--") else f"--{name}"
    own = name.replace("_", "-")
    return f"--{own}" if own in kebab else f"--{name}"


def text(value: Any) -> list[str]:
    """A Python value as the words that a command line would hold: True -> ``true``, a dict -> JSON."""
    if isinstance(value, (list, tuple)):
        return [word for item in value for word in text(item)]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, dict):
        return [json.dumps(value, ensure_ascii=False)]
    return [str(value)]


def check(flag: Flag, values: Sequence[str], where: str) -> Value:
    """Type-checks the words given for one flag.

    Args:
        flag: its row of the dialect.
        values: the words, as typed.
        where: ``--max_length`` or ``environment AUTOSWIFT_MAX_LENGTH``.

    Returns:
        One string, or a tuple for a flag that takes many; booleans normalised.

    Raises:
        UsageError: no value, an empty one, too many, the wrong type, not one of the choices.
    """
    if not values:
        raise UsageError(f"--{flag.name} needs a value", where=where, hints=(_example(flag),))
    if flag.name not in EMPTY_MEANS and not all(value.strip() for value in values):
        raise is_empty(f"--{flag.name}", where)
    if len(values) > 1 and not flag.many:
        raise UsageError(
            f"--{flag.name} takes one value, not {len(values)}: {' '.join(values)}",
            where=where,
            hints=("put a value with spaces in quotes",),
        )
    checked = tuple(_one(flag, value, where) for value in values)
    return checked if flag.many else checked[0]


def is_empty(name: str, where: str) -> UsageError:
    """The refusal of an empty text; ``name`` as it is typed."""
    hint = f"a shell variable that is not set gives one: set it, or leave {name} out"
    return UsageError(f"{name} is given an empty value", where=where, hints=(hint,))


def _one(flag: Flag, value: str, where: str) -> str:
    better = BETTER_VALUES.get((flag.name, value))
    if better:
        raise UsageError(f"ms-swift does not take {value!r} for --{flag.name}", where=where, hints=(f"write {better}",))
    if flag.kind == "bool":
        return _bool(flag, value, where)
    if flag.kind in ("int", "float"):
        return _number(flag, value, where)
    if flag.choices and value not in flag.choices:
        likely = near(value, list(flag.choices), 1)
        hints = ((f"did you mean --{flag.name} {likely[0]}?",) if likely else ()) + (
            f"one of: {', '.join(flag.choices)}",
        )
        raise UsageError(f"--{flag.name} does not know {value!r}", where=where, hints=hints)
    if flag.kind == "json":
        _json(flag, value, where)
    return value


def _bool(flag: Flag, value: str, where: str) -> str:
    if value.lower() in _TRUE:
        return "true"
    if value.lower() in _FALSE:
        return "false"
    raise UsageError(f"--{flag.name} is true or false, not {value!r}", where=where, hints=(_example(flag),))


def _number(flag: Flag, value: str, where: str) -> str:
    bad = UsageError(
        f"--{flag.name} needs {'a whole number' if flag.kind == 'int' else 'a number'}, not {value!r}",
        where=where,
        hints=(_example(flag),),
    )
    if flag.kind == "int" and not _INT.fullmatch(value):
        raise bad
    try:
        number = float(value)
    except ValueError:
        raise bad from None
    if not math.isfinite(number):
        raise bad
    least = MINIMUM.get(flag.name)
    if least is not None and number < least:
        raise UsageError(f"--{flag.name} must be at least {least}, not {value}", where=where, hints=(_example(flag),))
    if number >= BELOW.get(flag.name, math.inf):
        raise UsageError(
            f"--{flag.name} must be below {BELOW[flag.name]:g}, not {value}", where=where, hints=(_example(flag),)
        )
    if flag.name in POSITIVE and number <= 0 and value != POSITIVE[flag.name]:
        raise UsageError(f"--{flag.name} must be above 0, not {value}", where=where, hints=(_example(flag),))
    return value


def check_tuner(pins: Mapping[str, Sourced[Value]]) -> None:
    """Refuses a tuner that nobody has; a plugin of the user's may bring one of its own.

    Raises:
        UsageError: with the nearest names.
    """
    pin = pins.get("tuner_type")
    if pin is None or pin.value in TUNERS or {"external_plugins", "custom_register_path"} & set(pins):
        return
    likely = near(str(pin.value), sorted(TUNERS))
    raise UsageError(
        f"--tuner_type does not know {pin.value!r}",
        where=pin.source.removeprefix("flag "),
        hints=(
            f"did you mean {' or '.join(likely)}?" if likely else "--tuner_type lora",
            "a tuner of your own comes with --external_plugins FILE",
        ),
    )


def check_resume(pins: Mapping[str, Sourced[Value]], cwd: str) -> None:
    """Refuses to resume from a checkpoint that holds weights alone: the engine would stop after loading the model.

    Raises:
        UsageError: no trainer state in it, and ``--resume_only_model`` is not set.
    """
    pin, only = pins.get("resume_from_checkpoint"), pins.get("resume_only_model")
    if pin is None or not isinstance(pin.value, str) or (only is not None and only.value == "true"):
        return
    if not Path(cwd, pin.value, "trainer_state.json").is_file():
        raise UsageError(
            f"{pin.value} holds weights alone, not the state of a training: there is no trainer_state.json",
            where=pin.source.removeprefix("flag "),
            hints=("--resume_only_model true starts from these weights", "a checkpoint saved with its optimizer"),
        )


def _json(flag: Flag, value: str, where: str) -> None:
    """Refuses malformed JSON, which the engine would repair into something else. Paths are checked by files()."""
    if not value.lstrip().startswith(("{", "[")):
        return
    try:
        json.loads(value)
    except ValueError as error:
        raise UsageError(
            f"--{flag.name} is not valid JSON: {error}",
            where=where,
            hints=("JSON needs double quotes; wrap it in single ones: '{\"key\": 1}'",),
        ) from error


def _example(flag: Flag) -> str:
    """A value that the engine takes, for the hint."""
    if flag.choices:
        return f"for instance --{flag.name} {flag.choices[0]}"
    default = flag.default
    if flag.kind == "bool":
        return f"write --{flag.name} true or --{flag.name} false"
    if default in (None, "", []) or (isinstance(default, (int, float)) and default < MINIMUM.get(flag.name, default)):
        least = 2048 if flag.name == "max_length" else max(8, MINIMUM.get(flag.name, 0))
        default = {"int": least, "float": "1e-4"}.get(flag.kind, "VALUE")
    return f"for instance --{flag.name} {' '.join(text(default))}"


def _no_such_file(word: str, cwd: str) -> bool:
    """Whether a dataset is named as a file that is not there: ``rows.jsonl``, ``rows.jsonl#500``; hub ids may be."""
    path = Path(word.rpartition("#")[0] or word).expanduser()
    return path.suffix in (".json", ".jsonl", ".csv", ".parquet", ".txt") and not Path(cwd, path).exists()


def check_files(name: str, value: Value, cwd: str, where: str) -> None:
    """Checks that files which a flag names are there, before anything starts.

    Raises:
        UsageError: a missing plugin or checkpoint, or a ``--deepspeed`` or ``--fsdp`` that is no preset, file or JSON.
    """
    words = (value,) if isinstance(value, str) else value
    presets = PRESETS.get(name)
    for word in words:
        exists = Path(cwd, word).expanduser().exists() if not word.lstrip().startswith("{") else presets is not None
        if (name in PATHS and not exists) or (name in _DATA and _no_such_file(word, cwd)):
            raise UsageError(f"--{name}: no such file or folder: {word}", where=where, hints=("check the path",))
        if presets is not None and not exists and word not in presets:
            likely = near(word, list(presets), 1)
            hints = ((f"did you mean --{name} {likely[0]}?",) if likely else ()) + (
                f"one of {', '.join(presets)}, an existing JSON file, or JSON text",
            )
            raise UsageError(f"--{name} knows no {word!r}, and there is no such file", where=where, hints=hints)
