"""Golden commands of every shipped strategy in the flags of every engine version that we know."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from goldens import Golden

from swift_autobatch import render
from swift_autobatch.errors import AutoswiftError, UsageError
from swift_autobatch.planner import make_plan
from swift_autobatch.records import Facts, Plan, Strategy
from swift_autobatch.strategies import load_strategies
from swift_autobatch.tables import DIALECTS, dialect

VERSIONS = {"4.6": "4.6.0", "3.12": "3.12.6"}
MACHINES: tuple[tuple[str | None, int], ...] = (  # cards, or CPU processes
    ("1xA100-80G", 1),
    ("1xT4", 1),
    ("2xA100-80G", 2),
    ("4xA100-80G", 4),
    (None, 1),
    (None, 2),
)
EVERYTHING = ("deepspeed", "bitsandbytes", "flash-attn", "liger-kernel")


def facts_on(tmp_path: Path, spec: str | None, processes: int, version: str) -> Facts:
    small = spec in (None, "1xT4")
    model = "Qwen/Qwen2.5-0.5B-Instruct" if small else "Qwen/Qwen2.5-7B-Instruct"
    found = builders.facts(tmp_path, spec, model, (100, 300 if small else 8000) * 20, processes=processes)
    versions = {**found.machine.software.versions, **dict.fromkeys(EVERYTHING, "1.0"), "ms-swift": version}
    return replace(found, machine=replace(found.machine, software=replace(found.machine.software, versions=versions)))


def places(strategy: Strategy) -> Iterator[tuple[str | None, int, str]]:
    """Machines and tuners that a strategy says it is for."""
    devices = strategy.when.get("devices", {})
    for spec, processes in MACHINES:
        kind = "gpu" if spec else "cpu"
        if strategy.when.get("accelerator", kind) == kind and (
            devices.get("min", 1) <= processes <= devices.get("max", processes)
        ):
            for tuner in strategy.when.get("tuner", ("lora", "full")):
                yield spec, processes, tuner


def planned(strategy: Strategy, version: str, tmp_path: Path) -> Plan | None:
    """The strategy on the first machine where it fits; None for one that is never rendered."""
    if "megatron" not in strategy.name:
        for spec, processes, tuner in places(strategy):
            request = builders.request(strategy=strategy.name, pins={"tuner_type": tuner})
            facts = facts_on(tmp_path, spec, processes, version)
            try:
                return make_plan(request, facts, load_strategies(), "/project", "/home/user")
            except AutoswiftError:
                continue
    return None


@pytest.mark.parametrize("minor", DIALECTS)
def test_commands(minor: str, tmp_path: Path, golden: Golden) -> None:
    lines = []
    engine = dialect(DIALECTS[minor])
    for strategy in load_strategies():
        plan = planned(strategy, VERSIONS[minor], tmp_path)
        if plan is None:
            lines.append(f"{strategy.name}: not rendered")
            continue
        argv = render.render(plan).argv
        assert {word[2:] for word in argv if word.startswith("--")} <= set(engine.flags)
        lines.append(f"{strategy.name}: swift sft {shlex.join(argv)}")
    assert [line for line in lines if line.endswith("not rendered")] == ["megatron: not rendered"]
    golden.check(f"dialects/{DIALECTS[minor]}.txt", "\n".join(lines) + "\n")


def test_a_flag_that_the_installed_engine_is_too_old_for_is_refused(tmp_path: Path) -> None:
    request = builders.request(pins={"packing_strategy": "sequential"})
    with pytest.raises(UsageError, match=r"ms-swift 3\.12\.6 has no --packing_strategy") as caught:
        make_plan(request, facts_on(tmp_path, "1xA100-80G", 1, "3.12.6"), load_strategies(), "/project", "/home/user")
    assert caught.value.hints[0] == "drop --packing_strategy"
