"""Every strategy of the table is rehearsed through the public command: its real plan, in small, on CPU processes.

What ran is read from inside the engine (the telemetry's ``effective`` row), not from the flags. 15 to 30 s each on 2
cores, one after the other: two engines at once are slower than two in a row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import public_command
import pytest

from swift_autobatch.strategies import load_strategies

pytestmark = pytest.mark.engine


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rehearsal: the words after ``autoswift rehearse`` and what must be found inside the engine.

    ``zero`` is the ZeRO stage, None without DeepSpeed; PLANNED where the strategy leaves it to the planner.
    """

    name: str
    words: tuple[str, ...]
    tuner: str = "full"
    world: int = 1
    zero: int | str | None = None
    inside: dict[str, Any] = field(default_factory=dict)


def shipped(name: str, **more: Any) -> Case:
    return Case(name=name, words=(name,), **more)


PLANNED = "planned"
NF4 = {"quantised": "nf4", "optimizer": "AdamW"}
HOST_ADAM = {"optimizer": "DeepSpeedCPUAdam"}
FLASH = {"attention": "flash_attention_2"}
CASES = (
    shipped("cpu", tuner="lora"),
    shipped("cpu-ddp", tuner="lora", world=2),
    shipped("single-lora", tuner="lora"),
    shipped("single-full"),
    shipped("single-qlora", tuner="lora", inside=NF4),
    shipped("single-qlora-offload", tuner="lora", zero=2, inside={"quantised": "nf4", **HOST_ADAM}),
    shipped("single-zero2", zero=2),
    shipped("packing", tuner="lora", zero=PLANNED, inside=FLASH),
    shipped("long-sequence", tuner="lora", zero=PLANNED, inside=FLASH),
    shipped("multi-ddp", world=2),
    Case(  # no strategy is for it; and a model that is built in small
        name="zero0",
        words=("--gpus", "2xA100-80G", "--deepspeed", "zero0", "--model", "Qwen/Qwen2.5-0.5B"),
        world=2,
        zero=0,
    ),
    shipped("multi-zero1", world=2, zero=1),
    shipped("multi-zero2", world=2, zero=2),
    shipped("multi-zero2-offload", world=2, zero=2, inside=HOST_ADAM),
    shipped("multi-zero3", world=2, zero=3),
    Case(name="zero3-offload", words=("zero3-offload", "--nproc", "2"), world=2, zero=3, inside=HOST_ADAM),
    shipped("multi-fsdp2", world=2, inside={"fsdp": True}),
    shipped("multi-fsdp2-offload", world=2, inside={"fsdp": True}),
    shipped("sequence-parallel", world=2, zero=PLANNED, inside={"sequence_parallel": 2}),
    shipped("tensor-parallel", world=2, zero=PLANNED, inside={"tensor_parallel": 2}),
)
NEVER = {"megatron": "is not rendered"}  # strategies that cannot start anywhere yet


def test_every_shipped_strategy_is_rehearsed_here() -> None:
    assert {case.name for case in CASES} - {"zero0"} | set(NEVER) == {row.name for row in load_strategies()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_starts_for_real(case: Case, tmp_path: Path) -> None:
    done = public_command.run(tmp_path, "rehearse", *case.words, "--tuner_type", case.tuner, "--json")
    assert done.exit_code == 0, done.stderr
    found, inside = done.json, done.effective()
    assert (found["schema"], found["verdict"], found["child_exit"]) == ("autoswift.rehearsal/1", "pass", 0)
    assert [step["step"] for step in found["steps"]] == [1, 2]
    if not case.words[0].startswith("--"):
        assert found["strategy"] == case.words[0]
    wanted = {
        "world_size": case.world,
        "zero_stage": _stage(found["real"]["parallel"]) if case.zero == PLANNED else case.zero,
        "fsdp": False,
        "quantised": None,
        "sequence_parallel": 1,
        "tensor_parallel": 1,
        **case.inside,
    }
    assert {name: inside[name] for name in wanted} == wanted
    assert len(done.telemetry_files()) == case.world
    trained = inside["trainable_parameters"] / inside["parameters"]
    assert trained < 0.2 if case.tuner == "lora" else trained == 1
    assert json.loads((done.run_folder() / "autoswift" / "rehearsal.json").read_text(encoding="utf-8")) == found


def _stage(parallel: str) -> int | None:
    return int(parallel[4]) if parallel.startswith("zero") else None
