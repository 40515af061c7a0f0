"""A real little job for gate, run and ask: the embedded model, rows written by the test, the planner's own plan."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch import arguments
from swift_autobatch.facts import embedded
from swift_autobatch.records import (
    Candidate,
    DataFacts,
    Effective,
    Environment,
    Facts,
    Host,
    Machine,
    ModelFacts,
    PhaseMemory,
    Plan,
    Prediction,
    Request,
    Row,
    Software,
    Sourced,
)
from swift_autobatch.schedule import count_steps
from swift_autobatch.units import GIB


def environment(project: Path) -> Environment:
    """This process's variables (the test fixtures have isolated HOME) and this interpreter."""
    home = os.environ["HOME"]
    return Environment(
        variables=dict(os.environ),
        cwd=str(project),
        home=home,
        cache_dir=f"{home}/.cache/autoswift",
        state_dir=f"{home}/.local/state/autoswift",
        interpreter=sys.executable,
    )


def machine(processes: int = 1) -> Machine:
    return Machine(
        gpus=(),
        links="none",
        link_gb_s=None,
        host=Host(
            cpu_cores=2,
            ram_total_bytes=16 * GIB,
            ram_budget_bytes=12 * GIB,
            ram_source="test",
            shm_bytes=None,
            disk_free_bytes=None,
            gflops=60.0,
        ),
        software=Software(
            versions={"ms-swift": "4.6.0", "torch": "2.13.0", "deepspeed": "0.19.8", "bitsandbytes": "0.50.2"},
            python="3.11",
            driver=None,
            cuda_driver=None,
            compiler="/usr/bin/g++",
            nvcc=None,
        ),
        visible_devices=None,
        processes=processes,
    )


def model(folder: Path | None = None) -> ModelFacts:
    config = embedded.CONFIG
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    kv = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    linears = (
        ("q_proj", hidden, hidden),
        ("k_proj", hidden, kv),
        ("v_proj", hidden, kv),
        ("o_proj", hidden, hidden),
        ("gate_proj", hidden, inner),
        ("up_proj", hidden, inner),
        ("down_proj", inner, hidden),
    )
    total = config["vocab_size"] * hidden + layers * sum(a * b for _, a, b in linears)
    return ModelFacts(
        id="embedded",
        path=None if folder is None else str(folder),
        architecture="Qwen2ForCausalLM",
        hf_model_type="qwen2",
        hidden=hidden,
        layers=layers,
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=hidden // config["num_attention_heads"],
        intermediate=inner,
        vocab=config["vocab_size"],
        tied=True,
        max_position=config["max_position_embeddings"],
        params_total=total,
        params_embedding=config["vocab_size"] * hidden,
        params_lm_head=0,
        params_active=total,
        linears=linears,
        dtype="float32",
        swift_model_type=embedded.SWIFT_MODEL_TYPE,
        swift_template=embedded.SWIFT_TEMPLATE,
        pass_model_type=True,
        source="test",
        embedded=True,
    )


def turn(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


ROWS = tuple(
    turn(f"Who are you? ({n})", "I am Ada, " + "a small helper, " * (n % 5) + "at your service.") for n in range(24)
)


def write_rows(project: Path, rows: Sequence[dict[str, Any]] = ROWS) -> DataFacts:
    """Writes rows.jsonl and says of it what the planner needs; lengths are UTF-8 bytes over 2, costliest first."""
    file = project / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = [
        Row(
            file=str(file),
            line=number,
            tokens=30 + len(json.dumps(row)) // 2,
            supervised_tokens=10,
            record=row,
        )
        for number, row in enumerate(rows, start=1)
    ]
    costliest = sorted(measured, key=lambda row: -row.tokens)
    lengths = tuple(sorted(row.tokens for row in measured))
    return DataFacts(
        files=(str(file),),
        rows=len(rows),
        kept=len(rows),
        problems=(),
        lengths=lengths,
        p50_tokens=lengths[len(lengths) // 2],
        p95_tokens=lengths[int((len(lengths) - 1) * 0.95)],
        max_tokens=lengths[-1],
        mean_tokens=sum(lengths) / len(lengths),
        mean_supervised_tokens=10,
        max_supervised_tokens=10,
        costliest=tuple(costliest),
        tokenizer="test",
        exact=False,
        digest="0" * 64,
        self_cognition=True,
    )


def request(**pins: str) -> Request:
    plain: dict[str, Any] = {
        "model": "embedded",
        "datasets": ("rows.jsonl",),
        "strategy": None,
        "parallel_method": "auto",
        "global_batch": 8,
        "lr_scaling": "none",
        "lr_base": None,
        "nproc": None,
        "gpus": None,
        "hardware_file": None,
        "output_dir": None,
        "gate_timeout_s": 300.0,
    }
    return Request(
        pins={flag: Sourced(value=value, source=f"flag --{flag}") for flag, value in pins.items()},
        **{name: Sourced(value=value, source="test") for name, value in plain.items()},
    )


def prediction(**changes: Any) -> Prediction:
    """Round figures, so that a test can put a measurement on either side of them."""
    fields: dict[str, Any] = {
        "terms": (),
        "allocated_bytes": GIB,
        "needs_p50_bytes": GIB,
        "needs_p99_bytes": GIB,
        "context_bytes": GIB // 2,
        "nccl_bytes": 0,
        "budget_bytes": 8 * GIB,
        "host_bytes": 2 * GIB,
        "host_p99_bytes": 3 * GIB,
        "host_budget_bytes": 10 * GIB,
        "phases": (PhaseMemory(phase="first_step", gpu_bytes=GIB, host_bytes=2 * GIB),),
        "binding_phase": "first_step",
        "step_s": 0.5,
        "time_terms": (("compute", 0.5),),
        "tokens_per_s": 1000.0,
        "samples_per_s": 10.0,
        "epoch_s": 5.0,
        "bound_by": "compute",
        "assumptions": (),
    }
    return Prediction(**{**fields, **changes})


def candidate(**changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "strategy": "cpu",
        "device": "cpu",
        "world": 1,
        "tuner": "full",
        "quant": "none",
        "parallel": "none",
        "micro_batch": 2,
        "accumulation": 4,
        "max_length": 512,
        "max_tokens": 512,
        "gradient_checkpointing": False,
        "attn_impl": None,
        "torch_dtype": "float32",
        "optim": "adamw_torch",
    }
    return Candidate(**{**fields, **changes})


def plan(
    project: Path,
    rows: Sequence[dict[str, Any]] = ROWS,
    *,
    build: bool = False,
    pins: Mapping[str, str] = MappingProxyType({}),
    predicted: Prediction | None = None,
    **changes: Any,
) -> Plan:
    """A plan with a chosen candidate and the real argument list; ``build`` makes the model, which real runs need."""
    env = environment(project)
    chosen = candidate(**changes)
    folder = embedded.ensure_model(env) if build else None
    facts = Facts(machine=machine(chosen.world), model=model(folder), data=write_rows(project, rows))
    asked = request(**{"learning_rate": "1e-3", "num_train_epochs": "1", **pins})
    steps = count_steps(chosen, facts, asked)
    return Plan(
        facts=facts,
        candidate=chosen,
        prediction=predicted or prediction(),
        effective=Effective(
            attention="sdpa-math",
            loss="hf_fp32_logits",
            logits_rows="supervised",
            precision="fp32",
            optimizer="fused-adamw",
        ),
        engine_args=arguments.engine_args(chosen, facts, asked, steps, str(project), env.home),
        env=arguments.environment(chosen, facts),
        steps_per_epoch=steps.per_epoch,
        total_steps=steps.total,
        notes=(),
        proposals=(),
        runners_up=(),
        illegal=(),
        machine_class="1xcpu-ram16",
        digest="a" * 64,
        because="test",
    )
