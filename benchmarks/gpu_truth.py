"""Measures real training steps on one card beside what the predictor says: memory and time of 30 points.

gpu_truth.py [-o RESULTS.jsonl] [--budget SECONDS] [--through auto|swift|peft] [--points ID,...] [--device cuda|cpu]

Send RESULTS.jsonl, or the printed table. Models have random weights, drawn on the card and kept in --work (20 GB with
the four points at 7B; without the room these are left out). One child process a point, through `swift sft` where it is
installed, else through transformers and peft; one JSON line a point, written when it ends. Called again it measures
what is missing. --device cpu runs the same code with tiny shapes on the CPU, to try it out: it measures no card.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from swift_autobatch import api, engine, engine_log, render
from swift_autobatch.errors import AutoswiftError, NothingFitsError
from swift_autobatch.facts import embedded
from swift_autobatch.predict import predict
from swift_autobatch.predict.profile import SWIFT
from swift_autobatch.process import ChildResult, free_port, run_child
from swift_autobatch.records import Environment, Measured, Plan, replace
from swift_autobatch.rehearse.shrink import shrink
from swift_autobatch.request import build_request, read_environment
from swift_autobatch.search import settle
from swift_autobatch.tables import models
from swift_autobatch.units import gib

SCHEMA = "autoswift.gpu_truth/1"
STEPS = 4  # the first allocates the optimizer's states; the median of the others is the step time
BUDGET_S = 570.0
_LONGEST_S = 150.0  # of one point
_USUAL_S = 20.0  # of a point before any was measured
_SMALLER = 32  # --device cpu: tokens are divided by this
_SHORTEST = 64
HERE = Path(__file__).parent
BUILDER = HERE.parent / "swift_autobatch" / "inside" / "random_model.py"
PEFT_CHILD = HERE / "gpu_truth_child.py"
MODELS = {"0.5B": "Qwen/Qwen2.5-0.5B", "1.5B": "Qwen/Qwen2.5-1.5B", "7B": "Qwen/Qwen2.5-7B"}
_DISK_BYTES = {"0.5B": 1.1e9, "1.5B": 3.3e9, "7B": 15.5e9}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One job on one card; every row has exactly ``tokens`` tokens."""

    model: str
    tuner: str  # lora | full | nf4
    tokens: int
    parallel: str = "none"
    micro_batch: int = 1
    liger: bool = False
    checkpointing: bool = True

    @property
    def id(self) -> str:
        words = [self.model, self.tuner, f"{self.tokens // 1024}k"]
        words += [self.parallel] if self.parallel != "none" else []
        words += [f"b{self.micro_batch}"] if self.micro_batch > 1 else []
        words += ["liger"] if self.liger else []
        return "-".join(words if self.checkpointing else [*words, "nockpt"])


def _points() -> Iterator[Point]:
    """Small and telling ones first, so that a budget that ends early has the widest view."""
    k = 1024
    for tuner in ("lora", "full", "nf4"):
        yield Point(model="0.5B", tuner=tuner, tokens=4 * k)
    for parallel in ("zero2", "zero2_offload", "zero3", "zero3_offload"):
        yield Point(model="0.5B", tuner="full", tokens=4 * k, parallel=parallel)
    for tuner in ("lora", "full"):
        yield Point(model="0.5B", tuner=tuner, tokens=4 * k, liger=True)
        yield Point(model="0.5B", tuner=tuner, tokens=4 * k, checkpointing=False)
        yield Point(model="1.5B", tuner=tuner, tokens=4 * k)
    yield Point(model="1.5B", tuner="nf4", tokens=4 * k)
    yield Point(model="7B", tuner="lora", tokens=4 * k)
    yield Point(model="7B", tuner="nf4", tokens=4 * k)
    yield Point(model="0.5B", tuner="lora", tokens=k)
    yield Point(model="0.5B", tuner="full", tokens=k)
    yield Point(model="0.5B", tuner="lora", tokens=16 * k)
    yield Point(model="0.5B", tuner="lora", tokens=16 * k, liger=True)
    yield Point(model="0.5B", tuner="lora", tokens=32 * k, liger=True)
    yield Point(model="1.5B", tuner="lora", tokens=4 * k, micro_batch=4)
    yield Point(model="1.5B", tuner="lora", tokens=4 * k, checkpointing=False)
    yield Point(model="1.5B", tuner="nf4", tokens=16 * k)
    yield Point(model="1.5B", tuner="nf4", tokens=4 * k, micro_batch=4, liger=True)
    yield Point(model="1.5B", tuner="full", tokens=4 * k, parallel="zero2_offload")
    yield Point(model="1.5B", tuner="full", tokens=4 * k, parallel="zero3_offload")
    yield Point(model="7B", tuner="nf4", tokens=16 * k, liger=True)
    yield Point(model="7B", tuner="lora", tokens=16 * k, liger=True)
    yield Point(model="0.5B", tuner="lora", tokens=32 * k)


POINTS = tuple(_points())


# ------------------------------------------------------------------------------------------------------ bench


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where and through what points are measured."""

    device: str  # cuda | cpu
    through: str  # swift | peft
    work: Path
    env: Environment
    card: str
    versions: Mapping[str, str | None]

    def tokens(self, point: Point) -> int:
        return point.tokens if self.device == "cuda" else max(_SHORTEST, point.tokens // _SMALLER)

    def config(self, point: Point) -> dict[str, Any]:
        row = models()[MODELS[point.model].lower()]
        config = {"architectures": [row.architecture], "dtype": "bfloat16", **row.config}
        if self.device == "cuda":
            return config
        return {**shrink(config, vocab=embedded.VOCAB).config, "dtype": "bfloat16"}


def bench(device: str, through: str, work: Path) -> Bench:
    """This machine's bench.

    Raises:
        SystemExit: there is no card, or nothing to train with.
    """
    env = read_environment()
    visible = env.variables.get("CUDA_VISIBLE_DEVICES")
    only = "" if device == "cpu" else (visible.split(",")[0] if visible else "0")
    env = replace(env, variables={**env.variables, "CUDA_VISIBLE_DEVICES": only})
    env = replace(env, state_dir=str(work / "state"))  # what this machine was seen to do must not help the prediction
    found = api.machine(build_request({"nproc": "1"}, (), env), env)
    if device == "cuda" and not found.gpus:
        raise SystemExit("error: no CUDA card is visible here\nhint: --device cpu tries the benchmark out without one")
    versions = found.software.versions
    if through == "auto":
        through = "swift" if versions.get("ms-swift") else "peft"
    needs = ("ms-swift",) if through == "swift" else ("transformers", "peft")
    absent = [name for name in needs if versions.get(name) is None]
    if absent:
        raise SystemExit(f"error: {' and '.join(absent)} not installed\nhint: pip install {' '.join(absent)}")
    card = found.gpus[0].name if found.gpus else "CPU"
    return Bench(device=device, through=through, work=work, env=env, card=card, versions=versions)


def key(spot: Bench, point: Point) -> str:
    """What makes a line of the results stand for a point here: the card, the engine and its versions."""
    names = ("torch", "transformers", "peft", "ms-swift", "deepspeed", "bitsandbytes", "liger-kernel")
    versions = ",".join(f"{name}={spot.versions.get(name)}" for name in names)
    return f"{point.id}|{spot.card}|{spot.through}|{versions}"


# ------------------------------------------------------------------------------------------------------ point


class Left(Exception):
    """A point that cannot be measured here, and why."""


def build_model(spot: Bench, point: Point) -> Path:
    """The folder of a point's model with random weights, built once.

    Raises:
        Left: no room on the disk, or it cannot be built.
    """
    folder = spot.work / f"{point.model}-{spot.device}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if spot.device == "cuda" and free < 1.2 * _DISK_BYTES[point.model]:
        raise Left(f"its weights need {gib(int(_DISK_BYTES[point.model])):.0f} GiB of disk, {gib(free):.0f} are free")
    source = embedded.ensure_model(spot.env)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    wanted = folder / "wanted.json"
    wanted.write_text(json.dumps(spot.config(point)), encoding="utf-8")
    argv = (spot.env.interpreter, str(BUILDER), str(wanted), str(folder), spot.device)
    log = folder / "build.log"
    ended = run_child(argv, env=spot.env.variables, cwd=folder, log=log, timeout_s=300)
    if ended.exit_code:
        raise Left(f"the model cannot be built: {_last(log)}")
    (folder / "done").touch()
    return folder


def rows_file(spot: Bench, point: Point) -> Path:
    """Rows that are exactly as long as asked: the stand-in tokenizer makes every digit a token, the rest is cut."""
    tokens = spot.tokens(point)
    path = spot.work / f"rows-{tokens}.jsonl"
    row = {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "0123456789" * tokens}]}
    row["messages"][1]["content"] = row["messages"][1]["content"][:tokens]
    path.write_text((json.dumps(row) + "\n") * (STEPS * 4), encoding="utf-8")
    return path


def make_plan(spot: Bench, point: Point, model: Path, folder: Path) -> tuple[Plan, bool]:
    """The plan of a point, every choice pinned, and whether it is predicted to fit the card.

    Raises:
        Left: a rule forbids it here (a package is missing, or the device cannot).
    """
    flags: dict[str, Any] = {
        "model": str(model),
        "model_type": embedded.SWIFT_MODEL_TYPE,
        "template": embedded.SWIFT_TEMPLATE,
        "dataset": str(rows_file(spot, point)),
        "nproc": "1",
        "tuner_type": "full" if point.tuner == "full" else "lora",
        "torch_dtype": "bfloat16",
        "max_length": str(spot.tokens(point)),
        "truncation_strategy": "right",
        "per_device_train_batch_size": str(point.micro_batch),
        "gradient_accumulation_steps": "1",
        "gradient_checkpointing": str(point.checkpointing).lower(),
        "max_steps": str(STEPS),
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_steps": "1",
        "report_to": "none",
        "packing": "false",
        "padding_free": "false",
        "group_by_length": "false",
        "optim": "adamw_torch_fused",
    }
    if point.tuner == "nf4":
        flags |= {"quant_method": "bnb", "quant_bits": "4"}
    if point.parallel != "none":
        flags["deepspeed"] = point.parallel
    flags["use_liger_kernel"] = str(point.liger).lower()
    try:
        return api.plan(build_request(flags, (), spot.env), spot.env), True
    except NothingFitsError:
        flags["hardware"] = str(_roomier(spot, folder))
        return api.plan(build_request(flags, (), spot.env), spot.env), False
    except AutoswiftError as error:
        raise Left(error.what) from error


def _roomier(spot: Bench, folder: Path) -> Path:
    """This machine with 16 times its memory, so that a point predicted not to fit is tried all the same."""
    found = api.machine(build_request({"nproc": "1"}, (), spot.env), spot.env)
    gpus = tuple(replace(gpu, total_bytes=16 * gpu.total_bytes, free_bytes=16 * gpu.free_bytes) for gpu in found.gpus)
    host = replace(found.host, ram_budget_bytes=16 * found.host.ram_total_bytes)
    path = folder / "machine.json"
    path.write_text(json.dumps(api.machine_json(replace(found, gpus=gpus, host=host))), encoding="utf-8")
    return path


def predicted(spot: Bench, plan: Plan) -> dict[str, Any]:
    """What the predictor says of a point, in bytes and seconds."""
    if spot.through == "peft":  # its trainer keeps no logits back and writes no loss of its own
        own = replace(SWIFT, logits_rows="all", loss="hf_fp32_logits", source="transformers and peft")
        made = predict(plan.facts, plan.candidate, engine=own)
    else:
        made = settle(plan.facts, plan.candidate, plan.prediction)
    reserved = made.needs_p50_bytes if made.reserved_bytes is None else made.reserved_bytes
    return {
        "allocated_bytes": made.allocated_bytes,
        "reserved_bytes": reserved,
        "driver_bytes": made.driver_bytes,
        "host_bytes": made.host_bytes,
        "step_s": made.step_s,
        "traced": made.traced,
    }


def measured(folder: Path) -> dict[str, Any]:
    """The peaks of training, loading left out, and the median step; {} where no step was made."""
    phases: dict[str, Measured] = {one.phase: one for one in engine_log.measured(engine_log.read_telemetry(folder))}
    training = [phases[name] for name in ("first_step", "steady") if name in phases]
    if not training:
        return {}

    def peak(read: Callable[[Measured], int | None]) -> int | None:
        return max((value for value in map(read, training) if value is not None), default=None)

    return {
        "allocated_bytes": peak(lambda one: one.gpu_allocated_bytes),
        "reserved_bytes": peak(lambda one: one.gpu_reserved_bytes),
        "driver_bytes": peak(lambda one: one.driver_bytes),
        "host_bytes": peak(lambda one: one.rss_sum_bytes),
        "step_s": phases["steady"].seconds if "steady" in phases else None,
    }


def measure(spot: Bench, point: Point, timeout_s: float) -> dict[str, Any]:
    """Runs one point in a child process and returns its line of the results."""
    began = time.monotonic()
    line: dict[str, Any] = {
        "schema": SCHEMA,
        "key": key(spot, point),
        "id": point.id,
        "point": {**asdict(point), "tokens": spot.tokens(point)},
        "card": spot.card,
        "through": spot.through,
        "versions": dict(spot.versions),
    }
    with tempfile.TemporaryDirectory(prefix="gpu-truth-", dir=spot.work) as name:
        folder = Path(name)
        try:
            plan, fits = make_plan(spot, point, build_model(spot, point), folder)
            line |= {"predicted": predicted(spot, plan), "predicted_fits": fits}
            ended = _train(spot, point, plan, folder, timeout_s)
        except Left as why:
            return {**line, "status": "left-out", "why": str(why), "seconds": time.monotonic() - began}
        line |= _outcome(folder, ended)
        if line["status"] == "failed":
            shutil.copy(folder / engine.LOG, spot.work / f"{point.id}.log")
    return {**line, "seconds": time.monotonic() - began}


def _outcome(folder: Path, ended: ChildResult) -> dict[str, Any]:
    found = measured(folder / "autoswift")
    log = engine_log.scan(engine_log.read_log(folder / engine.LOG))
    if ended.exit_code == 0 and found.get("step_s"):
        return {"status": "measured", "measured": found}
    if log.oom is not None:
        return {"status": "out-of-memory", "measured": found, "why": log.oom}
    said = log.exceptions[-1] if log.exceptions else _last(folder / engine.LOG)
    return {"status": "failed", "measured": found, "why": "it took too long" if ended.timed_out else said}


def _train(spot: Bench, point: Point, plan: Plan, folder: Path, timeout_s: float) -> ChildResult:
    if spot.through == "swift":
        artefacts = render.render(plan)
        render.write(artefacts.files, folder / "autoswift")
        return engine.train(
            plan,
            artefacts,
            root=Path(spot.env.cwd),
            run=folder,
            env=spot.env,
            timeout_s=timeout_s,
            on_line=lambda line: None,
        )
    (folder / "autoswift").mkdir()
    job = {
        "folder": str(spot.work / f"{point.model}-{spot.device}"),
        "telemetry": str(folder / "autoswift" / "telemetry-0.jsonl"),
        "output": str(folder / "trainer"),
        "device": spot.device,
        "steps": STEPS,
        "deepspeed": plan.candidate.parallel if point.parallel != "none" else None,
        **asdict(point),
        "tokens": spot.tokens(point),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    argv = (spot.env.interpreter, str(PEFT_CHILD), str(folder / "job.json"))
    own = {name: value.value for name, value in plan.env.items() if not value.value.startswith("$")}
    launcher = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    own |= {**launcher, "MASTER_PORT": str(free_port())} if point.parallel != "none" else {}
    env = engine.child_env(spot.env, {**own, "HF_HUB_OFFLINE": "1"})  # nothing of it comes from a hub
    return run_child(argv, env=env, cwd=folder, log=folder / engine.LOG, timeout_s=timeout_s)


def _last(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return said[-1][:300] if said else "it said nothing"


# -------------------------------------------------------------------------------------------------------- all


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each point, by its key; a line that was cut off is as good as none."""
    return {row["key"]: dict(row) for row in engine_log.read_rows(path) if row.get("schema") == SCHEMA}


def run(spot: Bench, points: Sequence[Point], results: Path, budget_s: float) -> dict[str, dict[str, Any]]:
    """Measures what is missing within the budget; every line is on the disk before the next point starts."""
    began = time.monotonic()
    kept = read_results(results)
    usual = {point.model: _USUAL_S for point in points}
    for number, point in enumerate(points, start=1):
        known = kept.get(key(spot, point))
        if known is not None and known["status"] in ("measured", "out-of-memory"):
            continue
        left = budget_s - (time.monotonic() - began)
        if left < usual[point.model]:
            _say(f"{point.id}: not begun, {left:.0f} s of the budget are left; call again for the rest")
            continue
        _say(f"{number}/{len(points)} {point.id} ...")
        line = measure(spot, point, min(left, _LONGEST_S))
        usual[point.model] = line["seconds"] if line["status"] == "measured" else usual[point.model]
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        kept[line["key"]] = line
        _say(f"    {line['status']} in {line['seconds']:.0f} s" + (f": {line['why']}" if "why" in line else ""))
    return kept


def table(spot: Bench, points: Sequence[Point], kept: Mapping[str, Mapping[str, Any]]) -> str:
    """Predicted beside measured as Markdown: GiB and seconds, and how far off."""
    named = [("host", "host_bytes")] if spot.device == "cpu" else []
    named = named or [("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"), ("driver", "driver_bytes")]
    head = ["point", *(f"{name} GiB: predicted / measured" for name, _ in named), "step s: predicted / measured"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for point in points:
        line = kept.get(key(spot, point))
        if line is None:
            lines.append(f"| {point.id} | not measured |" + " |" * len(named))
        elif line["status"] == "measured":
            said, found = line["predicted"], line["measured"]
            cells = [_cell(said[field], found[field], 2**30) for _, field in named]
            lines.append("| " + " | ".join([point.id, *cells, _cell(said["step_s"], found["step_s"], 1)]) + " |")
        else:
            lines.append(f"| {point.id} | {line['status']}: {line.get('why', '')[:80]} |" + " |" * len(named))
    return "\n".join(lines) + "\n"


def _cell(said: float, found: float | None, unit: int) -> str:
    if not found:
        return f"{said / unit:.3g} / -"
    return f"{said / unit:.3g} / {found / unit:.3g} ({said / found - 1:+.0%})"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu_truth.jsonl"))
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    parser.add_argument("--through", choices=("auto", "swift", "peft"), default="auto")
    parser.add_argument("--points", help=f"default: all {len(POINTS)}; --list names them")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--work", type=Path, default=Path("gpu-truth-models"), help="where the models are kept")
    parser.add_argument("--list", action="store_true", help="name the points and stop")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(point.id for point in POINTS))
        return
    names = asked.points.split(",") if asked.points else [point.id for point in POINTS]
    unknown = sorted(set(names) - {point.id for point in POINTS})
    if unknown:
        raise SystemExit(f"error: no point is called {unknown[0]}\nhint: --list names them")
    asked.work.mkdir(parents=True, exist_ok=True)
    spot = bench(asked.device, asked.through, asked.work.resolve())
    points = [point for point in POINTS if point.id in names]
    kept = run(spot, points, asked.output, asked.budget)
    print(f"{spot.card}, through {spot.through}, torch {spot.versions.get('torch')}\n")
    print(table(spot, points, kept), end="")


if __name__ == "__main__":
    main()
