"""Whatever is typed, written or reported: a legal plan or one of our own errors with a hint, never anything else.

A sample of what is let through is shown to the engine's own parsers in one child process.
"""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_autobatch import render, rules
from swift_autobatch.adopt import read
from swift_autobatch.errors import AutoswiftError, InputError
from swift_autobatch.facts.cards import assumed_machine
from swift_autobatch.facts.machine_file import dump_machine, machine_from
from swift_autobatch.facts.software import read_software
from swift_autobatch.planner import make_plan
from swift_autobatch.recipe import read_recipe
from swift_autobatch.records import Plan
from swift_autobatch.request import build_request
from swift_autobatch.strategies import load_strategies
from swift_autobatch.tables import dialect

Flags = dict[str, str]
# Flags that rules are about, each with values that are right, wrong and contradictory together.
WORDS: dict[str, tuple[str, ...]] = {
    "deepspeed": (
        "zero0",
        "zero1",
        "zero2",
        "zero3",
        "zero2_offload",
        "zero3_offload",
        '{"zero_optimization": {"stage": 3}}',
    ),
    "fsdp": ("fsdp2",),
    "quant_bits": ("4", "8", "3"),
    "quant_method": ("bnb", "hqq"),
    "tuner_type": ("lora", "full"),
    "torch_dtype": ("bfloat16", "float16", "float32"),
    "fp16": ("true", "false"),
    "bf16": ("true", "false"),
    "packing": ("true", "false"),
    "padding_free": ("true",),
    "attn_impl": ("sdpa", "flash_attn", "eager"),
    "use_liger_kernel": ("true",),
    "optim": ("adamw_8bit", "paged_adamw_8bit", "galore_adamw_layerwise", "apollo_adamw"),
    "sequence_parallel_size": ("1", "2", "3", "4"),
    "deepspeed_autotp_size": ("1", "2", "16"),
    "group_by_length": ("true",),
    "lazy_tokenize": ("true",),
    "streaming": ("true",),
    "max_steps": ("10", "-1"),
    "warmup_ratio": ("0.1", "1.5"),
    "warmup_steps": ("5",),
    "load_best_model_at_end": ("true",),
    "split_dataset_ratio": ("0.1",),
    "save_steps": ("10", "1.5"),
    "eval_steps": ("4", "5"),
    "save_only_model": ("true",),
    "per_device_train_batch_size": ("1", "4", "0"),
    "max_length": ("64", "512", "999999"),
    "truncation_strategy": ("split", "right"),
    "device_map": ("auto",),
    "auto_find_batch_size": ("true",),
    "use_cpu": ("false",),
    "gradient_checkpointing": ("false",),
    "zero_hpz_partition_size": ("2",),
    "optimizer": ("muon", "galore"),
}
FLAGS = st.dictionaries(st.sampled_from(sorted(WORDS)), st.none(), max_size=5).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(WORDS[name]) for name in names})
)
MACHINES = ("1x4090", "2x4090", "4xA100-80G", "1xT4")


def planned(flags: Flags, spec: str, folder: Path) -> Plan | None:
    """The plan of what was typed; None where it ends in one of our errors, which must carry a hint."""
    argv = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
    try:
        request = build_request({}, ["--dataset", "/project/rows.jsonl", *argv], builders.environment(folder))
        return make_plan(request, builders.facts(folder, spec), load_strategies(), "/project", "/home/user")
    except AutoswiftError as error:
        assert error.what
        assert error.hints, error.what
        return None


@given(FLAGS, st.sampled_from(MACHINES))
@settings(max_examples=60)
def test_flags_end_in_a_legal_plan_or_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, flags: Flags, spec: str
) -> None:
    plan = planned(flags, spec, tmp_path_factory.getbasetemp())
    if plan is None:
        return
    pins = {name: pin for name, pin in plan.engine_args.items() if name in flags}
    assert rules.check(plan.candidate, plan.facts, rules.Flags(pins)) is None
    assert plan.prediction.fits
    assert all(plan.engine_args[flag].value == value for flag, value in flags.items())  # a pin is never changed


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 99), st.floats(), st.text(max_size=8), st.just("lora"))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=6), inner, max_size=2)),
    max_leaves=4,
)
KEYS = ["model", "dataset", "strategy", "prefer", "global_batch", "nproc", "flags", "lr_base", "foo"]


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    st.dictionaries(st.sampled_from([*sorted(dialect().flags)[::9], "foo"]), VALUES, max_size=3),
)
@settings(max_examples=60)
def test_recipes_end_in_a_request_or_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, asked: dict[str, Any], flags: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.safe_dump({"schema": "autoswift.recipe/1", "request": {**asked, "flags": flags}}))
    try:
        read_recipe(path)
        build_request({"recipe": str(path)}, (), builders.environment(path.parent))
    except AutoswiftError as error:
        assert error.what


@given(st.data())
@settings(max_examples=60)
def test_hardware_files_end_in_a_machine_or_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    env = builders.environment(tmp_path_factory.getbasetemp())
    document = dump_machine(assumed_machine(data.draw(st.sampled_from(MACHINES)), read_software(env)))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(VALUES)
            break
    try:
        machine = machine_from(document, "fuzz.json")
    except InputError as error:
        assert error.hints
        return
    assert machine.processes >= 1


def _accepted(folder: Path, count: int) -> list[tuple[Flags, Plan]]:
    """Random flags that were let through, each with its plan."""
    draw = random.Random(5)
    found: list[tuple[Flags, Plan]] = []
    while len(found) < count:
        flags = {name: draw.choice(WORDS[name]) for name in draw.sample(sorted(WORDS), draw.randrange(1, 4))}
        plan = planned(flags, draw.choice(MACHINES), folder)
        if plan is not None:
            found.append((flags, plan))
    return found


@pytest.mark.engine
def test_the_engine_parses_what_check_and_plan_let_through(tmp_path: Path) -> None:
    """20 random jobs: their rendered commands, and scripts of them that ``check`` finds no error in."""
    sent = []
    for number, (flags, plan) in enumerate(_accepted(tmp_path, 20)):
        files = render.render(plan)
        argv = list(files.argv)
        config = json.loads(files.files["ds.json"]) if "ds.json" in files.files else None
        sent.append({"argv": argv, "deepspeed": config})
        words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        script = tmp_path / f"{number}.sh"
        script.write_text("swift sft --model m --dataset d.jsonl --max_length 64 " + shlex.join(words) + "\n")
        if not any(finding.level == "error" for finding in read(script, script.name).findings):
            sent.append({"argv": ["--model", "m", "--dataset", "d.jsonl", *words], "deepspeed": None})
    assert len(sent) > 20
    worker = Path(__file__).parents[1] / "benchmarks" / "engine_accepts.py"
    done = subprocess.run(
        [sys.executable, str(worker)], input=json.dumps(sent), capture_output=True, text=True, check=True
    )
    answers = json.loads(done.stdout)
    assert [(job["argv"], said) for job, said in zip(sent, answers, strict=True) if said] == []
