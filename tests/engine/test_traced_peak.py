"""The tracer beside real ``swift sft`` runs on CPU: the same recorder counts live bytes in both.

The planner's own command trains the embedded model for three steps with ``counting_plugin.py`` beside our telemetry;
the worker traces the same variant without data. A new torch, transformers, peft, bitsandbytes or ms-swift that changes
memory turns this red. About 15 s a run on 2 cores, and 10 s for the traces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import api, engine, engine_log, footprint_file, render
from swift_autobatch.facts import embedded
from swift_autobatch.records import FootprintKey, Phase, Plan, Stream, bytes_at
from swift_autobatch.request import build_request

pytestmark = pytest.mark.engine
PLUGIN = Path(__file__).with_name("counting_plugin.py")
ROWS = 16
PHASES: tuple[Phase, ...] = ("load", "first_step", "steady")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One variant: flags of ``autoswift``."""

    tuner: str
    checkpointing: bool
    nf4: bool = False
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        kind = f"{self.tuner}-nf4" if self.nf4 else self.tuner
        return f"{kind}-{self.dtype}-{'checkpointing' if self.checkpointing else 'whole'}"

    def flags(self) -> dict[str, str]:
        flags = {
            "tuner_type": self.tuner,
            "torch_dtype": self.dtype,
            "gradient_checkpointing": str(self.checkpointing).lower(),
        }
        return {**flags, "quant_method": "bnb", "quant_bits": "4"} if self.nf4 else flags


CASES = (
    Case(tuner="lora", checkpointing=True),
    Case(tuner="lora", checkpointing=False),
    Case(tuner="lora", checkpointing=True, nf4=True),
    Case(tuner="lora", checkpointing=False, nf4=True),
    Case(tuner="full", checkpointing=True),
    Case(tuner="full", checkpointing=False),
    Case(tuner="full", checkpointing=True, dtype="float32"),
)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What one engine run counted."""

    batch: dict[str, int]  # b rows of s tokens, the last t of each reach the projection
    peaks: dict[Phase, int]


def planned(case: Case, project: Path) -> Plan:
    """Three steps on equal rows, in batches of two."""
    env = jobs.environment(project)
    row = jobs.turn("Who are you? " * 10, "I am Ada. " * 20)
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(ROWS)))
    flags = {
        "model": str(embedded.ensure_model(env)),
        "dataset": "rows.jsonl",
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "1",
        "max_steps": "3",
        "save_strategy": "no",
        "report_to": "none",
        "external_plugins": str(PLUGIN),
        "callbacks": "counting",
        **case.flags(),
    }
    return api.plan(build_request(flags, (), env), env)


def train(plan: Plan, project: Path) -> Counted:
    """The plan's own command, counted from inside."""
    artefacts = render.render(plan)
    run = project / "run"
    render.write(artefacts.files, run / "autoswift")
    env = jobs.environment(project)
    child = engine.train(plan, artefacts, root=project, run=run, env=env, timeout_s=300, on_line=lambda line: None)
    assert child.exit_code == 0, engine_log.scan(engine_log.read_log(run / engine.LOG)).tail
    found = json.loads((run / "autoswift" / "counted.json").read_text())
    assert len(found["batches"]) == 3
    assert all(batch == found["batches"][0] for batch in found["batches"])
    return Counted(batch=found["batches"][0], peaks=found["peaks"])


def key(plan: Plan) -> FootprintKey:
    candidate, effective = plan.candidate, plan.effective
    return FootprintKey(
        tuner="full" if candidate.tuner == "full" else "lora",
        quant=candidate.quant,
        checkpointing=candidate.gradient_checkpointing,
        loss=effective.loss,
        attention=effective.attention,
        dtype=candidate.torch_dtype,
        optimizer=effective.optimizer,
        accumulates=candidate.accumulation > 1,
        lora_rank=0 if candidate.tuner == "full" else candidate.lora_rank,
        dropout=candidate.tuner != "full" and candidate.lora_dropout > 0,
    )


def trace(model: str, keys: list[FootprintKey], out: Path) -> list[Stream]:
    """The worker's streams, one a key."""
    out.mkdir()
    request: dict[str, Any] = {
        "model": model,
        "keys": [asdict(each) for each in keys],
        "device": "cpu",
        "out": str(out),
    }
    (out / "request.json").write_text(json.dumps(request))
    words = (sys.executable, "-m", "swift_autobatch.trace.worker", str(out / "request.json"))
    subprocess.run(words, check=True, timeout=300, stdout=subprocess.DEVNULL)
    streams = []
    for index, each in enumerate(keys):
        file = out / f"{index}.footprint"
        assert file.exists(), (out / f"{index}.why").read_text()
        stream = footprint_file.load(file.read_bytes(), str(file))[each].stream
        assert stream is not None
        streams.append(stream)
    return streams


def peaks(stream: Stream, batch: dict[str, int]) -> dict[Phase, int]:
    """The most bytes alive in each phase at one batch."""
    sizes = [bytes_at(size, b=batch["b"], s=batch["s"], k=batch["b"] * batch["t"]) for size in stream.sizes]
    starts = {at: phase for at, phase, _ in stream.marks}
    found: dict[Phase, int] = {}
    alive, phase = 0, stream.marks[0][1]
    for at, event in enumerate(stream.events):
        phase = starts.get(at, phase)
        size = sizes[stream.storages[event if event >= 0 else ~event][0]]
        alive += size if event >= 0 else -size
        found[phase] = max(found.get(phase, 0), alive)
    return found


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stream]:
    """All variants traced by one worker."""
    folder = tmp_path_factory.mktemp("traced")
    plans = [planned(case, folder) for case in CASES]
    found = trace(str(plans[0].facts.model.path), [key(plan) for plan in plans], folder / "out")
    return {case.name: stream for case, stream in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_trace_counts_what_the_engine_allocates(case: Case, streams: dict[str, Stream], tmp_path: Path) -> None:
    counted = train(planned(case, tmp_path), tmp_path)
    traced = peaks(streams[case.name], counted.batch)
    errors = {phase: traced[phase] / counted.peaks[phase] - 1 for phase in PHASES}
    print({phase: f"{error:+.4%}" for phase, error in errors.items()})  # shown with pytest -rP
    assert all(abs(error) <= 0.005 for error in errors.values()), (errors, traced, counted.peaks)
