"""Measures host RAM of real ``swift sft`` runs on CPU processes, phase by phase, beside what the predictor says.

host_truth.py [CASE ...] [--keep FOLDER [--measured]]

Each case plans through the public road, runs the planned command itself (two processes, three steps, an evaluation,
a checkpoint) and then one step more from that checkpoint. Memory is what the telemetry says: each rank's greatest
resident set of each phase (VmHWM, reset between phases). A figure is the sum over ranks beyond what the same processes
held after their imports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from swift_autobatch import api, engine, engine_log, render
from swift_autobatch.facts import embedded
from swift_autobatch.records import Environment, Phase, Plan, replace
from swift_autobatch.request import build_request, read_environment
from swift_autobatch.units import gib

STEPS = 3
RANKS = 2


BASE: Mapping[str, int] = {  # 254 M parameters
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
WIDE: Mapping[str, int] = {  # 414 M parameters, other proportions
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 40000,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job: flags of ``autoswift``, and the model."""

    name: str
    flags: Mapping[str, Any]
    dtype: str = "bfloat16"
    shape: Mapping[str, int] = field(default_factory=lambda: BASE)

    @property
    def model(self) -> str:
        """The folder of its model."""
        return f"model-{'base' if self.shape is BASE else 'wide'}-{self.dtype}"


def _case(name: str, strategy: str, tuner: str, accumulation: int = 1, **more: Any) -> Case:
    flags = {"strategy": strategy, "tuner_type": tuner, "gradient_accumulation_steps": str(accumulation)}
    return Case(name=name, flags=flags, **more)


CASES = (
    _case("zero2-offload-full", "multi-zero2-offload", "full"),
    _case("zero3-offload-full", "zero3-offload", "full"),
    _case("zero3-offload-lora", "zero3-offload", "lora"),
    _case("zero2-offload-full-accumulated", "multi-zero2-offload", "full", accumulation=2),
    _case("zero3-offload-full-fp32", "zero3-offload", "full", dtype="float32"),
    _case("zero2-offload-lora", "multi-zero2-offload", "lora"),
    _case("zero2-offload-full-wide", "multi-zero2-offload", "full", shape=WIDE),
    _case("zero3-offload-full-wide", "zero3-offload", "full", shape=WIDE),
)


# ------------------------------------------------------------------------------------------------------ model


def build_model(folder: Path, case: Case, env: Environment) -> Path:
    """A Qwen2 of the case's shape with random weights, and the embedded model's tokenizer; built once a folder."""
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    source = embedded.ensure_model(env)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    config = {**embedded.CONFIG, **case.shape, "dtype": case.dtype, "initializer_range": 0.02}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _write_weights(folder / "model.safetensors", config)
    return folder


def _write_weights(path: Path, config: Mapping[str, Any]) -> None:
    """The tensors one after the other, in the safetensors layout; numpy has no bfloat16, so its bits are cut."""
    wide = config["dtype"] == "float32"
    random = numpy.random.default_rng(7)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in _shapes(config):
        size = int(numpy.prod(shape)) * (4 if wide else 2)
        header[name] = {"dtype": "F32" if wide else "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in _shapes(config):
            values = numpy.ones(shape, "float32") if "norm" in name else random.standard_normal(shape, "float32") * 0.02
            values = numpy.ascontiguousarray(values, "<f4")
            file.write(values.tobytes() if wide else (values.view("<u4") >> 16).astype("<u2").tobytes())


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    hidden, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", keys), ("v", keys)):
            yield f"{at}.self_attn.{name}_proj.weight", [rows, hidden]
            yield f"{at}.self_attn.{name}_proj.bias", [rows]
        yield f"{at}.self_attn.o_proj.weight", [hidden, hidden]
        yield f"{at}.mlp.gate_proj.weight", [wide, hidden]
        yield f"{at}.mlp.up_proj.weight", [wide, hidden]
        yield f"{at}.mlp.down_proj.weight", [hidden, wide]
        yield f"{at}.input_layernorm.weight", [hidden]
        yield f"{at}.post_attention_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [vocab, hidden]


# ---------------------------------------------------------------------------------------------------- measure


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run, resident bytes of all ranks together."""

    imports_bytes: int  # after the imports
    peaks: Mapping[Phase, int]  # of each phase


def read_run(folder: Path) -> Measured:
    """What the telemetry of a finished run says."""
    rows = engine_log.read_telemetry(folder / "autoswift")
    imports = {row["rank"]: int(row["rss_bytes"]) for row in rows if row["event"] == "imports"}
    peaks = {found.phase: found.rss_sum_bytes for found in engine_log.measured(rows) if found.rss_sum_bytes}
    return Measured(imports_bytes=sum(imports.values()), peaks=peaks)


# -------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One phase of a case: bytes over all ranks beyond the imports."""

    case: str
    phase: Phase
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def run(case: Case, folder: Path, env: Environment, model: Path) -> list[Truth]:
    """Runs a case: training with evaluation and a checkpoint, then one more step from the checkpoint."""
    first = make_plan(case, folder, env, model, "first")
    _train(first, folder / "first", env)
    _train(make_plan(case, folder, env, model, "second"), folder / "second", env)
    return compare(case, folder, first)


def compare(case: Case, folder: Path, decided: Plan) -> list[Truth]:
    """What was predicted beside what the two runs in ``folder`` measured."""
    runs = {name: read_run(folder / name) for name in ("first", "second")}
    truths = []
    for said in decided.prediction.phases:
        found = runs["second" if said.phase == "resume" else "first"]
        truths.append(
            Truth(
                case=case.name,
                phase=said.phase,
                predicted_bytes=said.host_bytes - found.imports_bytes,
                measured_bytes=found.peaks[said.phase] - found.imports_bytes,
            )
        )
    return truths


def make_plan(case: Case, folder: Path, env: Environment, model: Path, name: str) -> Plan:
    """The plan of a case's ``first`` or ``second`` run."""
    rows = folder / "rows.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    one = {"messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am Ada."}]}
    rows.write_text("".join(json.dumps(one) + "\n" for _ in range(64)), encoding="utf-8")
    flags = {
        **case.flags,
        "model": str(model),
        "model_type": embedded.SWIFT_MODEL_TYPE,
        "template": embedded.SWIFT_TEMPLATE,
        "dataset": str(rows),
        "nproc": str(RANKS),
        "torch_dtype": case.dtype,
        "per_device_train_batch_size": "1",
        "logging_steps": "1",
        "report_to": "none",
    }
    if name == "first":
        every = {"save_steps": str(STEPS), "eval_steps": str(STEPS), "save_strategy": "steps", "eval_strategy": "steps"}
        flags |= {**every, "val_dataset": f"{rows}#4", "max_steps": str(STEPS)}
    else:
        checkpoint = folder / "first" / f"checkpoint-{STEPS}"
        flags |= {"save_strategy": "no", "max_steps": str(STEPS + 1), "resume_from_checkpoint": str(checkpoint)}
    flags["hardware"] = str(_whole_machine(folder, env))
    return api.plan(build_request(flags, (), env), env)


def _whole_machine(folder: Path, env: Environment) -> Path:
    """This machine with all its RAM to spare, so that the plan does not depend on who else is running."""
    found = api.machine(build_request({"nproc": str(RANKS)}, (), env), env)
    host = replace(found.host, ram_budget_bytes=found.host.ram_total_bytes)
    path = folder / "machine.json"
    path.write_text(json.dumps(api.machine_json(replace(found, host=host))), encoding="utf-8")
    return path


def _train(decided: Plan, folder: Path, env: Environment) -> None:
    artefacts = render.render(decided)
    render.write(artefacts.files, folder / "autoswift")
    child = engine.train(
        decided, artefacts, root=Path(env.cwd), run=folder, env=env, timeout_s=1200, on_line=lambda line: None
    )
    if child.exit_code:
        tail = engine_log.scan(engine_log.read_log(folder / engine.LOG)).tail
        raise SystemExit("\n".join((f"the engine ended with exit code {child.exit_code}", *tail)))


def table(truths: list[Truth]) -> str:
    """The rows as Markdown."""
    lines = ["| case | phase | predicted GiB | measured GiB | error |", "|---|---|---|---|---|"]
    lines += [
        f"| {truth.case} | {truth.phase} | {gib(truth.predicted_bytes):.2f} | {gib(truth.measured_bytes):.2f} "
        f"| {truth.error:+.1%} |"
        for truth in truths
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(c.name for c in CASES)}")
    parser.add_argument("--keep", type=Path, help="keep models and runs in this folder")
    parser.add_argument("--measured", action="store_true", help="compare with the runs that --keep holds already")
    asked = parser.parse_args()
    chosen = [case for case in CASES if not asked.cases or case.name in asked.cases]
    env = read_environment()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="host-truth-"))
    truths: list[Truth] = []
    for case in chosen:
        model = build_model(folder / case.model, case, env)
        if not asked.measured:
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            truths += run(case, folder / case.name, env, model)
        elif (folder / case.name / "second").exists():
            truths += compare(case, folder / case.name, make_plan(case, folder / case.name, env, model, "first"))
    print(table(truths), end="")
    if not asked.keep:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
