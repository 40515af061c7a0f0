"""The trace against real optimizer steps of transformers.Trainer on the CPU, storage by storage.

Both sides count with the same recorder; the trace on tensors without data, Trainer on real ones. A new torch,
transformers, peft or bitsandbytes that changes what training allocates turns this red.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_autobatch import footprint_file
from swift_autobatch.records import Stream, bytes_at

HERE = Path(__file__).parent
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
LORA: dict[str, Any] = {
    "tuner": "lora",
    "quant": "none",
    "checkpointing": True,
    "loss": "hf_fp32_logits",
    "attention": "sdpa-flash",
    "dtype": "bfloat16",
    "optimizer": "fused-adamw",
    "accumulates": False,
    "lora_rank": 8,
    "dropout": True,
    "masked": False,
    "deepspeed": False,
}
FULL = {**LORA, "tuner": "full", "lora_rank": 0, "dropout": False}
CASES = {
    "lora": LORA,
    "lora, everything kept": {**LORA, "checkpointing": False, "dropout": False},
    "lora, padded": {**LORA, "masked": True, "checkpointing": False},
    "lora, float32": {**LORA, "dtype": "float32"},
    "nf4": {**LORA, "quant": "nf4"},
    "nf4, everything kept": {**LORA, "quant": "nf4", "checkpointing": False},
    "full": FULL,
    "full, everything kept, two micro batches": {**FULL, "checkpointing": False, "accumulates": True},
    "full, eager attention": {**FULL, "attention": "eager"},
}
B, S, T = 2, 128, 64  # rows, tokens, of which reach the projection; the last T of every row
MOST = 0.005
NAMES = list(CASES)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stream]:
    """Every case traced by one child."""
    out = tmp_path_factory.mktemp("traces")
    request = {"model": LLAMA, "keys": list(CASES.values()), "device": "cpu", "out": str(out)}
    (out / "request.json").write_text(json.dumps(request))
    argv = [sys.executable, "-m", "swift_autobatch.trace.worker", str(out / "request.json")]
    subprocess.run(argv, check=True, capture_output=True, timeout=600)
    assert not [path.read_text() for path in out.glob("*.why")]
    read = [(out / f"{index}.footprint").read_bytes() for index in range(len(CASES))]
    return {
        name: next(iter(footprint_file.load(data, name).values())).stream
        for name, data in zip(NAMES, read, strict=True)
    }


def peaks(stream: Stream) -> dict[str, int]:
    """The most that is alive in each phase, storage by storage."""
    sizes = [bytes_at(stream.sizes[size], b=B, s=S, k=B * T) for size, _ in stream.storages]
    alive = 0
    found: dict[str, int] = {}
    marks = {event: phase for event, phase, _ in stream.marks}
    phase = "load"
    for position, event in enumerate(stream.events):
        phase = marks.get(position, phase)
        alive += sizes[event] if event >= 0 else -sizes[~event]
        found[phase] = max(found.get(phase, 0), alive)
    return found


@pytest.mark.engine
@pytest.mark.parametrize("name", NAMES)
def test_the_trace_is_what_a_real_trainer_allocates(name: str, traces: dict[str, Stream], tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps({"config": LLAMA, "key": CASES[name], "b": B, "s": S, "t": T}))
    argv = [sys.executable, str(HERE / "real_trainer.py"), str(case)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout.splitlines()[-1])
    traced = peaks(traces[name])
    for phase in ("first_step", "steady", "eval"):
        assert traced[phase] == pytest.approx(real[phase], rel=MOST), phase
