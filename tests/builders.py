"""Builds facts and requests for tests: catalogue cards, catalogue models, rows of given lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from swift_autobatch.facts.cards import assumed_machine
from swift_autobatch.facts.model import read_model
from swift_autobatch.facts.software import read_software
from swift_autobatch.records import (
    Candidate,
    DataFacts,
    Environment,
    Facts,
    Host,
    Machine,
    Request,
    Row,
    Sourced,
)
from swift_autobatch.units import GIB


def environment(tmp_path: Path) -> Environment:
    home = tmp_path / "home"
    return Environment(
        variables={"PATH": "/usr/bin:/bin", "HOME": str(home), "HF_HUB_OFFLINE": "1"},
        cwd=str(tmp_path),
        home=str(home),
        cache_dir=str(home / ".cache/autoswift"),
        state_dir=str(home / ".local/state/autoswift"),
        interpreter="python3",
    )


def data_facts(lengths: tuple[int, ...] = (120,) * 50, **changes: Any) -> DataFacts:
    ordered = tuple(sorted(lengths))
    facts = DataFacts(
        files=("/project/rows.jsonl",),
        rows=len(ordered),
        kept=len(ordered),
        problems=(),
        lengths=ordered,
        p50_tokens=ordered[len(ordered) // 2],
        p95_tokens=ordered[int((len(ordered) - 1) * 0.95)],
        max_tokens=ordered[-1],
        mean_tokens=sum(ordered) / len(ordered),
        mean_supervised_tokens=sum(ordered) / len(ordered) / 2,
        max_supervised_tokens=ordered[-1] // 2,
        costliest=(
            Row(
                file="/project/rows.jsonl",
                line=1,
                tokens=ordered[-1],
                supervised_tokens=ordered[-1] // 2,
                record={"query": "q", "response": "r"},
            ),
        ),
        tokenizer="tokenizer.json",
        exact=True,
        digest="0" * 64,
        self_cognition=False,
    )
    return replace(facts, **changes)


def cpu_machine(tmp_path: Path, processes: int = 1, ram_gib: float = 24) -> Machine:
    return Machine(
        gpus=(),
        links="none",
        link_gb_s=None,
        host=Host(
            cpu_cores=2,
            ram_total_bytes=round(ram_gib * GIB),
            ram_budget_bytes=round(ram_gib * GIB),
            ram_source="test",
            shm_bytes=None,
            disk_free_bytes=None,
            gflops=60.0,
        ),
        software=read_software(environment(tmp_path)),
        visible_devices=None,
        processes=processes,
    )


def facts(
    tmp_path: Path,
    gpus: str | None = "1x4090",
    model: str = "Qwen/Qwen2.5-7B-Instruct",
    lengths: tuple[int, ...] = (120,) * 50,
    processes: int = 1,
    **data: Any,
) -> Facts:
    env = environment(tmp_path)
    machine = assumed_machine(gpus, read_software(env)) if gpus else cpu_machine(tmp_path, processes)
    return Facts(machine=machine, model=read_model(model, env), data=data_facts(lengths, **data))


def request(**changes: Any) -> Request:
    """A request of defaults; ``pins`` as plain strings, other fields as plain values."""
    pins = {flag: Sourced(value=value, source=f"flag --{flag}") for flag, value in changes.pop("pins", {}).items()}
    plain: dict[str, Any] = {
        "model": None,
        "datasets": ("/project/rows.jsonl",),
        "strategy": None,
        "parallel_method": "auto",
        "global_batch": 16,
        "lr_scaling": "sqrt",
        "lr_base": None,
        "nproc": None,
        "gpus": None,
        "hardware_file": None,
        "output_dir": None,
        "gate_timeout_s": 600.0,
    }
    plain.update(changes)
    sourced = {name: Sourced(value=value, source="default") for name, value in plain.items()}
    return Request(pins=pins, **sourced)


def candidate(**changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "strategy": "single-lora",
        "device": "gpu",
        "world": 1,
        "tuner": "lora",
        "quant": "none",
        "parallel": "none",
        "micro_batch": 1,
        "accumulation": 16,
        "max_length": 2048,
        "max_tokens": 2048,
        "gradient_checkpointing": True,
        "attn_impl": None,
        "torch_dtype": "bfloat16",
    }
    fields.update(changes)
    return Candidate(**fields)
