"""Every strategy of the table starts for real on a CPU, through the public command: two optimizer steps each.

What ran is read from inside the engine (the telemetry's ``effective`` row), not from the flags. About 15 s each on
2 cores, one after the other: two engines at once are slower than two in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import public_command
import pytest

pytestmark = pytest.mark.engine


@dataclass(frozen=True, kw_only=True)
class Case:
    """One strategy: the words after ``autoswift dry-run`` and what must be found inside the engine."""

    name: str
    words: tuple[str, ...]
    tuner: str = "full"
    world: int = 1
    zero: int | None = None
    inside: dict[str, Any] = field(default_factory=dict)


def forced(name: str, **more: Any) -> Case:
    return Case(name=name, words=("--strategy", name), **more)


NF4 = {"quantised": "nf4", "optimizer": "AdamW"}
HOST_ADAM = {"optimizer": "DeepSpeedCPUAdam"}
CASES = (
    forced("cpu", tuner="lora"),
    forced("single-qlora", tuner="lora", inside=NF4),
    forced("single-qlora-offload", tuner="lora", zero=2, inside={"quantised": "nf4", **HOST_ADAM}),
    forced("single-zero2", zero=2),
    forced("multi-ddp", world=2),
    Case(name="zero0", words=("--deepspeed", "zero0"), world=2, zero=0),
    Case(name="zero1", words=("--deepspeed", "zero1"), world=2, zero=1),
    forced("multi-zero2", world=2, zero=2),
    forced("multi-zero2-offload", world=2, zero=2, inside=HOST_ADAM),
    forced("multi-zero3", world=2, zero=3),
    forced("zero3-offload", world=2, zero=3, inside=HOST_ADAM),
    forced("multi-fsdp2", world=2, inside={"fsdp": True}),
    Case(
        name="sequence-parallel",
        words=("--strategy", "sequence-parallel", "--sequence_parallel_size", "2"),
        world=2,
        inside={"sequence_parallel": 2},
    ),
    Case(
        name="tensor-parallel",
        words=("--strategy", "tensor-parallel", "--deepspeed_autotp_size", "2"),
        world=2,
        zero=1,
        inside={"tensor_parallel": 2},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_starts_for_real(case: Case, tmp_path: Path) -> None:
    nproc = ("--nproc", str(case.world)) if case.world > 1 else ()
    done = public_command.dry_run(tmp_path, "--tuner_type", case.tuner, *nproc, *case.words)
    assert done.exit_code == 0, done.stderr
    receipt, found = done.json, done.effective()
    assert (receipt["verdict"], receipt["child_exit"], receipt["measured"]["steps"]) == ("pass", 0, 2)
    if case.words[0] == "--strategy":
        assert receipt["strategy"] == case.words[1]
    wanted = {
        "world_size": case.world,
        "zero_stage": case.zero,
        "fsdp": False,
        "quantised": None,
        "sequence_parallel": 1,
        "tensor_parallel": 1,
        **case.inside,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert len(done.telemetry_files()) == case.world
    trained = found["trainable_parameters"] / found["parameters"]
    assert trained < 0.2 if case.tuner == "lora" else trained == 1
